"""Which consumer of a Key-Shared subscription owns a key: a consistent hash ring, and key filters as globs.

Consumers are points on a ring of 32-bit hashes. A key belongs to the first point at or after its own hash, among the
consumers that accept it, so that a consumer who comes or goes moves only its own share of the keys.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence

from pydanube.base.checksum import crc32c
from pydanube.base.errors import FilterInvalid
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import FILTER_BYTES_MAX, FILTERS_MAX, OWNER_CACHE_KEY_BYTES_MAX, OWNER_CACHE_KEYS_MAX

POINTS = 100  # of each consumer: shares differ by about a tenth
_MASK = 0xFFFF_FFFF


def ring_hash(data: bytes) -> int:
    """CRC32C, mixed by the finaliser of murmur3, since checksums of similar texts lie close together."""
    value = crc32c(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


class Filters:
    """Globs over keys: `*` is any run of bytes, `?` one byte, all else itself. No filters accept every key."""

    __slots__ = ("_patterns",)

    def __init__(self, filters: Sequence[bytes]) -> None:
        if len(filters) > FILTERS_MAX or not all(1 <= len(glob) <= FILTER_BYTES_MAX for glob in filters):
            raise FilterInvalid(f"{len(filters)} filters of up to {max(map(len, filters))} bytes")
        self._patterns = [_compiled(glob) for glob in filters]

    def accept(self, key: bytes) -> bool:
        if not self._patterns:
            return True
        return any(pattern.fullmatch(key) is not None for pattern in self._patterns)


def _compiled(glob: bytes) -> re.Pattern[bytes]:
    """Each part between stars is matched where it first fits; atomic groups never try again, so time is bounded."""
    parts = [re.escape(part).replace(rb"\?", b".") for part in re.split(rb"\*+", glob)]
    if len(parts) == 1:
        return re.compile(parts[0], re.DOTALL)
    first, *middle, last = parts
    return re.compile(first + b"".join([b"(?>.*?" + part + b")" for part in middle]) + b".*" + last, re.DOTALL)


class Ring:
    """Consumers and their filters. `owner` is the question; answers are remembered until somebody comes or goes."""

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._consumers: list[ConsumerId] = []  # of the point with the same index
        self._filters: dict[ConsumerId, Filters] = {}
        self._owners: dict[bytes, ConsumerId | None] = {}

    def join(self, consumer: ConsumerId, filters: Filters) -> None:
        self._owners.clear()
        self._filters[consumer] = filters
        for point in range(POINTS):
            value = ring_hash(b"%d-%d" % (consumer, point))
            at = bisect_left(self._hashes, value)
            while at < len(self._hashes) and self._hashes[at] == value and self._consumers[at] < consumer:
                at += 1  # equal hashes in the order of ids, so that the order of joining does not matter
            self._hashes.insert(at, value)
            self._consumers.insert(at, consumer)

    def leave(self, consumer: ConsumerId) -> None:
        self._owners.clear()
        if self._filters.pop(consumer, None) is not None:
            kept = [at for at, other in enumerate(self._consumers) if other != consumer]
            self._hashes = [self._hashes[at] for at in kept]
            self._consumers = [self._consumers[at] for at in kept]

    def owner(self, key: bytes) -> ConsumerId | None:
        """None if nobody accepts the key."""
        try:
            return self._owners[key]
        except KeyError:
            found = self._search(key)
        if len(key) <= OWNER_CACHE_KEY_BYTES_MAX:
            if len(self._owners) >= OWNER_CACHE_KEYS_MAX:
                self._owners.clear()
            self._owners[key] = found
        return found

    def _search(self, key: bytes) -> ConsumerId | None:
        start = bisect_left(self._hashes, ring_hash(key))
        refused: dict[ConsumerId, None] = {}
        for at in range(start - len(self._hashes), start):  # from the key's place once round
            consumer = self._consumers[at]
            if consumer in refused:
                continue
            if self._filters[consumer].accept(key):
                return consumer
            refused[consumer] = None
            if len(refused) == len(self._filters):
                break
        return None
