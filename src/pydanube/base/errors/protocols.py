"""The protocols of the broker: its own, HTTP/2 with gRPC, and HTTP/1 with REST."""

from __future__ import annotations

from typing import ClassVar

from pydanube.base.errors.root import Blame, DanubeError, GrpcStatus

# -- native protocol -------------------------------------------------------------------------------------------------


class ProtocolError(DanubeError):
    """The client sent, or was about to send, bytes that the native protocol forbids. The connection is closed."""

    blame: ClassVar[Blame] = "caller"  # overridden by its subclass
    help = "Use a client of the same version as the broker, and check that the port belongs to the broker."


class BrokerProtocolError(ProtocolError):
    """The broker sent what the native protocol forbids. The connection is closed, unless only an answer is wrong."""

    blame = "server"
    help = "Check that the address belongs to a broker, and that broker and client have the same version."


# -- HTTP/2 and gRPC -------------------------------------------------------------------------------------------------


class Http2ConnectionError(DanubeError):
    """The client broke an HTTP/2 rule, or exceeded a limit, for the whole connection. The connection is closed."""

    code = "http_connection_error"
    blame = "caller"
    help = "Use a client that speaks HTTP/2, and check that the port belongs to the broker."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # of RFC 9113; 1 is PROTOCOL_ERROR
        self.reason = reason


class Http2StreamError(DanubeError):
    """The client broke an HTTP/2 rule, or exceeded a limit, on one stream. The stream is closed; others continue."""

    code = "http_stream_error"
    blame = "caller"
    help = "Send a request that HTTP/2 allows, with fewer or smaller headers."

    def __init__(self, reason: str, error_code: int = 1) -> None:
        super().__init__(reason)
        self.error_code = error_code  # of RFC 9113; 1 is PROTOCOL_ERROR
        self.reason = reason


class GrpcCallInvalid(DanubeError):
    """The gRPC call lacks something, or its body is not a gRPC message."""

    blame = "caller"
    grpc_status = GrpcStatus.INTERNAL
    help = "Make the call with a gRPC client."


class GrpcPeerForgotten(DanubeError):
    """The producer or consumer does not exist on this broker, or no longer. The public clients create it again."""

    blame = "environment"
    retriable = True
    grpc_status = GrpcStatus.UNAVAILABLE
    http_status = 503
    help = "Create the producer again, or subscribe again."


class GrpcEncodingUnknown(DanubeError):
    """The gRPC message is compressed. The broker reads only uncompressed messages."""

    blame = "caller"
    grpc_status = GrpcStatus.UNIMPLEMENTED
    help = "Turn off compression in the client."


class GrpcMessageTooLarge(DanubeError):
    """The gRPC message is larger than the broker accepts."""

    blame = "caller"
    grpc_status = GrpcStatus.OUT_OF_RANGE  # clients try again after RESOURCE_EXHAUSTED, forever
    help = "Send a smaller message, or use the native protocol."


# -- HTTP/1 and REST -------------------------------------------------------------------------------------------------


class HttpRequestInvalid(DanubeError):
    """The bytes are not a valid HTTP/1 request, or the request is ambiguous."""

    blame = "caller"
    help = "Use an HTTP client, and check that no proxy between it and the broker changes requests."


class HttpTargetTooLong(DanubeError):
    """The request line, which holds the path and the query, is longer than the broker accepts."""

    blame = "caller"
    http_status = 414
    help = "Use shorter names, and send long values in the body."


class HttpHeadTooLarge(DanubeError):
    """The request has more headers, or longer ones, than the broker accepts."""

    blame = "caller"
    http_status = 431
    help = "Send fewer or shorter headers."


class HttpBodyTooLarge(DanubeError):
    """The request body is larger than the broker accepts over HTTP."""

    blame = "caller"
    http_status = 413
    help = "Send less at a time, or use the native protocol."


class HttpUnsupported(DanubeError):
    """The request uses an HTTP feature that the broker does not support."""

    blame = "caller"
    http_status = 501
    help = "Use a method in /api/v1/openapi.json, and send the body uncompressed, either with its length or chunked."


class HttpTooSlow(DanubeError):
    """The request did not arrive completely within the time limit."""

    blame = "caller"
    retriable = True
    http_status = 408
    grpc_status = GrpcStatus.DEADLINE_EXCEEDED
    help = "Send the request again, in one piece."


class HttpBusy(DanubeError):
    """The memory for request bodies is full."""

    blame = "environment"
    retriable = True
    grpc_status = GrpcStatus.RESOURCE_EXHAUSTED
    help = "Wait a moment, then send the request again."


class FramesBusy(DanubeError):
    """The memory for incomplete frames is full, and this frame was the oldest."""

    blame = "environment"
    retriable = True
    help = "Reconnect and send it in one go, in smaller batches if the network is slow."


class TooManyConnections(DanubeError):
    """The broker already has as many connections as `limits.connections_max` allows. Existing connections are not
    affected."""

    blame = "environment"
    retriable = True
    help = "Close connections that you no longer need, or raise `limits.connections_max` of the broker."


class HttpHostRefused(DanubeError):
    """The `Host` of the request is not a name of this broker. A web page may be trying to reach a broker on a private
    network."""

    blame = "caller"
    http_status = 421
    help = "Use the broker's IP address or `localhost`, or set `advertise` to the name that clients use."


class HttpOriginRefused(DanubeError):
    """A web page from another origin tried to change something on the broker."""

    blame = "caller"
    http_status = 403
    help = "Call the broker from a program, or from a page served under the broker's own address."


class RouteNotFound(DanubeError):
    """There is nothing at this path."""

    blame = "caller"
    http_status = 404
    help = "See /api/v1/openapi.json for all paths."


class MethodNotAllowed(DanubeError):
    """The path exists, but does not support this method."""

    blame = "caller"
    http_status = 405
    help = "Use one of the methods in the `Allow` header."
    allow: str = ""  # the methods of the path, if raised for a request


class ContentTypeUnknown(DanubeError):
    """The content type of the body is not supported."""

    blame = "caller"
    http_status = 415
    help = "Send JSON as application/json, or a single message as application/octet-stream where that is allowed."


class NotServed(DanubeError):
    """This broker does not support this part of the public interface yet."""

    blame = "caller"
    grpc_status = GrpcStatus.UNIMPLEMENTED
    help = "See docs/clients.md for what is supported."
