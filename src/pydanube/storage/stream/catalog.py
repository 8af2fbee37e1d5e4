"""The catalogue of streams in the metadata store: a row per stream and per page of ledgers, and one for ledger numbers.

Decides nothing about a record; `stream/stored.py` has its format. A page is written and deleted only together with its
stream's row, so the version of that row guards all of them. Ledger numbers are taken in blocks, so that a new ledger
costs one write; the rest of a block is never used when the process ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager

from pydanube.base.errors import CatalogConflict, MetadataConflict
from pydanube.base.ids import Epoch, LedgerId
from pydanube.base.limits import LEDGER_ID_BLOCK
from pydanube.metadata.records import RequestedChange
from pydanube.metadata.tables import LEDGER_IDS, PAGES, STREAMS, page_key, pages_of
from pydanube.ports.catalog import RecordChange
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Row, Table
from pydanube.storage.stream.assignments import Assignments
from pydanube.stream.assignment import Assignment, Held
from pydanube.stream.ledgers import LedgerPage, Ledgers
from pydanube.stream.record import StreamRecord
from pydanube.stream.stored import StoredStream

PAGES_A_TURN = 4  # decoded in one turn of the loop, which takes a few milliseconds
_FIRST_LEDGER = 1


class MetadataCatalog:
    """A `Catalog`. Several may share a store: every change is a compare-and-set."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._streams = Table(store, STREAMS)
        self._pages = Table(store, PAGES)
        self._reserved = Table(store, LEDGER_IDS)
        self.assignments = Assignments(store)
        self._next = self._block_end = 0  # numbers that this catalogue may assign
        self._taking = asyncio.Lock()

    async def load(self, stream: str) -> tuple[StreamRecord, int]:
        row = self._streams.row(stream)
        if row is None:
            return StreamRecord(), 0
        pages = list[LedgerPage]()
        for page in self._pages.scan(pages_of(stream)):  # found before the first await, so all are of one version
            if pages and not len(pages) % PAGES_A_TURN:
                await asyncio.sleep(0)
            pages.append(page.record)
        return row.record.whole(stream, pages), row.version

    async def store(self, changes: Sequence[RecordChange], held: Held | None) -> int:
        checks = [self._streams.at(each.stream, each.version) for each in changes]
        if held is not None:
            checks.append(self.assignments.check(held))
        wanted = [self._streams.put(each.stream, StoredStream.of(each.record)) for each in changes]
        for each in changes:
            wanted += self._page_changes(each.stream, each.before.ledgers, each.record.ledgers)
        async with self._conflicts():
            return await self._store.transact(checks, wanted, reserve=True)

    async def delete(self, stream: str, version: int) -> None:
        pages = [self._pages.put(key, None) for key in self._pages.keys(pages_of(stream))]
        async with self._conflicts():
            await self._store.transact([self._streams.at(stream, version)], [self._streams.put(stream, None), *pages])

    async def assignment(self, topic: str) -> tuple[Assignment | None, Epoch]:
        return self.assignments.get(topic)

    async def assign(self, held: Held, owner: Assignment | None) -> Epoch:
        async with self._conflicts():
            return await self.assignments.assign(held, owner)

    @asynccontextmanager
    async def _conflicts(self) -> AsyncIterator[None]:
        try:
            yield
        except MetadataConflict as error:
            await self._store.barrier()  # so that a load shows the change that was faster
            raise CatalogConflict(str(error)) from error

    def _page_changes(self, stream: str, before: Ledgers, after: Ledgers) -> Iterator[RequestedChange]:
        """The changes that turn the stored pages of `before` into those of `after`."""
        if before.pages is after.pages:
            return
        old = {page.number: page for page in before.pages}
        for page in after.pages:
            if old.pop(page.number, None) != page:
                yield self._pages.put(page_key(stream, page.number), page)
        for number in old:
            yield self._pages.put(page_key(stream, number), None)

    async def streams(self) -> list[str]:
        return sorted({*self._streams.keys(), *self.assignments.topics()})

    async def next_ledger_id(self) -> LedgerId:
        async with self._taking:
            if self._next == self._block_end:
                end = await self._reserved.update("", lambda first: (first or _FIRST_LEDGER) + LEDGER_ID_BLOCK)
                assert end is not None
                self._next, self._block_end = end - LEDGER_ID_BLOCK, end
            self._next += 1
            return LedgerId(self._next - 1)

    @property
    def next_ledger(self) -> LedgerId:
        """No ledger has this number or a higher one, unless another catalogue assigns numbers."""
        if self._next < self._block_end:
            return LedgerId(self._next)
        return LedgerId(self._reserved.get() or _FIRST_LEDGER)

    def known(self) -> frozenset[LedgerId]:
        """Every ledger of every stream."""
        return frozenset(ledger.id for row in self._streams.scan() for ledger in self._whole(row).ledgers)

    def newest_time(self) -> int:
        """The append time of the newest message in a sealed ledger; 0 if there is none."""
        return max((row.record.record.newest for row in self._streams.scan()), default=0)

    def uses_objects(self) -> bool:
        """Whether any stream has a part in object storage."""
        return any(row.record.record.cold.entries for row in self._streams.scan())

    def _whole(self, row: Row[StoredStream]) -> StreamRecord:
        return row.record.whole(row.key, [page.record for page in self._pages.scan(pages_of(row.key))])
