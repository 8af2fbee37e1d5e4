"""What a connection tells its host. Every event starts with the number of its stream; 0 is the connection itself."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.errors import Http2ConnectionError
from pydanube.wire.http2.fields import Head


class RequestReceived(NamedTuple):
    """A request has begun. What came of its body right behind the headers is in it, so most requests are one event."""

    stream: int
    head: Head
    data: bytes
    ended: bool  # nothing more will come of it


class DataReceived(NamedTuple):
    """More of a request's body."""

    stream: int
    data: bytes
    ended: bool


class StreamReset(NamedTuple):
    """The client gave the stream up, or broke a rule on it. It is gone; what is sent on it now goes nowhere."""

    stream: int
    code: int


class ConnectionEnded(NamedTuple):
    """The client broke a rule, or a bound. Write what `take_output` has, close, and give up every stream."""

    stream: int
    error: Http2ConnectionError


Event = RequestReceived | DataReceived | StreamReset | ConnectionEnded
