"""What one storage node knows about each ledger: who may append, and where it ends. Decide, log, replay.

`decide_*` only reads and returns the records to log; `replay` is the only writer. The checkpoint at the start of each
journal file is this table, so older files can be removed in any order.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube.base.errors import (
    ArgumentInvalid,
    EntryConflict,
    LedgerDamaged,
    LedgerExists,
    LedgerFenced,
    LedgerNotFound,
    TooManyLedgers,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.base.limits import NODE_LEDGERS_MAX, OFFSET_MAX
from pydanube.journal.group import EntryKind

OPEN, FENCED, SEALED = range(3)
FSYNC, BUFFERED = range(2)
NOTHING_REFUSED = OFFSET_MAX + 1
NUMBER_MAX = (1 << 63) - 1
_RECORD = struct.Struct("<QQQqqIBBBx")
_DAMAGED, _QUARANTINED = 1, 2


class Control(NamedTuple):
    """A change to the table, as one directory entry of the journal."""

    kind: EntryKind
    ledger: LedgerId
    a: int = 0
    b: int = 0


@dataclass(slots=True)
class Ledger:
    """One ledger on one node. `epoch` created it; `fence` is the newest epoch that fenced it, 0 if none did."""

    id: LedgerId
    epoch: Epoch
    durability: int
    state: int = OPEN
    fence: Epoch = Epoch(0)
    sealed: int = NO_OFFSET  # the decided end, once sealed
    queued: int = NO_OFFSET  # highest offset handed to the journal
    held: int = NO_OFFSET  # highest offset that is as durable as the ledger requires
    confirmed: int = NO_OFFSET
    reserved: int = 0
    refused: int = NOTHING_REFUSED  # lowest offset refused because the node was busy: no higher one is accepted first
    homes: int = 0  # bit n: data directory n holds copied-out entries
    lost_through: int = NO_OFFSET  # entries missing up to here may have been damaged; OFFSET_MAX: extent unknown
    unsure: bool = False  # it is unknown what was lost; stored, because the damaged file may be gone before the seal
    away: bool = False  # some of it may be on a missing disk; not stored, because the disk may come back
    quarantined: bool = False
    deleted: bool = False
    extents: array[int] = field(default_factory=lambda: array("q"))  # see `add_extent`
    _packed: bytes = b""

    @property
    def incomplete(self) -> bool:
        """Some of it cannot be read here, so its creator appends no more and continues in a new ledger."""
        return self.lost_through > NO_OFFSET or self.away

    def may_have_lost(self, offset: int) -> bool:
        """Whether the entry may have been stored here although it is not found, so that its absence proves nothing."""
        return offset <= self.lost_through or self.away

    def lose(self, through: int) -> None:
        """Records that something up to `through` is damaged. In a sealed ledger, nothing is lost beyond its end."""
        if self.state == SEALED:
            through = min(through, self.sealed)
        self.unsure = self.unsure or through == OFFSET_MAX
        self.lost_through, self._packed = max(self.lost_through, through), b""

    def admits(self, epoch: int) -> bool:
        """Whether `epoch` may append: its creator while it is open and complete, the newest fencer until the seal."""
        if self.state == OPEN:
            return epoch == self.epoch and not self.incomplete
        return self.state == FENCED and epoch == self.fence and not self.away

    def takes(self, offset: int, *, room: bool) -> bool:
        """Whether the node accepts the entry at `offset`; after a refusal, later ones wait for the refused entry."""
        if not room or offset > self.refused:
            self.refused = min(self.refused, offset)
            return False
        if offset == self.refused:
            self.refused = NOTHING_REFUSED
        return True

    def add_extent(self, generation: int, first: int, last: int, size: int) -> None:
        """Notes that file `generation` holds offsets within [first, last], in four numbers: there may be many files."""
        self.extents.extend((generation, first, last, size))
        self.queued = max(self.queued, last)
        self.held = max(self.held, last)

    def drop_extents(self, generations: Collection[int]) -> None:
        for at in range(len(self.extents) - 4, -1, -4):
            if self.extents[at] in generations:
                del self.extents[at : at + 4]

    def files(self) -> Iterator[tuple[int, int]]:
        """Generation and bytes of each file that holds entries, the newest first."""
        for at in range(len(self.extents) - 4, -1, -4):
            yield self.extents[at], self.extents[at + 3]

    def files_at(self, first: int, last: int) -> list[int]:
        """Generations of the files that may hold an offset within [first, last], the newest first."""
        found = self.extents
        positions = range(len(found) - 4, -1, -4)
        return [found[at] for at in positions if found[at + 1] <= last and first <= found[at + 2]]

    def close(self) -> None:
        """Ends appends by the epoch that created it: a write failed, or the node restarted."""
        if self.state == OPEN:
            self.state, self._packed = FENCED, b""

    def packed(self) -> bytes:
        if not self._packed:
            flags = self.unsure * _DAMAGED | self.quarantined * _QUARANTINED
            self._packed = _RECORD.pack(
                self.id,
                self.epoch,
                self.fence,
                self.sealed,
                self.reserved,
                self.homes,
                self.state,
                self.durability,
                flags,
            )
        return self._packed


class LedgerTable:
    """All ledgers of a node."""

    def __init__(self) -> None:
        self._ledgers: dict[LedgerId, Ledger] = {}
        self.forgetful = False  # an unreadable group may have created, fenced or deleted ledgers that are not here
        self.born_later = NUMBER_MAX  # ledgers from this number on were created later: nothing about them is missing
        self.unknown = 0  # messages of any ledger that unreadable groups may have held

    def __iter__(self) -> Iterator[Ledger]:
        return iter(self._ledgers.values())

    def __len__(self) -> int:
        return len(self._ledgers)

    def find(self, ledger: LedgerId) -> Ledger | None:
        return self._ledgers.get(ledger)

    def get(self, ledger: LedgerId) -> Ledger:
        found = self._ledgers.get(ledger)
        if found is None:
            self._refuse_if_forgotten(ledger)
            raise LedgerNotFound(f"ledger {ledger} does not exist")
        return found

    def decide_create(self, ledger: LedgerId, epoch: Epoch, durability: int) -> list[Control]:
        _check_numbers(ledger, epoch)
        found = self._ledgers.get(ledger)
        if found is None:
            self._refuse_if_forgotten(ledger)  # it may have been fenced here
            self._check_room()
            return [Control(EntryKind.CREATE, ledger, epoch, durability)]
        if found.state != OPEN or epoch < found.epoch:
            raise LedgerFenced(f"ledger {ledger} is closed or fenced by epoch {max(found.fence, found.epoch)}")
        if (epoch, durability) != (found.epoch, found.durability):
            raise LedgerExists(f"ledger {ledger} was created by epoch {found.epoch}")
        return []

    def decide_fence(self, ledger: LedgerId, epoch: Epoch) -> list[Control]:
        _check_numbers(ledger, epoch)
        found = self._ledgers.get(ledger)
        if found is None:
            self._check_room()
            forgotten = [Control(EntryKind.DAMAGED, ledger)] if self._forgotten(ledger) else []
            return [Control(EntryKind.FENCE, ledger, epoch), *forgotten]
        if found.state == SEALED or (found.state == FENCED and found.fence == epoch):
            return []
        if epoch <= found.epoch or epoch < found.fence:
            raise LedgerFenced(f"ledger {ledger} is owned by epoch {max(found.fence, found.epoch)}, not {epoch}")
        return [Control(EntryKind.FENCE, ledger, epoch)]

    def decide_seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> list[Control]:
        found = self.get(ledger)
        if not NO_OFFSET <= last <= OFFSET_MAX:
            raise ArgumentInvalid(f"a ledger cannot end at {last}")
        if found.state == SEALED:
            if found.sealed != last:
                raise EntryConflict(f"ledger {ledger} was sealed at {found.sealed}, not {last}")
            return []
        if not found.admits(epoch):
            raise LedgerFenced(f"ledger {ledger} is owned by epoch {max(found.fence, found.epoch)}, not {epoch}")
        if last < found.confirmed:
            raise EntryConflict(f"ledger {ledger} has confirmed {found.confirmed}, so it cannot end at {last}")
        return [Control(EntryKind.SEAL, ledger, last, epoch)]

    def decide_delete(self, ledger: LedgerId) -> list[Control]:
        return [Control(EntryKind.DELETE, ledger)] if ledger in self._ledgers else []

    def replay(self, record: Control) -> None:
        kind, ledger = record.kind, record.ledger
        if kind == EntryKind.CREATE:
            self._ledgers.setdefault(
                ledger, Ledger(ledger, Epoch(record.a), record.b)
            )  # a checkpoint may know it already
            return
        if kind == EntryKind.DELETE:
            gone = self._ledgers.pop(ledger, None)
            if gone is not None:
                gone.deleted = True
            return
        found = self._ledgers.get(ledger)
        if found is None:
            if kind != EntryKind.FENCE:
                return  # it was deleted in the meantime
            found = self._ledgers[ledger] = Ledger(ledger, Epoch(0), FSYNC)
        found._packed = b""
        match kind:
            case EntryKind.FENCE:
                if found.state != SEALED:
                    found.state, found.fence = FENCED, Epoch(max(record.a, found.fence))
            case EntryKind.SEAL:
                found.state, found.sealed = SEALED, record.a
                found.lost_through = min(found.lost_through, record.a)
            case EntryKind.RESERVE:
                found.reserved = max(record.a, found.reserved)
            case EntryKind.KEPT:
                found.homes |= 1 << record.a
            case EntryKind.QUARANTINE:
                found.quarantined = bool(record.a)
            case EntryKind.DAMAGED:
                found.unsure = True
                found.lose(OFFSET_MAX)

    def close_all(self) -> None:
        """Called at a restart: no ledger is ever reopened for writing."""
        for ledger in self._ledgers.values():
            ledger.close()

    def checkpoint(self) -> bytes:
        return b"".join([ledger.packed() for ledger in self._ledgers.values()])

    @property
    def checkpoint_bytes(self) -> int:
        return len(self._ledgers) * _RECORD.size

    def load_checkpoint(self, body: bytes) -> None:
        """Replaces the table with that of a checkpoint; what was learned from the indexes stays."""
        before = self._ledgers
        self._ledgers = {}
        for ledger, epoch, fence, sealed, reserved, homes, state, durability, flags in _RECORD.iter_unpack(body):
            loaded = Ledger(LedgerId(ledger), Epoch(epoch), durability, state, Epoch(fence), sealed)
            loaded.reserved, loaded.homes = reserved, homes
            loaded.quarantined = bool(flags & _QUARANTINED)
            if flags & _DAMAGED:
                loaded.unsure = True
                loaded.lose(OFFSET_MAX)
            known = before.get(loaded.id)
            if known is not None:
                loaded.queued, loaded.held, loaded.confirmed = known.queued, known.held, known.confirmed
                loaded.extents = known.extents
                loaded.lost_through = max(loaded.lost_through, known.lost_through)
            self._ledgers[loaded.id] = loaded

    def _check_room(self) -> None:
        if len(self._ledgers) >= NODE_LEDGERS_MAX:
            raise TooManyLedgers(f"the node already has {NODE_LEDGERS_MAX} ledgers")

    def _forgotten(self, ledger: LedgerId) -> bool:
        return self.forgetful and ledger < self.born_later

    def _refuse_if_forgotten(self, ledger: LedgerId) -> None:
        if self._forgotten(ledger):
            raise LedgerDamaged(f"ledger {ledger} may have been on this node: a part of its journal is unreadable")


def _check_numbers(ledger: int, epoch: int) -> None:
    """Checks before anything is logged: a number that does not fit its field would stop the whole journal."""
    if not 0 <= ledger <= NUMBER_MAX or not 0 < epoch <= NUMBER_MAX:
        raise ArgumentInvalid(f"ledger number {ledger} or epoch {epoch} is out of range")


def checkpoint_ok(body: bytes) -> bool:
    return len(body) % _RECORD.size == 0
