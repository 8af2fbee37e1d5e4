"""Work on all partitions of a topic, however many: some at a time, and some in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from broker.door_world import DoorWorld, caller
from pydanube.base.limits import PARTITIONS_AT_ONCE, PARTITIONS_MAX
from pydanube.broker.door.door import Door
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.work.together import together
from pydanube.operations.subscriptions import CreateSubscription, DescribeSubscription
from pydanube.operations.topics import CreateTopic

TOPIC = "/default/orders"


def test_only_some_partitions_are_opened_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = [0]
    real = OpenTopics._serve

    async def counted(self: OpenTopics, *arguments: Any, **options: Any) -> Any:
        opening.add(task := object())
        at_once.append(len(opening))
        try:
            return await real(self, *arguments, **options)
        finally:
            opening.discard(task)

    async def main(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, partitions=100))
        monkeypatch.setattr(OpenTopics, "_serve", counted)
        await caller(door).carry_out(CreateSubscription(TOPIC, "billing", "shared"))
        await caller(door).carry_out(DescribeSubscription(TOPIC, "billing"))

    opening: set[object] = set()
    world = DoorWorld()
    world.run(main)
    world.end()
    assert max(at_once) == PARTITIONS_AT_ONCE


def test_what_takes_no_time_is_done_some_in_each_turn_of_the_loop() -> None:
    """Partitions that are open already, of the widest topic there may be."""

    async def main() -> None:
        turn, done = 0, Counter[int]()

        def tick() -> None:
            nonlocal turn, handle
            turn += 1
            handle = asyncio.get_running_loop().call_soon(tick)

        async def double(number: int) -> int:
            done[turn] += 1
            if number in failing:
                raise ValueError(number)
            return 2 * number

        handle = asyncio.get_running_loop().call_soon(tick)
        failing: set[int] = set()
        assert await together(double, range(PARTITIONS_MAX)) == [2 * number for number in range(PARTITIONS_MAX)]
        assert max(done.values()) == PARTITIONS_AT_ONCE
        failing |= {900, 7}
        done.clear()
        with pytest.raises(ValueError, match="7"):
            await together(double, range(PARTITIONS_MAX))
        assert done.total() == PARTITIONS_MAX
        handle.cancel()

    asyncio.run(main())
