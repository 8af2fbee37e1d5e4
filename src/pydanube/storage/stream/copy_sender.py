"""Sends a ledger's entries to one of its nodes: at once, or later if the node is not ready for them.

A node that is still creating the ledger, or is busy, gets its entries later, in order. One that fails or falls too far
behind has a gap and gets no more of this ledger; recovery or the next ledger continues without it.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydanube.base.errors import DanubeError, NodeBusy, NodeClosed
from pydanube.base.limits import WRITER_LAG_BYTES_MAX
from pydanube.ports.storage import StorageNode
from pydanube.storage.futures import danube_error
from pydanube.storage.stream.answers import BUSY
from pydanube.stream.record import LedgerRecord
from pydanube.wire.batch import Batch


@dataclass(slots=True)
class PendingEntry:
    """A batch that is not confirmed yet. `future` belongs to the caller: cancelling it only ends the caller's wait."""

    batch: Batch
    future: Future[None]
    answer: Future[None] | None = None  # of the node, if the ledger has only one
    acks: int = 0
    failures: int = 0
    cause: DanubeError | None = None


Settled = Callable[[PendingEntry, DanubeError | None], None]


class CopySender:
    """Sends to one node. `settled` is called once for each entry: with None if the node has it, otherwise with the
    reason."""

    def __init__(self, node: StorageNode, record: LedgerRecord, confirmed: Callable[[], int], settled: Settled) -> None:
        self.alive = True
        self._node = node
        self._record = record
        self._confirmed = confirmed
        self._settled = settled
        self._lag = 0  # bytes sent or held, but not answered yet
        self._ready = False  # while it is not, entries are held
        self._held: list[PendingEntry] = []  # in offset order
        self._refusals = 0  # in a row
        self._timer: asyncio.TimerHandle | None = None

    def created(self, answer: Future[None]) -> None:
        """Called with the node's answer to the creation of the ledger."""
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            self.drop(error if isinstance(error, DanubeError) else DanubeError(repr(error)))
        elif self.alive:
            self._go_on()

    def send(self, entry: PendingEntry) -> None:
        self._lag += entry.batch.size
        if self._ready:
            self._append(entry)
        else:
            self._hold(entry)
        if self._lag > WRITER_LAG_BYTES_MAX:  # the other nodes have to suffice
            self.drop(NodeBusy(f"a copy is {self._lag} bytes behind"))

    def drop(self, why: DanubeError) -> None:
        """Sends no more entries; those that were sent still count if they arrive."""
        self.alive = self._ready = False
        if self._timer is not None:
            self._timer.cancel()
        held, self._held = self._held, []
        for entry in held:
            self._lag -= entry.batch.size
            self._settled(entry, why)

    def _append(self, entry: PendingEntry) -> None:
        record = self._record
        answer = self._node.append(record.id, record.epoch, entry.batch, self._confirmed())
        answer.add_done_callback(partial(self._answered, entry))

    def _answered(self, entry: PendingEntry, answer: Future[None]) -> None:
        error = NodeClosed("the storage node abandoned the call") if answer.cancelled() else answer.exception()
        if isinstance(error, NodeBusy) and self.alive:
            self._ready = False
            self._hold(entry)
            if self._timer is None:
                self._refusals += 1
                self._timer = asyncio.get_running_loop().call_later(BUSY.after(self._refusals), self._try_first)
            return
        self._lag -= entry.batch.size
        if error is None:
            self._settled(entry, None)
            if self.alive and not self._ready and self._timer is None:
                self._refusals = 0
                self._go_on()
        else:
            cause = danube_error(error)
            if self.alive:
                self.drop(cause)
            self._settled(entry, cause)

    def _hold(self, entry: PendingEntry) -> None:
        insort(self._held, entry, key=lambda held: held.batch.base_offset)

    def _try_first(self) -> None:
        """Sends one entry, to find out whether the node has room again; the others follow once that is stored."""
        self._timer = None
        if self._held:
            self._append(self._held.pop(0))

    def _go_on(self) -> None:
        self._ready = True
        while self._held and self._ready:
            self._append(self._held.pop(0))
