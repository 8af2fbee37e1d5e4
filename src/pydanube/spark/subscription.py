"""A query's progress, kept on the broker as a subscription: its lag is seen there, and retention waits for it.

The driver is the subscription's one consumer and asks for no messages; it only says how far the query has come. So a
second query under the same name finds it taken; where its own channel broke unnoticed by the broker, a query takes over
what it held. Without a driver it is idle, and goes after as long as its query says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from pydanube.base.errors import ConsumerBusy, DanubeError, SubscriptionInUse
from pydanube.client import Client
from pydanube.client.channel import ReopeningChannel
from pydanube.spark.broker_link import with_retries
from pydanube.spark.offsets import Offsets
from pydanube.spark.plan import States
from pydanube.wire.commands import Ack

log = logging.getLogger(__name__)
TAKEOVER_KEEPALIVES = 2.5  # a connection that nobody is at any more ends after two, and is looked at every half
RETRY_SECONDS = 0.1


class Progress:
    """Of one query: a place on the broker for each partition. Belongs to the loop of its client."""

    def __init__(
        self, client: Client, subscription: str, *, release: bool = False, idle_seconds: int | None = None
    ) -> None:
        """Unless `release` is said, the subscription only holds: a query that is tried out deletes no history."""
        self._client = client
        self._subscription = subscription
        self._options = {"holds_only": not release, "idle_seconds": idle_seconds}
        self._marks: dict[str, Mark] = {}
        self._settled: set[str] = set()  # topics in which the subscription has its options
        self._name = f"spark-{uuid4().hex}"  # by which the broker knows this query again

    async def reached(self, known: Offsets, states: States) -> None:
        """Everything below these offsets is done. Raises `SubscriptionInUse` if another query has the name."""
        for name, offsets in known.items():
            state = states.get(name)
            if state is None:  # gone; one that gets its name later is another
                self._marks = {place: mark for place, mark in self._marks.items() if mark.topic != name}
                self._settled.discard(name)
                continue
            for number, offset in enumerate(offsets.next):
                place = state.place(number)
                if place not in self._marks:
                    self._marks[place] = await self._open(name, place, offset)
                self._marks[place].advance(min(offset, state.ends[number]))
            if name not in self._settled:
                await self._settle(name)

    async def _open(self, topic: str, place: str, offset: int) -> Mark:
        until = self._client.loop.time() + await takeover_seconds(self._client)
        mark = Mark(self._client, topic, place, self._subscription, offset, self._name, self._options)
        while True:
            try:
                await self._client.within("open_consumer", mark.open())
                return mark
            except ConsumerBusy:
                if self._client.loop.time() > until:
                    raise mark.in_use() from None
            await asyncio.sleep(RETRY_SECONDS)

    async def _settle(self, topic: str) -> None:
        """One that was there before goes by what this query says."""
        admin = self._client.admin
        await with_retries(lambda: admin.alter_subscription(topic, self._subscription, options=self._options))
        self._settled.add(topic)

    async def close(self) -> None:
        for mark in self._marks.values():
            await mark.close_channel()
        self._marks.clear()


async def takeover_seconds(client: Client) -> float:
    """How long a subscription can be held by somebody who is gone."""
    welcome = (await client.connection()).welcome
    assert welcome is not None, "a connection that is handed out has been welcomed"
    return TAKEOVER_KEEPALIVES * welcome.keepalive_seconds


class Mark(ReopeningChannel):
    """The driver's channel to the subscription in one partition, opened again whenever it breaks."""

    def __init__(
        self,
        client: Client,
        topic: str,
        place: str,
        subscription: str,
        start: int,
        name: str,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(client)
        self.topic = topic
        self._place = place
        self._subscription = subscription
        self._start = start
        self._name = name
        self._options = {key: value for key, value in options.items() if value is not None}
        self._done = 0  # everything below it
        self._generation = 0
        self._lost: DanubeError | None = None

    def in_use(self) -> SubscriptionInUse:
        return SubscriptionInUse(f"{self._subscription!r} on {self._place} is in use by a running query")

    def opening(self) -> tuple[str, dict[str, Any]]:
        fields = {
            "topic": self._place,
            "subscription": self._subscription,
            "type": "exclusive",
            "start": self._start,
            "name": self._name,
            "takes_over": True,
            "create": False,
            "options": self._options,
        }
        return "open_consumer", fields

    def opened(self, reply: Mapping[str, Any]) -> None:
        self._generation = int(reply["generation"])
        if self._done:
            self._say()

    def interrupted(self, error: DanubeError) -> None:
        log.info("progress of %s: %s; it will be reported when the broker is back", self._place, error)

    def given_up(self, error: DanubeError) -> None:
        self._lost = error

    def reset(self, generation: int) -> None:
        """Somebody sought it elsewhere: what the query says next counts again."""
        self._generation = generation

    def refused(self, request: int, error: DanubeError) -> None:
        log.warning("the broker did not accept the progress of %s: %s", self._place, error)

    def advance(self, offset: int) -> None:
        """Never back. The broker makes it durable before it lets retention know."""
        if self._lost is not None:
            raise type(self._lost)(*self._lost.args)
        if isinstance(self.reason, ConsumerBusy) and self.connection is None:
            raise self.in_use()
        if offset > self._done:
            self._done = offset
            self._say()

    def _say(self) -> None:
        if self.connection is not None:
            last = self._done - 1
            request = self.connection.next_request()
            self.connection.write(Ack(self.number, request, self._generation, [(last, last)], True).encode())
