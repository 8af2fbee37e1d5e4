"""The broker as its callers see it: names, limits, requests, the protocol, and the client itself."""

from __future__ import annotations

from typing import ClassVar

from pydanube.base.errors.root import Blame, DanubeError

# -- namespaces, topics and requests ---------------------------------------------------------------------------------


class NamespaceNotFound(DanubeError):
    """The namespace does not exist."""

    code = "namespace_not_found"
    blame = "caller"
    help = "Create it, or use one that exists."


class NamespaceExists(DanubeError):
    """A namespace with this name already exists."""

    code = "namespace_exists"
    blame = "caller"
    help = "Use the existing namespace, or choose another name."


class NamespaceNotEmpty(DanubeError):
    """The namespace still has topics."""

    code = "namespace_not_empty"
    blame = "caller"
    help = "Delete its topics first."


class BrokerNotFound(DanubeError):
    """No broker has this id."""

    code = "broker_not_found"
    blame = "caller"
    help = "List the brokers and use one of their ids."


class TopicNotFound(DanubeError):
    """The topic does not exist, and it may not be created automatically on first use."""

    code = "topic_not_found"
    blame = "caller"
    help = "Create it with `danube topic create`."


class TopicExists(DanubeError):
    """A topic with this name already exists."""

    code = "topic_exists"
    blame = "caller"
    help = "Use the existing topic, or choose another name."


class TopicKindDiffers(DanubeError):
    """The producer asked for a reliable topic and this one is not, or the other way round."""

    code = "topic_kind_differs"
    blame = "caller"
    help = "Open the topic with the kind it was created with."


class PartitionMissing(DanubeError):
    """The partition does not exist, or the topic is partitioned and the request names no partition."""

    code = "partition_missing"
    blame = "caller"
    help = "Name a partition by its topic and number, as in orders-part-0."


class LimitReached(DanubeError):
    """A limit in the policies of the namespace or topic was reached."""

    code = "limit_reached"
    blame = "caller"
    help = "Close or delete what you no longer need, or raise the limit in the policies."


class ProducerLimitReached(LimitReached):
    """The topic already has as many producers as `producers_max` allows. Existing producers are not affected."""

    code = "producer_limit_reached"
    retriable = True
    help = "Close producers that you no longer need, or raise `producers_max`."


class SubscriptionConsumerLimitReached(LimitReached):
    """The subscription already has as many consumers as `consumers_per_subscription_max` allows. Existing consumers
    are not affected.
    """

    code = "subscription_consumer_limit_reached"
    retriable = True
    help = "Close consumers that you no longer need, or raise `consumers_per_subscription_max`."


class ConsumerLimitReached(LimitReached):
    """The topic already has as many consumers as `consumers_max` allows. Existing consumers are not affected."""

    code = "consumer_limit_reached"
    retriable = True
    help = "Close consumers that you no longer need, or raise `consumers_max`."


class SubscriptionLimitReached(LimitReached):
    """The topic already has as many subscriptions as `subscriptions_max` allows. Existing subscriptions are not
    affected.
    """

    code = "subscription_limit_reached"
    help = "Delete unused subscriptions, or raise `subscriptions_max`."


class TopicLimitReached(LimitReached):
    """The namespace already has as many topics as `topics_max` allows. Existing topics are not affected."""

    code = "topic_limit_reached"
    help = "Delete unused topics, or raise `topics_max`."


class QuotaReached(LimitReached):
    """The topics of the namespace already store as many bytes as `namespace_bytes_max` allows."""

    code = "quota_reached"
    help = "Delete topics, shorten their retention, acknowledge old messages, or raise `namespace_bytes_max`."


class BacklogFull(DanubeError):
    """A subscription has fallen as far behind as the backlog quota allows, so the topic accepts no new messages."""

    code = "backlog_full"
    blame = "environment"
    retriable = True
    help = (
        "Let its consumers catch up, delete the subscription, raise the quota, or set `backlog_policy` to drop the "
        "oldest."
    )


class RateExceeded(DanubeError):
    """Messages are published far faster than the publish rate of the topic allows."""

    code = "rate_exceeded"
    blame = "caller"
    retriable = True
    help = "Wait for answers before sending more, add partitions, or raise the publish rate."


class TopicExclusive(DanubeError):
    """A producer has exclusive access to the topic, or this one asked for it while others are connected."""

    code = "topic_exclusive"
    blame = "caller"
    help = "Close the other producer, or ask for shared access."


class MessageTooLarge(DanubeError):
    """The message is larger than the policies of the namespace or topic allow."""

    code = "message_too_large"
    blame = "caller"
    help = "Send smaller messages, or raise `message_bytes_max`."


class KeyTooLong(MessageTooLarge):
    """The key of a message has more bytes than any topic accepts."""

    code = "key_too_long"
    blame = "caller"
    help = "Use a shorter key, such as a digest of it, and put the rest into the message."


