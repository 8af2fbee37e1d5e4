"""A query's progress, recorded on the broker as a subscription, so that its lag is visible and retention waits for it.

The driver is the subscription's only consumer and requests no messages; it only acknowledges what the query has
processed. So a second query under the same name is refused. If the broker did not notice that a connection broke, the
same query takes over from itself. Without a driver, the subscription is idle, and is deleted after the time that its
query has set.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from pydanube.base.errors import ConsumerBusy, DanubeError, SubscriptionInUse
from pydanube.client import Client
from pydanube.client.arguments import options_of
from pydanube.client.channel import ReopeningChannel
from pydanube.operations.channels import OpenConsumer, OpenedConsumer
from pydanube.spark.broker_link import with_retries
from pydanube.spark.offsets import Offsets
from pydanube.spark.plan import States
from pydanube.wire.commands import Ack

log = logging.getLogger(__name__)
TAKEOVER_KEEPALIVES = 2.5  # a dead connection ends after two, and is checked every half
RETRY_SECONDS = 0.1


class SubscriptionProgress:
    """The progress of one query, with a channel to each partition. Belongs to the loop of its client."""

    def __init__(
        self, client: Client, subscription: str, *, release: bool = False, idle_seconds: int | None = None
    ) -> None:
        """Without `release`, the subscription only holds messages, so that an experiment deletes no history."""
        self._client = client
        self._subscription = subscription
        self._options = {"holds_only": not release, "idle_seconds": idle_seconds}
        self._channels: dict[str, ProgressChannel] = {}
        self._configured: set[str] = set()  # topics in which the subscription has this query's options
        self._name = f"spark-{uuid4().hex}"  # the broker recognizes this query by it

    async def reached(self, known: Offsets, states: States) -> None:
        """Everything before these offsets is processed. Raises `SubscriptionInUse` if another query uses the name."""
        for name, offsets in known.items():
            state = states.get(name)
            if state is None:  # it no longer exists; a later topic with its name is another one
                self._channels = {key: each for key, each in self._channels.items() if each.topic != name}
                self._configured.discard(name)
                continue
            for number, offset in enumerate(offsets.next):
                partition = state.partition_name(number)
                if partition not in self._channels:
                    self._channels[partition] = await self._open(name, partition, offset)
                self._channels[partition].advance(min(offset, state.ends[number]))
            if name not in self._configured:
                await self._configure(name)

    async def _open(self, topic: str, partition: str, offset: int) -> ProgressChannel:
        until = self._client.loop.time() + await takeover_seconds(self._client)
        channel = ProgressChannel(self._client, topic, partition, self._subscription, offset, self._name, self._options)
        while True:
            try:
                await self._client.within("open_consumer", channel.open())
                return channel
            except ConsumerBusy:
                if self._client.loop.time() > until:
                    raise channel.in_use() from None
            await asyncio.sleep(RETRY_SECONDS)

    async def _configure(self, topic: str) -> None:
        """An existing subscription gets this query's options."""
        admin = self._client.admin
        await with_retries(lambda: admin.alter_subscription(topic, self._subscription, options=self._options))
        self._configured.add(topic)

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close_channel()
        self._channels.clear()


async def takeover_seconds(client: Client) -> float:
    """How long a subscription can be held by a consumer that has died."""
    welcome = (await client.connection()).welcome
    assert welcome is not None, "a connection that is handed out has been welcomed"
    return TAKEOVER_KEEPALIVES * welcome.keepalive_seconds


class ProgressChannel(ReopeningChannel[OpenedConsumer]):
    """The driver's channel to the subscription in one partition, which reopens whenever it breaks."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partition: str,
        subscription: str,
        start: int,
        name: str,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(client)
        self.topic = topic
        self._partition = partition
        self._subscription = subscription
        self._start = start
        self._name = name
        self._options = options_of({key: value for key, value in options.items() if value is not None})
        self._done = 0  # everything before it is processed
        self._generation = 0
        self._lost: DanubeError | None = None

    def in_use(self) -> SubscriptionInUse:
        return SubscriptionInUse(f"{self._subscription!r} on {self._partition} is in use by a running query")

    def opening(self, channel: int) -> OpenConsumer:
        return OpenConsumer(
            channel=channel,
            topic=self._partition,
            subscription=self._subscription,
            name=self._name,
            start=self._start,
            create=False,
            resume=self.mark,
            options=self._options,
            takes_over=True,
        )

    def opened(self, answer: OpenedConsumer) -> None:
        self._generation = answer.generation
        if self._done:
            self._acknowledge()

    def interrupted(self, error: DanubeError) -> None:
        log.info("progress of %s: %s; it will be reported when the broker is back", self._partition, error)

    def given_up(self, error: DanubeError) -> None:
        self._lost = error

    def reset(self, generation: int) -> None:
        """The subscription was moved, for example by a seek: the next report of the query counts again."""
        self._generation = generation

    def refused(self, request: int, error: DanubeError) -> None:
        log.warning("the broker did not accept the progress of %s: %s", self._partition, error)

    def advance(self, offset: int) -> None:
        """Never moves back. The broker makes it durable before retention uses it."""
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args)
        if isinstance(self.reason, ConsumerBusy) and self.connection is None:
            raise self.in_use()
        if offset > self._done:
            self._done = offset
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self.connection is not None:
            last = self._done - 1
            request = self.connection.next_request()
            self.connection.write(Ack(self.number, request, self._generation, [(last, last)], True).encode())
