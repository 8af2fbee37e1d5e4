"""Writes that happen exactly once: rows are staged in a hidden topic, decided in the metadata, and rolled forward.

The decision comes first and is durable; then every partition gets its rows one behind the other, and shows them when
the last is confirmed. Nobody else publishes to a partition meanwhile, so what is there of a batch after a crash is what
lies behind the offset that the decision names.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    NotReliable,
    RequestInvalid,
    SinkExpired,
    TopicBusy,
    TopicClosed,
    TopicExists,
    TopicNotFound,
)
from pydanube.base.limits import (
    READ_AHEAD_BYTES,
    SINK_SETTLE_SECONDS,
    SINK_SOURCE_BYTES_MAX,
    SINK_WINDOW_BYTES,
    STAGED_SECONDS,
)
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory import SYSTEM
from pydanube.broker.holds import ANONYMOUS, Opened, Principal
from pydanube.broker.topic import Topic
from pydanube.ledger.sinks import Once, Part, Ref, Request, SinkKey, SinkRecord, Verdict, judge, read_decision
from pydanube.ports.metadata import MetadataStore
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.service import Service

log = logging.getLogger(__name__)
PREFIX = "sinks/"
RETRY_SECONDS, RETRY_SECONDS_MAX = 0.1, 5.0
STAGED_BYTES_MAX = 64 * 1024 * 1024  # of what is committed, before the staging topic is cut


class Sinks:
    """Owned by the broker's loop, behind its door."""

    def __init__(self, service: Service, store: MetadataStore) -> None:
        self._service = service
        self._store = store
        self._locks: dict[str, asyncio.Lock] = {}
        self._rolling: dict[str, Task[None]] = {}
        self._undone: dict[str, SinkRecord] = {}  # decided and not committed, by digest
        for key, entry in store.scan(PREFIX):
            record = SinkRecord.decode(entry.value)
            if not record.committed:
                self._undone[key.removeprefix(PREFIX)] = record

    # -- for writers ---------------------------------------------------------------------------------------------------

    async def begin(self, principal: Principal, key: SinkKey) -> tuple[str, SinkRecord | None]:
        """Where the writer stages its rows, and what it has committed last."""
        name = staging_topic(key)
        with suppress(TopicExists):
            await self._service.create_topic(
                principal, name, durability=Durability.FSYNC, policies={"retention_seconds": STAGED_SECONDS}
            )
        return name, self._load(key)[0]

    async def commit(self, principal: Principal, key: SinkKey, request: Request) -> Verdict:
        """Done when the rows are there and seen. Once it is decided it happens, whether or not somebody waits."""
        if len(request.source) > SINK_SOURCE_BYTES_MAX:
            request = request._replace(source="")
        lock = self._locks.setdefault(key.digest, asyncio.Lock())
        try:
            async with lock:
                await self._finish(key.digest)
                record, version = self._load(key)
                others = () if record is not None else self._others(key)
                verdict = judge(record, request, others)
                if verdict is Verdict.NEW:
                    await self._decide(principal, key, request, version)
                    await self._finish(key.digest)
                return verdict
        finally:
            if not lock.locked() and self._locks.get(key.digest) is lock:
                del self._locks[key.digest]

    async def forget(self, principal: Principal, key: SinkKey) -> None:
        """An operator says that the writer will not come again, or may begin anew."""
        async with self._locks.setdefault(key.digest, asyncio.Lock()):
            await self._finish(key.digest)
            record, version = self._load(key)
            if record is not None:
                await self._store.transact([(PREFIX + key.digest, version)], [(PREFIX + key.digest, None)])

    def check_deletable(self, topic: TopicName) -> None:
        """What is staged there may be decided, and not yet where it belongs."""
        if any(staging_topic(record.key) == str(topic) for record in self._undone.values()):
            raise TopicBusy(f"{topic} holds rows that a job has committed, and that are being written")

    def listed(self) -> list[SinkRecord]:
        return [SinkRecord.decode(entry.value) for _, entry in self._store.scan(PREFIX)]

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _decide(self, principal: Principal, key: SinkKey, request: Request, version: int) -> None:
        staged = await self._staged(key)
        refs = await self._decision(staged, request)
        reserved: list[Topic] = []
        parts: list[Part] = []
        try:
            for place in sorted(refs, key=str):  # all in one order, so that no two writers wait for each other
                opened = await self._service.open(principal, place, create=True, reliable=True)
                topic = _admitted(opened)
                offset = await _settled(topic)
                reserved.append(topic)
                parts.append(Part(str(opened.name), opened.record.id, offset, sum(ref.rows for ref in refs[place])))
            record = SinkRecord(
                key, request.once, request.run, request.batch, request.source, request.decision, parts=tuple(parts)
            )
            await self._put(record, version)
        except BaseException:
            for topic in reserved:
                topic.reserve(None)
            raise
        self._undone[key.digest] = record

    async def _staged(self, key: SinkKey) -> Topic:
        opened = await self._service.open(ANONYMOUS, staging_topic(key), reliable=True)
        return self._service.reliable(opened)

    async def _decision(self, staged: Topic, request: Request) -> dict[str, list[Ref]]:
        if not staged.ledger.first <= request.decision < staged.ledger.confirmed_end:
            raise SinkExpired(f"the decision at offset {request.decision} of {staged.name} is not there")
        batch = (await staged.ledger.read(request.decision))[0]
        found = [message for message in batch.messages() if message.offset == request.decision]
        refs = read_decision(found[0].payload if found else None)
        for each in (ref for parts in refs.values() for ref in parts):
            if not staged.ledger.first <= each.first <= each.last < staged.ledger.confirmed_end:
                raise SinkExpired(f"offsets {each.first} to {each.last} of {staged.name} are not there")
        return {str(parse_topic(place)): parts for place, parts in refs.items()}

    # -- rolling forward -----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """After a start: what was decided is finished in the background."""
        for digest in self._undone:
            self._roll(digest)

    def opened(self, name: TopicName, id: int, topic: Topic) -> None:
        """A partition is served from now on: rows that are not all there yet are not seen, and nobody comes between."""
        for record in self._undone.values():
            for part in record.parts:
                if part.place == str(name) and part.topic == id:
                    topic.reserve(part.offset)

    def _roll(self, digest: str) -> Task[None]:
        task = self._rolling.get(digest)
        if task is None:
            task = self._rolling[digest] = asyncio.get_running_loop().create_task(self._roll_forward(digest))
            task.add_done_callback(lambda _: self._rolling.pop(digest, None))
        return task

    async def _finish(self, digest: str) -> None:
        if digest in self._undone:
            await asyncio.shield(self._roll(digest))

    async def _roll_forward(self, digest: str) -> None:
        """Until it is done; raises only what no waiting helps against."""
        record, pause = self._undone[digest], RETRY_SECONDS
        while True:
            try:
                staged = await self._staged(record.key)
                request = Request(record.once, record.run, record.batch, record.source, record.decision)
                refs = await self._decision(staged, request)
                break
            except DanubeError as error:
                log.warning("a write to %s that was decided waits: %s", record.key.target, error)
                if not error.retriable:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)
        await asyncio.gather(*(self._fill(part, refs[part.place], staged) for part in record.parts))
        _, version = self._load(record.key)
        if record.once is Once.PLAIN:
            await self._store.transact([(PREFIX + digest, version)], [(PREFIX + digest, None)])
        else:
            await self._put(record.finished(), version)
        del self._undone[digest]
        await self._clear(staged, record)

    async def _fill(self, part: Part, refs: Sequence[Ref], staged: Topic) -> None:
        """Until all rows are there, whatever fails meanwhile; or until the topic is not."""
        pause = RETRY_SECONDS
        while True:
            try:
                opened = await self._service.open(ANONYMOUS, part.place, reliable=True)
                if opened.record.id != part.topic:
                    return log.warning(
                        "%s was deleted; %d rows that were decided for it are gone", part.place, part.rows
                    )
                topic = self._service.reliable(opened)
                await self._append(topic, part, refs, staged)
                topic.reserve(None)
                return
            except TopicNotFound:
                return log.warning("%s was deleted; %d rows that were decided for it are gone", part.place, part.rows)
            except DanubeError as error:
                log.warning("%s: rows that were decided are not all there yet: %s", part.place, error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_SECONDS_MAX)

    async def _append(self, topic: Topic, part: Part, refs: Sequence[Ref], staged: Topic) -> None:
        topic.reserve(part.offset)
        await topic.ledger.stream.ready()
        there = await _rows_from(topic, part.offset)
        if there > part.rows:
            raise RequestInvalid(f"{topic.name} has {there} rows from {part.offset} on, not {part.rows}")
        under_way: deque[tuple[int, Future[None]]] = deque()
        bytes_under_way = 0
        async for batch in _staged_batches(staged, refs, there):
            while bytes_under_way + batch.size > SINK_WINDOW_BYTES and under_way:
                size, confirmed = under_way.popleft()
                await confirmed
                bytes_under_way -= size
            under_way.append((batch.size, topic.append_reserved(batch.anonymous()).confirmed))
            bytes_under_way += batch.size
        for _, confirmed in under_way:
            await confirmed

    async def _clear(self, staged: Topic, record: SinkRecord) -> None:
        """What was committed is not needed any more. Not worth a word if it stays: it grows old."""
        try:
            if record.once is Once.PLAIN:
                await self._service.delete_topic(ANONYMOUS, staging_topic(record.key))
            elif staged.ledger.stream.bytes > STAGED_BYTES_MAX:
                await staged.truncate(record.decision + 1)
        except DanubeError as error:
            log.debug("%s is not cut yet: %s", staged.name, error)

    async def close(self) -> None:
        rolling = list(self._rolling.values())
        for task in rolling:
            task.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)

    # -- records -------------------------------------------------------------------------------------------------------

    def _load(self, key: SinkKey) -> tuple[SinkRecord | None, int]:
        entry = self._store.get(PREFIX + key.digest)
        return (None, 0) if entry is None else (SinkRecord.decode(entry.value), entry.version)

    def _others(self, key: SinkKey) -> list[SinkRecord]:
        return [each for each in self.listed() if (each.key.target, each.key.name) == (key.target, key.name)]

    async def _put(self, record: SinkRecord, version: int) -> None:
        key = PREFIX + record.key.digest
        await self._store.transact([(key, version)], [(key, record.encode())])


