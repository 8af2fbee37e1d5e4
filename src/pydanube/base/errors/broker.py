"""The broker as its callers see it: names, limits, requests, and the client itself."""

from __future__ import annotations

from pydanube.base.errors.root import DanubeError, ExitCode, GrpcStatus

# -- namespaces, topics and requests ---------------------------------------------------------------------------------


class NamespaceNotFound(DanubeError):
    """The namespace does not exist."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND
    help = "Create it, or use one that exists."


class NamespaceExists(DanubeError):
    """A namespace with this name already exists."""

    blame = "caller"
    http_status = 409
    grpc_status = GrpcStatus.ALREADY_EXISTS
    help = "Use the existing namespace, or choose another name."


class NamespaceNotEmpty(DanubeError):
    """The namespace still has topics."""

    blame = "caller"
    http_status = 409
    help = "Delete its topics first."


class BrokerNotFound(DanubeError):
    """No broker has this id."""

    blame = "caller"
    grpc_status = GrpcStatus.NOT_FOUND
    help = "List the brokers and use one of their ids."


class TopicNotFound(DanubeError):
    """The topic does not exist, and it may not be created automatically on first use."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND
    help = "Create it with `danube topic create`."


class TopicExists(DanubeError):
    """A topic with this name already exists."""

    blame = "caller"
    http_status = 409
    grpc_status = GrpcStatus.ALREADY_EXISTS
    help = "Use the existing topic, or choose another name."


class TopicKindDiffers(DanubeError):
    """The producer asked for a reliable topic and this one is not, or the other way round."""

    blame = "caller"
    http_status = 409
    help = "Open the topic with the kind it was created with."


class PartitionMissing(DanubeError):
    """The partition does not exist, or the topic is partitioned and the request names no partition."""

    blame = "caller"
    http_status = 404
    grpc_status = GrpcStatus.ALREADY_EXISTS  # the name is taken, by a topic with partitions or by one without
    exit_code = ExitCode.NOT_FOUND
    help = "Name a partition by its topic and number, as in orders-part-0."


class LimitReached(DanubeError):
    """A limit in the policies of the namespace or topic was reached."""

    blame = "caller"
    http_status = 409
    help = "Close or delete what you no longer need, or raise the limit in the policies."


class ProducerLimitReached(LimitReached):
    """The topic already has as many producers as `producers_max` allows. Existing producers are not affected."""

    retriable = True
    grpc_status = GrpcStatus.RESOURCE_EXHAUSTED
    help = "Close producers that you no longer need, or raise `producers_max`."


class SubscriptionConsumerLimitReached(LimitReached):
    """The subscription already has as many consumers as `consumers_per_subscription_max` allows. Existing consumers
    are not affected."""

    retriable = True
    grpc_status = GrpcStatus.PERMISSION_DENIED
    help = "Close consumers that you no longer need, or raise `consumers_per_subscription_max`."


class ConsumerLimitReached(LimitReached):
    """The topic already has as many consumers as `consumers_max` allows. Existing consumers are not affected."""

    retriable = True
    grpc_status = GrpcStatus.RESOURCE_EXHAUSTED
    help = "Close consumers that you no longer need, or raise `consumers_max`."


class SubscriptionLimitReached(LimitReached):
    """The topic already has as many subscriptions as `subscriptions_max` allows. Existing subscriptions are not
    affected."""

    grpc_status = GrpcStatus.PERMISSION_DENIED
    help = "Delete unused subscriptions, or raise `subscriptions_max`."


class TopicLimitReached(LimitReached):
    """The namespace already has as many topics as `topics_max` allows. Existing topics are not affected."""

    help = "Delete unused topics, or raise `topics_max`."


class QuotaReached(LimitReached):
    """The topics of the namespace already store as many bytes as `namespace_bytes_max` allows."""

    help = "Delete topics, shorten their retention, acknowledge old messages, or raise `namespace_bytes_max`."


class BacklogFull(DanubeError):
    """A subscription has fallen as far behind as the backlog quota allows, so the topic accepts no new messages."""

    blame = "environment"
    retriable = True
    help = (
        "Let its consumers catch up, delete the subscription, raise the quota, or set `backlog_policy` to drop the "
        "oldest."
    )


class RateExceeded(DanubeError):
    """Messages are published far faster than the publish rate of the topic allows."""

    blame = "caller"
    retriable = True
    help = "Wait for answers before sending more, add partitions, or raise the publish rate."


class TopicExclusive(DanubeError):
    """A producer has exclusive access to the topic, or this one asked for it while others are connected."""

    blame = "caller"
    grpc_status = GrpcStatus.PERMISSION_DENIED
    help = "Close the other producer, or ask for shared access."


class MessageTooLarge(DanubeError):
    """The message is larger than the policies of the namespace or topic allow."""

    blame = "caller"
    http_status = 413
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    help = "Send smaller messages, or raise `message_bytes_max`."


class KeyTooLong(MessageTooLarge):
    """The key of a message has more bytes than any topic accepts."""

    help = "Use a shorter key, such as a digest of it, and put the rest into the message."


class ChannelInvalid(DanubeError):
    """The channel is not open, is already open, or is of another kind."""

    blame = "caller"
    help = "Open a producer or consumer under a new channel number."


class VerbUnknown(DanubeError):
    """The broker does not know this request."""

    blame = "caller"
    help = "Use a client of the same version as the broker."


