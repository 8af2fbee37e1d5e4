"""The broker as its callers see it: names, limits, requests, the protocol, and the client itself."""

from __future__ import annotations

from typing import ClassVar

from pydanube.base.errors.root import Blame, DanubeError

# -- namespaces, topics and requests ---------------------------------------------------------------------------------


class NamespaceNotFound(DanubeError):
    """There is no namespace of that name."""

    code = "namespace_not_found"
    blame = "caller"
    help = "Create it, or name one that exists."


class NamespaceExists(DanubeError):
    """A namespace of that name is there already."""

    code = "namespace_exists"
    blame = "caller"
    help = "Use it as it is, or choose another name."


class NamespaceNotEmpty(DanubeError):
    """The namespace still has topics."""

    code = "namespace_not_empty"
    blame = "caller"
    help = "Delete its topics first."


class BrokerNotFound(DanubeError):
    """There is no broker of that id."""

    code = "broker_not_found"
    blame = "caller"
    help = "List the brokers, and name one of them."


class TopicNotFound(DanubeError):
    """There is no topic of that name, and it may not be made by using it."""

    code = "topic_not_found"
    blame = "caller"
    help = "Create it with `danube topic create`."


class TopicExists(DanubeError):
    """A topic of that name is there already."""

    code = "topic_exists"
    blame = "caller"
    help = "Use it as it is, or choose another name."


class TopicKindDiffers(DanubeError):
    """The topic is reliable and the producer asked for one that is not, or the other way round."""

    code = "topic_kind_differs"
    blame = "caller"
    help = "Open it as what it is."


class PartitionMissing(DanubeError):
    """The topic has no such partition, or it is partitioned and none was named."""

    code = "partition_missing"
    blame = "caller"
    help = "Name a partition by its topic's name and number, as in orders-part-0."


class LimitReached(DanubeError):
    """A policy of the namespace or topic does not allow more."""

    code = "limit_reached"
    blame = "caller"
    help = "Close what is not needed, or raise the limit in the policies."


class ProducerLimitReached(LimitReached):
    """The topic has as many producers as `producers_max` allows; those it has stay."""

    code = "producer_limit_reached"
    retriable = True
    help = "Close producers that are not needed, or raise `producers_max`."


class SubscriptionConsumerLimitReached(LimitReached):
    """The subscription has as many consumers as `consumers_per_subscription_max` allows; those it has stay."""

    code = "subscription_consumer_limit_reached"
    retriable = True
    help = "Close consumers of the subscription that are not needed, or raise `consumers_per_subscription_max`."


class ConsumerLimitReached(LimitReached):
    """The topic has as many consumers as `consumers_max` allows; those it has stay."""

    code = "consumer_limit_reached"
    retriable = True
    help = "Close consumers that are not needed, or raise `consumers_max`."


class SubscriptionLimitReached(LimitReached):
    """The topic has as many subscriptions as `subscriptions_max` allows; those it has stay."""

    code = "subscription_limit_reached"
    help = "Delete subscriptions that nobody uses, or raise `subscriptions_max`."


class TopicLimitReached(LimitReached):
    """The namespace has as many topics as `topics_max` allows; those it has stay."""

    code = "topic_limit_reached"
    help = "Delete topics that nobody uses, or raise `topics_max`."


class QuotaReached(LimitReached):
    """The topics of the namespace store as many bytes as `namespace_bytes_max` allows."""

    code = "quota_reached"
    help = "Delete topics, shorten their retention, acknowledge what is old, or raise `namespace_bytes_max`."


class BacklogFull(DanubeError):
    """A subscription of the topic is as far behind as the backlog quota allows, and publishing waits for it."""

    code = "backlog_full"
    blame = "environment"
    retriable = True
    help = "Let its consumers catch up, delete the subscription, raise the quota, or choose to drop the oldest."


class RateExceeded(DanubeError):
    """Far more is published to the topic than its publish rate allows."""

    code = "rate_exceeded"
    blame = "caller"
    retriable = True
    help = "Wait for answers before sending more, add partitions, or raise the publish rate."


class TopicExclusive(DanubeError):
    """A producer has the topic for itself, or one that wants it so is not alone."""

    code = "topic_exclusive"
    blame = "caller"
    help = "Close the other producer, or ask for shared access."


class MessageTooLarge(DanubeError):
    """The policies of the namespace or topic allow smaller messages only."""

    code = "message_too_large"
    blame = "caller"
    help = "Send smaller messages, or raise `message_bytes_max`."


