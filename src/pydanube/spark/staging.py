"""What a task of a write does: it publishes its batches to a hidden topic, several at a time.

It records the offset of each batch that is acknowledged. A batch that is not acknowledged is sent again; if it is then
stored twice, only one copy is referenced.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future as ThreadFuture
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pydanube.base.errors import ConnectionLost, DanubeError, NotReliable, RequestInvalid, TopicNotFound
from pydanube.base.keys import KeyHash
from pydanube.base.limits import MIB
from pydanube.client import Client
from pydanube.client.channel import ReopeningChannel
from pydanube.client.errors import copy_of
from pydanube.operations.channels import OpenedProducer, OpenProducer
from pydanube.operations.sinks import BeginSink, CommittedBatch
from pydanube.spark.batching import PartitionBatch, RowBatcher, TargetTopic
from pydanube.spark.broker_link import BrokerLink, with_retries
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Published, encode_publish

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES = 8 * MIB  # of unacknowledged batches of one task
BROKERS_OWN = "/system/"
Refs = list[tuple[int, int]]  # ranges of staged messages: first and last offset


class Writer(NamedTuple):
    """A writer as the broker remembers it: a query, a topic (or those that rows name), and a name."""

    query: str
    target: str
    name: str


class StagingChannel(ReopeningChannel[OpenedProducer]):
    """A producer without a name, so that the broker remembers nothing about it."""

    def __init__(self, client: Client, topic: str, last: CommittedBatch | None) -> None:
        super().__init__(client)
        self.topic = topic
        self.last = last  # the last commit of the writer, if there is one
        self._unacknowledged: dict[int, Future[int]] = {}

    def opening(self, channel: int) -> OpenProducer:
        return OpenProducer(channel, self.topic, resume=self.mark, create=False)

    def opened(self, answer: OpenedProducer) -> None:
        """Callers that wait for an answer send their batches again."""

    def interrupted(self, error: DanubeError) -> None:
        waiting, self._unacknowledged = self._unacknowledged, {}
        for waiter in waiting.values():
            if not waiter.done():
                waiter.set_exception(copy_of(error))

    def given_up(self, error: DanubeError) -> None:
        self.interrupted(error)

    def published(self, answer: Published) -> None:
        waiter = self._unacknowledged.pop(answer.request, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer.base_offset)

    def refused(self, request: int, error: DanubeError) -> None:
        waiter = self._unacknowledged.pop(request, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    async def publish(self, batch: Batch) -> int:
        """Returns the offset of its first message."""
        return await with_retries(lambda: self._once(batch))

    async def _once(self, batch: Batch) -> int:
        if self.connection is None:
            raise copy_of(self.reason or ConnectionLost("not connected"))
        waiter: Future[int] = self.loop.create_future()
        request = self.connection.next_request()
        self._unacknowledged[request] = waiter
        self.connection.write(encode_publish(self.number, request, *batch.parts()))
        return await waiter


async def open_staging(client: Client, writer: Writer) -> StagingChannel:
    async def attempt() -> StagingChannel:
        begun = await client.ask(BeginSink(*writer))
        channel = StagingChannel(client, begun.staging, begun.last)
        await client.within("open_producer", channel.open())
        return channel

    return await with_retries(attempt)


@dataclass(slots=True)
class Stage:
    """Stages the batches of one task. The channel is opened with the first batch, because most tasks of a small
    micro-batch have none.
    """

    link: BrokerLink
    writer: Writer
    parts: dict[str, Refs] = field(default_factory=dict)
    _channel: StagingChannel | None = None
    _unacknowledged: deque[tuple[PartitionBatch, ThreadFuture[int]]] = field(default_factory=deque)
    _bytes: int = 0

    def put_all(self, batches: Iterable[PartitionBatch]) -> dict[str, Refs]:
        """Returns where all of them are, by topic or partition, in order."""
        try:
            for staged in batches:
                self.put(staged)
            return self.finish()
        finally:
            self.close()

    def finish(self) -> dict[str, Refs]:
        """Waits until all batches are acknowledged."""
        while self._unacknowledged:
            self._take()
        return self.parts

    def close(self) -> None:
        for _, future in self._unacknowledged:
            future.cancel()
        self._unacknowledged.clear()
        channel, self._channel = self._channel, None
        if channel is not None:
            self.link.wait(channel.close_channel(wait=False))

    def put(self, staged: PartitionBatch) -> None:
        """Waits if too many bytes are unacknowledged."""
        if self._channel is None:
            self._channel = self.link.wait(open_staging(self.link.client, self.writer))
        while self._unacknowledged and self._bytes + staged.batch.size > WINDOW_BYTES:
            self._take()
        self._bytes += staged.batch.size
        self._unacknowledged.append((staged, self.link.begin(self._channel.publish(staged.batch))))

    def _take(self) -> None:
        staged, future = self._unacknowledged.popleft()
        offset = future.result()
        self._bytes -= staged.batch.size
        add_ref(self.parts.setdefault(staged.partition, []), offset, offset + staged.batch.count - 1)


def add_ref(refs: Refs, first: int, last: int) -> None:
    """Adds a range. If it continues the last one, the two become one."""
    if refs and refs[-1][1] + 1 == first:
        refs[-1] = (refs[-1][0], last)
    else:
        refs.append((first, last))


async def find_target(client: Client, topic: str) -> TargetTopic:
    """The partitions and limits of a topic. One that does not exist is created when the write is committed."""
    if topic.startswith(BROKERS_OWN):
        raise RequestInvalid(f"{topic} belongs to the broker and cannot be written to")
    target, limit = TargetTopic(topic, 0), None
    with suppress(TopicNotFound):
        found = await with_retries(lambda: client.topic(topic))
        if not found.reliable:
            raise NotReliable(f"{topic} is not reliable, so it cannot be written exactly once")
        limit = found.policies.message_bytes_max
        target = TargetTopic(topic, found.partitions, key_hash=KeyHash(found.key_hash))
    if limit is None:
        below = await with_retries(lambda: client.admin.policies(topic.split("/")[1]))
        limit = below.message_bytes_max
    return target._replace(message_bytes_max=limit)


def batches_of(rows: Iterable[pa.RecordBatch], batcher: RowBatcher) -> Iterator[PartitionBatch]:
    """All batches of the rows, the last ones when there are no more rows."""
    for each in rows:
        yield from batcher.add(each)
    yield from batcher.rest()
