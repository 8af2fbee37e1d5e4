"""Ids that outlive a restart: each derives from the names of what it stands for, so a client's old id stays right.

Clients keep an id for as long as they live, and some never ask for a new one.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

NUMBER_ATTRIBUTE = "x-danube-producer-id"  # of a message whose producer's id does not follow from its name


@lru_cache(maxsize=4096)
def producer_id(topic: str, name: str, *, reliable: bool, exclusive: bool = False) -> int:
    """It tells what was promised to the producer: whether its messages are kept, and whether it is alone."""
    kept = "producer" if reliable else "best-effort producer"
    return _number(f"exclusive {kept}" if exclusive else kept, topic, name)


def consumer_id(topic: str, subscription: str, name: str) -> int:
    return _number("consumer", topic, subscription, name)


def _number(*names: str) -> int:
    """Of 64 bits, and not 0. Names have no zero bytes, so no two lists of them look alike."""
    digest = blake2b("\0".join(names).encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
