"""Append times: what a message is stamped with while the wall clock jumps, and when it was appended if that was wrong.

Pure: readings of clocks in, numbers out. Why it is so is in `docs/decisions/0039-append-times-and-wrong-clocks.md`.
"""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.limits import CLOCK_HELD_SECONDS, CLOCK_JUMP_SECONDS, SECOND, TIME_CORRECTIONS_MAX

JUMP = CLOCK_JUMP_SECONDS * SECOND


class AppendClock:
    """What messages are stamped with: a jump ahead counts only when it has lasted for a while."""

    def __init__(self, wall: int, monotonic: int) -> None:
        self._wall, self._monotonic = wall, monotonic  # as they stood when the clock was last believed
        self._jumped: int | None = None  # on the monotonic clock, when it was first seen ahead

    def observe(self, wall: int, monotonic: int) -> int:
        """What time it is, as far as the clock is believed; to be asked now and then, also if nothing is appended."""
        steady = self._wall + monotonic - self._monotonic
        if wall - steady > JUMP:
            self._jumped = monotonic if self._jumped is None else self._jumped
            if monotonic - self._jumped < CLOCK_HELD_SECONDS * SECOND:
                return steady
        self._wall, self._monotonic, self._jumped = wall, monotonic, None
        return wall


class Correction(NamedTuple):
    """What lies below `offset` was appended at `time` or before, whatever it is stamped with."""

    offset: int
    time: int


Corrections = tuple[Correction, ...]  # in the order of their offsets, and so of their times


def corrected(known: Corrections, found: Correction, kept_from: int) -> Corrections:
    """With one more. If there are too many the oldest goes: what lies below it then counts as younger than it is."""
    needed = [each for each in known if kept_from < each.offset < found.offset and each.time <= found.time]
    return (*needed[-TIME_CORRECTIONS_MAX + 1 :], found)


def latest_time(known: Corrections, offset: int, stamp: int) -> int:
    """When the message at `offset` was appended at the latest.

    In the order of offsets these times never fall; below the oldest correction they may, if older ones were dropped.
    """
    return min([stamp, *(each.time for each in known if each.offset > offset)])


def time_for_deletion(known: Corrections, offset: int, stamp: int, now: int) -> int:
    """The same for deleting it by age: a stamp that is not in the future may be right, and the later time keeps it."""
    return stamp if stamp <= now + JUMP else latest_time(known, offset, stamp)
