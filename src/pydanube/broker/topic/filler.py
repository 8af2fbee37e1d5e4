"""Fills the topic's part of batches that are written exactly once (§44).

Owned by its topic. Where a part begins is durable in the state log before the first row is appended. Until its last row
is confirmed, nothing from there on is visible, neither rows nor what others publish between them. All of this follows
from the state log and the messages, so a restart, or another owner, continues where this one stopped.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from pydanube.base.errors import OffsetsDamaged, RequestInvalid, SinkBlocked
from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.base.retry import Backoff
from pydanube.broker.topic.core import SERVING, TopicCore
from pydanube.storage.stream.stream import Stream
from pydanube.wire.batch import Batch

CERTAIN = Backoff(0.001, 0.1)  # between checks whether the outcome of failed writes is known
IsOpen = Callable[[bytes, int], bool]  # whether the decision on a writer's batch is still to be carried out


class Fill(NamedTuple):
    """A part of a decided batch."""

    sink: bytes  # the digest of its writer
    batch: int  # the version of the decision in the metadata
    rows: int


class Filler:
    """`show_more` is called when messages that were hidden become visible."""

    def __init__(self, core: TopicCore, show_more: Callable[[], None]) -> None:
        self._core = core
        self._show_more = show_more
        self._working = False  # rows are being appended or counted
        self._freed: Future[None] | None = None  # done when the part is filled or blocked, if a caller waits for it
        self.blocked: SinkBlocked | None = None  # why the part cannot be filled at present

    @property
    def open(self) -> Fill | None:
        """The part that is being filled."""
        found = self._core.state.fills.open
        return None if found is None else Fill(found.sink, found.batch, found.rows)

    def is_filled(self, fill: Fill) -> bool:
        return self._core.state.fills.is_filled(fill.sink, fill.batch)

    async def load(self) -> None:
        """Called when the topic is opened: hides a part that is not filled. What was visible before stays visible."""
        found = self._core.state.fills.open
        if found is None:
            return
        self._core.ledger.hidden_from = found.first
        try:
            if await rows_from(self._core.ledger.stream, found.first) >= found.rows:
                self.end()
        except OffsetsDamaged:
            return  # the caller that fills it is told

    @asynccontextmanager
    async def turn(self, fill: Fill, is_open: IsOpen, first: int | None = None) -> AsyncIterator[int]:
        """Waits until no other part is being filled, and begins this one unless it has begun: at the end, or at `first`
        if that was decided. Yields how many of its rows are written. Until the caller is done, no one else
        appends rows."""
        while self._working or self._is_other(fill):
            self._core.check_open()
            if self._working:
                await self._until_freed()
            elif not self.release(is_open):
                if self.blocked is not None:
                    raise SinkBlocked(*self.blocked.args)
                await self._until_freed()
        self._working = True
        try:
            yield await self._begun(fill, is_open, first)
        finally:
            self._working = False
            self._free()

    def _is_other(self, fill: Fill) -> bool:
        return self.open is not None and self.open != fill

    async def _begun(self, fill: Fill, is_open: IsOpen, first: int | None) -> int:
        """Makes durable where the part begins."""
        core = self._core
        await self._certain()  # what was sent before is written by now, or never will be
        fills = core.state.fills
        if self.is_filled(fill):  # by a caller that had its turn before
            return fill.rows
        if fills.open is not None:
            begin = fills.open.first
        else:
            begin = core.ledger.written_end if first is None else first
            core.log.apply(*fills.decide_begin(fill.sink, fill.batch, begin, fill.rows, is_open))
            core.ledger.hidden_from = begin  # in the same turn: no one has seen what is behind it
        await core.log.barrier()  # for an earlier attempt too: it may have failed before this was durable
        there = await rows_from(core.ledger.stream, begin)
        if there > fill.rows:
            raise RequestInvalid(f"{core.name} has {there} rows of a batch that has {fill.rows}")
        return there

    async def _certain(self) -> None:
        core = self._core
        for pause in CERTAIN:
            core.check_open()
            if core.phase is SERVING and core.ledger.stream.open:
                return
            await asyncio.sleep(pause)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Shows the part with all that lies behind it: its last row is confirmed, or it is given up. A crash before
        this is durable takes nothing back, because the rows are counted then."""
        core = self._core
        if core.state.fills.open is None:
            return
        core.log.apply(core.state.fills.decide_end())
        core.ledger.hidden_from, self.blocked = None, None
        self._free()
        self._show_more()

    def release(self, is_open: IsOpen) -> bool:
        """Gives up a part that will not be filled, because its decision was revoked. Returns whether none is open."""
        found = self.open
        if found is not None and not self._working and not is_open(found.sink, found.batch):
            self.end()
        return self.open is None

    def hold_up(self, fill: Fill, why: SinkBlocked | None) -> None:
        """Says why the part cannot be filled at present, to all who publish behind it or wait for their turn; None if
        it can again."""
        if self.open == fill:
            self.blocked = why
            self._free()

    async def _until_freed(self) -> None:
        self._freed = self._freed or asyncio.get_running_loop().create_future()
        await asyncio.wait([self._freed])

    def _free(self) -> None:
        if self._freed is not None:
            self._freed.set_result(None)
            self._freed = None

    def close(self) -> None:
        """Called when the topic is closed: those who wait find out why."""
        self._free()


async def rows_from(stream: Stream, first: int) -> int:
    """How many rows of a job are written from `first` on, where no other job has written: the number of the last one.
    Looks for it by halves, because rows may be many and what others publish lies between them."""
    rows, low, high = 0, first, stream.confirmed + 1
    while (low := stream.past_lost(low)) < high:
        middle = (low + high) // 2
        found = await _row_from(stream, middle, high)
        if found is None:
            high = middle
        else:
            rows, low = found.first_sequence - 1 + found.count, found.last_offset + 1
    return rows


async def _row_from(stream: Stream, offset: int, end: int) -> Batch | None:
    """The last batch with rows of a job among those that are read together, if there is one before `end`."""
    while (offset := stream.past_lost(offset)) < end:
        batches = await stream.read(offset, READ_AHEAD_BYTES)
        rows = [batch for batch in batches if not batch.producer_id and batch.first_sequence]
        if rows:
            return rows[-1]
        offset = batches[-1].last_offset + 1
    return None
