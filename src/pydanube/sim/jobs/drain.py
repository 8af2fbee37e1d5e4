"""After healing: jobs end, nothing stays reserved or hidden, each batch is there once; also in the next life."""

from __future__ import annotations

import asyncio

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError
from pydanube.broker.commit.sinks import staging_topic
from pydanube.broker.door.door import Door
from pydanube.broker.topic.topic import Topic
from pydanube.sim.jobs.clients import Clients, ProducerMemory
from pydanube.sim.jobs.world import PLACES, STAGED_BYTES_MAX, SinkWorld
from pydanube.sim.streams.reading import read_all
from pydanube.topic.sinks import SinkRecord

STAGED_BYTES_SPARE = 60_000  # what one more batch, and a repetition of it, may leave


async def drain_sinks(world: SinkWorld) -> None:
    await _done(world)
    world.batches += 1  # one more of each, now that nothing fails: what is left of others goes with it
    await _done(world)
    await _publish_more(world)
    door = await _idle(world)
    for writer in world.sinks.writers.values():
        staged = await _topic(door, staging_topic(writer.key))
        size = staged.ledger.stream.bytes
        small = size <= STAGED_BYTES_MAX + STAGED_BYTES_SPARE
        world.history.check(small, "I9", f"{writer.name} left {size} bytes where it stages")
    await _cut_in_a_commit(world)
    door = await _idle(world)  # nobody asks any more: what was decided is finished all the same
    expected = {place: world.history.expected(place) for place in PLACES}
    found = await _read(world, door)
    world.kill(world.broker)
    world.restart(world.broker)
    again = await _read(world, await _idle(world))
    for place in PLACES:
        world.history.check(again[place] == found[place], "I1", f"{place} is not the same after a restart")
        world.history.final(place, again[place], expected[place])
    world.sinks.final({place: [(offset, payload) for offset, payload, _ in again[place]] for place in PLACES})


async def _cut_in_a_commit(world: SinkWorld) -> None:
    """The power goes while jobs write one more batch, and they do not come again."""

    def cut() -> None:
        world.over = True
        world.power_cut(world.broker)
        world.restart(world.broker)

    world.armed[:] = [cut]
    world.batches += 1
    while not world.over:  # noqa: ASYNC110 - it does not tell, it is asked
        await asyncio.sleep(0.05)


def explain_sinks(world: SinkWorld) -> str:
    parts = [f"{writer.name} is at {writer.batch} of {world.batches}" for writer in world.sinks.writers.values()]
    door = world.door
    if door is None:
        return "the broker does not serve"
    for opened in door.topics.opened():
        if isinstance(opened.topic, Topic) and opened.topic.reserved:
            parts.append(f"{opened.name} is reserved from {opened.topic.ledger.hidden_from}")
    parts += [f"{record.key.query} has not finished {record.batch}" for record in _undone(door)]
    parts += [f"{each.name or 'p'} of {each.place} has no answer" for each in world.producers if each.pending]
    return ", ".join(parts)


def _undone(door: Door) -> list[SinkRecord]:
    return [record for record in door.sinks.listed() if not record.committed]


async def _serving(world: SinkWorld) -> Door:
    while world.door is None:  # noqa: ASYNC110 - the broker does not tell, it is asked
        await asyncio.sleep(0.05)
    return world.door


async def _done(world: SinkWorld) -> None:
    writers = world.sinks.writers.values()
    while any(writer.batch < world.batches for writer in writers):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)
    while any(producer.pending for producer in world.producers if producer.name):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.05)


async def _idle(world: SinkWorld) -> Door:
    """All that was decided is finished."""
    while True:
        door = await _serving(world)
        topics = [each.topic for each in door.topics.opened() if isinstance(each.topic, Topic)]
        hidden = [topic for topic in topics if topic.reserved or topic.ledger.hidden_from is not None]
        if not hidden and not _undone(door):
            return door
        await asyncio.sleep(0.05)


async def _topic(door: Door, name: str) -> Topic:
    return (await door.topics.open(SYSTEM, Action.TOPIC_READ, name)).reliable


async def _publish_more(world: SinkWorld) -> None:
    """Everybody may publish again."""
    for place in PLACES:
        memory = ProducerMemory(place, "")
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
    return {place: await read_all(world.history, (await _topic(door, place)).ledger.stream) for place in PLACES}
