"""Rows of Arrow as JSON, column by column: no row becomes an object unless it holds lists, maps or structs. Pure.

Every column is there in every row, `null` if it has no value. Times are ISO 8601, bytes are Base64, and what JSON has
no number for (NaN, infinities) is null.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pydanube.base.errors import SchemaMismatch

_ESCAPED = '[\\x00-\\x1f"\\\\]'  # what a text of JSON may not hold as it is


def check_types(schema: pa.Schema) -> None:
    """Raises `SchemaMismatch` for a column that has no JSON."""
    for field in schema:
        if not _has_json(field.type):
            raise SchemaMismatch(f"the column {field.name[:100]} is {field.type}, which has no JSON: cast it")


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
    """One text for each row."""
    pieces: list[Any] = []
    before = "{"
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        pieces += [pa.scalar(f"{before}{json.dumps(name, ensure_ascii=False)}:"), pc.fill_null(_texts(column), "null")]
        before = ","
    pieces.append(pa.scalar("}"))
    return pc.binary_join_element_wise(*pieces, pa.scalar(""))


def _texts(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_nested(kind):
        maps = _map_paths(kind)
        return pa.array(
            [
                None if value is None else _dumped(_plain(value, kind) if maps else value)
                for value in column.to_pylist()
            ],
            pa.string(),
        )
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
    """In UTC where they have a zone; Arrow would look for the zone at every value."""
    plain = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()).cast(pa.timestamp("us"))
    return pc.replace_substring(plain.cast(pa.string()), " ", "T")


def _wrapped(column: pa.Array, ending: str = "") -> pa.Array:
    return pc.binary_join_element_wise(pa.scalar('"'), column, pa.scalar(f'{ending}"'), pa.scalar(""))


def _map_paths(kind: pa.DataType) -> bool:
    """Whether there is a map in it, which Arrow gives as a list of pairs."""
    if pa.types.is_map(kind):
        return True
    return any(_map_paths(kind.field(at).type) for at in range(kind.num_fields)) if pa.types.is_nested(kind) else False


def _plain(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(kind):
        return {key: _plain(item, kind.item_type) for key, item in value}
    if pa.types.is_struct(kind):
        return {field.name: _plain(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    return value


def _dumped(value: Any) -> str:
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), default=_other)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if value - value == 0 else None
        case dict():
            return {key: _finite(item) for key, item in value.items()}
        case list():
            return [_finite(item) for item in value]
        case _:
            return value


def _other(value: Any) -> Any:
    match value:
        case datetime():
            if value.tzinfo is None:
                return value.isoformat(timespec="microseconds")
            return f"{value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
        case date():
            return value.isoformat()
        case bytes():
            return base64.b64encode(value).decode()
        case Decimal():
            return float(value)
        case timedelta():
            return value.total_seconds()
        case _:
            raise TypeError(f"no JSON for {type(value).__name__}")
