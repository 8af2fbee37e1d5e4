"""The records of a topic's state ledger and their bytes: a kind, fixed fields, then the part whose length varies.

Numbers are little-endian and the last part extends to the end of the record, so a record has exactly one encoding.
Everything is validated when it is read. Nothing here knows what the records do; `TopicState` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from itertools import chain
from operator import le, lt
from struct import Struct, error, pack, unpack_from
from typing import Any, NamedTuple

from pydanube.base.errors import NameInvalid, StateInvalid
from pydanube.base.limits import (
    ACK_RANGES_MAX,
    CURSOR_CHUNK_OFFSETS,
    DEDUP_WINDOW_BATCHES,
    FILLED_MAX,
    NAME_BYTES_MAX,
    OFFSET_MAX,
    PRODUCERS_FORGOTTEN_MAX,
    STATE_RECORD_BYTES_MAX,
    SUBSCRIPTION_OPTIONS_BYTES_MAX,
)
from pydanube.topic.ackset import FULL_CHUNK

SNAPSHOT_VERSION = 1
NUMBER_MAX = (1 << 63) - 1
Ranges = tuple[tuple[int, int], ...]  # first and last offset, in order, never touching the next


class SubscriptionKind(IntEnum):
    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3


class Cause(IntEnum):
    """Why messages are done. The numbers are on disk and index a subscription's counters."""

    ACKED = 0
    POISON = 1  # given up after too many redeliveries
    DEAD_LETTERED = 2
    FILTERED = 3
    EXPIRED = 4  # older than the time to live
    DROPPED = 5  # among the oldest of a backlog that grew too large
    SKIPPED = 6  # skipped on request
    SEEK = 7  # skipped by a seek
    UNUSED = 8  # no message ever had the offset: there may be gaps between ledgers
    LOST = 9  # damaged on disk, and the operator accepted the loss


MOVES = frozenset({Cause.EXPIRED, Cause.DROPPED, Cause.SKIPPED, Cause.SEEK})


class SubscriptionCreated(NamedTuple):
    subscription: int
    name: str
    kind: SubscriptionKind
    start: int
    options: bytes = b""


class SubscriptionChanged(NamedTuple):
    subscription: int
    options: bytes


class SubscriptionDeleted(NamedTuple):
    subscription: int


class Acked(NamedTuple):
    """Offsets that are done, for one cause. Some of them may have been done before."""

    subscription: int
    generation: int
    ranges: Ranges
    cause: Cause = Cause.ACKED


class Moved(NamedTuple):
    """The floor moves. A seek goes in either direction and forgets what is above; other moves only go forward and keep
    it."""

    subscription: int
    generation: int  # after the move; a seek adds one
    floor: int
    cause: Cause
    passed: int  # messages that were skipped without being done


class ProducerAttached(NamedTuple):
    producer: int
    name: str
    epoch: int
    time: int
    fresh: bool = False  # its user promises that nothing it sends was sent before
    temporary: bool = False  # its name was generated, and is never used again


class ProducersForgotten(NamedTuple):
    """Names that were forgotten to make room: a producer with an unknown name may be one of them."""

    producers: tuple[int, ...]


class ProducersReleased(NamedTuple):
    """Producers that have left, and whose names will not be used again."""

    producers: tuple[int, ...]


class Filling(NamedTuple):
    """A job's rows are appended from `first` on (§44). Nothing from there on is visible before all of them are."""

    sink: bytes  # the digest of its writer
    batch: int  # the version of the decision in the metadata, which no other decision ever has
    first: int
    rows: int


class Filled(NamedTuple):
    """All rows that the last `Filling` announced are written, or an operator has given up the rest."""

    sink: bytes
    batch: int


class FillsForgotten(NamedTuple):
    """Writers whose last batch here need not be known any longer: no one will ask for it to be filled again."""

    sinks: tuple[bytes, ...]


class SnapshotBegin(NamedTuple):
    """The beginning of a snapshot: the whole state follows, up to `SnapshotEnd`."""

    version: int
    data_offset: int  # the state of producers after all batches below this offset
    subscriptions_made: int
    producers_made: int
    producers_forgotten: int


class SubscriptionState(NamedTuple):
    subscription: int
    name: str
    kind: SubscriptionKind
    start: int
    floor: int
    generation: int
    counts: tuple[int, ...]  # by cause
    options: bytes


