"""Namespaces, topics, subscriptions and policies: each method asks the broker and returns its answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydanube.base.errors import ObjectsFailed, ObjectsRefused, TierBusy
from pydanube.base.names import full_name
from pydanube.client.arguments import plain
from pydanube.client.consumer import Start, type_of, wire_position
from pydanube.client.messages import Message
from pydanube.client.reader import partition_positions

if TYPE_CHECKING:
    from pydanube.client.client import Client

Reply = dict[str, Any]
VERIFIED_AT_ONCE = 2  # a broker reads this many at once


class Admin:
    """Manages namespaces, topics, subscriptions, storage and pipelines. Available as `client.admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _ask(self, verb: str, **fields: Any) -> Reply:
        given = {name: plain(value) for name, value in fields.items() if value is not None}
        if "topic" in given:
            given["topic"] = full_name(given["topic"])
        return await self._client.ask(verb, given)

    async def _pages(self, verb: str, what: str, name_of: Callable[[Any], str], **fields: Any) -> list[Any]:
        """Fetches a list page by page. `name_of` gives the name that the next page starts after."""
        found: list[Any] = []
        more = True
        while more:
            reply = await self._ask(verb, after=name_of(found[-1]) if found else "", **fields)
            found += reply[what]
            more = bool(reply["more"]) and bool(reply[what])
        return found

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str, *, policies: Mapping[str, Any] | None = None) -> None:
        """Creates a namespace. `policies` override the defaults."""
        await self._ask("namespace.create", namespace=namespace, policies=policies)

    async def namespaces(self) -> list[str]:
        """Returns the names of all namespaces."""
        return await self._pages("namespace.list", "namespaces", str)

    async def delete_namespace(self, namespace: str) -> None:
        """Deletes an empty namespace. Raises `NamespaceNotEmpty` if it has topics."""
        await self._ask("namespace.delete", namespace=namespace)

    async def policies(self, namespace: str, *, change: Mapping[str, Any] | None = None) -> Reply:
        """Changes the policies in `change`, then returns all policies of the namespace."""
        return dict((await self._ask("namespace.policies", namespace=namespace, policies=change))["policies"])

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 0,
        reliable: bool = True,
        durability: str | None = None,
        policies: Mapping[str, Any] | None = None,
    ) -> Reply:
        """Creates a topic. `durability` is `fsynced` (the default) or `buffered`."""
        fields = {"partitions": partitions, "reliable": reliable, "durability": durability, "policies": policies}
        return await self._ask("topic.create", topic=topic, **fields)

    async def topics(self, namespace: str = "default") -> list[str]:
        """Returns the full names of all topics in a namespace."""
        return [each["topic"] for each in await self.topic_records(namespace)]

    async def topic_records(self, namespace: str = "default") -> list[Reply]:
        """Describes each topic of a namespace, sorted by name: kind, partitions, durability and policies."""

        def name_of(each: Reply) -> str:
            return str(each["topic"]).rpartition("/")[2]

        return await self._pages("topic.list", "topics", name_of, namespace=namespace)

    async def describe_topic(self, topic: str) -> Reply:
        """Describes a topic in detail: offsets, bytes, producers, consumers, subscriptions."""
        return await self._ask("topic.describe", topic=topic)

    async def alter_topic(
        self, topic: str, *, partitions: int | None = None, policies: Mapping[str, Any] | None = None
    ) -> Reply:
        """Adds partitions or changes policies. Partitions cannot be removed."""
        return await self._ask("topic.alter", topic=topic, partitions=partitions, policies=policies)

    async def delete_topic(self, topic: str) -> None:
        """Deletes a topic with its messages and subscriptions. Clients that use it get an error."""
        await self._ask("topic.delete", topic=topic)

    async def truncate_topic(self, topic: str, *, before: int | None = None) -> None:
        """Deletes all messages, or those of one partition before the offset `before`. Subscriptions skip them."""
        await self._ask("topic.truncate", topic=topic, before=before)

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
        named = {"topic": topic, "subscription": subscription, "type": type_of(type)}
        position = wire_position(start, self._client.clock.wall())
        await self._ask("subscription.create", **named, start=position, options=options)

    async def subscriptions(self, topic: str) -> list[Reply]:
        """Lists the subscriptions of a topic, sorted by name: type, floor, backlog, consumers."""
        return await self._pages(
            "subscription.list", "subscriptions", lambda each: str(each["subscription"]), topic=topic
        )

    async def describe_subscription(self, topic: str, subscription: str) -> Reply:
        """Describes a subscription: progress, also per partition, options, and finished messages by cause."""
        return await self._ask("subscription.describe", topic=topic, subscription=subscription)

    async def alter_subscription(self, topic: str, subscription: str, *, options: Mapping[str, Any]) -> Reply:
        """Changes options of a subscription. Other options stay as they are."""
        return await self._ask("subscription.alter", topic=topic, subscription=subscription, options=options)

    async def seek_subscription(self, topic: str, subscription: str, to: Start) -> Reply:
        """Moves a subscription to earliest, latest, a time, or an offset of one partition. Consumers continue there."""
        position = wire_position(to, self._client.clock.wall())
        return await self._ask("subscription.seek", topic=topic, subscription=subscription, to=position)

    async def skip_messages(
        self, topic: str, subscription: str, *, count: int | None = None, to: int | None = None
    ) -> int:
        """Skips the next `count` messages, or all before the offset `to`. Returns how many were skipped."""
        named = {"topic": topic, "subscription": subscription}
        return int((await self._ask("subscription.skip", **named, count=count, offset=to))["skipped"])

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Deletes a subscription. Its consumers get an error and do not recreate it."""
        await self._ask("subscription.delete", topic=topic, subscription=subscription)

    async def blocked_subscriptions(self) -> list[Reply]:
        """Lists up to fifty subscriptions blocked by a message that failed too often: topic, subscription, offset."""
        found: list[Reply] = (await self._ask("subscription.blocked"))["blocked"]
        return found

    async def abandoned_subscriptions(self) -> list[Reply]:
        """Lists up to fifty subscriptions without a consumer for days: topic, subscription, `backlog_seconds`."""
        found: list[Reply] = (await self._ask("subscription.abandoned"))["abandoned"]
        return found

    async def consumers(self, topic: str, subscription: str) -> list[Reply]:
        """Lists the consumers of a subscription: name, address, partitions, active or standby, messages in flight."""
        found: list[Reply] = []
        while True:
            reply = await self._ask("subscription.consumers", topic=topic, subscription=subscription, after=len(found))
            found += reply["consumers"]
            if not reply["more"] or not reply["consumers"]:
                return found

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> str:
        """Explains in one sentence why a message is not delivered, or why a consumer gets nothing.

        Without an offset, it explains the first unacknowledged message of each partition.
        """
        return str((await self.explanations(topic, subscription, offset=offset, consumer=consumer))["sentence"])

    async def explanations(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> Reply:
        """Like `explain`, for programs: the `sentence`, and offset, code, time, sentence and backlog per partition."""
        return await self._ask("explain", topic=topic, subscription=subscription, offset=offset, consumer=consumer)

    # -- the broker ----------------------------------------------------------------------------------------------------

    async def connections(self) -> list[Reply]:
        """Lists open connections, oldest first: address, protocol, client, since, producers, consumers."""
        found: list[Reply] = []
        while True:
            reply = await self._ask("connection.list", after=found[-1]["number"] if found else 0)
            found += reply["connections"]
            if not reply["more"] or not reply["connections"]:
                return found

    async def status(self) -> Reply:
        """Describes the broker: start time, topics, connections, message counters, disk."""
        return await self._ask("status")

    # -- tiers ---------------------------------------------------------------------------------------------------------

    async def storage_status(self) -> Reply:
        """Checks object storage: whether it is configured, answers and belongs to this broker, and what fails."""
        return await self._ask("storage.status")

    async def storage_usage(self, topic: str) -> Reply:
        """Returns how many bytes a topic has in each tier, and how much waits for upload, and for how long."""
        return await self._ask("storage.usage", topic=topic)

    async def storage_usages(self, namespace: str = "default") -> list[Reply]:
        """Returns the storage usage of every topic in a namespace that stores messages, sorted by name."""

        def name_of(each: Reply) -> str:
            return str(each["topic"]).rpartition("/")[2]

        return await self._pages("storage.list", "topics", name_of, namespace=namespace)

    async def segments(self, topic: str, *, start: int = 0, limit: int | None = None) -> list[Reply]:
        """Lists the segments of all partitions, each oldest first, up to `limit`."""
        found: list[Reply] = []
        async for each in self._each_segment(topic, start=start):
            if limit is not None and len(found) >= limit:
                break
            found.append(each)
        return found

    async def _each_segment(self, topic: str, *, start: int = 0) -> AsyncIterator[Reply]:
        """Yields the segments one by one, because a topic can have very many."""
        for _, name in (await self._client.topic(topic)).partition_names():
            at, more = start, True
            while more:
                reply = await self._ask("storage.segments", topic=name, start=at)
                for each in reply["segments"]:
                    yield each
                    at = int(each["last"]) + 1
                more = bool(reply["more"]) and bool(reply["segments"])

    async def table(self, topic: str) -> Reply:
        """Describes the table of a topic: its `uri`, whether it is `made` yet, and whether it `grows` with uploads."""
        return await self._ask("storage.table", topic=topic)

    async def verify_segment(self, topic: str, first: int) -> Reply:
        """Reads and verifies the segment that starts at an offset. `result` is sound, lost, damaged or gone."""
        return await self._finished("storage.verify", topic=topic, first=first)

    async def verify_topic(
        self, topic: str, *, at_once: int = VERIFIED_AT_ONCE, tell: Callable[[Reply], None] | None = None
    ) -> Reply:
        """Verifies every segment of all partitions. `troubles` lists those lost, damaged or not readable now.

        `tell` is called with each result.
        """
        if (await self.storage_status())["objects"] is None:
            raise ObjectsRefused("this broker has no object storage: storage.objects.url is not set")
        sums: Reply = {"topic": topic, "segments": 0, "object_bytes": 0, "troubles": []}
        segments = self._each_segment(topic)

        async def work() -> None:
            while (each := await _next(segments, turn)) is not None:
                if each["where"] == "local":
                    continue
                found = await self._verified(each)
                sums["segments"] += found["result"] != "gone"
                sums["object_bytes"] += found["object_bytes"]
                if found["result"] not in ("sound", "gone"):
                    sums["troubles"].append(found)
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

    async def _verified(self, segment: Reply) -> Reply:
        named = {"topic": segment["topic"], "first": segment["first"]}
        try:
            return await self.verify_segment(**named)
        except (ObjectsFailed, TierBusy) as error:  # others may be readable
            return {**named, "segment": segment["segment"], "result": "unknown", "object_bytes": 0, "what": str(error)}

    async def upload_topic(self, topic: str) -> Reply:
        """Uploads everything the topic has now to object storage, and returns what was uploaded."""
        sums: Reply = {"topic": topic, "segments": 0, "messages": 0, "bytes": 0, "object_bytes": 0}
        for _, name in (await self._client.topic(topic)).partition_names():
            found = await self._finished("storage.upload", topic=name)
            for what in ("segments", "messages", "bytes", "object_bytes"):
                sums[what] += found[what]
        return sums

    async def damaged_topics(self) -> list[str]:
        """Lists topics with known or possible damage on disk."""
        return list((await self._ask("storage.damage"))["topics"])

    async def salvage_topic(self, topic: str, *, accept: bool = False) -> list[Reply]:
        """Lists the damage of all partitions. With `accept`, gives it up for good, and readers skip it."""
        return list((await self.examine_topic(topic, accept=accept))["damage"])

    async def examine_topic(self, topic: str, *, accept: bool = False) -> Reply:
        """Returns `damage`, and as `state_left`, by partition, what remains where the topic's state is damaged."""
        return await self._finished("storage.salvage", topic=topic, accept=accept)

    # -- pipelines -----------------------------------------------------------------------------------------------------

    async def pipelines(self) -> list[Reply]:
        """Lists pipelines that report or ended in the last day: run, state, cause, info, progress, order."""
        return await self._pages("pipeline.list", "pipelines", lambda each: str(each["pipeline"]))

    async def pipeline(self, name: str) -> Reply:
        """Describes one pipeline, as `pipelines` does."""
        return await self._ask("pipeline.status", pipeline=name)

    async def pipeline_logs(self, name: str, *, after: int = 0) -> Reply:
        """Returns the last `lines` after a sequence number, with `sequence`, `time` and `text`, and the `state`."""
        found: list[Reply] = []
        while True:
            reply = await self._ask("pipeline.logs", pipeline=name, after=after)
            found += reply["lines"]
            if not reply["more"] or not reply["lines"]:
                return {**reply, "lines": found, "more": False}
            after = found[-1]["sequence"]

    async def order_pipeline(self, name: str, order: str) -> Reply:
        """Orders a pipeline to `stop` or `restart`; it obeys within seconds. Returns its current state."""
        return await self._ask("pipeline.order", pipeline=name, order=order)

    async def forget_pipeline(self, name: str, *, records: bool = False) -> None:
        """Removes a stopped pipeline from the list.

        With `records`, the broker also forgets where its checkpoint in object storage is and which dead letters were
        redriven. Use it only for a pipeline that will never run again.
        """
        await self._ask("pipeline.forget", pipeline=name, records=records)

    # -- long requests -------------------------------------------------------------------------------------------------

    async def _finished(self, verb: str, **fields: Any) -> Reply:
        """Repeats the request until the broker has finished it."""
        ticket: int | None = None
        while not (reply := await self._ask(verb, ticket=ticket, **fields))["done"]:
            ticket = reply["ticket"]
        return {name: value for name, value in reply.items() if name not in ("done", "ticket")}


async def _next(segments: AsyncIterator[Reply], turn: asyncio.Lock) -> Reply | None:
    """The next segment, for one of several tasks that share the iterator."""
    async with turn:
        return await anext(segments, None)
