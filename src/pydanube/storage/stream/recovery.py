"""Recovers a ledger whose writer is gone: fences it, reads on from the last confirmed entry, decides where it ends.

Only an entry that enough nodes truly lack is dropped. If too few can answer, nothing is decided and the caller tries
again later: waiting is always safe, guessing never. It continues once enough nodes have answered, so a slow or silent
node delays nothing. If all have answered and the entry is damaged, it cannot be restored: the ledger ends after it,
and readers get an error.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from pydanube.base.durability import Durability
from pydanube.base.errors import DiskFull, EntryMissing, LedgerNotFound, LedgerUnrecoverable
from pydanube.base.ids import NO_OFFSET, Epoch
from pydanube.base.limits import OFFSET_MAX, READ_AHEAD_BYTES, RECOVERY_AHEAD_BYTES, WRITER_LAG_BYTES_MAX
from pydanube.ports.storage import LedgerStatus, StorageNode, StorageNodes
from pydanube.storage.stream.answers import Answers, RetryingCaller
from pydanube.storage.stream.copies import after_damage, is_damage
from pydanube.stream.quorum import (
    acknowledged,
    counts_as_absence,
    fenced_enough,
    out_of_reach,
    proves_absence,
    write_set,
)
from pydanube.stream.record import LedgerRecord
from pydanube.wire.batch import Batch


@dataclass(frozen=True, slots=True)
class LedgerEnd:
    """The result: the last offset that may have been acknowledged, and the first that the next ledger may use."""

    last: int
    next_offset: int
    bytes: int = 0  # of one copy, approximately: each node has only a part of the entries
    newest: int = 0  # append time of the last entry; 0 if it is lost
    unknown_from: int = NO_OFFSET  # unknown whether messages had the offsets from here to the last


async def recover_ledger(
    record: LedgerRecord, epoch: Epoch, nodes: StorageNodes, fenced: Callable[[], Awaitable[None]]
) -> LedgerEnd:
    """Called by the owner of `epoch`, once the catalogue records that it recovers the ledger. It reads nothing before
    `fenced` returns, which is called when enough copies are fenced."""
    recovery = _Recovery(record, epoch, [nodes.get(identity) for identity in record.nodes], fenced)
    try:
        return await recovery.run()
    finally:
        recovery.caller.stop()


@dataclass(slots=True)
class _Finishing:
    """An entry that is being sent to its write set again."""

    batch: Batch
    answers: Answers[None]


class _Recovery:
    """One attempt. Calls that are no longer awaited may still take effect: repeating them is harmless."""

    def __init__(
        self,
        record: LedgerRecord,
        epoch: Epoch,
        copies: Sequence[StorageNode],
        fenced: Callable[[], Awaitable[None]],
    ) -> None:
        self._all_fenced = fenced
        self._record = record
        self._epoch = epoch
        self._copies = copies
        self._indexes = range(len(copies))
        self._fences: Answers[LedgerStatus] = Answers({})
        self._lag = [0] * len(copies)  # bytes of entries that each copy has not answered yet
        self._confirmed = record.first - 1  # the last offset that the ack quorum has, with everything before it
        self._finishing: deque[_Finishing] = deque()  # in offset order
        self._finishing_bytes = 0
        self.caller = RetryingCaller()

    async def run(self) -> LedgerEnd:
        record = self._record
        await self._fence()
        await self._all_fenced()
        fenced = list(self._fences.results.values())
        self._confirmed = max([self._confirmed, *(status.confirmed for status in fenced)])
        offset, newest, unknown_from = self._confirmed + 1, 0, NO_OFFSET
        while (batches := await self._find(offset)) != []:
            if batches is None:
                newest, following = 0, await after_damage(record.id, offset, self._copies)
                if following is None:
                    unknown_from, offset = _damaged_end(offset, fenced)
                    break
                while self._finishing:
                    await self._finish_first()
                offset = following
                continue
            for batch in batches:
                if batch.base_offset != offset:
                    raise LedgerUnrecoverable(
                        f"ledger {record.id}: an entry starts at {batch.base_offset}, not at {offset}"
                    )
                await self._finish(batch)
                offset, newest = batch.last_offset + 1, batch.append_time
        while self._finishing:
            await self._finish_first()
        next_offset = offset
        if record.durability is Durability.BUFFERED:
            next_offset = max([offset, *(status.reserved for status in fenced)])
        size = sum(status.bytes for status in fenced) * len(self._copies) // (len(fenced) * record.copies.write)
        return LedgerEnd(offset - 1, next_offset, size, newest or await self._newest(offset - 1), unknown_from)

    # -- fencing -----------------------------------------------------------------------------------------------------

    async def _fence(self) -> None:
        """Returns when enough copies are fenced; one that answers later counts from then on."""
        record, indexes, call = self._record, self._indexes, self.caller.call
        fences = self._fences = Answers(
            {index: call(self._copies[index].fence, record.id, self._epoch) for index in indexes}
        )
        await fences.until(lambda: fenced_enough(indexes, fences.results, record.copies))
        if not fenced_enough(indexes, fences.results, record.copies):
            full = [error for error in fences.errors.values() if isinstance(error, DiskFull)]
            if full and len(full) + len(fences.results) == len(indexes):
                raise full[0]  # nothing else is wrong, so this is the error that helps
            raise LedgerUnrecoverable(
                f"ledger {record.id}: {len(fences.results)} of {len(indexes)} nodes are fenced: {fences.causes}"
            )

    # -- reading on --------------------------------------------------------------------------------------------------

    async def _find(self, offset: int) -> list[Batch] | None:
        """The entry at `offset` and those that follow it on the same node; empty if enough nodes truly lack it.

        None if all nodes are fenced and have answered, and the entry is damaged on those that had it.
        """
        while True:
            fenced = frozenset(self._fences.results)
            found, reads = await self._look(offset, fenced)
            if found is not None:
                return found
            if len(fenced) == len(self._indexes) and _all_lost(reads):
                return None
            more = self._fences.results.keys() != fenced  # another node was fenced meanwhile, so it is asked again
            if not more and not await self._fences.one_more():
                raise LedgerUnrecoverable(
                    f"ledger {self._record.id}, offset {offset}: too few nodes are known not to have it: {reads.causes}"
                )

    async def _look(self, offset: int, fenced: Collection[int]) -> tuple[list[Batch] | None, Answers[list[Batch]]]:
        """The entries that a node of the write set has, or none if that is certain, or None; and all answers.

        An absence counts only if the node was fenced before the call.
        """
        record, call = self._record, self.caller.call
        asked = write_set(self._indexes, offset, record.copies.write)
        reads = Answers({index: call(self._copies[index].read, record.id, offset, READ_AHEAD_BYTES) for index in asked})

        def absent() -> bool:
            found = (counts_as_absence(error, fenced=index in fenced) for index, error in reads.errors.items())
            return proves_absence(sum(found), record.copies)

        await reads.until(lambda: bool(reads.results) or absent())
        if reads.results:
            return next(iter(reads.results.values())), reads
        return ([] if absent() else None), reads

    async def _newest(self, last: int) -> int:
        """The append time of the last entry, from any node that has it."""
        record, call = self._record, self.caller.call
        if last < record.first:
            return 0
        reads = Answers({index: call(self._copies[index].read, record.id, last, 1) for index in self._indexes})
        await reads.until(lambda: bool(reads.results))
        if reads.results:
            time: int = next(iter(reads.results.values()))[0].append_time
            return time
        if record.durability is not Durability.BUFFERED and not _all_lost(reads):
            raise LedgerUnrecoverable(f"ledger {record.id}: its last entry, {last}, cannot be read now")
        return 0

    # -- finishing ---------------------------------------------------------------------------------------------------

    async def _finish(self, batch: Batch) -> None:
        """Sends an entry that may have been acknowledged to its write set again, under its old stamp."""
        record, call = self._record, self.caller.call
        appends: dict[int, Future[None]] = {}
        for index in write_set(self._indexes, batch.base_offset, record.copies.write):
            if (
                self._lag[index] <= WRITER_LAG_BYTES_MAX
            ):  # otherwise it is far behind or silent: the other nodes have to suffice
                appends[index] = append = call(
                    self._copies[index].append, record.id, self._epoch, batch, self._confirmed
                )
                self._lag[index] += batch.size
                append.add_done_callback(partial(self._answered, index, batch.size))
        self._finishing.append(_Finishing(batch, Answers(appends)))
        self._finishing_bytes += batch.size
        while self._finishing_bytes > RECOVERY_AHEAD_BYTES:
            await self._finish_first()

    def _answered(self, index: int, size: int, _: Future[None]) -> None:
        self._lag[index] -= size

    async def _finish_first(self) -> None:
        """Waits until the oldest entry has its ack quorum."""
        record = self._record
        first = self._finishing.popleft()
        batch, answers = first.batch, first.answers
        skipped = record.copies.write - answers.asked

        def acks() -> int:
            return len(answers.results)

        await answers.until(
            lambda: acknowledged(acks(), record.copies) or out_of_reach(skipped + len(answers.errors), record.copies)
        )
        if not acknowledged(acks(), record.copies):
            raise LedgerUnrecoverable(
                f"ledger {record.id}, offset {batch.base_offset}: {acks()} nodes accepted it again: {answers.causes}"
            )
        self._confirmed = batch.last_offset
        self._finishing_bytes -= batch.size


def _all_lost(reads: Answers[list[Batch]]) -> bool:
    """Whether all nodes have answered, none has the entry or may get it later, and it is damaged on some."""
    errors = list(reads.errors.values())
    settled = all(is_damage(error) or isinstance(error, EntryMissing | LedgerNotFound) for error in errors)
    return settled and len(errors) == reads.asked and any(map(is_damage, errors))


def _damaged_end(offset: int, fenced: Collection[LedgerStatus]) -> tuple[int, int]:
    """The first offset of the unknown part, and the one after the last that may have been used; `offset` is damaged."""
    last = max([offset, *(max(status.last, status.lost_through) for status in fenced)])
    if last < OFFSET_MAX:
        return NO_OFFSET, last + 1
    return offset, max([offset, *(status.last + 1 for status in fenced)]) + max(status.unknown for status in fenced)
