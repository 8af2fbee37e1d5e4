"""The broker's directory: the namespaces and topics that exist, with their policies, in the metadata store.

Every change is one transaction, decided again after a conflict; a read returns the newest applied state. Only this
module uses names as keys. Everything else is stored under the number of its topic, which is never used again, so a
topic that is created under the name of a deleted one has none of its data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    LimitReached,
    NameInvalid,
    NamespaceExists,
    NamespaceNotEmpty,
    NamespaceNotFound,
    RequestInvalid,
    TopicExists,
    TopicLimitReached,
    TopicNotFound,
)
from pydanube.base.limits import METADATA_OPERATIONS_MAX, NAMESPACES_MAX, PARTITIONS_MAX
from pydanube.base.names import DEFAULT_NAMESPACE, TopicName, check_namespace
from pydanube.base.wording import many
from pydanube.metadata.records import RequestedChange
from pydanube.metadata.tables import NAMESPACES, TOPIC_IDS, TOPICS, TURNS, topic_key
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Edit, Table, edited
from pydanube.storage.stream.assignments import Assignments
from pydanube.stream.assignment import Assignment
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord

SYSTEM_NAMESPACE = "system"
IDS_AT_ONCE = 1_000  # reserved in one transaction
OPERATIONS_BESIDE = 4  # that are added to a transaction after those of assignments


class Directory:
    """The namespaces and topics of one metadata store."""

    def __init__(self, store: MetadataStore) -> None:
        self.store = store
        self._namespaces = Table(store, NAMESPACES)
        self._topics = Table(store, TOPICS)
        self._turns = Table(store, TURNS)
        self._reserved = Table(store, TOPIC_IDS)
        self._assignments = Assignments(store)
        self.owner: Assignment | None = None  # of new topics; without one, they are assigned when they are first used
        self._ids = range(0)  # reserved for topics that are not created yet
        self._reserving = asyncio.Lock()

    async def prepare(self) -> None:
        """Creates the namespaces `default` and `system` if they do not exist yet."""
        for name in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
            await self._namespaces.update(name, lambda known: Policies() if known is None else known)

    # -- namespaces ----------------------------------------------------------------------------------------------------

    def namespaces(self) -> list[str]:
        return self._namespaces.keys()

    def policies(self, namespace: str) -> Policies:
        return _existing(namespace, self._namespaces.get(namespace))

    async def create_namespace(self, name: str, policies: Mapping[str, Any]) -> None:
        check_namespace(name)
        created = Policies().changed(policies)

        def create(known: Policies | None) -> Policies:
            if known is not None:
                raise NamespaceExists(f"namespace {name} already exists")
            if self._namespaces.count() >= NAMESPACES_MAX:
                raise LimitReached(f"{NAMESPACES_MAX} namespaces")
            return created

        await self._namespaces.update(name, create)

    async def change_namespace(self, name: str, policies: Mapping[str, Any]) -> Policies:
        changed = await self._namespaces.update(name, lambda known: _existing(name, known).changed(policies))
        assert changed is not None
        return changed

    def check_deletable(self, name: str) -> None:
        self.policies(name)
        if name in (DEFAULT_NAMESPACE, SYSTEM_NAMESPACE):
            raise RequestInvalid(f"namespace {name} is built in and cannot be deleted")
        if topics := self.topic_count(name):
            raise NamespaceNotEmpty(f"namespace {name} still has topics: {topics}")

    async def delete_namespace(self, name: str) -> None:
        """A topic that is created in it at the same time makes this fail, or fails itself, whichever comes second."""

        def delete(edit: Edit) -> None:
            self.check_deletable(name)
            edit.read(self._namespaces, name)
            edit.require_none(self._topics, f"{name}/")
            edit.add(self._namespaces.put(name, None))
            if self._turns.version(name):
                edit.add(self._turns.put(name, None))

        await edited(self.store, delete)

    # -- topics --------------------------------------------------------------------------------------------------------

    def topics(self, namespace: str | None, after: str = "", limit: int | None = None) -> list[TopicRecord]:
        """Topics by name, from the first one behind `after`, which need not exist. None stands for all namespaces."""
        start = "" if namespace is None else f"{namespace}/"
        return [row.record for row in self._topics.scan(start, after=after[1:], limit=limit)]

    def topic_count(self, namespace: str) -> int:
        return self._topics.count(f"{namespace}/")

    def everything(self) -> Iterator[TopicRecord]:
        """All topics of all namespaces, read lazily because there may be many."""
        return (row.record for row in self._topics.scan())

    def ids(self) -> frozenset[int]:
        """The numbers of all topics."""
        return frozenset(record.id for record in self.everything())

    def find(self, name: TopicName) -> TopicRecord | None:
        return self._topics.get(topic_key(name))

    def get(self, name: TopicName) -> TopicRecord:
        return _found(name, self.find(name))

    async def create_topic(
        self,
        name: TopicName,
        *,
        reliable: bool = True,
        partitions: int = 0,
        durability: Durability = Durability.FSYNC,
        policies: Mapping[str, Any] | None = None,
        dead_letters: bool = False,
    ) -> TopicRecord:
        """Creates a topic of exactly this name. Raises `TopicExists` if another call was faster."""
        if name.partition is not None:
            raise NameInvalid(f"{name} is the name of a partition; create {name.whole} with partitions instead")
        if not 0 <= partitions <= PARTITIONS_MAX:
            raise ArgumentInvalid(f"a topic can have 0 to {PARTITIONS_MAX} partitions, not {partitions}")
        own = Policies().changed(policies or {})
        own.check_topic(name, reliable=reliable)
        number = await self._new_id()
        record = TopicRecord(name, number, reliable, partitions, durability, own, dead_letters=dead_letters)

        def create(edit: Edit) -> TopicRecord:
            if edit.read(self._topics, topic_key(name)) is not None:
                raise TopicExists(f"topic {name} already exists")
            limit = _existing(name.namespace, edit.read(self._namespaces, name.namespace)).topics_max
            edit.add(self._topics.put(topic_key(name), record))
            if self.owner is not None:
                self._assign(edit, record, self.owner)
            if limit is not None:  # one topic at a time, so that two calls cannot both create the last one
                if self.topic_count(name.namespace) >= limit:
                    raise TopicLimitReached(
                        f"namespace {name.namespace} has reached its limit of {many(limit, 'topic')}"
                    )
                edit.read(self._turns, name.namespace)
                edit.add(self._turns.put(name.namespace, number))
            return record

        return await edited(self.store, create)

    def _assign(self, edit: Edit, record: TopicRecord, owner: Assignment | None) -> None:
        """Assigns as many partitions as fit the transaction: others are assigned when they are first used, and taken
        from their owners when they are removed."""
        room = METADATA_OPERATIONS_MAX - OPERATIONS_BESIDE - len(edit.checks) - len(edit.changes)
        topics = [record.stream(name.partition) for name in record.partition_names()[: max(0, room)]]
        edit.add(*(self._assignments.change(topic, owner) for topic in topics))

    async def _new_id(self) -> int:
        """A number that no topic has ever had. Numbers are reserved in blocks; what is left at a stop is never used."""
        async with self._reserving:
            if not self._ids:
                end = await self._reserved.update("", lambda used: (used or 0) + IDS_AT_ONCE)
                assert end is not None
                self._ids = range(end - IDS_AT_ONCE + 1, end + 1)
            number, self._ids = self._ids[0], self._ids[1:]
            return number

    async def alter_topic(
        self,
        name: TopicName,
        *,
        partitions: int | None = None,
        policies: Mapping[str, Any] | None = None,
        with_more: Callable[[TopicRecord], RequestedChange] | None = None,
    ) -> TopicRecord:
        """Changes policies or adds partitions, which are never removed (§18).

        If partitions are added, the change that `with_more` returns for the old record joins the transaction.
        """

        def alter(edit: Edit) -> TopicRecord:
            record = _found(name, edit.read(self._topics, topic_key(name)))
            changed = replace(record, policies=record.policies.changed(policies or {}))
            changed.policies.check_topic(name, reliable=record.reliable)
            if partitions is not None:
                if not record.partitions:
                    raise ArgumentInvalid(f"{name} was created without partitions, so none can be added")
                if not record.partitions <= partitions <= PARTITIONS_MAX:
                    bounds = f"{record.partitions}, as now, to {PARTITIONS_MAX}"
                    raise ArgumentInvalid(f"{name} can have {bounds} partitions, not {partitions}")
                changed = replace(changed, partitions=partitions)
            edit.add(self._topics.put(topic_key(name), changed))
            if with_more is not None and changed.partitions > record.partitions:
                edit.add(with_more(record))
            return changed

        return await edited(self.store, alter)

    async def delete_topic(self, name: TopicName, extra: Sequence[RequestedChange] = ()) -> TopicRecord:
        """Deletes the record; `extra` changes join the transaction."""

        def delete(edit: Edit) -> TopicRecord:
            record = _found(name, edit.read(self._topics, topic_key(name)))
            edit.add(self._topics.put(topic_key(name), None), *extra)
            self._assign(edit, record, None)  # its owner can change no record of it any more
            return record

        return await edited(self.store, delete)

    async def settled(self) -> None:
        """Waits until all changes made so far can be read."""
        await self.store.barrier()


def _existing(name: str, policies: Policies | None) -> Policies:
    if policies is None:
        raise NamespaceNotFound(f"namespace {name} does not exist")
    return policies


def _found(name: TopicName, record: TopicRecord | None) -> TopicRecord:
    if record is None:
        raise TopicNotFound(f"topic {name} does not exist")
    return record