class CursorChunks(NamedTuple):
    """Some of the bitmaps above a cursor's floor."""

    subscription: int
    chunks: tuple[tuple[int, int], ...]


class ProducerState(NamedTuple):
    producer: int
    name: str
    epoch: int
    time: int
    doubtful: bool
    start: int  # its first sequence ever
    next_sequence: int  # 0: nothing published yet
    firsts: tuple[int, ...]  # first sequences of the remembered batches, and their base offsets
    bases: tuple[int, ...]
    temporary: bool = False


class FillState(NamedTuple):
    """The last batch of a writer here."""

    sink: bytes
    batch: int
    first: int  # as in `Filling`; 0 once it is filled
    rows: int


class SnapshotEnd(NamedTuple):
    records: int  # between begin and end


Record = (
    SubscriptionCreated
    | SubscriptionChanged
    | SubscriptionDeleted
    | Acked
    | Moved
    | ProducerAttached
    | ProducersForgotten
    | ProducersReleased
    | Filling
    | Filled
    | FillsForgotten
    | SnapshotBegin
    | SubscriptionState
    | CursorChunks
    | ProducerState
    | FillState
    | SnapshotEnd
)

_CREATED = Struct("<BqBqB")  # kind of record, subscription, kind, start, bytes of name; then name, options
_SUBSCRIPTION = Struct("<Bq")
_ACKED = Struct("<BqqB")  # …, generation, cause; then first and last of each range
_ACKED_ONE = Struct("<BqqBqq")
_MOVED = Struct("<BqqqBq")  # …, generation, floor, cause, passed
_ATTACHED = Struct("<BqqqB")  # …, producer, epoch, time, flags; then name
_BEGIN = Struct("<BBqqqq")
_STATE = Struct(f"<BqBqqq{len(Cause)}qB")  # …, kind, start, floor, generation, counts, as _CREATED
_CHUNK = Struct("<qH")  # number, bytes of its bitmap, none for a full one
_PRODUCER = Struct("<BqqqBqqB")  # …, the numbers in order, bytes of name; then name, first and base of each batch
_FILL = Struct("<B16sqqq")  # …, sink, batch, first, rows
_FILLED = Struct("<B16sq")
_END = Struct("<Bq")
SINK_BYTES = 16
_RANGE_BYTES = 16
_CHUNK_BITMAP_BYTES = CURSOR_CHUNK_OFFSETS // 8
_CHUNK_NUMBER_MAX = OFFSET_MAX // CURSOR_CHUNK_OFFSETS
CHUNKS_IN_RECORD_MAX = (STATE_RECORD_BYTES_MAX - _SUBSCRIPTION.size) // (_CHUNK.size + _CHUNK_BITMAP_BYTES)
_CONTROL_CHARACTERS = re.compile("[\x00-\x1f\x7f-\x9f]")


def encode(record: Record) -> bytes:
    kind, encoder, _ = _CODECS[type(record)]
    return encoder(kind, record)


def decode(data: bytes) -> Record:
    """The record that `data` encodes; `StateInvalid` if it is anything but one complete record."""
    if not 0 < len(data) <= STATE_RECORD_BYTES_MAX:
        raise StateInvalid(f"a record cannot have {len(data)} bytes")
    decoder = _DECODERS.get(data[0])
    if decoder is None:
        raise StateInvalid(f"unknown record kind {data[0]}")
    try:
        return decoder(data)
    except (error, ValueError, NameInvalid) as why:  # too short or long, no such enum member, not UTF-8
        raise StateInvalid(f"a record of kind {data[0]} and {len(data)} bytes: {why}") from why


def name_bytes(name: str) -> bytes:
    """The name of a subscription or producer as it is stored, or `NameInvalid`."""
    try:
        encoded = name.encode()
    except UnicodeEncodeError as why:
        raise NameInvalid(f"{name!r} is not Unicode text") from why
    if not 1 <= len(encoded) <= NAME_BYTES_MAX:
        raise NameInvalid(f"a name must have 1 to {NAME_BYTES_MAX} bytes, got {len(encoded)}")
    if _CONTROL_CHARACTERS.search(name):
        raise NameInvalid(f"{name!r} has control characters")
    return encoded


def _name(encoded: bytes) -> str:
    name = encoded.decode()
    name_bytes(name)
    return name


