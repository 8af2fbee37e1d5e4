"""Deletes the dead ledgers of a stream from its nodes and then from its record; tries again if that fails.

The record decides which ledgers are dead. A ledger that a node could not delete stays in the record, so that it is
not forgotten there.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import islice

from pydanube.base.errors import DanubeError, OwnershipLost
from pydanube.base.ids import LedgerId
from pydanube.base.limits import LEDGERS_DELETED_AT_ONCE, LEDGERS_SWEPT_MAX
from pydanube.ports.storage import StorageNodes
from pydanube.storage.futures import cancel_all
from pydanube.storage.stream.copies import GONE
from pydanube.storage.stream.ownership import Change, Ownership
from pydanube.stream.record import LedgerRecord, StreamRecord


async def delete_some(
    ledgers: Iterable[LedgerRecord], nodes: StorageNodes
) -> tuple[list[LedgerId], DanubeError | None]:
    """Deletes the first of them. Returns those that no node has any more, and an error if one could not be deleted."""
    some, deleted, why = list(islice(ledgers, LEDGERS_SWEPT_MAX)), list[LedgerId](), None
    for at in range(0, len(some), LEDGERS_DELETED_AT_ONCE):
        part = some[at : at + LEDGERS_DELETED_AT_ONCE]
        for ledger, error in zip(part, await asyncio.gather(*(_delete(each, nodes) for each in part)), strict=True):
            if error is None:
                deleted.append(ledger.id)
            why = why or error
    return deleted, why


async def _delete(ledger: LedgerRecord, nodes: StorageNodes) -> DanubeError | None:
    """Returns an error if a node may still have it."""
    deletions = [nodes.get(identity).delete(ledger.id) for identity in ledger.nodes]
    for answer in await asyncio.gather(*deletions, return_exceptions=True):
        if isinstance(answer, BaseException) and not isinstance(answer, GONE):
            return answer if isinstance(answer, DanubeError) else DanubeError(f"ledger {ledger.id}: {answer}")
    return None


class Sweeper:
    """Sweeps for one owner of a stream. `change` stores a change of the record."""

    def __init__(
        self,
        nodes: StorageNodes,
        ownership: Ownership,
        change: Callable[[Change], Awaitable[StreamRecord]],
        pause_seconds: float,
    ) -> None:
        self._nodes = nodes
        self._ownership = ownership
        self._change = change
        self._pause_seconds = pause_seconds
        self._task: Task[None] | None = None
        self._stopped = False

    async def trim(self, before: int) -> int:
        """Deletes the sealed ledgers that end below `before`; returns how many no node has any longer. If there are
        very many, the rest is deleted in the background.

        The record first says that they are dead, then nodes delete them, and then they leave the record: after a crash
        in between, the next owner continues.
        """
        await self._change(lambda record: record.trimmed(record.owner, before))
        swept = await self.sweep()
        self.later(0.0 if swept == LEDGERS_SWEPT_MAX else None)
        return swept

    async def sweep(self) -> int:
        """Deletes dead ledgers, up to a limit, and returns how many."""
        deleted, _ = await delete_some(self._ownership.record.dead, self._nodes)
        for part in self._ownership.record.ledgers.in_parts(deleted):
            await self._forget(part)
        return len(deleted)

    async def _forget(self, deleted: Sequence[LedgerId]) -> None:
        """Removes from the record ledgers that no node has any longer."""
        await self._change(lambda record: record.swept(record.owner, deleted))

    def later(self, seconds: float | None = None) -> None:
        """Deletes the remaining dead ledgers in the background, first after `seconds` or the usual pause."""
        if self._has_dead and not self._stopped and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._go_on(seconds))

    async def stop(self) -> None:
        self._stopped = True
        await cancel_all([self._task])

    @property
    def _has_dead(self) -> bool:
        return next(self._ownership.record.dead, None) is not None

    async def _go_on(self, seconds: float | None) -> None:
        while self._has_dead and not self._stopped:
            await asyncio.sleep(self._pause_seconds if seconds is None else seconds)
            seconds = None
            try:
                if await self.sweep() == LEDGERS_SWEPT_MAX:
                    seconds = 0.0  # there are more, and the nodes answer
            except OwnershipLost:
                return
            except DanubeError:
                continue
