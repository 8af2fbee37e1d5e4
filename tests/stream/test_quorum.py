"""The arithmetic of copies, held against every possibility for up to five nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations

import pytest

from pydanube.base.errors import EntryMissing, LedgerNotFound, error_table
from pydanube.stream.quorum import (
    acknowledged,
    counts_as_absence,
    fenced_enough,
    out_of_reach,
    proves_absence,
    writable,
    write_set,
)
from pydanube.stream.record import Copies

NODES_MAX = 5
ALL = [
    Copies(replicas, write, ack)
    for replicas in range(1, NODES_MAX + 1)
    for write in range(1, replicas + 1)
    for ack in range(1, write + 1)
]


def subsets(nodes: range | list[int] | set[int]) -> Iterator[set[int]]:
    for size in range(len(nodes) + 1):
        yield from map(set, combinations(sorted(nodes), size))


def possible_write_sets(copies: Copies) -> list[set[int]]:
    """Neighbours on the ring, from each node on."""
    count = copies.replicas
    return [{(start + step) % count for step in range(copies.write)} for start in range(count)]


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_a_write_set_is_one_of_the_rotations_and_the_same_for_everybody(copies: Copies) -> None:
    nodes = list(range(copies.replicas))
    seen = Counter()
    for offset in range(2000):
        chosen = list(write_set(nodes, offset, copies.write))
        assert set(chosen) in possible_write_sets(copies)
        assert len(chosen) == copies.write
        assert chosen == list(write_set(nodes, offset, copies.write))
        seen.update(chosen)
    assert min(seen.values()) > 0.8 * max(seen.values()), "each node carries its share"
    assert len(seen) == copies.replicas


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_enough_nodes_are_fenced_when_nobody_can_acknowledge_any_more(copies: Copies) -> None:
    nodes = range(copies.replicas)
    for fenced in subsets(nodes):
        free_to_ack = max(len(chosen - fenced) for chosen in possible_write_sets(copies))
        assert fenced_enough(nodes, fenced, copies) == (free_to_ack < copies.ack)


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_a_ledger_is_writable_while_every_write_set_can_acknowledge(copies: Copies) -> None:
    nodes = range(copies.replicas)
    for alive in subsets(nodes):
        expected = all(len(chosen & alive) >= copies.ack for chosen in possible_write_sets(copies))
        assert writable(nodes, alive, copies) == expected


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_no_entry_that_was_acknowledged_is_ever_dropped(copies: Copies) -> None:
    """For every place of the copies and every set of nodes that answers: true absences never suffice to drop it."""
    nodes = range(copies.replicas)
    for chosen in possible_write_sets(copies):
        for holders in subsets(chosen):
            if not acknowledged(len(holders), copies):
                continue
            for fenced in subsets(nodes):
                if fenced_enough(nodes, fenced, copies):
                    absences = len((chosen & fenced) - holders)
                    assert not proves_absence(absences, copies)


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_an_entry_is_dropped_as_soon_as_it_cannot_have_been_acknowledged(copies: Copies) -> None:
    """The rule is exact: one absence less, and there is a way that it was."""
    for absences in range(copies.write + 1):
        may_have_been = copies.write - absences >= copies.ack
        assert proves_absence(absences, copies) != may_have_been


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_recovery_with_all_nodes_always_decides(copies: Copies) -> None:
    """Whoever holds the entry: it is found, or its absence is proven."""
    for chosen in possible_write_sets(copies):
        for holders in subsets(chosen):
            assert holders or proves_absence(len(chosen - holders), copies)


@pytest.mark.parametrize("copies", ALL, ids=str)
def test_an_entry_is_acknowledged_or_out_of_reach_and_never_both(copies: Copies) -> None:
    for acks in range(copies.write + 1):
        for failures in range(copies.write - acks + 1):
            both = acknowledged(acks, copies) and out_of_reach(failures, copies)
            assert not both
            if acks + failures == copies.write:
                assert acknowledged(acks, copies) or out_of_reach(failures, copies)


def test_only_a_fenced_node_that_would_have_the_entry_proves_an_absence() -> None:
    for kind in error_table().values():
        counts = issubclass(kind, EntryMissing | LedgerNotFound)
        assert counts_as_absence(kind("x"), fenced=True) == counts
        assert not counts_as_absence(kind("x"), fenced=False)


@pytest.mark.parametrize("numbers", [(1, 1, 0), (1, 2, 1), (2, 1, 2), (3, 4, 2), (0, 0, 0)])
def test_copies_that_make_no_sense_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="ack_quorum <= write_quorum <= replicas"):
        Copies(*numbers)
