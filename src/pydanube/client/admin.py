"""Namespaces, topics, subscriptions and policies: each method asks the broker and returns its answer.

Answers have their classes in `pydanube.operations`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from pydanube.base.errors import ObjectsFailed, ObjectsRefused, TierBusy
from pydanube.client.arguments import options_of, policies_of
from pydanube.client.connection import A
from pydanube.client.consumer import Start, type_of, wire_position
from pydanube.client.messages import Message
from pydanube.client.reader import partition_positions
from pydanube.operations import broker, namespaces, pipelines, sinks, storage, subscriptions, topics
from pydanube.operations.fields import DurabilityName, Order
from pydanube.operations.operation import Request
from pydanube.operations.pipelines import Pipeline, PipelineLogs
from pydanube.operations.policies import Policies
from pydanube.operations.sinks import Sink
from pydanube.operations.subscriptions import (
    AbandonedSubscription,
    BlockedSubscription,
    Consumer,
    Explanations,
    Subscription,
    SubscriptionDescription,
)
from pydanube.operations.topics import Topic, TopicDescription

if TYPE_CHECKING:
    from pydanube.client.client import Client

Each = TypeVar("Each")
Long = TypeVar("Long", storage.Verification, storage.Salvage, storage.Upload)  # may take several requests
VERIFIED_AT_ONCE = 2  # a broker reads this many at once


class Admin:
    """Manages namespaces, topics, subscriptions, storage and pipelines. Available as `client.admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ask = client.ask

    async def _pages(
        self, first: Request[A], page_of: Callable[[A], tuple[list[Each], bool]], after: Callable[[list[Each]], object]
    ) -> list[Each]:
        """Fetches a list page by page.

        `page_of` takes from an answer its items and whether there are more. `after` says where the next page begins,
        from what was found so far. A page may be empty although there are more, if what it had was deleted meanwhile.
        """
        found: list[Each] = []
        request = first
        while True:
            items, more = page_of(await self._ask(request))
            found += items
            if not more:
                return found
            if items:
                request = replace(first, after=after(found))

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str, *, policies: Mapping[str, Any] | None = None) -> None:
        """Creates a namespace. `policies` override the defaults."""
        await self._ask(namespaces.CreateNamespace(namespace, policies=policies_of(policies)))

    async def namespaces(self) -> list[str]:
        """Returns the names of all namespaces."""
        return await self._pages(
            namespaces.ListNamespaces(), lambda page: (page.namespaces, page.more), lambda found: found[-1]
        )

    async def delete_namespace(self, namespace: str) -> None:
        """Deletes an empty namespace. Raises `NamespaceNotEmpty` if it has topics."""
        await self._ask(namespaces.DeleteNamespace(namespace))

    async def policies(self, namespace: str, *, change: Mapping[str, Any] | None = None) -> Policies:
        """Changes the policies in `change`, then returns all policies of the namespace."""
        if change is None:
            return (await self._ask(namespaces.DescribeNamespace(namespace))).policies
        return (await self._ask(namespaces.AlterNamespace(namespace, policies=policies_of(change)))).policies

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        reliable: bool = True,
        durability: DurabilityName | None = None,
        policies: Mapping[str, Any] | None = None,
    ) -> Topic:
        """Creates a topic. `durability` is `fsynced` (the default) or `buffered`."""
        durability = "fsynced" if durability is None else durability
        return await self._ask(topics.CreateTopic(topic, reliable, partitions, durability, policies_of(policies)))

    async def topics(self, namespace: str = "default") -> list[str]:
        """Returns the full names of all topics in a namespace."""
        return [each.topic for each in await self.topic_records(namespace)]

    async def topic_records(self, namespace: str = "default") -> list[Topic]:
        """Describes each topic of a namespace, sorted by name: kind, partitions, durability and policies."""
        return await self._pages(
            topics.ListTopics(namespace), lambda page: (page.topics, page.more), lambda found: _name_of(found[-1].topic)
        )

    async def describe_topic(self, topic: str) -> TopicDescription:
        """Describes a topic in detail: offsets, bytes, producers, consumers, subscriptions."""
        return await self._ask(topics.DescribeTopic(topic))

    async def alter_topic(
        self, topic: str, *, partitions: int | None = None, policies: Mapping[str, Any] | None = None
    ) -> Topic:
        """Adds partitions or changes policies. Partitions cannot be removed."""
        return await self._ask(topics.AlterTopic(topic, partitions=partitions, policies=policies_of(policies)))

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic with its messages and subscriptions. Clients that use it get an error."""
        await self._ask(topics.DeleteTopic(topic))

    async def truncate_topic(self, topic: str, *, before: int | None = None) -> int:
        """Deletes all messages, or those of one partition before the offset `before`. Subscriptions skip them.

        Returns how many were deleted.
        """
        return (await self._ask(topics.TruncateTopic(topic, before=before))).messages

    async def peek(
        self, topic: str, count: int = 1, *, start: Start = "earliest", partition: int | None = None
    ) -> list[Message]:
        """Returns the first `count` messages from `start` on, partition by partition, without acknowledging them."""
        found: list[Message] = []
        for position in await partition_positions(self._client, topic, start, partition):
            while len(found) < count and (batches := await position.read(self._client)):
                for batch in batches:
                    found += islice(batch.messages(), count - len(found))
        return found

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: str = "exclusive",
        start: Start = "latest",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Creates a subscription. An existing one is left unchanged."""
        position = wire_position(start, self._client.clock.wall())
        kind, chosen = type_of(type), None if options is None else options_of(options)
        await self._ask(subscriptions.CreateSubscription(topic, subscription, kind, position, chosen))

    async def subscriptions(self, topic: str) -> list[Subscription]:
        """Lists the subscriptions of a topic, sorted by name: type, floor, backlog, consumers."""
        return await self._pages(
            subscriptions.ListSubscriptions(topic),
            lambda page: (page.subscriptions, page.more),
            lambda found: found[-1].subscription,
        )

    async def describe_subscription(self, topic: str, subscription: str) -> SubscriptionDescription:
        """Describes a subscription: progress, also per partition, options, and finished messages by cause."""
        return await self._ask(subscriptions.DescribeSubscription(topic, subscription))

    async def alter_subscription(
        self, topic: str, subscription: str, *, options: Mapping[str, Any]
    ) -> SubscriptionDescription:
        """Changes options of a subscription. Other options stay as they are."""
        return await self._ask(subscriptions.AlterSubscription(topic, subscription, options_of(options)))

    async def seek_subscription(self, topic: str, subscription: str, to: Start) -> SubscriptionDescription:
        """Moves a subscription to earliest, latest, a time, or an offset of one partition. Consumers continue there."""
        position = wire_position(to, self._client.clock.wall())
        return await self._ask(subscriptions.SeekSubscription(topic, subscription, to=position))

    async def skip_messages(
        self, topic: str, subscription: str, *, count: int | None = None, to: int | None = None
    ) -> int:
        """Skips the next `count` messages, or all before the offset `to`. Returns how many were skipped."""
        return (await self._ask(subscriptions.SkipMessages(topic, subscription, count, to))).skipped

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription. Its consumers get an error and do not recreate it."""
        await self._ask(subscriptions.DeleteSubscription(topic, subscription))

    async def blocked_subscriptions(self) -> list[BlockedSubscription]:
        """Lists up to fifty subscriptions blocked by a message that failed too often: topic, subscription, offset."""
        return (await self._ask(subscriptions.ListBlocked())).blocked

    async def abandoned_subscriptions(self) -> list[AbandonedSubscription]:
        """Lists up to fifty subscriptions without a consumer for days: topic, subscription, `backlog_seconds`."""
        return (await self._ask(subscriptions.ListAbandoned())).abandoned

    async def consumers(self, topic: str, subscription: str) -> list[Consumer]:
        """Lists the consumers of a subscription: name, address, partitions, active or standby, messages in flight."""
        return await self._pages(
            subscriptions.ListConsumers(topic, subscription), lambda page: (page.consumers, page.more), len
        )

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> str:
        """Explains in one sentence why a message is not delivered, or why a consumer gets nothing.

        Without an offset, it explains the first unacknowledged message of each partition.
        """
        return (await self.explanations(topic, subscription, offset=offset, consumer=consumer)).sentence

    async def explanations(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> Explanations:
        """Like `explain`, for programs: the `sentence`, and offset, code, time, sentence and backlog per partition."""
        return await self._ask(subscriptions.Explain(topic, subscription, offset, consumer))

    # -- the broker ----------------------------------------------------------------------------------------------------

    async def connections(self) -> list[broker.Connection]:
        """Lists open connections, oldest first: address, protocol, client, since, producers, consumers."""
        return await self._pages(
            broker.ListConnections(), lambda page: (page.connections, page.more), lambda found: found[-1].number
        )

    async def status(self) -> broker.Status:
        """Describes the broker: start time, topics, connections, message counters, disk."""
        return await self._ask(broker.GetStatus())

    async def settings(self) -> broker.Settings:
        """Returns the settings in force, without secrets, and where each comes from."""
        return await self._ask(broker.GetSettings())

    # -- tiers ---------------------------------------------------------------------------------------------------------

    async def storage_status(self) -> storage.ObjectStorage:
        """Checks object storage: whether it is configured, answers and belongs to this broker, and what fails."""
        return await self._ask(storage.GetObjectStorage())

    async def storage_usage(self, topic: str) -> storage.TopicUsage:
        """Returns how many bytes a topic has in each tier, and how much waits for upload, and for how long."""
        return await self._ask(storage.GetUsage(topic))

    async def storage_usages(self, namespace: str = "default") -> list[storage.TopicUsage]:
        """Returns the storage usage of every topic in a namespace that stores messages, sorted by name."""
        return await self._pages(
            storage.ListUsage(namespace), lambda page: (page.topics, page.more), lambda found: _name_of(found[-1].topic)
        )

    async def segments(self, topic: str, *, start: int = 0, limit: int | None = None) -> list[storage.SegmentSummary]:
        """Lists the segments of all partitions, each oldest first, up to `limit`."""
        found: list[storage.SegmentSummary] = []
        async for each in self._each_segment(topic, start=start):
            if limit is not None and len(found) >= limit:
                break
            found.append(each)
        return found

    async def _each_segment(self, topic: str, *, start: int = 0) -> AsyncIterator[storage.SegmentSummary]:
        """Yields the segments one by one, because a topic can have very many."""
        for _, name in (await self._client.topic(topic)).partition_names():
            at, more = start, True
            while more:
                page = await self._ask(storage.ListSegments(name, start=at))
                for each in page.segments:
                    yield each
                    at = each.last + 1
                more = page.more and bool(page.segments)

    async def table(self, topic: str) -> storage.Table:
        """Describes the table of a topic: its `uri`, whether it is `made` yet, and whether it `grows` with uploads."""
        return await self._ask(storage.DescribeTable(topic))

    async def verify_segment(self, topic: str, first: int) -> storage.Verification:
        """Reads and verifies the segment that starts at an offset. `result` is sound, lost, damaged or gone."""
        return await self._finished(storage.VerifySegment(topic, first=first))

    async def verify_topic(
        self, topic: str, *, at_once: int = VERIFIED_AT_ONCE, tell: Callable[[storage.Verification], None] | None = None
    ) -> storage.TopicVerification:
        """Verifies every segment of all partitions. `troubles` lists those lost, damaged or not readable now.

        `tell` is called with each result.
        """
        if (await self.storage_status()).objects is None:
            raise ObjectsRefused("this broker has no object storage: storage.objects.url is not set")
        sums = storage.TopicVerification(topic=topic, segments=0, object_bytes=0, troubles=[])
        segments = self._each_segment(topic)

        async def work() -> None:
            while (each := await _next(segments, turn)) is not None:
                if each.where == "local":
                    continue
                found = await self._verified(each)
                sums.segments += found.result != "gone"
                sums.object_bytes += found.object_bytes or 0
                if found.result not in ("sound", "gone"):
                    sums.troubles.append(found)
                if tell is not None:
                    tell(found)

        turn = asyncio.Lock()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(max(1, at_once)):
                    group.create_task(work())
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return sums

    async def _verified(self, segment: storage.SegmentSummary) -> storage.Verification:
        try:
            return await self.verify_segment(segment.topic, segment.first)
        except (ObjectsFailed, TierBusy) as error:  # others may be readable
            return storage.Verification(
                segment.topic, segment.first, True, None, segment.segment, "unknown", 0, str(error)
            )

    async def upload_topic(self, topic: str) -> storage.Upload:
        """Uploads everything the topic has now to object storage, and returns what was uploaded."""
        names = (await self._client.topic(topic)).partition_names()
        found = [await self._finished(storage.UploadTopic(name)) for _, name in names]
        return storage.Upload(
            topic,
            done=True,
            ticket=None,
            segments=sum(each.segments or 0 for each in found),
            messages=sum(each.messages or 0 for each in found),
            bytes=sum(each.bytes or 0 for each in found),
            object_bytes=sum(each.object_bytes or 0 for each in found),
        )

    async def damaged_topics(self) -> list[str]:
        """Lists topics with known or possible damage on disk."""
        return await self._pages(storage.ListDamage(), lambda page: (page.topics, page.more), lambda found: found[-1])

    async def salvage_topic(self, topic: str, *, accept: bool = False) -> list[storage.Damage]:
        """Lists the damage of all partitions. With `accept`, gives it up for good, and readers skip it."""
        return (await self.examine_topic(topic, accept=accept)).damage or []

    async def examine_topic(self, topic: str, *, accept: bool = False) -> storage.Salvage:
        """Returns `damage`, and as `state_left`, by partition, what remains where the topic's state is damaged."""
        return await self._finished(storage.SalvageTopic(topic, accept=accept))

    async def sinks(self) -> list[Sink]:
        """Lists the jobs that write exactly once, those first whose last batch cannot be written, with the reason."""
        found = await self._pages(
            sinks.ListSinks(), lambda page: (page.sinks, page.more), lambda found: found[-1].writer
        )
        return sorted(found, key=lambda each: each.error is None)

    # -- pipelines -----------------------------------------------------------------------------------------------------

    async def pipelines(self) -> list[Pipeline]:
        """Lists pipelines that report or ended in the last day: run, state, cause, info, progress, order."""
        return await self._pages(
            pipelines.ListPipelines(), lambda page: (page.pipelines, page.more), lambda found: found[-1].pipeline
        )

    async def pipeline(self, name: str) -> Pipeline:
        """Describes one pipeline, as `pipelines` does."""
        return await self._ask(pipelines.DescribePipeline(name))

    async def pipeline_logs(self, name: str, *, after: int = 0) -> PipelineLogs:
        """Returns the last `lines` after a sequence number, with `sequence`, `time` and `text`, and the `state`."""
        found = page = await self._ask(pipelines.ReadPipelineLogs(name, after=after))
        while page.more and page.lines:
            page = await self._ask(pipelines.ReadPipelineLogs(name, after=page.lines[-1].sequence))
            found = replace(page, lines=[*found.lines, *page.lines])
        return replace(found, more=False)

    async def order_pipeline(self, name: str, order: Order) -> Pipeline:
        """Orders a pipeline to `stop` or `restart`; it obeys within seconds. Returns its current state."""
        return await self._ask(pipelines.OrderPipeline(name, order=order))

    async def forget_pipeline(self, name: str, *, records: bool = False) -> None:
        """Removes a stopped pipeline from the list.

        With `records`, the broker also forgets where its checkpoint in object storage is and which dead letters were
        redriven. Use it only for a pipeline that will never run again.
        """
        await self._ask(pipelines.ForgetPipeline(name, records=records))

    # -- long requests -------------------------------------------------------------------------------------------------

    async def _finished(self, request: Request[Long]) -> Long:
        """Repeats the request until the broker has finished it."""
        while not (answer := await self._ask(request)).done:
            request = replace(request, ticket=answer.ticket)
        return answer


async def _next(segments: AsyncIterator[storage.SegmentSummary], turn: asyncio.Lock) -> storage.SegmentSummary | None:
    """The next segment, for one of several tasks that share the iterator."""
    async with turn:
        return await anext(segments, None)


def _name_of(topic: str) -> str:
    """The name of a topic without its namespace."""
    return topic.rpartition("/")[2]
