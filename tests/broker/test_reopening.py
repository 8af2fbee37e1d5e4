"""Topics that nobody has asked for since a start: they are looked after all the same, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.door_world import caller
from pydanube.access.principals import Principal
from pydanube.base.limits import MIB, TOPICS_REOPENING
from pydanube.base.names import TopicName
from pydanube.broker.door.door import Door
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.standalone import Broker, StandaloneSettings
from pydanube.broker.topic.topic import Topic
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.subscriptions import CreateSubscription
from pydanube.operations.topics import CreateTopic, DeleteTopic
from pydanube.storage.node.settings import NodeSettings
from pydanube.testing import VirtualClock
from pydanube.wire.batch import build

HOUR = 3_600
TOPICS = [f"/default/t{number:02}" for number in range(20)]


@asynccontextmanager
async def started(directory: Path, clock: VirtualClock) -> AsyncIterator[Door]:
    broker = Broker(StandaloneSettings(directory, node=NodeSettings(file_bytes=4 * MIB)), clock)
    await broker.open()
    try:
        async with asyncio.timeout(20):
            yield broker.door
    finally:
        await broker.close()


async def reopened(door: Door) -> None:
    door.reopen()
    assert door._reopening is not None
    await door._reopening


def test_messages_expire_in_a_topic_that_nobody_has_asked_for(tmp_path: Path) -> None:
    async def life() -> None:
        clock = VirtualClock()
        async with started(tmp_path, clock) as door:
            await caller(door).carry_out(CreateTopic("/default/orders", policies=PolicyChanges(ttl_seconds=HOUR)))
            await caller(door).carry_out(CreateSubscription("/default/orders", "s", "shared"))
            producer = await caller(door).open_producer("/default/orders", lambda _: None)
            await producer.publish(build([b"x"] * 3, publish_time=1)).confirmed
        async with started(tmp_path, clock) as door:
            await reopened(door)
            [opened] = door.topics.opened()
            assert isinstance(opened.topic, Topic)
            cursor = opened.topic.subscriptions["s"].known.cursor
            assert cursor.floor == 0
            clock.advance(2 * HOUR)
            door.time_moved()
            while cursor.floor < 3:  # noqa: ASYNC110
                await asyncio.sleep(0)

    asyncio.run(life())


def test_few_are_opened_at_a_time_and_those_that_are_deleted_meanwhile_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = most = 0
    opening = OpenTopics._serve

    async def counted(self: OpenTopics, principal: Principal, name: TopicName, **options: Any) -> OpenTopic:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return await opening(self, principal, name, **options)
        finally:
            at_once -= 1

    async def life() -> None:
        clock = VirtualClock()
        async with started(tmp_path, clock) as door:
            for topic in TOPICS:
                await caller(door).carry_out(CreateTopic(topic))
        monkeypatch.setattr(OpenTopics, "_serve", counted)
        async with started(tmp_path, clock) as door:
            door.reopen()
            assert door._reopening is not None
            for topic in reversed(TOPICS[10:]):
                await caller(door).carry_out(DeleteTopic(topic))
            await door._reopening
            assert sorted(str(each.name) for each in door.topics.opened()) == TOPICS[:10]

    asyncio.run(life())
    assert 1 < most <= TOPICS_REOPENING


def test_a_broker_that_stops_meanwhile_stops_at_once(tmp_path: Path) -> None:
    async def life() -> None:
        clock = VirtualClock()
        async with started(tmp_path, clock) as door:
            for topic in TOPICS:
                await caller(door).carry_out(CreateTopic(topic))
        async with started(tmp_path, clock) as door:
            door.reopen()
            await asyncio.sleep(0)
        assert door._reopening is not None
        assert door._reopening.cancelled()

    asyncio.run(life())
