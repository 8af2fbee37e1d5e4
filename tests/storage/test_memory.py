"""What batches in memory are counted as is what a process takes for them, however small they are or well compressed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pydanube.base.limits import MIB

BOUND = 16 * MIB
MEASURE = """
import asyncio, gc, sys
from pydanube.adapters.system import SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.errors import NodeBusy
from pydanube.base.ids import Epoch, LedgerId
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.stream.tail import TailCache
from pydanube.wire.batch import Batch, Codec, build

kind, where, bound = sys.argv[1], sys.argv[2], int(sys.argv[3])
columns = {
    "small": dict(payloads=[b"0123456789"]),
    "keyed": dict(payloads=[b"0123456789"] * 3, keys=[b"k", b"l", b"m"]),
    "wide": dict(payloads=[b"0"], keys=[b"k"], event_times=[1], delivery_times=[1], attributes=[{"a": "b"}]),
    "large": dict(payloads=[b"x" * 5000]),
    "packed": dict(payloads=[b"x" * 10_000], codec=Codec.ZSTD),
}[kind]
source = build(publish_time=1_760_000_000_000_000, producer_id=1 << 40, first_sequence=1 << 40, **columns)

def published(offset):
    # As one that came over a socket: nothing of it is shared with another.
    batch = Batch.from_parts(bytes(bytearray(source.stamp)), bytes(bytearray(source.content)))
    batch.check_published()
    return batch.stamped(offset, Epoch(1), 1_760_000_000_000_000 + offset)

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

def fill_cache():
    cache = TailCache(bound)
    tail, offset = cache.tail(), 1 << 40
    for _ in range(6 * bound // 5 // published(offset).memory):
        batch = published(offset)
        tail.add(batch)
        for found in (batch, tail.find(offset)):
            found.plain_section().check()
            list(found.messages())
        offset += batch.count
    return cache, tail

async def fill_node():
    node = MemoryNode(SystemRandomness(), bytes_max=bound)
    await node.create(LedgerId(1), Epoch(1), Durability.BUFFERED)
    offset = 0
    while True:
        batch = published(offset)
        try:
            await node.append(LedgerId(1), Epoch(1), batch, offset - 1)
        except NodeBusy:
            return node
        offset += batch.count

published(1).messages()
before = resident()
kept = fill_cache() if where == "cache" else asyncio.run(fill_node())
print(resident() - before)
"""


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("small", "cache"),
        ("keyed", "cache"),
        ("wide", "cache"),
        ("large", "cache"),
        ("packed", "cache"),
        ("small", "node"),
    ],
)
def test_what_batches_are_counted_as_is_what_they_take(kind: str, where: str) -> None:
    command = [sys.executable, "-c", MEASURE, kind, where, str(BOUND)]
    grown = int(subprocess.run(command, check=True, capture_output=True, timeout=200).stdout)
    assert BOUND / 2 < grown < 1.25 * BOUND
