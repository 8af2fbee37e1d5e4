"""A storage node as its writers and readers see it: in this process, across the network, or somebody else's.

Every call submits at once and returns a future. The entries of a ledger are whole batches, known by their base offset;
a node keeps no order between them but theirs. `pydanube.testing.storage_contract` tests any implementation.
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
    OPEN = "open"  # the epoch that made it may append
    FENCED = "fenced"  # only the fencing epoch may append, to finish what may have been acknowledged
    SEALED = "sealed"  # the last offset is decided; nothing is ever appended again


@dataclass(frozen=True, slots=True)
class LedgerStatus:
    """What one node knows of one ledger."""

    ledger: LedgerId
    epoch: Epoch
    state: LedgerState
    durability: Durability
    last: int  # highest offset held, or the sealed end; NO_OFFSET if none
    confirmed: int  # highest last-confirmed offset that came with an entry; NO_OFFSET if none
    reserved: int  # offsets below this may have been acknowledged by a buffered ledger; 0 for fsync
    damaged: bool  # some of its entries cannot be read here
    quarantined: bool  # no catalogue knows it; kept and reported, never deleted by itself
    bytes: int = 0  # of its entries on this node
    lost_through: int = -1  # entries up to here that are not found may have been damaged; OFFSET_MAX: nobody can tell
    unknown: int = 0  # then: how many messages behind the last that is held may have been damaged, at most


class StorageNode(Protocol):
    @property
    def identity(self) -> NodeIdentity:
        """Durable; a node that lost its disk comes back with another one."""
        ...

    @property
    def in_order(self) -> bool:
        """Whether new entries of a ledger are acknowledged in the order they were appended, as a journal does it."""
        ...

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        """Repeating it with the same arguments while the ledger is open is fine."""
        ...

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        """Keeps a stamped batch; done when it is as durable as the ledger asks. Repeating the same batch is fine."""
        ...

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[list[Batch]]:
        """The batch that holds `offset` and those that follow it without a gap; at least one, else `EntryMissing`."""
        ...

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        """Behind a gap: the base offset of the first entry at or after `offset`, else `EntryMissing`."""
        ...

    def find_intact(self, ledger: LedgerId, offset: int) -> Future[int]:
        """Behind damage: the base offset of the first readable entry at or after `offset`, else `EntryMissing`."""
        ...

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        """From now on only `epoch` may append. A ledger that is not known is made, fenced and empty."""
        ...

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        """Decides the end. Entries above `last` are no longer served."""
        ...

    def delete(self, ledger: LedgerId) -> Future[None]:
        """Forgets the ledger forever; repeating it is fine."""
        ...

    def list(self) -> Future[list[LedgerStatus]]: ...


class StorageNodes(Protocol):
    """The storage nodes a writer can reach."""

    def get(self, identity: NodeIdentity) -> StorageNode:
        """Never fails: a node that cannot be reached answers every call with `NodeUnreachable`."""
        ...

    def choose(self, count: int, *, reserve: bool = False) -> list[NodeIdentity]:
        """The best `count` nodes for a new ledger, those that seem up first; `QuorumLost` if not as many are known.

        `TooManyLedgers` if they have so many that what is left is kept for those that ask with `reserve`.
        """
        ...
