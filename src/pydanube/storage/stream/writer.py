"""Writes one ledger to its storage nodes. An entry is confirmed when its ack quorum has it and all entries before it.

It never decides who owns the ledger, nor whether an entry counts whose quorum was lost: recovery decides that, under a
new epoch. With a single node, confirming costs no more than looking at the oldest answer.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable

from pydanube.base.errors import DanubeError, LedgerFenced, NodeBusy, QuorumLost
from pydanube.base.ids import Epoch
from pydanube.base.limits import WRITER_WAITING_BYTES_MAX
from pydanube.ports.storage import StorageNode, StorageNodes
from pydanube.storage.futures import danube_error, retrieve, settle
from pydanube.storage.stream.answers import BUSY, Answers, RetryingCaller
from pydanube.storage.stream.copy_sender import CopySender, PendingEntry
from pydanube.stream.quorum import acknowledged, out_of_reach, writable, write_set
from pydanube.stream.record import LedgerRecord
from pydanube.wire.batch import Batch


class LedgerWriter:
    """The single writer of one ledger. It takes batches at any time and sends them once `begin` was called."""

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
        self._senders: list[CopySender] = []  # in the order of the nodes in the record
        self._entries: deque[PendingEntry] = deque()  # not confirmed yet, in offset order
        self._entries_bytes = 0
        self._watching = False
        self._busy: asyncio.TimerHandle | None = None  # the only node is busy: entries are sent when this timer fires
        self._refusals = 0  # by a busy node, in a row
        self._caller = RetryingCaller()
        self._drained: Future[None] | None = None  # done when no entry is left, if a caller waits for that

    @property
    def record(self) -> LedgerRecord:
        assert self._record is not None
        return self._record

    async def begin(self, record: LedgerRecord) -> None:
        """Creates the ledger on its nodes and, once enough of them have it, sends the entries held back so far."""
        self._record = record
        nodes = [self._pool.get(identity) for identity in record.nodes]
        indexes = range(len(nodes))
        self._only = nodes[0] if len(nodes) == 1 and nodes[0].in_order else None
        creations = [self._caller.call(node.create, record.id, record.epoch, record.durability) for node in nodes]
        answers = Answers(dict(enumerate(creations)))
        await answers.until(lambda: writable(indexes, answers.results, record.copies))
        if not writable(indexes, answers.results, record.copies):
            raise answers.errors[0] if len(nodes) == 1 else QuorumLost(f"ledger {record.id}: {answers.causes}")
        if self._only is None:
            self._senders = [CopySender(node, record, lambda: self.confirmed, self._settled) for node in nodes]
            for sender, creation in zip(self._senders, creations, strict=True):
                if creation.done():
                    sender.created(creation)
                else:
                    creation.add_done_callback(sender.created)
        self.begun = True
        for entry in list(self._entries):
            self._send(entry)

    def append(self, batch: Batch, append_time: int) -> tuple[Batch, Future[None]]:
        """Gives the batch its offsets and sends it; the future is done when it is confirmed.

        Raises `NodeBusy`, and does nothing, when too many bytes are not confirmed yet.
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
        entry = PendingEntry(stamped, self._loop.create_future())
        self._entries.append(entry)
        if self.begun:
            self._send(entry)
        return stamped, entry.future

    def _send(self, entry: PendingEntry) -> None:
        if self._only is None:
            self._send_copies(entry)
            return
        if self._busy is not None:
            return  # it is sent later, with the other entries
        answer = entry.answer = self._only.append(self.record.id, self._epoch, entry.batch, self.confirmed)
        if not self._watching:
            self._watch(answer)

    # -- one node ----------------------------------------------------------------------------------------------------

    def _watch(self, answer: Future[None]) -> None:
        """One callback at a time, however many appends there are: a node answers a whole group at once."""
        self._watching = True
        answer.add_done_callback(self._watched)

    def _watched(self, _: Future[None]) -> None:
        self._watching = False
        entries = self._entries
        while entries and (answer := entries[0].answer) is not None and answer.done():
            error = answer.exception()
            if isinstance(error, NodeBusy):
                self._wait_out()
                return
            if error is not None:
                self._fail(danube_error(error))
                return
            self._refusals = 0
            self._confirm(entries.popleft())
        if entries and (answer := entries[0].answer) is not None:
            self._watch(answer)

    def _wait_out(self) -> None:
        """A busy node has refused the oldest entry, and so all later ones; they are sent again after a pause."""
        for entry in self._entries:
            if entry.answer is not None:
                entry.answer.add_done_callback(retrieve)
                entry.answer = None
        self._refusals += 1
        self._busy = self._loop.call_later(BUSY.after(self._refusals), self._send_again)

    def _send_again(self) -> None:
        self._busy = None
        for entry in self._entries:
            self._send(entry)
            if entry.answer is not None and entry.answer.done() and entry.answer.exception() is not None:
                return  # still busy, or worse: `_watched` sees it in the oldest answer

    # -- several nodes -----------------------------------------------------------------------------------------------

    def _send_copies(self, entry: PendingEntry) -> None:
        for sender in write_set(self._senders, entry.batch.base_offset, self.record.copies.write):
            if sender.alive:
                sender.send(entry)
            else:
                entry.failures += 1
        self._decide(entry)

    def _settled(self, entry: PendingEntry, error: DanubeError | None) -> None:
        if error is None:
            entry.acks += 1
        else:
            entry.failures += 1
            entry.cause = error
        self._decide(entry)

    def _decide(self, entry: PendingEntry) -> None:
        if self.failure is not None:
            return
        copies = self.record.copies
        if not acknowledged(entry.acks, copies):
            if out_of_reach(entry.failures, copies):
                lost = QuorumLost(f"ledger {self.record.id}, offset {entry.batch.base_offset}: {entry.cause}")
                lost.__cause__ = entry.cause
                self._fail(lost)
            return
        while self._entries and acknowledged(self._entries[0].acks, copies):
            self._confirm(self._entries.popleft())

    # -- the end of an entry -------------------------------------------------------------------------------------------

    def _confirm(self, entry: PendingEntry) -> None:
        batch = entry.batch
        self.confirmed = batch.base_offset + batch.count - 1
        self._entries_bytes -= batch.size
        if not entry.future.done():
            entry.future.set_result(None)
        if not self._entries:
            self._report_drained()

    def _fail(self, error: DanubeError) -> None:
        if self.failure is not None:
            return
        self.failure = error
        for entry in self._entries:
            if entry.answer is not None:
                entry.answer.add_done_callback(retrieve)
            settle(entry.future, error)
        self._entries.clear()
        self._caller.stop()
        if self._busy is not None:
            self._busy.cancel()
        for sender in self._senders:
            sender.drop(error)
        self._report_drained()
        self._report(error)

    def _report_drained(self) -> None:
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def abandon(self, error: DanubeError) -> None:
        """Stops writing: the ledger before it could not be finished, or this one is no longer needed."""
        self._report = _ignore
        self._fail(error)

    async def finish(self) -> int:
        """Waits until every entry is confirmed and returns the last offset. The caller appends nothing more."""
        if self._entries and self.failure is None:
            self._drained = self._loop.create_future()
            await self._drained
        if self.failure is not None:
            raise self.failure
        self.failure = LedgerFenced(f"ledger {self.record.id} is finished")
        return self.confirmed


def _ignore(error: DanubeError) -> None:
    """Ignores the failure of an abandoned writer."""
