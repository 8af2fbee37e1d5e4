"""A topic's stream on storage nodes: one open ledger after the other, read back as one. It goes on by itself.

Taking a stream means taking a new epoch in the catalogue, recovering the ledger that was left open, and opening a new
one. After a lost quorum, a full disk or a fencing it does the same again, until it works or somebody else owns the
stream. Readers see only what is confirmed.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    CatalogConflict,
    DanubeError,
    MetadataBusy,
    MetadataFull,
    MetadataInvalid,
    NodeClosed,
    OwnershipLost,
    TooManyLedgers,
)
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.base.limits import LEDGERS_LISTED_MAX, LEDGERS_SWEPT_MAX, MIB, SECOND, STREAM_TAKE_SECONDS
from pydanube.base.retry import Backoff
from pydanube.ports.catalog import Catalog
from pydanube.ports.clock import Clock
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.stream.cold import ColdReader
from pydanube.storage.stream.reading import Reading
from pydanube.storage.stream.recovery import recover_ledger
from pydanube.storage.stream.sweeper import Sweeper
from pydanube.storage.stream.writer import LedgerWriter, looked_at
from pydanube.storage.watched_clock import watched
from pydanube.stream.record import Copies, LedgerRecord, Lost, Phase, StreamRecord, new_ledger
from pydanube.stream.retention import LedgerInfo
from pydanube.stream.times import JUMP
from pydanube.wire.batch import Batch

log = logging.getLogger(__name__)
RETRY_TIMES_MAX = 10  # the longest pause between attempts, in first pauses
REFUSED = (MetadataFull, MetadataInvalid)  # a limit was met: nothing happened, and to ask again at once does not help


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Per topic."""

    copies: Copies = field(default_factory=Copies)
    durability: Durability = Durability.FSYNC
    ledger_bytes: int = 256 * MIB  # a ledger is sealed and followed by a new one beyond this
    ledger_seconds: float = 4 * 3600.0  # and when it is older than this, if `roll_if_old` is called now and then
    lazy: bool = False  # the first ledger of an owner is made for the first append, not before
    reserve: bool = False  # it may have the last ledgers of a node, which are not for messages
    retry_seconds: float = 0.2
    ledgers_listed: int = LEDGERS_LISTED_MAX  # in the record; the simulator sets few, so that pages come soon
    take_seconds: float = STREAM_TAKE_SECONDS  # then whoever wants it hears why it cannot be had, and may try again


