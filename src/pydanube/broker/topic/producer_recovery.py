"""Learns what producers have published from the headers of their batches: at the start, and after a failed write.

Owned by its topic. A batch whose write failed may be stored or not. Until the stream has recovered, nothing is
published, and the producers have the state as of the last certain confirmation.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable

from pydanube.base.errors import DanubeError
from pydanube.broker.topic.core import CLOSED, SERVING, TopicCore
from pydanube.storage.futures import cancel_all

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.1


class ProducerRecovery:
    """`recovered` is called when it is certain again what is stored."""

    def __init__(self, core: TopicCore, recovered: Callable[[], None]) -> None:
        self._core = core
        self._recovered = recovered
        self._task: Task[None] | None = None

    async def load(self) -> None:
        """Called when the topic is opened: reads everything since the last snapshot of the state."""
        await self._read_from(self._core.state.producers_from())

    def begin(self) -> None:
        """A write failed: only after the stream's recovery is it known which of the pending batches are stored."""
        if self._core.phase is SERVING:
            self._task = asyncio.get_running_loop().create_task(self._recover(self._core.begin_recovery()))

    async def _recover(self, certain_end: int) -> None:
        core = self._core
        core.state.producers.rewind(certain_end)
        while core.phase is not CLOSED:
            try:
                await core.ledger.stream.ready()
                await self._read_from(certain_end)
                break
            except DanubeError as error:
                if core.lost:
                    log.warning("%s: %s", core.name, error)
                    return
                await asyncio.sleep(RETRY_SECONDS)
        else:
            return  # the topic was closed first
        self._task = None
        core.end_recovery()
        self._recovered()

    async def _read_from(self, offset: int | None) -> None:
        """Skips what is damaged: its producers may then publish it again."""
        if offset is None:
            return
        ledger, producers = self._core.ledger, self._core.state.producers
        offset = max(offset, ledger.first)
        while (offset := ledger.past_lost(offset)) < ledger.written_end:
            batches, offset = await ledger.read_around(offset)
            for batch in batches:
                producers.appended(
                    batch.producer_id, batch.first_sequence, batch.count, batch.base_offset, batch.append_time
                )

    async def stop(self) -> None:
        await cancel_all([self._task])
