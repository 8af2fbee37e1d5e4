"""Maps keys to partitions, with the same function in all producers, so that a key is always in the same partition.

A topic's record names its function from its creation on. New topics use the one of the public gRPC clients.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import lru_cache

from pydanube.base.checksum import crc32c
from pydanube.base.errors import KeyTooLong
from pydanube.base.limits import KEY_BYTES_MAX, KEY_MEMO_BYTES_MAX, KEY_MEMO_KEYS_MAX

FNV_BASIS, FNV_PRIME, FNV_MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1


def fnv1a64_from(basis: int, data: bytes) -> int:
    """Continues from the hash of the preceding bytes."""
    found = basis
    for byte in data:
        found = (found ^ byte) * FNV_PRIME & FNV_MASK
    return found


@lru_cache(KEY_MEMO_KEYS_MAX)
def _cached_hash(key: bytes) -> int:
    return fnv1a64_from(FNV_BASIS, key)


def fnv1a64(key: bytes) -> int:
    """FNV-1a with 64 bits. It takes about 70 ns per byte, so the hashes of short keys are cached."""
    return _cached_hash(key) if len(key) <= KEY_MEMO_BYTES_MAX else fnv1a64_from(FNV_BASIS, key)


def check_key(key: bytes) -> bytes:
    """Returns the key. Raises if it is too long."""
    if len(key) > KEY_BYTES_MAX:
        raise KeyTooLong(f"a key must have at most {KEY_BYTES_MAX} bytes, got {len(key)}")
    return key


class KeyHash(Enum):
    """The hash that is divided by the number of partitions."""

    FNV1A64 = "fnv1a64"
    CRC32C = "crc32c"  # of topics that were created before there was a choice

    @property
    def function(self) -> Callable[[bytes], int]:
        return fnv1a64 if self is KeyHash.FNV1A64 else crc32c

    def partition(self, key: bytes, partitions: int) -> int:
        return self.function(key) % partitions
