"""Says where a topic is served, and takes this broker's own topics for each opening.

It never takes a topic that is assigned to another broker. A topic that is assigned to none goes to the broker that is
asked for it; a broker that runs alone gets all of them that way. `elsewhere.py` says what follows from the answer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from pydanube.base.errors import DanubeError, NotOwner, TopicNotFound
from pydanube.base.names import TopicName
from pydanube.metadata.tables import BROKERS, TOPICS, KnownBroker, topic_key
from pydanube.ports.catalog import Catalog
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.randomness import Randomness
from pydanube.storage.metadata.table import Edit, Table, edited
from pydanube.storage.stream.assignments import Assignments
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.record import TopicRecord

log = logging.getLogger(__name__)


class Local(NamedTuple):
    """This broker serves the topic, or may take it because no broker owns it."""


class Elsewhere(NamedTuple):
    """Another broker owns the topic."""

    broker: str
    address: str | None  # None if that broker has not said yet where it listens

    def refusal(self, name: TopicName) -> NotOwner:
        return NotOwner(f"{name} is served by {self.address or 'another broker, which is not listening yet'}")


HERE = Local()


class Router:
    """Owned by the broker's loop. `me` is what topics of this broker are assigned to while it lives."""

    def __init__(self, store: MetadataStore, catalog: Catalog, me: Assignment) -> None:
        self.me = me
        self.assignments = Assignments(store)
        self._store = store
        self._catalog = catalog
        self._topics = Table(store, TOPICS)
        self._brokers = Table(store, BROKERS)
        self._openings: dict[str, int] = {}  # how often each topic that exists was opened in this life

    @classmethod
    def of(cls, broker: str, store: MetadataStore, catalog: Catalog, randomness: Randomness) -> Router:
        """The router of a life that begins now. The broker keeps its name in the metadata when it restarts."""
        return cls(store, catalog, Assignment(broker, randomness.bytes(8).hex()))

    async def announce(self, address: str) -> None:
        """Lets other brokers know where clients reach this one."""
        mine = KnownBroker(address)
        try:
            await self._brokers.update(self.me.broker, lambda known: known if known == mine else mine)
        except DanubeError as error:
            log.warning("could not store the address of this broker, %s: %s", address, error)

    # -- where ---------------------------------------------------------------------------------------------------------

    def where(self, record: TopicRecord, name: TopicName) -> Local | Elsewhere:
        """Where the topic or partition is served, as far as is known here."""
        return self._place(self.assignments.get(record.stream(name.partition))[0])

    def local(self, record: TopicRecord) -> Iterator[TopicName]:
        """The partitions that this broker serves."""
        return (name for name in record.partition_names() if self.where(record, name) is HERE)

    def _place(self, owner: Assignment | None) -> Local | Elsewhere:
        if owner is None or owner.broker == self.me.broker:
            return HERE
        known = self._brokers.get(owner.broker)
        return Elsewhere(owner.broker, None if known is None else known.address)

    # -- taking --------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """Takes what an earlier life of this broker owned, before any of it is used: many topics in one transaction. If
        that fails, each topic is taken when it is first used."""
        try:
            await self.assignments.assign_all(self.assignments.of(self.me.broker), self.me)
        except DanubeError as error:
            log.warning("could not take all topics at once, so each is taken when it is used: %s", error)

    async def tenure(self, record: TopicRecord, name: TopicName) -> Tenure:
        """For one opening of the topic or partition; `NotOwner` if another broker owns it. An assignment serves once:
        each further opening gets another one, so that whatever an earlier opening still has on its way is refused."""
        topic = record.stream(name.partition)
        opening = self._openings.get(topic, 0)
        self._openings[topic] = opening + 1
        owner = replace(self.me, opening=opening)
        try:
            await edited(self._store, partial(self._take, record, name, owner), reserve=True)
        except TopicNotFound:
            self._openings.pop(topic, None)  # after `forget`, too: it is never opened again
            raise
        tenure = Tenure(topic, owner, self.assignments.get(topic)[1], self._catalog)
        await tenure.confirm()
        return tenure

    def forget(self, record: TopicRecord) -> None:
        """Called when the topic was deleted: streams of these names are never opened again."""
        for name in record.partition_names():
            self._openings.pop(record.stream(name.partition), None)

    def _take(self, record: TopicRecord, name: TopicName, owner: Assignment, edit: Edit) -> None:
        topic = record.stream(name.partition)
        present = self.assignments.read(edit, topic)
        known = edit.read(self._topics, topic_key(record.name))
        if known is None or known.id != record.id:
            raise TopicNotFound(f"topic {record.name} was deleted")
        place = self._place(present)
        if isinstance(place, Elsewhere):
            raise place.refusal(name)
        if present != owner:
            edit.add(self.assignments.change(topic, owner))
