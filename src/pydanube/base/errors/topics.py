"""Subscriptions, producers, dispatch, and a topic as its owner sees it."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError

# -- subscriptions and their cursors ---------------------------------------------------------------------------------


class NameInvalid(DanubeError):
    """A name that no namespace, topic, subscription or producer can have."""

    code = "name_invalid"
    blame = "caller"
    help = "Choose a name of the kind that the message describes."


class SubscriptionInvalid(DanubeError):
    """No subscription can have this kind, start or these options."""

    code = "subscription_invalid"
    blame = "caller"
    help = "Choose a known kind, a start that the topic can have, and smaller options."


class SubscriptionExists(DanubeError):
    """The topic has a subscription of this name already."""

    code = "subscription_exists"
    blame = "caller"
    help = "Use the one that is there, or choose another name."


class SubscriptionNotFound(DanubeError):
    """The topic has no such subscription, or it was deleted."""

    code = "subscription_not_found"
    blame = "caller"
    help = "Create the subscription first."


class TooManySubscriptions(DanubeError):
    """The topic has as many subscriptions as it may have."""

    code = "too_many_subscriptions"
    blame = "caller"
    help = "Delete subscriptions that nobody uses."


class AckInvalid(DanubeError):
    """An acknowledgement of something that no consumer can have received, or of too much at once."""

    code = "ack_invalid"
    blame = "caller"
    help = "Acknowledge offsets as they were delivered, in fewer ranges at a time."


class AcksScattered(DanubeError):
    """An acknowledgement too far ahead of the first message that is not acknowledged: the cursor cannot hold it."""

    code = "acks_scattered"
    blame = "environment"
    retriable = True
    help = "Acknowledge the oldest messages first, then try again."


class StateInvalid(DanubeError):
    """A record of a topic's state that no version wrote, or that contradicts the records before it."""

    code = "state_invalid"
    blame = "environment"
    help = "Restore the broker's data directory from a backup, or delete the topic and create it again."


# -- producers and their sequences -----------------------------------------------------------------------------------


class ProducerUnknown(DanubeError):
    """The topic does not know the producer, or has forgotten it."""

    code = "producer_unknown"
    blame = "caller"
    help = "Attach the producer again."


class ProducerFenced(DanubeError):
    """A newer session has attached under the same producer name."""

    code = "producer_fenced"
    blame = "caller"
    help = "Close this producer; give each running one a name of its own."


class SequenceInvalid(DanubeError):
    """A number that no sequence or count of messages can be."""

    code = "sequence_invalid"
    blame = "caller"
    help = "Number messages from 0 on, one by one."


class SequenceGap(DanubeError):
    """Messages before these are missing: only the sequence after the last one is accepted."""

    code = "sequence_gap"
    blame = "caller"
    help = "Send again from the sequence that is expected."


class SequenceOverlap(DanubeError):
    """A batch repeats messages of several others, or has new ones besides."""

    code = "sequence_overlap"
    blame = "caller"
    help = "Send a batch again as it was sent first, or its messages one by one."


class SequenceUnknown(DanubeError):
    """Whether these messages were published before cannot be known: producers of this topic have been forgotten."""

    code = "sequence_unknown"
    blame = "caller"
    help = (
        "Look up the producer's last message in the topic. If you send none of its messages again, open the producer "
        "with `fresh=True`."
    )


class OffsetUnknown(DanubeError):
    """The batch was published before, so long ago that its offset is not remembered."""

    code = "offset_unknown"
    blame = "caller"
    help = "Take it as published; read the topic to find where."


class TooManyProducers(DanubeError):
    """The topic has as many producers as it can remember: each is connected, or has a name that was used lately."""

    code = "too_many_producers"
    blame = "caller"
    help = (
        "Close producers that are not needed, and use the same few names again, or none at all. A name that is not "
        "used makes room after seven days."
    )


# -- dispatch --------------------------------------------------------------------------------------------------------


class ConsumerBusy(DanubeError):
    """An Exclusive subscription has its one consumer already."""

    code = "consumer_busy"
    blame = "caller"
    retriable = True
    help = "Close the other consumer, or use a subscription of type failover, shared or key_shared."