class ChannelInvalid(DanubeError):
    """The channel is not open, is already open, or is of another kind."""

    code = "channel_invalid"
    blame = "caller"
    help = "Open a producer or consumer under a new channel number."


class VerbUnknown(DanubeError):
    """The broker does not know this request."""

    code = "verb_unknown"
    blame = "caller"
    help = "Use a client of the same version as the broker."


class RequestInvalid(DanubeError):
    """The request lacks a field, or a field has the wrong type or value."""

    code = "request_invalid"
    blame = "caller"
    help = "Compare the request with docs/rest.md, or with /api/v1/openapi.json of the broker."


class NotAllowed(DanubeError):
    """The caller may not do this."""

    code = "not_allowed"
    blame = "caller"
    help = "Ask an operator of the broker for permission."


# -- native protocol -------------------------------------------------------------------------------------------------


class ProtocolError(DanubeError):
    """The client sent, or was about to send, bytes that the native protocol forbids. The connection is closed."""

    code = "protocol_error"
    blame: ClassVar[Blame] = "caller"  # of its subclass it is not
    help = "Use a client of the same version as the broker, and check that the port belongs to the broker."


class BrokerProtocolError(ProtocolError):
    """The broker sent, or was about to send, bytes that the native protocol forbids. The connection is closed."""

    code = "broker_protocol_error"
    blame = "server"
    help = "Check that the address belongs to a broker, and that broker and client have the same version."


# -- clients ---------------------------------------------------------------------------------------------------------


class ProducerBusy(DanubeError):
    """The producer's buffer is full: too many bytes are waiting to be acknowledged."""

    code = "producer_busy"
    blame = "environment"
    retriable = True
    help = "Wait with `await producer.ready()`, then send again."


class ConnectionLost(DanubeError):
    """The connection was lost. Requests that were not answered may or may not have taken effect."""

    code = "connection_lost"
    blame = "environment"
    retriable = True
    help = "Check that the broker is running and that the network reaches it; the client reconnects automatically."


class NotAnswered(ConnectionLost):
    """The broker is connected but did not answer in time. The request may or may not have taken effect."""

    code = "not_answered"
    help = "Check that the broker is not stopped or overloaded, or allow more time."


class AlreadyOpened(DanubeError):
    """A client, producer, consumer or reader can be opened only once."""

    code = "already_opened"
    blame = "caller"
    help = "Use the one that is already open, or create a new one."


class BatchUnreadable(DanubeError):
    """The columns of a batch of messages do not match its header. The program that published it built the batch
    wrongly.
    """

    code = "batch_unreadable"
    blame = "caller"
    help = "Continue after the offsets in the message (`reader.seek`), and fix the program that published them."


class ClientClosed(DanubeError):
    """The client, producer, consumer or reader was closed by its own program."""

    code = "client_closed"
    blame = "caller"
    help = "Open a new one."


class NotOpened(ClientClosed):
    """The client, producer, consumer or reader was never opened."""

    code = "not_opened"
    help = "Open it with `async with`, or `await` it before the first use; without asyncio, use `with` or `open()`."


class OtherLoop(DanubeError):
    """The client was used from a thread or event loop other than the one that it was opened on."""

    code = "other_loop"
    blame = "caller"
    help = "Use `pydanube.sync` from threads, but not from its own callbacks; or use `call_soon_threadsafe`."


class ClientForked(DanubeError):
    """The client was opened before the process forked, so its connection belongs to the parent process."""

    code = "client_forked"
    blame = "caller"
    help = "Open a client in each process, after the fork."


class AddressInvalid(DanubeError):
    """The text is not a valid broker address."""

    code = "address_invalid"
    blame = "caller"
    help = "Write it as danube://host:port, or danubes://host:port for TLS."


class NothingReceived(DanubeError):
    """No message arrived within the timeout."""

    code = "nothing_received"
    blame = "environment"
    retriable = True
    help = "Wait longer, or run `danube subscription explain` to see why nothing is delivered."


# -- configuration and TLS -------------------------------------------------------------------------------------------


class ConfigInvalid(DanubeError):
    """A setting does not exist, has an invalid value, or contradicts another setting."""

    code = "config_invalid"
    blame = "caller"
    help = "Correct the setting; docs/configuration.md lists all of them."


class TlsFailed(DanubeError):
    """The TLS connection failed: the certificate is not trusted or is for another name, or one side does not speak
    TLS.
    """

    code = "tls_failed"
    blame = "environment"
    help = "Check the scheme (danube:// or danubes://), `ca_file`, and the names and dates of the broker's certificate."


# -- HTTP/2 and gRPC -------------------------------------------------------------------------------------------------


