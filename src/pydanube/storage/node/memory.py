"""A storage node that keeps ledgers in memory, by the same rules. For tests, demonstrations and namespaces that may
lose data.

What it acknowledges is lost when the process ends, and so is its identity, so that absent entries prove nothing.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import TypeVar

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    BatchInvalid,
    DanubeError,
    EntryConflict,
    EntryMissing,
    LedgerFenced,
    NodeBusy,
    NodeClosed,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import MEMORY_NODE_BYTES, OFFSET_MAX, READ_BYTES_MAX
from pydanube.journal.ledger_table import SEALED, Control, Ledger, LedgerTable
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import LedgerStatus
from pydanube.storage.node.status import DURABILITY_CODES, status_of
from pydanube.wire.batch import Batch

Result = TypeVar("Result")
Batches = list[Batch]
Statuses = list[LedgerStatus]


class MemoryNode:
    """A `StorageNode` bounded by `bytes_max`; beyond that, appends are refused with `NodeBusy`."""

    in_order = True

    def __init__(self, randomness: Randomness, *, bytes_max: int = MEMORY_NODE_BYTES) -> None:
        self.identity = NodeIdentity(randomness.bytes(16).hex())
        self._loop = asyncio.get_running_loop()
        self._table = LedgerTable()
        self._offsets: dict[LedgerId, list[int]] = {}  # base offsets in order
        self._entries: dict[LedgerId, dict[int, Batch]] = {}
        self._bytes = 0
        self._bytes_max = bytes_max
        self._closed = False

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        return self._control(lambda: self._table.decide_create(ledger, epoch, DURABILITY_CODES[durability]))

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        return self._answer(lambda: self._append(ledger, epoch, batch, confirmed))

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[Batches]:
        return self._answer(lambda: self._read(ledger, offset, min(bytes_max, READ_BYTES_MAX)))

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        return self._answer(lambda: self._find_next(ledger, offset))

    find_intact = find_next  # memory has no damage

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        def fence() -> LedgerStatus:
            self._apply(self._table.decide_fence(ledger, epoch))
            return self._status(self._table.get(ledger))

        return self._answer(fence)

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        return self._control(lambda: self._table.decide_seal(ledger, epoch, last))

    def delete(self, ledger: LedgerId) -> Future[None]:
        def delete() -> None:
            self._apply(self._table.decide_delete(ledger))
            self._offsets.pop(ledger, None)
            self._bytes -= sum(batch.memory for batch in self._entries.pop(ledger, {}).values())

        return self._answer(delete)

    def list(self) -> Future[Statuses]:
        return self._answer(lambda: [self._status(ledger) for ledger in self._table])

    async def close(self) -> None:
        self._closed = True

    def _append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> None:
        if not batch.epoch:
            raise BatchInvalid("the batch has no stamp")
        if not NO_OFFSET <= confirmed <= OFFSET_MAX:
            raise ArgumentInvalid(f"{confirmed} is not a valid confirmed offset")
        found = self._table.get(ledger)
        if not found.admits(epoch):
            raise LedgerFenced(f"ledger {ledger} is closed for epoch {epoch}")
        entries, offsets = self._entries.setdefault(ledger, {}), self._offsets.setdefault(ledger, [])
        below = bisect_right(offsets, batch.last_offset) - 1
        held = entries[offsets[below]] if below >= 0 else None
        if held is not None and held.last_offset >= batch.base_offset:
            if (held.base_offset, held.crc) != (batch.base_offset, batch.crc):
                raise EntryConflict(f"ledger {ledger} has another batch at offset {batch.base_offset}")
            return
        if not found.takes(batch.base_offset, room=self._bytes + batch.memory <= self._bytes_max):
            raise NodeBusy(f"{self._bytes} bytes are held in memory")
        entries[batch.base_offset] = batch
        insort(offsets, batch.base_offset)
        self._bytes += batch.memory
        found.held = max(found.held, batch.last_offset)
        found.confirmed = max(found.confirmed, confirmed)

    def _read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Batches:
        found = self._table.get(ledger)
        end = found.sealed if found.state == SEALED else found.held
        offsets, entries = self._offsets.get(ledger, []), self._entries.get(ledger, {})
        batches: Batches = []
        wanted = offset
        for base in offsets[max(bisect_right(offsets, offset) - 1, 0) :]:
            batch = entries[base]
            if batch.last_offset < wanted:
                continue
            if base > min(wanted, end) or (batches and batch.size > bytes_max):
                break
            batches.append(batch)
            bytes_max -= batch.size
            wanted = batch.last_offset + 1
        if not batches or offset > end:
            raise EntryMissing(f"ledger {ledger} has no entry with offset {offset} here")
        return batches

    def _find_next(self, ledger: LedgerId, offset: int) -> int:
        found = self._table.get(ledger)
        offsets = self._offsets.get(ledger, [])
        at = bisect_left(offsets, offset)
        if at == len(offsets) or (found.state == SEALED and offsets[at] > found.sealed):
            raise EntryMissing(f"ledger {ledger} has no entry at or after offset {offset} here")
        return offsets[at]

    def _status(self, ledger: Ledger) -> LedgerStatus:
        return status_of(ledger, sum(batch.size for batch in self._entries.get(ledger.id, {}).values()))

    def _control(self, decide: Callable[[], Sequence[Control]]) -> Future[None]:
        return self._answer(lambda: self._apply(decide()))

    def _apply(self, records: Sequence[Control]) -> None:
        for record in records:
            self._table.replay(record)

    def _answer(self, work: Callable[[], Result]) -> Future[Result]:
        answer: Future[Result] = self._loop.create_future()
        try:
            if self._closed:
                raise NodeClosed("the storage node is closed")
            answer.set_result(work())
        except DanubeError as error:
            answer.set_exception(error)
        return answer