class ChannelInvalid(DanubeError):
    """A channel that is not open, is open already, or is of another kind."""

    code = "channel_invalid"
    blame = "caller"
    help = "Open a producer or consumer under a new channel number."


class VerbUnknown(DanubeError):
    """No such request."""

    code = "verb_unknown"
    blame = "caller"
    help = "Use a client of the broker's version."


class RequestInvalid(DanubeError):
    """A request that lacks something, or has something of the wrong type."""

    code = "request_invalid"
    blame = "caller"
    help = "Correct what the message names."


# -- native protocol -------------------------------------------------------------------------------------------------


class ProtocolError(DanubeError):
    """The client sent bytes, or wanted to, that the native protocol does not allow. The connection ends."""

    code = "protocol_error"
    blame: ClassVar[Blame] = "caller"  # of its subclass it is not
    help = "Use a client of the broker's version, and check that the port is the broker's."


class BrokerProtocolError(ProtocolError):
    """The broker sent bytes, or wanted to, that the native protocol does not allow. The connection ends."""

    code = "broker_protocol_error"
    blame = "server"
    help = "Check that the address is a broker's, and that broker and client are of one version."


# -- clients ---------------------------------------------------------------------------------------------------------


class ProducerBusy(DanubeError):
    """The producer holds as many bytes that are not acknowledged as it may."""

    code = "producer_busy"
    blame = "environment"
    retriable = True
    help = "Wait with `await producer.ready()`, then send again."


class ConnectionLost(DanubeError):
    """The connection went away. What was asked and not answered may or may not have happened."""

    code = "connection_lost"
    blame = "environment"
    retriable = True
    help = "Check that the broker runs and that the network reaches it; the client connects again by itself."


class NotAnswered(ConnectionLost):
    """The broker did not answer in time, though it is connected. What was asked may or may not have happened."""

    code = "not_answered"
    help = "Check that the broker is not stopped or overloaded, or allow it more time."


class AlreadyOpened(DanubeError):
    """A client, producer or consumer is opened once."""

    code = "already_opened"
    blame = "caller"
    help = "Use the one that is open, or make a new one."


class BatchUnreadable(DanubeError):
    """Messages of a topic whose columns are not what their batch says. Whoever published them made the batch wrong."""

    code = "batch_unreadable"
    blame = "caller"
    help = "Go on behind the offsets that the message names (`reader.seek`), and mend the program that published them."


class ClientClosed(DanubeError):
    """This client, or this producer, consumer or reader of it, was closed by its own program."""

    code = "client_closed"
    blame = "caller"
    help = "Open a new one."


class NotOpened(ClientClosed):
    """This client, or this producer, consumer or reader of it, was never opened by its program."""

    code = "not_opened"
    help = "Open it with `async with`, or with `await` before its first use; without asyncio, with `with` or `open()`."


class OtherLoop(DanubeError):
    """The client was used from another thread or event loop than the one that it was opened on."""

    code = "other_loop"
    blame = "caller"
    help = "Use `pydanube.sync` from threads, and call it from no callback of its own; or use `call_soon_threadsafe`."


class ClientForked(DanubeError):
    """The client was opened before the process forked: its connection belongs to the parent."""

    code = "client_forked"
    blame = "caller"
    help = "Open a client in each process, after the fork."


class AddressInvalid(DanubeError):
    """Text that is no address of a broker."""

    code = "address_invalid"
    blame = "caller"
    help = "Write it as danube://host:port, or danubes://host:port for TLS."


class NothingReceived(DanubeError):
    """No message came within the time given."""

    code = "nothing_received"
    blame = "environment"
    retriable = True
    help = "Wait longer, or ask `explain` why nothing is delivered."


# -- configuration and TLS -------------------------------------------------------------------------------------------


class ConfigInvalid(DanubeError):
    """A setting that does not exist, has a wrong value, or does not go with the others."""

    code = "config_invalid"
    blame = "caller"
    help = "Correct what the message names; docs/configuration.md lists every setting."


class TlsFailed(DanubeError):
    """No TLS connection could be made: the certificate is not trusted, is another's, or one side speaks no TLS."""

    code = "tls_failed"
    blame = "environment"
    help = "Check the scheme (danube:// or danubes://), `ca_file`, and the names and dates of the broker's certificate."


# -- HTTP/2 and gRPC -------------------------------------------------------------------------------------------------


class Http2ConnectionError(DanubeError):
    """The client broke a rule of HTTP/2 that concerns the whole connection, or a bound on it. The connection ends."""

    code = "http_connection_error"
    blame = "caller"
    help = "Use a client that speaks HTTP/2, and check that the port is the broker's."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # as RFC 9113 numbers them; 1 is any breach of the protocol
        self.reason = reason


