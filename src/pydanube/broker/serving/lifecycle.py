"""Creates, changes and deletes namespaces and topics: first in the directory, then in the open topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydanube.access.principals import Principal
from pydanube.access.rights import Action, Authorise, namespace_resource
from pydanube.base.durability import Durability
from pydanube.base.names import TopicName, parse_topic, parse_whole
from pydanube.broker.directory.directory import Directory
from pydanube.broker.directory.pending_options import PendingOptions
from pydanube.broker.serving.leftovers import Leftovers
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.serving.spreading import Spreading
from pydanube.broker.work.errands import Errands
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord


class Lifecycle:
    """Owned by the broker's loop. A change that has begun is completed even if the caller stops waiting."""

    def __init__(
        self,
        directory: Directory,
        topics: OpenTopics,
        spreading: Spreading,
        pending: PendingOptions,
        leftovers: Leftovers,
        errands: Errands,
        authorise: Authorise,
    ) -> None:
        self.guards: list[Callable[[TopicName], None]] = []  # each raises if the topic must not be deleted now
        self._directory = directory
        self._topics = topics
        self._spreading = spreading
        self._pending = pending
        self._leftovers = leftovers
        self._errands = errands
        self._authorise = authorise

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, principal: Principal, name: str, policies: Mapping[str, Any]) -> None:
        self._authorise(principal, Action.NAMESPACE_CREATE, namespace_resource(name))
        self._topics.check_serving()
        await self._directory.create_namespace(name, policies)

    async def delete_namespace(self, principal: Principal, name: str, *, dry_run: bool = False) -> None:
        self._authorise(principal, Action.NAMESPACE_DELETE, namespace_resource(name))
        self._topics.check_serving()
        if dry_run:
            return self._directory.check_deletable(name)
        await self._errands.run(self._delete_namespace(name))

    async def _delete_namespace(self, name: str) -> None:
        await self._directory.delete_namespace(name)
        self._topics.uncount_namespace(name)

    async def change_namespace(self, principal: Principal, name: str, changes: Mapping[str, Any]) -> Policies:
        """Changes policies; returns those in force afterwards."""
        self._authorise(principal, Action.NAMESPACE_ALTER, namespace_resource(name))
        self._topics.check_serving()
        policies = await self._errands.run(self._change_namespace(name, changes))
        await self._topics.counted(name)
        return policies

    async def _change_namespace(self, name: str, changes: Mapping[str, Any]) -> Policies:
        policies = await self._directory.change_namespace(name, changes)
        self._topics.follow_namespace(name, policies)
        return policies

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        principal: Principal,
        name: str,
        *,
        reliable: bool = True,
        partitions: int = 0,
        durability: Durability = Durability.FSYNC,
        policies: Mapping[str, Any] | None = None,
    ) -> TopicRecord:
        parsed = parse_topic(name)
        self._topics.ask(principal, Action.TOPIC_CREATE, parsed)
        self._topics.check_serving()
        return await self._directory.create_topic(
            parsed, reliable=reliable, partitions=partitions, durability=durability, policies=policies
        )

    async def alter_topic(
        self, principal: Principal, name: str, *, partitions: int | None, policies: Mapping[str, Any]
    ) -> TopicRecord:
        """Adds partitions or changes policies; open topics follow at once."""
        whole = parse_whole(name)
        self._topics.ask(principal, Action.TOPIC_ALTER, whole)
        before, work = self._directory.get(whole), partial(self._alter, whole, partitions=partitions, policies=policies)
        if partitions is None:
            return await self._errands.run(work())
        return await self._spreading.grow(
            before,
            partial(work, with_more=self._spreading.growth_of) if before.reliable else work,
            ask=partial(self._topics.ask, principal, Action.TOPIC_ALTER, whole),
        )

    async def _alter(self, whole: TopicName, **changes: Any) -> TopicRecord:
        try:
            return await self._directory.alter_topic(whole, **changes)
        finally:  # even after an error something may have changed, or another client may have changed it
            self._topics.follow_topic(whole)

    async def delete_topic(self, principal: Principal, name: str, *, dry_run: bool = False) -> None:
        whole = parse_whole(name)
        self._topics.ask(principal, Action.TOPIC_DELETE, whole)
        self._topics.check_serving()
        record = self._directory.get(whole)
        for check in self.guards:
            check(record.name)
        if not dry_run:
            await self._errands.run(self._delete(record))

    async def _delete(self, record: TopicRecord) -> None:
        """Deletes the record first, so that no one opens the topic again; then ends its users and removes its data."""
        gone = await self._pending.dropped_with(record.name)
        record = await self._directory.delete_topic(record.name, [*gone, self._spreading.end_of(record)])
        await self._topics.end(record)
        self._leftovers.add(record)
        await self._leftovers.sweep()
        self._topics.uncount_topic(record)
