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
        return await self._ask("namespace.policies", namespace=namespace, policies=change)

    # -- topics --------------------------------------------------------------------------------------------------------

    async def create_topic(
        self, topic: str, *, partitions: int = 0, reliable: bool = True, options: Mapping[str, Any] | None = None
    ) -> Reply:
        return await self._ask("topic.create", topic=topic, partitions=partitions, reliable=reliable, options=options)

    async def topics(self, namespace: str) -> list[str]:
        return list((await self._ask("topic.list", namespace=namespace))["topics"])

    async def describe_topic(self, topic: str) -> Reply:
        return await self._ask("topic.describe", topic=topic)

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

    async def subscriptions(self, topic: str) -> list[str]:
        return list((await self._ask("subscription.list", topic=topic))["subscriptions"])

    async def describe_subscription(self, topic: str, subscription: str) -> Reply:
        return await self._ask("subscription.describe", topic=topic, subscription=subscription)

    async def delete_subscription(self, topic: str, subscription: str) -> None:
        await self._ask("subscription.delete", topic=topic, subscription=subscription)

    async def seek_subscription(
        self, topic: str, subscription: str, *, offset: int | None = None, time: int | None = None
    ) -> None:
        await self._ask("subscription.seek", topic=topic, subscription=subscription, offset=offset, time=time)

    async def skip(self, topic: str, subscription: str, count: int) -> None:
        """The next `count` messages count as done."""
        await self._ask("subscription.skip", topic=topic, subscription=subscription, count=count)

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> str:
        """Why a message is not delivered, or a consumer gets nothing, in one sentence."""
        found = await self._ask("explain", topic=topic, subscription=subscription, offset=offset, consumer=consumer)
        return str(found["explanation"])