class Http2StreamError(DanubeError):
    """The client broke a rule of HTTP/2 on one stream, or a bound on it. The stream ends, the others go on."""

    code = "http_stream_error"
    blame = "caller"
    help = "Send a request that HTTP/2 allows, with fewer or smaller headers."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # as RFC 9113 numbers them; 1 is any breach of the protocol
        self.reason = reason


class GrpcCallInvalid(DanubeError):
    """A gRPC call that lacks something, or whose body is not what gRPC calls a message."""

    code = "grpc_call_invalid"
    blame = "caller"
    help = "Call it with a gRPC client."


class GrpcEncodingUnknown(DanubeError):
    """A gRPC message that is compressed; the broker reads plain ones only."""

    code = "grpc_encoding_unknown"
    blame = "caller"
    help = "Turn compression off in the client."


class GrpcMessageTooLarge(DanubeError):
    """A gRPC message with more bytes than the broker takes."""

    code = "grpc_message_too_large"
    blame = "caller"
    help = "Send a smaller message, or use the native protocol."


# -- HTTP/1 and REST -------------------------------------------------------------------------------------------------


class HttpRequestInvalid(DanubeError):
    """Bytes that are no HTTP/1 request, or one that could be read in two ways."""

    code = "http_request_invalid"
    blame = "caller"
    help = "Use an HTTP client, and check that nothing between it and the broker changes requests."


class HttpTargetTooLong(DanubeError):
    """The request line, which holds the path and the query, is longer than the broker reads."""

    code = "http_target_too_long"
    blame = "caller"
    help = "Name things by shorter names, and send what is long in the body."


class HttpHeadTooLarge(DanubeError):
    """The headers of a request are more or longer than the broker reads."""

    code = "http_head_too_large"
    blame = "caller"
    help = "Send fewer or shorter headers."


class HttpBodyTooLarge(DanubeError):
    """The body of a request is longer than the broker takes over HTTP."""

    code = "http_body_too_large"
    blame = "caller"
    help = "Send less at a time, or use the native protocol."


class HttpUnsupported(DanubeError):
    """A request that wants something of HTTP which is not served here."""

    code = "http_unsupported"
    blame = "caller"
    help = "Use a method of /api/v1/openapi.json, and send the body with its length, or chunked and not compressed."


class HttpTooSlow(DanubeError):
    """The whole request did not come within its time."""

    code = "http_too_slow"
    blame = "caller"
    retriable = True
    help = "Send the request again, in one piece."


class HttpBusy(DanubeError):
    """As many requests are served, or wait for messages, or send bodies, as there is room for."""

    code = "http_busy"
    blame = "environment"
    retriable = True
    help = "Wait a moment, then send the request again."


class FramesBusy(DanubeError):
    """Frames that have begun and not come whole fill the memory that there is for them; this one began first."""

    code = "frames_busy"
    blame = "environment"
    retriable = True
    help = "Connect again and send it in one go, in smaller batches if the network is slow."


class TooManyConnections(DanubeError):
    """The broker has as many connections as `limits.connections_max` allows; those it has stay."""

    code = "too_many_connections"
    blame = "environment"
    retriable = True
    help = "Close connections that are not needed, or raise limits.connections_max of the broker."


class HttpHostRefused(DanubeError):
    """The request is for a name that the broker is not known by. It may be a web page's way to a broker inside."""

    code = "http_host_refused"
    blame = "caller"
    help = "Use the broker's IP address or `localhost`, or set `advertise` to the name that clients use."


class HttpOriginRefused(DanubeError):
    """A page of another site asks the broker to change something."""

    code = "http_origin_refused"
    blame = "caller"
    help = "Call the broker from a program, or from a page that is served under its own address."


class RouteNotFound(DanubeError):
    """Nothing is served under that path."""

    code = "route_not_found"
    blame = "caller"
    help = "Look for it in the description at /api/v1/openapi.json."


class MethodNotAllowed(DanubeError):
    """The path is served, but not with that method."""

    code = "method_not_allowed"
    blame = "caller"
    help = "Use a method that the `Allow` header names."
    allow: str = ""  # methods of the path, of one that was raised for a request


class ContentTypeUnknown(DanubeError):
    """A body of a type that is not read here."""

    code = "content_type_unknown"
    blame = "caller"
    help = "Send JSON as application/json, or one message as application/octet-stream where that is allowed."


class NotServed(DanubeError):
    """A part of the public interface that this broker does not have yet."""

    code = "not_served"
    blame = "caller"
    help = "Do without it; docs/clients.md lists what is served."