class Stream(Reading):
    """One owner's hold on a stream. `Stream.take` makes it; when it is lost, it stays lost."""

    def __init__(
        self,
        name: str,
        catalog: Catalog,
        nodes: StorageNodes,
        clock: Clock,
        token: str,
        settings: StreamSettings,
        cold: ColdReader | None,
    ) -> None:
        super().__init__(name, nodes, cold)
        self._catalog = catalog
        self._clock = watched(clock)
        self._token = token
        self._settings = settings
        self._version = 0
        self._writer: LedgerWriter | None = None
        self._finishing: LedgerWriter | None = None  # the ledger before, while the stream rolls
        self._idle = False  # recovered, and without a ledger so far: it is lazy, or the nodes have too many
        self._begun = 0.0  # when the open ledger was made, on the monotonic clock
        self._confirmed = NO_OFFSET
        self._why_not: DanubeError = NodeClosed("the stream is not open yet")
        self._opening: Task[None] | None = None
        self._refused: Future[None] = (
            asyncio.get_running_loop().create_future()
        )  # done once a limit kept it from opening
        self._stamp = 0  # the newest append time: they never fall, unless they are corrected
        self._correction: int | None = None  # the time that is right, while the stream rolls for it
        self._closed = False
        self._changing = asyncio.Lock()  # one decision about the record at a time
        self._retry = Backoff(settings.retry_seconds, RETRY_TIMES_MAX * settings.retry_seconds)
        self._sweeper = Sweeper(nodes, lambda: self._record, self._forget, self._retry.longest)

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
        """Becomes the owner, whoever was it before; returns when the stream can be appended to.

        If a limit of the metadata keeps it from that, it can still be read and trimmed: appends say why not.
        """
        stream = cls(name, catalog, nodes, clock, randomness.bytes(8).hex(), settings, cold)
        stream.title = title or name
        stream._record, stream._version = await catalog.load(name)
        await stream._store(stream._record.taken_over(stream._token))
        opening = stream._start(stream._open())
        try:
            waited = {opening, stream._refused}
            await asyncio.wait(waited, timeout=settings.take_seconds, return_when=asyncio.FIRST_COMPLETED)
            if not stream._refused.done() and isinstance(stream._why_not, NodeClosed):
                await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)  # slow, and nothing has gone wrong yet
        except asyncio.CancelledError:
            stream._closed = True  # nobody will have it, so nobody must open it
            await stream._give_up_opening()
            raise
        if opening.done():
            opening.result()
        if stream.open or (stream._refused.done() and not opening.done() and stream._record.unsealed is None):
            return stream
        stream._closed = True
        await stream._give_up_opening()
        raise stream._why_not

    # -- writing -----------------------------------------------------------------------------------------------------

    @property
    def epoch(self) -> Epoch:
        return self._record.owner

    @property
    def lost(self) -> bool:
        return isinstance(self._why_not, OwnershipLost)

    @property
    def receipt(self) -> str:
        """What is true of a confirmed append of this stream: `fsynced`, `replicated:2`, `buffered`."""
        settings = self._settings
        if settings.copies.replicas > 1 and settings.durability is Durability.FSYNC:
            return f"replicated:{settings.copies.ack}"
        return settings.durability.value

    def append(self, batch: Batch) -> tuple[Batch, Future[None]]:
        """The batch with its offsets, and a future of its confirmation. Raises why not if the stream cannot take it."""
        writer = self._writer or self._wake_up()
        if writer is None:
            raise self._why_not  # not open, lost or closed
        self._stamp = max(self._stamp, self._clock.believed())
        appended = writer.append(batch, self._stamp)
        full = writer.bytes >= self._settings.ledger_bytes
        if full and self._finishing is None and writer is self._writer:  # it may have failed at once
            self._roll(writer)
        return appended

    async def ready(self) -> None:
        """Returns when the stream can be appended to; raises why not if it is lost or closed."""
        while not self.open:
            if self._closed or self.lost:
                raise self._why_not
            if self._opening is None or self._opening.done():
                await asyncio.sleep(0)
            else:
                await asyncio.wait([self._opening])

    @property
    def open(self) -> bool:
        """Whether it can be appended to; if not, what was appended may still be there or not."""
        return self._writer is not None or self._idle

    def roll_if_old(self, helps: Callable[[LedgerWriter, float], bool]) -> None:
        """So that an idle stream's last ledger can age and go, if that `helps`: asked of it and its age in seconds."""
        writer = self._writer
        if writer is None or self._finishing is not None or writer.next_offset == writer.first:
            return
        age = self._clock.monotonic() - self._begun
        if age >= self._settings.ledger_seconds and helps(writer, age):
            self._roll(writer)

    def roll(self) -> None:
        """What follows goes to a new ledger, so that the one before can be trimmed."""
        writer = self._writer
        if writer is not None and self._finishing is None and writer.next_offset > writer.first:
            self._roll(writer)

    def ahead(self, now: int) -> bool:
        """Whether its append times are ahead of the clock, by more than a clock that is kept right differs."""
        return self._stamp > now + JUMP

    def correct_times(self, now: int) -> None:
        """They are, and the clock is right: what follows goes to a new ledger, with right times."""
        writer = self._writer
        if writer is None or self._finishing is not None or not writer.begun or not self.ahead(now):
            return
        log.warning("%s: append times were %d s ahead of the clock", self.name, (self._stamp - now) // SECOND)
        self._correction = self._stamp = now
        self._roll(writer)

    async def seal(self) -> None:
        """All that is there now is sealed, if nothing fails."""
        self.roll()
        if self._opening is not None:
            await asyncio.wait([self._opening])

    def roll_if_outlived(self, time: int, deletable_before: int | None) -> None:
        """If the open ledger has something from before `time` that may go: ledgers go as a whole, and only sealed."""
        writer = self._writer
        if writer is None or not 0 < writer.oldest < time:
            return
        if deletable_before is None or deletable_before > writer.first:
            self.roll()

    @property
    def confirmed(self) -> int:
        """The last offset that anybody may see; never goes back."""
        writer = self._finishing or self._writer
        if writer is not None and writer.confirmed >= writer.first:  # not the gap that may lie before its first
            self._confirmed = max(self._confirmed, writer.confirmed)
        return self._confirmed

    @property
    def next_offset(self) -> int:
        """What the next batch gets, unless the stream has to continue in a new ledger."""
        return self._record.next_offset if self._writer is None else self._writer.next_offset

    @property
    def record(self) -> StreamRecord:
        """What the catalogue has, as far as this owner knows."""
        return self._record

    @property
    def sealed(self) -> tuple[LedgerInfo, ...]:
        """What will no longer change, oldest first."""
        return tuple(self._record.stretches())

    @property
    def first(self) -> int:
        """The first offset that is still there, or will be."""
        return self._record.first

    @property
    def bytes(self) -> int:
        """About how many one copy of it has."""
        return self._record.bytes + self.open_bytes

    @property
    def open_bytes(self) -> int:
        """Of what is not sealed."""
        return sum(writer.bytes for writer in (self._finishing, self._writer) if writer is not None)

    async def give_up(self, lost: Sequence[Lost]) -> None:
        """From now on readers pass over these; durable on return."""
        await self.decide(lambda record: record.given_up(record.owner, lost))
        self._damaged.clear()
        for each in lost:
            which = f"offset {each.first}" if each.first == each.last else f"offsets {each.first} to {each.last}"
            log.error("%s: %s given up as damaged", self.title, which)

    # -- trimming ----------------------------------------------------------------------------------------------------

    async def trim(self, before: int) -> int:
        """Deletes the sealed ledgers that end below `before`; says how many no node has any more.

        Where there are very many, the rest goes in the background. First it is durable that they are dead, then they
        are deleted, and last they are forgotten: after a crash in between, the next owner goes on.
        """
        async with self._changing:
            await self._decide(self._record.trimmed(self.epoch, before))
        swept = await self._sweeper.sweep()
        self._sweeper.later(0.0 if swept == LEDGERS_SWEPT_MAX else None)
        return swept

    async def truncate(self, before: int) -> None:
        """From now on nothing below `before` is there, for good; what can be deleted of it now is."""
        async with self._changing:
            await self._decide(self._record.truncated(self.epoch, before))
        await self.seal()
        await self.trim(before)

    async def decide(self, change: Callable[[StreamRecord], StreamRecord]) -> StreamRecord:
        """One more decision of the owner, of the record as it is then; what no node needs by it goes, in time."""
        async with self._changing:
            await self._decide(change(self._record))
            decided = self._record
        self._sweeper.later(0.0)
        return decided

    async def _decide(self, record: StreamRecord) -> None:
        """Unless it is decided already."""
        if record == self._record:
            return
        try:
            await self._store(record)
        except OwnershipLost as error:
            self._lose(error)
            raise

    async def _forget(self, deleted: list[LedgerId]) -> None:
        """No node has these ledgers any more."""
        async with self._changing:
            await self._decide(self._record.swept(self.epoch, deleted))

    def _tell_nodes(self, ledger: LedgerRecord, last: int) -> None:
        """The end that the catalogue has decided. Nobody waits for it: a node that misses it loses nothing."""
        if last >= ledger.first:
            for identity in ledger.nodes:
                self._nodes.get(identity).seal(ledger.id, self.epoch, last).add_done_callback(looked_at)

    # -- opening and going on ------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        """Recovers what was left open and opens a new ledger; repeatedly, unless somebody else has taken over."""
        pauses = iter(self._retry)
        while not self._closed:
            try:
                async with self._changing:
                    if self._record.unsealed is not None:
                        await self._recover()
                    self._sweeper.later(0.0)  # what nobody finished, or what was found to be empty
                    self._confirmed = max(self._confirmed, self._record.end)
                    self._stamp = max(self._stamp, self._record.newest)
                    if self._settings.lazy:
                        self._idle = True
                        return
                    writer = LedgerWriter(self.epoch, self._record.next_offset, self._nodes, self._failed)
                    await self._begin(writer)
                self._writer = writer
                return
            except OwnershipLost as error:
                self._lose(error)
                return
            except DanubeError as error:
                self._why_not = error
                if isinstance(error, TooManyLedgers) and self._record.unsealed is None:
                    self._idle = True  # it can be read and trimmed; the next append tries again
                    return
                if isinstance(error, REFUSED) and not self._refused.done():
                    self._refused.set_result(None)
                log.warning("%s does not accept appends yet: %s", self.name, error)
                await asyncio.sleep(next(pauses))  # each attempt costs a full disk some of its last room

    def _wake_up(self) -> LedgerWriter | None:
        """The first append of a lazy stream: it and those that follow wait for the ledger to be made."""
        if not self._idle or self._closed or self.lost or (self._opening is not None and not self._opening.done()):
            return None
        if isinstance(self._why_not, TooManyLedgers):  # raised here again, nothing has to be undone
            self._nodes.choose(self._settings.copies.replicas, reserve=self._settings.reserve)
        self._idle = False
        writer = self._writer = LedgerWriter(self.epoch, self._record.next_offset, self._nodes, self._failed)
        self._start(self._begin_idle(writer))
        return writer

    async def _begin_idle(self, writer: LedgerWriter) -> None:
        try:
            async with self._changing:
                await self._begin(writer)
        except OwnershipLost as error:
            self._lose(error)
        except DanubeError as error:
            self._stop_writing(error)
            await self._open()

    async def _recover(self) -> None:
        ledger = self._record.unsealed
        assert ledger is not None
        if ledger.epoch >= self.epoch and ledger.phase is Phase.OPEN:
            await self._store(self._record.taken_over(self._token))  # our own ledger failed: a new epoch fences it
        await self._store(self._record.recovering(self.epoch))  # each attempt: it also shows whether we still own it
        ending = await recover_ledger(ledger, self.epoch, self._nodes)
        newest = ending.newest or max(self._stamp, self._clock.wall())  # not known: rather too late than too early
        await self._store(
            self._record.sealed(
                self.epoch,
                ledger.id,
                ending.last,
                ending.next_offset,
                bytes=ending.bytes,
                newest=newest,
                unknown_from=ending.unknown_from,
            )
        )
        self._tell_nodes(ledger, ending.last)

    async def _begin(self, writer: LedgerWriter) -> None:
        """The ledger is durable in the catalogue before a node hears of it."""
        copies, durability = self._settings.copies, self._settings.durability
        nodes = tuple(self._nodes.choose(copies.replicas, reserve=self._settings.reserve))
        ledger_id = await self._next_ledger_id()
        ledger = new_ledger(ledger_id, self.epoch, self._record.next_offset, nodes, copies, durability)
        await self._store(self._record.opened(self.epoch, ledger, self._settings.ledgers_listed))
        self._begun = self._clock.monotonic()
        await writer.begin(ledger)

    async def _next_ledger_id(self) -> LedgerId:
        while True:
            try:
                return await self._catalog.next_ledger_id()
            except MetadataBusy:  # nothing has gone wrong that would end anything
                await asyncio.sleep(self._retry.first)

    def _failed(self, error: DanubeError) -> None:
        """A ledger can no longer be written: continue in a new one."""
        if self._closed or (self._writer is None and self._finishing is None):
            return
        log.warning("%s continues in a new ledger: %s", self.name, error)
        self._stop_writing(error)
        self._go_on()

    def _start(self, work: Coroutine[object, object, None]) -> Task[None]:
        self._opening = asyncio.get_running_loop().create_task(work)
        self._opening.add_done_callback(lambda _: self._go_on())
        return self._opening

    def _go_on(self) -> None:
        """Opens again what failed while nobody watched, never twice at once; called when an opening ends or fails."""
        if self._opening is not None and not self._opening.done():
            return
        if self._writer is None and not (self._idle or self._closed or self.lost):
            self._start(self._open())

    def _stop_writing(self, error: DanubeError) -> None:
        _ = self.confirmed
        self._why_not = error
        self._correction = None
        for writer in (self._finishing, self._writer):
            if writer is not None and writer.failure is None:
                writer.abandon(error)
        self._writer = self._finishing = None

    def _lose(self, error: OwnershipLost) -> None:
        log.warning("%s: %s", self.name, error)
        self._stop_writing(error)

    # -- rolling -----------------------------------------------------------------------------------------------------

    def _roll(self, full: LedgerWriter) -> None:
        """New batches go to a writer that holds them back until the full ledger is sealed."""
        if not full.begun:
            return  # the first of a lazy stream is still being made: it would wait for itself
        self._finishing = full
        self._writer = LedgerWriter(self.epoch, full.next_offset, self._nodes, self._failed)
        self._start(self._roll_over(full, self._writer))

    async def _roll_over(self, full: LedgerWriter, writer: LedgerWriter) -> None:
        """A clean end: all confirmed, sealed in the catalogue by the owner itself, no recovery."""
        try:
            async with self._changing:
                last = await full.finish()
                ended, correction = self._ended(full, last), self._correction
                if correction is not None and correction < ended.newest:
                    ended = ended.time_corrected(self.epoch, writer.first, correction)
                await self._store(ended)
                self._correction = None
                await self._begin(writer)
            self._confirmed = max(self._confirmed, last)
            self._finishing = None
            self._tell_nodes(full.record, last)
        except OwnershipLost as error:
            self._lose(error)
        except DanubeError as error:
            self._stop_writing(error)
            await self._open()

    def _ended(self, writer: LedgerWriter, last: int) -> StreamRecord:
        ends = (writer.record.id, last, writer.next_offset)
        return self._record.sealed(self.epoch, *ends, bytes=writer.bytes, newest=writer.newest)

    async def close(self, *, seal: bool = True) -> None:
        """Takes no more appends, waits for those under way, seals the ledger if there is time for it, and lets go.

        What is not finished now is left to whoever takes the stream next: recovery decides it.
        """
        if self._closed:
            return
        self._closed = True
        await self._sweeper.stop()
        await self._give_up_opening()
        writer = self._finishing or self._writer
        waiting = self._writer if self._finishing is not None else None
        self._finishing, self._writer = writer, None
        closed = NodeClosed(f"{self.name} is closed")
        if not self.lost:
            self._why_not = closed
        if waiting is not None:
            waiting.abandon(closed)
        if writer is not None and not writer.begun:
            writer.abandon(closed)
            writer = self._finishing = None
        if writer is None:
            return
        try:
            last = await writer.finish()
            self._confirmed = max(self._confirmed, last)
            if seal:
                await self._store(self._ended(writer, last))
                self._tell_nodes(writer.record, last)
                if last < writer.first:
                    await self._sweeper.sweep()
        except DanubeError as error:
            log.warning("%s was left open, to be recovered by its next owner: %s", self.name, error)
        self._finishing = None

    async def _give_up_opening(self) -> None:
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)

    # -- the catalogue -----------------------------------------------------------------------------------------------

    async def _store(self, record: StreamRecord) -> None:
        """Stores a decision for certain, or raises `OwnershipLost`: an answer that never came is asked for again.

        What the metadata has no room for is not: that error says all.
        """
        while True:
            try:
                self._version = await self._catalog.store(self.name, record, self._version, self._record)
                self._record = record
                return
            except REFUSED:
                raise
            except CatalogConflict:
                current, version = await self._load()
                if current.token != self._token and (record.token == self._token or current.owner >= record.owner):
                    raise OwnershipLost(f"epoch {current.owner} owns {self.name}, not {record.owner}") from None
                self._record, self._version = current, version
                if current != record:
                    raise  # an older decision of ours arrived late: decide again from it
                return
            except DanubeError as error:
                log.warning("%s: the catalogue did not answer: %s", self.name, error)
                await asyncio.sleep(self._retry.first)

    async def _load(self) -> tuple[StreamRecord, int]:
        while True:
            try:
                return await self._catalog.load(self.name)
            except DanubeError:
                await asyncio.sleep(self._retry.first)
