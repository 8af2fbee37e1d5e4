"""Recovers a ledger whose writer is gone: fence, read on from what was confirmed, finish it, decide the end.

Only an entry that enough nodes truly lack is dropped. Where too few can answer, nothing is decided and the caller tries
again later: waiting is always safe, guessing never.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import DanubeError, DiskFull, LedgerUnrecoverable
from pydanube.base.ids import Epoch
from pydanube.ledger.catalog import LedgerRecord
from pydanube.ledger.quorum import acknowledged, counts_as_absence, fenced_enough, proves_absence, write_set
from pydanube.ports.storage import LedgerStatus, StorageNode, StorageNodes
from pydanube.wire.batch import Batch


@dataclass(frozen=True, slots=True)
class Ending:
    """What recovery found: the last offset that may have been acknowledged, and where the next ledger may start."""

    last: int
    next_offset: int
    bytes: int = 0  # of one copy, about: every node has its part of the entries
    newest: int = 0  # append time of the last entry; 0 if it was only buffered and is lost


async def recover_ledger(record: LedgerRecord, epoch: Epoch, nodes: StorageNodes) -> Ending:
    """Run by the owner of `epoch`, after the catalogue says so."""
    copies = [nodes.get(identity) for identity in record.nodes]
    fenced = await _fence(record, epoch, copies)
    offset = max([record.first, *(status.confirmed + 1 for status in fenced.values())])
    while True:
        batch = await _find(record, offset, copies, fenced)
        if batch is None:
            break
        await _finish(record, epoch, batch, offset, copies)
        offset = batch.last_offset + 1
    next_offset = max([offset, *(status.reserved for status in fenced.values())])
    size = sum(status.bytes for status in fenced.values()) * len(copies) // (len(fenced) * record.copies.write)
    return Ending(offset - 1, next_offset, size, await _newest(record, offset - 1, copies))


async def _newest(record: LedgerRecord, last: int, copies: Sequence[StorageNode]) -> int:
    if last < record.first:
        return 0
    answers = await _ask([node.read(record.id, last, 1) for node in copies])
    times = [answer[0].append_time for answer in answers if isinstance(answer, list)]
    if not times and record.durability is not Durability.BUFFERED:
        raise LedgerUnrecoverable(f"ledger {record.id}: its last entry, {last}, cannot be read now")
    return max(times, default=0)


async def _fence(record: LedgerRecord, epoch: Epoch, copies: Sequence[StorageNode]) -> dict[int, LedgerStatus]:
    answers = await _ask([node.fence(record.id, epoch) for node in copies])
    fenced = {place: answer for place, answer in enumerate(answers) if isinstance(answer, LedgerStatus)}
    if not fenced_enough(range(len(copies)), fenced.keys(), record.copies):
        full = [answer for answer in answers if isinstance(answer, DiskFull)]
        if full and len(full) + len(fenced) == len(copies):
            raise full[0]  # that is all that is wrong, so it is what people should hear
        causes = [str(answer) for answer in answers if isinstance(answer, DanubeError)]
        raise LedgerUnrecoverable(f"ledger {record.id}: {len(fenced)} of {len(copies)} nodes are fenced: {causes}")
    return fenced


async def _find(
    record: LedgerRecord, offset: int, copies: Sequence[StorageNode], fenced: Collection[int]
) -> Batch | None:
    """The entry at `offset` from any node of its write set; None once enough of them truly lack it."""
    asked = write_set(range(len(copies)), offset, record.copies.write)
    answers = await _ask([copies[place].read(record.id, offset, 1) for place in asked])
    absences = 0
    causes = []
    for place, answer in zip(asked, answers, strict=True):
        if isinstance(answer, list):
            found: Batch = answer[0]
            return found
        if isinstance(answer, DanubeError):
            causes.append(f"{answer.code}: {answer}")
            absences += counts_as_absence(answer, fenced=place in fenced)
    if proves_absence(absences, record.copies):
        return None
    raise LedgerUnrecoverable(f"ledger {record.id}, offset {offset}: {absences} true absences are too few: {causes}")


async def _finish(record: LedgerRecord, epoch: Epoch, batch: Batch, offset: int, copies: Sequence[StorageNode]) -> None:
    """Brings an entry that may have been acknowledged to its ack quorum, under its old stamp."""
    if batch.base_offset != offset:
        raise LedgerUnrecoverable(f"ledger {record.id}: an entry starts at {batch.base_offset}, not at {offset}")
    asked = write_set(copies, offset, record.copies.write)
    answers = await _ask([node.append(record.id, epoch, batch, offset - 1) for node in asked])
    acks = sum(answer is None for answer in answers)
    if not acknowledged(acks, record.copies):
        causes = [str(answer) for answer in answers if isinstance(answer, DanubeError)]
        raise LedgerUnrecoverable(f"ledger {record.id}, offset {offset}: {acks} nodes took it again: {causes}")


async def _ask(futures: Sequence[Future[Any]]) -> list[object]:
    """Every answer, in order; errors are answers too, bugs are not."""
    answers = await asyncio.gather(*futures, return_exceptions=True)
    for answer in answers:
        if isinstance(answer, BaseException) and not isinstance(answer, DanubeError):
            raise answer
    return list(answers)
