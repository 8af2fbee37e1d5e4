"""A batch as an Arrow record batch: its own buffers, wrapped in place. Needs `pip install pydanube[arrow]`.

Arrow trusts the offsets it is given, so nothing is returned that was not validated: earlier by `Section.check`, or here
by Arrow itself, which is faster and just as strict.
"""

from __future__ import annotations

from functools import lru_cache
from struct import pack
from typing import TYPE_CHECKING

from pydanube.base.errors import BatchInvalid
from pydanube.wire.batch import Batch
from pydanube.wire.columns import ColumnKind, MapBuffers, Section, StringBuffers
from pydanube.wire.decode import decode_constant

if TYPE_CHECKING:
    import pyarrow as pa


def to_record_batch(batch: Batch, *, derived: bool = False) -> pa.RecordBatch:
    """The columns that the batch stores as arrays, and always `payload`. Only compressed sections are copied.

    With `derived`, all columns of `record_schema`: offsets and sequences are counted, values of the header and constant
    columns are repeated, and absent columns are null.
    """
    import pyarrow as pa

    plain, packed = batch.plain_section(), batch.packed_section()
    arrays = _stored(plain, packed, batch.count)
    record_batch = pa.RecordBatch.from_arrays(list(arrays.values()), schema=_stored_schema(tuple(arrays)))
    if not (plain.ordered and packed.ordered):
        try:
            record_batch.validate(full=True)
        except pa.ArrowInvalid as error:
            raise BatchInvalid(f"Arrow rejected the columns: {error}") from None
        plain.ordered = packed.ordered = True
    return _whole(batch, arrays) if derived else record_batch


@lru_cache(1)
def record_schema() -> pa.Schema:
    """The schema of messages: all columns, in their order."""
    import pyarrow as pa

    time = pa.timestamp("us", tz="UTC")
    return pa.schema(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("publish_time", time, nullable=False),
            pa.field("append_time", time, nullable=False),
            pa.field("event_time", time),
            pa.field("delivery_time", time),
            pa.field("key", pa.binary()),
            pa.field("payload", pa.binary()),
            pa.field("attributes", pa.map_(pa.string(), pa.string())),
            pa.field("producer", pa.int64(), nullable=False),
            pa.field("sequence", pa.int64(), nullable=False),
            pa.field("schema_id", pa.int64()),
            pa.field("schema_version", pa.int32()),
            pa.field("epoch", pa.int64(), nullable=False),
        ]
    )


@lru_cache(64)
def _stored_schema(names: tuple[str, ...]) -> pa.Schema:
    import pyarrow as pa

    return pa.schema([record_schema().field(name) for name in names])


@lru_cache(1)
def _types() -> dict[str, pa.DataType]:
    return {field.name: field.type for field in record_schema()}


# -- what the batch stores -------------------------------------------------------------------------------------------


def _stored(plain: Section, packed: Section, count: int) -> dict[str, pa.Array]:
    """Arrays over the columns that store a value per message, in their order. They are not validated yet."""
    import pyarrow as pa

    types = _types()
    arrays: dict[str, pa.Array] = {}
    buffer = pa.py_buffer(plain.buffer)
    if plain.strings is not None:
        arrays["key"] = _strings(buffer, types["key"], plain.strings)
    for column, where in plain.fixed.items():
        if where.kind != ColumnKind.CONSTANT:
            name = column.name.lower()
            values = buffer.slice(where.values, where.width * count)
            validity = _validity(buffer, where.validity, count)
            arrays[name] = pa.Array.from_buffers(types[name], count, [validity, values])
    if packed.buffer is not plain.buffer:
        buffer = pa.py_buffer(packed.buffer)
    if packed.strings is None:
        arrays["payload"] = pa.nulls(count, types["payload"])
    else:
        arrays["payload"] = _strings(buffer, types["payload"], packed.strings)
    if packed.maps is not None:
        arrays["attributes"] = _maps(buffer, types["attributes"], packed.maps, count)
    return arrays


def _validity(buffer: pa.Buffer, at: int, count: int) -> pa.Buffer | None:
    return None if at < 0 else buffer.slice(at, (count + 7) // 8)


def _strings(buffer: pa.Buffer, kind: pa.DataType, where: StringBuffers) -> pa.Array:
    import pyarrow as pa

    offsets = buffer.slice(where.offsets, 4 * (where.rows + 1))
    data = buffer.slice(where.data, where.data_bytes)
    return pa.Array.from_buffers(kind, where.rows, [_validity(buffer, where.validity, where.rows), offsets, data])


def _maps(buffer: pa.Buffer, kind: pa.MapType, where: MapBuffers, count: int) -> pa.Array:
    import pyarrow as pa

    names = _strings(buffer, kind.key_type, where.names)
    texts = _strings(buffer, kind.item_type, where.texts)
    entry = pa.struct([kind.key_field, kind.item_field])
    entries = pa.Array.from_buffers(entry, where.names.rows, [None], children=[names, texts])
    offsets = buffer.slice(where.offsets, 4 * (count + 1))
    return pa.Array.from_buffers(kind, count, [_validity(buffer, where.validity, count), offsets], children=[entries])


# -- what the batch implies ------------------------------------------------------------------------------------------


def _whole(batch: Batch, stored: dict[str, pa.Array]) -> pa.RecordBatch:
    """All columns of `record_schema`, from the stored ones, which are validated."""
    import pyarrow as pa

    count = batch.count
    implied = {
        "append_time": batch.append_time,
        "publish_time": batch.publish_time,
        "producer": batch.producer_id,
        "epoch": batch.epoch,
    }
    plain = batch.plain_section()
    for column, where in plain.fixed.items():
        if where.kind == ColumnKind.CONSTANT:
            implied[column.name.lower()] = decode_constant(plain, where)
    arrays = dict(stored)
    arrays["offset"] = _range(batch.base_offset, count)
    arrays["sequence"] = _range(batch.first_sequence, count)
    for name, kind in _types().items():
        if name not in arrays:
            value = implied.get(name)
            arrays[name] = pa.nulls(count, kind) if value is None else pa.repeat(pa.scalar(value, kind), count)
    return pa.RecordBatch.from_arrays([arrays[name] for name in _types()], schema=record_schema())


def _range(first: int, count: int) -> pa.Array:
    import pyarrow as pa

    values = pa.py_buffer(pack(f"<{count}q", *range(first, first + count)))
    return pa.Array.from_buffers(pa.int64(), count, [None, values])
