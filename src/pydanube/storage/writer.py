"""Writes one ledger to its storage nodes. An entry is confirmed when its ack quorum has it and all before it are.

It never decides who owns the ledger or what became of an entry whose quorum was lost: that is recovery's, under a new
epoch. On one node it costs nothing but a look at the oldest answer.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pydanube.base.errors import DanubeError, LedgerFenced, NodeBusy, QuorumLost
from pydanube.base.ids import Epoch
from pydanube.base.limits import WRITER_LAG_BYTES_MAX, WRITER_WAITING_BYTES_MAX
from pydanube.ledger.catalog import LedgerRecord
from pydanube.ledger.quorum import acknowledged, out_of_reach, writable, write_set
from pydanube.ports.storage import StorageNode, StorageNodes
from pydanube.wire.batch import Batch


@dataclass(slots=True)
class _Entry:
    """One batch on its way to its write set. `future` is the caller's alone: to cancel it gives up waiting, no more."""

    batch: Batch
    future: Future[None]
    answer: Future[None] | None = None  # of the only node
    acks: int = 0
    failures: int = 0
    cause: DanubeError | None = None


class LedgerWriter:
    """The single writer of one ledger. Takes batches at once; sends them from `begin` on."""

    def __init__(self, epoch: Epoch, first: int, nodes: StorageNodes, failed: Callable[[DanubeError], None]) -> None:
        self.next_offset = first
        self.first = first
        self.bytes = 0
        self.oldest = self.newest = 0  # append times of the first and the last batch
        self.confirmed = first - 1  # the last offset that the ack quorum holds, with everything before it
        self.failure: DanubeError | None = None
        self._epoch = epoch
        self._pool = nodes
        self._report = failed
        self._loop = asyncio.get_running_loop()
        self.begun = False
        self._record: LedgerRecord | None = None
        self._only: StorageNode | None = None
        self._nodes: list[StorageNode] = []
        self._alive: list[StorageNode] = []
        self._lag: list[int] = []  # bytes each node has not answered for
        self._entries: deque[_Entry] = deque()  # not confirmed yet, in offset order
        self._entries_bytes = 0
        self._watching = False
        self._drained: Future[None] | None = None  # somebody waits until nothing is on its way

    @property
    def record(self) -> LedgerRecord:
        assert self._record is not None
        return self._record

    async def begin(self, record: LedgerRecord) -> None:
        """Makes the ledger on its nodes, enough of which must agree, and sends what was held back."""
        self._record = record
        self._nodes = [self._pool.get(identity) for identity in record.nodes]
        self._alive = list(self._nodes)
        self._lag = [0] * len(self._nodes)
        self._only = self._nodes[0] if len(self._nodes) == 1 and self._nodes[0].in_order else None
        creations = [node.create(record.id, record.epoch, record.durability) for node in self._nodes]
        answers = await asyncio.gather(*creations, return_exceptions=True)
        for node, answer in zip(self._nodes, answers, strict=True):
            if isinstance(answer, BaseException):
                self._alive.remove(node)
        if not writable(self._nodes, self._alive, record.copies):
            causes = [answer for answer in answers if isinstance(answer, DanubeError)]
            raise causes[0] if len(self._nodes) == 1 and causes else QuorumLost(f"ledger {record.id}: {causes}")
        self.begun = True
        for entry in list(self._entries):
            self._send(entry)

    def append(self, batch: Batch, append_time: int) -> tuple[Batch, Future[None]]:
        """Gives the batch its offsets and sends it on its way; the future is done when it is confirmed.

        Raises `NodeBusy`, and has done nothing, when too much is on its way already.
        """
        if self.failure is not None:
            raise self.failure
        if self._entries_bytes + batch.size > WRITER_WAITING_BYTES_MAX and self._entries:
            raise NodeBusy(f"{self._entries_bytes} bytes are not confirmed yet")
        stamped = batch.stamped(self.next_offset, self._epoch, append_time)
        self.next_offset += batch.count
        self.bytes += stamped.size
        self.oldest = self.oldest or append_time
        self.newest = append_time
        self._entries_bytes += stamped.size
        entry = _Entry(stamped, self._loop.create_future())
        self._entries.append(entry)
        if self.begun:
            self._send(entry)
        return stamped, entry.future

    def _send(self, entry: _Entry) -> None:
        if self._only is None:
            self._send_copies(entry)
            return
        answer = entry.answer = self._only.append(self.record.id, self._epoch, entry.batch, self.confirmed)
        if not self._watching:
            self._watch(answer)

    # -- one node ----------------------------------------------------------------------------------------------------

    def _watch(self, answer: Future[None]) -> None:
        """One callback in flight, whatever the number of appends: a group is answered as a whole."""
        self._watching = True
        answer.add_done_callback(self._watched)

    def _watched(self, _: Future[None]) -> None:
        self._watching = False
        entries = self._entries
        while entries and (answer := entries[0].answer) is not None and answer.done():
            error = answer.exception()
            if error is not None:
                self._fail(error if isinstance(error, DanubeError) else DanubeError(str(error)))
                return
            self._confirm(entries.popleft())
        if entries and (answer := entries[0].answer) is not None:
            self._watch(answer)

    # -- several nodes -----------------------------------------------------------------------------------------------

    def _send_copies(self, entry: _Entry) -> None:
        record, batch = self.record, entry.batch
        for node in write_set(self._nodes, batch.base_offset, record.copies.write):
            place = self._nodes.index(node)
            if node not in self._alive:
                entry.failures += 1
                continue
            self._lag[place] += batch.size
            answer = node.append(record.id, record.epoch, batch, self.confirmed)
            answer.add_done_callback(partial(self._answered, entry, place))
            if self._lag[place] > WRITER_LAG_BYTES_MAX:  # too far behind: the others must do
                self._alive.remove(node)
        self._settle(entry)

    def _answered(self, entry: _Entry, place: int, answer: Future[None]) -> None:
        self._lag[place] -= entry.batch.size
        error = asyncio.CancelledError() if answer.cancelled() else answer.exception()
        if error is None:
            entry.acks += 1
        else:
            entry.failures += 1
            entry.cause = error if isinstance(error, DanubeError) else DanubeError(str(error))
            if self._nodes[place] in self._alive:
                self._alive.remove(self._nodes[place])  # it has a gap now; recovery or a new ledger goes on without it
        self._settle(entry)

    def _settle(self, entry: _Entry) -> None:
        if self.failure is not None:
            return
        copies = self.record.copies
        if not acknowledged(entry.acks, copies):
            if out_of_reach(entry.failures, copies):
                self._fail(QuorumLost(f"ledger {self.record.id}, offset {entry.batch.base_offset}: {entry.cause}"))
            return
        while self._entries and acknowledged(self._entries[0].acks, copies):
            self._confirm(self._entries.popleft())

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def _confirm(self, entry: _Entry) -> None:
        batch = entry.batch
        self.confirmed = batch.base_offset + batch.count - 1
        self._entries_bytes -= batch.size
        if not entry.future.done():
            entry.future.set_result(None)
        if not self._entries:
            self._tell_drained()

    def _fail(self, error: DanubeError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for entry in self._entries:
            if entry.answer is not None:
                entry.answer.add_done_callback(_looked_at)
            if not entry.future.done():
                entry.future.set_exception(error)
                entry.future.exception()  # whoever waits still gets it; whoever does not is not nagged
        self._entries.clear()
        self._tell_drained()
        self._report(error)

    def _tell_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def abandon(self, error: DanubeError) -> None:
        """It goes no further: the ledger before it could not be finished, or nobody wants it any more."""
        self._report = _nobody
        self._fail(error)

    async def finish(self) -> int:
        """Waits for everything on its way and returns the last confirmed offset. The caller sends nothing more."""
        if self._entries and self.failure is None:
            self._drained = self._loop.create_future()
            await self._drained
        if self.failure is not None:
            raise self.failure
        self.failure = LedgerFenced(f"ledger {self.record.id} is finished")
        return self.confirmed


def _looked_at(answer: Future[None]) -> None:
    """What a node says of an entry that was given up is no news."""
    if not answer.cancelled():
        answer.exception()


def _nobody(error: DanubeError) -> None:
    """Nobody needs to be told."""