def staging_topic(key: SinkKey) -> str:
    return f"/{SYSTEM}/sink-{key.digest}"


def _admitted(opened: Opened) -> Topic:
    """What a producer would be refused, a job is too, before anything is decided."""
    opened.check_producers()
    if not isinstance(opened.topic, Topic):
        raise NotReliable(f"{opened.name} keeps nothing, so nothing can be written to it exactly once")
    opened.topic.admit(0)
    opened.room.admit(0)
    return opened.topic


async def _settled(topic: Topic) -> int:
    """Nobody else publishes any more, and all before is confirmed; the offset of the next message."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SINK_SETTLE_SECONDS
    while topic.reserved:
        if loop.time() >= deadline:
            raise TopicBusy(f"{topic.name} is being written by another job")
        await asyncio.sleep(0.01)
    topic.reserved = True
    try:
        while not topic.settled:
            if topic.closed or topic.lost:
                raise TopicClosed(f"{topic.name} is not served here any more")
            if loop.time() >= deadline:
                raise TopicBusy(f"what others published to {topic.name} is not confirmed yet")
            await asyncio.sleep(0.001)
        offset = topic.ledger.stream.next_offset
    except BaseException:
        topic.reserve(None)
        raise
    topic.reserve(offset)
    return offset


async def _rows_from(topic: Topic, offset: int) -> int:
    """How many rows of a job are there already: nobody else has written from `offset` on."""
    stream, rows = topic.ledger.stream, 0
    while offset <= stream.confirmed:
        for batch in await stream.read(offset, READ_AHEAD_BYTES):
            rows += batch.count
            offset = batch.last_offset + 1
    return rows


async def _staged_batches(staged: Topic, refs: Sequence[Ref], skipped: int) -> AsyncIterator[Batch]:
    """What the refs name, in their order, but for the first rows."""
    for ref in refs:
        if skipped >= ref.rows:
            skipped -= ref.rows
            continue
        offset, skipped = ref.first + skipped, 0
        while offset <= ref.last:
            for batch in await staged.ledger.read(offset):
                first = max(offset, batch.base_offset)
                last = min(ref.last, batch.last_offset)
                if first > last:
                    break
                yield batch.slice(first - batch.base_offset, last - first + 1)
                offset = last + 1
