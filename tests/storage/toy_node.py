"""A storage node as a stranger might write it, after the port and its contract alone: a list of facts per ledger."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    BatchInvalid,
    DanubeError,
    EntryConflict,
    EntryMissing,
    LedgerExists,
    LedgerFenced,
    LedgerNotFound,
    NodeClosed,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId, NodeIdentity
from pydanube.ports.storage import LedgerState, LedgerStatus
from pydanube.storage.node.registry import Opening
from pydanube.wire.batch import Batch


@dataclass
class Toy:
    maker: Epoch
    durability: Durability
    owner: Epoch
    state: LedgerState = LedgerState.OPEN
    end: int = NO_OFFSET
    confirmed: int = NO_OFFSET
    entries: list[Batch] = field(default_factory=list)


class ToyNode:
    in_order = True

    def __init__(self, opening: Opening) -> None:
        self.identity = NodeIdentity(opening.randomness.bytes(16).hex())
        self._ledgers: dict[LedgerId, Toy] = {}
        self._closed = False

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        def work() -> None:
            toy = self._ledgers.setdefault(ledger, Toy(epoch, durability, epoch))
            if toy.state is not LedgerState.OPEN or epoch < toy.maker:
                raise LedgerFenced(str(ledger))
            if (toy.maker, toy.durability) != (epoch, durability):
                raise LedgerExists(str(ledger))

        return self._do(work)

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        def work() -> None:
            if not batch.epoch:
                raise BatchInvalid("no stamp")
            toy = self._get(ledger)
            if toy.state is LedgerState.SEALED or epoch != toy.owner:
                raise LedgerFenced(str(ledger))
            if batch not in toy.entries:
                for other in toy.entries:
                    if other.base_offset <= batch.last_offset and batch.base_offset <= other.last_offset:
                        raise EntryConflict(str(batch))
                toy.entries = sorted([*toy.entries, batch], key=lambda entry: entry.base_offset)
            toy.confirmed = max(toy.confirmed, confirmed)

        return self._do(work)

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[list[Batch]]:
        def work() -> list[Batch]:
            toy = self._get(ledger)
            found: list[Batch] = []
            room, wanted = bytes_max, offset
            for batch in toy.entries:
                hidden = toy.state is LedgerState.SEALED and max(wanted, batch.base_offset) > toy.end
                if batch.last_offset < wanted or hidden:
                    continue
                if batch.base_offset > wanted or (found and batch.size > room):
                    break
                found.append(batch)
                room -= batch.size
                wanted = batch.last_offset + 1
            if not found:
                raise EntryMissing(f"{ledger}/{offset}")
            return found

        return self._do(work)

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        def work() -> int:
            toy = self._get(ledger)
            for batch in toy.entries:
                if batch.base_offset >= offset and (
                    toy.state is not LedgerState.SEALED or batch.base_offset <= toy.end
                ):
                    return batch.base_offset
            raise EntryMissing(f"{ledger}/{offset}")

        return self._do(work)

    find_intact = find_next

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        def work() -> LedgerStatus:
            toy = self._ledgers.setdefault(ledger, Toy(Epoch(0), Durability.FSYNC, Epoch(0)))
            if toy.state is not LedgerState.SEALED:
                if epoch < toy.owner or (epoch == toy.owner and toy.state is LedgerState.OPEN):
                    raise LedgerFenced(str(ledger))
                toy.state, toy.owner = LedgerState.FENCED, epoch
            return self._status(ledger)

        return self._do(work)

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        def work() -> None:
            toy = self._get(ledger)
            if toy.state is LedgerState.SEALED:
                if toy.end != last:
                    raise EntryConflict(str(ledger))
                return
            if epoch != toy.owner:
                raise LedgerFenced(str(ledger))
            toy.state, toy.end = LedgerState.SEALED, last

        return self._do(work)

    def delete(self, ledger: LedgerId) -> Future[None]:
        return self._do(lambda: self._ledgers.pop(ledger, None) and None)

    def list(self) -> Future[list[LedgerStatus]]:
        return self._do(lambda: [self._status(ledger) for ledger in self._ledgers])

    async def close(self) -> None:
        self._closed = True

    def _get(self, ledger: LedgerId) -> Toy:
        if ledger not in self._ledgers:
            raise LedgerNotFound(str(ledger))
        return self._ledgers[ledger]

    def _status(self, ledger: LedgerId) -> LedgerStatus:
        toy = self._ledgers[ledger]
        last = max((batch.last_offset for batch in toy.entries), default=NO_OFFSET)
        end = toy.end if toy.state is LedgerState.SEALED else last
        return LedgerStatus(ledger, toy.owner, toy.state, toy.durability, end, toy.confirmed, 0, False, False)

    def _do(self, work: Callable[[], Any]) -> Future[Any]:
        answer: Future[Any] = asyncio.get_running_loop().create_future()
        try:
            if self._closed:
                raise NodeClosed("closed")
            answer.set_result(work())
        except DanubeError as error:
            answer.set_exception(error)
        return answer


async def open_toy(opening: Opening) -> ToyNode:
    return ToyNode(opening)
