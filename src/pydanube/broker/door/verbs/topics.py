"""Creates, lists, describes, changes, empties and deletes namespaces and topics.

A call that names a partitioned topic applies to all its partitions; arguments that make sense for a single partition
only, such as an offset, are refused then. If one partition fails, what was done to the others stays done: every call
can be repeated.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from functools import partial
from typing import ClassVar

from msgspec import UNSET

from pydanube.access.rights import BROKER, Action, namespace_resource
from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    NamespaceNotFound,
    TopicClosed,
    TopicExists,
    TopicNotFound,
)
from pydanube.base.limits import LISTED_MAX, NEWS_SECONDS_MAX, TOPICS_READ_A_TURN
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.directory.topic_changes import Changes
from pydanube.broker.door.stats import describe_topic, only, topic_answer
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.broker.routing.router import Elsewhere
from pydanube.broker.serving.redrive import Wanted
from pydanube.operations.namespaces import (
    AlterNamespace,
    CreateNamespace,
    DeleteNamespace,
    DescribeNamespace,
    ListNamespaces,
    Namespace,
    NamespacePolicies,
    Namespaces,
)
from pydanube.operations.operation import Done
from pydanube.operations.topics import (
    AlterTopic,
    AwaitMessages,
    Bounds,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    FindOffset,
    FindTopic,
    FoundOffset,
    GetBounds,
    ListAllTopics,
    ListTopics,
    Redrive,
    Redriven,
    Refusal,
    Topic,
    TopicDescription,
    Topics,
    Truncated,
    TruncateTopic,
)
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord


class NamespaceVerbs(Verbs):
    __slots__ = ()

    def listed(self) -> list[str]:
        self._ask(Action.NAMESPACE_LIST)
        return self._door.directory.namespaces()

    def policies(self, name: str) -> Policies:
        """The policies in force in the namespace."""
        self._ask(Action.NAMESPACE_DESCRIBE, namespace_resource(name))
        return self._door.directory.policies(name)

    async def list_page(self, request: ListNamespaces) -> Namespaces:
        return Namespaces(*page([name for name in self.listed() if name > request.after], request.limit))

    async def describe(self, request: DescribeNamespace) -> Namespace:
        return Namespace(request.namespace, self.policies(request.namespace))

    async def create(self, request: CreateNamespace) -> Done:
        await self._door.lifecycle.create_namespace(self._principal, request.namespace, request.policies.given())
        return Done()

    async def alter(self, request: AlterNamespace) -> NamespacePolicies:
        """Changes policies; answers with those in force afterwards."""
        lifecycle = self._door.lifecycle
        policies = await lifecycle.change_namespace(self._principal, request.namespace, request.policies.given())
        return NamespacePolicies(policies)

    async def delete(self, request: DeleteNamespace) -> Done:
        await self._door.lifecycle.delete_namespace(self._principal, request.namespace, dry_run=request.dry_run)
        return Done()

    carries_out: ClassVar = (
        ListNamespaces.carried_out_by(list_page),
        DescribeNamespace.carried_out_by(describe),
        CreateNamespace.carried_out_by(create),
        AlterNamespace.carried_out_by(alter),
        DeleteNamespace.carried_out_by(delete),
    )


class TopicVerbs(Verbs):
    __slots__ = ()

    # -- for faces that have to know more of a topic -------------------------------------------------------------------

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

    async def address_elsewhere(self, name: str) -> str | None:
        """The address of the broker that serves the topic; None if it is this one. The partitions of a topic may have
        several: a whole topic is looked for where its first partition is."""
        parsed, record = parse_topic(name), await self.lookup(name)
        first = record.partition_names()[0] if parsed.partition is None else parsed
        place = self._door.router.where(record, first)
        if not isinstance(place, Elsewhere):
            return None
        if place.address is None:
            raise place.refusal(first)
        return place.address

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
                    record = await self._create(CreateTopic(whole, reliable=reliable, partitions=partitions))
                except TopicExists:
                    continue  # another client created it first
                except NamespaceNotFound as error:
                    raise TopicClosed(str(error)) from error
            if partitions <= record.partitions or not record.partitions or not may_create:
                return
            try:
                await self.alter(AlterTopic(whole, partitions=partitions))
            except ArgumentInvalid:
                continue  # another client added partitions

    async def listed(self, namespace: str | None, after: str = "", most: int | None = None) -> list[TopicRecord]:
        """The topics of a namespace, or of all, after the topic `after`, sorted by name."""
        resource = BROKER if namespace is None else namespace_resource(namespace)
        self._ask(Action.TOPIC_LIST, resource)
        found = await records_of(self._door.directory, namespace, after, most)
        self._ask(Action.TOPIC_LIST, resource)  # it may have taken several turns of the loop
        return found

    async def watch(
        self, namespaces: frozenset[str] | None, revision: int | None, seconds: float, *, replaced: Future[None]
    ) -> Changes:
        """Waits for topics that changed after a revision; without a revision, returns the present one.

        `replaced` is done when the caller has asked again and no longer waits for this answer.
        """
        asked = [namespace_resource(name) for name in sorted(namespaces)] if namespaces else [BROKER]
        version = self._door.topics.rights_version
        for each in asked:
            self._ask(Action.TOPIC_LIST, each)
        changes = await self._door.topic_changes.after(namespaces, revision, seconds, replaced=replaced)
        for each in asked if version != self._door.topics.rights_version else ():
            self._ask(Action.TOPIC_LIST, each)
        return changes

    # -- operations ----------------------------------------------------------------------------------------------------

    async def find(self, request: FindTopic) -> Topic:
        """What a client asks first: whether the topic exists, and how many partitions it has."""
        return topic_answer(await self.lookup(request.topic, create=request.create, reliable=request.reliable))

    async def create(self, request: CreateTopic) -> Topic:
        return topic_answer(await self._create(request))

    async def _create(self, request: CreateTopic) -> TopicRecord:
        return await self._door.lifecycle.create_topic(
            self._principal,
            request.topic,
            reliable=request.reliable,
            partitions=request.partitions,
            durability=Durability(request.durability),
            policies=request.policies.given(),
        )

    async def list_page(self, request: ListTopics) -> Topics:
        return await self._list(request.namespace, f"/{request.namespace}/{request.after}", request.limit)

    async def list_all(self, request: ListAllTopics) -> Topics:
        """The topics of all namespaces; `after` is the full name of a topic."""
        return await self._list(None, request.after, request.limit)

    async def _list(self, namespace: str | None, after: str, limit: int) -> Topics:
        topics: list[Topic] = []
        for count, record in enumerate(await self.listed(namespace, after, min(limit, LISTED_MAX) + 1), 1):
            topics.append(topic_answer(record))
            if not count % TOPICS_READ_A_TURN:
                await asyncio.sleep(0)
        return Topics(*page(topics, limit))

    async def describe(self, request: DescribeTopic) -> TopicDescription:
        opened = await self._door.topics.open_all(self._principal, Action.TOPIC_DESCRIBE, request.topic)
        return describe_topic(request.topic, opened, self._door.tiers, self._door.clock.wall())

    async def alter(self, request: AlterTopic) -> Topic:
        """Adds partitions or changes policies; open topics follow at once."""
        lifecycle, name, policies = self._door.lifecycle, request.topic, request.policies.given()
        altered = lifecycle.alter_topic(self._principal, name, partitions=request.partitions, policies=policies)
        return topic_answer(await altered)

    async def delete(self, request: DeleteTopic) -> Done:
        await self._door.lifecycle.delete_topic(self._principal, request.topic, dry_run=request.dry_run)
        return Done()

    async def truncate(self, request: TruncateTopic) -> Truncated:
        """Deletes all present messages, or those below an offset. Subscriptions skip them."""
        name, before = request.topic, request.before
        opened = await self._door.topics.open_all(self._principal, Action.TOPIC_TRUNCATE, name)
        if before is not None:
            only(opened, "an offset to delete before")
        topics = [each.reliable for each in opened]
        ends = {str(each.name): topic.beginning(before) for each, topic in zip(opened, topics, strict=True)}
        messages = sum(max(0, ends[topic.name] - topic.ledger.first) for topic in topics)
        if not request.dry_run and parse_topic(name).partition is None:
            ask = partial(self._door.topics.ask, self._principal, Action.TOPIC_TRUNCATE, opened[0].name)
            await self._door.spreading.change(opened[0].record, "truncate", {"before": ends}, ask=ask)
        elif not request.dry_run:
            await self._door.errands.run(topics[0].truncate(before))
        return Truncated(messages)

    async def redrive(self, request: Redrive) -> Redriven:
        """Publishes dead letters again; see `Redriver.redrive`."""
        if request.to is not None:
            parse_topic(request.to)  # refused even if there is no letter to publish
        limited = request.limit is not UNSET
        limit = min(request.limit, LISTED_MAX) if request.limit is not UNSET else LISTED_MAX
        wanted = Wanted(
            limit if limited or not request.dry_run else None,
            request.to,
            request.filter,
            request.dry_run,
            request.start,
            request.end,
        )
        done = await self._door.redriver.redrive(self._principal, request.topic, wanted)
        refusals = [Refusal(*each) for each in done.refused.named]
        return Redriven(done.count, done.targets, done.left, done.refused.count, refusals, done.next)

    async def bounds(self, request: GetBounds) -> Bounds:
        return Bounds(*await self._session.bounds(request.topic))

    async def find_offset(self, request: FindOffset) -> FoundOffset:
        return FoundOffset(await self._session.offset_of_time(request.topic, request.time))

    async def await_messages(self, request: AwaitMessages) -> Done:
        """Answers when one of the partitions has a message at its given offset, or when the time is over."""
        seconds = min(request.milliseconds / 1_000, NEWS_SECONDS_MAX)
        waiting = [
            asyncio.ensure_future(self._session.wait_beyond(partition, offset, seconds))
            for partition, offset in request.offsets.items()
        ]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        for each in done:
            each.result()  # raises, for example, if the topic was deleted
        return Done()

    carries_out: ClassVar = (
        FindTopic.carried_out_by(find),
        CreateTopic.carried_out_by(create),
        ListTopics.carried_out_by(list_page),
        ListAllTopics.carried_out_by(list_all),
        DescribeTopic.carried_out_by(describe),
        AlterTopic.carried_out_by(alter),
        DeleteTopic.carried_out_by(delete),
        TruncateTopic.carried_out_by(truncate),
        Redrive.carried_out_by(redrive),
        GetBounds.carried_out_by(bounds),
        FindOffset.carried_out_by(find_offset),
        AwaitMessages.carried_out_by(await_messages),
    )


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
