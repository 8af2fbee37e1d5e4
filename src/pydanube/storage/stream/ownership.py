"""The ownership of a stream: a new epoch in the catalogue, and then every change of its record by compare-and-set.

It has the record as this owner last stored it, and notices when another broker has taken the stream. It decides nothing
itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pydanube.base.errors import (
    CatalogConflict,
    DanubeError,
    MetadataBusy,
    MetadataFull,
    MetadataInvalid,
    OwnershipLost,
)
from pydanube.base.ids import Epoch, LedgerId
from pydanube.ports.catalog import Catalog
from pydanube.stream.record import StreamRecord

log = logging.getLogger(__name__)
REFUSED = (MetadataFull, MetadataInvalid)  # a limit was reached: nothing was stored, and a retry does not help
Change = Callable[[StreamRecord], StreamRecord]


class Ownership:
    """Created by `Ownership.take`. A change that takes several steps holds the lock `changing`."""

    def __init__(self, name: str, catalog: Catalog, token: str, retry_seconds: float) -> None:
        self.name = name
        self.record = StreamRecord()
        self.changing = asyncio.Lock()
        self._catalog = catalog
        self._token = token
        self._retry_seconds = retry_seconds
        self._version = 0

    @classmethod
    async def take(cls, name: str, catalog: Catalog, token: str, retry_seconds: float) -> Ownership:
        """Becomes the owner in place of any previous one."""
        ownership = cls(name, catalog, token, retry_seconds)
        ownership.record, ownership._version = await catalog.load(name)
        await ownership.renew()
        return ownership

    @property
    def epoch(self) -> Epoch:
        return self.record.owner

    async def renew(self) -> None:
        """Takes a new epoch, under which ledgers of the epoch before can be fenced."""
        await self.store(self.record.taken_over(self._token))

    async def change(self, change: Change) -> StreamRecord:
        """Stores the record that `change` returns, unless it is the same, and returns it."""
        async with self.changing:
            changed = change(self.record)
            if changed != self.record:
                await self.store(changed)
            return self.record

    async def store(self, record: StreamRecord) -> None:
        """Stores a decision for certain, or raises `OwnershipLost`. Asks again if there is no answer.

        An error of `REFUSED` is raised at once: the metadata has no room for the record.
        """
        while True:
            try:
                self._version = await self._catalog.store(self.name, record, self._version, self.record)
                self.record = record
                return
            except REFUSED:
                raise
            except CatalogConflict:
                current, version = await self._load()
                if current.token != self._token and (record.token == self._token or current.owner >= record.owner):
                    raise OwnershipLost(f"epoch {current.owner} owns {self.name}, not {record.owner}") from None
                self.record, self._version = current, version
                if current != record:
                    raise  # an older decision of ours arrived late: decide again from it
                return
            except DanubeError as error:
                log.warning("%s: the catalogue did not answer: %s", self.name, error)
                await asyncio.sleep(self._retry_seconds)

    async def next_ledger_id(self) -> LedgerId:
        while True:
            try:
                return await self._catalog.next_ledger_id()
            except MetadataBusy:  # a retry is enough
                await asyncio.sleep(self._retry_seconds)

    async def _load(self) -> tuple[StreamRecord, int]:
        while True:
            try:
                return await self._catalog.load(self.name)
            except DanubeError:
                await asyncio.sleep(self._retry_seconds)
