"""Exactly-once writes: rows are staged in a hidden topic, decided in the metadata, and rolled forward.

The decision is made durable first. It names what was staged and no offsets: the owner of each partition decides where
the rows go and shows them when all of them are written (`broker/commit/participant.py`). This module decides, asks the
owners until every part is filled, also after a crash, and records that it is done. Nothing is reserved meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action, Authorise, sink_resource
from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    MetadataBusy,
    MetadataConflict,
    MetadataFull,
    MetadataInvalid,
    RequestInvalid,
    SinkBlocked,
    SinkExpired,
    TooManySinks,
    TopicBusy,
    TopicExists,
    TopicNotFound,
)
from pydanube.base.limits import (
    MIB,
    SINK_BLOCKED_SECONDS,
    SINK_TEXT_BYTES_MAX,
    SINKS_MAX,
    STAGED_SECONDS,
)
from pydanube.base.names import TopicName, parse_topic
from pydanube.base.retry import Backoff
from pydanube.broker.commit.participant import OwnPartitions, Participant, PartOfBatch
from pydanube.broker.commit.records import SinkRecords, outlived
from pydanube.broker.commit.rows import admit, slow_down
from pydanube.broker.directory.directory import SYSTEM_NAMESPACE, Directory
from pydanube.broker.serving.lifecycle import Lifecycle
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.errands import Errands
from pydanube.broker.work.named_locks import NamedLocks
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.futures import cancel_all, settle
from pydanube.storage.guard import Guard
from pydanube.topic.sink_inputs import bounded
from pydanube.topic.sinks import Once, Part, Ref, SinkKey, SinkRecord, SinkRequest, Verdict, judge, read_decision

log = logging.getLogger(__name__)
STAGING = "sink-"
TIDY_SECONDS = 600.0
RETRY = Backoff(0.1, 5.0)
REFUSED = (MetadataBusy, MetadataFull, MetadataInvalid)  # the store has written nothing
LOST = (RequestInvalid, SinkExpired, TopicNotFound)  # the staged rows are lost for good
STAGING_A_TURN = 50  # topics examined before other tasks of the loop get their turns
STAGED_BYTES_MAX = 64 * MIB  # of committed rows, before the staging topic is truncated


class Sinks:
    """Owned by the broker's loop."""

    def __init__(
        self,
        topics: OpenTopics,
        lifecycle: Lifecycle,
        directory: Directory,
        errands: Errands,
        clock: CheckedClock,
        authorise: Authorise,
    ) -> None:
        self._topics = topics
        self._lifecycle = lifecycle
        self._directory = directory
        self._errands = errands
        self._clock = clock
        self._authorise = authorise
        self._records = SinkRecords(directory.store)
        self.own = OwnPartitions(topics, self._records)
        self._participant: Participant = self.own
        self.staged_bytes_max = STAGED_BYTES_MAX
        self._turns = NamedLocks()  # one commit at a time for each writer, by digest
        self.guard = Guard("tidying up after jobs")
        self._tidying: Task[None] | None = None
        self._rolling: dict[str, Task[None]] = {}
        self._coming: dict[str, None] = {}  # writers that were admitted but are not recorded yet, by digest
        self._undone: dict[str, SinkRecord] = {}  # decided but not committed, by digest
        self._unstored: dict[str, int] = {}  # decisions that may not be durable yet, with the version that they replace
        self._filled: dict[str, Future[None]] = {}  # done when all of their rows are visible
        self._held: dict[str, Topic] = {}  # their staging topics, if these are open
        self._failing: dict[str, dict[str, float]] = {}  # since when nothing could be written, by partition
        self._blocked: dict[str, SinkBlocked] = {}  # those that need an operator, and why
        self._unwritten: dict[str, float] = {}  # writers that began but staged nothing, and since when
        self._given_up: dict[str, int] = {}  # blocked batches to abandon, and how many operators wait for it
        for record in self._records.listed():
            if not record.committed:
                self._note(record.key.digest, record)

    # -- for writers ---------------------------------------------------------------------------------------------------

    async def begin(self, key: SinkKey) -> tuple[str, SinkRecord | None]:
        """Where the writer stages its rows, and the last batch that it committed."""
        name = staging_topic(key)
        self._unwritten.pop(key.digest, None)
        with suppress(TopicExists):
            await self._lifecycle.create_topic(
                SYSTEM, name, durability=Durability.FSYNC, policies={"retention_seconds": STAGED_SECONDS}
            )
        return name, self._records.load(key)[0]

    async def commit(self, principal: Principal, key: SinkKey, request: SinkRequest) -> Verdict:
        """Returns when the rows are written and visible. Once decided, this happens even without the caller."""
        if len(request.run) > SINK_TEXT_BYTES_MAX:
            raise RequestInvalid(f"the name of a run may have at most {SINK_TEXT_BYTES_MAX} characters")
        request = request._replace(source=bounded(request.source))
        async with self._turns.of(key.digest):
            await self._finish(key.digest)
            record, version = self._records.load(key)
            topic = await self._topic_of(key)
            if record is not None and outlived(record, topic):
                record = None
            if not version:
                await self._make_room(key.digest)
            others = () if record is not None else self._records.others(key, topic)
            try:
                verdict = judge(record, request, others, query=key.query)
                if verdict is Verdict.NEW:
                    targets = await self._decide(principal, key, request, version)
            finally:  # it was refused, or decided and will be recorded
                self._coming.pop(key.digest, None)
            if verdict is Verdict.NEW:
                await self._fill(key.digest)
                await slow_down(targets)
            elif record is not None and (repeated := record.repeated(request)) != record:
                repeated = replace(repeated, time=self._clock.wall())
                await self._records.keep(
                    repeated, version
                )  # before the answer: a second, different write is a conflict
            return verdict

    async def forget(self, principal: Principal, key: SinkKey, *, abandon: bool = False) -> None:
        """Forgets a writer that an operator says will not come back, or may start over.

        With `abandon`, a blocked batch is given up: its rows that were written become visible, the others are lost. If
        the operator disconnects before everything decided is written, nothing is forgotten, because the job may have
        written again by then.
        """
        digest = key.digest
        async with AsyncExitStack() as turn:
            if abandon and digest in self._blocked:
                turn.enter_context(self._giving_up(digest))
            await turn.enter_async_context(self._turns.of(digest))
            try:
                await self._finish(digest)
            except SinkBlocked:
                if digest not in self._given_up:
                    raise
            self._authorise(principal, Action.SINK_FORGET, sink_resource(key.target))  # it may have waited for long
            await self._errands.run_holding(turn, partial(self._drop, key))

    @contextmanager
    def _giving_up(self, digest: str) -> Iterator[None]:
        """Marks the batch as given up while the operator waits, and tells callers that wait for it."""
        self._given_up[digest] = self._given_up.get(digest, 0) + 1
        try:
            yield
        finally:
            self._given_up[digest] -= 1
            if not self._given_up[digest]:
                del self._given_up[digest]

    async def _drop(self, key: SinkKey) -> None:
        record, version = self._records.load(key)
        if record is not None:
            await self._records.drop(record, version)
        if key.digest in self._undone:
            self._release(key.digest)

    def blocked(self, key: SinkKey) -> SinkBlocked | None:
        """Why the last batch of the writer cannot be written, if it needs an operator."""
        return self._blocked.get(key.digest)

    def is_written(self, record: SinkRecord) -> bool:
        """Whether all rows of the batch are visible: its caller may know that before it is recorded."""
        return record.committed or (record.key.digest in self._filled and self._filled[record.key.digest].done())

    def check_deletable(self, topic: TopicName) -> None:
        """Raises if rows staged in this topic are decided but not written to their target yet."""
        if any(staging_topic(record.key) == str(topic) for record in self._undone.values()):
            raise TopicBusy(f"{topic} is locked while rows committed by a job are being written")

    @property
    def blocked_writers(self) -> int:
        """How many writers have a last batch that cannot be written without an operator."""
        return len(self._blocked)

    def listed(self, after: str = "", limit: int | None = None) -> list[SinkRecord]:
        """The records in the order of the digests of their keys, from the one after `after` on."""
        return self._records.listed(after, limit)

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, principal: Principal, key: SinkKey, request: SinkRequest, version: int) -> list[OpenTopic]:
        """Decides the batch; from then on it is completed without the caller. Returns where the rows go."""
        staged = await self._staged(key)
        refs = await self._decision(staged, request)
        self._authorise(principal, Action.SINK_WRITE, sink_resource(key.target))  # it may have waited for long
        for name in map(parse_topic, refs):
            if name.namespace == SYSTEM_NAMESPACE:
                raise RequestInvalid(
                    f"{name}: the namespace {SYSTEM_NAMESPACE} belongs to the broker; jobs cannot write to it"
                )
            self._topics.ask(principal, Action.TOPIC_PUBLISH, name)  # for all, before anything is created or reserved
            if self._directory.find(name) is None:
                self._topics.ask(principal, Action.TOPIC_CREATE, name)
        parts: list[Part] = []
        targets: list[OpenTopic] = []
        for partition in sorted(refs):
            opened = await self._topics.open(principal, Action.TOPIC_PUBLISH, partition, create=True, reliable=True)
            await self._topics.counted(opened.name.namespace)
            await admit(opened, staged, refs[partition])
            targets.append(opened)
            parts.append(Part(str(opened.name), opened.record.id, sum(ref.rows for ref in refs[partition])))
        target = await self._topic_of(key)
        self._note(key.digest, SinkRecord(key, *request, parts=tuple(parts), topic=target, time=self._clock.wall()))
        self._unstored[key.digest] = version
        self._hold_staged(key.digest, staged)
        return targets

    def _note(self, digest: str, decided: SinkRecord) -> None:
        self._undone[digest] = decided
        self._filled[digest] = asyncio.get_running_loop().create_future()

    async def _store_decision(self, digest: str, record: SinkRecord) -> None:
        """Returns when the decision is durable; raises when it is certain that it never will be.

        After a failure, it may turn out to be durable at the next start. Until that is known, the writer has to wait.
        """
        pauses, unsure = iter(RETRY), False
        while digest in self._unstored:
            try:
                await self._records.keep(record, self._unstored[digest])
                del self._unstored[digest]
            except DanubeError as error:
                if self._records.load(record.key)[0] == record:  # only the answer was lost
                    del self._unstored[digest]
                    return
                unsure = unsure or not isinstance(error, (*REFUSED, MetadataConflict))
                if isinstance(error, MetadataConflict) or not unsure:
                    self._release(digest)
                    raise
                log.warning("could not determine yet whether a write to %s was decided: %s", record.key.target, error)
                await asyncio.sleep(next(pauses))

    def _release(self, digest: str) -> None:
        """Ends a batch that is complete or abandoned. What is written of an abandoned one becomes visible."""
        for part in self._undone.pop(digest).parts:
            self._participant.release(part)
        del self._filled[digest]
        self._unstored.pop(digest, None)
        self._failing.pop(digest, None)
        self._blocked.pop(digest, None)
        if (staged := self._held.pop(digest, None)) is not None:
            staged.pinned = False

    def _hold_staged(self, digest: str, staged: Topic) -> None:
        """Keeps staged rows from being deleted by age until they are written."""
        staged.pinned = True
        self._held[digest] = staged

    async def _staged(self, key: SinkKey) -> Topic:
        return (await self._topics.open(SYSTEM, Action.TOPIC_READ, staging_topic(key), reliable=True)).reliable

    async def _decision(self, staged: Topic, request: SinkRequest) -> dict[str, list[Ref]]:
        if not staged.ledger.first <= request.decision < staged.ledger.confirmed_end:
            raise SinkExpired(f"the decision at offset {request.decision} of {staged.name} does not exist")
        batch = (await staged.ledger.read(request.decision))[0]
        found = [message for message in batch.messages() if message.offset == request.decision]
        refs = read_decision(found[0].payload if found else None)
        for each in (ref for parts in refs.values() for ref in parts):
            if not staged.ledger.first <= each.first <= each.last < staged.ledger.confirmed_end:
                raise SinkExpired(f"offsets {each.first} to {each.last} of {staged.name} do not exist")
        return {str(parse_topic(partition)): parts for partition, parts in refs.items()}

    # -- rolling forward -----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Called after a start: finishes decided batches in the background."""
        self._tidying = asyncio.get_running_loop().create_task(self._tidy_now_and_then())
        for digest in self._undone:
            self._roll(digest)

    def opened(self, name: TopicName, id: int, topic: Topic) -> None:
        """Called when a partition is opened: keeps what is staged there, and says why its part cannot be filled."""
        for digest, record in self._undone.items():
            if staging_topic(record.key) == str(name):
                self._hold_staged(digest, topic)
        topic.filler.release(self._records.is_open)
        if (filling := topic.filler.open) is not None:
            topic.filler.hold_up(filling, self._blocked.get(filling.sink.hex()))

    def _roll(self, digest: str) -> Task[None]:
        task = self._rolling.get(digest)
        if task is None or task.done():
            task = self._rolling[digest] = asyncio.get_running_loop().create_task(self._roll_forward(digest))
            task.add_done_callback(partial(self._rolled, digest))
        return task

    def _rolled(self, digest: str, task: Task[None]) -> None:
        if self._rolling.get(digest) is task:
            del self._rolling[digest]
        error = (
            None if task.cancelled() else task.exception()
        )  # marks it as retrieved: callers that wait have it, and the next caller tries again
        if error is not None and not isinstance(error, DanubeError):
            message = "a decided write failed unexpectedly; it resumes when the batch is sent again"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def _finish(self, digest: str) -> None:
        """Returns when the last batch that was decided is written, and that is recorded."""
        if digest in self._undone:
            await asyncio.shield(self._roll(digest))

    async def _fill(self, digest: str) -> None:
        """Returns when the rows of the batch that was just decided are visible. That is as sure as a record of it: the
        owners of its partitions know."""
        filled, rolling = self._filled[digest], self._roll(digest)
        await asyncio.wait((filled, rolling), return_when=asyncio.FIRST_COMPLETED)
        if not filled.done():
            await asyncio.shield(rolling)

    async def _roll_forward(self, digest: str) -> None:
        """Writes the rows until all are written; raises only errors that waiting cannot mend.

        If the next batch is decided while it cleans up after one, it writes that too.
        """
        while digest in self._undone:
            record = self._undone[digest]
            await self._store_decision(digest, record)
            await self._fill_parts(record)
            settle(self._filled[digest], None)
            await self._conclude(digest, record)
            await self._clear(record)

    async def _fill_parts(self, record: SinkRecord) -> None:
        digest, version = record.key.digest, self._records.load(record.key)[1]
        parts = [PartOfBatch(digest, version, part) for part in record.parts]
        missing = [part for part in parts if not await self._participant.is_filled(part)]
        if not missing:
            return  # what was staged may be gone
        refs = await self._decided(record)
        fills = (self._fill_part(record, part, refs[part.part.partition]) for part in missing)
        for failure in await asyncio.gather(*fills, return_exceptions=True):  # waits for all, so none keeps running
            if isinstance(failure, BaseException):
                raise failure

    async def _decided(self, record: SinkRecord) -> dict[str, list[Ref]]:
        """The refs of everything that was staged for the batch."""
        pauses = iter(RETRY)
        request = SinkRequest(record.once, record.run, record.batch, record.source, record.decision)
        while True:
            try:
                refs = await self._decision(await self._staged(record.key), request)
                self._go_on(record.key.digest)
                return refs
            except DanubeError as error:
                log.warning("a decided write to %s is waiting: %s", record.key.target, error)
                self._fail(record, error, for_good=isinstance(error, LOST))
            await asyncio.sleep(next(pauses))

    def _fail(self, record: SinkRecord, error: DanubeError, partition: str = "", *, for_good: bool = False) -> None:
        """Notes a failure, which is retried as long as that may help. If nothing could be written to the partition for
        some time, the batch counts as blocked, and callers that it holds up are told why."""
        digest, now = record.key.digest, asyncio.get_running_loop().time()
        since = self._failing.setdefault(digest, {}).setdefault(partition, now)
        if for_good or now - since >= SINK_BLOCKED_SECONDS:
            what = f"batch {record.batch} of query {record.key.query} to {record.key.target} is decided"
            blocked = self._blocked[digest] = SinkBlocked(f"{what} but cannot be written: {error}")
            self._hold_up(record, blocked)
            if for_good or digest in self._given_up:
                raise blocked from error

    def _go_on(self, digest: str, partition: str = "") -> None:
        """Notes that writing to the partition works again. When no partition fails any longer, the batch is not
        blocked."""
        failing = self._failing.get(digest, {})
        if failing.pop(partition, None) is not None and not failing and self._blocked.pop(digest, None) is not None:
            self._hold_up(self._undone[digest], None)

    def _hold_up(self, record: SinkRecord, why: SinkBlocked | None) -> None:
        version = self._records.load(record.key)[1]
        for part in record.parts:
            self._participant.hold_up(PartOfBatch(record.key.digest, version, part), why)

    async def _conclude(self, digest: str, record: SinkRecord) -> None:
        """Durably records that all rows are written. Until then, their partitions remember that they are."""
        for pause in RETRY:
            current, version = self._records.load(record.key)
            if current != record:
                break  # it is recorded, and only the answer was lost
            try:
                if record.once is Once.PLAIN:
                    await self._records.drop(record, version)
                else:
                    await self._records.keep(record.finished(), version)
                break
            except DanubeError as error:
                log.warning("a write to %s is done but not recorded yet: %s", record.key.target, error)
            await asyncio.sleep(pause)
        self._release(digest)

    async def _fill_part(self, record: SinkRecord, part: PartOfBatch, refs: list[Ref]) -> None:
        """Retries until all rows are written, or the topic is deleted."""
        partition = part.part.partition
        go_on = partial(self._go_on, part.sink, partition)
        for pause in RETRY:
            try:
                await self._participant.fill(part, staging_topic(record.key), refs, go_on)
                return go_on()
            except TopicNotFound:
                return log.warning("%s was deleted; %d decided rows for it are lost", partition, part.part.rows)
            except DanubeError as error:
                log.warning("%s: not all decided rows are written yet: %s", partition, error)
                self._fail(record, error, partition, for_good=isinstance(error, SinkExpired))
            await asyncio.sleep(pause)

    async def _clear(self, record: SinkRecord) -> None:
        """Deletes staged rows that are committed. A failure is not worth a warning, because they expire anyway."""
        try:
            if record.once is Once.PLAIN:
                await self._lifecycle.delete_topic(SYSTEM, staging_topic(record.key))
                return
            staged = await self._staged(record.key)
            if staged.ledger.stream.bytes > self.staged_bytes_max:
                await staged.truncate(record.decision + 1)
        except DanubeError as error:
            log.debug("what was staged for %s is not deleted yet: %s", record.key.target, error)

    async def _tidy_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await self.guard.over(self.tidy())

    async def _make_room(self, digest: str) -> None:
        """Makes room for one more writer and counts it at once, so that concurrent calls cannot exceed the limit."""
        self._coming[digest] = None
        try:
            if not self._records.has_room(self._unrecorded()):
                await self._forget_old()
            if not self._records.has_room(self._unrecorded()):
                raise TooManySinks(f"{SINKS_MAX} writers are tracked already, and each was active recently")
        except BaseException:
            del self._coming[digest]
            raise

    def _unrecorded(self) -> int:
        """How many writers will have a record but have none yet."""
        decided = (digest for digest in self._unstored if not self._records.version(digest))
        return len({*self._coming, *decided})

    async def _forget_old(self) -> None:
        """Forgets writers that have been inactive for long. If one repeats a batch after that, it is written again."""
        clock = self._clock
        if not clock.trusted():
            return
        for record in self._records.overdue(clock.wall(), max(1, self._unrecorded())):
            if record.key.digest in self._turns:
                continue  # it has just become active, and may be waiting for this
            async with self._turns.of(record.key.digest):
                current, version = self._records.load(record.key)
                if current == record:
                    await self._records.drop(record, version)

    async def tidy(self) -> None:
        """Deletes old records, and staging topics of writes that were never decided: everything staged has expired, or
        nothing was staged for as long. That time starts over when the broker starts."""
        with suppress(DanubeError):
            await self._forget_old()
        staging = set[str]()
        async for digest in self._staging():
            staging.add(digest)
            with suppress(DanubeError):
                await self._tidy_staged(digest)
        self._unwritten = {each: since for each, since in self._unwritten.items() if each in staging}

    async def _staging(self) -> AsyncIterator[str]:
        """The digests of all writers that have a staging topic, open or not."""
        after = f"/{SYSTEM_NAMESPACE}/{STAGING}"
        while page := self._directory.topics(SYSTEM_NAMESPACE, after, STAGING_A_TURN):
            for record in page:
                if record.name.name.startswith(STAGING):
                    yield record.name.name.removeprefix(STAGING)
            after = str(page[-1].name)
            await asyncio.sleep(0)  # lets other tasks run

    async def _tidy_staged(self, digest: str) -> None:
        if self._records.version(digest) or digest in self._undone or digest in self._turns:
            return
        name, now = f"/{SYSTEM_NAMESPACE}/{STAGING}{digest}", self._clock.monotonic()
        opened = await self._topics.open(SYSTEM, Action.TOPIC_SERVE, name)
        ledger = opened.reliable.ledger
        if opened.producers:
            self._unwritten.pop(digest, None)
        elif not ledger.confirmed_end:
            if now - self._unwritten.setdefault(digest, now) >= STAGED_SECONDS:
                await self._lifecycle.delete_topic(SYSTEM, name)
        elif ledger.confirmed_end <= ledger.first:
            await self._lifecycle.delete_topic(SYSTEM, name)

    async def close(self) -> None:
        await cancel_all([self._tidying, *self._rolling.values()])

    async def _topic_of(self, key: SinkKey) -> int | None:
        """The id of the target, if it is a single topic and exists."""
        try:
            return (await self._topics.lookup(SYSTEM, Action.TOPIC_LOOKUP, key.target)).id
        except DanubeError:
            return None


def staging_topic(key: SinkKey) -> str:
    return f"/{SYSTEM_NAMESPACE}/{STAGING}{key.digest}"
