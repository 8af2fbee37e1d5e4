"""Turns rows of Arrow into batches, each for one topic or partition. Pure, except for `find`, which describes a topic.

A key goes to the partition to which a producer of the client would send it, and the rows of a partition keep their
order. No row becomes an object: columns are copied from Arrow's buffers into those of the batch. Only keys of
partitioned topics are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.base.errors import BatchTooLarge, ColumnInvalid, KeyTooLong, MessageTooLarge, RequestInvalid
from pydanube.base.keys import KeyHash
from pydanube.base.limits import BATCH_MESSAGES_MAX, KEY_BYTES_MAX, MIB, PARTITIONS_MAX, SINK_PARTS_MAX
from pydanube.client.producer import MESSAGE_BYTES_MAX
from pydanube.spark.key_hashes import hashes_of
from pydanube.spark.options import whole_name
from pydanube.tier.rows import row_bytes
from pydanube.wire.arrow_columns import Fixed, Maps, Strings
from pydanube.wire.arrow_views import Integers, contents, spans
from pydanube.wire.batch import Batch, Codec
from pydanube.wire.columns import Column
from pydanube.wire.content import seal
from pydanube.wire.header import Header, make_stamp

BATCH_BYTES = 1 * MIB  # of a batch
GATHERED_BYTES = 8 * MIB  # of rows that are sorted by partition together, so that batches are not tiny
_ROW_BYTES = 24  # of a row besides its content: offsets, a time, bits
_KEYLESS = PARTITIONS_MAX  # the partition of a row without a key, which may go to any
_CODES = 2 * PARTITIONS_MAX  # of one topic


class TargetTopic(NamedTuple):
    name: str
    partitions: int  # 0: not partitioned
    message_bytes_max: int | None = None
    key_hash: KeyHash = KeyHash.FNV1A64

    def partition_name(self, number: int) -> str:
        return f"{self.name}-part-{number}" if self.partitions else self.name


class PartitionBatch(NamedTuple):
    partition: str
    batch: Batch


class RowBatcher:
    """Turns one task's rows into batches. `topic` is for rows that name none."""

    def __init__(
        self,
        find: Callable[[str], TargetTopic],
        now: Callable[[], int],
        topic: str | None = None,
        *,
        turn: int = 0,
        codec: Codec = Codec.NONE,
    ) -> None:
        self._find = find
        self._now = now
        self._topic = topic
        self._turn = turn  # which partition gets the next batch without keys
        self._codec = codec
        self._targets: list[TargetTopic] = []
        self._numbers: dict[str, int] = {}  # of targets, by the names in rows
        self._partition_count = 0  # partitions of all targets
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0

    def add(self, rows: pa.RecordBatch) -> Iterator[PartitionBatch]:
        """The batches that are complete with these rows."""
        if not len(rows):
            return
        self._held.append(_plain(rows))
        self._held_bytes += rows.nbytes
        if self._held_bytes >= (GATHERED_BYTES if self._sorts() else BATCH_BYTES):
            yield from self.rest()

    def rest(self) -> Iterator[PartitionBatch]:
        held, self._held, self._held_bytes = self._held, [], 0
        if held:
            [rows] = held if len(held) == 1 else pa.Table.from_batches(held).combine_chunks().to_batches()
            yield from self._cut(rows)

    def _sorts(self) -> bool:
        return len(self._targets) > 1 or any(each.partitions > 1 for each in self._targets)

    def _cut(self, rows: pa.RecordBatch) -> Iterator[PartitionBatch]:
        sizes = row_bytes(rows)
        codes = self._codes(rows)
        self._check(codes, sizes, rows)
        if (codes != codes[0]).any():
            order = np.argsort(codes, kind="stable")
            rows, codes, sizes = pc.take(rows, pa.array(order)), codes[order], sizes[order]
        encoder = _Encoder(rows, self._codec)
        ends = np.cumsum(sizes + _ROW_BYTES)
        borders = [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), len(rows)]
        for start, end in pairwise(borders):
            number, partition = divmod(int(codes[start]), _CODES)
            for first, last in _pieces(ends, start, end):
                batch = encoder.batch(first, last, self._now())
                yield PartitionBatch(self._partition_of(self._targets[number], partition), batch)

    def _partition_of(self, target: TargetTopic, partition: int) -> str:
        if partition != _KEYLESS:
            return target.partition_name(partition)
        self._turn += 1
        return target.partition_name((self._turn - 1) % target.partitions)

    # -- the partition of each row -------------------------------------------------------------------------------------

    def _codes(self, rows: pa.RecordBatch) -> Integers:
        """A number for each row, made of its topic and partition."""
        numbers = self._named(rows)
        codes: Integers = numbers * _CODES
        divided = np.array([each.partitions for each in self._targets], np.int64)[numbers]
        if (divided > 1).any():
            codes = codes + np.where(divided > 1, self._partitions(rows, numbers, divided), 0)
        return codes

    def _partitions(self, rows: pa.RecordBatch, numbers: Integers, divided: Integers) -> Integers:
        """The partition of each row with a key, and `_KEYLESS` for the others."""
        found = np.full(len(rows), _KEYLESS, np.int64)
        if "key" not in rows.schema.names:
            return found
        keys = rows.column("key")
        keyed = keys.is_valid().to_numpy(zero_copy_only=False) & (divided > 1)
        for key_hash in {self._targets[number].key_hash: None for number in np.unique(numbers).tolist()}:
            alike = np.array([each.key_hash is key_hash for each in self._targets])[numbers] & keyed
            at = np.flatnonzero(alike)
            hashes = hashes_of(contents(keys), spans(keys), at, key_hash)
            found[at] = (hashes % divided[at].astype(np.uint64)).astype(np.int64)
        return found

    def _named(self, rows: pa.RecordBatch) -> Integers:
        """The number of the topic of each row."""
        if "topic" not in rows.schema.names:
            assert self._topic is not None
            return np.full(len(rows), self._number(self._topic), np.int64)
        named = rows.column("topic").dictionary_encode()
        if named.null_count and self._topic is None:
            raise ColumnInvalid("a row has no topic, and the option topic is not set")
        known = [self._number(_text(name)) for name in named.dictionary.to_pylist()]
        if self._topic is not None and named.null_count:
            known.append(self._number(self._topic))
        found: Integers = pc.fill_null(named.indices, len(known) - 1).to_numpy().astype(np.int64)
        return np.array(known, np.int64)[found]

    def _number(self, called: str) -> int:
        if called not in self._numbers:
            try:
                target = self._find(whole_name(called))
            except RequestInvalid as error:
                raise ColumnInvalid(f"topic: {error}") from None
            self._partition_count += max(1, target.partitions)
            if self._partition_count > SINK_PARTS_MAX:
                raise ColumnInvalid(f"one write can go to at most {SINK_PARTS_MAX} topics and partitions")
            self._numbers[called] = len(self._targets)
            self._targets.append(target)
        return self._numbers[called]

    def _check(self, codes: Integers, sizes: Integers, rows: pa.RecordBatch) -> None:
        """Raises if a row is too large for any topic, or for its own, before any of these rows is sent."""
        if (largest := int(sizes.max())) > MESSAGE_BYTES_MAX:
            raise BatchTooLarge(
                f"a row has {largest} bytes with its key; the maximum for a message is {MESSAGE_BYTES_MAX}"
            )
        if "key" in rows.schema.names and (longest := int(np.diff(spans(rows.column("key"))).max())) > KEY_BYTES_MAX:
            raise KeyTooLong(f"a key has {longest} bytes; the maximum is {KEY_BYTES_MAX}")
        for number in np.unique(codes // _CODES).tolist():
            target = self._targets[number]
            if target.message_bytes_max is not None and largest > target.message_bytes_max:
                size = int(np.diff(spans(rows.column("payload")))[codes // _CODES == number].max())
                if size > target.message_bytes_max:
                    raise MessageTooLarge(
                        f"a value has {size} bytes; the maximum for {target.name} is {target.message_bytes_max}"
                    )


def _plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows with the column names of a batch and uniform types. Bytes are not copied."""
    columns: dict[str, pa.Array] = {}
    for name, array in zip(rows.schema.names, rows.columns, strict=True):
        if name in ("value", "key", "topic"):
            columns["payload" if name == "value" else name] = array.cast(pa.binary())
        elif name == "attributes":
            columns[name] = _attributes(array)
        else:
            columns[name] = array
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _attributes(array: pa.Array) -> pa.Array:
    array = array.cast(pa.map_(pa.string(), pa.string()))
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ColumnInvalid(f"attributes must be UTF-8 text: {error}") from None
    if array.keys.null_count or array.items.null_count:
        raise ColumnInvalid("an attribute is null: leave it out, for example with map_filter")
    return array


def _text(name: bytes | None) -> str:
    try:
        return (name or b"").decode()
    except UnicodeDecodeError:
        raise ColumnInvalid(f"a topic's name is not UTF-8 text: {name!r:.100}") from None


def _pieces(ends: Integers, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Rows from `start` to `end` in pieces of about the same size, none larger than a batch unless it is one row."""
    before = int(ends[start - 1]) if start else 0
    total = int(ends[end - 1]) - before
    each = -(-total // -(-total // BATCH_BYTES))
    while start < end:
        fitting = int(np.searchsorted(ends, before + each, "right"))
        stop = min(max(fitting, start + 1), start + BATCH_MESSAGES_MAX, end)
        yield start, stop
        start, before = stop, int(ends[stop - 1])


class _Encoder:
    def __init__(self, rows: pa.RecordBatch, codec: Codec) -> None:
        def column(name: str) -> pa.Array | None:
            found = rows.column(name) if name in rows.schema.names else None
            return None if found is None or found.null_count == len(found) else found

        keys, payloads, attributes = map(column, ("key", "payload", "attributes"))
        times = column("event_time")
        self._codec = codec
        self._keys = None if keys is None else Strings(keys)
        self._payloads = None if payloads is None else Strings(payloads)
        self._attributes = None if attributes is None else Maps(attributes)
        self._times = None if times is None else Fixed(times, 8)

    def batch(self, start: int, end: int, publish_time: int) -> Batch:
        columns = 0
        plain: list[bytes] = []
        packed: list[bytes] = []
        for column, source, section in (
            (Column.KEY, self._keys, plain),
            (Column.EVENT_TIME, self._times, plain),
            (Column.PAYLOAD, self._payloads, packed),
            (Column.ATTRIBUTES, self._attributes, packed),
        ):
            if source is not None:
                kind, parts = source.parts(start, end)
                columns |= kind << 2 * column
                section += parts
        header = Header(codec=self._codec, columns=columns, count=end - start, publish_time=publish_time)
        try:
            content = seal(header, plain, packed)
        except BatchTooLarge as error:
            raise BatchTooLarge(f"rows {start} to {end - 1} of a task do not fit one batch: {error}") from None
        return Batch.from_parts(make_stamp(0, 0, 0, header.crc), content)
