"""Commands about the connection, and requests with their answers: frames whose body is a JSON object or nothing.

Each value has `encode` and `read` side by side. `read` checks all it returns and raises `Unfit`; `commands.decode`
makes of it the error that says whose fault it is.
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
from pydanube.wire.frames import Buffer, Frame, Kind, encode_frame, fault_of, sender_of
from pydanube.wire.objects import Object, Unfit, read_object, write_object

VERSION = 1
_U32_MAX = (1 << 32) - 1
_TIME_MAX = (1 << 63) - 1
_CODE_BYTES_MAX = 64
_BLAMES = ("caller", "server", "environment")


class Hello(NamedTuple):
    """The client's first frame."""

    client: str  # name and version of the library, for people
    features: tuple[str, ...] = ()
    version: int = VERSION

    def encode(self) -> list[Buffer]:
        body = {"version": self.version, "client": self.client, "features": list(self.features)}
        return _control(Kind.HELLO, 0, 0, body)

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
    """The broker's answer to HELLO: what it allows."""

    broker: str
    frame_bytes_max: int  # of a frame with its header
    keepalive_seconds: int
    features: tuple[str, ...] = ()
    version: int = VERSION
    address: str = ""  # host:port where clients should reach this broker; not every broker says it
    time: int = 0  # of the broker's clock, in microseconds; 0: not said

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
        return _control(Kind.WELCOME, 0, 0, body)

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
    """Are you there? PONG repeats the request number."""

    request: int = 0

    def encode(self) -> list[Buffer]:
        return encode_frame(Kind.PING, 0, self.request)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_empty(frame)
        return cls(frame.request)


class Pong(NamedTuple):
    """The answer to PING."""

    request: int = 0

    def encode(self) -> list[Buffer]:
        return encode_frame(Kind.PONG, 0, self.request)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_empty(frame)
        return cls(frame.request)


class Request(NamedTuple):
    """Something to be done. The verb decides which fields there are; who serves it judges them."""

    request: int
    verb: str
    fields: Object  # all but the verb

    def encode(self) -> list[Buffer]:
        if "verb" in self.fields:
            raise ProtocolError("REQUEST: a field must not be named 'verb'")
        return _control(Kind.REQUEST, 0, self.request, {"verb": self.verb, **self.fields})

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_connection(frame)
        fields = read_object(frame.body, values_max=REQUEST_VALUES_MAX)
        verb = Fields(Unfit, fields).text("verb", least=1, most=VERB_BYTES_MAX)
        del fields["verb"]
        return cls(frame.request, verb, fields)


class Reply(NamedTuple):
    """The request was done; this is what came of it."""

    request: int
    fields: Object

    def encode(self) -> list[Buffer]:
        return _control(Kind.REPLY, 0, self.request, self.fields)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _check_connection(frame)
        if not frame.request:
            raise Unfit("it must answer a request")
        return cls(frame.request, read_object(frame.body))


class Error(NamedTuple):
    """The request failed; with request 0, something that wanted no answer did."""

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
        return _control(Kind.ERROR, self.channel, self.request, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        return cls(frame.channel, frame.request, *_reason_in(frame))


class Closed(NamedTuple):
    """The broker closed the channel, or with channel 0 the connection, and why."""

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
        return _control(Kind.CLOSED, self.channel, 0, body)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        if frame.request:
            raise Unfit("it must not answer a request")
        return cls(frame.channel, *_reason_in(frame))


# -- fields that several have ----------------------------------------------------------------------------------------


def _control(kind: Kind, channel: int, request: int, body: Object) -> list[Buffer]:
    try:
        return encode_frame(kind, channel, request, write_object(body))
    except Unfit as error:
        raise fault_of(sender_of(kind))(f"{kind.name}: {error}") from None


def _check_connection(frame: Frame) -> None:
    if frame.channel:
        raise Unfit(f"it must be on channel 0, not {frame.channel}")


def _check_bare(frame: Frame) -> None:
    _check_connection(frame)
    if frame.request:
        raise Unfit("it must not have a request number")


def _check_empty(frame: Frame) -> None:
    _check_connection(frame)
    if frame.body:
        raise Unfit("it must not have a body")


def _fields_of(frame: Frame) -> Fields:
    return Fields(Unfit, read_object(frame.body))


def _version_in(found: Fields) -> int:
    """First of all: another version may have other fields."""
    version = found.whole("version", 1, _U32_MAX)
    if version != VERSION:
        raise Unfit(f"protocol version {version} is not supported; this side speaks {VERSION}")
    return version


def _message_of(error: DanubeError) -> str:
    """Cut, so that an error always fits a frame, and with nothing that is no character."""
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
