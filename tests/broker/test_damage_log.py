"""Damage is logged once, however often somebody tries to open the topic that has it."""

from __future__ import annotations

import pytest

from broker.door_world import DoorWorld, caller, served
from broker.test_salvage import ORDERS, damage
from pydanube.base.errors import OffsetsDamaged
from pydanube.broker.door.door import Door
from pydanube.operations.topics import CreateTopic
from pydanube.topic.records import SubscriptionKind

NAMES = ["found-by-its-name", "another-one"]


def test_the_damaged_state_of_a_closed_topic_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    world = DoorWorld()

    async def write(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(ORDERS))
        topic = (await served(door, ORDERS)).reliable
        for name in NAMES:
            await topic.subscribe(name, SubscriptionKind.SHARED)

    async def look(door: Door) -> None:
        for _ in range(5):
            with pytest.raises(OffsetsDamaged):
                await served(door, ORDERS)

    world.run(write)
    damage(world, NAMES[0].encode())
    world.run(look)
    told = [each.getMessage() for each in caplog.records if ORDERS in each.getMessage()]
    assert len(told) == 1, told


def test_damage_is_the_same_at_every_start() -> None:
    world = DoorWorld()

    async def write(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(ORDERS))
        topic = (await served(door, ORDERS)).reliable
        for name in NAMES:  # the second one shows that the first was durable
            await topic.subscribe(name, SubscriptionKind.SHARED)

    async def look(door: Door) -> None:
        with pytest.raises(OffsetsDamaged):
            await served(door, ORDERS)

    world.run(write)
    damage(world, NAMES[0].encode())
    for _ in range(3):
        world.run(look)
