"""A catalogue that never loses a record, but may answer late, or not at all after having done what was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from pydanube.base.errors import CatalogConflict, NodeUnreachable
from pydanube.base.ids import Epoch, LedgerId
from pydanube.ledger.catalog import StreamRecord


class SimCatalog:
    """Shared by all processes of a world; outlives them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._records: dict[str, tuple[StreamRecord, int]] = {}
        self._versions = 0  # given so far: none comes twice, also where a record was deleted and made again
        self._ledgers = 0
        self.unreliable = 0.0  # the chance that an answer is lost
        self.watch: Callable[[str, StreamRecord, StreamRecord], None] | None = None  # sees each change as it happens

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        await self._travel()
        return self._records.get(stream, (StreamRecord(), 0))

    async def store(self, stream: str, record: StreamRecord, version: int) -> int:
        await self._travel()
        self._check(stream, version)
        self._versions += 1
        stored = self._versions
        if self.watch is not None:
            self.watch(stream, self._records.get(stream, (StreamRecord(), 0))[0], record)
        self._records[stream] = (record, stored)
        await self._travel()
        return stored

    async def delete(self, stream: str, version: int) -> None:
        await self._travel()
        self._check(stream, version)
        self._records.pop(stream, None)
        await self._travel()

    async def streams(self) -> list[str]:
        await self._travel()
        return list(self._records)

    def _check(self, stream: str, version: int) -> None:
        _, current = self._records.get(stream, (StreamRecord(), 0))
        if current != version:
            raise CatalogConflict(f"{stream} has version {current}, not {version}")

    async def next_ledger_id(self) -> LedgerId:
        await self._travel()
        self._ledgers += 1
        return LedgerId(self._ledgers)

    @property
    def next_ledger(self) -> LedgerId:
        return LedgerId(self._ledgers + 1)

    def owner(self, stream: str) -> Epoch:
        """The truth, for whoever watches the world."""
        return self._records.get(stream, (StreamRecord(), 0))[0].owner

    def known(self) -> frozenset[LedgerId]:
        return frozenset(ledger.id for record, _ in self._records.values() for ledger in record.ledgers)

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0002, 0.003))
        if self.unreliable and self._random.random() < self.unreliable:
            await asyncio.sleep(self._random.uniform(0.05, 1.0))
            raise NodeUnreachable("the catalogue did not answer")
