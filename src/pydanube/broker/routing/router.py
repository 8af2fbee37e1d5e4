"""Says where a topic is served, and takes this broker's own topics for each opening.

It never takes a topic that is assigned to another broker. A topic that is assigned to none goes to the broker that is
asked for it; a broker that runs alone gets all of them that way.
"""

from __future__ import annotations

from functools import partial

from pydanube.base.errors import TopicNotFound
from pydanube.base.ids import Epoch
from pydanube.base.names import TopicName
from pydanube.broker.work.named_locks import NamedLocks
from pydanube.metadata.tables import TOPICS, topic_key
from pydanube.ports.catalog import Catalog
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Edit, Table, edited
from pydanube.storage.stream.assignments import Assignments
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.record import TopicRecord


class Router:
    """Owned by the broker's loop. `me` is what topics of this broker are assigned to while it lives."""

    def __init__(self, store: MetadataStore, catalog: Catalog, me: Assignment) -> None:
        self.me = me
        self._store = store
        self._catalog = catalog
        self._topics = Table(store, TOPICS)
        self._assignments = Assignments(store)
        self._used: dict[str, Epoch] = {}  # the last epoch that each topic was opened with
        self._taking = NamedLocks()

    async def tenure(self, record: TopicRecord, name: TopicName) -> Tenure:
        """For one opening of the topic or partition. The epoch of its assignment serves once: each further opening gets
        a newer one, so whatever an earlier one left on its way is refused."""
        topic = record.stream(name.partition)
        async with self._taking.of(topic):
            await edited(self._store, partial(self._take, record, topic), reserve=True)
            epoch = self._used[topic] = self._assignments.get(topic)[1]
        return Tenure(topic, self.me, epoch, self._catalog)

    def _take(self, record: TopicRecord, topic: str, edit: Edit) -> None:
        owner, epoch = self._assignments.read(edit, topic)
        known = edit.read(self._topics, topic_key(record.name))
        if known is None or known.id != record.id:
            raise TopicNotFound(f"topic {record.name} was deleted")
        if owner != self.me or epoch <= self._used.get(topic, 0):
            edit.add(self._assignments.change(topic, self.me))
