"""Who else uses the topics that jobs write to: producers with and without names, watchers of the end, readers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydanube.access.principals import ANONYMOUS
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.topic.topic import Topic
from pydanube.wire.batch import build

if TYPE_CHECKING:
    from pydanube.sim.jobs.world import SinkWorld

READ_BYTES = 4_000
WATCH_SECONDS = 0.5  # at most, between two looks at the end


@dataclass(slots=True)
class ProducerMemory:
    """What a client remembers of its own, also when the broker was away."""

    place: str
    name: str  # "" for one without: what it has no answer for it does not send again
    sent: int = 0
    sequence: int = 1
    pending: list[bytes] = field(default_factory=list)  # without an answer


class Clients:
    """Those of one life of the broker."""

    def __init__(self, world: SinkWorld, door: Door) -> None:
        self._world = world
        self._door = door
        self._session = door.session(ANONYMOUS, Origin("sim"))
        self._random = world.loop.fork_random(f"clients/{world.loop.events}")

    async def _topic(self, place: str) -> tuple[OpenTopic, Topic]:
        opened = await self._door.topics.open(ANONYMOUS, Action.TOPIC_PUBLISH, place)
        return opened, opened.reliable

    async def publish(self, memory: ProducerMemory) -> None:
        while memory.pending or not self._world.healed:
            try:
                await self.publish_one(memory)
            except DanubeError as error:
                self._world.loop.trace("refused", memory.place, memory.name, error.code)
            await asyncio.sleep(self._random.uniform(0.0, 0.15))

    async def publish_one(self, memory: ProducerMemory) -> None:
        """One batch. With a name it is the one without an answer, if there is one."""
        draw, clock = self._random, self._door.clock
        opened, topic = await self._topic(memory.place)
        if not memory.name or not memory.pending:
            memory.sent += 1
            label = f"p{memory.name}/{memory.place}/{memory.sent}"
            memory.pending = [f"{label}/{row}".encode() for row in range(draw.choice((1, 1, 3)))]
        payloads = memory.pending
        if not memory.name:
            memory.pending = []
            receipt = opened.publish(build(payloads, publish_time=clock.wall()), 0)
        else:
            session = await topic.attach(memory.name)
            batch = build(
                payloads, publish_time=clock.wall(), producer_id=session.producer, first_sequence=memory.sequence
            )
            receipt = opened.publish(batch, session.epoch)
        await receipt.confirmed
        if memory.name:
            memory.sequence += len(payloads)
            memory.pending = []
        for number, payload in enumerate(payloads):
            self._world.history.ack(memory.place, receipt.offset + number, payload)

    async def watch(self, place: str) -> None:
        """Looks at every change of the end."""
        while True:
            try:
                _, topic = await self._topic(place)
            except DanubeError:
                await asyncio.sleep(0.1)
                continue
            end = topic.ledger.confirmed_end
            self._world.sinks.ends_at(place, end)
            await topic.wait_beyond(end, self._random.uniform(0.0, WATCH_SECONDS))

    async def read(self, place: str) -> None:
        """From anywhere; also far behind, where nothing is cached."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 0.4))
            try:
                first, end = await self._session.bounds(place)
                self._world.sinks.ends_at(place, end)
                batches = await self._session.read(place, self._random.randint(first, end), READ_BYTES)
                _, end = await self._session.bounds(place)
            except DanubeError as error:
                self._world.loop.trace("unread", place, error.code)
                continue
            for batch in batches:
                for number, payload in enumerate(batch.payloads()):
                    self._world.sinks.saw(place, batch.base_offset + number, payload or b"", end)

    async def roll(self) -> None:
        """Ledgers end at any time, of these topics and of those where rows are staged."""
        while not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
            opened = self._random.choice(self._door.topics.opened())
            if isinstance(opened.topic, Topic):
                opened.topic.ledger.stream.roll()
