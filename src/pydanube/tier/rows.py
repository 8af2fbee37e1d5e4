"""Turns batches into rows: one Arrow record batch with the columns of a message, under their usual names (§31).

Nothing here loops over messages: buffers of whole columns are joined and wrapped. Bytes in place of a null are dropped,
so that equal rows have equal bytes. `cutting.py` does the reverse.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from pydanube.base.errors import BatchInvalid
from pydanube.wire.arrow import record_schema
from pydanube.wire.arrow_views import Flags, Integers, bitmap, spans
from pydanube.wire.batch import Batch
from pydanube.wire.columns import WIDTHS, Column, ColumnKind, Section, StringBuffers, kind_of
from pydanube.wire.decode import decode_constant


def rows_of(batches: Sequence[Batch]) -> pa.RecordBatch:
    """The rows of these stamped batches. `BatchInvalid` or similar if one is damaged or has no stamp."""
    for batch in batches:
        batch.check()
        if not batch.epoch:
            raise BatchInvalid("a batch that is not stamped has no place in a segment")
    return pa.RecordBatch.from_arrays(_Gathering(batches).arrays(), schema=record_schema())


def joined(parts: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Joins record batches into one with memory of its own."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts).combine_chunks()
    return pa.RecordBatch.from_arrays([_one_chunk(column) for column in table.columns], schema=record_schema())


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)


def row_bytes(rows: pa.RecordBatch) -> Integers:
    """The bytes of each row's key, payload and attributes, plus 8 for each attribute, which may be empty."""
    total: Integers = np.zeros(len(rows), np.int64)
    for name in ("key", "payload"):
        if name in rows.schema.names:
            total += np.diff(spans(rows.column(name)))
    attributes = rows.column("attributes") if "attributes" in rows.schema.names else None
    if attributes is not None and attributes.null_count < len(attributes):
        entries = spans(attributes)
        total += 8 * np.diff(entries)
        for texts in (attributes.keys, attributes.items):
            total += np.diff(spans(texts)[entries])
    return total


