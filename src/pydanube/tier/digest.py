"""The digest of rows: SHA-256 over their content, however they are batched, packed, compressed or grouped.

Every column becomes one or more streams, each hashed separately; the digest is the hash of their hashes. A stream of
integers is hashed as runs, so that columns that hardly change cost nothing. See `docs/internals/segment.md`.
"""

from __future__ import annotations

from hashlib import sha256

import numpy as np
import pyarrow as pa

from pydanube.wire.arrow_views import Bytes, Integers, contents, flags, integers, spans

HEAD = b"danube rows 1\n"
COUNTED = ("offset", "sequence")  # mostly one more than in the row before, so the row number is subtracted first
_TEXTS = ("names", "texts")


class RowDigest:
    """Computes the digest of rows that are added in pieces of any size."""

    def __init__(self) -> None:
        self.rows = 0
        self._runs: dict[str, _Runs] = {}
        self._bytes = {name: sha256() for name in ("key", "payload", *_TEXTS)}

    def update(self, rows: pa.RecordBatch) -> None:
        for index, field in enumerate(rows.schema):
            array = rows.column(index)
            if field.name in ("key", "payload"):
                self._strings(field.name, array)
            elif field.name == "attributes":
                self._maps(array)
            else:
                self._integers(field, array)
        self.rows += len(rows)

    def hexdigest(self) -> str:
        whole = sha256(HEAD + self.rows.to_bytes(8, "little"))
        for name, runs in sorted(self._runs.items()):
            whole.update(name.encode() + b"\n" + runs.digest())
        for name, hashed in sorted(self._bytes.items()):
            whole.update(name.encode() + b".bytes\n" + hashed.digest())
        return whole.hexdigest()

    def _integers(self, field: pa.Field, array: pa.Array) -> None:
        values = integers(array).astype(np.int64, copy=False)
        if field.name in COUNTED:
            values = values - np.arange(self.rows, self.rows + len(array))
        if field.nullable:
            valid = flags(array)
            there = np.ones(len(array), np.int64) if valid is None else valid.astype(np.int64)
            self._add(f"{field.name}.valid", there)
            values = values * there
        self._add(field.name, values)

    def _strings(self, name: str, array: pa.Array) -> None:
        offsets = spans(array)
        self._lengths(f"{name}.lengths", array, offsets)
        self._hash(name, contents(array)[offsets[0] : offsets[-1]])

    def _maps(self, array: pa.Array) -> None:
        offsets = spans(array)
        self._lengths("attributes.lengths", array, offsets)
        for name, texts in zip(_TEXTS, (array.keys, array.items), strict=True):
            within = spans(texts)[offsets[0] : offsets[-1] + 1]
            self._add(f"{name}.lengths", np.diff(within).astype(np.int64))
            if len(within):
                self._hash(name, contents(texts)[within[0] : within[-1]])

    def _lengths(self, name: str, array: pa.Array, offsets: Integers) -> None:
        """Hashes the length of each value; -1 for a null."""
        lengths: Integers = np.diff(offsets).astype(np.int64)
        valid = flags(array)
        self._add(name, lengths if valid is None else np.where(valid, lengths, -1))

    def _add(self, name: str, values: Integers) -> None:
        runs = self._runs.get(name)
        if runs is None:
            runs = self._runs[name] = _Runs()
        runs.add(values)

    def _hash(self, name: str, data: Bytes) -> None:
        self._bytes[name].update(data)  # type: ignore[arg-type]  # an array is a buffer, which typeshed does not know


class _Runs:
    """A stream of integers as runs: a value and its number of repetitions, each an int64. The last run is open."""

    def __init__(self) -> None:
        self._hash = sha256()
        self._value = 0
        self._count = 0

    def add(self, values: Integers) -> None:
        if not len(values):
            return
        starts = np.concatenate(([0], np.flatnonzero(np.diff(values)) + 1))
        runs = np.empty((len(starts), 2), "<i8")
        runs[:, 0] = values[starts]
        runs[:, 1] = np.diff(np.append(starts, len(values)))
        if self._count and self._value == runs[0, 0]:
            runs[0, 1] += self._count
        elif self._count:
            self._close()
        self._hash.update(runs[:-1].tobytes())
        self._value, self._count = int(runs[-1, 0]), int(runs[-1, 1])

    def _close(self) -> None:
        self._hash.update(np.array([self._value, self._count], "<i8").tobytes())

    def digest(self) -> bytes:
        whole = self._hash.copy()
        if self._count:
            whole.update(np.array([self._value, self._count], "<i8").tobytes())
        return whole.digest()
