"""Namespaces, topics, subscriptions and policies: each method is one request, and answers as the broker does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydanube.client.client import Client

Reply = dict[str, Any]


class Admin:
    """`client.admin`."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def _ask(self, verb: str, **fields: Any) -> Reply:
        return await self._client.ask(verb, {name: value for name, value in fields.items() if value is not None})

    # -- namespaces ----------------------------------------------------------------------------------------------------

    async def create_namespace(self, namespace: str, *, policies: Mapping[str, Any] | None = None) -> None:
        await self._ask("namespace.create", namespace=namespace, policies=policies)

    async def namespaces(self) -> list[str]:
        return list((await self._ask("namespace.list"))["namespaces"])

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
        found: list[str] = []
        more = True
        while more:
            after = found[-1].rpartition("/")[2] if found else ""
            reply = await self._ask("topic.list", namespace=namespace, after=after)
            found += [each["topic"] for each in reply["topics"]]
            more = bool(reply["more"]) and bool(reply["topics"])
        return found

    async def describe_topic(self, topic: str) -> Reply:
        return await self._ask("topic", topic=topic)

    async def alter_topic(
        self, topic: str, *, partitions: int | None = None, policies: Mapping[str, Any] | None = None
    ) -> Reply:
        """More partitions, never fewer; other policies."""
        return await self._ask("topic.alter", topic=topic, partitions=partitions, policies=policies)

    async def delete_topic(self, topic: str) -> None:
        await self._ask("topic.delete", topic=topic)

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def create_subscription(
        self,
        topic: str,
        subscription: str,
        *,
        type: str = "exclusive",
        start: Any = "latest",
        options: Mapping[str, Any] | None = None,
    ) -> None:
        from pydanube.client.consumer import wire_start

        place = wire_start(start)
        await self._ask(
            "subscription.create", topic=topic, subscription=subscription, type=type, start=place, options=options
        )

    async def subscriptions(self, topic: str) -> list[Reply]:
        """Those of a topic without partitions, or of a partition: type, floor, backlog, consumers."""
        return list((await self._ask("subscription.list", topic=topic))["subscriptions"])

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self._ask("subscription.delete", topic=topic, subscription=subscription)

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> str:
        """Why a message is not delivered, or a consumer gets nothing, in one sentence."""
        found = await self._ask("explain", topic=topic, subscription=subscription, offset=offset, consumer=consumer)
        return str(found["sentence"])
