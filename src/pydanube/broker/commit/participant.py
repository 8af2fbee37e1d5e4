"""What a partition does in a batch that is written exactly once (§44).

`Participant` is all that the broker with the decision asks of the owner of a partition. Only values pass between them,
and every call may be repeated, so the owner may be another broker. Here, it is this one.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, SinkBlocked, SinkExpired, TopicNotFound, TopicRecovering
from pydanube.base.limits import SINK_WINDOW_BYTES
from pydanube.base.names import parse_topic
from pydanube.broker.commit.records import SinkRecords
from pydanube.broker.commit.rows import numbered, staged_batches
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.filler import Fill
from pydanube.broker.topic.topic import Topic
from pydanube.topic.sinks import Part, Ref


@dataclass(frozen=True, slots=True)
class PartOfBatch:
    """The rows of a decided batch for one partition."""

    sink: str  # the digest of its writer, in hexadecimal digits
    batch: int  # the version of the decision in the metadata, which no other decision ever has
    part: Part

    @property
    def fill(self) -> Fill:
        return Fill(bytes.fromhex(self.sink), self.batch, self.part.rows)


class Participant(Protocol):
    async def fill(self, part: PartOfBatch, staging: str, refs: Sequence[Ref], progress: Callable[[], None]) -> None:
        """Writes the rows that the refs name in the staging topic; they are visible when this returns. If it fails, it
        is called again, as often as needed. `progress` is called when some of them are written."""

    async def is_filled(self, part: PartOfBatch) -> bool:
        """Whether all rows are written and visible."""

    def hold_up(self, part: PartOfBatch, why: SinkBlocked | None) -> None:
        """Tells those who use the partition why it cannot be filled at present; None if it can again."""

    def release(self, part: Part) -> None:
        """The decision may have been revoked: if so, what is written becomes visible, and the partition is free."""


class OwnPartitions:
    """The participant for all partitions that this broker owns."""

    def __init__(self, topics: OpenTopics, records: SinkRecords) -> None:
        self._topics = topics
        self._records = records
        self.window_bytes = SINK_WINDOW_BYTES

    async def fill(self, part: PartOfBatch, staging: str, refs: Sequence[Ref], progress: Callable[[], None]) -> None:
        opened = await self._opened(part)
        filler, fill = opened.reliable.filler, part.fill
        if filler.is_filled(fill):
            return
        try:
            staged = await self._topics.open(SYSTEM, Action.TOPIC_READ, staging, reliable=True)
        except TopicNotFound as error:
            raise SinkExpired(f"{error}, and with it the staged rows") from error
        async with filler.turn(fill, self._records.is_open, part.part.first) as there:
            await self._append(opened, opened.reliable, staged.reliable, refs, there, progress)
            filler.end()

    async def is_filled(self, part: PartOfBatch) -> bool:
        try:
            return (await self._opened(part)).reliable.filler.is_filled(part.fill)
        except DanubeError:
            return False  # unknown: to fill it does no harm if it is

    def hold_up(self, part: PartOfBatch, why: SinkBlocked | None) -> None:
        if (topic := self._found(part.part)) is not None:
            topic.filler.hold_up(part.fill, why)

    def release(self, part: Part) -> None:
        if (topic := self._found(part)) is not None:
            topic.filler.release(self._records.is_open)

    async def _opened(self, part: PartOfBatch) -> OpenTopic:
        name = part.part.partition
        opened = await self._topics.open(SYSTEM, Action.TOPIC_PUBLISH, name, reliable=True)
        if opened.record.id != part.part.topic:
            raise TopicNotFound(f"topic {name} was deleted")
        return opened

    def _found(self, part: Part) -> Topic | None:
        """The partition if it is open. When it is opened, it is told then."""
        opened = self._topics.find(parse_topic(part.partition))
        return opened.reliable if opened is not None and opened.record.id == part.topic else None

    async def _append(
        self,
        opened: OpenTopic,
        topic: Topic,
        staged: Topic,
        refs: Sequence[Ref],
        there: int,
        progress: Callable[[], None],
    ) -> None:
        """Appends the rows after the first `there`, and waits until they are confirmed."""
        failed = topic.failed
        under_way: deque[tuple[int, Future[None]]] = deque()
        bytes_under_way = 0

        def written(confirmed: Future[None]) -> None:
            if not confirmed.cancelled() and confirmed.exception() is None:
                progress()

        try:
            async for batch in staged_batches(staged, refs, there):
                while bytes_under_way + batch.size > self.window_bytes and under_way:
                    size, confirmed = under_way.popleft()
                    await confirmed
                    bytes_under_way -= size
                if topic.failed != failed:  # perhaps one of ours failed, so the written rows are counted again
                    raise TopicRecovering(f"a write to {topic.name} failed")
                confirmed = topic.append_rows(numbered(batch, there)).confirmed
                confirmed.add_done_callback(written)
                under_way.append((batch.size, confirmed))
                opened.charge(batch)
                there += batch.count
                bytes_under_way += batch.size
            for _, confirmed in under_way:
                await confirmed
        finally:  # so that the next attempt counts all rows that were written
            await landed(confirmed for _, confirmed in under_way)


async def landed(under_way: Iterable[Future[None]]) -> None:
    """Waits until every write has succeeded or failed."""
    await asyncio.gather(*under_way, return_exceptions=True)
