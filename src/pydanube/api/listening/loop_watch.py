"""How long the turns of the loop take, for the metrics; and when the garbage collector examines objects.

`Turns` reports the length of turns that are busy with clients. Whatever else the loop does is sampled: a timer that
fires late shows how long the turn in progress took. A pause of the garbage collector is a part of a turn, but is also
known by itself, so that its share can be told. Processor time is measured beside the clock's: only their difference
tells a slow broker from a machine that is busy with something else.
"""

from __future__ import annotations

import gc
from asyncio import AbstractEventLoop, TimerHandle
from collections.abc import Callable, Mapping

from pydanube.adapters.system import thread_seconds
from pydanube.base.counting import Histogram

WATCH_SECONDS = 0.02  # between two samples
COLLECT_SECONDS = 1.0
NEW_OBJECTS = 1  # the older of two generations of the collector; between two samples come ten thousand that stay
OLD_OBJECTS = 2  # the generation of those that stay; closed topics and deleted subscriptions, in cycles, are there too
OLD_OBJECTS_MIN = 200_000  # about 40 MB, and a tenth of a second to examine; fewer are left alone
OLD_SECONDS = 600.0  # between two looks at how many they are, while the loop is idle
OLD_SECONDS_MAX = 6 * 3600.0  # the same while it is never idle for a second
WATCH_WINDOW_SECONDS = 30.0  # the longest covers this window and the previous one
TURN_BOUNDS = (0.0005, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5)


class TurnLengths:
    """The turns that were busy with clients, the longest of all turns, and the longest pause of the collector."""

    def __init__(self) -> None:
        self.served = Histogram(TURN_BOUNDS)
        self.longest = Longest()
        self.dearest = Longest()  # of those that were busy with clients, and of pauses, by processor time
        self.longest_pause = Longest()

    def add(self, seconds: float, processor_seconds: float) -> None:
        """Counts a turn that was busy with clients."""
        self.served.observe(seconds)
        self.longest.add(seconds)
        self.dearest.add(processor_seconds)

    def window_over(self) -> None:
        for each in (self.longest, self.dearest, self.longest_pause):
            each.turn_over()


class Longest:
    """The longest in this window, and in the previous one."""

    def __init__(self) -> None:
        self._now = self._before = 0.0

    def add(self, seconds: float) -> None:
        if seconds > self._now:
            self._now = seconds

    def turn_over(self) -> None:
        """Begins another window."""
        self._now, self._before = 0.0, self._now

    @property
    def seconds(self) -> float:
        return max(self._now, self._before)


class LoopWatch:
    """Samples the loop, and measures each pause of the collector."""

    def __init__(
        self,
        loop: AbstractEventLoop,
        lengths: TurnLengths,
        now: Callable[[], float],
        processor: Callable[[], float] = thread_seconds,
    ) -> None:
        self._loop = loop
        self._lengths = lengths
        self._now = now
        self._processor = processor
        self._window_end = now() + WATCH_WINDOW_SECONDS
        self._paused = now(), processor()  # when the collector began
        self._busy, self._collect_by = 0.0, now()
        self._old_max = OLD_OBJECTS_MIN
        self._old_looked = now()
        self._timer: TimerHandle
        gc.callbacks.append(self._collecting)
        self._set()

    def _set(self) -> None:
        self._due = self._now() + WATCH_SECONDS
        self._timer = self._loop.call_later(WATCH_SECONDS, self._look)

    def _look(self) -> None:
        now, lengths = self._now(), self._lengths
        lengths.longest.add(now - self._due)
        if now >= self._window_end:
            lengths.window_over()
            self._window_end = now + WATCH_WINDOW_SECONDS
        self._collect(now)
        self._set()

    def _collect(self, now: float) -> None:
        """Has new objects examined: after each sample while the loop is busy with clients, otherwise once a second."""
        busy = self._lengths.served.sum
        if busy != self._busy or now >= self._collect_by:
            idle = busy == self._busy
            self._busy, self._collect_by = busy, now + COLLECT_SECONDS
            gc.collect(NEW_OBJECTS)
            if now - self._old_looked >= (OLD_SECONDS if idle else OLD_SECONDS_MAX):
                self._old_looked = now
                self._collect_old()

    def _collect_old(self) -> None:
        """Has all objects examined if they are a quarter more than after the last time. The interpreter does not count
        those that are freed without it, so a cache of small batches would make it begin far too often."""
        if len(gc.get_objects(OLD_OBJECTS)) > self._old_max:
            gc.collect()
            self._old_max = max(OLD_OBJECTS_MIN, len(gc.get_objects(OLD_OBJECTS)) * 5 // 4)

    def _collecting(self, phase: str, _: Mapping[str, int]) -> None:
        """Called by the collector, in whichever thread it runs: all others wait, and so does the loop."""
        now = self._now(), self._processor()
        if phase == "start":
            self._paused = now
        else:
            pause, used = now[0] - self._paused[0], now[1] - self._paused[1]
            self._lengths.longest_pause.add(pause)
            self._lengths.longest.add(pause)
            self._lengths.dearest.add(used)

    def stop(self) -> None:
        """May be called more than once."""
        self._timer.cancel()
        if self._collecting in gc.callbacks:
            gc.callbacks.remove(self._collecting)
