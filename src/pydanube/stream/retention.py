"""What of a topic may be deleted, and whether the clock may be believed about it. Pure: numbers in, an offset out.

Only whole ledgers go, the oldest first, so there are never holes; nothing that a cursor or a restart still needs goes,
whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.errors import ArgumentInvalid
from pydanube.base.limits import CLOCK_DISTRUST_SECONDS, CLOCK_JUMP_SECONDS, OFFSET_MAX, RETENTION_STEPS, SECOND
from pydanube.base.ranges import extend_ranges
from pydanube.stream.times import Corrections, time_for_deletion


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits that somebody set. None is no such limit; without both, everything is kept forever."""

    seconds: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if min(self.seconds or 0, self.bytes or 0) < 0:
            raise ArgumentInvalid(f"retention must not be negative: {self}")


class LedgerInfo(NamedTuple):
    """A sealed ledger. An open one is never deleted, so nobody asks about it."""

    first: int
    last: int
    bytes: int
    newest_append_time: int
    corrections: Corrections = ()  # of the stream it is of

    def aging_time(self, now: int) -> int:
        """When its last message was appended, for deleting it by age."""
        return time_for_deletion(self.corrections, self.last, self.newest_append_time, now)


def trim_before(
    ledgers: Iterable[LedgerInfo],
    policy: RetentionPolicy | None,
    deletable_before: int | None,
    now: int,
    *,
    total_bytes: int,
    clock_trusted: bool,
    needed_from: int | None = None,
) -> int:
    """The first offset to keep: all ledgers, given oldest first, that end below it may be deleted.

    Of `ledgers`, which have `total_bytes`, no more are looked at than may go, and one. `deletable_before` is where the
    slowest durable cursor stands, None without subscriptions. `needed_from` is the first offset that a restart reads
    again, whoever has acked it. `policy` is None where nobody set one; then (§19)

    - without subscriptions everything is kept: a topic nobody subscribed to yet is not a topic nobody wants;
    - with subscriptions what all have acked goes at once.

    A policy holds in both cases: what all have acked, or everything if there are no subscriptions, goes when it is
    older than `seconds` or when the sealed ledgers together have more than `bytes`, whichever comes first. So an
    explicit `RetentionPolicy()` keeps everything forever. Age is not looked at while the clock is not trusted.
    """
    bound = min(OFFSET_MAX + 1 if limit is None else limit for limit in (deletable_before, needed_from))
    nothing_goes = policy is None and deletable_before is None
    kept_from = None
    for ledger in ledgers:
        kept_from = ledger.first if kept_from is None else kept_from
        if nothing_goes or ledger.last >= bound or not _outlived(ledger, policy, total_bytes, now, clock_trusted):
            break
        total_bytes -= ledger.bytes
        kept_from = ledger.last + 1
    return kept_from or 0


def _outlived(ledger: LedgerInfo, policy: RetentionPolicy | None, total: int, now: int, clock_trusted: bool) -> bool:
    if policy is None:
        return True
    if policy.bytes is not None and total > policy.bytes:
        return True
    aged = policy.seconds is not None and ledger.aging_time(now) + policy.seconds * SECOND < now
    return aged and clock_trusted


def worth_sealing(
    policy: RetentionPolicy | None, deletable_before: int | None, *, first: int, bytes: int, seconds: float
) -> bool:
    """Whether an old ledger that is open should be sealed, because something of it may go then, or soon after.

    It begins at `first`, has so many bytes and is so many seconds old. Where messages are kept anyway, sealing would
    only make more and more ledgers: each that a node keeps costs it memory, and their number is limited.
    """
    if deletable_before is not None and deletable_before <= first:
        return False  # somebody needs all of it
    if policy is None:
        return deletable_before is not None
    by_age = policy.seconds is not None and seconds * RETENTION_STEPS >= policy.seconds
    by_size = policy.bytes is not None and bytes * RETENTION_STEPS >= policy.bytes
    return by_age or by_size


class BatchTimes(NamedTuple):
    """When the messages of a batch were appended, and for some when they are to be delivered."""

    first: int
    last: int
    append_time: int
    delivery_times: Sequence[int | None] | None = None  # one per message, or no such column


def expired(batches: Iterable[BatchTimes], ttl_seconds: int, now: int) -> list[tuple[int, int]]:
    """The ranges of messages older than their time to live, in order. A delayed message counts from its delivery time.

    Batches come in offset order, so append times do not fall and the first one that is young enough ends the search.
    """
    oldest = now - ttl_seconds * SECOND  # what lived from before this is expired
    found: list[tuple[int, int]] = []
    for batch in batches:
        if batch.append_time >= oldest:
            break
        if batch.delivery_times is None:
            extend_ranges(found, batch.first, batch.last)
            continue
        for offset, delivery_time in enumerate(batch.delivery_times, batch.first):
            if delivery_time is None or delivery_time < oldest:
                extend_ranges(found, offset, offset)
    return found


class ClockGuard:
    """Notices when the wall clock jumps against the monotonic one, and distrusts it for a while (§20).

    The two are compared with how they stood up to an hour ago: a slewed clock drifts by seconds in that time, and
    several smaller jumps add up.
    """

    def __init__(self, wall: int, monotonic: int, distrust_seconds: float = CLOCK_DISTRUST_SECONDS) -> None:
        self._set(wall, monotonic)
        self._distrust = int(distrust_seconds * SECOND)
        self._distrusted_until: int | None = None

    def observe(self, wall: int, monotonic: int) -> int | None:
        """To be called every few seconds. Returns by how much the clock jumped, once when trust in it ends."""
        jump = (wall - self._wall) - (monotonic - self._monotonic)
        jumped = abs(jump) > CLOCK_JUMP_SECONDS * SECOND
        trusted = self.trusted(monotonic)
        if jumped or monotonic - self._monotonic >= self._distrust:
            self._set(wall, monotonic)
        if jumped:
            self.distrust(monotonic)
        return jump if jumped and trusted else None

    def distrust(self, monotonic: int) -> None:
        """From now on, for a while."""
        self._distrusted_until = monotonic + self._distrust

    def trusted(self, monotonic: int) -> bool:
        return self._distrusted_until is None or monotonic >= self._distrusted_until

    def _set(self, wall: int, monotonic: int) -> None:
        self._wall, self._monotonic = wall, monotonic
