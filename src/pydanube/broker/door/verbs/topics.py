"""Creates, lists, describes, changes, empties and deletes namespaces and topics.

A call that names a partitioned topic applies to all its partitions; arguments that make sense for a single partition
only, such as an offset, are refused then. If one partition fails, what was done to the others stays done: every call
can be repeated.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Mapping
from typing import Any

from pydanube.access.rights import BROKER, Action, namespace_resource
from pydanube.base.durability import Durability
from pydanube.base.errors import ArgumentInvalid, NamespaceNotFound, TopicClosed, TopicExists, TopicNotFound
from pydanube.base.limits import TOPICS_READ_A_TURN
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory, TopicRecord
from pydanube.broker.directory.topic_changes import Changes
from pydanube.broker.door.stats import TopicStats, only, topic_stats
from pydanube.broker.door.verbs.base import Verbs
from pydanube.broker.limits.policies import Policies
from pydanube.broker.serving.redrive import Redriven, Wanted


class NamespaceVerbs(Verbs):
    __slots__ = ()

    def listed(self) -> list[str]:
        self._ask(Action.NAMESPACE_LIST)
        return self._door.directory.namespaces()

    def policies(self, name: str) -> Policies:
        """The policies in force in the namespace."""
        self._ask(Action.NAMESPACE_DESCRIBE, namespace_resource(name))
        return self._door.directory.policies(name)

    async def create(self, name: str, policies: Mapping[str, Any]) -> None:
        await self._door.lifecycle.create_namespace(self._principal, name, policies)

    async def alter(self, name: str, policies: Mapping[str, Any]) -> Policies:
        """Changes policies; returns those in force afterwards."""
        return await self._door.lifecycle.change_namespace(self._principal, name, policies)

    async def delete(self, name: str, *, dry_run: bool = False) -> None:
        await self._door.lifecycle.delete_namespace(self._principal, name, dry_run=dry_run)


class TopicVerbs(Verbs):
    __slots__ = ()

    async def lookup(
        self,
        name: str,
        *,
        create: bool = False,
        reliable: bool | None = None,
        action: Action = Action.TOPIC_LOOKUP,
    ) -> TopicRecord:
        """The topic of that name, created if allowed. `action` is what the caller is about to do with it."""
        return await self._door.topics.lookup(self._principal, action, name, create=create, reliable=reliable)

    async def prepare(self, name: str, *, reliable: bool) -> None:
        """Makes a topic ready for a producer: a missing partition is created with the topic, or added to it."""
        parsed, may_create = parse_topic(name), self._door.topics.auto_create
        whole, partitions = str(parsed.whole), 0 if parsed.partition is None else parsed.partition + 1
        while True:
            try:
                record = await self.lookup(name, reliable=reliable, action=Action.TOPIC_PUBLISH)
            except TopicNotFound:
                if not may_create:
                    raise
                try:
                    record = await self.create(whole, reliable=reliable, partitions=partitions)
                except TopicExists:
                    continue  # another client created it first
                except NamespaceNotFound as error:
                    raise TopicClosed(str(error)) from error
            if partitions <= record.partitions or not record.partitions or not may_create:
                return
            try:
                await self.alter(whole, partitions=partitions, policies={})
            except ArgumentInvalid:
                continue  # another client added partitions

    async def create(
        self,
        name: str,
        *,
        reliable: bool = True,
        partitions: int = 0,
        durability: Durability = Durability.FSYNC,
        policies: Mapping[str, Any] | None = None,
    ) -> TopicRecord:
        return await self._door.lifecycle.create_topic(
            self._principal,
            name,
            reliable=reliable,
            partitions=partitions,
            durability=durability,
            policies=policies,
        )

    async def alter(self, name: str, *, partitions: int | None, policies: Mapping[str, Any]) -> TopicRecord:
        """Adds partitions or changes policies; open topics follow at once."""
        lifecycle = self._door.lifecycle
        return await lifecycle.alter_topic(self._principal, name, partitions=partitions, policies=policies)

    async def delete(self, name: str, *, dry_run: bool = False) -> None:
        await self._door.lifecycle.delete_topic(self._principal, name, dry_run=dry_run)

    async def listed(self, namespace: str | None, after: str = "", most: int | None = None) -> list[TopicRecord]:
        """The topics of a namespace, or of all, after the topic `after`, sorted by name."""
        self._ask(Action.TOPIC_LIST, BROKER if namespace is None else namespace_resource(namespace))
        return await records_of(self._door.directory, namespace, after, most)

    async def watch(
        self, namespaces: frozenset[str] | None, revision: int | None, seconds: float, *, replaced: Future[None]
    ) -> Changes:
        """Waits for topics that changed after a revision; without a revision, returns the present one.

        `replaced` is done when the caller has asked again and no longer waits for this answer.
        """
        for each in [BROKER] if namespaces is None else [namespace_resource(name) for name in sorted(namespaces)]:
            self._ask(Action.TOPIC_LIST, each)
        return await self._door.topic_changes.after(namespaces, revision, seconds, replaced=replaced)

    async def describe(self, name: str) -> TopicStats:
        places = await self._door.topics.places(self._principal, Action.TOPIC_DESCRIBE, name)
        return topic_stats(places, self._door.tiers, self._door.clock.wall())

    async def truncate(self, name: str, before: int | None = None, *, dry_run: bool = False) -> int:
        """Deletes all present messages, or those below an offset; returns how many. Subscriptions skip them."""
        places = await self._door.topics.places(self._principal, Action.TOPIC_TRUNCATE, name)
        if before is not None:
            only(places, "an offset to delete before")
        topics = [each.reliable for each in places]
        ends = {str(each.name): topic.beginning(before) for each, topic in zip(places, topics, strict=True)}
        messages = sum(max(0, ends[topic.name] - topic.ledger.first) for topic in topics)
        if not dry_run and parse_topic(name).partition is None:
            await self._door.spreading.change(places[0].record, "truncate", {"before": ends})
        elif not dry_run:
            await self._door.errands.run(topics[0].truncate(before))
        return messages

    async def redrive(self, name: str, wanted: Wanted) -> Redriven:
        """Publishes dead letters again; see `Redriver.redrive`."""
        return await self._door.redriver.redrive(self._principal, name, wanted)


async def records_of(directory: Directory, namespace: str | None, after: str, most: int | None) -> list[TopicRecord]:
    """The topics of a namespace, or of all, after the topic `after`; read in slices, because there may be many."""
    found: list[TopicRecord] = []
    while most is None or len(found) < most:
        few = TOPICS_READ_A_TURN if most is None else min(TOPICS_READ_A_TURN, most - len(found))
        if namespace is not None:
            directory.policies(namespace)  # raises if the namespace does not exist
        some = directory.topics(namespace, after, few)
        found += some
        if len(some) < few:
            break
        after = str(some[-1].name)
        await asyncio.sleep(0)
    return found
