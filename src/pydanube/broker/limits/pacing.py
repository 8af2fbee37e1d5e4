"""Holds the publishers of a topic or partition to its publish rate by delaying the answers to what they publish.

A producer waits for answers, so it slows down, in order and without an error. Nothing else on its connection waits.
Only what exceeds the rate by far is refused.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections import deque
from functools import partial

from pydanube.base.errors import RateExceeded
from pydanube.base.limits import ANSWERS_HELD_MAX, RATE_DEBT_SECONDS_MAX, SECOND
from pydanube.broker.limits.rates import Rate
from pydanube.ports.clock import Clock
from pydanube.storage.futures import settle


class Pace:
    """The publish rate of one topic or partition, and the answers that it delays. Owned by the broker's loop."""

    def __init__(self, rate: Rate, clock: Clock) -> None:
        self.rate = rate
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._held: deque[tuple[int, Future[None], Future[None]]] = deque()  # due, confirmation, answer
        self._timer: TimerHandle | None = None

    @property
    def _now(self) -> int:
        return int(self._clock.monotonic() * SECOND)

    def check(self, topic: object) -> None:
        """Raises `RateExceeded` if the next answer would come too late."""
        wait = self.rate.wait(self._now)
        if wait > RATE_DEBT_SECONDS_MAX * SECOND or len(self._held) >= ANSWERS_HELD_MAX:
            raise RateExceeded(f"{topic} is {wait / SECOND:.1f} s beyond its publish rate")

    def hold(self, confirmed: Future[None], messages: int, bytes: int) -> Future[None]:
        """The answer to a publish: its confirmation, but not before the rate allows it. A failure is not delayed."""
        now = self._now
        self.rate.take(messages, bytes, now)
        wait = self.rate.wait(now)
        if not wait:
            return confirmed
        answer: Future[None] = self._loop.create_future()
        confirmed.add_done_callback(partial(_pass_failure, answer))
        self._held.append((now + wait, confirmed, answer))
        if self._timer is None:
            self._timer = self._loop.call_later(wait / SECOND, self._release_due)
        return answer

    def charge(self, messages: int, bytes: int) -> None:
        """Counts messages of a commit, which is never delayed itself but uses up the rate of the others."""
        self.rate.take(messages, bytes, self._now)

    @property
    def wait_seconds(self) -> float:
        """The time until everything that was published is within the rate."""
        return self.rate.wait(self._now) / SECOND

    def _release_due(self) -> None:
        self._timer = None
        now = self._now
        while self._held and self._held[0][0] <= now:
            self._release_first()
        if self._held:
            self._timer = self._loop.call_later((self._held[0][0] - now) / SECOND, self._release_due)

    def _release_first(self) -> None:
        _, confirmed, answer = self._held.popleft()
        confirmed.add_done_callback(partial(_pass_on, answer))

    def release(self) -> None:
        """Releases all delayed answers, because the rate has changed or the topic is closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._held:
            self._release_first()


def _pass_failure(answer: Future[None], confirmed: Future[None]) -> None:
    if confirmed.cancelled() or confirmed.exception() is not None:
        _pass_on(answer, confirmed)


def _pass_on(answer: Future[None], confirmed: Future[None]) -> None:
    if confirmed.cancelled():
        answer.cancel()
    else:
        settle(answer, confirmed.exception())
