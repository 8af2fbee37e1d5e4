"""Turns rows back into batches: the same messages, cut where stamp or header must differ, and by size.

A batch has its offsets, sequences, producer, epoch and append time only once. Rows that continue all of them share one.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import zstandard

from pydanube.base.checksum import crc32c
from pydanube.base.limits import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX
from pydanube.tier.limits import BATCH_BYTES_TARGET
from pydanube.tier.rows import row_bytes
from pydanube.wire.arrow_columns import Fixed, Maps, Strings
from pydanube.wire.arrow_views import integers
from pydanube.wire.batch import Batch, Codec
from pydanube.wire.columns import WIDTHS, Column, ColumnKind
from pydanube.wire.content import seal
from pydanube.wire.encode import padding
from pydanube.wire.header import PREFIX_BYTES, STAMP_BYTES, Header, make_stamp
from pydanube.wire.packing import ZSTD_LEVEL

ZSTD_LEVEL_TIGHT = 19  # for one row in millions; compresses better than whatever its producer used
_ROW_BYTES = 64  # the most that a row takes besides its bytes: times, schema, offsets, bits


def check_rows(rows: pa.RecordBatch) -> None:
    """Raises `BatchTooLarge` unless every row can become a batch again. Few rows are large enough to need the check."""
    for index in np.flatnonzero(row_bytes(rows) + PREFIX_BYTES + 4 * _ROW_BYTES > BATCH_BYTES_MAX).tolist():
        CutRows(rows.slice(index, 1)).batch(0)


class CutRows:
    """Rows, and where they are cut. Batches are built on demand."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = len(rows)
        self._columns = {field.name: rows.column(index) for index, field in enumerate(rows.schema)}
        self._offsets = integers(self._columns["offset"])
        self._sequences = integers(self._columns["sequence"])
        self._stamps = {name: integers(self._columns[name]) for name in ("append_time", "epoch", "producer")}
        self._publish_times = integers(self._columns["publish_time"])
        self._fixed = [
            (column, Fixed(self._columns[column.name.lower()], width))
            for column, width in WIDTHS.items()
            if column != Column.PUBLISH_TIME and self._has(column)
        ]
        self._keys = Strings(self._columns["key"]) if self._has(Column.KEY) else None
        self._payloads = Strings(self._columns["payload"]) if self._has(Column.PAYLOAD) else None
        self._attributes = Maps(self._columns["attributes"]) if self._has(Column.ATTRIBUTES) else None
        self._cuts = self._find_cuts(rows)  # the first row of every batch, and the end

    def __len__(self) -> int:
        """The number of batches."""
        return len(self._cuts) - 1

    def holding(self, offset: int) -> int:
        """The index of the first batch that ends at or after `offset`; the number of batches if none does."""
        lasts = self._offsets[np.array(self._cuts[1:], np.int64) - 1]
        return int(np.searchsorted(lasts, offset))

    def batch(self, index: int) -> Batch:
        start, end = self._cuts[index], self._cuts[index + 1]
        columns, plain, publish_time = self._plain(start, end)
        packed: list[bytes] = []
        for column, source in ((Column.PAYLOAD, self._payloads), (Column.ATTRIBUTES, self._attributes)):
            if source is not None:
                kind, parts = source.parts(start, end)
                columns |= kind << 2 * column
                packed += parts
        large = PREFIX_BYTES + sum(map(len, plain)) + sum(map(len, packed)) > BATCH_BYTES_MAX
        header = Header(
            columns=columns,
            count=end - start,
            publish_time=publish_time,
            producer_id=int(self._stamps["producer"][start]),
            first_sequence=int(self._sequences[start]),
        )
        content = _sealed_tightly(header, plain, packed) if large else seal(header, plain, packed)
        append_time, epoch = (int(self._stamps[name][start]) for name in ("append_time", "epoch"))
        return Batch.from_parts(make_stamp(int(self._offsets[start]), append_time, epoch, header.crc), content)

    def _has(self, column: Column) -> bool:
        array = self._columns[column.name.lower()]
        return bool(array.null_count < len(array))

    def _plain(self, start: int, end: int) -> tuple[int, list[bytes], int]:
        """The kinds and buffers of the plain section, and the publish time for the header."""
        columns = 0
        plain: list[bytes] = []
        if self._keys is not None:
            kind, plain = self._keys.parts(start, end)
            columns |= kind << 2 * Column.KEY
        times = self._publish_times[start:end]
        if (times != times[0]).any():
            columns |= ColumnKind.PLAIN << 2 * Column.PUBLISH_TIME
            plain += [times.tobytes()]
        for column, source in self._fixed:
            kind, parts = source.parts(start, end)
            columns |= kind << 2 * column
            plain += parts
        return columns, plain, int(times[0])

    def _find_cuts(self, rows: pa.RecordBatch) -> list[int]:
        breaks = (np.diff(self._offsets) != 1) | (np.diff(self._sequences) != 1)
        for stamps in self._stamps.values():
            breaks |= np.diff(stamps) != 0
        ends = np.cumsum(row_bytes(rows) + _ROW_BYTES)
        cuts = [0]
        for run_end in [*(np.flatnonzero(breaks) + 1).tolist(), self._rows]:
            while cuts[-1] < run_end:
                start = cuts[-1]
                before = int(ends[start - 1]) if start else 0
                fitting = int(np.searchsorted(ends, before + BATCH_BYTES_TARGET, "right"))
                cuts.append(min(max(fitting, start + 1), start + BATCH_MESSAGES_MAX, run_end))
        return cuts


def _sealed_tightly(header: Header, plain: list[bytes], packed: list[bytes]) -> bytes:
    """The content of a row that fits into a batch only if it is compressed, as it was when it was published."""
    raw = b"".join(packed)
    header.codec = Codec.ZSTD
    header.plain_bytes = sum(map(len, plain))
    header.raw_bytes = len(raw)
    blob = b""
    for level in (ZSTD_LEVEL, ZSTD_LEVEL_TIGHT):
        blob = zstandard.ZstdCompressor(level=level).compress(raw)
        header.packed_bytes = len(blob)
        if STAMP_BYTES + header.content_bytes <= BATCH_BYTES_MAX:
            break
    header.check()
    rest = b"".join((header.to_bytes()[4:], *plain, blob, padding(len(blob))))
    header.crc = crc32c(rest)
    return header.crc.to_bytes(4, "little") + rest
