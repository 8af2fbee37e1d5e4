"""After healing, jobs finish, nothing stays hidden, and each batch exists once, even after a restart."""

from __future__ import annotations

import asyncio

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError
from pydanube.broker.commit.sinks import staging_topic
from pydanube.broker.door.door import Door
from pydanube.broker.topic.topic import Topic
from pydanube.sim.jobs.clients import Clients, ProducerMemory
from pydanube.sim.jobs.world import PARTITIONS, STAGED_BYTES_MAX, SinkWorld
from pydanube.sim.streams.reading import read_all
from pydanube.topic.sinks import SinkRecord

STAGED_BYTES_SPARE = 60_000  # what one more batch and its repetition may leave behind


async def drain_sinks(world: SinkWorld) -> None:
    await _done(world)
    world.batches += 1  # one more batch of each, now that nothing fails: it cleans up after the others
    await _done(world)
    await _publish_more(world)
    door = await _idle(world)
    for writer in world.sinks.writers.values():
        staged = await _topic(door, staging_topic(writer.key))
        size = staged.ledger.stream.bytes
        small = size <= STAGED_BYTES_MAX + STAGED_BYTES_SPARE
        world.history.check(small, "I9", f"{writer.name} left {size} bytes in its staging topic")
    await _cut_in_a_commit(world)
    door = await _idle(world)  # no job asks any more: decided batches are finished nevertheless
    expected = {partition: world.history.expected(partition) for partition in PARTITIONS}
    found = await _read(world, door)
    world.kill(world.broker)
    world.restart(world.broker)
    again = await _read(world, await _idle(world))
    for partition in PARTITIONS:
        world.history.check(again[partition] == found[partition], "I1", f"{partition} is not the same after a restart")
        world.history.check_final(partition, again[partition], expected[partition])
    world.sinks.check_final({name: [(offset, payload) for offset, payload, _ in rows] for name, rows in again.items()})


async def _cut_in_a_commit(world: SinkWorld) -> None:
    """Cuts the power while jobs write one more batch. They do not come back."""

    def cut() -> None:
        world.over = True
        world.power_cut(world.broker)
        world.restart(world.broker)

    world.waiting_faults[:] = [cut]
    world.batches += 1
    while not world.over:  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(0.05)


def explain_sinks(world: SinkWorld) -> str:
    parts = [f"{writer.name} is at {writer.batch} of {world.batches}" for writer in world.sinks.writers.values()]
    door = world.door
    if door is None:
        return "the broker does not serve"
    for each in door.topics.opened():
        if isinstance(each.topic, Topic) and each.topic.filler.open is not None:
            parts.append(f"{each.name} is hidden from {each.topic.ledger.hidden_from}")
    parts += [f"{record.key.query} has not finished {record.batch}" for record in _undone(door)]
    parts += [f"{each.name or 'p'} of {each.partition} has no answer" for each in world.producers if each.pending]
    return ", ".join(parts)


def _undone(door: Door) -> list[SinkRecord]:
    return [record for record in door.sinks.listed() if not record.committed]


async def _serving(world: SinkWorld) -> Door:
    while world.door is None:  # noqa: ASYNC110 - nothing reports it
        await asyncio.sleep(0.05)
    return world.door


async def _done(world: SinkWorld) -> None:
    writers = world.sinks.writers.values()
    while any(writer.batch < world.batches for writer in writers):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    while any(producer.pending for producer in world.producers if producer.name):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)


async def _idle(world: SinkWorld) -> Door:
    """Waits until every decided batch is finished."""
    while True:
        door = await _serving(world)
        topics = [each.topic for each in door.topics.opened() if isinstance(each.topic, Topic)]
        hidden = [topic for topic in topics if topic.filler.open is not None or topic.ledger.hidden_from is not None]
        if not hidden and not _undone(door):
            return door
        await asyncio.sleep(0.05)


async def _topic(door: Door, name: str) -> Topic:
    return (await door.topics.open(SYSTEM, Action.TOPIC_READ, name)).reliable


async def _publish_more(world: SinkWorld) -> None:
    """Checks that every partition accepts messages again."""
    for partition in PARTITIONS:
        memory = ProducerMemory(partition, "")
        for count in range(3):
            while not await _published(world, memory, -1 - count):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.1)


async def _published(world: SinkWorld, memory: ProducerMemory, number: int) -> bool:
    memory.sent = number - 1
    try:
        await Clients(world, await _serving(world)).publish_one(memory)
    except DanubeError:
        return False
    return True


async def _read(world: SinkWorld, door: Door) -> dict[str, list[tuple[int, bytes, int]]]:
    return {
        partition: await read_all(world.history, (await _topic(door, partition)).ledger.stream)
        for partition in PARTITIONS
    }
