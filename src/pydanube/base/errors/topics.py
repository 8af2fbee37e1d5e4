"""Subscriptions, producers, dispatch, and a topic as its owner sees it."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, ExitCode, GrpcStatus

# -- subscriptions and their cursors ---------------------------------------------------------------------------------


class NameInvalid(DanubeError):
    """The name is not valid for a namespace, topic, subscription, producer or pipeline."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    help = "Use only the characters and the length that the message allows."


class SubscriptionInvalid(DanubeError):
    """The type, start or options of the subscription are not valid."""

    blame = "caller"
    exit_code = ExitCode.USAGE
    help = "Use a type, start and options from docs/concepts/subscriptions.md."


class SubscriptionExists(DanubeError):
    """The topic already has a subscription with this name."""

    blame = "caller"
    http_status = 409
    grpc_status = GrpcStatus.ALREADY_EXISTS
    help = "Use the existing subscription, or choose another name."


class SubscriptionNotFound(DanubeError):
    """The topic has no subscription with this name, or it was deleted."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND
    help = "Create the subscription first."


class TooManySubscriptions(DanubeError):
    """The topic already has the maximum number of subscriptions."""

    blame = "caller"
    http_status = 409
    help = "Delete unused subscriptions."


class AckInvalid(DanubeError):
    """The acknowledgement names messages that no consumer can have received, or too many ranges at once."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    help = "Acknowledge offsets as they were delivered, in fewer ranges at a time."


class AcksScattered(DanubeError):
    """The acknowledgement is too far ahead of the oldest unacknowledged message for the cursor to record it."""

    blame = "environment"
    retriable = True
    help = "Acknowledge the oldest messages first, then try again."


class StateInvalid(DanubeError):
    """A state record of the topic was written by no known version, or contradicts earlier records."""

    blame = "environment"
    help = "Restore the broker's data directory from a backup, or delete the topic and create it again."


# -- producers and their sequences -----------------------------------------------------------------------------------


class ProducerUnknown(DanubeError):
    """The topic does not know this producer, or has forgotten it."""

    blame = "caller"
    help = "Attach the producer again."


class ProducerFenced(DanubeError):
    """A newer session has attached under the same producer name."""

    blame = "caller"
    help = "Close this producer, and give each running producer its own name."


class SequenceInvalid(DanubeError):
    """The number is not a valid sequence or message count."""

    blame = "caller"
    help = "Number messages consecutively, starting at 0."


class SequenceGap(DanubeError):
    """Earlier messages are missing: the topic accepts only the sequence that follows the last one."""

    blame = "caller"
    help = "Send again, starting at the expected sequence."


class SequenceOverlap(DanubeError):
    """The batch repeats messages of several earlier batches, or mixes repeated and new messages."""

    blame = "caller"
    help = "Send the batch again exactly as it was sent first, or send its messages one by one."


class SequenceUnknown(DanubeError):
    """The topic has forgotten producers, so it cannot tell whether these messages were already published."""

    blame = "caller"
    help = (
        "Look up the producer's last message in the topic. If you will not send any of its messages again, open the "
        "producer with `fresh=True`."
    )


class OffsetUnknown(DanubeError):
    """The batch was published so long ago that its offset is no longer stored."""

    blame = "caller"
    help = "Treat it as published, and read the topic to find its offset."


class TooManyProducers(DanubeError):
    """The topic already tracks the maximum number of producers: each is connected or has used its name recently."""

    blame = "caller"
    help = (
        "Close producers that you no longer need, and reuse a few names or use none. An unused name makes room after "
        "seven days."
    )


# -- dispatch --------------------------------------------------------------------------------------------------------


class ConsumerBusy(DanubeError):
    """The Exclusive subscription already has a consumer."""

    blame = "caller"
    retriable = True
    grpc_status = GrpcStatus.PERMISSION_DENIED
    help = "Close the other consumer, or use a subscription of type failover, shared or key_shared."


class LeaseEnded(DanubeError):
    """The lease of the message has ended: it expired, or the broker was restarted."""

    blame = "caller"
    http_status = 409
    help = "Receive again. If the work takes longer, ask for a longer lease or extend it in time."


class TooManyLeases(DanubeError):
    """The broker already tracks the maximum number of leased messages."""

    blame = "caller"
    retriable = True
    help = "Acknowledge received messages, or wait until leases end."


class ConsumerNotFound(DanubeError):
    """No connected consumer of the subscription has this id."""

    blame = "caller"
    retriable = True
    http_status = 404
    help = "Subscribe again and use the consumer id in the answer."


class TooManyConsumers(DanubeError):
    """The subscription already has the maximum number of consumers."""

    blame = "caller"
    retriable = True
    grpc_status = GrpcStatus.RESOURCE_EXHAUSTED
    help = "Use fewer consumers that each take more messages, or add partitions."


class FilterInvalid(DanubeError):
    """There are too many key filters, of a consumer or of all consumers together, or one is empty or too long."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    help = "Use at most 16 key filters of 1 to 256 bytes, on Key-Shared subscriptions only."


class PolicyInvalid(DanubeError):
    """The policy does not exist, or does not allow this value."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    help = "Correct the policy; docs/policies.md lists all of them."


class SubscriptionOptionInvalid(PolicyInvalid):
    """The subscription option does not exist, or does not allow this value."""

    help = "Correct the option; docs/subscriptions.md lists all of them with units and limits."


# -- topics ----------------------------------------------------------------------------------------------------------


class TopicRecovering(DanubeError):
    """A write to the topic failed, and the broker is finding out which messages were stored."""

    blame = "environment"
    retriable = True
    help = "Try again in a moment; if it persists, check the storage nodes."


class TopicBusy(DanubeError):
    """Too much data of the topic is waiting to become durable."""

    blame = "environment"
    retriable = True
    help = "Wait for earlier requests to finish, then try again."


class TopicClosed(DanubeError):
    """This broker no longer serves the topic."""

    blame = "server"
    retriable = True
    help = "Look the topic up again and connect to its owner."


class NotOwner(DanubeError):
    """Another broker serves the topic."""

    blame = "environment"
    retriable = True
    help = "Connect to the broker that the message names, or look the topic up again in a moment."


class NotReliable(DanubeError):
    """The topic is not reliable: it stores nothing, so it cannot do this."""

    blame = "caller"
    http_status = 409
    help = "Use a reliable topic."


class SubscriptionKindDiffers(DanubeError):
    """The subscription already exists with another type."""

    blame = "caller"
    http_status = 409
    help = "Use the subscription's own type, or another subscription."


class SinkConflict(DanubeError):
    """The batch of an exactly-once writer is neither new nor identical to the one that it wrote before."""

    blame = "caller"
    help = (
        "Continue with the checkpoint that the query had. Two queries, or two writes of one batch, each need their "
        "own writeName. To write it again on purpose, forget the writer with `danube sink forget`."
    )


class TooManySinks(DanubeError):
    """The broker already tracks the maximum number of exactly-once writers, and all were active recently."""

    blame = "caller"
    help = "Let queries keep their checkpoints, and run `danube sink forget` for writers that will not return."


class SinkBlocked(DanubeError):
    """A committed batch cannot be written, so its topics accept no other messages."""

    blame = "environment"
    help = (
        "See `danube sink list` for the cause and fix it; the broker then writes the batch. If its staged rows are "
        "lost, give it up with `danube sink forget --abandon`."
    )


class SinkExpired(DanubeError):
    """The staged rows of a batch are gone, so the batch cannot be committed."""

    blame = "caller"
    help = "Run the batch again; staged rows are kept for one day."
