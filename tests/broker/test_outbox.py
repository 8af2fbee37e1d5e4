"""Deliveries that wait: what is recalled is cut out in one pass."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from pydanube.base.ids import ConsumerId
from pydanube.broker.subscription.outbox import Outbox
from pydanube.dispatch.events import Deliver

ONE, TWO = ConsumerId(1), ConsumerId(2)


def test_what_is_recalled_is_cut_out_and_the_rest_waits_in_order() -> None:
    outbox = Outbox()
    for consumer, first, last in ((ONE, 0, 9), (TWO, 10, 19), (ONE, 20, 20), (ONE, 30, 39)):
        outbox.add(Deliver(consumer, first, last, 0), now=first)
    assert outbox.since == 0
    recalled = [(ONE, 35, 100), (ONE, 20, 20), (ONE, 3, 4), (ONE, 7, 7), (TWO, 0, 9), (TWO, 30, 39)]
    assert outbox.drop(recalled) == {ONE: 2 + 1 + 1 + 5}
    left = [(deliver.consumer, deliver.first, deliver.last) for deliver in outbox]
    assert left == [(ONE, 0, 2), (ONE, 5, 6), (ONE, 8, 9), (TWO, 10, 19), (ONE, 30, 34)]


@pytest.mark.parametrize(("behind", "skipped", "left"), [(3, 3, (3, 4)), (5, 5, (7, 9)), (6, 5, (7, 9))])
def test_what_is_skipped_is_of_the_first_one_only(behind: int, skipped: int, left: tuple[int, int]) -> None:
    outbox = Outbox()
    for first, last in ((0, 4), (7, 9)):
        outbox.add(Deliver(ONE, first, last, 0), now=0)
    assert outbox.skip(behind) == skipped
    assert outbox.head == Deliver(ONE, *left, 0)


@pytest.mark.parametrize("seed", range(20))
def test_cutting_out_agrees_with_sets(seed: int) -> None:
    chance = Random(seed)
    outbox, expected = Outbox(), set()
    at = 0
    for _ in range(30):
        consumer, first = chance.choice((ONE, TWO)), at + chance.randrange(3)
        at = first + chance.randrange(1, 8)
        outbox.add(Deliver(consumer, first, at - 1, 0), now=0)
        expected |= {(consumer, offset) for offset in range(first, at)}
    recalled = []
    for _ in range(25):
        first = chance.randrange(at)
        recalled.append((chance.choice((ONE, TWO)), first, first + chance.randrange(5)))
    gone = {(consumer, offset) for consumer, first, last in recalled for offset in range(first, last + 1)}
    dropped = outbox.drop(recalled)
    assert dropped == Counter(consumer for consumer, _ in expected & gone)
    left = [(each.consumer, offset) for each in outbox for offset in range(each.first, each.last + 1)]
    assert sorted(left, key=lambda each: each[1]) == left
    assert set(left) == expected - gone
