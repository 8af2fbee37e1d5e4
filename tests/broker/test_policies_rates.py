"""Rates against an obvious model, and what is counted of ledgers and namespaces."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.limits import SECOND, UNCONFIRMED_ALONE_BYTES_MAX, UNCONFIRMED_BYTES_MAX, UNCONFIRMED_BYTES_MIN
from pydanube.broker.limits.intake import Account, Intake
from pydanube.broker.limits.quotas import Extent, Usage, bytes_from, offset_leaving
from pydanube.broker.limits.rates import BURST, Rate, rate_of

amounts = st.integers(1, 5_000)
pauses = st.integers(0, 3 * SECOND)


def test_a_second_of_it_goes_at_once_and_then_it_has_to_wait() -> None:
    rate = Rate(100, None)
    assert (rate.wait(0), rate.room(1, 0)) == (0, 100)
    rate.take(100, 1, 0)
    assert (rate.wait(0), rate.room(1, 0)) == (0, 1)
    rate.take(50, 1, 0)
    assert (rate.wait(0), rate.room(1, 0)) == (SECOND // 2, 0)
    assert (rate.wait(SECOND // 2), rate.room(1, SECOND)) == (0, 50)


def test_the_tighter_of_messages_and_bytes_counts() -> None:
    rate = Rate(1000, 1000)
    assert (rate.room(1, 0), rate.room(10, 0), rate.room(5000, 0)) == (1000, 100, 1)
    rate.take(1, 3000, 0)
    assert rate.wait(0) == 2 * SECOND


def test_what_is_larger_than_a_second_of_it_still_goes() -> None:
    rate = Rate(None, 10)
    assert rate.room(1_000, 0) == 1
    rate.take(1, 1_000, 0)
    assert rate.wait(0) == 99 * SECOND


def test_an_idle_hour_is_worth_no_more_than_a_second() -> None:
    rate = Rate(10, None)
    rate.take(10, 0, 0)
    assert rate.room(1, 3600 * SECOND) == 10


def test_no_limit_is_no_rate() -> None:
    assert rate_of(None, None) is None
    assert rate_of(1, None) is not None


@given(st.integers(1, 2_000), st.lists(st.tuples(pauses, amounts), min_size=1, max_size=40))
def test_a_rate_is_a_bucket_that_fills_with_time(per_second: int, events: list[tuple[int, int]]) -> None:
    rate, level, now = Rate(per_second, None), Fraction(per_second), 0
    for pause, amount in events:
        now += pause
        level = min(level + Fraction(pause * per_second, SECOND), Fraction(per_second))
        rate.take(amount, 0, now)
        level -= amount
        wait = max(Fraction(0), -level * SECOND / per_second)
        assert 0 <= rate.wait(now) - wait <= len(events)  # rounded up by less than a microsecond each


@given(st.integers(1, 500), st.lists(pauses, min_size=1, max_size=60))
def test_whoever_takes_only_what_has_room_stays_within_the_rate(per_second: int, waits: list[int]) -> None:
    rate, now, taken = Rate(per_second, None), 0, 0
    for pause in waits:
        now += pause
        room = rate.room(1, now)
        rate.take(room, 0, now)
        taken += room
        assert taken * SECOND <= per_second * (now + BURST) + SECOND


# -- bytes -------------------------------------------------------------------------------------------------------------


@st.composite
def ledgers(draw: st.DrawFn) -> list[Extent]:
    found, first = [], draw(st.integers(0, 5))
    for count, each, gap in draw(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 9), st.integers(0, 3)))):
        found.append(Extent(first, first + count - 1, count * each))
        first += count + gap
    return found


@given(ledgers(), st.integers(0, 200))
def test_bytes_from_an_offset_are_those_of_the_messages_there(extents: list[Extent], offset: int) -> None:
    sizes = {
        at: extent.bytes // (extent.last - extent.first + 1)
        for extent in extents
        for at in range(extent.first, extent.last + 1)
    }
    assert bytes_from(extents, offset) == sum(size for at, size in sizes.items() if at >= offset)


@given(ledgers(), st.integers(0, 300))
def test_as_much_is_left_as_was_asked_and_not_a_message_less(extents: list[Extent], keep: int) -> None:
    offset = offset_leaving(extents, keep)
    assert bytes_from(extents, offset) <= keep
    held = [extent for extent in extents if extent.first < offset <= extent.last + 1 and extent.bytes]
    for extent in held:
        assert bytes_from(extents, offset - 1) > keep, extent
    assert offset > 0 or sum(extent.bytes for extent in extents) <= keep


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 100), st.sampled_from(["set", "add", "forget"]))))
def test_the_usage_of_a_namespace_is_the_sum_of_its_places(changes: list[tuple[str, int, str]]) -> None:
    usage, model = Usage(), dict[str, int]()
    for place, bytes, change in changes:
        if change == "set":
            usage.set(place, bytes)
            model[place] = bytes
        elif change == "add":
            usage.add(place, bytes)
            model[place] = model.get(place, 0) + bytes
        else:
            usage.forget(place)
            model.pop(place, None)
        assert usage.bytes == sum(model.values())


@pytest.mark.parametrize("per_second", [1, 7, 1_000_000_000])
def test_what_is_small_is_not_free(per_second: int) -> None:
    rate = Rate(per_second, None)
    rate.take(per_second, 0, 0)
    for _ in range(10):
        rate.take(1, 0, 0)
    assert rate.wait(0) > 0


# -- on the way to the journal -----------------------------------------------------------------------------------------


def test_who_publishes_alone_has_much_room_and_others_share() -> None:
    intake = Intake()
    one, two = Account(intake), Account(intake)
    assert not one.add(UNCONFIRMED_ALONE_BYTES_MAX)
    assert one.add(1)
    assert one.full
    assert not two.add(UNCONFIRMED_BYTES_MAX // 2)
    assert two.add(1)
    assert not one.remove(UNCONFIRMED_ALONE_BYTES_MAX - UNCONFIRMED_BYTES_MAX // 2)
    assert one.remove(UNCONFIRMED_BYTES_MAX // 2)
    assert not one.full


def test_who_publishes_now_and_then_counts_in_between_and_not_for_ever() -> None:
    intake = Intake()
    flood, seldom = Account(intake), Account(intake)
    for account in (flood, seldom):
        account.add(1)
        account.remove(1)
    assert intake.share == UNCONFIRMED_BYTES_MAX // 2
    intake.turn()
    assert intake.share == UNCONFIRMED_BYTES_MAX // 2
    flood.add(1)
    intake.turn()
    assert intake.share == UNCONFIRMED_ALONE_BYTES_MAX


def test_however_many_publish_each_has_some_room() -> None:
    intake = Intake()
    for _ in range(1000):
        assert not Account(intake).add(1)
    assert intake.share == UNCONFIRMED_BYTES_MIN
