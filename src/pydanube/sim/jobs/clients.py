"""The other clients of the topics that jobs write to: named and unnamed producers, watchers of the end, readers."""

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
WATCH_SECONDS = 0.5  # at most, between two checks of the end


@dataclass(slots=True)
class ProducerMemory:
    """What a producer remembers, also while the broker is down."""

    partition: str
    name: str  # "" for an unnamed producer, which does not resend unanswered batches
    sent: int = 0
    sequence: int = 1
    pending: list[bytes] = field(default_factory=list)  # sent, but not answered


class Clients:
    """The clients of one life of the broker."""

    def __init__(self, world: SinkWorld, door: Door) -> None:
        self._world = world
        self._door = door
        self._session = door.session(ANONYMOUS, Origin("sim"))
        self._random = world.loop.fork_random(f"clients/{world.loop.events}")

    async def _topic(self, partition: str) -> tuple[OpenTopic, Topic]:
        open_topic = await self._door.topics.open(ANONYMOUS, Action.TOPIC_PUBLISH, partition)
        return open_topic, open_topic.reliable

    async def publish(self, memory: ProducerMemory) -> None:
        while memory.pending or not self._world.healed:
            try:
                await self.publish_one(memory)
            except DanubeError as error:
                self._world.loop.trace("refused", memory.partition, memory.name, error.code)
            await asyncio.sleep(self._random.uniform(0.0, 0.15))

    async def publish_one(self, memory: ProducerMemory) -> None:
        """Publishes one batch. A named producer resends the unanswered one, if there is one."""
        draw, clock = self._random, self._door.clock
        open_topic, topic = await self._topic(memory.partition)
        if not memory.name or not memory.pending:
            memory.sent += 1
            label = f"p{memory.name}/{memory.partition}/{memory.sent}"
            memory.pending = [f"{label}/{row}".encode() for row in range(draw.choice((1, 1, 3)))]
        payloads = memory.pending
        if not memory.name:
            memory.pending = []
            receipt = open_topic.publish(build(payloads, publish_time=clock.wall()), 0)
        else:
            session = await topic.attach(memory.name)
            batch = build(
                payloads, publish_time=clock.wall(), producer_id=session.producer, first_sequence=memory.sequence
            )
            receipt = open_topic.publish(batch, session.epoch)
        await receipt.confirmed
        if memory.name:
            memory.sequence += len(payloads)
            memory.pending = []
        for number, payload in enumerate(payloads):
            self._world.history.ack(memory.partition, receipt.offset + number, payload)

    async def watch(self, partition: str) -> None:
        """Records every change of the end of a partition."""
        while True:
            try:
                _, topic = await self._topic(partition)
            except DanubeError:
                await asyncio.sleep(0.1)
                continue
            end, filling = topic.ledger.confirmed_end, topic.state.fills.open
            self._world.sinks.ends_at(partition, end)
            self._world.sinks.hides(partition, topic.ledger.hidden_from, None if filling is None else filling.first)
            await topic.wait_beyond(end, self._random.uniform(0.0, WATCH_SECONDS))

    async def read(self, partition: str) -> None:
        """Reads from any offset, also from far behind, where nothing is cached."""
        while True:
            await asyncio.sleep(self._random.uniform(0.0, 0.4))
            try:
                first, end = await self._session.bounds(partition)
                self._world.sinks.ends_at(partition, end)
                batches = await self._session.read(partition, self._random.randint(first, end), READ_BYTES)
                _, end = await self._session.bounds(partition)
            except DanubeError as error:
                self._world.loop.trace("unread", partition, error.code)
                continue
            for batch in batches:
                for number, payload in enumerate(batch.payloads()):
                    self._world.sinks.saw(partition, batch.base_offset + number, payload or b"", end)

    async def roll(self) -> None:
        """Rolls ledgers and rewrites states at any time, of these topics and of the staging topics."""
        while not self._world.healed:
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
            open_topic = self._random.choice(self._door.topics.opened())
            if isinstance(open_topic.topic, Topic):
                open_topic.topic.ledger.stream.roll()
                if self._random.random() < 0.3:
                    open_topic.topic.rewrite_state()
