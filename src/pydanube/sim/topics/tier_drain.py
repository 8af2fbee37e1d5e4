"""The cold tier after healing: losses are reported, everything else is intact, and topics can be removed completely."""

from __future__ import annotations

import asyncio
from collections import Counter

from pydanube.access.principals import SYSTEM
from pydanube.base.errors import SegmentDamaged, SegmentMissing
from pydanube.broker.topic.topic import Topic
from pydanube.metadata.tables import STREAMS
from pydanube.sim.streams.reading import read_patiently
from pydanube.sim.topics.broker import TopicBroker
from pydanube.sim.topics.drain import find_owner
from pydanube.sim.topics.tiering import LISTED_MAX, segments_of, tier_settings
from pydanube.sim.topics.world import TopicWorld
from pydanube.storage.metadata.table import Table
from pydanube.storage.stream.cold import ColdReader
from pydanube.stream.assignment import state_stream
from pydanube.stream.cold import SegmentIndex
from pydanube.stream.record import StreamRecord
from pydanube.stream.tiering import next_segment, outlived

READ_BYTES = 50_000
ENTRIES_MAX = 4 * LISTED_MAX  # of one level, with those of unfolded indexes that are not deleted yet


async def check_losses(world: TopicWorld) -> None:
    """Reads every segment while some objects are lost or damaged: errors name them, and all others are readable."""
    objects = world.objects
    for name in world.owners:
        stream = world.topics[name].stream
        record = world.tier.records.get(stream, StreamRecord())
        segments = segments_of(world)
        reader = ColdReader(segments)
        for key, segment in world.tier.segments(stream, record.cold).items():
            path = [key, *world.tier.indexes_over(stream, record.cold.entries, segment.first)]
            broken = [each for each in path if each in objects.lost or each in objects.damaged]
            try:
                batches = await reader.read(stream, record.cold, segment.first, READ_BYTES)
            except (SegmentMissing, SegmentDamaged) as error:
                world.tier.check_report(error)
                gone = world.tier.records[stream].cold != record.cold  # it was deleted in the meantime
                world.history.check(bool(broken) or gone, "I7", f"{key} is intact, but cannot be read: {error}")
                continue
            intact = key not in objects.lost  # in a damaged object, another part may have been read
            world.history.check(intact, "I7", f"{key} is lost, but was read")
            world.tier.read(stream, segment.first, batches, first=segment.first, lossy=_lossy(world, name))
    objects.restore()


async def drain_tier(world: TopicWorld) -> None:
    """Waits until all tiering is done, restarts the brokers, reads everything, and removes every topic."""
    for number, name in enumerate(world.owners):
        while not _settled(world, *await find_owner(world, name, number)):  # noqa: ASYNC110
            await asyncio.sleep(0.2)
    for machine in world.brokers:
        world.kill(machine)
        world.start(machine)
    for number, name in enumerate(world.owners):
        broker, topic = await find_owner(world, name, number)
        topic.pinned = True  # nothing is deleted while it is read
        await _read_all(world, name, topic)
        topic.pinned = False
        while not _settled(world, broker, topic):
            await asyncio.sleep(0.2)
            broker, topic = await find_owner(world, name, number)
        _check_record(world, name)
        await _remove(world, name, broker)


def explain_tier(world: TopicWorld) -> str:
    """What is left to do for each topic, and the errors that the broker reports."""
    reasons = []
    for name, owner in world.owners.items():
        broker = world.hosts.get(owner)
        if broker is not None and broker.door.tiering is not None:
            stream = world.topics[name].stream
            cold = world.tier.records.get(stream, StreamRecord()).cold
            reasons.append(
                f"{name}: planned {cold.planned}, {len(cold.doomed)} doomed, {broker.door.tiering.troubles.of(stream)}"
            )
    return "; ".join(reasons)


def _settled(world: TopicWorld, broker: TopicBroker, topic: Topic) -> bool:
    """Whether nothing is in progress or due."""
    settings, record, now = tier_settings(world), topic.ledger.stream.record, broker.door.clock.wall()
    cold = record.cold
    return not (
        topic.lost
        or cold.planned
        or cold.doomed
        or next_segment(record, settings, now) is not None
        or outlived(record, settings, now)
        or cold.to_fold(LISTED_MAX)
        or (cold.entries and cold.entries[0].last < record.kept_from)
    )


def _lossy(world: TopicWorld, name: str) -> bool:
    return world.topics[name].history.lossy


async def _read_all(world: TopicWorld, name: str, topic: Topic) -> None:
    """Checks that only deleted messages are missing, and each row is as it was published."""
    stream, offset = topic.ledger.stream, topic.ledger.first
    first = offset
    memory = world.topics[name]
    if memory.keeps_everything:
        asked = memory.history.truncated
        known = [each for each in world.tier.rows.get(memory.stream, {}) if asked <= each < offset]
        if memory.history.lossy:  # a power cut takes what a buffered topic has not uploaded
            known = [each for each in known if world.tier.was_published(memory.stream, each)]
        world.history.check(not known, "I1", f"{name} begins at {offset}, but {known[:3]} must be kept forever")
    while offset < topic.ledger.confirmed_end:
        batches = await read_patiently(stream, offset)
        offset = world.tier.read(memory.stream, offset, batches, first=first, lossy=memory.history.lossy)


def _check_record(world: TopicWorld, name: str) -> None:
    stream = world.topics[name].stream
    cold = world.tier.records[stream].cold
    orphans = world.tier.orphans(stream)
    world.history.check(not orphans, "I9", f"{name}: nothing refers to {orphans[:3]}")
    missing = [key for key in sorted(world.tier.needed(stream)) if key not in world.objects.held]
    world.history.check(not missing, "I1", f"{name}: {missing[:3]} are recorded, but do not exist")
    levels = Counter(entry.level if isinstance(entry, SegmentIndex) else 0 for entry in cold.entries)
    for level, count in levels.items():
        world.history.check(count <= ENTRIES_MAX, "I9", f"{name} lists {count} entries of level {level}")


async def _remove(world: TopicWorld, name: str, broker: TopicBroker) -> None:
    """Deletes the topic, through another broker than its owner's if there is one."""
    memory = world.topics[name]
    world.owners[name] = ""
    world.tier.removing.add(memory.stream)
    other = next((host for host in world.hosts.values() if host is not broker), broker)
    await other.door.lifecycle.delete_topic(SYSTEM, name)
    streams = Table(other.door.directory.store, STREAMS)
    while any(streams.version(stream) for stream in (memory.stream, state_stream(memory.stream))):  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    left = world.tier.left(memory.stream)
    world.history.check(not left, "I9", f"{name} is removed, but {left[:3]} still exist")
