"""Append times while the wall clock jumps: what messages are stamped with, and how wrong stamps are corrected.

Pure: readings of clocks in, numbers out. The reasons are in `docs/decisions/0039-append-times-and-wrong-clocks.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.limits import (
    CLOCK_DISTRUST_SECONDS,
    CLOCK_HELD_SECONDS,
    CLOCK_JUMP_SECONDS,
    SECOND,
    TIME_CORRECTIONS_MAX,
)

JUMP = CLOCK_JUMP_SECONDS * SECOND


class AppendClock:
    """The clock that messages are stamped with: it follows a jump ahead only when that has lasted for a while."""

    def __init__(self, wall: int, monotonic: int) -> None:
        self._wall, self._monotonic = wall, monotonic  # when the wall clock was last followed
        self._jumped: int | None = None  # when the wall clock was first seen ahead, on the monotonic clock

    def observe(self, wall: int, monotonic: int) -> int:
        """The time to stamp messages with. Must be called regularly, even if nothing is appended."""
        steady = self._wall + monotonic - self._monotonic
        if wall - steady > JUMP:
            self._jumped = monotonic if self._jumped is None else self._jumped
            if monotonic - self._jumped < CLOCK_HELD_SECONDS * SECOND:
                return steady
        self._wall, self._monotonic, self._jumped = wall, monotonic, None
        return wall


class ClockGuard:
    """Notices when the wall clock jumps against the monotonic one, and distrusts it for a while (§20).

    The two are compared with their readings of up to an hour ago: a slewed clock drifts by seconds in that time, and
    several smaller jumps add up.
    """

    def __init__(self, wall: int, monotonic: int, distrust_seconds: float = CLOCK_DISTRUST_SECONDS) -> None:
        self._set(wall, monotonic)
        self._distrust = int(distrust_seconds * SECOND)
        self._distrusted_until: int | None = None

    def observe(self, wall: int, monotonic: int) -> int | None:
        """Must be called every few seconds. When the clock stops being trusted, returns once by how much it jumped."""
        jump = (wall - self._wall) - (monotonic - self._monotonic)
        jumped = abs(jump) > JUMP
        trusted = self.trusted(monotonic)
        if jumped or monotonic - self._monotonic >= self._distrust:
            self._set(wall, monotonic)
        if jumped:
            self.distrust(monotonic)
        return jump if jumped and trusted else None

    def distrust(self, monotonic: int) -> None:
        """Stops trusting the clock for a while."""
        self._distrusted_until = monotonic + self._distrust

    def trusted(self, monotonic: int) -> bool:
        return self._distrusted_until is None or monotonic >= self._distrusted_until

    def _set(self, wall: int, monotonic: int) -> None:
        self._wall, self._monotonic = wall, monotonic


class Correction(NamedTuple):
    """Messages below `offset` were appended at `time` or earlier, whatever they are stamped with."""

    offset: int
    time: int


Corrections = tuple[Correction, ...]  # in the order of their offsets, which is that of their times


def corrected(known: Corrections, found: Correction, kept_from: int) -> Corrections:
    """Adds a correction. Beyond the limit the oldest is dropped: messages below it then seem newer than they are."""
    needed = [each for each in known if kept_from < each.offset < found.offset and each.time <= found.time]
    return (*needed[-TIME_CORRECTIONS_MAX + 1 :], found)


def latest_time(known: Corrections, offset: int, stamp: int) -> int:
    """The latest time at which the message at `offset` can have been appended.

    These times never decrease with the offset, except below the oldest correction if others were dropped.
    """
    return min([stamp, *(each.time for each in known if each.offset > offset)])


def time_for_deletion(known: Corrections, offset: int, stamp: int, now: int) -> int:
    """The same for deleting it by age: a stamp that is not in the future may be right, and the later time is safer."""
    return stamp if stamp <= now + JUMP else latest_time(known, offset, stamp)
