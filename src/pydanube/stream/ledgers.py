"""The ledgers of one stream in offset order: a short list, and before it pages of sealed ones that are stored apart.

Pure and immutable. A stream that is kept forever has tens of thousands of ledgers; a roll stores, compares and walks
only the short list. Pages are made from its older half and change only when ledgers are deleted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from typing import overload

from pydanube.base.durability import Durability
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import LEDGER_PAGES_CHANGED_MAX, LEDGERS_LISTED_MAX


class Phase(Enum):
    OPEN = "open"
    RECOVERING = "recovering"
    SEALED = "sealed"


@dataclass(frozen=True, slots=True)
class Copies:
    """How many copies: an entry goes to `write` of `replicas` nodes and is acknowledged when `ack` have it."""

    replicas: int = 1
    write: int = 1
    ack: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.ack <= self.write <= self.replicas:
            raise ValueError(f"needs 1 <= ack_quorum <= write_quorum <= replicas, not {self}")


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    id: LedgerId
    epoch: Epoch  # the owner that created or recovers it
    phase: Phase
    first: int
    last: int  # the decided end, once sealed
    nodes: tuple[NodeIdentity, ...]  # a node that was wiped has another identity
    copies: Copies
    durability: Durability
    bytes: int = 0  # once sealed: of one copy, approximately
    newest: int = 0  # once sealed: append time of its last entry
    unknown_from: int = NO_OFFSET  # of a damaged ledger: unknown whether messages had the offsets from here on

    @property
    def empty(self) -> bool:
        """Sealed without an entry."""
        return self.phase is Phase.SEALED and self.last < self.first

    def reaches(self, offset: int) -> bool:
        """Whether it ends at `offset` or after it, or has not ended."""
        return self.phase is not Phase.SEALED or self.last >= offset


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """Sealed ledgers that are stored together. The number never changes and is never used again in its stream."""

    number: int
    ledgers: tuple[LedgerRecord, ...]
    bytes: int = field(init=False, compare=False)
    empties: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        assert self.ledgers
        assert all(ledger.phase is Phase.SEALED for ledger in self.ledgers)
        object.__setattr__(self, "bytes", sum(ledger.bytes for ledger in self.ledgers))
        object.__setattr__(self, "empties", sum(ledger.empty for ledger in self.ledgers))

    @property
    def first(self) -> int:
        return self.ledgers[0].first

    @property
    def last(self) -> int:
        return self.ledgers[-1].last


@dataclass(frozen=True, slots=True, eq=False)
class Ledgers(Sequence[LedgerRecord]):
    """All but the last are sealed. Those in `pages` come before those in `listed`."""

    pages: tuple[LedgerPage, ...] = ()
    listed: tuple[LedgerRecord, ...] = ()
    paged: int = 0  # pages made so far: the number of the next one
    empties: int = 0  # in pages

    @classmethod
    def of(cls, ledgers: Iterable[LedgerRecord], listed_max: int = LEDGERS_LISTED_MAX) -> Ledgers:
        found = cls()
        for ledger in ledgers:
            found = found.added(ledger, listed_max)
        return found

    # -- changing ------------------------------------------------------------------------------------------------------

    def added(self, ledger: LedgerRecord, listed_max: int = LEDGERS_LISTED_MAX) -> Ledgers:
        """These ledgers and one more; if the list is full, its older half becomes a page."""
        if len(self.listed) < listed_max:
            return Ledgers(self.pages, (*self.listed, ledger), self.paged, self.empties)
        half = (listed_max + 1) // 2
        page = LedgerPage(self.paged, self.listed[:half])
        listed = (*self.listed[half:], ledger)
        return Ledgers((*self.pages, page), listed, self.paged + 1, self.empties + page.empties)

    def with_last(self, ledger: LedgerRecord) -> Ledgers:
        """These ledgers with this one in place of the last."""
        return Ledgers(self.pages, (*self.listed[:-1], ledger), self.paged, self.empties)

    def without(self, ids: Collection[LedgerId]) -> Ledgers:
        """Ledgers are usually removed from the beginning: pages after the last of `ids` are not looked at."""
        left, pages = len(ids), list[LedgerPage]()
        at = 0
        while at < len(self.pages) and left:
            page = self.pages[at]
            kept = tuple(ledger for ledger in page.ledgers if ledger.id not in ids)
            left -= len(page.ledgers) - len(kept)
            if kept:
                pages.append(page if len(kept) == len(page.ledgers) else LedgerPage(page.number, kept))
            at += 1
        listed = tuple(ledger for ledger in self.listed if ledger.id not in ids) if left else self.listed
        gone = sum(page.empties for page in self.pages[:at]) - sum(page.empties for page in pages)
        return Ledgers((*pages, *self.pages[at:]), listed, self.paged, self.empties - gone)

    def in_parts(self, ids: Collection[LedgerId]) -> Iterator[list[LedgerId]]:
        """The same ledgers, oldest first, in parts that one transaction each can remove from the record.

        Ledgers that a node could not delete for long are scattered: each may be the only one left of its page.
        """
        wanted, part, pages = set(ids), list[LedgerId](), 0
        for page in self.pages:
            if not wanted:
                break
            found = [ledger.id for ledger in page.ledgers if ledger.id in wanted]
            if found and pages == LEDGER_PAGES_CHANGED_MAX:
                yield part
                part, pages = [], 0
            part += found
            pages += bool(found)
            wanted.difference_update(found)
        part += [ledger.id for ledger in self.listed if ledger.id in wanted]
        if part:
            yield part

    # -- finding -------------------------------------------------------------------------------------------------------

    def reaching(self, offset: int) -> Iterator[LedgerRecord]:
        """The ledgers that end at `offset` or after it, in order."""
        at = bisect_left(self.pages, offset, key=_last_of)
        for page in self.pages[at : at + 1]:
            yield from (ledger for ledger in page.ledgers if ledger.reaches(offset))
        for number in range(at + 1, len(self.pages)):
            yield from self.pages[number].ledgers
        yield from (ledger for ledger in self.listed if ledger.reaches(offset))

    def starting_before(self, offset: int) -> Iterator[LedgerRecord]:
        """The ledgers that start below `offset`, in order, and every empty one."""
        for page in self.pages:
            if page.first < offset or page.empties:
                yield from (ledger for ledger in page.ledgers if ledger.first < offset or ledger.empty)
            elif not self.empties:
                break
        yield from (ledger for ledger in self.listed if ledger.first < offset or ledger.empty)

    def end_before(self, offset: int) -> int:
        """The offset after the last sealed ledger that ends below `offset`; 0 if none does."""
        at = bisect_left(self.pages, offset, key=_last_of)
        near = self.pages[at].ledgers if at < len(self.pages) else self.listed
        ends = [ledger.last + 1 for ledger in near if not ledger.reaches(offset)]
        if at:
            ends.append(self.pages[at - 1].last + 1)
        return max(ends, default=0)

    def bytes_reaching(self, offset: int) -> int:
        """The bytes of all that end at `offset` or after it."""
        at = bisect_left(self.pages, offset, key=_last_of)
        near = chain(self.pages[at].ledgers if at < len(self.pages) else (), self.listed)
        whole = sum([page.bytes for page in self.pages[at + 1 :]])
        return whole + sum(ledger.bytes for ledger in near if ledger.reaches(offset))

    # -- as a sequence -------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[LedgerRecord]:
        for page in self.pages:
            yield from page.ledgers
        yield from self.listed

    def __reversed__(self) -> Iterator[LedgerRecord]:
        yield from reversed(self.listed)
        for page in reversed(self.pages):
            yield from reversed(page.ledgers)

    def __len__(self) -> int:
        return len(self.listed) + sum([len(page.ledgers) for page in self.pages])

    @overload
    def __getitem__(self, at: int) -> LedgerRecord: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[LedgerRecord, ...]: ...

    def __getitem__(self, at: int | slice) -> LedgerRecord | tuple[LedgerRecord, ...]:
        if isinstance(at, int) and -len(self.listed) <= at < 0:
            return self.listed[at]
        return tuple(self)[at]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Ledgers):
            return NotImplemented
        return self.listed == other.listed and self.pages == other.pages and self.paged == other.paged

    def __hash__(self) -> int:
        return hash((self.listed, self.paged))


def _last_of(page: LedgerPage) -> int:
    return page.last
