"""The producers of simulated topics: one without a name, and named ones that resend until they have an answer."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pydanube.base.errors import DanubeError, OffsetUnknown, SequenceGap, SequenceOverlap, SequenceUnknown
from pydanube.base.limits import SECOND
from pydanube.sim.machine.clock import EPOCH_SECONDS
from pydanube.sim.topics.sessions import ClientProducer
from pydanube.wire.batch import Batch, Codec, build

if TYPE_CHECKING:
    from pydanube.sim.topics.broker import TopicBroker
    from pydanube.sim.topics.memory import ProducerMemory, TopicMemory

KEYS = 5
UNEXPECTED = (SequenceGap, SequenceOverlap, SequenceUnknown, OffsetUnknown)  # never correct


async def publish_unnamed(broker: TopicBroker, memory: TopicMemory) -> None:
    """Unanswered batches may be stored or not."""
    handle = None
    while has_more(broker, memory):
        memory.sent += 1
        origin = f"-/{broker.name}/{broker.world.loop.events}"
        batch = batch_of(broker, memory, origin, 0, broker.random.choice((1, 2, 4)))
        handle = await publish_once(broker, memory, batch, handle)
        await asyncio.sleep(broker.random.uniform(0.0, 2 * _pause(broker, memory)))


async def publish_once(
    broker: TopicBroker, memory: TopicMemory, batch: Batch, handle: ClientProducer | None = None
) -> ClientProducer | None:
    """Returns the producer's handle if the batch is confirmed."""
    try:
        handle = handle or await broker.session.open_producer(memory.name)
    except DanubeError as error:
        broker.world.loop.trace("refused", memory.name, error.code)
        return None
    if await publish(broker, handle, memory, batch):
        return handle
    handle.let_go()
    return None


async def publish(broker: TopicBroker, handle: ClientProducer, memory: TopicMemory, batch: Batch) -> bool:
    """Publishes a batch, and records it if it is confirmed. Returns whether it is."""
    world = broker.world
    try:
        offset = await handle.publish(batch)
    except DanubeError as error:
        world.loop.trace("refused", memory.name, error.code)
        if isinstance(error, UNEXPECTED):
            world.history.check(False, "I11", f"{memory.name}: {error.code}: {error}")
        return False
    confirm(broker, memory, batch, offset)
    return True


def confirm(broker: TopicBroker, memory: TopicMemory, batch: Batch, offset: int) -> None:
    world = broker.world
    world.loop.trace("published", memory.name, offset, batch.count)
    if world.tiered:
        world.tier.published(memory.stream, offset, batch)
    for row, (payload, key) in enumerate(zip(batch.payloads(), batch.keys(), strict=True)):
        world.history.ack(memory.name, offset + row, payload or b"")
        memory.history.publish(offset + row, payload or b"", key)


async def publish_named(broker: TopicBroker, memory: TopicMemory, producer: ProducerMemory, life: int) -> None:
    """Resends an unanswered batch until it is answered. Sometimes the producer loses the answer."""
    draw, world = broker.random, broker.world
    handle = None
    while has_more(broker, memory) or producer.pending is not None:
        if memory.history.instance != life:
            return  # the topic has a new owner
        try:
            handle = handle or await broker.session.open_producer(memory.name, producer.name)
            if producer.pending is None:
                memory.sent += 1
                producer.pending = batch_of(
                    broker, memory, producer.name, producer.next_sequence, draw.choice((1, 1, 3))
                )
            batch = _of(producer.pending, handle.producer_id)
            answer = handle.publish(batch)
            if draw.random() < 0.2:
                await asyncio.sleep(draw.uniform(0.0, 0.02))
                answer = handle.publish(batch)  # as if the answer had been lost
            offset = await answer
        except UNEXPECTED as error:
            excused = memory.history.instance != life or memory.history.lossy  # or the state was lost
            world.history.check(excused, "I11", f"{producer.name}: {error.code}: {error}")
            producer.pending = None
            return
        except DanubeError as error:
            world.loop.trace("refused", producer.name, error.code)
            if handle is not None:
                handle.let_go()
            handle = None
            await asyncio.sleep(draw.uniform(0.02, 0.2))
            continue
        confirm(broker, memory, batch, offset)
        if draw.random() < 0.8:  # otherwise the client dies before it remembers the answer
            producer.answered(batch)
        await asyncio.sleep(draw.uniform(0.0, 2 * _pause(broker, memory)))


def _of(pending: Batch, producer: int) -> Batch:
    return build(
        pending.payloads(),
        publish_time=pending.publish_time,
        keys=pending.keys(),
        producer_id=producer,
        first_sequence=pending.first_sequence,
    )


def has_more(broker: TopicBroker, memory: TopicMemory) -> bool:
    return memory.sent < broker.world.plan.messages and not broker.world.healed


def _pause(broker: TopicBroker, memory: TopicMemory) -> float:
    plan = broker.world.plan
    return (1 + len(memory.producers)) * plan.seconds / plan.messages


def batch_of(broker: TopicBroker, memory: TopicMemory, origin: str, first_sequence: int, count: int) -> Batch:
    draw = broker.random
    pad = b"." * draw.choice((0, 10, 200))
    payloads = [f"{memory.name}/{origin}/{first_sequence + part}".encode() + pad for part in range(count)]
    delayed = draw.random() < 0.1
    now = round(
        (EPOCH_SECONDS + broker.world.loop.time()) * SECOND
    )  # the client's clock is right, whatever the broker's
    return build(
        payloads,
        publish_time=broker.door.clock.wall(),
        keys=[f"k{draw.randrange(KEYS)}" for _ in payloads],
        delivery_times=[now + draw.randrange(SECOND) for _ in payloads] if delayed else None,
        first_sequence=first_sequence,
        codec=draw.choice((Codec.NONE, Codec.NONE, Codec.LZ4)),
    )
