"""Housekeeping of many topics: one whose storage hangs keeps nobody waiting, and never has two turns at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from broker.door_world import caller, served
from pydanube.base.errors import MetadataBusy
from pydanube.base.limits import HOUSEKEEPING_TURNS, MIB
from pydanube.broker.door.door import Door
from pydanube.broker.serving import house
from pydanube.broker.serving.leftovers import Leftovers
from pydanube.broker.standalone import Broker, StandaloneSettings
from pydanube.broker.topic.topic import Topic
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.subscriptions import CreateSubscription
from pydanube.operations.topics import CreateTopic
from pydanube.storage.node.settings import NodeSettings
from pydanube.topic.records import Cause
from pydanube.wire.batch import build
from waiting import until


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(house, "HOUSEKEEPING_TURN_SECONDS", 0.01)


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Door]:
    broker = Broker(StandaloneSettings(directory, node=NodeSettings(file_bytes=4 * MIB)))
    await broker.open()
    try:
        async with asyncio.timeout(20):
            yield broker.door
    finally:
        await broker.close()


async def made(door: Door, name: str) -> Topic:
    """A topic whose messages expire in a second."""
    await caller(door).carry_out(CreateTopic(name, policies=PolicyChanges(ttl_seconds=1)))
    await caller(door).carry_out(CreateSubscription(name, "s", "shared"))
    return (await served(door, name)).reliable


async def expiring(door: Door, name: str) -> Topic:
    """A topic with such a message."""
    topic = await made(door, name)
    await publish(topic)
    return topic


async def publish(topic: Topic) -> None:
    await topic.publish(build([b"x"], publish_time=1)).confirmed


def expired(topic: Topic) -> int:
    return topic.subscriptions["s"].known.counts[Cause.EXPIRED]


class Hanging:
    """Storage that does not answer until it is told to; counts who asks."""

    def __init__(self, topic: Topic) -> None:
        self.asked = self.at_once = self.most = 0
        self.answering = asyncio.Event()
        self._read = topic.ledger.read
        topic.ledger.read = self.read  # type: ignore[method-assign]

    async def read(self, *arguments: Any, **named: Any) -> Any:
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        try:
            await self.answering.wait()
            return await self._read(*arguments, **named)
        finally:
            self.at_once -= 1


def test_topics_whose_storage_hangs_keep_no_other_waiting_and_go_on_when_it_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as door:
            slow = [await made(door, f"/default/a{number:02}") for number in range(2 * HOUSEKEEPING_TURNS)]
            hanging = [Hanging(topic) for topic in slow]
            for topic in slow:
                await publish(topic)
            sound = await expiring(door, "/default/b")
            await until(lambda: all(each.asked for each in hanging))
            await until(lambda: expired(sound) == 1)
            await publish(sound)
            await until(lambda: expired(sound) == 2)
            assert [each.asked for each in hanging] == [1] * len(hanging)
            assert door.housekeeping.slow == len(hanging)
            for each in hanging:
                each.answering.set()
            await until(lambda: all(expired(topic) == 1 for topic in slow))
            assert {each.most for each in hanging} == {1}
            await until(lambda: door.housekeeping.slow == 0)

    asyncio.run(main())


def test_beyond_the_bound_of_slow_topics_the_next_known_to_be_slow_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(house, "HOUSEKEEPING_SLOW_TURNS_MAX", 1)

    async def main() -> None:
        async with started(tmp_path) as door:
            first = await made(door, "/default/a")
            hanging = Hanging(first)
            await publish(first)
            await until(lambda: door.housekeeping.slow == 1)
            second = await made(door, "/default/b")
            also = Hanging(second)
            await publish(second)
            await until(lambda: also.asked == 1)
            sound = await expiring(door, "/default/c")
            await until(lambda: expired(sound) == 1)
            assert door.housekeeping.slow == 1
            hanging.answering.set()
            also.answering.set()
            await until(lambda: expired(first) == expired(second) == 1)

    asyncio.run(main())


def test_a_broker_stops_while_a_topic_is_waited_for(tmp_path: Path) -> None:
    async def main() -> None:
        async with started(tmp_path) as door:
            topic = await made(door, "/default/a")
            hanging = Hanging(topic)
            await publish(topic)
            await until(lambda: door.housekeeping.slow == 1)
        assert hanging.at_once == 0

    asyncio.run(main())


def test_housekeeping_survives_metadata_that_has_no_answer_at_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0
    find = Leftovers.find

    async def busy(self: Leftovers, *arguments: Any) -> None:
        nonlocal refused
        refused += 1
        if refused < 3:
            raise MetadataBusy("later")
        await find(self, *arguments)

    monkeypatch.setattr(Leftovers, "find", busy)

    async def main() -> None:
        async with started(tmp_path) as door:
            topic = await expiring(door, "/default/a")
            await until(lambda: expired(topic) == 1 and refused == 3)

    asyncio.run(main())


def test_many_topics_are_looked_at_over_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(house, "TOPICS_LOOKED_AT_AT_ONCE", 2)
    looked: list[int] = []
    turn = 0

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    async def main() -> None:
        async with started(tmp_path) as door:
            topics = [await made(door, f"/default/t{number}") for number in range(9)]
            next_turn()
            for topic in topics:
                monkeypatch.setattr(topic, "end_unused", lambda: looked.append(turn), raising=False)
            await until(lambda: len(looked) >= 2 * len(topics))
        assert max(looked.count(each) for each in looked) <= 2

    asyncio.run(main())