def _need(true: bool, what: str) -> None:
    if not true:
        raise StateInvalid(what)


def _need_numbers(*numbers: int) -> None:
    _need(min(numbers) >= 0, "a number is negative")


def _need_floor(floor: int) -> None:
    _need(0 <= floor <= OFFSET_MAX + 1, f"{floor} is not a valid floor")


# -- each kind ---------------------------------------------------------------------------------------------------------


def _encode_fixed(form: Struct, kind: int, record: tuple[int | bytes, ...]) -> bytes:
    """A record whose fields are all in its form."""
    return form.pack(kind, *record)


def _encode_created(kind: int, record: SubscriptionCreated) -> bytes:
    name = name_bytes(record.name)
    return _CREATED.pack(kind, record.subscription, record.kind, record.start, len(name)) + name + record.options


def _decode_created(data: bytes) -> SubscriptionCreated:
    _, subscription, kind, start, length = _CREATED.unpack_from(data)
    _need_numbers(subscription)
    _need_floor(start)
    name, options = _name_and_options(data, _CREATED.size, length)
    return SubscriptionCreated(subscription, name, SubscriptionKind(kind), start, options)


def _name_and_options(data: bytes, position: int, length: int) -> tuple[str, bytes]:
    name, options = data[position : position + length], data[position + length :]
    _need(len(name) == length, "a name is cut off")
    _need(len(options) <= SUBSCRIPTION_OPTIONS_BYTES_MAX, f"{len(options)} bytes of options")
    return _name(name), options


def _encode_changed(kind: int, record: SubscriptionChanged) -> bytes:
    return _SUBSCRIPTION.pack(kind, record.subscription) + record.options


def _decode_changed(data: bytes) -> SubscriptionChanged:
    _, subscription = _SUBSCRIPTION.unpack_from(data)
    _need_numbers(subscription)
    options = data[_SUBSCRIPTION.size :]
    _need(len(options) <= SUBSCRIPTION_OPTIONS_BYTES_MAX, f"{len(options)} bytes of options")
    return SubscriptionChanged(subscription, options)


def _decode_deleted(data: bytes) -> SubscriptionDeleted:
    _, subscription = _SUBSCRIPTION.unpack(data)
    _need_numbers(subscription)
    return SubscriptionDeleted(subscription)


def _encode_acked(kind: int, record: Acked) -> bytes:
    subscription, generation, ranges, cause = record
    if len(ranges) == 1:
        return _ACKED_ONE.pack(kind, subscription, generation, cause, *ranges[0])
    return _ACKED.pack(kind, subscription, generation, cause) + pack(f"<{2 * len(ranges)}q", *chain(*ranges))


def _decode_acked(data: bytes) -> Acked:
    _, subscription, generation, cause = _ACKED.unpack_from(data)
    _need_numbers(subscription, generation)
    _need(cause != Cause.SEEK, "an acknowledgement cannot be a seek")
    firsts, lasts = _pairs(data, _ACKED.size, ACK_RANGES_MAX)
    _need(bool(firsts), "an acknowledgement is empty")
    _need(firsts[0] >= 0 and lasts[-1] <= OFFSET_MAX, "offsets are out of range")
    _need(all(map(le, firsts, lasts)), "a range ends before it starts")
    _need(all(last + 1 < first for last, first in zip(lasts, firsts[1:], strict=False)), "ranges touch")
    return Acked(subscription, generation, tuple(zip(firsts, lasts, strict=True)), Cause(cause))


