"""A catalogue that never loses a record, but may answer late, or not at all, even after it has stored a change.

Records are stored by the product's own catalogue, as bytes, and compared with what was stored when they are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

from pydanube.base.errors import NodeUnreachable
from pydanube.base.ids import Epoch, LedgerId
from pydanube.ports.catalog import RecordChange
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.stream.assignment import Assignment, Held
from pydanube.stream.record import StreamRecord


class SimCatalog:
    """Shared by all processes of a world, and outlives them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._stored = MetadataCatalog(MemoryMetadata())
        self._records: dict[str, StreamRecord] = {}  # as they were given to `store`
        self._ledgers = 0
        self.unreliable = 0.0  # the probability that an answer is lost
        self.watch: Callable[[str, StreamRecord, StreamRecord], None] | None = None  # called with each change
        self.released: Callable[[str], None] | None = None  # called with each topic that is taken from its last owner

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        await self._travel()
        found = await self._stored.load(stream)
        assert found[0] == self._record(stream), "a record differs from what was stored"
        return found

    async def store(self, changes: Sequence[RecordChange], held: Held | None) -> int:
        await self._travel()
        current = [self._record(each.stream) for each in changes]
        stored = await self._stored.store(changes, held)
        for each, before in zip(changes, current, strict=True):
            assert each.before == before, "the version belongs to another record"
            if self.watch is not None:
                self.watch(each.stream, before, each.record)
            self._records[each.stream] = each.record
        await self._travel()
        return stored

    async def assignment(self, topic: str) -> tuple[Assignment | None, Epoch]:
        await self._travel()
        return await self._stored.assignment(topic)

    async def assign(self, held: Held, owner: Assignment | None) -> Epoch:
        await self._travel()
        epoch = await self._stored.assign(held, owner)
        if owner is None and self.released is not None:
            self.released(held.topic)
        await self._travel()
        return epoch

    async def delete(self, stream: str, version: int) -> None:
        await self._travel()
        await self._stored.delete(stream, version)
        self._records.pop(stream, None)
        await self._travel()

    async def streams(self) -> list[str]:
        await self._travel()
        return await self._stored.streams()

    def _record(self, stream: str) -> StreamRecord:
        return self._records.get(stream, StreamRecord())

    async def next_ledger_id(self) -> LedgerId:
        await self._travel()
        self._ledgers += 1
        return LedgerId(self._ledgers)

    @property
    def next_ledger(self) -> LedgerId:
        return LedgerId(self._ledgers + 1)

    def owner(self, topic: str) -> Epoch:
        """The epoch of the present owner, without delay or failure."""
        return self._stored.assignments.get(topic)[1]

    def known(self) -> frozenset[LedgerId]:
        return frozenset(ledger.id for record in self._records.values() for ledger in record.ledgers)

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0002, 0.003))
        if self.unreliable and self._random.random() < self.unreliable:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            raise NodeUnreachable("the catalogue did not answer")
