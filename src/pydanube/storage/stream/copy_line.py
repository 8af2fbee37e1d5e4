"""The way of a ledger's entries to one of its copies: at once, or held back while the node is not ready for them.

A node that is still making the ledger, or is busy, gets its entries later, in order. One that fails or falls too far
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
from pydanube.storage.stream.patience import BUSY
from pydanube.stream.record import LedgerRecord
from pydanube.wire.batch import Batch


@dataclass(slots=True)
class Entry:
    """One batch on its way to its write set. `future` is the caller's alone: to cancel it gives up waiting, no more."""

    batch: Batch
    future: Future[None]
    answer: Future[None] | None = None  # of the only node
    acks: int = 0
    failures: int = 0
    cause: DanubeError | None = None


Verdict = Callable[[Entry, DanubeError | None], None]


class CopyLine:
    """Entries to one node. `verdict` is told of each: None once the node has it, else why it never will."""

    def __init__(self, node: StorageNode, record: LedgerRecord, confirmed: Callable[[], int], verdict: Verdict) -> None:
        self.alive = True
        self._node = node
        self._record = record
        self._confirmed = confirmed
        self._verdict = verdict
        self._lag = 0  # bytes it has not answered for
        self._ready = False  # else entries are held
        self._held: list[Entry] = []  # in offset order
        self._refusals = 0  # in a row
        self._timer: asyncio.TimerHandle | None = None

    def made(self, answer: Future[None]) -> None:
        """The node's answer to the ledger's creation is there."""
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or error is not None:
            self.drop(error if isinstance(error, DanubeError) else DanubeError(repr(error)))
        elif self.alive:
            self._go_on()

    def send(self, entry: Entry) -> None:
        self._lag += entry.batch.size
        if self._ready:
            self._append(entry)
        else:
            self._hold(entry)
        if self._lag > WRITER_LAG_BYTES_MAX:  # the others must do
            self.drop(NodeBusy(f"a copy is {self._lag} bytes behind"))

    def drop(self, why: DanubeError) -> None:
        """No more entries; those under way still count if they arrive."""
        self.alive = self._ready = False
        if self._timer is not None:
            self._timer.cancel()
        held, self._held = self._held, []
        for entry in held:
            self._lag -= entry.batch.size
            self._verdict(entry, why)

    def _append(self, entry: Entry) -> None:
        record = self._record
        answer = self._node.append(record.id, record.epoch, entry.batch, self._confirmed())
        answer.add_done_callback(partial(self._answered, entry))

    def _answered(self, entry: Entry, answer: Future[None]) -> None:
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
            self._verdict(entry, None)
            if self.alive and not self._ready and self._timer is None:
                self._refusals = 0
                self._go_on()
        else:
            cause = error if isinstance(error, DanubeError) else DanubeError(str(error))
            if self.alive:
                self.drop(cause)
            self._verdict(entry, cause)

    def _hold(self, entry: Entry) -> None:
        insort(self._held, entry, key=lambda held: held.batch.base_offset)

    def _try_first(self) -> None:
        """One entry finds out whether the node has room again; the others follow once it is there."""
        self._timer = None
        if self._held:
            self._append(self._held.pop(0))

    def _go_on(self) -> None:
        self._ready = True
        while self._held and self._ready:
            self._append(self._held.pop(0))