class Http2ConnectionError(DanubeError):
    """The client broke an HTTP/2 rule, or exceeded a limit, for the whole connection. The connection is closed."""

    code = "http_connection_error"
    blame = "caller"
    help = "Use a client that speaks HTTP/2, and check that the port belongs to the broker."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # as RFC 9113 numbers them; 1 is any breach of the protocol
        self.reason = reason


class Http2StreamError(DanubeError):
    """The client broke an HTTP/2 rule, or exceeded a limit, on one stream. The stream is closed; others continue."""

    code = "http_stream_error"
    blame = "caller"
    help = "Send a request that HTTP/2 allows, with fewer or smaller headers."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # as RFC 9113 numbers them; 1 is any breach of the protocol
        self.reason = reason


class GrpcCallInvalid(DanubeError):
    """The gRPC call lacks something, or its body is not a gRPC message."""

    code = "grpc_call_invalid"
    blame = "caller"
    help = "Make the call with a gRPC client."


class GrpcEncodingUnknown(DanubeError):
    """The gRPC message is compressed. The broker reads only uncompressed messages."""

    code = "grpc_encoding_unknown"
    blame = "caller"
    help = "Turn off compression in the client."


class GrpcMessageTooLarge(DanubeError):
    """The gRPC message is larger than the broker accepts."""

    code = "grpc_message_too_large"
    blame = "caller"
    help = "Send a smaller message, or use the native protocol."


# -- HTTP/1 and REST -------------------------------------------------------------------------------------------------


class HttpRequestInvalid(DanubeError):
    """The bytes are not a valid HTTP/1 request, or the request is ambiguous."""

    code = "http_request_invalid"
    blame = "caller"
    help = "Use an HTTP client, and check that no proxy between it and the broker changes requests."


class HttpTargetTooLong(DanubeError):
    """The request line, which holds the path and the query, is longer than the broker accepts."""

    code = "http_target_too_long"
    blame = "caller"
    help = "Use shorter names, and send long values in the body."


class HttpHeadTooLarge(DanubeError):
    """The request has more headers, or longer ones, than the broker accepts."""

    code = "http_head_too_large"
    blame = "caller"
    help = "Send fewer or shorter headers."


class HttpBodyTooLarge(DanubeError):
    """The request body is larger than the broker accepts over HTTP."""

    code = "http_body_too_large"
    blame = "caller"
    help = "Send less at a time, or use the native protocol."


class HttpUnsupported(DanubeError):
    """The request uses an HTTP feature that the broker does not support."""

    code = "http_unsupported"
    blame = "caller"
    help = "Use a method in /api/v1/openapi.json, and send the body uncompressed, either with its length or chunked."


class HttpTooSlow(DanubeError):
    """The request did not arrive completely within the time limit."""

    code = "http_too_slow"
    blame = "caller"
    retriable = True
    help = "Send the request again, in one piece."


class HttpBusy(DanubeError):
    """The memory for request bodies is full."""

    code = "http_busy"
    blame = "environment"
    retriable = True
    help = "Wait a moment, then send the request again."


class FramesBusy(DanubeError):
    """The memory for incomplete frames is full, and this frame was the oldest."""

    code = "frames_busy"
    blame = "environment"
    retriable = True
    help = "Reconnect and send it in one go, in smaller batches if the network is slow."


class TooManyConnections(DanubeError):
    """The broker already has as many connections as `limits.connections_max` allows. Existing connections are not
    affected.
    """

    code = "too_many_connections"
    blame = "environment"
    retriable = True
    help = "Close connections that you no longer need, or raise `limits.connections_max` of the broker."


class HttpHostRefused(DanubeError):
    """The `Host` of the request is not a name of this broker. A web page may be trying to reach a broker on a private
    network.
    """

    code = "http_host_refused"
    blame = "caller"
    help = "Use the broker's IP address or `localhost`, or set `advertise` to the name that clients use."


class HttpOriginRefused(DanubeError):
    """A web page from another origin tried to change something on the broker."""

    code = "http_origin_refused"
    blame = "caller"
    help = "Call the broker from a program, or from a page served under the broker's own address."


class RouteNotFound(DanubeError):
    """There is nothing at this path."""

    code = "route_not_found"
    blame = "caller"
    help = "See /api/v1/openapi.json for all paths."


class MethodNotAllowed(DanubeError):
    """The path exists, but does not support this method."""

    code = "method_not_allowed"
    blame = "caller"
    help = "Use one of the methods in the `Allow` header."
    allow: str = ""  # methods of the path, of one that was raised for a request


class ContentTypeUnknown(DanubeError):
    """The content type of the body is not supported."""

    code = "content_type_unknown"
    blame = "caller"
    help = "Send JSON as application/json, or a single message as application/octet-stream where that is allowed."


class NotServed(DanubeError):
    """This broker does not support this part of the public interface yet."""

    code = "not_served"
    blame = "caller"
    help = "See docs/clients.md for what is supported."
