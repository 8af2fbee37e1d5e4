"""The events of a connection, for its host. Each begins with the number of its stream, or 0 for the connection."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.errors import Http2ConnectionError
from pydanube.wire.http2.fields import Head


class RequestReceived(NamedTuple):
    """A request has begun. It includes the body received with the headers, so most requests are one event."""

    stream: int
    head: Head
    data: bytes
    ended: bool  # the request is complete


class DataReceived(NamedTuple):
    """More of a request's body."""

    stream: int
    data: bytes
    ended: bool


class StreamReset(NamedTuple):
    """The client reset the stream, or violated the protocol on it. Data sent on it from now on is dropped."""

    stream: int
    code: int


class ConnectionEnded(NamedTuple):
    """The client violated the protocol or a limit. Write what `take_output` returns, close, and end every stream."""

    stream: int
    error: Http2ConnectionError


Event = RequestReceived | DataReceived | StreamReset | ConnectionEnded
