"""Commands about the connection, and requests with their answers: frames whose body is a JSON object or nothing.

Each value has `encode` and `read` side by side. `read` checks all fields and raises `MalformedBody`, which
`commands.decode` turns into the error of the side that is at fault.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pydanube.base.errors import DanubeError, ProtocolError, RequestInvalid
from pydanube.base.fields import Fields
from pydanube.base.limits import (
    ADDRESS_BYTES_MAX,
    ERROR_MESSAGE_CHARACTERS_MAX,
    FEATURE_BYTES_MAX,
    FEATURES_MAX,
    FRAME_BYTES_MIN,
    KEEPALIVE_SECONDS_MAX,
    NAME_BYTES_MAX,
    REQUEST_VALUES_MAX,
    TOKEN_BYTES_MAX,
    VERB_BYTES_MAX,
)
from pydanube.base.wording import encodable
from pydanube.wire.frames import Buffer, Frame, FrameKind, encode_frame, fault_of, sender_of
from pydanube.wire.objects import MalformedBody, Object, read_object, write_object

VERSION = 1
_U32_MAX = (1 << 32) - 1
_TIME_MAX = (1 << 63) - 1
_CODE_BYTES_MAX = 64
_BLAMES = ("caller", "server", "environment")
_REASON = ("code", "message", "blame", "retriable", "help")  # why a request failed, or a channel was closed
_Reason = tuple[str, str, str, bool, str]


class Hello(NamedTuple):
    """The client's first frame."""

    client: str  # name and version of the library, for logs
    features: tuple[str, ...] = ()
    version: int = VERSION
    token: str = ""  # of the caller; empty if it has none

    def __repr__(self) -> str:
        """Without the token, so that it never gets into a log."""
        return f"Hello(client={self.client!r}, features={self.features!r}, version={self.version!r})"

    def encode(self) -> list[Buffer]:
        body: Object = {"version": self.version, "client": self.client, "features": list(self.features)}
        if self.token:
            body["token"] = self.token
        return _control(FrameKind.HELLO, 0, 0, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        found, version = _greeting_in(frame)
        return cls(
            found.text("client", least=1, most=NAME_BYTES_MAX),
            found.texts("features", FEATURES_MAX, FEATURE_BYTES_MAX),
            version,
            found.text("token", "", least=1, most=TOKEN_BYTES_MAX),
        )


class Welcome(NamedTuple):
    """The broker's answer to HELLO, with its limits."""

    broker: str
    frame_bytes_max: int  # including the header of the frame
    keepalive_seconds: int
    features: tuple[str, ...] = ()
    version: int = VERSION
    address: str = ""  # host:port under which clients should reach this broker; empty if not sent
    time: int = 0  # of the broker's clock, in microseconds; 0 if not sent

    def encode(self) -> list[Buffer]:
        body: Object = {
            "version": self.version,
            "broker": self.broker,
            "features": list(self.features),
            "frame_bytes_max": self.frame_bytes_max,
            "keepalive_seconds": self.keepalive_seconds,
        }
        if self.address:
            body["address"] = self.address
        if self.time:
            body["time"] = self.time
        return _control(FrameKind.WELCOME, 0, 0, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        found, version = _greeting_in(frame)
        return cls(
            found.text("broker", least=1, most=NAME_BYTES_MAX),
            found.whole("frame_bytes_max", FRAME_BYTES_MIN, _U32_MAX),
            found.whole("keepalive_seconds", 1, KEEPALIVE_SECONDS_MAX),
            found.texts("features", FEATURES_MAX, FEATURE_BYTES_MAX),
            version,
            found.text("address", "", least=1, most=ADDRESS_BYTES_MAX),
            found.whole("time", 0, _TIME_MAX, 0),
        )


class Ping(NamedTuple):
    """Asks whether the other side is alive. PONG repeats the request number."""

    request: int = 0

    def encode(self) -> list[Buffer]:
        return encode_frame(FrameKind.PING, 0, self.request)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_empty(frame)
        return cls(frame.request)


class Pong(NamedTuple):
    """The answer to PING."""

    request: int = 0

    def encode(self) -> list[Buffer]:
        return encode_frame(FrameKind.PONG, 0, self.request)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_empty(frame)
        return cls(frame.request)


class RequestFrame(NamedTuple):
    """A request. The fields depend on the verb, and are checked by the code that serves it."""

    request: int
    verb: str
    fields: Object  # without the verb

    def encode(self) -> list[Buffer]:
        if "verb" in self.fields:
            raise ProtocolError("REQUEST: a field must not be named 'verb'")
        try:
            body = write_object({"verb": self.verb, **self.fields}, REQUEST_VALUES_MAX)
        except MalformedBody as error:
            raise RequestInvalid(f"the request: {error}") from None
        return encode_frame(FrameKind.REQUEST, 0, self.request, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_connection(frame)
        fields = read_object(frame.body, values_max=REQUEST_VALUES_MAX)
        verb = Fields(MalformedBody, fields).text("verb", least=1, most=VERB_BYTES_MAX)
        del fields["verb"]
        return cls(frame.request, verb, fields)


class Reply(NamedTuple):
    """The result of a request that succeeded."""

    request: int
    fields: Object

    def encode(self) -> list[Buffer]:
        return _control(FrameKind.REPLY, 0, self.request, self.fields)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_connection(frame)
        if not frame.request:
            raise MalformedBody("it must answer a request")
        return cls(frame.request, read_object(frame.body))


class Error(NamedTuple):
    """A request failed, or with request 0 something that has no answer."""

    channel: int
    request: int
    code: str
    message: str
    blame: str
    retriable: bool
    help: str

    @classmethod
    def of(cls, error: DanubeError, channel: int = 0, request: int = 0) -> Self:
        return cls(channel, request, *_reason_of(error))

    def encode(self) -> list[Buffer]:
        channel, request, *reason = self
        return _control(FrameKind.ERROR, channel, request, dict(zip(_REASON, reason, strict=True)))

    @classmethod
    def read(cls, frame: Frame) -> Self:
        return cls(frame.channel, frame.request, *_reason_in(frame))


class Closed(NamedTuple):
    """The broker closed the channel, or with channel 0 the connection, for this reason."""

    channel: int
    code: str
    message: str
    blame: str
    retriable: bool
    help: str

    @classmethod
    def of(cls, error: DanubeError, channel: int = 0) -> Self:
        return cls(channel, *_reason_of(error))

    def encode(self) -> list[Buffer]:
        channel, *reason = self
        return _control(FrameKind.CLOSED, channel, 0, dict(zip(_REASON, reason, strict=True)))

    @classmethod
    def read(cls, frame: Frame) -> Self:
        if frame.request:
            raise MalformedBody("it must not answer a request")
        return cls(frame.channel, *_reason_in(frame))


# -- common fields ---------------------------------------------------------------------------------------------------


def _control(kind: FrameKind, channel: int, request: int, body: Object) -> list[Buffer]:
    try:
        return encode_frame(kind, channel, request, write_object(body))
    except MalformedBody as error:
        raise fault_of(sender_of(kind))(f"{kind.name}: {error}") from None


def _check_connection(frame: Frame) -> None:
    if frame.channel:
        raise MalformedBody(f"it must be on channel 0, not {frame.channel}")


def _check_empty(frame: Frame) -> None:
    _check_connection(frame)
    if frame.body:
        raise MalformedBody("it must not have a body")


def _fields_of(frame: Frame) -> Fields:
    return Fields(MalformedBody, read_object(frame.body))


def _greeting_in(frame: Frame) -> tuple[Fields, int]:
    """The fields, and the version, which is checked before the other fields: they may differ in another version."""
    _check_connection(frame)
    if frame.request:
        raise MalformedBody("it must not have a request number")
    found = _fields_of(frame)
    version = found.whole("version", 1, _U32_MAX)
    if version != VERSION:
        raise MalformedBody(f"protocol version {version} is not supported; this side speaks {VERSION}")
    return found, version


def _reason_of(error: DanubeError) -> _Reason:
    """The message is shortened, so that it always fits into a frame, and has no lone surrogates, so that it can be
    encoded."""
    message = encodable(str(error)[:ERROR_MESSAGE_CHARACTERS_MAX])
    return error.code, message, error.blame, error.retriable, error.help


def _reason_in(frame: Frame) -> _Reason:
    found = _fields_of(frame)
    return (
        found.text("code", least=1, most=_CODE_BYTES_MAX),
        found.text("message"),
        found.one_of("blame", _BLAMES),
        found.flag("retriable"),
        found.text("help"),
    )
