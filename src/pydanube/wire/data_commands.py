"""Commands that carry batches, offsets and permits: frames whose body is binary.

Each value has `encode` and `read` side by side. `read` checks all fields and raises `MalformedBody`, which
`commands.decode` turns into the error of the side that is at fault. Batches are passed on unchecked, for
`Batch.parse`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple, Self

from pydanube.base.errors import ProtocolError
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    BATCH_BYTES_MAX,
    GRANTED_BYTES_MAX,
    OFFSET_MAX,
    PERMITS_MAX,
    POLICY_MICROSECONDS_MAX,
    REASON_BYTES_MAX,
    TAKEN_MESSAGES_MAX,
)
from pydanube.wire.frames import Buffer, Frame, FrameKind, encode_frame
from pydanube.wire.header import PREFIX_BYTES, STAMP_BYTES
from pydanube.wire.objects import MalformedBody

NO_OFFSET = -1  # in a receipt: the batch was not stored
NO_LIMIT = -1
NO_TIMEOUT = -1

# Bodies. Frames of fixed size are packed in one step, with their header.
_PUBLISHED = Struct("<qBB")
_PUBLISHED_FRAME = Struct("<IIIQqBB")
_DELIVER = Struct("<qqqI")
_GRANT = Struct("<II")
_GRANT_FRAME = Struct("<IIIQII")
_ACK = Struct("<qII")  # the byte of flags and the three zero bytes after it are read as one number
_ACK_ONE = Struct("<qIIqq")
_ACK_ONE_FRAME = Struct("<IIIQqIIqq")
_NACK = Struct("<qqI")
_TAKEN = Struct("<qI")
_RANGE = Struct("<qq")
_NUMBER = Struct("<q")
_NUMBER_FRAME = Struct("<IIIQq")
_EMPTY_FRAME = Struct("<IIIQ")
_LENGTH = Struct("<I")
_BASE_OFFSET = Struct("<q")  # the first field of a batch: docs/internals/batch.md
_COUNT_AT = STAMP_BYTES + 16
_CUMULATIVE = 1
_NEW = tuple.__new__  # twice as fast as the constructor of a named tuple

Range = tuple[int, int]


class Receipt(IntEnum):
    """What PUBLISHED promises about each copy."""

    NONE = 0
    BUFFERED = 1
    FSYNCED = 2
    REPLICATED = 3


_REPEATED = 0x80  # a flag in the byte of the durability
_DURABILITY_MAX = int(max(Receipt))  # an int, because comparing with an enum member is slow


# -- publishing ------------------------------------------------------------------------------------------------------


class Publish(NamedTuple):
    """A batch for the topic of the producer on this channel."""

    channel: int
    request: int
    batch: bytes  # for `Batch.parse`

    def encode(self) -> list[Buffer]:
        return encode_publish(self.channel, self.request, self.batch)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel:
            raise MalformedBody(_NO_CHANNEL)
        if len(body) < PREFIX_BYTES:
            raise MalformedBody(f"{len(body)} bytes are too few for a batch")
        return _NEW(cls, (channel, request, body))


class Published(NamedTuple):
    """The batch of this request is stored as the receipt says."""

    channel: int
    request: int
    base_offset: int  # NO_OFFSET if it was not stored
    durability: int  # a `Receipt`
    copies: int
    repeated: bool = False  # it was already stored before, at that offset

    def encode(self) -> list[Buffer]:
        channel, request, base_offset, durability, copies, repeated = self
        flags = durability | _REPEATED if repeated else durability
        return [
            _PUBLISHED_FRAME.pack(_PUBLISHED.size, FrameKind.PUBLISHED, channel, request, base_offset, flags, copies)
        ]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel or not request:
            raise MalformedBody(_NO_ANSWER)
        if len(body) != _PUBLISHED.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_PUBLISHED.size}")
        base_offset, durability, copies = _PUBLISHED.unpack(body)
        if not NO_OFFSET <= base_offset <= OFFSET_MAX:
            raise MalformedBody(f"{base_offset} is not a valid offset")
        repeated = durability >= _REPEATED
        if repeated:
            durability -= _REPEATED
        if durability > _DURABILITY_MAX:
            raise MalformedBody(f"unknown durability {durability}")
        return _NEW(cls, (channel, request, base_offset, durability, copies, repeated))


# -- consuming -------------------------------------------------------------------------------------------------------


class Deliver(NamedTuple):
    """Offsets `first` to `last` of the batch are for the consumer; the others in it are not."""

    channel: int
    generation: int
    first: int
    last: int
    attempt: int  # how many deliveries of these messages have failed
    batch: memoryview  # part of the frame's body, for `Batch.parse`

    def encode(self) -> list[Buffer]:
        return encode_deliver(*self)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        _check_consumer(channel, request)
        if len(body) < _DELIVER.size + PREFIX_BYTES:
            raise MalformedBody(f"a body of {len(body)} bytes is too short for a batch")
        generation, first, last, attempt = _DELIVER.unpack_from(body)
        _check_generation(generation)
        (base,) = _BASE_OFFSET.unpack_from(body, _DELIVER.size)
        (count,) = _LENGTH.unpack_from(body, _DELIVER.size + _COUNT_AT)
        if not 0 <= base <= first <= last < base + count or last > OFFSET_MAX:
            raise MalformedBody(f"offsets {first} to {last} are not in a batch of {count} that starts at {base}")
        return cls(channel, generation, first, last, attempt, memoryview(body)[_DELIVER.size :])


class Grant(NamedTuple):
    """The consumer takes this many more messages, and bytes of them. If it never grants bytes, they are not limited."""

    channel: int
    permits: int
    bytes: int = 0

    def encode(self) -> list[Buffer]:
        if not 0 <= self.permits <= PERMITS_MAX or not self.permits | self.bytes:
            raise ProtocolError(f"GRANT: permits must be 1 to {PERMITS_MAX}, not {self.permits}")
        if not 0 <= self.bytes <= GRANTED_BYTES_MAX:
            raise ProtocolError(f"GRANT: bytes must be 0 to {GRANTED_BYTES_MAX}, not {self.bytes}")
        return [_GRANT_FRAME.pack(_GRANT.size, FrameKind.GRANT, self.channel, 0, self.permits, self.bytes)]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel or request:
            _check_consumer(channel, request)
        if len(body) != _GRANT.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_GRANT.size}")
        permits, size = _GRANT.unpack(body)
        if permits > PERMITS_MAX or not permits | size:
            raise MalformedBody(f"permits must be 1 to {PERMITS_MAX}, not {permits}")
        return _NEW(cls, (channel, permits, size))


class Ack(NamedTuple):
    """The consumer is done with these messages."""

    channel: int
    request: int
    generation: int
    ranges: list[Range]  # in any order; both ends belong to a range
    cumulative: bool = False  # everything up to the end of the only range

    def encode(self) -> list[Buffer]:
        channel, request, generation, ranges, cumulative = self
        if len(ranges) == 1:
            return [
                _ACK_ONE_FRAME.pack(
                    _ACK_ONE.size, FrameKind.ACK, channel, request, generation, cumulative, 1, *ranges[0]
                )
            ]
        if cumulative:
            raise ProtocolError(f"ACK: a cumulative ack must have one range, not {len(ranges)}")
        head = _ACK.pack(generation, 0, len(ranges))
        return encode_frame(FrameKind.ACK, channel, request, head, _packed(ranges, "ACK"))

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel:
            raise MalformedBody(_NO_CHANNEL)
        if len(body) == _ACK_ONE.size:  # a fast path for the usual ack; errors are found below
            generation, flags, count, first, last = _ACK_ONE.unpack(body)
            if count == 1 and flags <= _CUMULATIVE and generation >= 0 <= first <= last <= OFFSET_MAX:
                return _NEW(cls, (channel, request, generation, [(first, last)], flags == _CUMULATIVE))
        if len(body) < _ACK.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_ACK.size} and its ranges")
        generation, flags, count = _ACK.unpack_from(body)
        _check_generation(generation)
        if flags > _CUMULATIVE:
            raise MalformedBody(f"unknown flags {flags:#x}")
        if flags and count != 1:
            raise MalformedBody(f"a cumulative ack must have one range, not {count}")
        ranges = _unpacked(body, _ACK.size, count, len(body))
        _check_ranges(ranges)
        return _NEW(cls, (channel, request, generation, ranges, flags == _CUMULATIVE))


class Acked(NamedTuple):
    """The ack of this request is durable."""

    channel: int
    request: int

    def encode(self) -> list[Buffer]:
        return [_EMPTY_FRAME.pack(0, FrameKind.ACKED, *self)]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel or not request:
            raise MalformedBody(_NO_ANSWER)
        if body:
            raise MalformedBody("it must not have a body")
        return _NEW(cls, (channel, request))


class Nack(NamedTuple):
    """These messages failed, and may be delivered again."""

    channel: int
    request: int
    generation: int
    ranges: list[Range]
    delay: int = 0  # microseconds before they are delivered again
    reason: str = ""

    def encode(self) -> list[Buffer]:
        channel, request, generation, ranges, delay, reason = self
        why = reason.encode("utf-8", "replace")
        if len(why) > REASON_BYTES_MAX:
            raise ProtocolError(f"NACK: the reason has {len(why)} bytes; the maximum is {REASON_BYTES_MAX}")
        if not 0 <= delay <= POLICY_MICROSECONDS_MAX:
            raise ProtocolError(f"NACK: the delay is {delay} µs; the maximum is {POLICY_MICROSECONDS_MAX}")
        head = _NACK.pack(generation, delay, len(ranges))
        return encode_frame(FrameKind.NACK, channel, request, head, _packed(ranges, "NACK"), why)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel:
            raise MalformedBody(_NO_CHANNEL)
        if len(body) < _NACK.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_NACK.size} and its ranges")
        generation, delay, count = _NACK.unpack_from(body)
        _check_generation(generation)
        if not 0 <= delay <= POLICY_MICROSECONDS_MAX:
            raise MalformedBody(f"the delay is {delay} µs; the maximum is {POLICY_MICROSECONDS_MAX}")
        end = _NACK.size + count * _RANGE.size
        ranges = _unpacked(body, _NACK.size, count, end)
        _check_ranges(ranges)
        if len(body) - end > REASON_BYTES_MAX:
            raise MalformedBody(f"the reason has {len(body) - end} bytes; the maximum is {REASON_BYTES_MAX}")
        try:
            reason = body[end:].decode("utf-8")
        except UnicodeDecodeError:
            raise MalformedBody("the reason is not UTF-8") from None
        return cls(channel, request, generation, ranges, delay, reason)


class Taken(NamedTuple):
    """The program has taken these messages: their ack timeout starts now, not when they were delivered."""

    channel: int
    generation: int
    ranges: list[Range]

    def encode(self) -> list[Buffer]:
        return _encode_ranges(FrameKind.TAKEN, *self)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        found = cls(*_read_ranges(frame))
        messages = sum([last - first + 1 for first, last in found.ranges])
        if messages > TAKEN_MESSAGES_MAX:
            raise MalformedBody(f"{messages} messages; the maximum is {TAKEN_MESSAGES_MAX}")
        return found


class Recall(NamedTuple):
    """The consumer must drop these messages: they timed out or were rewound, and will be delivered again."""

    channel: int
    generation: int
    ranges: list[Range]

    def encode(self) -> list[Buffer]:
        return _encode_ranges(FrameKind.RECALL, *self)

    @classmethod
    def read(cls, frame: Frame) -> Self:
        return cls(*_read_ranges(frame))


class Reset(NamedTuple):
    """After a seek, the consumer must drop what was delivered on the channel in older generations."""

    channel: int
    generation: int

    def encode(self) -> list[Buffer]:
        return [_NUMBER_FRAME.pack(_NUMBER.size, FrameKind.RESET, self.channel, 0, self.generation)]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        _check_consumer(channel, request)
        if len(body) != _NUMBER.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_NUMBER.size}")
        (generation,) = _NUMBER.unpack(body)
        _check_generation(generation)
        return cls(channel, generation)


class Limit(NamedTuple):
    """From now on the topic accepts payloads of at most this many bytes."""

    channel: int
    message_bytes_max: int | None

    def encode(self) -> list[Buffer]:
        limit = NO_LIMIT if self.message_bytes_max is None else self.message_bytes_max
        return [_NUMBER_FRAME.pack(_NUMBER.size, FrameKind.LIMIT, self.channel, 0, limit)]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        if not channel or request:
            raise MalformedBody("it must be on a producer's channel, without a request number")
        if len(body) != _NUMBER.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_NUMBER.size}")
        (limit,) = _NUMBER.unpack(body)
        if not NO_LIMIT <= limit <= BATCH_BYTES_MAX:
            raise MalformedBody(f"{limit} is not a valid limit")
        return cls(channel, None if limit == NO_LIMIT else limit)


class AckTimeout(NamedTuple):
    """The subscription has a new ack timeout: how long a consumer may work on a message. None means no timeout."""

    channel: int
    microseconds: int | None

    def encode(self) -> list[Buffer]:
        timeout = NO_TIMEOUT if self.microseconds is None else self.microseconds
        return [_NUMBER_FRAME.pack(_NUMBER.size, FrameKind.ACK_TIMEOUT, self.channel, 0, timeout)]

    @classmethod
    def read(cls, frame: Frame) -> Self:
        _, channel, request, body = frame
        _check_consumer(channel, request)
        if len(body) != _NUMBER.size:
            raise MalformedBody(f"a body of {len(body)} bytes, not {_NUMBER.size}")
        (timeout,) = _NUMBER.unpack(body)
        if timeout != NO_TIMEOUT and not 1 <= timeout <= POLICY_MICROSECONDS_MAX:
            raise MalformedBody(f"{timeout} is not a valid timeout")
        return cls(channel, None if timeout == NO_TIMEOUT else timeout)


class Batches(NamedTuple):
    """The answer to a read: whole batches in the order of their offsets."""

    request: int
    batches: list[memoryview]  # parts of the frame's body, for `Batch.parse`

    def encode(self) -> list[Buffer]:
        return encode_batches(self.request, [(batch,) for batch in self.batches])

    @classmethod
    def read(cls, frame: Frame) -> Self:
        if frame.channel or not frame.request:
            raise MalformedBody("it must answer a request, on channel 0")
        body = memoryview(frame.body)
        batches: list[memoryview] = []
        at, size = 0, len(body)
        while at < size:
            if size - at < _LENGTH.size:
                raise MalformedBody(f"{size - at} extra bytes at the end")
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size
            if not PREFIX_BYTES <= length <= size - at:
                raise MalformedBody(f"a batch of {length} bytes in the last {size - at}")
            batches.append(body[at : at + length])
            at += length
        if not batches:
            raise MalformedBody("it contains no batch")
        return cls(frame.request, batches)


# -- frames with batches, encoded without copying them ----------------------------------------------------------------


def encode_publish(channel: int, request: int, *batch: Buffer) -> list[Buffer]:
    """A PUBLISH with a batch in one or several parts: `encode_publish(channel, request, *batch.parts())`."""
    return encode_frame(FrameKind.PUBLISH, channel, request, *batch)


def encode_deliver(channel: int, generation: int, first: int, last: int, attempt: int, *batch: Buffer) -> list[Buffer]:
    """A DELIVER with a batch in one or several parts."""
    return encode_frame(FrameKind.DELIVER, channel, 0, _DELIVER.pack(generation, first, last, attempt), *batch)


def encode_batches(request: int, batches: Iterable[Sequence[Buffer]]) -> list[Buffer]:
    """A BATCHES with batches in parts: `encode_batches(request, [batch.parts() for batch in found])`."""
    parts: list[Buffer] = []
    for batch in batches:
        parts.append(_LENGTH.pack(sum(map(len, batch))))
        parts += batch
    return encode_frame(FrameKind.BATCHES, 0, request, *parts)


# -- common fields ---------------------------------------------------------------------------------------------------

_NO_CHANNEL = "it must be on a channel, not on the connection"
_NO_ANSWER = "it must answer a request, on the channel of the request"


def _check_consumer(channel: int, request: int) -> None:
    if not channel:
        raise MalformedBody(_NO_CHANNEL)
    if request:
        raise MalformedBody("it must not have a request number")


def _check_generation(generation: int) -> None:
    if generation < 0:
        raise MalformedBody(f"{generation} is not a valid generation")


def _check_ranges(ranges: list[Range]) -> None:
    for first, last in ranges:
        if not 0 <= first <= last <= OFFSET_MAX:
            raise MalformedBody(f"{first} to {last} is not a valid range")


def _encode_ranges(kind: FrameKind, channel: int, generation: int, ranges: list[Range]) -> list[Buffer]:
    return encode_frame(kind, channel, 0, _TAKEN.pack(generation, len(ranges)), _packed(ranges, kind.name))


def _read_ranges(frame: Frame) -> tuple[int, int, list[Range]]:
    """Channel, generation and ranges of a TAKEN or RECALL."""
    _, channel, request, body = frame
    _check_consumer(channel, request)
    if len(body) < _TAKEN.size:
        raise MalformedBody(f"a body of {len(body)} bytes, not {_TAKEN.size} and its ranges")
    generation, count = _TAKEN.unpack_from(body)
    _check_generation(generation)
    ranges = _unpacked(body, _TAKEN.size, count, len(body))
    _check_ranges(ranges)
    return channel, generation, ranges


def _unpacked(body: bytes, start: int, count: int, end: int) -> list[Range]:
    if not 0 < count <= ACK_RANGES_MAX:
        raise MalformedBody(f"there must be 1 to {ACK_RANGES_MAX} ranges, not {count}")
    if end > len(body) or end - start != count * _RANGE.size:
        raise MalformedBody(f"{count} ranges do not fit {len(body) - start} bytes")
    return list(_RANGE.iter_unpack(body[start:end]))


def _packed(ranges: list[Range], name: str) -> bytes:
    if not 0 < len(ranges) <= ACK_RANGES_MAX:
        raise ProtocolError(f"{name}: there must be 1 to {ACK_RANGES_MAX} ranges, not {len(ranges)}")
    return b"".join([_RANGE.pack(first, last) for first, last in ranges])
