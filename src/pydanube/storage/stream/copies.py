"""Reads a ledger from its copies: from the first that can serve it, and past entries that none of them has any longer.

It decides nothing about a ledger. A copy that does not answer may have the entry, so a gap is skipped only if every
copy says that it lacks the entry.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from pydanube.base.errors import DanubeError, EntryMissing, LedgerDamaged, LedgerNotFound, NodeReplaced, NodeUnreachable
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.ports.storage import StorageNode, StorageNodes
from pydanube.stream.record import LedgerRecord, Phase
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
GONE = (EntryMissing, LedgerNotFound, NodeReplaced)  # this copy does not have it and never will


def is_damage(error: object) -> bool:
    """Whether a copy has lost the entry for good."""
    return isinstance(error, LedgerDamaged) and not error.retriable


async def after_damage(ledger: LedgerId, offset: int, copies: Sequence[StorageNode]) -> int | None:
    """The base offset of the first entry after `offset` that some copy can read; None if there is none."""
    searches = (node.find_intact(ledger, offset + 1) for node in copies)
    answers = await asyncio.gather(*searches, return_exceptions=True)
    return min([answer for answer in answers if isinstance(answer, int)], default=None)


class CopyReader:
    """Reads ledgers of one stream. `end` returns the last offset of a ledger that readers may see."""

    def __init__(self, name: str, nodes: StorageNodes, end: Callable[[LedgerRecord], int]) -> None:
        self._name = name
        self._nodes = nodes
        self._end = end
        self._silent: dict[NodeIdentity, None] = {}  # did not answer in time: the others are tried first

    async def read(self, ledger: LedgerRecord, offset: int, bytes_max: int) -> list[Batch]:
        """Reads from the first copy that can serve it; `EntryMissing` only if every copy lacks the entry."""
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
        others.sort(key=is_damage)  # damage is reported only if nothing else went wrong
        raise others[0] if others else EntryMissing(f"{self._name}: no copy has offset {offset}")

    async def after_gap(self, ledger: LedgerRecord, offset: int) -> int:
        """The offset of the next entry, after entries that were only buffered when the power failed.

        Every copy has to say that it lacks them. One that does not know the ledger was down when it was created, and
        lacks them as well.
        """
        answers = await asyncio.gather(
            *(self._nodes.get(identity).find_next(ledger.id, offset) for identity in ledger.nodes),
            return_exceptions=True,
        )
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, GONE):
                raise answer  # a copy that does not answer may have it
        if all(isinstance(answer, LedgerNotFound) for answer in answers):
            raise LedgerNotFound(f"{self._name}: no copy has ledger {ledger.id}")  # although an ack quorum created it
        found = [answer for answer in answers if isinstance(answer, int)]
        end = self._end(ledger)
        following = min([first for first in found if first > offset], default=end + 1)
        if following == offset or (following > end and ledger.phase is not Phase.SEALED):
            raise EntryMissing(f"{self._name}: nothing is confirmed after offset {offset}")
        log.warning("%s: offsets %d to %d were buffered and lost", self._name, offset, following - 1)
        return following
