"""S1: who is behind takes turns, requests begin in order, and all that are served at once share one turn."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from pydanube.api.listening.deadlines import Deadline
from pydanube.api.listening.turns import Turns, Worker
from pydanube.base.limits import ALONE_TURNS, BYTE_SECONDS, QUANTUM_SECONDS, REQUESTS_BEGUN_PER_TURN, TURN_SECONDS


class Clock:
    """Stands still but for what the work takes."""

    def __init__(self) -> None:
        self.time = 0.0

    def monotonic(self) -> float:
        return self.time

    def wall(self) -> int:
        return 0

    def pass_seconds(self, seconds: float) -> None:
        self.time += seconds


class Peer(Worker):
    """Has steps to do, of which two fit a quantum and four a turn."""

    def __init__(self, turns: Turns, clock: Clock, name: str, seen: list[str]) -> None:
        super().__init__(turns)
        self.clock, self.name, self.seen = clock, name, seen
        self.left = 0
        self.reading = True
        self.step_seconds = TURN_SECONDS / 4

    def receive(self, steps: int, size: int = 0) -> None:
        self.left += steps
        if self.lagging:
            self._read_or_not()
        self.work(size)

    def _step(self) -> bool:
        if self.left:
            self.left -= 1
            self.clock.time += self.step_seconds
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
        assert seen == [*"aabbcd"], "each gets its quantum at once"
        assert (greedy.lagging, other.lagging, small.lagging, urgent.lagging) == (True, True, False, False)
        assert greedy.reading
        greedy.receive(1)
        assert len(seen) == 6, "what comes while it is behind waits, too"
        assert not greedy.reading, "and no more is read"
        await asyncio.sleep(0)
        late = Peer(turns, clock, "e", seen)
        late.receive(1)
        assert seen[-1] == "e", "who is not behind is served before those who are"
        while greedy.lagging or other.lagging:
            before = clock.time
            await asyncio.sleep(0)
            assert clock.time - before < 1.1 * TURN_SECONDS, "all who wait share one turn"
        assert (seen.count("a"), seen.count("b")) == (11, 10)
        assert [seen.index(name) for name in "ab"] < [2, 4]
        assert (greedy.left, other.left, greedy.reading, other.reading) == (0, 0, True, True)

    asyncio.run(story())


def test_what_is_small_waits_for_no_bulk() -> None:
    """Those who have used more than their part wait behind those for whom only the turn was too short."""

    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        floods = [Peer(turns, clock, name, seen) for name in "ABCDEFGH"]
        urgent, victim = Peer(turns, clock, "u", seen), Peer(turns, clock, "v", seen)
        urgent.urgent = True
        for each in floods:
            each.receive(40, 200_000)
        assert set(seen) < {*"ABCDEFGH"}
        assert turns.left <= 0, "the turn is used up"
        victim.receive(1, 200)
        urgent.receive(1, 200)
        assert seen[-1] == "u"
        at = len(seen)
        await asyncio.sleep(0)
        assert seen[at] == "v", "before all who are behind"
        assert len(seen) > at + 1, "who are served all the same"

    asyncio.run(story())


def test_who_sends_more_bytes_gets_fewer_steps() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        large, small = Peer(turns, clock, "L", seen), Peer(turns, clock, "s", seen)
        quantum = int(QUANTUM_SECONDS / BYTE_SECONDS)
        large.receive(1)
        await asyncio.sleep(0)
        for _ in range(20):
            large.receive(100, quantum)
            small.receive(100)
            await asyncio.sleep(0)
        assert 0 < 1.5 * seen.count("L") < seen.count("s")

    asyncio.run(story())


def test_what_a_connection_uses_beyond_its_part_it_does_not_get_later() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        slow, quick = Peer(turns, clock, "S", seen), Peer(turns, clock, "q", seen)
        slow.step_seconds = 3 * QUANTUM_SECONDS
        slow.receive(100)
        quick.receive(400)
        for _ in range(60):
            await asyncio.sleep(0)
        used = seen.count("S") * slow.step_seconds, seen.count("q") * quick.step_seconds
        assert used[0] == pytest.approx(used[1], rel=0.3), "both got the same time"
        await asyncio.sleep(0)
        slow.step_seconds = 1.0  # what no one may do
        at = len(seen)
        for _ in range(12):
            await asyncio.sleep(0)
        assert seen[at:].count("S") >= 2, "and is served again all the same"
        slow.left = quick.left = 0
        for _ in range(8):
            await asyncio.sleep(0)
        slow.receive(1)
        quick.receive(20)
        await asyncio.sleep(0)
        at = len(seen)
        slow.receive(1)
        assert seen[at:] == [], "it has used more than its part when it was served at once"

    asyncio.run(story())


def test_who_is_alone_for_a_while_may_use_whole_turns() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[str]()
        turns = Turns(clock)
        flood, other = Peer(turns, clock, "a", seen), Peer(turns, clock, "b", seen)

        async def at_once() -> int:
            flood.left = 0
            for _ in range(3):
                await asyncio.sleep(0)
            before = len(seen)
            flood.receive(100)
            return len(seen) - before

        assert await at_once() == 2, "it may not be alone"
        for _ in range(ALONE_TURNS):
            await asyncio.sleep(0)
        assert await at_once() == 8
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) == before + 4
        other.receive(1)
        before = len(seen)
        await asyncio.sleep(0)
        assert len(seen) - before <= 2, "another one has come"

    asyncio.run(story())


def test_turns_in_which_connections_are_served_are_measured_to_their_end() -> None:
    """With what those connections have begun, which is done in the turn after; and then no more until others come."""

    async def story() -> None:
        clock = Clock()
        turns = Turns(clock)
        peer = Peer(turns, clock, "a", [])
        peer.step_seconds = TURN_SECONDS / 2
        loop = asyncio.get_running_loop()
        loop.call_soon(clock.pass_seconds, 10.0)  # before the connection is served
        await asyncio.sleep(0)
        peer.receive(1)
        loop.call_soon(clock.pass_seconds, 0.03)  # follows from it
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        loop.call_soon(clock.pass_seconds, 10.0)  # when no one is served any longer
        for _ in range(5):
            await asyncio.sleep(0)
        served = turns.lengths.served
        assert sum(served.counts) == 2
        assert served.sum == pytest.approx(0.03 + TURN_SECONDS / 2)
        assert turns.lengths.longest.seconds == pytest.approx(0.03)

    asyncio.run(story())


def test_what_a_connection_began_in_its_last_turn_is_measured() -> None:
    class Beginner(Peer):
        def _turn_over(self) -> None:
            if not self.left:
                asyncio.get_running_loop().call_soon(self.clock.pass_seconds, 0.03)

    async def story() -> None:
        clock = Clock()
        turns = Turns(clock)
        peer = Beginner(turns, clock, "a", [])
        peer.receive(20)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not peer.lagging
        assert 0.03 <= turns.lengths.longest.seconds < 0.04

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


def test_what_expires_at_once_is_done_in_many_turns() -> None:
    async def story() -> None:
        clock, seen = Clock(), list[int]()
        turns = Turns(clock)

        def expire(number: int) -> None:
            seen.append(number)
            clock.time += TURN_SECONDS / 4

        deadlines = [Deadline(turns, 0.0, partial(expire, number)) for number in range(40)]
        Deadline(turns, 3600.0, partial(expire, -1)).cancel()
        while not seen:  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        deadlines[39].cancel()
        while len(seen) < 39:
            before = len(seen)
            await asyncio.sleep(0)
            assert len(seen) - before <= 4, "as many as fit into a turn"
        for _ in range(5):
            await asyncio.sleep(0)
        assert seen == list(range(39)), "in order, but not what was cancelled while it waited"

    asyncio.run(story())
