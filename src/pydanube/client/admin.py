"""Namespaces, topics, subscriptions and policies: each method is one request, and answers as the broker does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from pydanube.client.consumer import Start, wire_start
from pydanube.client.messages import Message
from pydanube.client.reader import places_of

if TYPE_CHECKING:
    from pydanube.client.client import Client

Reply = dict[str, Any]


class Admin:
    """`client.admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _ask(self, verb: str, **fields: Any) -> Reply:
        return await self._client.ask(verb, {name: value for name, value in fields.items() if value is not None})

    async def _pages(self, verb: str, what: str, name_of: Callable[[Any], str], **fields: Any) -> list[Any]:
        """All that a list has, page by page; `name_of` says what the next page comes after."""
        found: list[Any] = []
        more = True
        while more:
            reply = await self._ask(verb, after=name_of(found[-1]) if found else "", **fields)
            found += reply[what]
            more = bool(reply["more"]) and bool(reply[what])
        return found

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str, *, policies: Mapping[str, Any] | None = None) -> None:
        await self._ask("namespace.create", namespace=namespace, policies=policies)

    async def namespaces(self) -> list[str]:
        return await self._pages("namespace.list", "namespaces", str)

    async def delete_namespace(self, namespace: str) -> None:
        await self._ask("namespace.delete", namespace=namespace)

    async def policies(self, namespace: str, *, change: Mapping[str, Any] | None = None) -> Reply:
        """The namespace's policies, after changing those that are named."""
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
        """`durability` is `fsynced`, the default, or `buffered`."""
        fields = {"partitions": partitions, "reliable": reliable, "durability": durability, "policies": policies}
        return await self._ask("topic.create", topic=topic, **fields)

    async def topics(self, namespace: str = "default") -> list[str]:
        return [each["topic"] for each in await self.topic_records(namespace)]

    async def topic_records(self, namespace: str = "default") -> list[Reply]:
        """What each is, by name: reliable or not, its partitions, durability and policies."""

        def name_of(each: Reply) -> str:
            return str(each["topic"]).rpartition("/")[2]

        return await self._pages("topic.list", "topics", name_of, namespace=namespace)

    async def describe_topic(self, topic: str) -> Reply:
        """What it is, and how it stands: offsets, bytes, producers, consumers, subscriptions."""
        return await self._ask("topic.describe", topic=topic)

    async def alter_topic(
        self, topic: str, *, partitions: int | None = None, policies: Mapping[str, Any] | None = None
    ) -> Reply:
        """More partitions, never fewer; other policies."""
        return await self._ask("topic.alter", topic=topic, partitions=partitions, policies=policies)

    async def delete_topic(self, topic: str) -> None:
        """With all its messages and subscriptions; whoever uses it is told."""
        await self._ask("topic.delete", topic=topic)

    async def truncate_topic(self, topic: str, *, before: int | None = None) -> None:
        """Deletes all messages there are, or those of one partition below `before`. Subscriptions pass over them."""
        await self._ask("topic.truncate", topic=topic, before=before)

    async def peek(
        self, topic: str, count: int = 1, *, start: Start = "earliest", partition: int | None = None
    ) -> list[Message]:
        """The first `count` messages from there on, partition after partition; nothing is acknowledged."""
        found: list[Message] = []
        for place in await places_of(self._client, topic, start, partition):
            while len(found) < count and (batches := await place.read(self._client)):
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
        """Where it is known it stays as it is, with its options."""
        named = {"topic": topic, "subscription": subscription}
        await self._ask("subscription.create", **named, type=type, start=wire_start(start), options=options)

    async def subscriptions(self, topic: str) -> list[Reply]:
        """Type, floor, backlog, consumers of each, by name."""
        return await self._pages(
            "subscription.list", "subscriptions", lambda each: str(each["subscription"]), topic=topic
        )

    async def describe_subscription(self, topic: str, subscription: str) -> Reply:
        """How it stands, partition by partition too; its options; what was done, by cause."""
        return await self._ask("subscription.describe", topic=topic, subscription=subscription)

    async def alter_subscription(self, topic: str, subscription: str, *, options: Mapping[str, Any]) -> Reply:
        """Other options for failures and dispatch, from now on; what is not named stays."""
        return await self._ask("subscription.alter", topic=topic, subscription=subscription, options=options)

    async def seek_subscription(self, topic: str, subscription: str, to: Start) -> Reply:
        """Its consumers, if there are any, go on from there: earliest, latest, a time, or an offset of a partition."""
        return await self._ask("subscription.seek", topic=topic, subscription=subscription, to=wire_start(to))

    async def skip_messages(
        self, topic: str, subscription: str, *, count: int | None = None, to: int | None = None
    ) -> int:
        """Gives up the next `count` messages, or all before offset `to`; returns how many that were."""
        named = {"topic": topic, "subscription": subscription}
        return int((await self._ask("subscription.skip", **named, count=count, offset=to))["skipped"])

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        """Its consumers are told, and do not make it again."""
        await self._ask("subscription.delete", topic=topic, subscription=subscription)

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> str:
        """Why a message is not delivered, or a consumer gets nothing, in one sentence."""
        found = await self._ask("explain", topic=topic, subscription=subscription, offset=offset, consumer=consumer)
        return str(found["sentence"])
