"""The ownership of a topic by one broker: its assignment, and the epoch that all its streams share (§40).

Every change of their records checks the assignment, so an owner that has lost it can decide nothing any more.
"""

from __future__ import annotations

import asyncio
import logging

from pydanube.base.errors import CatalogConflict, DanubeError, MetadataFull, MetadataInvalid, OwnershipLost
from pydanube.base.ids import Epoch
from pydanube.ports.catalog import Catalog
from pydanube.stream.assignment import Assignment, Held

log = logging.getLogger(__name__)
REFUSED = (MetadataFull, MetadataInvalid)  # a limit was reached: nothing was stored, and a retry does not help
RETRY_SECONDS = 0.2


class Tenure:
    """Belongs to one opening of the topic: no other opening has the same assignment or epoch."""

    def __init__(self, topic: str, owner: Assignment, epoch: Epoch, catalog: Catalog) -> None:
        self.topic = topic
        self.epoch = epoch  # the newest one: it rises when a stream of the topic has to fence its own ledger
        self.catalog = catalog
        self._owner = owner

    @classmethod
    async def take(cls, topic: str, owner: Assignment, catalog: Catalog) -> Tenure:
        """Assigns the topic to `owner`, in place of any previous one."""
        tenure = cls(topic, owner, (await _assignment(catalog, topic))[1], catalog)
        while not await tenure._assign():
            tenure.epoch = (await _assignment(catalog, topic))[1]
        return tenure

    @property
    def held(self) -> Held:
        return Held(self.topic, self.epoch)

    async def renew(self) -> None:
        """Gets a new epoch, under which ledgers of the epoch before can be fenced; `OwnershipLost` if another broker
        has the topic."""
        before = self.epoch
        while self.epoch == before and not await self._assign():
            await self.confirm()  # a newer epoch of ours will do: another stream got it, or the answer was lost

    async def confirm(self) -> None:
        """Raises `OwnershipLost` unless the topic is still assigned to this owner."""
        owner, epoch = await _assignment(self.catalog, self.topic)
        if owner != self._owner:
            raise OwnershipLost(f"{self.topic} belongs to {_name(owner)} now, with epoch {epoch}")
        self.epoch = epoch

    async def _assign(self) -> bool:
        """Whether the topic was still assigned as this tenure knows it, and now has a new epoch."""
        try:
            self.epoch = await self.catalog.assign(self.held, self._owner)
            return True
        except REFUSED:
            raise
        except CatalogConflict:
            return False
        except DanubeError as error:
            log.warning("%s: the metadata did not answer: %s", self.topic, error)
            await asyncio.sleep(RETRY_SECONDS)
            return False


def _name(owner: Assignment | None) -> str:
    return "no broker" if owner is None else f"broker {owner.broker}"


async def _assignment(catalog: Catalog, topic: str) -> tuple[Assignment | None, Epoch]:
    while True:
        try:
            return await catalog.assignment(topic)
        except DanubeError as error:
            log.warning("%s: the metadata did not answer: %s", topic, error)
            await asyncio.sleep(RETRY_SECONDS)