class _Gathering:
    """The columns of some batches, each joined in one step."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self._batches = batches
        self._plain = [batch.plain_section() for batch in batches]
        self._packed = [batch.packed_section() for batch in batches]
        self._counts = np.array([batch.count for batch in batches], np.int64)
        self._rows = int(self._counts.sum())
        self._present = 0  # columns that any batch has
        for batch in batches:
            self._present |= batch.columns

    def arrays(self) -> list[pa.Array]:
        batches = self._batches
        columns = {
            "offset": self._counted([batch.base_offset for batch in batches]),
            "publish_time": self._fixed(Column.PUBLISH_TIME, [batch.publish_time for batch in batches]),
            "append_time": self._repeated([batch.append_time for batch in batches]),
            "event_time": self._fixed(Column.EVENT_TIME),
            "delivery_time": self._fixed(Column.DELIVERY_TIME),
            "key": self._strings(Column.KEY, self._plain),
            "payload": self._strings(Column.PAYLOAD, self._packed),
            "attributes": self._maps(),
            "producer": self._repeated([batch.producer_id for batch in batches]),
            "sequence": self._counted([batch.first_sequence for batch in batches]),
            "schema_id": self._fixed(Column.SCHEMA_ID),
            "schema_version": self._fixed(Column.SCHEMA_VERSION),
            "epoch": self._repeated([batch.epoch for batch in batches]),
        }
        arrays = []
        for field in record_schema():
            column = columns[field.name]
            if column is None:
                column = pa.nulls(self._rows, field.type)
            elif isinstance(column, np.ndarray):
                column = _integers(field.type, column, None)
            arrays.append(column)
        return arrays

    # -- columns of fixed width ------------------------------------------------------------------------------------

    def _repeated(self, values: Sequence[int]) -> Integers:
        return np.repeat(np.array(values, np.int64), self._counts)

    def _counted(self, firsts: Sequence[int]) -> Integers:
        starts = np.cumsum(self._counts) - self._counts
        return np.repeat(np.array(firsts, np.int64) - starts, self._counts) + np.arange(self._rows)

    def _fixed(self, column: Column, headers: Sequence[int] | None = None) -> pa.Array | Integers | None:
        """The column; for batches without it, the value of the header, or null."""
        if not kind_of(self._present, column):
            return None if headers is None else self._repeated(headers)
        width = WIDTHS[column]
        values: Integers = np.zeros(self._rows, f"<i{width}")
        valid: Flags = np.ones(self._rows, np.uint8)
        at = 0
        for index, section in enumerate(self._plain):
            end = at + section.count
            where = section.fixed.get(column)
            if where is None and headers is None:
                valid[at:end] = 0
            elif where is None:
                values[at:end] = headers[index]  # type: ignore[index]  # the line above excludes None
            elif where.kind == ColumnKind.CONSTANT:
                values[at:end] = decode_constant(section, where)
            else:
                values[at:end] = np.frombuffer(section.buffer, f"<i{width}", section.count, where.values)
                valid[at:end] = _flags(section, where.validity)
            at = end
        values *= valid  # 0 where there is no value
        return _integers(record_schema().field(column.name.lower()).type, values, valid)

    # -- columns of bytes and maps ---------------------------------------------------------------------------------

    def _strings(self, column: Column, sections: Sequence[Section]) -> pa.Array | None:
        if not kind_of(self._present, column):
            return None
        valid = self._valid(sections, [section.strings and section.strings.validity for section in sections])
        texts = [(section, section.strings) for section in sections]
        offsets, data = _joined_strings(texts)
        array = _array(pa.binary(), self._rows, valid, [offsets, data])
        return _without_hidden(array, np.diff(offsets), valid)

    def _maps(self) -> pa.Array | None:
        if not kind_of(self._present, Column.ATTRIBUTES):
            return None
        sections, entries = self._packed, [section.maps for section in self._packed]
        valid = self._valid(sections, [where and where.validity for where in entries])
        pieces = [
            None if where is None else np.frombuffer(section.buffer, "<i4", section.count + 1, where.offsets)
            for section, where in zip(sections, entries, strict=True)
        ]
        offsets = _joined_offsets(pieces, [section.count for section in sections])
        kind = record_schema().field("attributes").type
        names = _joined_strings([(s, where.names) for s, where in zip(sections, entries, strict=True) if where])
        texts = _joined_strings([(s, where.texts) for s, where in zip(sections, entries, strict=True) if where])
        count = int(offsets[-1])
        children = [_array(kind.key_type, count, None, [*names]), _array(kind.item_type, count, None, [*texts])]
        struct = pa.StructArray.from_arrays(children, fields=[kind.key_field, kind.item_field])
        array = _array(kind, self._rows, valid, [offsets], children=[struct])
        return _without_hidden(array, np.diff(offsets), valid)

    def _valid(self, sections: Sequence[Section], validities: Sequence[int | None]) -> Flags | None:
        """Which rows have a value: none in a batch without the column, all in a batch without a bitmap."""
        if all(validity == -1 for validity in validities):
            return None
        valid: Flags = np.zeros(self._rows, np.uint8)
        at = 0
        for section, validity in zip(sections, validities, strict=True):
            if validity is not None:
                valid[at : at + section.count] = _flags(section, validity)
            at += section.count
        return valid


def _flags(section: Section, validity: int) -> Flags | int:
    if validity < 0:
        return 1
    bits = np.frombuffer(section.buffer, np.uint8, (section.count + 7) // 8, validity)
    return np.unpackbits(bits, count=section.count, bitorder="little")


def _joined_strings(pieces: Sequence[tuple[Section, StringBuffers | None]]) -> tuple[Integers, bytes]:
    data = b"".join(
        [memoryview(section.buffer)[where.data : where.data + where.data_bytes] for section, where in pieces if where]
    )
    offsets = [
        None if where is None else np.frombuffer(section.buffer, "<i4", where.rows + 1, where.offsets)
        for section, where in pieces
    ]
    return _joined_offsets(offsets, [where.rows if where else section.count for section, where in pieces]), data


def _joined_offsets(pieces: Sequence[Integers | None], counts: Sequence[int]) -> Integers:
    """Offsets of columns that are concatenated. A missing column counts as empty values."""
    found: Integers = np.zeros(sum(counts) + 1, np.int32)
    at = base = 0
    for piece, count in zip(pieces, counts, strict=True):
        end = at + count
        if piece is None:
            found[at + 1 : end + 1] = base
        else:
            np.add(piece[1:], base, out=found[at + 1 : end + 1])
            base = int(found[end])
        at = end
    return found


def _integers(kind: pa.DataType, values: Integers, valid: Flags | None) -> pa.Array:
    return _array(kind, len(values), valid, [values])


def _array(
    kind: pa.DataType,
    count: int,
    valid: Flags | None,
    buffers: Sequence[Integers | bytes],
    children: list[pa.Array] | None = None,
) -> pa.Array:
    validity = None if valid is None or valid.all() else pa.py_buffer(bitmap(valid))
    return pa.Array.from_buffers(kind, count, [validity, *map(pa.py_buffer, buffers)], children=children)


def _without_hidden(array: pa.Array, lengths: Integers, valid: Flags | None) -> pa.Array:
    """The same without bytes in place of nulls: a writer should leave none there, but some may."""
    if valid is None or not lengths[valid == 0].any():
        return array
    return array.take(pa.array(np.arange(len(array))))
