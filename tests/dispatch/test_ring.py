"""The ring and the key filters: which consumer owns a key, and what a glob accepts, in bounded time."""

from __future__ import annotations

from collections import Counter
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.desk import A, B, C
from dispatch.model import glob
from pydanube.base.errors import FilterInvalid
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import (
    FILTER_BYTES_MAX,
    FILTERS_BYTES_MAX,
    FILTERS_MAX,
    KEY_BYTES_MAX,
    OWNER_CACHE_BYTES_MAX,
    OWNER_CACHE_KEYS_MAX,
)
from pydanube.dispatch.ring import Filters, Ring, ring_hash

KEYS = [b"key-%d" % number for number in range(5_000)]
TEXT = st.text("ab*?\n.", max_size=8).map(str.encode)


def ring(*consumers: int) -> Ring:
    made = Ring()
    for consumer in consumers:
        made.join(ConsumerId(consumer), Filters(()))
    return made


def test_the_hash_never_changes() -> None:
    assert [ring_hash(data) for data in (b"", b"1-0", b"customer-7")] == [0x0, 0x5C50E99B, 0x113AE7A6]


def test_keys_spread_evenly() -> None:
    eight = ring(*range(8))
    owners = Counter(eight.owner(key) for key in KEYS)
    assert len(owners) == 8
    assert max(owners.values()) < 2 * min(owners.values())


def test_a_consumer_that_joins_or_leaves_moves_only_its_own_keys() -> None:
    both = ring(1, 2, 3)
    before = {key: both.owner(key) for key in KEYS}
    both.join(ConsumerId(4), Filters(()))
    assert {both.owner(key) for key in KEYS if both.owner(key) != before[key]} == {4}
    both.leave(ConsumerId(4))
    assert {key: both.owner(key) for key in KEYS} == before


def test_the_order_of_joining_does_not_matter() -> None:
    one, other = ring(1, 2, 3), ring(3, 1, 2)
    assert [one.owner(key) for key in KEYS] == [other.owner(key) for key in KEYS]


def test_a_key_goes_only_to_consumers_that_accept_it() -> None:
    made = Ring()
    made.join(A, Filters([b"eu-*", b"us-?"]))
    made.join(B, Filters([b"eu-*"]))
    assert {made.owner(b"eu-%d" % number) for number in range(100)} == {A, B}
    assert [made.owner(key) for key in (b"us-1", b"us-12", b"asia")] == [A, None, None]
    made.join(C, Filters(()))
    assert made.owner(b"asia") == C
    assert Ring().owner(b"asia") is None


def test_the_cache_of_owners_is_bounded() -> None:
    made = ring(1)
    for number in range(OWNER_CACHE_KEYS_MAX + 10):
        made.owner(b"%d" % number)
    assert len(made._owners) == 10
    for number in range(OWNER_CACHE_BYTES_MAX // KEY_BYTES_MAX + 10):
        made.owner(b"%0*d" % (KEY_BYTES_MAX, number))
    assert sum(map(len, made._owners)) <= OWNER_CACHE_BYTES_MAX
    assert made._owners_bytes == sum(map(len, made._owners))


@pytest.mark.parametrize("body", ["?", "b", "ab?", "?*b", "b*"])
def test_the_longest_key_takes_some_milliseconds_with_all_filters_of_a_consumer(body: str) -> None:
    globs = [f"*{body * FILTER_BYTES_MAX}"[: FILTER_BYTES_MAX - 1 - each] + "a" for each in range(FILTERS_MAX)]
    filters = Filters([glob.encode() for glob in globs])
    for key in (b"b" * KEY_BYTES_MAX, b"ab" * (KEY_BYTES_MAX // 2)):
        took = []
        for _ in range(3):
            since = process_time()
            filters.accept(key)
            took.append(process_time() - since)
        assert min(took) < 0.02


def test_filters_of_a_subscription_are_bounded_and_equal_ones_count_once() -> None:
    made, full = (
        Ring(),
        [f"{each:0{FILTER_BYTES_MAX}}".encode() for each in range(FILTERS_BYTES_MAX // FILTER_BYTES_MAX)],
    )
    sets = [full[at : at + FILTERS_MAX] for at in range(0, len(full), FILTERS_MAX)]
    for number, each in enumerate([*sets, *sets]):
        made.join(ConsumerId(number), Filters(each))
    with pytest.raises(FilterInvalid, match="bytes of distinct key filters; the maximum is"):
        made.join(ConsumerId(999), Filters([b"x"]))
    few = made.key_bytes_at_once
    made.leave(ConsumerId(0))
    with pytest.raises(FilterInvalid):
        made.join(ConsumerId(999), Filters([b"x"]))
    made.leave(ConsumerId(len(sets)))
    made.join(ConsumerId(999), Filters([b"x"]))
    assert made.owner(full[-1]) in (len(sets) - 1, 2 * len(sets) - 1)
    assert made.owner(b"x") == 999
    for number in [*range(2 * len(sets)), 999]:
        made.leave(ConsumerId(number))
    assert made.key_bytes_at_once > few
    assert (made._filter_bytes, made._filter_users) == (0, {})


@given(TEXT.filter(bool), TEXT)
def test_a_glob_accepts_what_the_plain_definition_accepts(pattern: bytes, key: bytes) -> None:
    assert Filters([pattern]).accept(key) == glob(pattern, key)


def test_a_glob_is_byte_wise_and_whole() -> None:
    assert Filters([b"?"]).accept(b"\xff")
    assert not Filters([b"a"]).accept(b"A")
    assert not Filters([b"a"]).accept(b"a\n")
    assert Filters([b"a*"]).accept(b"a\nb")


@pytest.mark.timeout(5)
def test_no_glob_takes_exponential_time() -> None:
    """A matcher with backtracking would never finish."""
    assert not Filters([b"*a" * 127 + b"*b"]).accept(b"a" * 3_000)
    assert not Filters([b"?*" * 127 + b"b"]).accept(b"a" * 3_000)


@pytest.mark.parametrize("wrong", [[b""], [b"x" * 257], [b"x"] * 17])
def test_filters_out_of_bounds_are_refused(wrong: list[bytes]) -> None:
    with pytest.raises(FilterInvalid):
        Filters(wrong)
