"""Which consumer of a Key-Shared subscription owns a key: a consistent hash ring, and key filters as globs.

Consumers are points on a ring of 32-bit hashes. A key belongs to the first point at or after its own hash, among the
consumers that accept it, so that a consumer who comes or goes moves only its own share of the keys.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pydanube.base.checksum import crc32c
from pydanube.base.errors import FilterInvalid
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import (
    FILTER_BYTES_MAX,
    FILTERS_BYTES_MAX,
    FILTERS_MAX,
    KEYS_AT_ONCE_BYTES,
    KIB,
    OWNER_CACHE_BYTES_MAX,
    OWNER_CACHE_KEYS_MAX,
)

POINTS = 100  # of each consumer: shares differ by about a tenth
_MASK = 0xFFFF_FFFF
_STAR, _ONE = b"*?"


def ring_hash(data: bytes) -> int:
    """CRC32C, mixed by the finaliser of murmur3, since checksums of similar texts lie close together."""
    value = crc32c(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


class Filters:
    """Globs over keys: `*` is any run of bytes, `?` one byte, all else itself. No filters accept every key.

    A bit for each place in each glob, all in one number: those that the bytes so far may have led to. So a key takes a
    step for each of its bytes, whatever the globs are.
    """

    __slots__ = ("_any", "_ends", "_masks", "_stars", "_starts", "globs")

    def __init__(self, filters: Sequence[bytes]) -> None:
        if len(filters) > FILTERS_MAX or not all(1 <= len(glob) <= FILTER_BYTES_MAX for glob in filters):
            raise FilterInvalid(f"{len(filters)} filters of up to {max(map(len, filters))} bytes")
        self.globs = tuple(sorted(set(filters)))
        self._starts = self._ends = self._stars = self._any = 0
        literal: dict[int, int] = {}
        place = 1
        for glob in self.globs:
            self._starts |= place
            for byte in glob:
                if byte == _STAR:
                    self._stars |= place
                    continue
                if byte == _ONE:
                    self._any |= place
                else:
                    literal[byte] = literal.get(byte, 0) | place
                place <<= 1
            self._ends |= place
            place <<= 1
        self._masks = {byte: mask | self._any for byte, mask in literal.items()}

    def accept(self, key: bytes) -> bool:
        if not self.globs:
            return True
        places, stars, masks, any_byte = self._starts, self._stars, self._masks, self._any
        surely = self._ends & stars  # whatever follows
        for byte in key:
            if places & surely:
                return True
            places = (places & masks.get(byte, any_byte)) << 1 | places & stars
            if not places:
                return False
        return bool(places & self._ends)


class Ring:
    """Consumers and their filters. `owner` is the question; answers are remembered until somebody comes or goes."""

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._consumers: list[ConsumerId] = []  # of the point with the same index
        self._filters: dict[ConsumerId, Filters] = {}
        self._same: dict[tuple[bytes, ...], int] = {}  # how many consumers have these filters
        self._filter_bytes = 0  # of all, equal ones once
        self._owners: dict[bytes, ConsumerId | None] = {}
        self._owners_bytes = 0

    @property
    def key_bytes_at_once(self) -> int:
        """Of keys that are new, in one turn: a key takes longer the more filters there are."""
        return KEYS_AT_ONCE_BYTES // (1 + self._filter_bytes // KIB)

    def join(self, consumer: ConsumerId, filters: Filters) -> None:
        more = 0 if filters.globs in self._same else sum(map(len, filters.globs))
        if self._filter_bytes + more > FILTERS_BYTES_MAX:
            raise FilterInvalid(
                f"the consumers of the subscription already have {self._filter_bytes} bytes of distinct key filters; "
                f"the maximum is {FILTERS_BYTES_MAX}"
            )
        self._filter_bytes += more
        self._same[filters.globs] = self._same.get(filters.globs, 0) + 1
        self._forget_owners()
        self._filters[consumer] = filters
        for point in range(POINTS):
            value = ring_hash(b"%d-%d" % (consumer, point))
            at = bisect_left(self._hashes, value)
            while at < len(self._hashes) and self._hashes[at] == value and self._consumers[at] < consumer:
                at += 1  # equal hashes in the order of ids, so that the order of joining does not matter
            self._hashes.insert(at, value)
            self._consumers.insert(at, consumer)

    def leave(self, consumer: ConsumerId) -> None:
        self._forget_owners()
        gone = self._filters.pop(consumer, None)
        if gone is not None:
            self._same[gone.globs] -= 1
            if not self._same[gone.globs]:
                del self._same[gone.globs]
                self._filter_bytes -= sum(map(len, gone.globs))
            kept = [at for at, other in enumerate(self._consumers) if other != consumer]
            self._hashes = [self._hashes[at] for at in kept]
            self._consumers = [self._consumers[at] for at in kept]

    def owner(self, key: bytes) -> ConsumerId | None:
        """None if nobody accepts the key."""
        try:
            return self._owners[key]
        except KeyError:
            found = self._search(key)
        if len(self._owners) >= OWNER_CACHE_KEYS_MAX or self._owners_bytes >= OWNER_CACHE_BYTES_MAX:
            self._forget_owners()
        self._owners[key] = found
        self._owners_bytes += len(key)
        return found

    def _forget_owners(self) -> None:
        self._owners.clear()
        self._owners_bytes = 0

    def _search(self, key: bytes) -> ConsumerId | None:
        start = bisect_left(self._hashes, ring_hash(key))
        refused: dict[tuple[bytes, ...], None] = {}  # equal filters are asked once
        for at in range(start - len(self._hashes), start):  # from the key's place once round
            consumer = self._consumers[at]
            filters = self._filters[consumer]
            if filters.globs in refused:
                continue
            if filters.accept(key):
                return consumer
            refused[filters.globs] = None
            if len(refused) == len(self._same):
                break
        return None
