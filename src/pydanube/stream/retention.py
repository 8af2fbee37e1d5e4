"""Which messages of a topic may be deleted. Pure: numbers in, an offset out.

Only whole ledgers are deleted, the oldest first, so there are never holes. Nothing that a cursor or a restart still
needs is deleted, whatever the policy says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.errors import ArgumentInvalid
from pydanube.base.limits import OFFSET_MAX, RETENTION_STEPS, SECOND
from pydanube.base.ranges import extend_ranges
from pydanube.stream.times import Corrections, time_for_deletion


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """Limits set for a topic. None means that there is no such limit; without both, everything is kept forever."""

    seconds: int | None = None
    bytes: int | None = None

    def __post_init__(self) -> None:
        if min(self.seconds or 0, self.bytes or 0) < 0:
            raise ArgumentInvalid(f"retention must not be negative: {self}")


class SealedPart(NamedTuple):
    """A sealed ledger, or a segment in object storage. Only these can be deleted."""

    first: int
    last: int
    bytes: int
    newest_append_time: int
    corrections: Corrections = ()  # of its stream

    def aging_time(self, now: int) -> int:
        """When its last message was appended, for deleting it by age."""
        return time_for_deletion(self.corrections, self.last, self.newest_append_time, now)


def trim_before(
    ledgers: Iterable[SealedPart],
    policy: RetentionPolicy | None,
    deletable_before: int | None,
    now: int,
    *,
    total_bytes: int,
    clock_trusted: bool,
    needed_from: int | None = None,
) -> int:
    """The first offset to keep: all ledgers that end below it may be deleted.

    `ledgers` are given oldest first and have `total_bytes` together; the iteration stops at the first that stays.
    `deletable_before` is the position of the slowest durable cursor, None without subscriptions. `needed_from` is the
    first offset that a restart reads again, even if it was acked. `policy` is None if none was set; then (§19)

    - without subscriptions everything is kept, because a client may still subscribe;
    - with subscriptions, messages that all have acked are deleted at once.

    A policy holds in both cases: messages that all have acked, or all messages if there are no subscriptions, are
    deleted when they are older than `seconds` or when the sealed ledgers together have more than `bytes`, whichever
    comes first. So an explicit `RetentionPolicy()` keeps everything forever. Age does not count while the clock is not
    trusted.
    """
    bound = min(OFFSET_MAX + 1 if limit is None else limit for limit in (deletable_before, needed_from))
    keeps_all = policy is None and deletable_before is None
    kept_from = None
    for ledger in ledgers:
        kept_from = ledger.first if kept_from is None else kept_from
        if keeps_all or ledger.last >= bound or not _outlived(ledger, policy, total_bytes, now, clock_trusted):
            break
        total_bytes -= ledger.bytes
        kept_from = ledger.last + 1
    return kept_from or 0


def _outlived(ledger: SealedPart, policy: RetentionPolicy | None, total: int, now: int, clock_trusted: bool) -> bool:
    if policy is None:
        return True
    if policy.bytes is not None and total > policy.bytes:
        return True
    aged = policy.seconds is not None and ledger.aging_time(now) + policy.seconds * SECOND < now
    return aged and clock_trusted


def worth_sealing(
    policy: RetentionPolicy | None, deletable_before: int | None, *, first: int, bytes: int, seconds: float
) -> bool:
    """Whether an old ledger that is open should be sealed, because it can be deleted then, or soon after.

    `first`, `bytes` and `seconds` are its first offset, size and age. If its messages are kept anyway, sealing only
    makes more ledgers: each costs a node memory, and their number is limited.
    """
    if deletable_before is not None and deletable_before <= first:
        return False  # a subscription still needs all of it
    if policy is None:
        return deletable_before is not None
    by_age = policy.seconds is not None and seconds * RETENTION_STEPS >= policy.seconds
    by_size = policy.bytes is not None and bytes * RETENTION_STEPS >= policy.bytes
    return by_age or by_size


class BatchTimes(NamedTuple):
    """When the messages of a batch were appended, and when delayed ones are to be delivered."""

    first: int
    last: int
    append_time: int
    delivery_times: Sequence[int | None] | None = None  # one per message; None without such a column


def expired(batches: Iterable[BatchTimes], ttl_seconds: int, now: int) -> list[tuple[int, int]]:
    """The ranges of messages older than their time to live, in order. A delayed message counts from its delivery time.

    Batches come in offset order, so append times do not decrease, and the first batch that is young enough ends the
    search.
    """
    oldest = now - ttl_seconds * SECOND  # messages from before this have expired
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
