"""Writes that happen exactly once: rows are staged in a hidden topic, decided in the metadata, and rolled forward.

The decision comes first and is durable; then every partition gets its rows one behind the other. When all of them are
there, and it is durable that they are, they are shown, and with them what others have published between them: a
producer waits for a window of rows at most. What is there of a batch after a crash is told by numbers that its rows
have, behind the offset that the decision names; no other job writes to the partition meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action
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
    TopicClosed,
    TopicExists,
    TopicNotFound,
    TopicRecovering,
)
from pydanube.base.limits import (
    MIB,
    SINK_BLOCKED_SECONDS,
    SINK_TEXT_BYTES_MAX,
    SINK_WINDOW_BYTES,
    SINKS_MAX,
    STAGED_SECONDS,
)
from pydanube.base.names import TopicName, parse_topic
from pydanube.base.retry import Backoff
from pydanube.broker.commit.records import SinkRecords, outlived
from pydanube.broker.commit.rows import (
    admitted,
    begin_rows,
    certain,
    landed,
    numbered,
    rows_from,
    slow_down,
    staged_batches,
)
from pydanube.broker.directory.directory import SYSTEM_NAMESPACE, Directory
from pydanube.broker.serving.lifecycle import Lifecycle
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.errands import Errands
from pydanube.broker.work.named_locks import NamedLocks
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.guard import Guard
from pydanube.topic.sink_inputs import bounded
from pydanube.topic.sinks import (
    Once,
    Part,
    Ref,
    Request,
    SinkKey,
    SinkRecord,
    Verdict,
    judge,
    read_decision,
)

log = logging.getLogger(__name__)
STAGING = "sink-"
TIDY_SECONDS = 600.0
RETRY = Backoff(0.1, 5.0)
REFUSED = (MetadataBusy, MetadataFull, MetadataInvalid)  # the store has not begun to write
LOST = (RequestInvalid, SinkExpired, TopicNotFound)  # what was staged: no waiting brings it back
STAGING_A_TURN = 50  # topics looked at before others of the loop have their turn
STAGED_BYTES_MAX = 64 * MIB  # of what is committed, before the staging topic is cut


class Sinks:
    """Owned by the broker's loop."""

    def __init__(
        self, topics: OpenTopics, lifecycle: Lifecycle, directory: Directory, errands: Errands, clock: CheckedClock
    ) -> None:
        self._topics = topics
        self._lifecycle = lifecycle
        self._directory = directory
        self._errands = errands
        self._clock = clock
        self._records = SinkRecords(directory.store)
        self.window_bytes = SINK_WINDOW_BYTES
        self.staged_bytes_max = STAGED_BYTES_MAX
        self._turns = NamedLocks()  # of those who commit for one writer, by digest
        self.guard = Guard("tidying up after jobs")
        self._tidying: Task[None] | None = None
        self._rolling: dict[str, Task[None]] = {}
        self._coming: dict[str, None] = {}  # writers that were let in and are not recorded yet, by digest
        self._undone: dict[str, SinkRecord] = {}  # decided and not committed, by digest
        self._unstored: dict[str, int] = {}  # of these, what is not known to be durable; the version it replaces
        self._held: dict[str, dict[str, Topic]] = {}  # what is reserved for them, and where their rows are staged
        self._failing: dict[str, dict[str, float]] = {}  # of those decided, since when nothing is written where
        self._blocked: dict[str, SinkBlocked] = {}  # of these, those that need somebody to look at them, and why
        self._unwritten: dict[str, float] = {}  # writers that began and staged nothing, and since when that is seen
        self._given_up: dict[str, int] = {}  # of these, those that operators do not want any more, and how many of them
        for record in self._records.listed():
            if not record.committed:
                self._undone[record.key.digest] = record

    # -- for writers ---------------------------------------------------------------------------------------------------

    async def begin(self, key: SinkKey) -> tuple[str, SinkRecord | None]:
        """Where the writer stages its rows, and what it has committed last."""
        name = staging_topic(key)
        self._unwritten.pop(key.digest, None)
        with suppress(TopicExists):
            await self._lifecycle.create_topic(
                SYSTEM, name, durability=Durability.FSYNC, policies={"retention_seconds": STAGED_SECONDS}
            )
        return name, self._records.load(key)[0]

    async def commit(self, principal: Principal, key: SinkKey, request: Request) -> Verdict:
        """Done when the rows are there and seen. Once it is decided it happens, whether or not somebody waits."""
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
            finally:  # refused, or decided and about to be recorded
                self._coming.pop(key.digest, None)
            if verdict is Verdict.NEW:
                await self._finish(key.digest)
                await slow_down(targets)
            elif record is not None and (repeated := record.repeated(request)) != record:
                repeated = replace(repeated, time=self._clock.wall())
                await self._records.put(repeated, version)  # before it is answered: its next write is not the same
            return verdict

    async def forget(self, key: SinkKey, *, abandon: bool = False) -> None:
        """An operator says that the writer will not come again, or may start over.

        A batch that is blocked is given up if that is said too: what of it was written is seen, the rest never is.
        Nothing is forgotten if the operator leaves before all that was decided is written: by then the job may write.
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
            await self._errands.run_holding(turn, partial(self._drop, key))

    @contextmanager
    def _giving_up(self, digest: str) -> Iterator[None]:
        """Whoever waits for the batch has its turn, and is told; for as long as the operator waits."""
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
        """Why the last batch of the writer cannot be written, if somebody has to look at it."""
        return self._blocked.get(key.digest)

    def check_deletable(self, topic: TopicName) -> None:
        """What is staged there may be decided, and not yet where it belongs."""
        if any(staging_topic(record.key) == str(topic) for record in self._undone.values()):
            raise TopicBusy(f"{topic} is locked while rows committed by a job are being written")

    @property
    def blocked_writers(self) -> int:
        """Whose last batch cannot be written until somebody has looked at it."""
        return len(self._blocked)

    def listed(self, limit: int | None = None) -> list[SinkRecord]:
        """Those that are blocked first."""
        blocked = [self._undone[digest] for digest in self._blocked]
        others = [each for each in self._records.listed(limit) if each.key.digest not in self._blocked]
        return [*blocked, *others][:limit]

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, principal: Principal, key: SinkKey, request: Request, version: int) -> list[OpenTopic]:
        """From here on it goes on by itself, whether or not somebody waits. Returns where the rows go."""
        staged = await self._staged(key)
        refs = await self._decision(staged, request)
        for name in map(parse_topic, refs):
            if name.namespace == SYSTEM_NAMESPACE:
                raise RequestInvalid(
                    f"{name}: the namespace {SYSTEM_NAMESPACE} belongs to the broker; jobs cannot write to it"
                )
            self._topics.ask(principal, Action.TOPIC_PUBLISH, name)  # of all, before anything is made or reserved
            if self._directory.find(name) is None:
                self._topics.ask(principal, Action.TOPIC_CREATE, name)
        reserved: dict[str, Topic] = {}
        parts: list[Part] = []
        targets: list[OpenTopic] = []
        try:
            for place in sorted(refs, key=str):  # all in one order, so that no two writers wait for each other
                opened = await self._topics.open(principal, Action.TOPIC_PUBLISH, place, create=True, reliable=True)
                await self._topics.counted(opened.name.namespace)
                topic = await admitted(opened, staged, refs[place])
                offset = await begin_rows(topic)
                reserved[place] = topic
                targets.append(opened)
                parts.append(Part(str(opened.name), opened.record.id, offset, sum(ref.rows for ref in refs[place])))
            if any(topic.closed or topic.lost for topic in reserved.values()):
                raise TopicClosed("this broker no longer serves one of the partitions")
            target = await self._topic_of(key)
        except BaseException:
            for topic in reserved.values():
                topic.reserve(None)
            raise
        now = self._clock.wall()
        self._undone[key.digest] = SinkRecord(key, *request, parts=tuple(parts), topic=target, time=now)
        self._unstored[key.digest] = version
        self._held[key.digest] = reserved
        self._hold_staged(key.digest, staged)
        return targets

    async def _store_decision(self, digest: str, record: SinkRecord) -> None:
        """Until it is durable, or certain that it never will be.

        After a failure it may be there when the broker starts again: until that is known nobody else may write.
        """
        pauses, unsure = iter(RETRY), False
        while digest in self._unstored:
            try:
                await self._records.put(record, self._unstored[digest])
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
        """All of it is there, or nothing will be: what is there is seen, and everybody may publish."""
        del self._undone[digest]
        self._unstored.pop(digest, None)
        self._failing.pop(digest, None)
        self._blocked.pop(digest, None)
        for topic in self._held.pop(digest, {}).values():
            topic.pinned = False
            topic.reserve(None)

    def _hold_staged(self, digest: str, staged: Topic) -> None:
        """Nothing of what is to be written grows old meanwhile."""
        staged.pinned = True
        self._held.setdefault(digest, {})[staged.name] = staged

    async def _staged(self, key: SinkKey) -> Topic:
        return (await self._topics.open(SYSTEM, Action.TOPIC_READ, staging_topic(key), reliable=True)).reliable

    async def _decision(self, staged: Topic, request: Request) -> dict[str, list[Ref]]:
        if not staged.ledger.first <= request.decision < staged.ledger.confirmed_end:
            raise SinkExpired(f"the decision at offset {request.decision} of {staged.name} does not exist")
        batch = (await staged.ledger.read(request.decision))[0]
        found = [message for message in batch.messages() if message.offset == request.decision]
        refs = read_decision(found[0].payload if found else None)
        for each in (ref for parts in refs.values() for ref in parts):
            if not staged.ledger.first <= each.first <= each.last < staged.ledger.confirmed_end:
                raise SinkExpired(f"offsets {each.first} to {each.last} of {staged.name} do not exist")
        return {str(parse_topic(place)): parts for place, parts in refs.items()}

    # -- rolling forward -----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a start: what was decided is finished in the background."""
        self._tidying = asyncio.get_running_loop().create_task(self._tidy_now_and_then())
        for digest in self._undone:
            self._roll(digest)

    def opened(self, name: TopicName, id: int, topic: Topic) -> None:
        """A partition is served from now on: rows that are not all there yet are not seen, and nobody comes between."""
        for digest, record in self._undone.items():
            if staging_topic(record.key) == str(name):
                self._hold_staged(digest, topic)
            for part in record.parts:
                if part.place == str(name) and part.topic == id:
                    self._reserve(digest, part, topic)

    def _reserve(self, digest: str, part: Part, topic: Topic) -> None:
        topic.reserve(part.offset)
        topic.blocked = self._blocked.get(digest)
        self._held.setdefault(digest, {})[part.place] = topic

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
        )  # whoever waits has it, and the next who asks tries again
        if error is not None and not isinstance(error, DanubeError):
            message = "a decided write failed unexpectedly; it resumes when the batch is sent again"
            asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    async def _finish(self, digest: str) -> None:
        if digest in self._undone:
            await asyncio.shield(self._roll(digest))

    async def _roll_forward(self, digest: str) -> None:
        """Until it is done; raises only what no waiting helps against.

        While it cleans up after a batch the next one may be decided: that is its work too.
        """
        while digest in self._undone:
            record = self._undone[digest]
            await self._store_decision(digest, record)
            staged, refs = await self._decided(record)
            fills = (self._fill(digest, part, refs[part.place], staged) for part in record.parts)
            for failure in await asyncio.gather(*fills, return_exceptions=True):  # none goes on when this ends
                if isinstance(failure, BaseException):
                    raise failure
            await self._conclude(digest, record)
            await self._clear(staged, record)

    async def _decided(self, record: SinkRecord) -> tuple[Topic, dict[str, list[Ref]]]:
        """What was staged for it."""
        pauses = iter(RETRY)
        request = Request(record.once, record.run, record.batch, record.source, record.decision)
        while True:
            try:
                staged = await self._staged(record.key)
                refs = await self._decision(staged, request)
                self._go_on(record.key.digest)
                return staged, refs
            except DanubeError as error:
                log.warning("a decided write to %s is waiting: %s", record.key.target, error)
                self._fail(record, error, for_good=isinstance(error, LOST))
            await asyncio.sleep(next(pauses))

    def _fail(self, record: SinkRecord, error: DanubeError, place: str = "", *, for_good: bool = False) -> None:
        """It is tried again for as long as that may help; after some time in which nothing was written to the place,
        everybody who is in its way is told why."""
        digest, now = record.key.digest, asyncio.get_running_loop().time()
        since = self._failing.setdefault(digest, {}).setdefault(place, now)
        if for_good or now - since >= SINK_BLOCKED_SECONDS:
            what = f"batch {record.batch} of query {record.key.query} to {record.key.target} is decided"
            blocked = self._blocked[digest] = SinkBlocked(f"{what} but cannot be written: {error}")
            for part in record.parts:
                if part.place in self._held.get(digest, {}):
                    self._held[digest][part.place].blocked = blocked
            if for_good or digest in self._given_up:
                raise blocked from error

    def _go_on(self, digest: str, place: str = "") -> None:
        """What failed there is over. With the last such place, whoever was refused may publish again."""
        failing = self._failing.get(digest, {})
        if failing.pop(place, None) is not None and not failing and self._blocked.pop(digest, None) is not None:
            for topic in self._held.get(digest, {}).values():
                topic.blocked = None

    def _written(self, digest: str, place: str, confirmed: Future[None]) -> None:
        if not confirmed.cancelled() and confirmed.exception() is None:
            self._go_on(digest, place)

    async def _conclude(self, digest: str, record: SinkRecord) -> None:
        """It is durable that all rows are there. Before that no other job writes behind them: see `rows_from`."""
        for pause in RETRY:
            current, version = self._records.load(record.key)
            if current != record:
                break  # done, and only the answer was lost
            try:
                if record.once is Once.PLAIN:
                    await self._records.drop(record, version)
                else:
                    await self._records.put(record.finished(), version)
                break
            except DanubeError as error:
                log.warning("a write to %s is done but not recorded yet: %s", record.key.target, error)
            await asyncio.sleep(pause)
        self._release(digest)

    async def _fill(self, digest: str, part: Part, refs: Sequence[Ref], staged: Topic) -> None:
        """Until all rows are there, whatever fails meanwhile; or until the topic is not."""
        for pause in RETRY:
            try:
                opened = await self._topics.open(SYSTEM, Action.TOPIC_PUBLISH, part.place, reliable=True)
                if opened.record.id != part.topic:
                    return log.warning("%s was deleted; %d decided rows for it are lost", part.place, part.rows)
                topic = opened.reliable
                self._reserve(digest, part, topic)
                await self._append(digest, opened, topic, part, refs, staged)
                return self._go_on(digest, part.place)
            except TopicNotFound:
                return log.warning("%s was deleted; %d decided rows for it are lost", part.place, part.rows)
            except DanubeError as error:
                log.warning("%s: not all decided rows are written yet: %s", part.place, error)
                self._fail(self._undone[digest], error, part.place, for_good=isinstance(error, SinkExpired))
            await asyncio.sleep(pause)

    async def _append(
        self, digest: str, opened: OpenTopic, topic: Topic, part: Part, refs: Sequence[Ref], staged: Topic
    ) -> None:
        await certain(topic)  # what an attempt before this one has sent is there, or never will be
        failed = topic.failed
        there = await rows_from(topic, part.offset)
        if there > part.rows:
            raise RequestInvalid(f"{topic.name} has {there} rows from offset {part.offset} on, expected {part.rows}")
        under_way: deque[tuple[int, Future[None]]] = deque()
        bytes_under_way = 0
        try:
            async for batch in staged_batches(staged, refs, there):
                while bytes_under_way + batch.size > self.window_bytes and under_way:
                    size, confirmed = under_way.popleft()
                    await confirmed
                    bytes_under_way -= size
                if topic.failed != failed:  # maybe one of those under way: what is there is counted again
                    raise TopicRecovering(f"a write to {topic.name} failed")
                confirmed = topic.append_reserved(numbered(batch, there)).confirmed
                confirmed.add_done_callback(partial(self._written, digest, part.place))
                under_way.append((batch.size, confirmed))
                opened.charge(batch)
                there += batch.count
                bytes_under_way += batch.size
            for _, confirmed in under_way:
                await confirmed
        finally:  # whoever counts next what is there finds all of it
            await landed(confirmed for _, confirmed in under_way)

    async def _clear(self, staged: Topic, record: SinkRecord) -> None:
        """What was committed is no longer needed. Not worth a word if it stays: it grows old."""
        try:
            if record.once is Once.PLAIN:
                await self._lifecycle.delete_topic(SYSTEM, staging_topic(record.key))
            elif staged.ledger.stream.bytes > self.staged_bytes_max:
                await staged.truncate(record.decision + 1)
        except DanubeError as error:
            log.debug("%s is not truncated yet: %s", staged.name, error)

    async def _tidy_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(TIDY_SECONDS)
            await self.guard.over(self.tidy())

    async def _make_room(self, digest: str) -> None:
        """For one more writer, which has its place from now on: others that come meanwhile count it."""
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
        """Writers that will have a record and have none yet."""
        decided = (digest for digest in self._unstored if not self._records.knows(digest))
        return len({*self._coming, *decided})

    async def _forget_old(self) -> None:
        """Writers that have not come for long: what they repeat from now on is written again."""
        clock = self._clock
        if not clock.trusted():
            return
        for record in self._records.overdue(clock.wall(), max(1, self._unrecorded())):
            if record.key.digest in self._turns:
                continue  # it has come, and may wait for this
            async with self._turns.of(record.key.digest):
                current, version = self._records.load(record.key)
                if current == record:
                    await self._records.drop(record, version)

    async def tidy(self) -> None:
        """Old records, and staging topics of writes that never were decided: what was staged has grown old, or nothing
        was for as long. That time begins again with the broker."""
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
            await asyncio.sleep(0)  # the others of the loop first

    async def _tidy_staged(self, digest: str) -> None:
        if self._records.knows(digest) or digest in self._undone or digest in self._turns:
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
        if self._tidying is not None:
            self._tidying.cancel()
        rolling = list(self._rolling.values())
        for task in rolling:
            task.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)

    async def _topic_of(self, key: SinkKey) -> int | None:
        """The id of the target, if it is one topic and is there."""
        try:
            return (await self._topics.lookup(SYSTEM, Action.TOPIC_LOOKUP, key.target)).id
        except DanubeError:
            return None


def staging_topic(key: SinkKey) -> str:
    return f"/{SYSTEM_NAMESPACE}/{STAGING}{key.digest}"