def _pairs(data: bytes, position: int, pairs_max: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The first and the second number of each pair from `position` to the end."""
    pairs, rest = divmod(len(data) - position, _RANGE_BYTES)
    _need(not rest and pairs <= pairs_max, f"{len(data) - position} bytes of pairs")
    numbers = unpack_from(f"<{2 * pairs}q", data, position)
    return numbers[::2], numbers[1::2]


def _decode_moved(data: bytes) -> Moved:
    _, subscription, generation, floor, cause, passed = _MOVED.unpack(data)
    _need_numbers(subscription, generation, passed)
    _need_floor(floor)
    _need(cause in MOVES, f"unknown cause {cause} of a move")
    return Moved(subscription, generation, floor, Cause(cause), passed)


def _encode_attached(kind: int, record: ProducerAttached) -> bytes:
    flags = record.fresh | record.temporary << 1
    return _ATTACHED.pack(kind, record.producer, record.epoch, record.time, flags) + name_bytes(record.name)


def _decode_attached(data: bytes) -> ProducerAttached:
    _, producer, epoch, time, flags = _ATTACHED.unpack_from(data)
    _need(producer > 0 and epoch > 0 and time >= 0 and flags <= 3, "a producer's numbers are out of range")
    return ProducerAttached(producer, _name(data[_ATTACHED.size :]), epoch, time, bool(flags & 1), bool(flags & 2))


def _encode_producers(kind: int, record: ProducersForgotten | ProducersReleased) -> bytes:
    return pack(f"<B{len(record.producers)}q", kind, *record.producers)


def _decode_forgotten(data: bytes) -> ProducersForgotten:
    return ProducersForgotten(_producers(data))


def _decode_released(data: bytes) -> ProducersReleased:
    return ProducersReleased(_producers(data))


def _producers(data: bytes) -> tuple[int, ...]:
    count, rest = divmod(len(data) - 1, 8)
    _need(not rest and 0 < count <= PRODUCERS_FORGOTTEN_MAX, f"{len(data) - 1} bytes of producers")
    producers = unpack_from(f"<{count}q", data, 1)
    _need(min(producers) > 0 and len({*producers}) == count, "producer ids are out of range or repeated")
    return producers


def _decode_begin(data: bytes) -> SnapshotBegin:
    _need(data[1:2] == bytes([SNAPSHOT_VERSION]), "the snapshot has another version")
    begin = SnapshotBegin(*_BEGIN.unpack(data)[1:])
    _need_numbers(*begin)
    return begin


def _encode_state(kind: int, record: SubscriptionState) -> bytes:
    name = name_bytes(record.name)
    fields = (record.subscription, record.kind, record.start, record.floor, record.generation, *record.counts)
    return _STATE.pack(kind, *fields, len(name)) + name + record.options


def _decode_state(data: bytes) -> SubscriptionState:
    _, subscription, kind, start, floor, generation, *counts, length = _STATE.unpack_from(data)
    _need_numbers(subscription, generation, *counts)
    _need_floor(start)
    _need_floor(floor)
    name, options = _name_and_options(data, _STATE.size, length)
    return SubscriptionState(
        subscription, name, SubscriptionKind(kind), start, floor, generation, tuple(counts), options
    )


def _encode_chunks(kind: int, record: CursorChunks) -> bytes:
    parts = [_SUBSCRIPTION.pack(kind, record.subscription)]
    for number, bits in record.chunks:
        size = 0 if bits == FULL_CHUNK else (bits.bit_length() + 7) // 8
        parts += [_CHUNK.pack(number, size), bits.to_bytes(size, "little") if size else b""]
    return b"".join(parts)


def _decode_chunks(data: bytes) -> CursorChunks:
    _, subscription = _SUBSCRIPTION.unpack_from(data)
    _need_numbers(subscription)
    chunks: list[tuple[int, int]] = []
    position = _SUBSCRIPTION.size
    after = -1
    while position < len(data):
        number, size = _CHUNK.unpack_from(data, position)
        position += _CHUNK.size
        _need(after < number <= _CHUNK_NUMBER_MAX, "chunks out of order")
        bitmap = data[position : position + size]
        _need(len(bitmap) == size <= _CHUNK_BITMAP_BYTES, "a bitmap is cut off or too long")
        _need(not size or bitmap[-1] != 0, "a bitmap with empty bytes at its end")
        bits = int.from_bytes(bitmap, "little")
        _need(bits != FULL_CHUNK, "a full bitmap is written out")
        chunks.append((number, bits if size else FULL_CHUNK))
        position += size
        after = number
    _need(0 < len(chunks) <= CHUNKS_IN_RECORD_MAX, f"{len(chunks)} chunks")
    return CursorChunks(subscription, tuple(chunks))


def _encode_producer(kind: int, record: ProducerState) -> bytes:
    producer, name, epoch, time, doubtful, start, next_sequence, firsts, bases, temporary = record
    encoded = name_bytes(name)
    head = _PRODUCER.pack(kind, producer, epoch, time, doubtful | temporary << 1, start, next_sequence, len(encoded))
    return head + encoded + pack(f"<{2 * len(firsts)}q", *chain(*zip(firsts, bases, strict=True)))


def _decode_producer(data: bytes) -> ProducerState:
    _, producer, epoch, time, flags, start, next_sequence, length = _PRODUCER.unpack_from(data)
    _need(producer > 0 and epoch > 0 and time >= 0 and flags <= 3, "a producer's numbers are out of range")
    _need(0 <= start < next_sequence or start == next_sequence == 0, "a sequence before the first")
    name = data[_PRODUCER.size : _PRODUCER.size + length]
    firsts, bases = _pairs(data, _PRODUCER.size + length, DEDUP_WINDOW_BATCHES)
    _need(all(map(lt, (start - 1, *firsts), firsts)), "sequences out of order")
    _need(not firsts or firsts[-1] < next_sequence, "a batch after the last")
    _need(all(map(lt, (-1, *bases), (*bases, OFFSET_MAX + 1))), "offsets out of order")
    doubtful, temporary = bool(flags & 1), bool(flags & 2)
    return ProducerState(producer, _name(name), epoch, time, doubtful, start, next_sequence, firsts, bases, temporary)


def _decode_filling(data: bytes) -> Filling:
    _, sink, batch, first, rows = _FILL.unpack(data)
    _need(batch > 0 and rows > 0, "a filling without a decision or rows")
    _need_floor(first)
    return Filling(sink, batch, first, rows)


def _decode_filled(data: bytes) -> Filled:
    _, sink, batch = _FILLED.unpack(data)
    _need(batch > 0, "a filling without a decision")
    return Filled(sink, batch)


def _encode_fills_forgotten(kind: int, record: FillsForgotten) -> bytes:
    return bytes([kind]) + b"".join(record.sinks)


def _decode_fills_forgotten(data: bytes) -> FillsForgotten:
    count, rest = divmod(len(data) - 1, SINK_BYTES)
    _need(not rest and 0 < count <= FILLED_MAX, f"{len(data) - 1} bytes of writers")
    sinks = tuple(data[at : at + SINK_BYTES] for at in range(1, len(data), SINK_BYTES))
    _need(len({*sinks}) == count, "a writer is repeated")
    return FillsForgotten(sinks)


def _decode_fill_state(data: bytes) -> FillState:
    _, sink, batch, first, rows = _FILL.unpack(data)
    _need(batch > 0 and rows >= 0, "a filling without a decision")
    _need_floor(first)
    _need(bool(rows) or not first, "a part that is filled has a beginning")
    return FillState(sink, batch, first, rows)


def _decode_end(data: bytes) -> SnapshotEnd:
    _, records = _END.unpack(data)
    _need_numbers(records)
    return SnapshotEnd(records)


# The number of each kind is on disk, so it never changes and is never reused.
_CODECS: dict[type[Record], tuple[int, Callable[[int, Any], bytes], Callable[[bytes], Record]]] = {
    SubscriptionCreated: (1, _encode_created, _decode_created),
    SubscriptionChanged: (2, _encode_changed, _decode_changed),
    SubscriptionDeleted: (3, partial(_encode_fixed, _SUBSCRIPTION), _decode_deleted),
    Acked: (4, _encode_acked, _decode_acked),
    Moved: (5, partial(_encode_fixed, _MOVED), _decode_moved),
    ProducerAttached: (6, _encode_attached, _decode_attached),
    ProducersForgotten: (7, _encode_producers, _decode_forgotten),
    ProducersReleased: (8, _encode_producers, _decode_released),
    Filling: (9, partial(_encode_fixed, _FILL), _decode_filling),
    Filled: (10, partial(_encode_fixed, _FILLED), _decode_filled),
    FillsForgotten: (11, _encode_fills_forgotten, _decode_fills_forgotten),
    SnapshotBegin: (16, partial(_encode_fixed, _BEGIN), _decode_begin),
    SubscriptionState: (17, _encode_state, _decode_state),
    CursorChunks: (18, _encode_chunks, _decode_chunks),
    ProducerState: (19, _encode_producer, _decode_producer),
    SnapshotEnd: (20, partial(_encode_fixed, _END), _decode_end),
    FillState: (21, partial(_encode_fixed, _FILL), _decode_fill_state),
}
_DECODERS = {kind: decoder for kind, _, decoder in _CODECS.values()}
