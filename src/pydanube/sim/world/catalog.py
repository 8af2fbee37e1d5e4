"""A catalogue that never loses a record, but may answer late, or not at all, even after it has stored a change.

Records are stored by the product's own catalogue, as bytes, and compared with what was stored when they are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from pydanube.base.errors import NodeUnreachable
from pydanube.base.ids import Epoch, LedgerId
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.stream.catalog import MetadataCatalog
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

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        await self._travel()
        found = await self._stored.load(stream)
        assert found[0] == self._record(stream), "a record differs from what was stored"
        return found

    async def store(self, stream: str, record: StreamRecord, version: int, before: StreamRecord) -> int:
        await self._travel()
        current = self._record(stream)
        stored = await self._stored.store(stream, record, version, before)
        assert before == current, "the version belongs to another record"
        if self.watch is not None:
            self.watch(stream, current, record)
        self._records[stream] = record
        await self._travel()
        return stored

    async def delete(self, stream: str, version: int) -> None:
        await self._travel()
        await self._stored.delete(stream, version)
        self._records.pop(stream, None)
        await self._travel()

    async def streams(self) -> list[str]:
        await self._travel()
        return list(self._records)

    def _record(self, stream: str) -> StreamRecord:
        return self._records.get(stream, StreamRecord())

    async def next_ledger_id(self) -> LedgerId:
        await self._travel()
        self._ledgers += 1
        return LedgerId(self._ledgers)

    @property
    def next_ledger(self) -> LedgerId:
        return LedgerId(self._ledgers + 1)

    def owner(self, stream: str) -> Epoch:
        """The epoch of the present owner, without delay or failure."""
        return self._record(stream).owner

    def known(self) -> frozenset[LedgerId]:
        return frozenset(ledger.id for record in self._records.values() for ledger in record.ledgers)

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0002, 0.003))
        if self.unreliable and self._random.random() < self.unreliable:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            raise NodeUnreachable("the catalogue did not answer")
