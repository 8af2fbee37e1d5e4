"""Statistics of a file for Delta's log: its rows, and the minimum, maximum and nulls of simple columns. Pure.

They may be incomplete, but never wrong, because readers skip files by them.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS_MAX = 32  # with a minimum and a maximum: the first ones, as Delta itself does it
NULLS_MAX = 1_000  # columns whose nulls are counted
CHARACTERS_MAX = 32  # of a text
DIGITS_MAX = 15  # of a decimal that every JSON reader gets exactly
_SURROGATES = range(0xD800, 0xE000)


def file_statistics(metadata: pq.FileMetaData, schema: pa.Schema, nan: Collection[str]) -> dict[str, Any]:
    """The statistics of a whole file. Columns in `nan` contain NaN, which has no order."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    numbers = {metadata.schema.column(at).path: at for at in range(metadata.num_columns)}
    for number, field in enumerate(list(schema)[:NULLS_MAX]):
        if pa.types.is_nested(field.type) or field.name not in numbers or "." in field.name:
            continue  # a name with a dot may mean a field of another column
        at = numbers[field.name]
        found = [metadata.row_group(group).column(at).statistics for group in range(metadata.num_row_groups)]
        if not found or not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[field.name] = sum(each.null_count for each in found)
        if number >= COLUMNS_MAX or field.name in nan or not _ordered(field.type):
            continue
        valued = [each for each in found if each.num_values]
        if not valued or not all(each.has_min_max for each in valued):
            continue
        try:
            low, high = _low(min(each.min for each in valued)), _high(max(each.max for each in valued))
        except (ValueError, OverflowError):  # a time outside Python's range
            continue
        if low is not None:
            least[field.name] = low
        if high is not None:
            greatest[field.name] = high
    return {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}


def _ordered(kind: pa.DataType) -> bool:
    if pa.types.is_decimal(kind):
        return bool(kind.precision <= DIGITS_MAX)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_string(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    )


def _low(value: Any) -> Any:
    return value[:CHARACTERS_MAX] if isinstance(value, str) else _plain(value)


def _high(value: Any) -> Any:
    return upper_bound(value, CHARACTERS_MAX) if isinstance(value, str) else _plain(value)


def upper_bound(text: str, length: int | None) -> str | None:
    """A text of at most this length that is not less than the given one; None if there is none."""
    return text if length is None or len(text) <= length else above(text[:length])


def above(text: str) -> str | None:
    """The shortest text that is greater than every text with this beginning; None if there is none."""
    for at in range(len(text) - 1, -1, -1):
        code = ord(text[at]) + 1
        if code in _SURROGATES:
            code = _SURROGATES.stop
        if code <= 0x10FFFF:
            return text[:at] + chr(code)
    return None


def _plain(value: Any) -> Any:
    match value:
        case bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value)
        case datetime():
            text = value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo is not None else value
            return f"{text.isoformat(timespec='microseconds')}{'Z' if value.tzinfo is not None else ''}"
        case date():
            return value.isoformat()
        case _:
            return None
