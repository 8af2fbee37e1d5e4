"""The batch: many messages as columns behind one header, the same bytes on the wire, in the journal and in the cache.

A producer builds the content; the broker only puts a stamp in front of it, and neither changes nor decodes it. Bytes
from outside become a `Batch` only through `parse` or `from_parts`, which raise `BatchInvalid`, `BatchDamaged` or
`BatchTooLarge`, whatever the bytes; `verified` is for what another process of this broker has built. The format is
specified in `docs/internals/batch.md`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from struct import unpack_from
from typing import NamedTuple, TypeVar

from pydanube.base.errors import BatchDamaged, BatchInvalid, BatchTooLarge, KeyTooLong
from pydanube.base.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, KEY_BYTES_MAX, OFFSET_MAX
from pydanube.wire.buffer_math import is_ascending, steps_within
from pydanube.wire.columns import WIDTHS, Column, ColumnKind, Section, kind_of, packed_bytes_min, padded
from pydanube.wire.content import content_check, seal
from pydanube.wire.decode import decode_attributes, decode_bytes, decode_fixed
from pydanube.wire.encode import encode_attributes, encode_bytes, encode_fixed, encode_keys
from pydanube.wire.header import (
    CODECS,
    HEADER_BYTES,
    NUMBER_MAX,
    PREFIX_BYTES,
    STAMP_BYTES,
    STAMP_FIELDS,
    Codec,
    Header,
    check_stamp,
    length_of,
    make_stamp,
    read_header,
    stamp_check,
)
from pydanube.wire.packing import FRAME_HEAD_BYTES_MAX, check_claims, unpack, unpack_front
from pydanube.wire.slicing import Rows, slice_section

__all__ = ["PREFIX_BYTES", "STAMP_BYTES", "Batch", "Codec", "Message", "build", "length_of"]

_NEW = object.__new__
_Value = TypeVar("_Value")


class Message(NamedTuple):
    """One row of a batch, with the column names of Parquet, Arrow and Spark. Times are µs since 1970."""

    offset: int  # the row number while the batch is not stamped
    publish_time: int
    append_time: int
    event_time: int | None
    delivery_time: int | None
    key: bytes | None
    payload: bytes | None  # None is a tombstone, b"" an empty message
    attributes: dict[str, str] | None
    producer: int
    sequence: int
    schema_id: int | None
    schema_version: int | None
    epoch: int


_MESSAGE_OF: Callable[[tuple[object, ...]], Message] = partial(tuple.__new__, Message)  # twice as fast as Message(…)


_OBJECT_BYTES = 1_000  # memory of the Python objects of a batch that is kept in a list, as measured
_COLUMN_BYTES = 140  # additional memory for each column that is not absent


class Batch:
    """A stamp and a content. Immutable: `stamped` and `slice` return new batches."""

    __slots__ = (
        "_header",
        "_packed",
        "_plain",
        "append_time",
        "base_offset",
        "content",
        "count",
        "crc",
        "epoch",
        "size",
        "stamp",
    )

    def __init__(self, stamp: bytes, content: bytes, header: Header) -> None:
        """Only for this module, with bytes that were built or checked here. Use `build` or `parse` instead."""
        self.stamp = stamp
        self.content = content
        base_offset, append_time, epoch, _, _ = STAMP_FIELDS.unpack(stamp)
        self.base_offset: int = base_offset
        self.append_time: int = append_time
        self.epoch: int = epoch
        self.crc = header.crc
        self.count = header.count
        self.size = STAMP_BYTES + len(content)
        self._header = header
        self._plain: Section | None = None
        self._packed: Section | None = None

    @classmethod
    def parse(cls, data: bytes | memoryview) -> Batch:
        """Reads all of these bytes as a batch. Checks the stamp, the header and both checksums, but not the columns."""
        if len(data) > BATCH_BYTES_MAX:
            raise BatchTooLarge(f"the batch has {len(data)} bytes; the maximum is {BATCH_BYTES_MAX}")
        return cls.from_parts(bytes(data[:STAMP_BYTES]), bytes(data[STAMP_BYTES:]))

    @classmethod
    def from_parts(cls, stamp: bytes, content: bytes) -> Batch:
        """Like `parse`, for a stamp and a content that are stored separately."""
        if len(stamp) != STAMP_BYTES or len(content) < HEADER_BYTES:
            raise BatchDamaged(f"{len(stamp) + len(content)} bytes are too few for a batch")
        if STAMP_BYTES + len(content) > BATCH_BYTES_MAX:
            raise BatchTooLarge(f"the batch has {STAMP_BYTES + len(content)} bytes; the maximum is {BATCH_BYTES_MAX}")
        header = read_header(content)
        if content_check(content) != header.crc:
            raise BatchDamaged("the content does not match its checksum")
        base_offset, append_time, epoch, check, reserved = STAMP_FIELDS.unpack(stamp)
        if check != stamp_check(stamp[:24], header.crc) or reserved:
            raise BatchDamaged("the stamp does not match its checksum, or belongs to other content")
        header.check()
        if len(content) != header.content_bytes:
            raise BatchInvalid(f"the content has {len(content)} bytes, but its header says {header.content_bytes}")
        check_stamp(base_offset, append_time, epoch, header.count)
        if any(content[HEADER_BYTES + header.plain_bytes + header.packed_bytes :]):
            raise BatchInvalid("padding at the end is not zero")
        return cls(stamp, content, header)

    @classmethod
    def verified(cls, stamp: bytes, content: bytes) -> Batch:
        """Like `from_parts`, for what a process of this broker has just built or checked: computes no checksum again.
        Clients check them as always."""
        if len(stamp) != STAMP_BYTES or len(content) < HEADER_BYTES:
            raise BatchDamaged(f"{len(stamp) + len(content)} bytes are too few for a batch")
        header = read_header(content)
        header.check()
        if len(content) != header.content_bytes:
            raise BatchInvalid(f"the content has {len(content)} bytes, but its header says {header.content_bytes}")
        return cls(stamp, content, header)

    def stamped(self, base_offset: int, epoch: int, append_time: int) -> Batch:
        """The same content object with a stamp: its offset, epoch and append time in a ledger."""
        in_range = 0 < epoch <= NUMBER_MAX and 0 <= append_time <= NUMBER_MAX
        if not in_range or not 0 <= base_offset <= OFFSET_MAX - self.count + 1:
            raise BatchInvalid(
                f"epoch {epoch}, append time {append_time} and offset {base_offset} are not a valid stamp"
            )
        batch: Batch = _NEW(Batch)
        crc = batch.crc = self.crc
        batch.stamp = make_stamp(base_offset, append_time, epoch, crc)
        batch.base_offset = base_offset
        batch.append_time = append_time
        batch.epoch = epoch
        batch.content = self.content
        batch.count = self.count
        batch.size = self.size
        batch._header = self._header
        batch._plain = self._plain
        batch._packed = self._packed
        return batch

    @property
    def codec(self) -> Codec:
        return CODECS[self._header.codec]

    @property
    def columns(self) -> int:
        return self._header.columns

    @property
    def plain_bytes(self) -> int:
        return self._header.plain_bytes

    @property
    def packed_bytes(self) -> int:
        return self._header.packed_bytes

    @property
    def raw_bytes(self) -> int:
        return self._header.raw_bytes

    @property
    def unpacked_bytes(self) -> int:
        """How many bytes its columns have when unpacked."""
        return self.plain_bytes + self.raw_bytes

    @property
    def publish_time(self) -> int:
        return self._header.publish_time

    @property
    def producer_id(self) -> int:
        return self._header.producer_id

    @property
    def first_sequence(self) -> int:
        return self._header.first_sequence

    @property
    def memory(self) -> int:
        """About how many bytes of memory it takes, including where its columns are, but not what is unpacked."""
        return self.size + _OBJECT_BYTES + _COLUMN_BYTES * self.columns.bit_count()

    def without_unpacked(self) -> Batch:
        """A copy for a temporary reader of a cached batch: what is unpacked is freed with the copy."""
        if self.codec == Codec.NONE:
            return self
        batch: Batch = _NEW(Batch)
        for name in Batch.__slots__:
            setattr(batch, name, getattr(self, name))
        batch._packed = None
        return batch

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.count - 1

    @property
    def has_delivery_times(self) -> bool:
        return kind_of(self.columns, Column.DELIVERY_TIME) != ColumnKind.ABSENT

    @property
    def has_attributes(self) -> bool:
        return kind_of(self.columns, Column.ATTRIBUTES) != ColumnKind.ABSENT

    @property
    def attributes_bytes(self) -> int:
        """How many bytes its attributes have; of a compressed section only an upper bound is known."""
        if not self.has_attributes:
            return 0
        return self.raw_bytes if self.codec != Codec.NONE else self.packed_section().maps_bytes

    def parts(self) -> tuple[bytes, bytes]:
        """Stamp and content, to be written one after the other without a copy."""
        return self.stamp, self.content

    def to_bytes(self) -> bytes:
        return self.stamp + self.content

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Batch):
            return NotImplemented
        return self.stamp == other.stamp and self.content == other.content

    def __hash__(self) -> int:
        return hash(self.stamp)

    def __repr__(self) -> str:
        position = f"{self.base_offset}..{self.last_offset} of epoch {self.epoch}" if self.epoch else "not stamped"
        return f"<Batch {position}, {self.count} messages, {self.size} bytes, {self.codec.name.lower()}>"

    # -- columns -----------------------------------------------------------------------------------------------------

    def check_plain(self) -> None:
        """Raises unless the uncompressed columns (keys, times, schemas) are valid. Checked only once."""
        self.plain_section().check()

    def check(self) -> None:
        """Raises unless all columns are valid; unpacks a compressed section. Checked only once, and by every reader."""
        self.check_plain()
        self.packed_section().check()

    def check_published(self) -> None:
        """Makes all checks that a broker can do quickly, without unpacking anything."""
        if self.publish_time < 0:
            raise BatchInvalid(f"a publish time of {self.publish_time} microseconds is before 1970")
        self.check_plain()
        self._check_keys()
        if self.codec == Codec.NONE:
            self.packed_section().check_briefly()
            return
        if self.raw_bytes < packed_bytes_min(self.columns, self.count):
            raise BatchInvalid(f"a section of {self.raw_bytes} bytes is too short for {self.count} messages")
        start = HEADER_BYTES + self.plain_bytes
        check_claims(self.content[start : start + FRAME_HEAD_BYTES_MAX], self.codec, self.raw_bytes)

    def _check_keys(self) -> None:
        where = self.plain_section().strings
        if where is None or where.data_bytes <= KEY_BYTES_MAX:
            return
        if not steps_within(self.content, where.offsets, self.count + 1, KEY_BYTES_MAX):
            raise KeyTooLong(f"a key has more than {KEY_BYTES_MAX} bytes")

    def plain_section(self) -> Section:
        """Where the uncompressed columns are. They lie within the bytes, but `Section.check` is still to be called."""
        if self._plain is None:
            end = HEADER_BYTES + self.plain_bytes
            self._plain = Section(self.content, HEADER_BYTES, end, self.columns, self.count, packed=False)
        return self._plain

    def packed_section(self) -> Section:
        """Where payloads and attributes are. Keeps what it unpacks."""
        if self._packed is None:
            self._packed = self._unpacked()
        return self._packed

    def _unpacked(self) -> Section:
        start = HEADER_BYTES + self.plain_bytes
        end = start + self.packed_bytes
        if self.codec == Codec.NONE:
            return Section(self.content, start, end, self.columns, self.count, packed=True)
        raw = unpack(self.content[start:end], self.codec, self.raw_bytes)
        return Section(raw, 0, self.raw_bytes, self.columns, self.count, packed=True)

    def payloads_within(self, most: int) -> bool:
        """Whether no payload has more bytes than `most`. Unpacks as little as possible, and does not keep it."""
        kind = kind_of(self.columns, Column.PAYLOAD)
        if self.raw_bytes <= most or not kind:
            return True
        at = padded((self.count + 7) // 8) if kind == ColumnKind.NULLABLE else 0
        start, size = HEADER_BYTES + self.plain_bytes, at + 4 * (self.count + 1)
        packed = self.content[start : start + self.packed_bytes]
        offsets = packed[:size] if self.codec == Codec.NONE else unpack_front(packed, self.codec, self.raw_bytes, size)
        if len(offsets) < size or not is_ascending(offsets, at, self.count + 1):
            raise BatchInvalid("offsets of a column run backwards")
        return steps_within(offsets, at, self.count + 1, most)

    def payloads(self) -> list[bytes | None]:
        section = self.packed_section()
        section.check()
        return decode_bytes(section)

    def attributes(self) -> list[dict[str, str] | None]:
        section = self.packed_section()
        section.check()
        return decode_attributes(section)

    def keys(self, rows: range | None = None) -> list[bytes | None]:
        """The keys of all messages, or of some rows."""
        self.check_plain()
        return decode_bytes(self.plain_section(), rows)

    def rows_by_key_bytes(self, rows: range, most: int) -> tuple[int, int]:
        """How many of these rows, at least one, have keys of at most `most` bytes in total, and their total."""
        where = self.plain_section().strings
        if where is None:
            return len(rows), 0
        self.check_plain()
        ends = unpack_from(f"<{len(rows) + 1}i", self.content, where.offsets + 4 * rows.start)
        count = max(1, bisect_right(ends, ends[0] + most) - 1)
        return count, ends[count] - ends[0]

    def publish_times(self) -> list[int]:
        if kind_of(self.columns, Column.PUBLISH_TIME) == ColumnKind.ABSENT:
            return [self.publish_time] * self.count
        return self._integers(Column.PUBLISH_TIME)  # type: ignore[return-value]  # never nullable: see kinds_allowed

    def event_times(self) -> list[int | None]:
        return self._integers(Column.EVENT_TIME)

    def delivery_times(self, rows: range | None = None) -> list[int | None]:
        """The delivery times of all messages, or of some rows."""
        return self._integers(Column.DELIVERY_TIME, rows)

    def schema_ids(self) -> list[int | None]:
        return self._integers(Column.SCHEMA_ID)

    def schema_versions(self) -> list[int | None]:
        return self._integers(Column.SCHEMA_VERSION)

    def _integers(self, column: Column, rows: range | None = None) -> list[int | None]:
        self.check_plain()
        return decode_fixed(self.plain_section(), column, rows)

    def messages(self) -> Iterator[Message]:
        """Every message with all its fields. Errors are raised here, not during iteration."""
        self.check()
        rows = zip(
            range(self.base_offset, self.base_offset + self.count),
            self.publish_times(),
            repeat(self.append_time),
            self.event_times(),
            self.delivery_times(),
            self.keys(),
            self.payloads(),
            self.attributes(),
            repeat(self.producer_id),
            range(self.first_sequence, self.first_sequence + self.count),
            self.schema_ids(),
            self.schema_versions(),
            repeat(self.epoch),
            strict=False,  # the repeats are endless
        )
        return map(_MESSAGE_OF, rows)

    def anonymous(self, first_sequence: int = 0) -> Batch:
        """The same messages without a producer and a stamp, to be published elsewhere."""
        if not self.producer_id and self.first_sequence == first_sequence:
            header, content = self._header, self.content
        else:
            header = replace(self._header, producer_id=0, first_sequence=first_sequence)
            head = header.to_bytes()
            content = head + self.content[HEADER_BYTES:]
            header.crc = content_check(content)
            content = header.crc.to_bytes(4, "little") + content[4:]
        return Batch(make_stamp(0, 0, 0, header.crc), content, header)

    def slice(self, first: int, count: int) -> Batch:
        """A batch of `count` messages from row `first` on, with the offsets and sequences they have here.

        No message is decoded. A compressed batch is unpacked and packed again, which the host should offload. A slice
        of all rows is the batch itself.
        """
        if first < 0 or count < 1 or first + count > self.count:
            raise BatchInvalid(f"a batch of {self.count} has no rows {first}..{first + count - 1}")
        if count == self.count:
            return self
        plain = self.plain_section()
        packed = self._packed or self._unpacked()  # not kept, or a cache would grow when it slices its batches
        plain.check()
        packed.check()
        rows = Rows(first, count)
        plain_columns, plain_parts = slice_section(plain, rows, packed=False)
        packed_columns, packed_parts = slice_section(packed, rows, packed=True)
        header = Header(
            codec=self.codec,
            columns=plain_columns | packed_columns,
            count=count,
            publish_time=self.publish_time,
            producer_id=self.producer_id,
            first_sequence=self.first_sequence + first,
        )
        content = seal(header, plain_parts, packed_parts)
        base_offset = self.base_offset + first if self.epoch else 0
        return Batch(make_stamp(base_offset, self.append_time, self.epoch, header.crc), content, header)


def build(
    payloads: Sequence[bytes | None],
    *,
    publish_time: int,
    keys: Sequence[bytes | str | None] | None = None,
    publish_times: Sequence[int] | None = None,
    event_times: Sequence[int | None] | None = None,
    delivery_times: Sequence[int | None] | None = None,
    attributes: Sequence[Mapping[str, str] | None] | None = None,
    schema_ids: int | Sequence[int | None] | None = None,
    schema_versions: int | Sequence[int | None] | None = None,
    producer_id: int = 0,
    first_sequence: int = 0,
    codec: Codec = Codec.NONE,
) -> Batch:
    """Builds an unstamped batch of these messages. Columns with nothing but nulls take no space."""
    count = len(payloads)
    if count > BATCH_MESSAGES_MAX:
        raise BatchTooLarge(f"the batch has {count} messages; the maximum is {BATCH_MESSAGES_MAX}")
    if not count:
        raise BatchInvalid("a batch must have at least one message")
    if publish_times is not None:
        publish_times = _publish_times(_of_length(publish_times, count, "publish times"), publish_time)
    columns = 0
    plain: list[bytes] = []
    if keys is not None:
        columns, plain = encode_keys(_of_length(keys, count, "keys"))
    for column, values in (
        (Column.PUBLISH_TIME, publish_times),
        (Column.EVENT_TIME, event_times),
        (Column.DELIVERY_TIME, delivery_times),
        (Column.SCHEMA_ID, schema_ids),
        (Column.SCHEMA_VERSION, schema_versions),
    ):
        if values is not None:
            each = [values] * count if isinstance(values, int) else _of_length(values, count, column.name)
            kind, parts = encode_fixed(each, WIDTHS[column])
            columns |= kind << 2 * column
            plain += parts
    kind, packed = encode_bytes(payloads)
    columns |= kind << 2 * Column.PAYLOAD
    if attributes is not None:
        kind, parts = encode_attributes(_of_length(attributes, count, "attributes"))
        columns |= kind << 2 * Column.ATTRIBUTES
        packed += parts
    header = Header(
        codec=codec,
        columns=columns,
        count=count,
        publish_time=publish_time,
        producer_id=producer_id,
        first_sequence=first_sequence,
    )
    content = seal(header, plain, packed)
    return Batch(make_stamp(0, 0, 0, header.crc), content, header)


def _publish_times(times: Sequence[int], publish_time: int) -> Sequence[int] | None:
    """The column to store; None if all times equal the header's."""
    if None in times:
        raise BatchInvalid("every message needs a publish time")
    return None if times.count(publish_time) == len(times) else times


def _of_length(values: Sequence[_Value], count: int, name: str) -> Sequence[_Value]:
    if len(values) != count:
        raise BatchInvalid(f"{len(values)} {name.lower()} for {count} messages")
    return values
