"""Helpers for tests of storage nodes: distinct batches, and expected errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, EntryMissing
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.ports.storage import LedgerStatus, StorageNode
from pydanube.wire.batch import Batch, build

LEDGER, OTHER = LedgerId(7), LedgerId(8)
MAKER, FENCER, LATER = Epoch(3), Epoch(5), Epoch(9)
PLENTY = 1 << 20  # bytes; more than any of these tests reads


def batch_at(offset: int, count: int = 1, *, epoch: int = MAKER, text: str = "payload") -> Batch:
    """A stamped batch of `count` messages, starting at `offset`. The same arguments give the same bytes."""
    payloads = [f"{text} {number}".encode() for number in range(offset, offset + count)]
    return build(payloads, publish_time=1_700_000_000_000_000).stamped(offset, epoch, 1_700_000_000_000_000)


async def refused(kind: type[DanubeError], answer: Awaitable[object]) -> None:
    """Asserts that the call raises this error."""
    try:
        value = await answer
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was expected, but the answer was {value!r}")


async def create(node: StorageNode, *ledgers: LedgerId, durability: Durability = Durability.FSYNC) -> None:
    for ledger in ledgers or (LEDGER,):
        await node.create(ledger, MAKER, durability)


async def append(
    node: StorageNode, *batches: Batch, ledger: LedgerId = LEDGER, epoch: Epoch = MAKER, confirmed: int = NO_OFFSET
) -> None:
    """Appends all batches concurrently, as a writer does."""
    await asyncio.gather(*(node.append(ledger, epoch, batch, confirmed) for batch in batches))


async def read_all(node: StorageNode, ledger: LedgerId = LEDGER, offset: int = 0) -> Sequence[Batch]:
    """Reads up to the first gap. An answer may have fewer batches than there are, but at least one."""
    found: list[Batch] = list(await node.read(ledger, offset, PLENTY))
    while True:
        try:
            more = await node.read(ledger, found[-1].last_offset + 1, PLENTY)
        except EntryMissing:
            return found
        assert more, "a read gives at least one batch, or EntryMissing"
        found += more


async def status(node: StorageNode, ledger: LedgerId = LEDGER) -> LedgerStatus:
    (found,) = [each for each in await node.list() if each.ledger == ledger]
    return found


async def holds(node: StorageNode, batch: Batch) -> bool:
    """Whether the node has exactly this batch at its offset."""
    try:
        return await node.read(LEDGER, batch.base_offset, 1) == [batch]
    except EntryMissing:
        return False
