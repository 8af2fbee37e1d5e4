"""A stream on its owner: one open ledger after the other on storage nodes, read back as one.

Opening a stream means recovering the ledger that an earlier owner left open, under the epoch of the topic's new
assignment, and opening a new one. After a lost quorum, a full disk or a fencing, the owner does the same again, until
it succeeds or another broker owns the topic. Readers see only what is confirmed. `state.py` has the states; only
`Stream._enter` changes them.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import NamedTuple

from pydanube.base.errors import DanubeError, NodeClosed, OwnershipLost, TooManyLedgers
from pydanube.base.ids import NO_OFFSET, Epoch
from pydanube.base.limits import SECOND
from pydanube.ports.catalog import Catalog
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.checked_clock import CheckedClock, checked_clock
from pydanube.storage.stream.cold import ColdReader
from pydanube.storage.stream.fences import Fences
from pydanube.storage.stream.lifecycle import LedgerLifecycle
from pydanube.storage.stream.ownership import Change, Ownership, owned
from pydanube.storage.stream.reading import StreamReader
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.state import NEXT, Beginning, Closed, Idle, Open, Opening, State, TakenOver, WithoutWriter
from pydanube.storage.stream.sweeper import Sweeper
from pydanube.storage.stream.tenure import REFUSED, Tenure
from pydanube.storage.stream.writer import LedgerWriter
from pydanube.stream.assignment import Assignment
from pydanube.stream.record import LostRange, StreamRecord
from pydanube.stream.times import JUMP
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)


class StreamToOpen(NamedTuple):
    name: str
    settings: StreamSettings
    cold: ColdReader | None = None
    title: str = ""  # for people


class Stream(StreamReader):
    """The owner's handle of a stream, from `Stream.open_all`. Once lost to another owner, it stays lost."""

    def __init__(
        self,
        ownership: Ownership,
        nodes: StorageNodes,
        clock: CheckedClock,
        settings: StreamSettings,
        cold: ColdReader | None,
        fences: Fences,
        title: str,
    ) -> None:
        super().__init__(ownership, nodes, cold)
        self.title = title or ownership.name
        self.tenure = ownership.tenure
        self._clock = clock
        self._settings = settings
        self._state: State = Opening(NodeClosed("the stream is not open yet"))
        self._confirmed = NO_OFFSET
        self._stamp = 0  # the newest append time: it decreases only by a correction
        self._refused: Future[None] = asyncio.get_running_loop().create_future()  # done if a limit prevents opening
        self._ledgers = LedgerLifecycle(ownership, nodes, clock, settings, fences)
        self._sweeper = Sweeper(nodes, ownership, self._change, settings.retry.longest)
        self._task = self._start(self._open())  # opens the next ledger, or has opened the last one

    @classmethod
    async def take(
        cls,
        name: str,
        catalog: Catalog,
        nodes: StorageNodes,
        clock: Clock,
        randomness: Randomness,
        settings: StreamSettings,
        cold: ColdReader | None = None,
        title: str = "",
    ) -> Stream:
        """Becomes the owner of a stream without a topic, in place of any previous one; see `open_all`."""
        checked = checked_clock(clock)  # before anything is awaited, so that it notices a jump from now on
        tenure = await Tenure.take(name, Assignment("", randomness.bytes(8).hex()), catalog)
        return (await cls.open_all(tenure, nodes, checked, [StreamToOpen(name, settings, cold, title)]))[0]

    @classmethod
    async def open_all(
        cls, tenure: Tenure, nodes: StorageNodes, clock: CheckedClock, wanted: Sequence[StreamToOpen]
    ) -> list[Stream]:
        """Opens these streams of one topic: all of them, or none. Returns when they accept appends.

        If a limit of the metadata prevents that, a stream can still be read and trimmed, and appends raise the error.
        """
        records = await owned([each.name for each in wanted], tenure)
        fences = Fences(each.name for each in records if each.record.unsealed is not None)
        streams = [
            cls(record, nodes, clock, each.settings, each.cold, fences, each.title)
            for record, each in zip(records, wanted, strict=True)
        ]
        try:
            await asyncio.gather(*(stream._opened() for stream in streams))
        except BaseException:
            for stream in streams:
                await stream.close()
            raise
        return streams

    async def _opened(self) -> None:
        """Returns when the first attempts to open it have led to something, or raises the reason if they did not."""
        opening, refused = self._task, self._refused
        first = partial(asyncio.wait, {opening, refused}, return_when=asyncio.FIRST_COMPLETED)
        try:
            done, _ = await first(timeout=self._settings.take_seconds)
            if not done and isinstance(self._why_not, NodeClosed):  # it is slow, but nothing has gone wrong yet
                await first()
        except asyncio.CancelledError:
            await self._let_go(NodeClosed(f"{self.name} is closed"))  # the caller gets no stream: do not open it
            raise
        if opening.done():
            opening.result()
        if self.open or (refused.done() and not opening.done() and self.record.unsealed is None):
            return
        why = self._why_not
        await self._let_go(why)
        raise why

    @property
    def epoch(self) -> Epoch:
        return self._ownership.epoch

    @property
    def receipt(self) -> str:
        """The durability of a confirmed append: `fsynced`, `replicated:2`, `buffered`."""
        return self._settings.receipt

    @property
    def open(self) -> bool:
        """Whether it accepts appends. If not, it is unknown whether the last appends were stored."""
        return self._state.writer is not None or isinstance(self._state, Idle)

    @property
    def lost(self) -> bool:
        return isinstance(self._state, WithoutWriter) and isinstance(self._state.why, OwnershipLost)

    @property
    def confirmed(self) -> int:
        """The last visible offset; never decreases."""
        state = self._state
        writer = state.ending or state.writer
        if writer is not None and writer.confirmed >= writer.first:  # not the gap that may be before its first offset
            self._confirmed = max(self._confirmed, writer.confirmed)
        return self._confirmed

    @property
    def next_offset(self) -> int:
        """The offset of the next batch, unless the stream has to continue in a new ledger."""
        writer = self._state.writer
        return self.record.next_offset if writer is None else writer.next_offset

    @property
    def bytes(self) -> int:
        """The size of one copy, approximately."""
        return self.record.bytes + self.open_bytes

    @property
    def open_bytes(self) -> int:
        """The bytes that are not sealed."""
        return sum(writer.bytes for writer in (self._state.ending, self._state.writer) if writer is not None)

    # -- writing -----------------------------------------------------------------------------------------------------

    def append(self, batch: Batch) -> tuple[Batch, Future[None]]:
        """The batch with its offsets, and a future of its confirmation. Raises the reason if that is not possible."""
        writer = self._state.writer or self._wake_up()
        self._stamp = max(self._stamp, self._clock.append_time())
        appended = writer.append(batch, self._stamp)
        if writer.bytes >= self._settings.ledger_bytes:
            self.roll()
        return appended

    async def ready(self) -> None:
        """Returns when the stream accepts appends; raises the reason if it is lost or closed."""
        while not self.open:
            if isinstance(self._state, TakenOver | Closed):
                raise self._state.why
            if self._task.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([self._task])

    def roll(self) -> None:
        """Continues in a new ledger, so that the current one is sealed and can be trimmed."""
        state = self._state
        if isinstance(state, Open) and state.writer.next_offset > state.writer.first:
            self._roll(state.writer)

    def roll_if_old(self, helps: Callable[[LedgerWriter, float], bool]) -> None:
        """Rolls an old ledger, so that it can be deleted later, if `helps` returns true for its writer and its age."""
        state = self._state
        if not isinstance(state, Open) or state.writer.next_offset == state.writer.first:
            return
        age = self._clock.monotonic() - state.since
        if age >= self._settings.ledger_seconds and helps(state.writer, age):
            self._roll(state.writer)

    def roll_if_outlived(self, time: int, deletable_before: int | None) -> None:
        """Rolls the open ledger if it has messages from before `time` that may be deleted: only sealed ones can be."""
        writer = self._state.writer
        if writer is None or not 0 < writer.oldest < time:
            return
        if deletable_before is None or deletable_before > writer.first:
            self.roll()

    async def seal(self) -> None:
        """Seals everything appended so far, if nothing fails."""
        self.roll()
        await asyncio.wait([self._task])

    def ahead(self, now: int) -> bool:
        """Whether its append times are so far ahead of `now` that the clock must have been wrong."""
        return self._stamp > now + JUMP

    def correct_times(self, now: int) -> None:
        """If append times are ahead of `now`, which is right, continues in a new ledger with correct times."""
        if isinstance(self._state, Open) and self.ahead(now):
            log.warning("%s: append times were %d s ahead of the clock", self.name, (self._stamp - now) // SECOND)
            self._stamp = now
            self._roll(self._state.writer, now)

    # -- decisions about the record ----------------------------------------------------------------------------------

    async def decide(self, change: Change) -> StreamRecord:
        """Stores another decision of the owner; ledgers that no node needs any longer are deleted in the background."""
        decided = await self._change(change)
        self._sweeper.later(0.0)
        return decided

    async def give_up(self, lost: Sequence[LostRange]) -> None:
        """Makes readers skip these ranges from now on; durable on return."""
        await self.decide(lambda record: record.given_up(record.owner, lost))
        self._damaged.clear()
        for each in lost:
            which = f"offset {each.first}" if each.first == each.last else f"offsets {each.first} to {each.last}"
            log.error("%s: %s given up as damaged", self.title, which)

    async def trim(self, before: int) -> int:
        """Deletes the sealed ledgers that end below `before`; returns how many no node has any longer."""
        return await self._sweeper.trim(before)

    async def truncate(self, before: int) -> None:
        """Deletes everything below `before`: it can no longer be read, and nodes delete what they can at once."""
        await self._change(lambda record: record.truncated(record.owner, before))
        await self.seal()
        await self.trim(before)

    async def _change(self, change: Change) -> StreamRecord:
        try:
            return await self._ownership.change(change)
        except OwnershipLost as error:
            self._lose(error)
            raise

    # -- from state to state -----------------------------------------------------------------------------------------

    def _enter(self, state: State) -> None:
        """The one place where the state changes. Writers that the new state does not need are abandoned."""
        left = self._state
        assert type(state) in NEXT[type(left)], f"{left} may not become {state}"
        _ = self.confirmed  # remembers what the remaining writers have confirmed
        self._state = state
        if isinstance(state, WithoutWriter):
            for writer in (left.ending, left.writer):
                if writer is not None and writer is not state.ending and writer.failure is None:
                    writer.abandon(state.why)

    @property
    def _why_not(self) -> DanubeError:
        """Why the stream has no writer; only in a state without one."""
        assert isinstance(self._state, WithoutWriter)
        return self._state.why

    def lose(self, why: OwnershipLost) -> None:
        """Called when the topic is known to belong to another owner."""
        if not isinstance(self._state, TakenOver | Closed):
            self._task.cancel()  # a ledger that is being opened would never take an append
            self._lose(why)

    def _lose(self, error: OwnershipLost) -> None:
        log.warning("%s: %s", self.name, error)
        self._enter(Closed(error) if isinstance(self._state, Closed) else TakenOver(error))

    def _failed(self, error: DanubeError) -> None:
        """A ledger can no longer be written: continue in a new one."""
        if isinstance(self._state, Open | Beginning):
            log.warning("%s continues in a new ledger: %s", self.name, error)
            self._enter(Opening(error))
            self._go_on()

    def _go_on(self) -> None:
        """Opens the stream again if it failed, but not twice at once. Called when a writer fails or a task ends."""
        if isinstance(self._state, Opening) and self._task.done():
            self._task = self._start(self._open())

    def _start(self, work: Coroutine[object, object, None]) -> Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._go_on())
        return task

    async def _open(self) -> None:
        """Recovers the ledger that was left open and opens a new one; retries until another owner takes over."""
        for pause in self._settings.retry:
            try:
                async with self._ownership.changing:
                    if not isinstance(self._state, Opening):
                        return  # the stream was lost during this
                    if self.record.unsealed is not None:
                        await self._ledgers.recover(self._stamp)
                    self._sweeper.later(0.0)  # ledgers that are still to be deleted, or that turned out to be empty
                    self._confirmed = max(self._confirmed, self.record.end)
                    self._stamp = max(self._stamp, self.record.newest)
                    if self._settings.lazy:
                        return self._enter(Idle(self._why_not))
                    writer = self._ledgers.writer(self.record.next_offset, self._failed)
                    made = await self._ledgers.make(writer)
                return self._enter(Open(writer, made))
            except OwnershipLost as error:
                return self._lose(error)
            except DanubeError as error:
                if isinstance(error, TooManyLedgers) and self.record.unsealed is None:
                    return self._enter(Idle(error))  # the stream can be read and trimmed; the next append tries again
                self._enter(Opening(error))
                if isinstance(error, REFUSED) and not self._refused.done():
                    self._refused.set_result(None)
                log.warning("%s does not accept appends yet: %s", self.name, error)
                await asyncio.sleep(pause)  # longer each time: an attempt takes some of the last space on a full disk

    def _wake_up(self) -> LedgerWriter:
        """The writer for the first append of an idle stream, which holds it back until the ledger is made."""
        if not isinstance(self._state, Idle):
            raise self._why_not
        if isinstance(self._state.why, TooManyLedgers):
            self._ledgers.choose_nodes()  # raises again if there are still too many, before anything is changed
        return self._begin(Beginning(self._ledgers.writer(self.record.next_offset, self._failed)))

    def _roll(self, full: LedgerWriter, correction: int | None = None) -> None:
        self._begin(Beginning(self._ledgers.writer(full.next_offset, self._failed), full, correction))

    def _begin(self, beginning: Beginning) -> LedgerWriter:
        self._enter(beginning)
        self._task = self._start(self._begin_ledger(beginning))
        return beginning.writer

    async def _begin_ledger(self, beginning: Beginning) -> None:
        """Seals the previous ledger, if there is one, and creates the next one. If that fails, recovers."""
        ending, writer = beginning.ending, beginning.writer
        try:
            async with self._ownership.changing:
                if ending is not None:
                    last = await ending.finish()
                    await self._ledgers.seal(ending, last, beginning.correction)
                made = await self._ledgers.make(writer)
        except OwnershipLost as error:
            self._lose(error)
        except DanubeError as error:
            if self._state is beginning:  # otherwise a writer has already failed, and the state has its error
                self._enter(Opening(error))
            await self._open()
        else:
            if ending is not None:
                self._confirmed = max(self._confirmed, last)
                self._ledgers.tell_nodes(ending.record, last)
            if self._state is beginning:  # its writer may have failed at once
                self._enter(Open(writer, made))

    # -- closing -----------------------------------------------------------------------------------------------------

    async def close(self, *, seal: bool = True) -> None:
        """Accepts no more appends, waits for those in progress, and seals the ledger unless there is no time for it.

        If that fails, the next owner recovers the ledger.
        """
        state = self._state
        if isinstance(state, Closed):
            return
        writer = state.writer if isinstance(state, Open) else state.ending
        await self._let_go(self._why_not if self.lost else NodeClosed(f"{self.name} is closed"), writer)
        if writer is None:
            return
        try:
            last = await writer.finish()
            self._confirmed = max(self._confirmed, last)
            if seal:
                await self._ledgers.seal(writer, last)
                self._ledgers.tell_nodes(writer.record, last)
                if last < writer.first:
                    await self._sweeper.sweep()
        except DanubeError as error:
            log.warning("%s was left open, to be recovered by its next owner: %s", self.name, error)
        self._enter(Closed(self._why_not))

    async def _let_go(self, why: DanubeError, ending: LedgerWriter | None = None) -> None:
        """Ends all background work of this owner, except for the `ending` ledger's last appends."""
        opening = None if self._task.done() else self._task
        if opening is not None:
            opening.cancel()
        self._enter(Closed(why, ending))
        await self._sweeper.stop()
        if opening is not None:
            await asyncio.gather(opening, return_exceptions=True)
