"""Nothing goes that somebody may still want; the rest goes by whole ledgers, and by age only if the clock is right."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import ArgumentInvalid
from pydanube.base.limits import SECOND
from pydanube.stream.retention import (
    BatchTimes,
    RetentionPolicy,
    SealedPart,
    expired,
    trim_before,
)

FOREVER = RetentionPolicy()

# Three ledgers of 100 messages and 1,000 bytes, the last appends at 10, 20 and 30 seconds.
LEDGERS = [SealedPart(100 * at, 100 * at + 99, 1_000, (10 + 10 * at) * SECOND) for at in range(3)]
TOTAL = 3_000


def trimmed(
    policy: RetentionPolicy | None, deletable: int | None, now: int = 1_000, *, trusted: bool = True, **more: int
) -> int:
    return trim_before(LEDGERS, policy, deletable, now * SECOND, total_bytes=TOTAL, clock_trusted=trusted, **more)


def test_by_default_a_topic_without_subscriptions_keeps_everything() -> None:
    assert trimmed(None, None) == 0


def test_by_default_what_all_subscriptions_acked_goes_at_once() -> None:
    assert [trimmed(None, floor) for floor in (0, 99, 100, 199, 200, 300, 999)] == [0, 0, 100, 100, 200, 300, 300]
    assert trimmed(None, 300, trusted=False) == 300


def test_retention_for_ever_keeps_also_what_is_acked() -> None:
    assert trimmed(FOREVER, 300) == 0
    assert trimmed(FOREVER, None) == 0


@pytest.mark.parametrize("floor", [None, 300])
def test_by_age_a_ledger_goes_when_its_newest_message_is_too_old(floor: int | None) -> None:
    policy = RetentionPolicy(seconds=100)
    assert [trimmed(policy, floor, now) for now in (110, 111, 120, 121, 131)] == [0, 100, 100, 200, 300]


@pytest.mark.parametrize("floor", [None, 300])
def test_by_size_the_oldest_go_until_the_rest_fit(floor: int | None) -> None:
    sizes = (5_000, 3_000, 2_999, 2_000, 1_999, 0)
    assert [trimmed(RetentionPolicy(bytes=size), floor) for size in sizes] == [0, 0, 100, 100, 200, 300]


def test_of_age_and_size_the_first_to_be_exceeded_counts() -> None:
    assert trimmed(RetentionPolicy(seconds=100, bytes=2_000), None, now=50) == 100
    assert trimmed(RetentionPolicy(seconds=100, bytes=9_000), None, now=121) == 200


def test_age_is_not_looked_at_while_the_clock_is_not_trusted() -> None:
    assert trimmed(RetentionPolicy(seconds=100), 300, trusted=False) == 0
    assert trimmed(RetentionPolicy(seconds=100, bytes=2_000), 300, trusted=False) == 100


def test_no_policy_takes_what_a_cursor_needs() -> None:
    assert trimmed(RetentionPolicy(seconds=0, bytes=0), 150) == 100
    assert trimmed(RetentionPolicy(seconds=0, bytes=0), 0) == 0


def test_nothing_goes_that_a_restart_reads_again() -> None:
    assert trimmed(None, 300, needed_from=150) == 100
    assert trimmed(RetentionPolicy(bytes=0), None, needed_from=0) == 0


def test_a_topic_without_sealed_ledgers_has_nothing_to_trim() -> None:
    assert trim_before([], RetentionPolicy(bytes=0), None, 0, total_bytes=0, clock_trusted=True) == 0
    assert trim_before(LEDGERS[1:], None, 0, 0, total_bytes=TOTAL, clock_trusted=True) == 100


limits = st.none() | st.integers(0, 60)


@given(limits, limits, st.none() | st.integers(0, 400), st.none() | st.integers(0, 400), st.integers(0, 100))
def test_only_whole_ledgers_go_and_the_oldest_first(
    seconds: int | None, kilobytes: int | None, floor: int | None, needed: int | None, now: int
) -> None:
    policy = RetentionPolicy(seconds, None if kilobytes is None else kilobytes * 100)
    before = trim_before(
        LEDGERS, policy, floor, now * SECOND, total_bytes=TOTAL, clock_trusted=True, needed_from=needed
    )
    assert before in (0, 100, 200, 300)
    assert before <= min(400 if limit is None else limit for limit in (floor, needed)) or before == 0
    later = trim_before(
        LEDGERS, policy, floor, (now + 1) * SECOND, total_bytes=TOTAL, clock_trusted=True, needed_from=needed
    )
    assert later >= before


@pytest.mark.parametrize("wrong", [{"seconds": -1}, {"bytes": -1}])
def test_a_retention_below_zero_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ArgumentInvalid):
        RetentionPolicy(**wrong)


# -- time to live ------------------------------------------------------------------------------------------------------


def test_messages_older_than_their_time_to_live_are_expired() -> None:
    batches = [BatchTimes(0, 9, 10 * SECOND), BatchTimes(10, 14, 20 * SECOND), BatchTimes(20, 29, 30 * SECOND)]
    assert [expired(batches, 60, now * SECOND) for now in (70, 71, 80, 81, 91)] == [
        [],
        [(0, 9)],
        [(0, 9)],
        [(0, 14)],
        [(0, 14), (20, 29)],
    ]


def test_a_delayed_message_lives_from_its_delivery_time_on() -> None:
    batches = [BatchTimes(0, 3, 10 * SECOND, [None, 50 * SECOND, None, 5 * SECOND]), BatchTimes(4, 5, 11 * SECOND)]
    assert expired(batches, 60, 100 * SECOND) == [(0, 0), (2, 5)]
    assert expired(batches, 60, 111 * SECOND) == [(0, 5)]


def test_the_search_ends_at_the_first_batch_that_is_young_enough() -> None:
    def batches() -> Iterator[BatchTimes]:
        yield BatchTimes(0, 9, 10 * SECOND)
        yield BatchTimes(10, 19, 50 * SECOND)
        raise AssertionError("no need to look further")

    assert expired(batches(), 60, 80 * SECOND) == [(0, 9)]
