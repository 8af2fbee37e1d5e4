"""Which broker owns which topic, in the metadata store. The revision of the assigning transaction is the epoch (§40).

Only this module writes assignments. The next change that the previous owner makes to a stream's record is refused,
because every such change checks the assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice

from pydanube.base.ids import Epoch
from pydanube.base.limits import METADATA_OPERATIONS_MAX
from pydanube.metadata.records import Check, RequestedChange
from pydanube.metadata.tables import ASSIGNMENTS
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Edit, Table, TableWatch
from pydanube.stream.assignment import NOT_ASSIGNED, Assignment, Held

TRANSACTIONS_AT_ONCE = 16  # they become durable together


class Assignments:
    """The assignments of one store."""

    def __init__(self, store: MetadataStore) -> None:
        self._table = Table(store, ASSIGNMENTS)

    def get(self, topic: str) -> tuple[Assignment | None, Epoch]:
        """Whom the topic is assigned to, and with which epoch."""
        row = self._table.row(topic)
        return (None, NOT_ASSIGNED) if row is None else (row.record, Epoch(row.version))

    def read(self, edit: Edit, topic: str) -> Assignment | None:
        """Whom it is assigned to, as part of a transaction."""
        return edit.read(self._table, topic)

    def of(self, broker: str) -> Iterator[str]:
        """The topics that are assigned to this broker now."""
        return (row.key for row in self._table.scan() if row.record.broker == broker)

    def topics(self) -> list[str]:
        return self._table.keys()

    def watch(self) -> TableWatch[Assignment]:
        return self._table.watch()

    def check(self, held: Held) -> Check:
        """The condition of a transaction that the topic is assigned like this."""
        return self._table.at(held.topic, held.epoch)

    def change(self, topic: str, owner: Assignment | None) -> RequestedChange:
        """The part of a transaction that assigns the topic, or takes it from its owner."""
        return self._table.put(topic, owner)

    async def assign(self, held: Held, owner: Assignment | None) -> Epoch:
        """Assigns the topic if it is still assigned like `held`; `MetadataConflict` if not. Returns the epoch."""
        return Epoch(await self._table.replace(held.topic, held.epoch, owner, reserve=True))

    async def assign_all(self, topics: Iterable[str], owner: Assignment) -> int:
        """Assigns all of them, in place of any previous owner, in as few transactions as possible; returns how many
        those were. Only while nothing else changes assignments and no topic is deleted."""
        store, count, left = self._table.store, 0, iter(topics)
        while waiting := [
            store.transact((), [self.change(topic, owner) for topic in part], reserve=True)
            for part in islice(_parts(left), TRANSACTIONS_AT_ONCE)
        ]:
            count += len(await asyncio.gather(*waiting))
        return count


def _parts(topics: Iterator[str]) -> Iterator[list[str]]:
    while part := list(islice(topics, METADATA_OPERATIONS_MAX)):
        yield part
