"""Encodes rows of Arrow columns as buffers of a batch: the counterpart of `encode`, without Python values."""

from __future__ import annotations

import pyarrow as pa

from pydanube.wire.arrow_views import Bytes, Flags, Integers, bitmap, contents, flags, integers, spans
from pydanube.wire.columns import ColumnKind
from pydanube.wire.encode import padding

Parts = tuple[ColumnKind, list[bytes]]


def _kind(valid: Flags | None, start: int, end: int) -> tuple[ColumnKind, list[bytes]]:
    if valid is None:
        return ColumnKind.PLAIN, []
    here = valid[start:end]
    if here.all():
        return ColumnKind.PLAIN, []
    if not here.any():
        return ColumnKind.ABSENT, []
    return ColumnKind.NULLABLE, _padded(bitmap(here))


def _padded(buffer: bytes) -> list[bytes]:
    return [buffer, padding(len(buffer))]


def _offset_parts(offsets: Integers, start: int, end: int) -> list[bytes]:
    return _padded((offsets[start : end + 1] - offsets[start]).astype("<i4", copy=False).tobytes())


class Fixed:
    """A column of fixed width."""

    def __init__(self, array: pa.Array, width: int) -> None:
        self._values = integers(array)
        self._valid = flags(array)
        if self._valid is not None:
            self._values = self._values * self._valid.astype(f"<i{width}")

    def parts(self, start: int, end: int) -> Parts:
        kind, parts = _kind(self._valid, start, end)
        values = self._values[start:end]
        if not kind:
            return kind, []
        if kind == ColumnKind.PLAIN and (values == values[0]).all():
            return ColumnKind.CONSTANT, _padded(values[:1].tobytes())
        return kind, parts + _padded(values.tobytes())


class Strings:
    """A column of keys or payloads, or the names or texts of attributes."""

    def __init__(self, array: pa.Array) -> None:
        self._valid = flags(array)
        self._offsets = spans(array)
        self._data: Bytes = contents(array)

    def parts(self, start: int, end: int) -> Parts:
        kind, parts = _kind(self._valid, start, end)
        if not kind:
            return kind, []
        data = self._data[self._offsets[start] : self._offsets[end]].tobytes()
        return kind, [*parts, *_offset_parts(self._offsets, start, end), *_padded(data)]


class Maps:
    """The column of attributes."""

    def __init__(self, array: pa.Array) -> None:
        self._valid = flags(array)
        self._offsets = spans(array)
        self._names = Strings(array.keys)
        self._texts = Strings(array.items)

    def parts(self, start: int, end: int) -> Parts:
        kind, parts = _kind(self._valid, start, end)
        if not kind:
            return kind, []
        first, last = int(self._offsets[start]), int(self._offsets[end])
        parts += _offset_parts(self._offsets, start, end)
        for texts in (self._names, self._texts):
            parts += texts.parts(first, last)[1]
        return kind, parts
