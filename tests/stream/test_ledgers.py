"""A stream's ledgers in pages behave as the plain list of them does, whatever is added, sealed and deleted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.durability import Durability
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGERS_LISTED_MAX
from pydanube.stream.ledgers import Copies, LedgerRecord, Ledgers, Phase

NODES = (NodeIdentity("00" * 16),)


def sealed(number: int, first: int, count: int) -> LedgerRecord:
    last = first + count - 1
    return LedgerRecord(
        LedgerId(number), Epoch(1), Phase.SEALED, first, last, NODES, Copies(), Durability.FSYNC, 10 * count, last
    )


def listed(counts: list[int], *, open_at_end: bool) -> list[LedgerRecord]:
    """One after the other, each with so many entries; none at all is an empty one."""
    found, first = [], 0
    for number, count in enumerate(counts):
        found.append(sealed(number, first, count))
        first += count
    if open_at_end:
        found.append(replace(sealed(len(counts), first, 0), phase=Phase.OPEN, last=NO_OFFSET))
    return found


@given(st.lists(st.integers(0, 3), max_size=40), st.booleans(), st.integers(1, 8), st.data())
def test_pages_answer_as_a_plain_list_does(
    counts: list[int], open_at_end: bool, most: int, data: st.DataObject
) -> None:
    plain = listed(counts, open_at_end=open_at_end)
    paged = Ledgers.of(plain, most)
    ids = [ledger.id for ledger in plain[: -1 if open_at_end else None]]
    for _ in range(3):
        assert list(paged) == plain
        assert list(reversed(paged)) == plain[::-1]
        assert len(paged) == len(plain)
        assert len(paged.listed) <= most
        assert plain[-1:] == ([paged[-1]] if plain else [])
        for offset in range(sum(counts) + 2):
            reaching = [ledger for ledger in plain if ledger.phase is not Phase.SEALED or ledger.last >= offset]
            assert list(paged.reaching(offset)) == reaching
            assert paged.bytes_reaching(offset) == sum(ledger.bytes for ledger in reaching)
            ends = [ledger.last + 1 for ledger in plain if ledger.phase is Phase.SEALED and ledger.last < offset]
            assert paged.end_before(offset) == max(ends, default=0)
            early = [ledger for ledger in plain if ledger.first < offset or ledger.empty]
            assert list(paged.starting_before(offset)) == early
        gone = data.draw(st.sets(st.sampled_from(ids))) if ids else set()
        plain = [ledger for ledger in plain if ledger.id not in gone]
        ids = [number for number in ids if number not in gone]
        paged = paged.without(gone)


def test_a_roll_leaves_the_pages_alone_until_the_list_is_full() -> None:
    ledgers = Ledgers.of(listed([1] * LEDGERS_LISTED_MAX * 3, open_at_end=False))
    changed = 0
    for number in range(10_000, 10_000 + LEDGERS_LISTED_MAX):
        after = ledgers.added(sealed(number, number, 1))
        changed += after.pages is not ledgers.pages
        assert all(before is now for before, now in zip(ledgers.pages, after.pages, strict=False))
        ledgers = after
    assert changed == 2, "half of the list moves at a time"
