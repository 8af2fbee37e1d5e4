"""A storage node as its writers and readers see it: in this process, across the network, or a third party's.

Every call submits at once and returns a future. The entries of a ledger are whole batches, identified by their base
offset, which is their only order. `pydanube.testing.storage_contract` tests any implementation.
"""

from __future__ import annotations

from asyncio import Future
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from pydanube.base.durability import Durability
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.wire.batch import Batch


class LedgerState(Enum):
    OPEN = "open"  # the epoch that created it may append
    FENCED = "fenced"  # only the fencing epoch may append, to finish what may have been acknowledged
    SEALED = "sealed"  # the last offset is decided; nothing is ever appended again


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """What one node knows about one ledger."""

    ledger: LedgerId
    epoch: Epoch
    state: LedgerState
    durability: Durability
    last: int  # highest offset held, or the sealed end; NO_OFFSET if none
    confirmed: int  # highest last-confirmed offset that came with an entry; NO_OFFSET if none
    reserved: int  # offsets below this may have been acknowledged by a buffered ledger; 0 for fsync
    damaged: bool  # some of its entries cannot be read here
    quarantined: bool  # the catalogue does not know it; it is kept and reported, and never deleted automatically
    bytes: int = 0  # of its entries on this node
    lost_through: int = -1  # entries missing up to here may have been damaged; OFFSET_MAX: extent unknown
    unknown: int = 0  # in that case, the most messages after the last one held that may have been damaged


class StorageNode(Protocol):
    @property
    def identity(self) -> NodeIdentity:
        """Durable; a node that lost its disk comes back with a new one."""

    @property
    def in_order(self) -> bool:
        """Whether new entries of a ledger are acknowledged in the order of the appends, as a journal does."""

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        """Creates a ledger. It may be repeated with the same arguments while the ledger is open."""

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        """Stores a stamped batch; done when it is as durable as the ledger requires. It may be repeated."""

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[list[Batch]]:
        """The batch that holds `offset`, and those that follow without a gap; `EntryMissing` if there is none."""

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        """After a gap: the base offset of the first entry at or after `offset`; `EntryMissing` if there is none."""

    def find_intact(self, ledger: LedgerId, offset: int) -> Future[int]:
        """After damage: the base offset of the first readable entry from `offset`; `EntryMissing` if there is none."""

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        """From now on, only `epoch` may append. An unknown ledger is created, fenced and empty."""

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        """Decides the end of the ledger. Entries above `last` are no longer served."""

    def delete(self, ledger: LedgerId) -> Future[None]:
        """Deletes the ledger for good. It may be repeated."""

    def list(self) -> Future[list[LedgerStatus]]: ...


class StorageNodes(Protocol):
    """The storage nodes that a writer can reach."""

    def get(self, identity: NodeIdentity) -> StorageNode:
        """Never fails: a node that cannot be reached answers every call with `NodeUnreachable`."""

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        """The best `count` nodes for a new ledger, reachable ones first; `QuorumLost` if too few are known.
        `TooManyLedgers` if the remaining room is kept for callers with `reserve`."""
