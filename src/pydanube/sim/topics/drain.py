"""After healing, every topic accepts messages again, every subscription finishes, and nothing is missing."""

from __future__ import annotations

import asyncio
from collections import Counter

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.broker.topic.topic import Topic
from pydanube.sim.streams.reading import read_all, read_patiently
from pydanube.sim.topics.broker import TopicBroker
from pydanube.sim.topics.memory import TopicMemory
from pydanube.sim.topics.producers import batch_of, publish_once
from pydanube.sim.topics.visitors import check_visitors
from pydanube.sim.topics.world import TopicWorld


async def drain_topics(world: TopicWorld) -> None:
    for number, name in enumerate(world.owners):
        memory = world.topics[name]
        await _publish_again(world, name, number, memory)
        while True:
            broker, topic = await find_owner(world, name, number)
            if all(producer.pending is None for producer in memory.producers) and _finished(topic, memory):
                break
            await asyncio.sleep(0.2)
        topic.pinned = True  # while it is read to the end, nothing is deleted
        await asyncio.sleep(1)  # until deletions in progress are complete
        expected = world.history.expected(name)
        found = await read_all(world.history, topic.ledger.stream, name)
        world.history.trim(name, topic.ledger.first)  # deletions were checked when they happened
        world.history.check_final(name, found, expected)
        await _check_times(world, name, topic)
        check_visitors(world, topic, memory)
        _check_duplicates(world, name, [payload for _, payload, _ in found])
        for label, subscription in memory.subscriptions.items():
            cursor = topic.subscriptions[label].known.cursor
            subscription.check_floor(cursor, world.history.check)
        await _check_letters(world, broker, memory)


async def find_owner(world: TopicWorld, name: str, number: int) -> tuple[TopicBroker, Topic]:
    while True:
        broker = world.hosts.get(world.owners[name])
        topic = broker.served(name) if broker is not None else None
        if broker is not None and topic is not None:
            return broker, topic
        world.owners[name] = world.brokers[number % len(world.brokers)].name
        await asyncio.sleep(0.05)


async def _publish_again(world: TopicWorld, name: str, number: int, memory: TopicMemory) -> None:
    for count in range(3):
        while True:
            broker, _ = await find_owner(world, name, number)
            batch = batch_of(broker, memory, f"-/last/{world.loop.events}", count, 2)
            handle = await publish_once(broker, memory, batch)
            if handle is not None:
                handle.let_go()
                break
            await asyncio.sleep(0.1)


async def _check_letters(world: TopicWorld, broker: TopicBroker, memory: TopicMemory) -> None:
    """Checks that every dead letter is in the topic that they were published to."""
    if not memory.letters:
        return
    assert memory.failure.dead_letter_topic is not None
    opened = await broker.door.topics.open(SYSTEM, Action.TOPIC_READ, memory.failure.dead_letter_topic)
    ledger, found = opened.reliable.ledger, set()
    offset = ledger.first
    while offset < ledger.confirmed_end:
        for batch in await read_patiently(ledger.stream, offset):
            for letter in batch.messages():
                attributes = letter.attributes or {}
                origin = attributes["x-original-subscription"], int(attributes["x-original-topic-offset"])
                found.add(origin)
            offset = batch.last_offset + 1
    missing = sorted({(label, offset) for _, label, _, offset in memory.letters} - found)
    world.history.check(not missing, "I1", f"{memory.name}: the dead letters of {missing[:3]} are gone")


def _finished(topic: Topic, memory: TopicMemory) -> bool:
    """Whether every subscription exists and has finished all confirmed messages."""
    end = topic.ledger.confirmed_end
    hosts = [topic.subscriptions.get(label) for label in memory.subscriptions]
    return all(host is not None and host.known.cursor.floor >= end for host in hosts)


async def _check_times(world: TopicWorld, name: str, topic: Topic) -> None:
    """Checks that corrected append times never decrease, whatever the clocks of the owners showed."""
    stream, offset, last = topic.ledger.stream, topic.ledger.first, 0
    while offset <= stream.confirmed:
        for batch in await stream.read(offset, 1 << 20):
            time = stream.record.latest_time(batch.base_offset, batch.append_time)
            world.history.check(time >= last, "I2", f"{name}: the append time decreases at offset {batch.base_offset}")
            offset, last = batch.last_offset + 1, time


def _check_duplicates(world: TopicWorld, name: str, payloads: list[bytes]) -> None:
    """Checks that every message exists once. Each payload is unique, and named producers resend."""
    for payload, count in Counter(payloads).items():
        if count > 1:
            world.history.check(False, "I11", f"{name}: {payload[:40]!r} was stored {count} times")


def explain_topics(world: TopicWorld) -> str:
    """Which producers and subscriptions are not finished, and why."""
    reasons = []
    for name, memory in world.topics.items():
        broker = world.hosts.get(world.owners[name])
        topic = broker.served(name) if broker is not None else None
        if topic is None:
            reasons.append(f"{name} has no owner")
            continue
        reasons += [f"{name}: {producer.name} has no answer" for producer in memory.producers if producer.pending]
        for label in memory.subscriptions:
            host = topic.subscriptions.get(label)
            if host is None:
                reasons.append(f"{name}/{label} does not exist")
            elif host.known.cursor.floor < topic.ledger.confirmed_end:
                floor = host.known.cursor.floor
                reasons.append(
                    f"{name}/{label} is at {floor} of {topic.ledger.confirmed_end}: {host.explain(floor).sentence}"
                )
    return "; ".join(reasons)
