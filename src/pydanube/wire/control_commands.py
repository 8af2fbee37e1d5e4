"""Commands about the connection, and requests with their answers: frames whose body is a JSON object or nothing.

Each value has `encode` and `read` side by side. `read` checks all fields and raises `MalformedBody`, which
`commands.decode` turns into the error of the side that is at fault.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from pydanube.base.errors import DanubeError, ProtocolError
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
    VERB_BYTES_MAX,
)
from pydanube.wire.frames import Buffer, Frame, FrameKind, encode_frame, fault_of, sender_of
from pydanube.wire.objects import MalformedBody, Object, read_object, write_object

VERSION = 1
_U32_MAX = (1 << 32) - 1
_TIME_MAX = (1 << 63) - 1
_CODE_BYTES_MAX = 64
_BLAMES = ("caller", "server", "environment")


class Hello(NamedTuple):
    """The client's first frame."""

    client: str  # name and version of the library, for logs
    features: tuple[str, ...] = ()
    version: int = VERSION

    def encode(self) -> list[Buffer]:
        body = {"version": self.version, "client": self.client, "features": list(self.features)}
        return _control(FrameKind.HELLO, 0, 0, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_bare(frame)
        found = _fields_of(frame)
        version = _version_in(found)
        return cls(
            found.text("client", least=1, most=NAME_BYTES_MAX),
            found.texts("features", FEATURES_MAX, FEATURE_BYTES_MAX),
            version,
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
        _check_bare(frame)
        found = _fields_of(frame)
        version = _version_in(found)
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


class Request(NamedTuple):
    """A request. The fields depend on the verb, and are checked by the code that serves it."""

    request: int
    verb: str
    fields: Object  # without the verb

    def encode(self) -> list[Buffer]:
        if "verb" in self.fields:
            raise ProtocolError("REQUEST: a field must not be named 'verb'")
        return _control(FrameKind.REQUEST, 0, self.request, {"verb": self.verb, **self.fields})

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
        return cls(channel, request, error.code, _message_of(error), error.blame, error.retriable, error.help)

    def encode(self) -> list[Buffer]:
        body = {
            "code": self.code,
            "message": self.message,
            "blame": self.blame,
            "retriable": self.retriable,
            "help": self.help,
        }
        return _control(FrameKind.ERROR, self.channel, self.request, body)

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
        return cls(channel, error.code, _message_of(error), error.blame, error.retriable, error.help)

    def encode(self) -> list[Buffer]:
        body = {
            "code": self.code,
            "message": self.message,
            "blame": self.blame,
            "retriable": self.retriable,
            "help": self.help,
        }
        return _control(FrameKind.CLOSED, self.channel, 0, body)

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


def _check_bare(frame: Frame) -> None:
    _check_connection(frame)
    if frame.request:
        raise MalformedBody("it must not have a request number")


def _check_empty(frame: Frame) -> None:
    _check_connection(frame)
    if frame.body:
        raise MalformedBody("it must not have a body")


def _fields_of(frame: Frame) -> Fields:
    return Fields(MalformedBody, read_object(frame.body))


def _version_in(found: Fields) -> int:
    """Checked before all other fields, which may differ in another version."""
    version = found.whole("version", 1, _U32_MAX)
    if version != VERSION:
        raise MalformedBody(f"protocol version {version} is not supported; this side speaks {VERSION}")
    return version


def _message_of(error: DanubeError) -> str:
    """Shortened, so that an error always fits into a frame, and without lone surrogates, so that it can be encoded."""
    return str(error)[:ERROR_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace").decode("utf-8")


def _reason_in(frame: Frame) -> tuple[str, str, str, bool, str]:
    found = _fields_of(frame)
    return (
        found.text("code", least=1, most=_CODE_BYTES_MAX),
        found.text("message"),
        found.one_of("blame", _BLAMES),
        found.flag("retriable"),
        found.text("help"),
    )
