"""Consuming without a connection: messages are received under leases, then acked, nacked or extended."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.access.rights import Action
from pydanube.base.names import parse_topic
from pydanube.broker.door.leasing import Lease, Received
from pydanube.broker.door.verbs.base import Verbs


class LeaseVerbs(Verbs):
    __slots__ = ()

    async def receive(
        self,
        topic: str,
        subscription: str,
        *,
        consumer: str,
        limit: int,
        wait: float,
        lease_seconds: float | None,
    ) -> list[Received]:
        """Waits for messages and returns them under leases; see `Leasing.receive`."""
        door, parsed = self._door, parse_topic(topic)
        record = await door.topics.lookup(
            self._principal, Action.SUBSCRIPTION_CONSUME, topic, subscription=subscription
        )
        partitions = [parsed] if parsed.partition is not None else record.partition_names()
        return await door.leasing.receive(
            self._session,
            partitions,
            subscription,
            consumer=consumer,
            limit=limit,
            wait=wait,
            lease_seconds=lease_seconds,
        )

    def is_open(self, lease: Lease) -> bool:
        return self._door.leasing.is_open(lease)

    def release(self, leases: Sequence[Lease]) -> None:
        """Ends leases whose messages were not handed out after all."""
        self._door.leasing.release(leases)

    def fail(self, leases: Sequence[Lease], reason: str) -> None:
        """Marks messages as failed because they cannot be handed out."""
        self._door.leasing.fail(leases, reason)

    async def ack(self, topic: str, subscription: str, tokens: Sequence[str]) -> list[str]:
        """Acknowledges durably; returns the tokens that are void."""
        return await self._door.leasing.ack(self._session, topic, subscription, tokens)

    def nack(
        self, topic: str, subscription: str, tokens: Sequence[str], delay_seconds: float, reason: str
    ) -> list[str]:
        """The messages failed, and are redelivered. Returns tokens of ended leases, which are redelivered anyway."""
        self._ask_consume(topic, subscription)
        return self._door.leasing.nack(topic, subscription, tokens, delay_seconds, reason)

    def extend(self, topic: str, subscription: str, tokens: Sequence[str], lease_seconds: float) -> list[str]:
        """The leases end `lease_seconds` from now. Returns the tokens of those that have already ended."""
        self._ask_consume(topic, subscription)
        return self._door.leasing.extend(topic, subscription, tokens, lease_seconds)

    def _ask_consume(self, topic: str, subscription: str) -> None:
        self._door.topics.ask(self._principal, Action.SUBSCRIPTION_CONSUME, parse_topic(topic), subscription)
