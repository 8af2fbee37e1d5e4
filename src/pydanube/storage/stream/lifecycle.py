"""Creates, seals and recovers ledgers of one stream. Every decision is in the catalogue before it reaches a node."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pydanube.base.errors import DanubeError
from pydanube.ports.clock import Clock
from pydanube.ports.storage import StorageNodes
from pydanube.storage.futures import retrieve
from pydanube.storage.stream.fences import Fences
from pydanube.storage.stream.ownership import Ownership
from pydanube.storage.stream.recovery import recover_ledger
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.record import LedgerRecord, Phase, new_ledger


class LedgerLifecycle:
    """Used by one owner of a stream, which holds `Ownership.changing` while it calls `make`, `seal` and `recover`."""

    def __init__(
        self, ownership: Ownership, nodes: StorageNodes, clock: Clock, settings: StreamSettings, fences: Fences
    ) -> None:
        self._ownership = ownership
        self._fences = fences
        self._nodes = nodes
        self._clock = clock
        self._settings = settings

    def writer(self, first: int, failed: Callable[[DanubeError], None]) -> LedgerWriter:
        """A writer for a ledger that does not exist yet; `failed` is called when it can no longer be written."""
        return LedgerWriter(self._ownership.epoch, first, self._nodes, failed)

    def choose_nodes(self) -> None:
        """Raises `TooManyLedgers` if the nodes can take no more."""
        self._nodes.choose(self._settings.copies.replicas, reserve=self._settings.reserve)

    async def make(self, writer: LedgerWriter) -> float:
        """Creates the writer's ledger; returns when it did, on the monotonic clock."""
        ownership, settings = self._ownership, self._settings
        nodes = tuple(self._nodes.choose(settings.copies.replicas, reserve=settings.reserve))
        ledger_id = await ownership.next_ledger_id()
        first = ownership.record.next_offset
        ledger = new_ledger(ledger_id, ownership.epoch, first, nodes, settings.copies, settings.durability)
        await ownership.store(ownership.record.opened(ownership.epoch, ledger, settings.ledgers_listed))
        made = self._clock.monotonic()
        await writer.begin(ledger)
        return made

    async def seal(self, writer: LedgerWriter, last: int, correction: int | None = None) -> None:
        """A clean end without recovery: all appends are confirmed, up to `last`, and the nodes are told separately.

        With a `correction`, append times continue from there in the next ledger.
        """
        record, epoch, end = self._ownership.record, self._ownership.epoch, writer.next_offset
        record = record.sealed(epoch, writer.record.id, last, end, bytes=writer.bytes, newest=writer.newest)
        if correction is not None and correction < record.newest:
            record = record.time_corrected(epoch, end, correction)
        await self._ownership.store(record)

    async def recover(self, newest: int) -> None:
        """Decides where the ledger that was left open ends. `newest` is the last append time that this owner knows."""
        ownership = self._ownership
        ledger = ownership.record.unsealed
        assert ledger is not None
        if ledger.phase is Phase.OPEN:  # our own ledger failed: only a newer epoch can fence it
            await ownership.begin_epoch_after(ledger.epoch)
            await ownership.store(ownership.record.recovering(ownership.epoch))
        else:
            await ownership.tenure.confirm()  # if the topic was lost, no fence would ever succeed
        ending = await recover_ledger(
            ledger, ownership.epoch, self._nodes, partial(self._fences.fenced, ownership.name)
        )
        sealed = ownership.record.sealed(
            ownership.epoch,
            ledger.id,
            ending.last,
            ending.next_offset,
            bytes=ending.bytes,
            newest=ending.newest or max(newest, self._clock.wall()),  # if unknown, too late is better than too early
            unknown_from=ending.unknown_from,
        )
        await ownership.store(sealed)
        self.tell_nodes(ledger, ending.last)

    def tell_nodes(self, ledger: LedgerRecord, last: int) -> None:
        """Tells the nodes where the ledger ends, without waiting: a node that misses it loses nothing."""
        if last >= ledger.first:
            for identity in ledger.nodes:
                self._nodes.get(identity).seal(ledger.id, self._ownership.epoch, last).add_done_callback(retrieve)
