"""The record of a stream in the hands of its owner: every change of it by compare-and-set, and only while the topic is
still assigned to this owner.

It has the record as this owner last stored it, and notices when another broker has the topic. It decides nothing
itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pydanube.base.errors import CatalogConflict, DanubeError, MetadataBusy
from pydanube.base.ids import Epoch, LedgerId
from pydanube.ports.catalog import RecordChange
from pydanube.storage.stream.tenure import REFUSED, Tenure
from pydanube.stream.record import StreamRecord

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.2
Change = Callable[[StreamRecord], StreamRecord]


class Ownership:
    """Created by `owned`. A change that takes several steps holds the lock `changing`."""

    def __init__(self, name: str, tenure: Tenure, stored: StreamRecord, version: int) -> None:
        self.name = name
        self.tenure = tenure
        self.record = stored.owned_by(tenure.epoch)
        self.changing = asyncio.Lock()
        self._stored = stored  # the record as the catalogue has it
        self.version = version  # of that

    @property
    def epoch(self) -> Epoch:
        """The epoch of this owner's next ledger. That of the tenure may be newer, if another stream needed one."""
        return self.record.owner

    async def begin_epoch_after(self, epoch: Epoch) -> None:
        """Continues under an epoch that is newer than this one, which can fence it."""
        if self.tenure.epoch <= epoch:
            await self.tenure.renew()
        self.record = self.record.owned_by(self.tenure.epoch)

    async def change(self, change: Change) -> StreamRecord:
        """Stores the record that `change` returns, unless it is the same, and returns it."""
        async with self.changing:
            changed = change(self.record)
            if changed != self.record:
                await self.store(changed)
            return self.record

    async def store(self, record: StreamRecord) -> None:
        """Stores a decision for certain, or raises `OwnershipLost`. Asks again if there is no answer.

        An error of `REFUSED` is raised at once: the metadata has no room for the record.
        """
        await _store([(self, record)])

    async def next_ledger_id(self) -> LedgerId:
        while True:
            try:
                return await self.tenure.catalog.next_ledger_id()
            except MetadataBusy:  # a retry is enough
                await asyncio.sleep(RETRY_SECONDS)

    def changed_to(self, record: StreamRecord) -> RecordChange:
        return RecordChange(self.name, record, self.version, self._stored)

    def hold(self, record: StreamRecord, stored: StreamRecord, version: int) -> None:
        self.record, self._stored, self.version = record, stored, version


async def owned(names: Sequence[str], tenure: Tenure) -> list[Ownership]:
    """The records of a topic's streams, all of one moment. The ledgers that an earlier owner left open are marked as
    recovering together, in one transaction."""
    found = [Ownership(name, tenure, *await _load(name, tenure)) for name in names]
    left_open = [(each, each.record.recovering(each.epoch)) for each in found if each.record.unsealed is not None]
    if left_open:
        await _store(left_open)
    else:
        await tenure.confirm()
    return found


async def _store(decisions: Sequence[tuple[Ownership, StreamRecord]]) -> None:
    tenure = decisions[0][0].tenure
    while True:
        changes = [each.changed_to(record) for each, record in decisions]
        try:
            version = await tenure.catalog.store(changes, tenure.held)
        except REFUSED:
            raise
        except CatalogConflict:
            if await _is_stored(decisions, tenure):
                return
        except DanubeError as error:
            log.warning("%s: the catalogue did not answer: %s", tenure.topic, error)
            await asyncio.sleep(RETRY_SECONDS)
        else:
            for each, record in decisions:
                each.hold(record, record, version)
            return


async def _is_stored(decisions: Sequence[tuple[Ownership, StreamRecord]], tenure: Tenure) -> bool:
    """After a conflict: whether only the answer was lost. `OwnershipLost` if another owner has the topic.

    If not, the topic got a newer epoch, and the same decisions are stored under it. But an older decision of this owner
    may have arrived late: then `CatalogConflict` is raised, and the caller decides again.
    """
    found = [await _load(each.name, tenure) for each, _ in decisions]
    await tenure.confirm()  # only now: a record that a later owner has stored does not fit what this one knows
    if all(each.version == version for (each, _), (_, version) in zip(decisions, found, strict=True)):
        return False
    stored = all(record == current for (_, record), (current, _) in zip(decisions, found, strict=True))
    for (each, record), (current, version) in zip(decisions, found, strict=True):
        each.hold(record if stored else current.owned_by(each.epoch), current, version)
    if not stored:
        raise CatalogConflict(f"an older decision about {decisions[0][0].name} arrived late")
    return True


async def _load(name: str, tenure: Tenure) -> tuple[StreamRecord, int]:
    while True:
        try:
            return await tenure.catalog.load(name)
        except DanubeError as error:
            log.warning("%s: the catalogue did not answer: %s", name, error)
            await asyncio.sleep(RETRY_SECONDS)
