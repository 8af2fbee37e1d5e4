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

from pydanube.base.errors import DanubeError, NodeBusy, QuorumLost
from pydanube.base.ids import Epoch
from pydanube.base.limits import WRITER_LAG_BYTES_MAX
from pydanube.ledger.catalog import LedgerRecord
from pydanube.ledger.quorum import acknowledged, out_of_reach, writable, write_set
from pydanube.ports.storage import StorageNode, StorageNodes
from pydanube.wire.batch import Batch


@dataclass(slots=True)
class _Entry:
    """One batch on its way to its write set."""

    last: int
    size: int
    future: Future[None]
    acks: int = 0
    failures: int = 0
    cause: DanubeError | None = None


class LedgerWriter:
    """The single writer of one ledger. Takes batches at once; sends them from `begin` on."""

    def __init__(self, epoch: Epoch, first: int, nodes: StorageNodes, failed: Callable[[DanubeError], None]) -> None:
        self.next_offset = first
        self.bytes = 0
        self.failure: DanubeError | None = None
        self._epoch = epoch
        self._pool = nodes
        self._report = failed
        self._loop = asyncio.get_running_loop()
        self._confirmed = first - 1
        self._held: list[tuple[Batch, Future[None]]] | None = []  # until `begin`
        self._record: LedgerRecord | None = None
        self._only: StorageNode | None = None
        self._nodes: list[StorageNode] = []
        self._alive: list[StorageNode] = []
        self._lag: list[int] = []  # bytes each node has not answered for
        self._answers: deque[tuple[Future[None], int]] = deque()  # of the only node
        self._entries: deque[_Entry] = deque()  # of several
        self._watching = False

    @property
    def record(self) -> LedgerRecord:
        assert self._record is not None
        return self._record

    @property
    def confirmed(self) -> int:
        """The last offset that the ack quorum holds, with everything before it."""
        answers = self._answers
        while answers and answers[0][0].done() and not answers[0][0].cancelled() and answers[0][0].exception() is None:
            self._confirmed = answers.popleft()[1]
        return self._confirmed

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
        held, self._held = self._held or [], None
        for batch, future in held:
            self._send(batch).add_done_callback(partial(_pass_on, future))

    def append(self, batch: Batch, append_time: int) -> tuple[Batch, Future[None]]:
        """Gives the batch its offsets and sends it on its way; the future is done when it is confirmed."""
        if self.failure is not None:
            raise self.failure
        if self._held is not None and self.bytes + batch.size > WRITER_LAG_BYTES_MAX:
            raise NodeBusy(f"{self.bytes} bytes wait for the next ledger")
        stamped = batch.stamped(self.next_offset, self._epoch, append_time)
        self.next_offset += batch.count
        self.bytes += stamped.size
        if self._held is None:
            return stamped, self._send(stamped)
        future: Future[None] = self._loop.create_future()
        self._held.append((stamped, future))
        return stamped, future

    def _send(self, batch: Batch) -> Future[None]:
        if self._only is None:
            return self._send_copies(batch)
        record = self.record
        answer = self._only.append(record.id, record.epoch, batch, self.confirmed)
        self._answers.append((answer, batch.base_offset + batch.count - 1))
        if not self._watching:
            self._watch(answer)
        return answer

    # -- one node ----------------------------------------------------------------------------------------------------

    def _watch(self, answer: Future[None]) -> None:
        """One callback in flight, whatever the number of appends: it is here to notice a failure."""
        self._watching = True
        answer.add_done_callback(self._watched)

    def _watched(self, answer: Future[None]) -> None:
        self._watching = False
        error = None if answer.cancelled() else answer.exception()
        if error is not None:
            self._fail(error if isinstance(error, DanubeError) else DanubeError(str(error)))
            return
        _ = self.confirmed
        if self._answers:
            self._watch(self._answers[0][0])

    # -- several nodes -----------------------------------------------------------------------------------------------

    def _send_copies(self, batch: Batch) -> Future[None]:
        record = self.record
        entry = _Entry(batch.base_offset + batch.count - 1, batch.size, self._loop.create_future())
        self._entries.append(entry)
        for node in write_set(self._nodes, batch.base_offset, record.copies.write):
            place = self._nodes.index(node)
            if node not in self._alive:
                entry.failures += 1
                continue
            self._lag[place] += batch.size
            answer = node.append(record.id, record.epoch, batch, self._confirmed)
            answer.add_done_callback(partial(self._answered, entry, place))
            if self._lag[place] > WRITER_LAG_BYTES_MAX:  # too far behind: the others must do
                self._alive.remove(node)
        self._settle(entry)
        return entry.future

    def _answered(self, entry: _Entry, place: int, answer: Future[None]) -> None:
        self._lag[place] -= entry.size
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
                self._fail(QuorumLost(f"ledger {self.record.id}, offset {entry.last}: {entry.cause}"))
            return
        while self._entries and acknowledged(self._entries[0].acks, copies):
            first = self._entries.popleft()
            self._confirmed = first.last
            if not first.future.done():
                first.future.set_result(None)

    # -- end -----------------------------------------------------------------------------------------------------------

    def _fail(self, error: DanubeError) -> None:
        if self.failure is not None:
            return
        _ = self.confirmed
        self.failure = error
        for future in [entry.future for entry in self._entries] + [future for _, future in self._held or []]:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits still gets it; whoever does not is not nagged
        self._entries.clear()
        self._report(error)

    def abandon(self, error: DanubeError) -> None:
        """It will never begin: the ledger before it could not be finished."""
        self._report = _nobody
        self._fail(error)

    async def finish(self) -> int:
        """Waits for everything on its way and returns the last confirmed offset; no append may follow."""
        waiting = [answer for answer, _ in self._answers] + [entry.future for entry in self._entries]
        await asyncio.gather(*waiting, return_exceptions=True)
        if self.failure is not None:
            raise self.failure
        self.failure = QuorumLost(f"ledger {self.record.id} is finished")
        return self.confirmed


def _nobody(error: DanubeError) -> None:
    """Nobody needs to be told."""


def _pass_on(future: Future[None], answer: Future[None]) -> None:
    """What became of a batch that was held back, told to whoever waits for it."""
    if future.done():
        return
    error = None if answer.cancelled() else answer.exception()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()
