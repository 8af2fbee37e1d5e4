"""Decodes JSON objects into columns: many at a time with Arrow's parser, or one by one if that fails.

Arrow's parser reports that a block is invalid, but not which of its rows. So the rows of such a block are decoded by
`decode_json_rows`, which accepts whatever Arrow accepts, with the same values. Therefore it does not matter which rows
are in the same block.

Arrow's parser ignores lines and reads one object after the other. Rows and objects still correspond: each payload
begins with `{` and ends with `}`, and between two payloads there is a line break, which no string may contain. A
payload that is incomplete at its end would have to continue with a comma or a bracket, and the next one does not. So
each payload has at least one object, and if there are as many objects as payloads, each has exactly one.
"""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING

from pydanube.spark.decode import Decoded, ends, pieces, together
from pydanube.spark.decode_json_rows import DAY_MAX, DAY_MIN, DEPTH_MAX, TIME_MAX, TIME_MIN, JsonRows, is_too_deep
from pydanube.spark.decode_types import DIGITS_MAX, parse_ddl

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

SMALL_ROWS = 256  # of a part that is decoded row by row
OPEN, CLOSE = b"{}"
BLANKS = " \t\r\n"


class JsonDecoder:
    def __init__(self, schema: str) -> None:
        import pyarrow as pa
        import pyarrow.json as pj

        self.kind = parse_ddl(schema)
        self._rows = JsonRows(self.kind)
        self._options = None
        if not _has_map(self.kind):  # Arrow's parser does not support maps
            wire = pa.schema([(each.name, _wire(each.type)) for each in self.kind])
            self._options = pj.ParseOptions(explicit_schema=wire, unexpected_field_behavior="ignore")

    def decode(self, values: pa.BinaryArray) -> Decoded:
        return together([self._piece(piece) for piece in pieces(values)], self.kind)

    def _piece(self, values: pa.BinaryArray) -> Decoded:
        if self._options is None:
            return self._rows.decode(values)
        values, shaped = _shaped(values)
        if shaped.all():
            return self._parts(values)
        return self._separated(values, shaped)

    def _separated(self, values: pa.BinaryArray, shaped: np.ndarray) -> Decoded:
        """Rows that cannot be objects get an error; the others are decoded fast."""
        import numpy as np
        import pyarrow as pa

        objects, others = np.flatnonzero(shaped), np.flatnonzero(~shaped)
        parts = [self._rows.decode(values.take(pa.array(others)))]
        if len(objects):
            parts.append(self._parts(values.take(pa.array(objects))))
        found = together(parts, self.kind)
        order = pa.array(np.argsort(np.concatenate([others, objects])))
        return Decoded(found.values.take(order), None if found.errors is None else found.errors.take(order))

    def _parts(self, values: pa.BinaryArray) -> Decoded:
        found = self._fast(values)
        if found is not None:
            return Decoded(found)
        if len(values) <= SMALL_ROWS:
            return self._rows.decode(values)
        return together(
            [self._parts(values.slice(at, SMALL_ROWS)) for at in range(0, len(values), SMALL_ROWS)], self.kind
        )

    def _fast(self, values: pa.BinaryArray) -> pa.StructArray | None:
        """None if one of them may not fit."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pj

        try:
            values.cast(pa.string())  # Arrow's parser does not check UTF-8
            lines = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
            joined = pc.binary_join(lines, b"\n")[0].as_buffer()
            one_block = pj.ReadOptions(use_threads=False, block_size=joined.size + 1)
            table = pj.open_json(pa.BufferReader(joined), one_block, self._options).read_all()
            if table.num_rows != len(values):
                return None
            columns = [table.column(at).combine_chunks() for at in range(self.kind.num_fields)]
            made = [_typed(column, each.type) for column, each in zip(columns, self.kind, strict=True)]
        except (ValueError, ArithmeticError):  # those of Arrow are among them
            return None
        return pa.StructArray.from_arrays(made, fields=list(self.kind))


def _has_map(kind: pa.DataType) -> bool:
    import pyarrow as pa

    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(at).type) for at in range(kind.num_fields))


def _shaped(values: pa.BinaryArray) -> tuple[pa.BinaryArray, np.ndarray]:
    """Payloads without surrounding blanks, and which of them look like objects that are not nested too deeply."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    shaped = _looks(values)
    if not shaped.all():
        trimmed = pc.ascii_trim(values.view(pa.string()), BLANKS).view(pa.binary())
        values, shaped = trimmed, _looks(trimmed)
    lengths = np.diff(ends(values))
    for at in np.flatnonzero(shaped & (lengths > 2 * DEPTH_MAX)):
        shaped[at] = not is_too_deep(values[int(at)].as_py())
    return values, shaped


def _looks(values: pa.BinaryArray) -> np.ndarray:
    import numpy as np

    if not values.buffers()[2]:
        return np.zeros(len(values), np.bool_)
    bytes, where = np.frombuffer(values.buffers()[2], np.uint8), ends(values)
    there = np.diff(where) >= 2
    if values.null_count:
        there &= values.is_valid().to_numpy(zero_copy_only=False)
    if not len(bytes):
        return there
    first, last = np.minimum(where[:-1], len(bytes) - 1), np.maximum(where[1:] - 1, 0)
    there &= (bytes[first] == OPEN) & (bytes[last] == CLOSE)
    return there


def _wire(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's parser reads: a text or number that is converted afterwards."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([(each.name, _wire(each.type)) for each in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _wire(kind.value_type)))
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_float32(kind):
        return pa.float64()
    if pa.types.is_decimal(kind):
        return pa.decimal256(DIGITS_MAX, kind.scale)  # the parser does not check the range when it scales a number
    return kind


def _typed(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Raises `ValueError` if a value does not fit."""
    import pyarrow as pa

    if array.type.equals(kind):
        return array
    if pa.types.is_struct(kind):
        children = [_typed(array.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        items = _typed(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, type=kind, mask=array.is_null())
    if pa.types.is_timestamp(kind):
        return _times(array, kind)
    if pa.types.is_binary(kind):
        decoded = [None if text is None else b64decode(text, validate=True) for text in array.to_pylist()]
        return pa.array(decoded, kind)
    if pa.types.is_date(kind):
        return _within(array.cast(kind), pa.int32(), DAY_MIN, DAY_MAX)
    return array.cast(kind, safe=not pa.types.is_float32(kind))


def _times(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times that all have a zone, or all lack one; a mixture is decoded row by row."""
    import pyarrow as pa

    try:
        found = array.cast(kind)
    except pa.ArrowInvalid:
        found = array.cast(pa.timestamp("us")).view(kind)
    return _within(found, pa.int64(), TIME_MIN, TIME_MAX)


def _within(array: pa.Array, number: pa.DataType, low: int, high: int) -> pa.Array:
    import pyarrow.compute as pc

    extent = pc.min_max(array.view(number))
    lowest, highest = extent["min"].as_py(), extent["max"].as_py()
    if lowest is not None and not low <= lowest <= highest <= high:
        raise ValueError("before the year 1 or after 9999")
    return array
