"""Metrics of a data file for Iceberg's manifests: counts, and the bounds of every simple column. Pure.

They come from the footer of the file as it was written, without reading it again. They may be incomplete, but never
wrong, because readers skip files by them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector
from pyiceberg.types import BinaryType, DecimalType, DoubleType, FloatType, PrimitiveType, StringType

from pydanube.pipeline.targets.statistics import upper_bound

Bounds = tuple[Any, Any]  # minimum and maximum, as Parquet has them
_BYTE_MAX = 255


def metrics(footer: pq.FileMetaData, leaves: Sequence[StatisticsCollector]) -> dict[str, Any]:
    """The metrics by their names in `DataFile`. `leaves` are the table's simple columns, in the order of the file."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    sizes, values, nulls = {}, {}, {}
    least: dict[int, bytes] = {}
    greatest: dict[int, bytes] = {}
    for at, leaf in enumerate(leaves):
        chunks = [group.column(at) for group in groups]
        sizes[leaf.field_id] = sum(chunk.total_compressed_size for chunk in chunks)
        if leaf.mode.type is MetricModeTypes.NONE:
            continue
        values[leaf.field_id] = sum(chunk.num_values for chunk in chunks)
        found = [chunk.statistics for chunk in chunks]
        if not all(each is not None and each.has_null_count for each in found):
            continue
        nulls[leaf.field_id] = sum(each.null_count for each in found)
        if leaf.mode.type is MetricModeTypes.COUNTS:
            continue
        valued = [each for each, chunk in zip(found, chunks, strict=True) if each.null_count < chunk.num_values]
        if not valued or not all(each.has_min_max for each in valued):
            continue  # a text was too long for the footer, so its bounds are not known
        length = leaf.mode.length if leaf.mode.type is MetricModeTypes.TRUNCATE else None
        low, high = _bounds(leaf.iceberg_type, [(each.min_raw, each.max_raw) for each in valued], length)
        if low is not None and high is not None:
            least[leaf.field_id] = low
            greatest[leaf.field_id] = high
    return {
        "record_count": footer.num_rows,
        "column_sizes": sizes,
        "value_counts": values,
        "null_value_counts": nulls,
        "nan_value_counts": {},
        "lower_bounds": least,
        "upper_bounds": greatest,
        "split_offsets": sorted(_begin(group) for group in groups),
    }


def _begin(group: pq.RowGroupMetaData) -> int:
    first = group.column(0)
    if first.has_dictionary_page and first.dictionary_page_offset < first.data_page_offset:
        return int(first.dictionary_page_offset)
    return int(first.data_page_offset)


def _bounds(kind: PrimitiveType, found: Sequence[Bounds], length: int | None) -> tuple[bytes | None, bytes | None]:
    match kind:
        case StringType():
            lows, highs = _texts(low for low, _ in found), _texts(high for _, high in found)
            high = upper_bound(max(highs), length)
            return min(lows)[:length].encode(), None if high is None else high.encode()
        case BinaryType():
            return min(low for low, _ in found)[:length], _high_bytes(max(high for _, high in found), length)
        case DecimalType():
            numbers = [(_unscaled(low), _unscaled(high)) for low, high in found]
            return _big_endian(min(low for low, _ in numbers)), _big_endian(max(high for _, high in numbers))
        case FloatType() | DoubleType():
            if any(math.isnan(each) for pair in found for each in pair):
                return None, None
    return to_bytes(kind, min(low for low, _ in found)), to_bytes(kind, max(high for _, high in found))


def _texts(raw: Iterator[Any]) -> list[str]:
    """Bounds as texts: they compare by code points, which is the order of their bytes."""
    return [each if isinstance(each, str) else bytes(each).decode() for each in raw]


def _high_bytes(value: bytes, length: int | None) -> bytes | None:
    if length is None or len(value) <= length:
        return value
    start = value[:length].rstrip(bytes([_BYTE_MAX]))
    return start[:-1] + bytes([start[-1] + 1]) if start else None


def _unscaled(raw: Any) -> int:
    if isinstance(raw, Decimal):
        return int(raw.scaleb(-int(raw.as_tuple().exponent)))
    return int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else int(raw)


def _big_endian(number: int) -> bytes:
    """The number in as few bytes as possible, with its sign."""
    return number.to_bytes((number + (number < 0)).bit_length() // 8 + 1, "big", signed=True)
