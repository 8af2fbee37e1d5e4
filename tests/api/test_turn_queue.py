"""S1: who is behind takes turns, requests begin in order, and all that are served at once share one turn."""

from __future__ import annotations

import asyncio

from pydanube.api.listening.turns import Turns, Worker
from pydanube.base.limits import REQUESTS_BEGUN_PER_TURN, TURN_SECONDS


class Clock:
    """Stands still but for what the work takes."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def wall(self) -> int:
        return 0


class Peer(Worker):
    """Has steps to do, of which four fit a turn."""

    def __init__(self, turns: Turns, clock: Clock, name: str, seen: list[str]) -> None:
        super().__init__(turns)
        self.clock, self.name, self.seen = clock, name, seen
        self.left = 0
        self.reading = True

    def receive(self, steps: int) -> None:
        self.left += steps
        if self.lagging:
            self._read_or_not()
        self.work()

    def _step(self) -> bool:
        if self.left:
            self.left -= 1
            self.clock.time += TURN_SECONDS / 4
            self.seen.append(self.name)
        return bool(self.left)

    def _read_or_not(self) -> None:
        self.reading = not self.lagging


def test_those_who_have_much_to_do_take_turns_and_others_are_served_between() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        greedy, other, small, urgent = (Peer(turns, clock, name, seen) for name in "abcd")
        urgent.urgent = True
        greedy.receive(10)
        other.receive(10)
        small.receive(1)
        urgent.receive(1)
        assert seen == [*"aaaaaaaad"], "who comes in one turn of the loop shares it, but for what is urgent"
        assert (greedy.lagging, other.lagging, small.lagging, urgent.lagging) == (True, True, True, False)
        assert greedy.reading
        greedy.receive(1)
        assert len(seen) == 9, "what comes while it is behind waits, too"
        assert not greedy.reading, "and no more is read"
        await asyncio.sleep(0)
        late = Peer(turns, clock, "e", seen)
        late.receive(1)
        assert seen[-1] == "e", "who is not behind is served before those who are"
        while greedy.lagging or other.lagging or small.lagging:
            before = clock.time
            await asyncio.sleep(0)
            assert clock.time - before < 1.1 * TURN_SECONDS, "all who wait share one turn"
        assert (seen.count("a"), seen.count("b"), seen.count("c")) == (11, 10, 1)
        assert seen.index("c") < len(seen) - 8, "one after the other"
        assert (greedy.left, other.left, greedy.reading, other.reading) == (0, 0, True, True)

    asyncio.run(story())


def test_few_requests_begin_in_one_turn_and_fewer_after_a_long_one() -> None:
    async def story() -> None:
        clock, begun = Clock(), list[int]()
        turns = Turns(clock)

        async def request(number: int) -> None:
            await turns.begin()
            begun.append(number)
            clock.time += 2 * TURN_SECONDS * (number >= 20)

        tasks = [asyncio.create_task(request(number)) for number in range(40)]
        most, slow = 0, 0
        while len(begun) < 40:
            before = len(begun)
            await asyncio.sleep(0)
            most = max(most, len(begun) - before)
            if before >= 28:
                slow = max(slow, len(begun) - before)
        assert begun == list(range(40)), "in order"
        assert most == REQUESTS_BEGUN_PER_TURN
        assert slow == 1
        await asyncio.gather(*tasks)

    asyncio.run(story())


def test_a_request_that_is_given_up_while_it_waits_lets_the_others_begin() -> None:
    async def story() -> None:
        turns = Turns(Clock())
        tasks = [asyncio.create_task(turns.begin()) for _ in range(20)]
        await asyncio.sleep(0)
        for task in tasks[5:15]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [task.cancelled() for task in tasks] == [5 <= at < 15 for at in range(20)]

    asyncio.run(story())


def test_nobody_overtakes_a_request_that_may_begin() -> None:
    """Also not one that comes between the moment the others are woken and the moment they go on."""

    async def main() -> list[int]:
        turns, began = Turns(), list[int]()

        async def request(number: int) -> None:
            await turns.begin()
            began.append(number)

        tasks = []
        for number in range(200):
            tasks.append(asyncio.create_task(request(number)))
            if number % 7 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return began

    assert asyncio.run(main()) == list(range(200))
