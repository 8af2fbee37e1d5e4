"""Reads a ledger from its copies: from the first that can serve it, and over what every one of them has lost.

It decides nothing about a ledger. A copy that cannot be asked may have what is asked for, so no gap is passed over
without every copy's word.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pydanube.base.errors import (
    DanubeError,
    EntryMissing,
    LedgerDamaged,
    LedgerNotFound,
    NodeReplaced,
    NodeUnreachable,
)
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.ports.storage import StorageNode, StorageNodes
from pydanube.stream.record import LedgerRecord, Phase
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
GONE = (EntryMissing, LedgerNotFound, NodeReplaced)  # this copy does not have it and never will


def is_damage(error: object) -> bool:
    """Whether a copy has lost what was asked for, and will not have it later."""
    return isinstance(error, LedgerDamaged) and not error.retriable


async def behind_damage(ledger: LedgerId, offset: int, copies: Sequence[StorageNode]) -> int | None:
    """Where the first entry after `offset` starts that some copy can read; None if none has any."""
    asked = (node.find_sound(ledger, offset + 1) for node in copies)
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return min([answer for answer in answers if isinstance(answer, int)], default=None)


class CopyReader:
    """For one stream. `end` says up to which offset of a ledger readers may see."""

    def __init__(self, name: str, nodes: StorageNodes, end: Callable[[LedgerRecord], int]) -> None:
        self._name = name
        self._nodes = nodes
        self._end = end
        self._silent: dict[NodeIdentity, None] = {}  # did not answer in time: the others are asked first

    async def read(self, ledger: LedgerRecord, offset: int, bytes_max: int) -> list[Batch]:
        """From the first copy that can serve it; `EntryMissing` only if every copy says that it has none."""
        errors: list[DanubeError] = []
        for identity in sorted(ledger.nodes, key=self._silent.__contains__):
            try:
                batches = await self._nodes.get(identity).read(ledger.id, offset, bytes_max)
            except DanubeError as error:
                errors.append(error)
                if isinstance(error, NodeUnreachable):
                    self._silent[identity] = None
                continue
            self._silent.pop(identity, None)
            end = self._end(ledger)
            visible = [batch for batch in batches if batch.last_offset <= end]
            if visible:
                return visible
        others = [error for error in errors if not isinstance(error, GONE)]
        others.sort(key=is_damage)  # only if that is all that is wrong
        raise others[0] if others else EntryMissing(f"{self._name}: no copy has offset {offset}")

    async def behind_gap(self, ledger: LedgerRecord, offset: int) -> int:
        """A power cut took what was only buffered. If every copy says so, reading goes on at the next entry.

        A copy that never heard of the ledger was away when it was made, and lacks the entry as well.
        """
        answers = await asyncio.gather(
            *(self._nodes.get(identity).find_next(ledger.id, offset) for identity in ledger.nodes),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GONE):
                raise answer  # a copy that cannot be asked may have it
        if all(isinstance(answer, LedgerNotFound) for answer in answers):
            raise LedgerNotFound(f"{self._name}: no copy has ledger {ledger.id}")  # an ack quorum of them once did
        found = [answer for answer in answers if isinstance(answer, int)]
        end = self._end(ledger)
        following = min([first for first in found if first > offset], default=end + 1)
        if following == offset or (following > end and ledger.phase is not Phase.SEALED):
            raise EntryMissing(f"{self._name}: nothing is confirmed after offset {offset}")
        log.warning("%s: offsets %d to %d were buffered and lost", self._name, offset, following - 1)
        return following
