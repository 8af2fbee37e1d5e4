"""Ids that survive a restart: each is derived from the names of what it identifies, so a client's old id stays valid.

Clients keep an id as long as they run, and some never ask for a new one.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

NUMBER_ATTRIBUTE = "x-danube-producer-id"  # for producers whose id does not follow from the name


@lru_cache(maxsize=4096)
def producer_id(topic: str, name: str, *, reliable: bool, exclusive: bool = False) -> int:
    """The id includes what the producer was promised: whether its messages are stored, and whether it is exclusive."""
    kept = "producer" if reliable else "best-effort producer"
    return _number(f"exclusive {kept}" if exclusive else kept, topic, name)


def consumer_id(topic: str, subscription: str, name: str) -> int:
    return _number("consumer", topic, subscription, name)


def _number(*names: str) -> int:
    """A number of 64 bits that is not 0. Names have no zero bytes, so different lists of names never look the same."""
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
