"""Says where a topic is served, and takes this broker's own topics for each opening.

It never takes a topic that is assigned to another broker. A topic that is assigned to none goes to the broker that is
asked for it; a broker that runs alone gets all of them that way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from pydanube.base.errors import DanubeError, TopicNotFound
from pydanube.base.names import TopicName
from pydanube.metadata.tables import TOPICS, topic_key
from pydanube.ports.catalog import Catalog
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Edit, Table, edited
from pydanube.storage.stream.assignments import Assignments
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.record import TopicRecord

log = logging.getLogger(__name__)


class Router:
    """Owned by the broker's loop. `me` is what topics of this broker are assigned to while it lives."""

    def __init__(self, store: MetadataStore, catalog: Catalog, me: Assignment) -> None:
        self.me = me
        self._store = store
        self._catalog = catalog
        self._topics = Table(store, TOPICS)
        self._assignments = Assignments(store)
        self._openings: dict[str, int] = {}  # how often each topic was opened since this broker started

    async def tenure(self, record: TopicRecord, name: TopicName) -> Tenure:
        """For one opening of the topic or partition. An assignment serves once: each further opening gets another one,
        so that whatever an earlier opening still has on its way is refused."""
        topic = record.stream(name.partition)
        opening = self._openings.get(topic, 0)
        self._openings[topic] = opening + 1
        owner = replace(self.me, opening=opening)
        await edited(self._store, partial(self._take, record, topic, owner), reserve=True)
        tenure = Tenure(topic, owner, self._assignments.get(topic)[1], self._catalog)
        await tenure.confirm()
        return tenure

    async def begin(self, records: Iterable[TopicRecord]) -> None:
        """Takes what an earlier life of this broker owned, and what no broker owns, before anyone uses it: many topics
        in one transaction. What fails is taken topic by topic when it is first used."""
        names = ((record, name) for record in records for name in record.partition_names())
        topics = (record.stream(name.partition) for record, name in names)
        try:
            await self._assignments.assign_all((topic for topic in topics if self._is_mine(topic)), self.me)
        except DanubeError as error:
            log.warning("could not take all topics at once, so each is taken when it is used: %s", error)

    def _is_mine(self, topic: str) -> bool:
        owner, _ = self._assignments.get(topic)
        return owner is None or owner.broker == self.me.broker

    def _take(self, record: TopicRecord, topic: str, owner: Assignment, edit: Edit) -> None:
        present = self._assignments.read(edit, topic)
        known = edit.read(self._topics, topic_key(record.name))
        if known is None or known.id != record.id:
            raise TopicNotFound(f"topic {record.name} was deleted")
        if present != owner:
            edit.add(self._assignments.change(topic, owner))
