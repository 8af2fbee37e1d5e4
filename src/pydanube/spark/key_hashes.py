"""Hashes of many keys at once, the same as those of `base/keys.py`. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pydanube.base.checksum import crc32c
from pydanube.base.keys import FNV_BASIS, FNV_PRIME, KeyHash, fnv1a64_from
from pydanube.wire.arrow_views import Integers

Hashes = NDArray[np.uint64]
_COLUMNS_MAX = 64  # bytes of a key that are hashed for all keys at once; the few longer keys are finished one by one


def hashes_of(data: NDArray[np.uint8], borders: Integers, rows: Integers, kind: KeyHash) -> Hashes:
    """The hashes of the keys in these rows; key n is the bytes from border n to border n + 1."""
    starts, ends = borders[rows].astype(np.int64), borders[rows + 1].astype(np.int64)
    if kind is KeyHash.CRC32C:
        text = data.tobytes()
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return np.array([crc32c(text[start:end]) for start, end in pairs], np.uint64)
    return _fnv1a64(data, starts, ends - starts)


def _fnv1a64(data: NDArray[np.uint8], starts: Integers, lengths: Integers) -> Hashes:
    """Works column by column, with the longest keys first: the keys that have a byte there are always the first."""
    order = np.argsort(-lengths, kind="stable")
    starts, lengths = starts[order], lengths[order]
    found = np.full(len(order), FNV_BASIS, np.uint64)
    columns = min(int(lengths[0]) if len(order) else 0, _COLUMNS_MAX)
    counts = np.searchsorted(-lengths, -np.arange(columns), "left").tolist()  # keys longer than the column's number
    prime = np.uint64(FNV_PRIME)
    for column, count in enumerate(counts):
        part = found[:count]
        part ^= data[starts[:count] + column]
        part *= prime  # modulo 2**64
    for row in np.flatnonzero(lengths > _COLUMNS_MAX).tolist():
        rest = data[starts[row] + _COLUMNS_MAX : starts[row] + lengths[row]].tobytes()
        found[row] = fnv1a64_from(int(found[row]), rest)
    answer = np.empty_like(found)
    answer[order] = found
    return answer