class RequestInvalid(DanubeError):
    """The request lacks a field, or a field has the wrong type or value."""

    blame = "caller"
    grpc_status = GrpcStatus.INVALID_ARGUMENT
    exit_code = ExitCode.USAGE
    help = "Compare the request with docs/rest.md, or with /api/v1/openapi.json of the broker."


class NotAllowed(DanubeError):
    """The caller may not do this."""

    blame = "caller"
    help = "Ask an operator of the broker for permission."
    http_status = 403
    grpc_status = GrpcStatus.PERMISSION_DENIED


class Unauthenticated(NotAllowed):
    """The caller has not shown who it is: it sent no valid token."""

    blame = "caller"
    help = "Send a valid token; `danube security tokens validate` says what is wrong with one."
    http_status = 401
    grpc_status = GrpcStatus.UNAUTHENTICATED


class TokenExpired(Unauthenticated):
    """The caller's token has expired."""

    blame = "caller"
    retriable = True  # a client whose tokens come from a file or function connects again with a new one
    help = "Get a new token, and connect again with it."
    http_status = 401
    grpc_status = GrpcStatus.UNAUTHENTICATED


class TooManyAttempts(DanubeError):
    """Too many wrong tokens came from this address."""

    blame = "caller"
    retriable = True
    help = "Correct the token of whatever connects from this address, and wait a few seconds."
    grpc_status = GrpcStatus.RESOURCE_EXHAUSTED


class TokensNotConfigured(DanubeError):
    """A token was sent to a broker that checks none."""

    blame = "caller"
    help = "Set auth.jwt.secret_file or auth.jwt.jwks of the broker, or send no token."
    grpc_status = GrpcStatus.FAILED_PRECONDITION


class RoleNotFound(DanubeError):
    """There is no role with this name."""

    blame = "caller"
    help = "List the roles with `danube security roles list`."
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND


class RoleFixed(DanubeError):
    """The role belongs to the system, and cannot be changed or deleted."""

    blame = "caller"
    help = "Create a role of another name."
    http_status = 409
    grpc_status = GrpcStatus.FAILED_PRECONDITION


class BindingNotFound(DanubeError):
    """There is no binding with this id."""

    blame = "caller"
    help = "List the bindings with `danube security bindings list`."
    http_status = 404
    grpc_status = GrpcStatus.NOT_FOUND
    exit_code = ExitCode.NOT_FOUND


# -- clients ---------------------------------------------------------------------------------------------------------


class ProducerBusy(DanubeError):
    """The producer's buffer is full: too many bytes are waiting to be acknowledged."""

    blame = "environment"
    retriable = True
    help = "Wait with `await producer.ready()`, then send again."


class ConnectionLost(DanubeError):
    """The connection was lost. Requests that were not answered may or may not have taken effect."""

    blame = "environment"
    retriable = True
    exit_code = ExitCode.UNREACHABLE
    help = "Check that the broker is running and that the network reaches it; the client reconnects automatically."
    command_help = "Start a broker with `danube standalone --data-dir ./data`, or pass its address with --url."


class NotAnswered(ConnectionLost):
    """The broker is connected but did not answer in time. The request may or may not have taken effect."""

    help = "Check that the broker is not stopped or overloaded, or allow more time."


class AlreadyOpened(DanubeError):
    """A client, producer, consumer or reader can be opened only once."""

    blame = "caller"
    help = "Use the one that is already open, or create a new one."


class BatchUnreadable(DanubeError):
    """The columns of a batch of messages do not match its header. The program that published it built the batch
    wrongly."""

    blame = "caller"
    help = "Continue after the offsets in the message (`reader.seek`), and fix the program that published them."


class ClientClosed(DanubeError):
    """The client, producer, consumer or reader was closed by its own program."""

    blame = "caller"
    help = "Open a new one."


class NotOpened(ClientClosed):
    """The client, producer, consumer or reader was never opened."""

    help = "Open it with `async with`, or `await` it before the first use; without asyncio, use `with` or `open()`."


class OtherLoop(DanubeError):
    """The client was used from a thread or event loop other than the one that it was opened on."""

    blame = "caller"
    help = "Use `pydanube.sync` from threads, but not from its own callbacks; or use `call_soon_threadsafe`."


class ClientForked(DanubeError):
    """The client was opened before the process forked, so its connection belongs to the parent process."""

    blame = "caller"
    help = "Open a client in each process, after the fork."


class AddressInvalid(DanubeError):
    """The text is not a valid broker address."""

    blame = "caller"
    exit_code = ExitCode.USAGE
    help = "Write it as danube://host:port, or danubes://host:port for TLS."


class NothingReceived(DanubeError):
    """No message arrived within the timeout."""

    blame = "environment"
    retriable = True
    help = "Wait longer, or run `danube subscription explain` to see why nothing is delivered."


# -- configuration and TLS -------------------------------------------------------------------------------------------


class ConfigInvalid(DanubeError):
    """A setting does not exist, has an invalid value, or contradicts another setting."""

    blame = "caller"
    exit_code = ExitCode.USAGE
    help = "Correct the setting; docs/configuration.md lists all of them."


class TlsFailed(DanubeError):
    """The TLS connection failed: the certificate is not trusted or is for another name, or one side does not speak
    TLS."""

    blame = "environment"
    exit_code = ExitCode.UNREACHABLE
    help = "Check the scheme (danube:// or danubes://), `ca_file`, and the names and dates of the broker's certificate."
