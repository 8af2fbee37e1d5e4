"""A storage node near the number of ledgers that it can keep: messages are refused, acks and deletions continue."""

from __future__ import annotations

import asyncio
import logging

import pytest

from broker.door_world import DoorWorld, caller, served
from pydanube.base.errors import TooManyLedgers, TopicRecovering
from pydanube.broker.door.door import Door
from pydanube.broker.limits import disk_room as room_module
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.journal import ledger_table as table
from pydanube.operations.topics import CreateTopic, DeleteTopic
from pydanube.storage import local
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

HEALTHY, KEEPS = "/default/healthy", "/default/keeps"
MOST, RESERVED = 24, 8


@pytest.fixture(autouse=True)
def few_ledgers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (table, local):
        monkeypatch.setattr(module, "NODE_LEDGERS_MAX", MOST)
    monkeypatch.setattr(local, "NODE_LEDGERS_RESERVED", RESERVED)


async def topic_of(door: Door, name: str) -> Topic:
    return (await served(door, name)).reliable


async def publish(topic: Topic) -> None:
    """As soon as the topic has recovered from what was refused before."""
    while True:
        try:
            await topic.publish(build([b"x"], publish_time=1)).confirmed
            return
        except TopicRecovering:
            await asyncio.sleep(0.1)


async def fill(topic: Topic) -> int:
    """Publishes until it is refused; returns how many were not."""
    for number in range(2 * MOST):
        try:
            await publish(topic)
        except TooManyLedgers:
            return number
        topic.ledger.stream.roll()
    raise AssertionError("nothing was refused")


async def acknowledge(topic: Topic, first: int, last: int) -> None:
    """Each with a new snapshot of the state, which goes to a new ledger."""
    host = topic.subscriptions["s"]
    for offset in range(first, last + 1):
        await host.ack(0, [(offset, offset)])
        topic.rewrite_state()
        await asyncio.sleep(1)


def test_at_the_limit_messages_are_refused_and_acks_and_deletions_continue() -> None:
    kept = 0

    async def first(door: Door) -> None:
        nonlocal kept
        for name in (HEALTHY, KEEPS):
            await caller(door).carry_out(CreateTopic(name))
        healthy, keeps = await topic_of(door, HEALTHY), await topic_of(door, KEEPS)
        await healthy.subscribe("s", SubscriptionKind.SHARED)
        for _ in range(20):
            await publish(healthy)
        kept = await fill(keeps)
        with pytest.raises(TooManyLedgers):
            await publish(keeps)
        await publish(healthy)  # it has a ledger
        await acknowledge(healthy, 0, 9)

    async def second(door: Door) -> None:
        healthy, keeps = await topic_of(door, HEALTHY), await topic_of(door, KEEPS)  # both can be opened
        assert keeps.ledger.confirmed_end == kept
        assert len(await keeps.ledger.read(0)) > 0
        with pytest.raises(TooManyLedgers):
            await publish(healthy)
        await acknowledge(healthy, 10, 15)
        host = healthy.subscriptions["s"]
        assert isinstance(host, SubscriptionHost)
        assert host.known.cursor.floor == 16
        await caller(door).carry_out(DeleteTopic(KEEPS))
        await publish(healthy)
        assert healthy.ledger.confirmed_end == 22

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_it_is_said_once_when_there_are_many_and_again_after_they_were_few(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    there = 0
    for name, value in (("NODE_LEDGERS_MAX", 1000), ("NODE_LEDGERS_RESERVED", 60), ("NODE_LEDGERS_WARN", 800)):
        monkeypatch.setattr(room_module, name, value)
    room = DiskRoom(ledgers=lambda: there)

    async def main() -> None:
        nonlocal there
        for there in (799, 800, 900, 760, 801, 739, 800):  # noqa: B007  the room asks for it
            await room.look()

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [record.getMessage()[:56] for record in caplog.records] == [
        "the broker has 800 ledgers; at 940 it stops accepting me"
    ] * 2
