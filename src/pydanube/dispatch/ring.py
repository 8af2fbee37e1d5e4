"""Which consumer of a Key-Shared subscription owns a key: a consistent hash ring, and key filters as globs.

Each consumer has points on a ring of 32-bit hashes. A key belongs to the first point at or after its own hash whose
consumer accepts it, so that a consumer that joins or leaves moves only its own share of the keys.
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

POINTS = 100  # per consumer: shares differ by about a tenth
_MASK = 0xFFFF_FFFF
_STAR, _ONE = b"*?"


def ring_hash(data: bytes) -> int:
    """CRC32C, mixed by the finaliser of murmur3, because checksums of similar texts are close to each other."""
    value = crc32c(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & _MASK
    value = (value ^ value >> 13) * 0xC2B2AE35 & _MASK
    return value ^ value >> 16


class Filters:
    """Globs over keys: `*` matches any run of bytes, `?` one byte, anything else itself. No filters accept every key.

    All globs are matched at once, as a bit-parallel automaton: one bit per position in each glob, set if the bytes so
    far can lead there. A key takes one step per byte, however many globs there are.
    """

    __slots__ = ("_any", "_ends", "_masks", "_stars", "_starts", "globs")

    def __init__(self, filters: Sequence[bytes]) -> None:
        if len(filters) > FILTERS_MAX or not all(1 <= len(glob) <= FILTER_BYTES_MAX for glob in filters):
            raise FilterInvalid(f"there are {len(filters)} filters of up to {max(map(len, filters))} bytes")
        self.globs = tuple(sorted(set(filters)))
        self._starts = self._ends = self._stars = self._any = 0
        literal: dict[int, int] = {}
        position = 1
        for glob in self.globs:
            self._starts |= position
            for byte in glob:
                if byte == _STAR:
                    self._stars |= position
                    continue
                if byte == _ONE:
                    self._any |= position
                else:
                    literal[byte] = literal.get(byte, 0) | position
                position <<= 1
            self._ends |= position
            position <<= 1
        self._masks = {byte: mask | self._any for byte, mask in literal.items()}

    def accept(self, key: bytes) -> bool:
        if not self.globs:
            return True
        reached, stars, masks, any_byte = self._starts, self._stars, self._masks, self._any
        accepting = self._ends & stars  # whatever bytes follow
        for byte in key:
            if reached & accepting:
                return True
            reached = (reached & masks.get(byte, any_byte)) << 1 | reached & stars
            if not reached:
                return False
        return bool(reached & self._ends)


def _points(consumer: ConsumerId) -> list[int]:
    """Where the consumer is on the ring, in order."""
    return sorted(ring_hash(b"%d-%d" % (consumer, point)) for point in range(POINTS))


class Ring:
    """Consumers and their filters. The owners of keys are cached until a consumer joins or leaves."""

    def __init__(self) -> None:
        self._hashes: list[int] = []
        self._consumers: list[ConsumerId] = []  # by the same index as the hashes
        self._filters: dict[ConsumerId, Filters] = {}
        self._filter_users: dict[tuple[bytes, ...], int] = {}  # how many consumers have these filters
        self._filter_bytes = 0  # of all distinct sets of filters
        self._owners: dict[bytes, ConsumerId | None] = {}
        self._owners_bytes = 0

    @property
    def key_bytes_at_once(self) -> int:
        """How many bytes of new keys to look up in one turn: more filters make each lookup slower."""
        return KEYS_AT_ONCE_BYTES // (1 + self._filter_bytes // KIB)

    def join(self, consumer: ConsumerId, filters: Filters) -> None:
        more = 0 if filters.globs in self._filter_users else sum(map(len, filters.globs))
        if self._filter_bytes + more > FILTERS_BYTES_MAX:
            raise FilterInvalid(
                f"the consumers of the subscription already have {self._filter_bytes} bytes of distinct key filters; "
                f"the maximum is {FILTERS_BYTES_MAX}"
            )
        self._filter_bytes += more
        self._filter_users[filters.globs] = self._filter_users.get(filters.globs, 0) + 1
        self._forget_owners()
        self._filters[consumer] = filters
        hashes: list[int] = []
        consumers: list[ConsumerId] = []
        begin = 0
        for value in _points(consumer):  # one pass, because each insertion into long lists would move their ends
            at = bisect_left(self._hashes, value, begin)
            while at < len(self._hashes) and self._hashes[at] == value and self._consumers[at] < consumer:
                at += 1  # equal hashes are ordered by id, so that the order of joining does not matter
            hashes += self._hashes[begin:at]
            consumers += self._consumers[begin:at]
            hashes.append(value)
            consumers.append(consumer)
            begin = at
        self._hashes = hashes + self._hashes[begin:]
        self._consumers = consumers + self._consumers[begin:]

    def leave(self, consumer: ConsumerId) -> None:
        self._forget_owners()
        gone = self._filters.pop(consumer, None)
        if gone is not None:
            self._filter_users[gone.globs] -= 1
            if not self._filter_users[gone.globs]:
                del self._filter_users[gone.globs]
                self._filter_bytes -= sum(map(len, gone.globs))
            self._remove(consumer)

    def _remove(self, consumer: ConsumerId) -> None:
        hashes: list[int] = []
        consumers: list[ConsumerId] = []
        begin = 0
        for value in _points(consumer):
            at = self._consumers.index(consumer, bisect_left(self._hashes, value, begin))
            hashes += self._hashes[begin:at]
            consumers += self._consumers[begin:at]
            begin = at + 1
        self._hashes = hashes + self._hashes[begin:]
        self._consumers = consumers + self._consumers[begin:]

    def owner(self, key: bytes) -> ConsumerId | None:
        """The consumer that owns the key, or None if no consumer accepts it."""
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
        refused: dict[tuple[bytes, ...], None] = {}  # each distinct set of filters is tried once
        for at in range(start - len(self._hashes), start):  # once around the ring, from the hash of the key
            consumer = self._consumers[at]
            filters = self._filters[consumer]
            if filters.globs in refused:
                continue
            if filters.accept(key):
                return consumer
            refused[filters.globs] = None
            if len(refused) == len(self._filter_users):
                break
        return None
