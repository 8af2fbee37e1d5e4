"""The object of a segment: a Parquet file for any Parquet reader, with our own checksums, which others ignore.

Page checksums do not cover page headers, and nothing covers the footer, so every row group has a CRC32C in the footer's
metadata, and the footer one in a block of 16 bytes before it. The format is in `docs/internals/segment.md`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from struct import Struct

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pydanube.base.checksum import crc32c, crc32c_extend
from pydanube.base.errors import BatchInvalid
from pydanube.base.ids import Epoch
from pydanube.stream.segments import Segment, SegmentPlan, folder_of
from pydanube.tier.cutting import check_rows
from pydanube.tier.digest import RowDigest
from pydanube.tier.limits import FOOTER_BYTES_MAX, GROUP_BYTES, GROUP_ROWS
from pydanube.tier.rows import joined, row_bytes
from pydanube.wire.arrow import record_schema
from pydanube.wire.arrow_views import integers

FORMAT = 1
ZSTD_LEVEL = 1

_MAGIC = b"PAR1"
_TAIL = Struct("<I4s")  # length of the footer, and Parquet's magic
_CHECK = Struct("<8sII")  # Danube's check block before the footer: a mark, the CRC32C of all that follows it, and 0
_CHECK_MARK = b"DANUBE\r\n"
_TIMES = ("publish_time", "append_time", "event_time", "delivery_time")
_DICTIONARIES = ("key", "producer", "schema_id", "schema_version", "epoch", "attributes.key_value.key")
_RISING = ("offset", "sequence", *_TIMES)  # stored as differences


class InvalidSegment(Exception):
    """The bytes are not a segment, or not the expected one. Callers that know the key raise `SegmentDamaged`."""


@dataclass(frozen=True, slots=True)
class Group:
    """A row group: its first offset, its rows, where its bytes are, and their CRC32C."""

    first: int
    rows: int
    start: int
    length: int
    crc: int


@dataclass(frozen=True, slots=True)
class Footer:
    """The verified footer of a segment."""

    stream: str
    plan: SegmentPlan
    rows: int
    digest: str
    oldest: int
    newest: int
    groups: tuple[Group, ...]
    parquet: pq.FileMetaData
    length: int  # in bytes, with our block and Parquet's end

    def segment(self, batch_bytes: int, size: int, checksum: str) -> Segment:
        plan = self.plan
        return Segment(
            first=plan.first,
            last=plan.last,
            epoch=plan.epoch,
            rows=self.rows,
            bytes=batch_bytes,
            size=size,
            checksum=checksum,
            digest=self.digest,
            oldest=self.oldest,
            newest=self.newest,
            groups=tuple(group.first for group in self.groups),
        )

    def check(self, segment: Segment) -> None:
        """Raises unless this is the footer of that segment."""
        if self.segment(segment.bytes, segment.size, segment.checksum) != segment:
            raise InvalidSegment("it is not the segment that was recorded")


# -- writing ---------------------------------------------------------------------------------------------------------


class SegmentWriter:
    """Builds the bytes of one segment. The same rows and plan give the same bytes, however the rows are divided."""

    def __init__(self, plan: SegmentPlan, stream: str) -> None:
        self._plan = plan
        self._stream = stream
        self._next = plan.first  # the next row must have at least this offset
        self._waiting: list[pa.RecordBatch] = []  # less than a row group
        self._digest = RowDigest()
        self._groups: list[Group] = []
        self._times: list[int] = []  # append times of the first and the last row
        self._sink = _Sink()
        self._parquet = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            record_schema(),
            version="2.6",
            compression="zstd",
            compression_level=ZSTD_LEVEL,
            use_dictionary=list(_DICTIONARIES),
            column_encoding=dict.fromkeys(_RISING, "DELTA_BINARY_PACKED"),
            write_statistics=["offset", *_TIMES],
            write_page_checksum=True,
            store_schema=False,
            sorting_columns=[pq.SortingColumn(0)],
        )

    def add(self, rows: pa.RecordBatch) -> None:
        """Adds the next rows. `BatchInvalid` if their offsets go back or are outside the plan.

        `BatchTooLarge` if a row could not become a batch again: it stays where it is.
        """
        offsets = integers(rows.column("offset"))
        if int(offsets[0]) < self._next or int(offsets[-1]) > self._plan.last or (np.diff(offsets) <= 0).any():
            span = f"{offsets[0]}..{offsets[-1]}"
            raise BatchInvalid(f"offsets {span} do not follow in a segment of {self._next}..{self._plan.last}")
        check_rows(rows)
        self._next = int(offsets[-1]) + 1
        self._waiting.append(rows)
        if sum(map(len, self._waiting)) >= GROUP_ROWS or sum(part.nbytes for part in self._waiting) >= GROUP_BYTES:
            self._write_groups(last=False)

    def finish(self) -> bytes:
        """The whole object. `BatchInvalid` if the rows do not cover the plan."""
        self._write_groups(last=True)
        if not self._groups or self._next != self._plan.last + 1:  # before the first row there may be a gap
            raise BatchInvalid(f"the rows end before {self._plan.last}, where the segment does")
        facts = {
            "danube.format": FORMAT,
            "danube.topic": folder_of(self._stream).rstrip("/"),
            "danube.stream": self._stream,
            "danube.first": self._plan.first,
            "danube.last": self._plan.last,
            "danube.epoch": self._plan.epoch,
            "danube.rows": self._digest.rows,
            "danube.digest": self._digest.hexdigest(),
            "danube.oldest": self._times[0],
            "danube.newest": self._times[1],
            "danube.groups": json.dumps(
                [[group.first, group.rows, group.start, group.length, group.crc] for group in self._groups]
            ),
        }
        self._parquet.add_key_value_metadata({name: str(value) for name, value in facts.items()})
        self._sink.begin_footer()
        self._parquet.close()
        return self._sink.whole()

    def _write_groups(self, *, last: bool) -> None:
        if not self._waiting:
            return
        rows = joined(self._waiting)
        ends = np.cumsum(row_bytes(rows))
        at = 0
        while at < len(rows):
            before = int(ends[at - 1]) if at else 0
            fitting = max(int(np.searchsorted(ends, before + GROUP_BYTES, "right")), at + 1)
            end = min(fitting, at + GROUP_ROWS, len(rows))
            if end == len(rows) and end < at + GROUP_ROWS and not last:
                break  # more rows may follow in this row group
            self._write_group(rows.slice(at, end - at))
            at = end
        self._waiting = [rows.slice(at)] if at < len(rows) else []

    def _write_group(self, rows: pa.RecordBatch) -> None:
        self._digest.update(rows)
        start = self._sink.position
        self._sink.crc = 0
        self._parquet.write_table(pa.Table.from_batches([rows]), row_group_size=len(rows))
        first = int(integers(rows.column("offset"))[0])
        self._groups.append(Group(first, len(rows), start, self._sink.position - start, self._sink.crc))
        times = integers(rows.column("append_time"))
        self._times = [self._times[0] if self._times else int(times[0]), int(times[-1])]


class _Sink:
    """The file that Parquet is written to: in memory, with a running CRC32C. The footer is kept separately."""

    closed = False

    def __init__(self) -> None:
        self._body = BytesIO()
        self._footer: BytesIO | None = None
        self.position = 0
        self.crc = 0

    def write(self, piece: bytes) -> int:
        (self._footer or self._body).write(piece)
        self.position += len(piece)
        self.crc = crc32c_extend(self.crc, piece)
        return len(piece)

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""

    def close(self) -> None:
        self.closed = True

    def begin_footer(self) -> None:
        self._footer = BytesIO()

    def whole(self) -> bytes:
        """The object, with our block before the footer. Only the footer is copied."""
        assert self._footer is not None
        footer = self._footer.getvalue()
        self._body.write(_CHECK.pack(_CHECK_MARK, crc32c(footer), 0) + footer)
        data = self._body.getvalue()  # the buffer itself
        self._body = BytesIO()
        return data


# -- reading ---------------------------------------------------------------------------------------------------------


def footer_bytes(tail: bytes, size: int) -> int:
    """How many bytes the footer takes at the end of an object of `size`; `tail` is its end."""
    if len(tail) < _TAIL.size + _CHECK.size or size < len(tail):
        raise InvalidSegment("it is too short")
    length, magic = _TAIL.unpack(tail[-_TAIL.size :])
    whole = int(length) + _TAIL.size + _CHECK.size
    if magic != _MAGIC or whole > min(size, FOOTER_BYTES_MAX):
        raise InvalidSegment("it does not end as Parquet does")
    return whole


def read_footer(tail: bytes, size: int) -> Footer:
    """The footer of an object of `size` that ends with `tail`, which has at least `footer_bytes`."""
    length = footer_bytes(tail, size)
    if len(tail) < length:
        raise InvalidSegment("it is too short for its footer")
    tail = tail[-length:]
    mark, crc, zero = _CHECK.unpack_from(tail)
    if mark != _CHECK_MARK or zero or crc != crc32c(tail[_CHECK.size :]):
        raise InvalidSegment("the footer does not match its checksum")
    try:
        parquet = pq.read_metadata(pa.BufferReader(tail[_CHECK.size :]))
        return _footer(parquet, length, size)
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise InvalidSegment(f"the footer cannot be used: {error}") from None


def _footer(parquet: pq.FileMetaData, length: int, size: int) -> Footer:
    facts = {name.decode(): value.decode() for name, value in (parquet.metadata or {}).items()}
    if facts["danube.format"] != str(FORMAT):
        raise InvalidSegment(f"format {facts['danube.format']} is not supported; this reader knows {FORMAT}")
    groups = tuple(Group(*map(int, group)) for group in json.loads(facts["danube.groups"]))
    at = len(_MAGIC)
    for group in groups:
        if group.start != at or group.length < 1:
            raise InvalidSegment("row groups do not follow each other")
        at += group.length
    if at != size - length or not groups or parquet.num_row_groups != len(groups):
        raise InvalidSegment("row groups do not fill the object")
    number = {name: int(facts[f"danube.{name}"]) for name in ("first", "last", "epoch", "rows", "oldest", "newest")}
    return Footer(
        stream=facts["danube.stream"],
        plan=SegmentPlan(number["first"], number["last"], Epoch(number["epoch"])),
        rows=number["rows"],
        digest=facts["danube.digest"],
        oldest=number["oldest"],
        newest=number["newest"],
        groups=groups,
        parquet=parquet,
        length=length,
    )


def read_group(footer: Footer, index: int, data: bytes) -> pa.RecordBatch:
    """The rows of one row group, from exactly its bytes."""
    group = footer.groups[index]
    if len(data) != group.length or crc32c(data) != group.crc:
        raise InvalidSegment(f"row group {index} does not match its checksum")
    try:
        source = pa.PythonFile(Pieces([(group.start, data)]), mode="r")
        with pq.ParquetFile(source, metadata=footer.parquet, page_checksum_verification=True) as file:
            table = file.read_row_group(index, use_threads=False)
        rows = joined(table.replace_schema_metadata(None).cast(record_schema()).to_batches() or [_no_rows()])
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidSegment(f"row group {index} cannot be read: {error}") from None
    if len(rows) != group.rows or int(integers(rows.column("offset"))[0]) != group.first:
        raise InvalidSegment(f"row group {index} does not have the rows that it claims")
    return rows


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=record_schema())


class Pieces:
    """A file of which only some parts are available, each with its start."""

    closed = False

    def __init__(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        self._pieces = pieces
        self._at = 0

    def seek(self, at: int, whence: int = 0) -> int:
        start, data = self._pieces[-1]
        self._at = at if whence == 0 else start + len(data) + at
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> memoryview:
        for start, data in self._pieces:
            begin = self._at - start
            if begin >= 0 and 0 <= length <= len(data) - begin:
                self._at += length
                return memoryview(data)[begin : begin + length]
        raise OSError("outside of what was read")

    def close(self) -> None:
        self.closed = True


class SegmentScan:
    """Reads an object completely, part by part, and checks every byte and row against its footer."""

    def __init__(self, tail: bytes, size: int) -> None:
        """`tail` is the end of the object, with the whole footer."""
        self.footer = read_footer(tail, size)
        self._tail = tail[-self.footer.length :]
        self._checksum = sha256()
        self._digest = RowDigest()
        self._next = 0

    def parts(self) -> list[tuple[int, int]]:
        """Start and length of the parts for `take`, in order: one row group each, the first with what precedes it."""
        groups = [(group.start, group.length) for group in self.footer.groups]
        return [(0, sum(groups[0])), *groups[1:]]

    def take(self, data: bytes) -> pa.RecordBatch:
        """The rows of the next part. They count only once `finish` has succeeded."""
        before = len(_MAGIC) if self._next == 0 else 0
        if data[:before] != _MAGIC[:before]:
            raise InvalidSegment("it does not start as Parquet does")
        self._checksum.update(data)
        rows = read_group(self.footer, self._next, data[before:])
        self._digest.update(rows)
        self._next += 1
        return rows

    def finish(self) -> str:
        """Completes the checks; returns the checksum of the object."""
        if self._digest.rows != self.footer.rows or self._digest.hexdigest() != self.footer.digest:
            raise InvalidSegment("the digest of its rows differs")
        self._checksum.update(self._tail)
        return self._checksum.hexdigest()


def made(data: bytes, batch_bytes: int) -> Segment:
    """The record of an object that was just built."""
    return read_footer(data, len(data)).segment(batch_bytes, len(data), sha256(data).hexdigest())