class LeaseEnded(DanubeError):
    """The lease of a message is not open any more: its time is over, or the broker was restarted."""

    code = "lease_ended"
    blame = "caller"
    help = "Receive again; ask for a longer lease, or extend it in time, where the work takes longer."


class TooManyLeases(DanubeError):
    """As many messages are leased as a broker keeps track of."""

    code = "too_many_leases"
    blame = "caller"
    retriable = True
    help = "Acknowledge what was received, or wait until leases end."


class ConsumerNotFound(DanubeError):
    """No consumer of that id is connected to the subscription."""

    code = "consumer_not_found"
    blame = "caller"
    retriable = True
    help = "Subscribe again and use the consumer id of the answer."


class TooManyConsumers(DanubeError):
    """The subscription has as many consumers as it can serve."""

    code = "too_many_consumers"
    blame = "caller"
    retriable = True
    help = "Let fewer consumers take more messages each, or add partitions."


class FilterInvalid(DanubeError):
    """Too many key filters, or one that is empty or too long."""

    code = "filter_invalid"
    blame = "caller"
    help = "Use at most 16 key filters of 1 to 256 bytes, on Key-Shared subscriptions only."


class PolicyInvalid(DanubeError):
    """There is no policy of that name, or it cannot have that value."""

    code = "policy_invalid"
    blame = "caller"
    help = "Correct the policy that the message names; docs/policies.md lists them all with their units."


class SubscriptionOptionInvalid(PolicyInvalid):
    """A subscription has no option of that name, or the option cannot have that value."""

    code = "subscription_option_invalid"
    help = "Correct the option that the message names; docs/subscriptions.md lists them all with units and bounds."


# -- topics ----------------------------------------------------------------------------------------------------------


class TopicRecovering(DanubeError):
    """A write of the topic failed, and it is finding out what became of it."""

    code = "topic_recovering"
    blame = "environment"
    retriable = True
    help = "Try again in a moment; if it lasts, look at the storage nodes."


class TopicBusy(DanubeError):
    """More of the topic waits to become durable than it may hold in memory."""

    code = "topic_busy"
    blame = "environment"
    retriable = True
    help = "Wait for what was sent before, then try again."


class TopicClosed(DanubeError):
    """This broker serves the topic no more."""

    code = "topic_closed"
    blame = "server"
    retriable = True
    help = "Look the topic up again and connect to its owner."


class NotReliable(DanubeError):
    """The topic delivers at most once and keeps nothing, so it cannot do this."""

    code = "not_reliable"
    blame = "caller"
    help = "Create a reliable topic for this."


class SubscriptionKindDiffers(DanubeError):
    """The subscription exists and is of another type."""

    code = "subscription_kind_differs"
    blame = "caller"
    help = "Name the type it has, or another subscription."


class SinkConflict(DanubeError):
    """A batch of a writer that writes exactly once is neither new nor the one that it has written before."""

    code = "sink_conflict"
    blame = "caller"
    help = (
        "Go on with the checkpoint that the query had. Two queries, or two writes of one batch, each need a writeName. "
        "To write it again on purpose, `danube sink forget` the writer."
    )


class TooManySinks(DanubeError):
    """The broker remembers as many writers that write exactly once as it can, and all have written lately."""

    code = "too_many_sinks"
    blame = "caller"
    help = "Let queries keep their checkpoints, and `danube sink forget` writers that will not come again."


class SinkBlocked(DanubeError):
    """A batch that was decided cannot be written, so its topics take no other messages."""

    code = "sink_blocked"
    blame = "environment"
    help = (
        "See `danube sink list` for the cause and mend it: the batch is then written by itself. If its staged rows are "
        "lost, give it up with `danube sink forget --abandon`."
    )


class SinkExpired(DanubeError):
    """What a writer has staged for a batch is not there any more, so the batch cannot be committed."""

    code = "sink_expired"
    blame = "caller"
    help = "Run the batch again; staged rows stay for a day."
