"""Which broker owns which topic, in the metadata store. The revision of the assigning transaction is the epoch (§40).

Only this module writes assignments. An owner that loses one is told by nobody: its next change of a stream's record is
refused, because every such change checks the assignment.
"""

from __future__ import annotations

from pydanube.base.ids import Epoch
from pydanube.metadata.records import Check, RequestedChange
from pydanube.metadata.tables import ASSIGNMENTS
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Edit, Table
from pydanube.stream.assignment import NOT_ASSIGNED, Assignment, Held


class Assignments:
    """The assignments of one store."""

    def __init__(self, store: MetadataStore) -> None:
        self._table = Table(store, ASSIGNMENTS)

    def get(self, topic: str) -> tuple[Assignment | None, Epoch]:
        """Whom the topic is assigned to, and with which epoch."""
        row = self._table.row(topic)
        return (None, NOT_ASSIGNED) if row is None else (row.record, Epoch(row.version))

    def read(self, edit: Edit, topic: str) -> tuple[Assignment | None, Epoch]:
        """The same, as part of a transaction."""
        edit.read(self._table, topic)
        return self.get(topic)

    def topics(self) -> list[str]:
        return self._table.keys()

    def check(self, held: Held) -> Check:
        """The condition of a transaction that the topic is assigned like this."""
        return self._table.at(held.topic, held.epoch)

    def change(self, topic: str, owner: Assignment | None) -> RequestedChange:
        """The part of a transaction that assigns the topic, or takes it from its owner."""
        return self._table.put(topic, owner)

    async def assign(self, held: Held, owner: Assignment | None) -> Epoch:
        """Assigns the topic if it is still assigned like `held`; `MetadataConflict` if not. Returns the epoch."""
        return Epoch(await self._table.replace(held.topic, held.epoch, owner, reserve=True))
