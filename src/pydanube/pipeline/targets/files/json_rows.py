"""Rows of Arrow as JSON, made column by column, so that no row becomes a Python object. Pure.

Every column appears in every row, as `null` if it has no value. Times are ISO 8601, bytes are Base64, decimals keep all
their digits, and NaN and infinities, which JSON does not have, are null.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.base.errors import SchemaMismatch

_ESCAPED = '[\\x00-\\x1f"\\\\]'  # characters that must be escaped in JSON


def check_types(schema: pa.Schema) -> None:
    """Raises `SchemaMismatch` for a column that cannot be written as JSON."""
    for field in schema:
        if not _has_json(field.type):
            raise SchemaMismatch(
                f"the column {field.name[:100]} is {field.type}, which cannot be written as JSON: cast it"
            )


def _has_json(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return all(_has_json(field.type) for field in kind)
    if pa.types.is_map(kind):
        return pa.types.is_string(kind.key_type) and _has_json(kind.item_type)
    if pa.types.is_list(kind):
        return _has_json(kind.value_type)
    return any(
        fits(kind)
        for fits in (
            pa.types.is_boolean,
            pa.types.is_integer,
            pa.types.is_floating,
            pa.types.is_decimal,
            pa.types.is_string,
            pa.types.is_binary,
            pa.types.is_date,
            pa.types.is_timestamp,
            pa.types.is_null,
        )
    )


def json_of(rows: pa.RecordBatch) -> pa.Array:
    """One JSON text for each row."""
    return _object(rows.schema.names, rows.columns)


def _object(names: Sequence[str], columns: Sequence[pa.Array]) -> pa.Array:
    pieces: list[Any] = []
    before = "{"
    for name, column in zip(names, columns, strict=True):
        pieces += [pa.scalar(f"{before}{json.dumps(name, ensure_ascii=False)}:"), _values(column)]
        before = ","
    pieces.append(pa.scalar("}"))
    return pc.binary_join_element_wise(*pieces, pa.scalar(""))


def _values(column: pa.Array) -> pa.Array:
    return pc.fill_null(_texts(column), "null")


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        texts = _object(names, column.flatten()) if names else pa.array(["{}"] * len(column), pa.string())
        return _where_valid(column, texts)
    if pa.types.is_map(kind):
        entries = pa.struct([kind.key_field, kind.item_field])
        column = column.cast(pa.list_(entries))  # which Arrow can flatten
        keys, items = column.flatten().flatten()
        return _joined(column, pc.binary_join_element_wise(_quoted(keys), _values(items), ":"), "{", "}")
    if pa.types.is_list(kind):
        return _joined(column, _values(column.flatten()), "[", "]")
    if pa.types.is_string(kind):
        return _quoted(column)
    if pa.types.is_binary(kind):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in column.to_pylist()]
        return _wrapped(pa.array(encoded, pa.string()))
    if pa.types.is_floating(kind):
        return pc.if_else(pc.is_finite(column), column, pa.scalar(None, kind)).cast(pa.string())
    if pa.types.is_timestamp(kind):
        return _wrapped(_times(column), "" if kind.tz is None else "Z")
    if pa.types.is_date(kind):
        return _wrapped(column.cast(pa.string()))
    if pa.types.is_null(kind):
        return pa.nulls(len(column), pa.string())
    if pa.types.is_decimal(kind):
        numbers = [None if value is None else f"{value:f}" for value in column.to_pylist()]
        return pa.array(numbers, pa.string())
    return column.cast(pa.string())


def _quoted(column: pa.Array) -> pa.Array:
    if pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py():
        quoted = [None if value is None else json.dumps(value, ensure_ascii=False) for value in column.to_pylist()]
        return pa.array(quoted, pa.string())
    return _wrapped(column)


def _times(column: pa.Array) -> pa.Array:
    """Times in UTC if they have a zone. Arrow itself would look up the zone for every value."""
    plain = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    return pc.replace_substring(plain.cast(pa.string()), " ", "T")


def _wrapped(column: pa.Array, ending: str = "") -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar(f'{ending}"'), pa.scalar(""))


def _joined(column: pa.Array, texts: pa.Array, opening: str, closing: str) -> pa.Array:
    """Joins the texts of the entries of a list or map, into one text for each row."""
    lengths = pc.fill_null(pc.list_value_length(column), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")
    return _where_valid(column, pc.binary_join_element_wise(pa.scalar(opening), joined, pa.scalar(closing), ""))


def _where_valid(column: pa.Array, texts: pa.Array) -> pa.Array:
    return pc.if_else(column.is_valid(), texts, pa.scalar(None, pa.string()))
