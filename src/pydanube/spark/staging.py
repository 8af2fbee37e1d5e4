"""What a task of a write does: puts its batches where nobody reads them, several on their way at a time.

It remembers where each was acknowledged. One that is not is sent again: what then lies there twice is named once.
"""

from __future__ import annotations

from asyncio import Future
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future as ThreadFuture
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.errors import ConnectionLost, DanubeError, NotReliable, RequestInvalid, TopicNotFound
from pydanube.base.keys import KeyHash
from pydanube.base.limits import MIB
from pydanube.client import Client
from pydanube.client.channel import ReopeningChannel
from pydanube.client.errors import copy_of
from pydanube.spark.batching import PartitionBatch, RowBatcher, Target
from pydanube.spark.broker_link import BrokerLink, with_retries
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Published, encode_publish

if TYPE_CHECKING:
    import pyarrow as pa

WINDOW_BYTES = 8 * MIB  # of batches that are not acknowledged yet, of one task
BROKERS_OWN = "/system/"
Refs = list[tuple[int, int]]  # stretches of staged messages, by their first and last offset


class Writer(NamedTuple):
    """Who writes, as the broker remembers it: of one query, to one topic (or those that rows name), under one name."""

    query: str
    target: str
    name: str

    def fields(self) -> dict[str, Any]:
        return self._asdict()


class StagingChannel(ReopeningChannel):
    """A producer without a name: the broker remembers nothing of it."""

    def __init__(self, client: Client, topic: str, last: Mapping[str, Any] | None) -> None:
        super().__init__(client)
        self.topic = topic
        self.last = last  # what the broker remembers of the writer
        self._flying: dict[int, Future[int]] = {}

    def opening(self) -> tuple[str, dict[str, Any]]:
        return "open_producer", {"topic": self.topic, "reliable": True, "create": False}

    def opened(self, reply: Mapping[str, Any]) -> None:
        """What was on its way is sent again by whoever waits for it."""

    def interrupted(self, error: DanubeError) -> None:
        flying, self._flying = self._flying, {}
        for waiter in flying.values():
            if not waiter.done():
                waiter.set_exception(copy_of(error))

    def given_up(self, error: DanubeError) -> None:
        self.interrupted(error)

    def published(self, answer: Published) -> None:
        waiter = self._flying.pop(answer.request, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(answer.base_offset)

    def refused(self, request: int, error: DanubeError) -> None:
        waiter = self._flying.pop(request, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    async def publish(self, batch: Batch) -> int:
        """The offset of its first message."""
        return await with_retries(lambda: self._once(batch))

    async def _once(self, batch: Batch) -> int:
        if self.connection is None:
            raise copy_of(self.reason or ConnectionLost("not connected"))
        waiter: Future[int] = self.loop.create_future()
        request = self.connection.next_request()
        self._flying[request] = waiter
        self.connection.write(encode_publish(self.number, request, *batch.parts()))
        return await waiter


async def open_staging(client: Client, writer: Writer) -> StagingChannel:
    async def attempt() -> StagingChannel:
        begun = await client.ask("sink.begin", writer.fields())
        channel = StagingChannel(client, str(begun["staging"]), begun["last"])
        await client.within("open_producer", channel.open())
        return channel

    return await with_retries(attempt)


@dataclass(slots=True)
class Stage:
    """One task's hold on the place where its writer stages. Opened with the first batch: most tasks of a small
    micro-batch have none.
    """

    link: BrokerLink
    writer: Writer
    parts: dict[str, Refs] = field(default_factory=dict)
    _channel: StagingChannel | None = None
    _flying: deque[tuple[PartitionBatch, ThreadFuture[int]]] = field(default_factory=deque)
    _bytes: int = 0

    def put_all(self, parcels: Iterable[PartitionBatch]) -> dict[str, Refs]:
        """Where all of them are, by topic or partition, in the order they came."""
        try:
            for parcel in parcels:
                self.put(parcel)
            return self.finish()
        finally:
            self.close()

    def finish(self) -> dict[str, Refs]:
        """All of them are acknowledged."""
        while self._flying:
            self._take()
        return self.parts

    def close(self) -> None:
        for _, future in self._flying:
            future.cancel()
        self._flying.clear()
        channel, self._channel = self._channel, None
        if channel is not None:
            self.link.wait(channel.close_channel(wait=False))

    def put(self, parcel: PartitionBatch) -> None:
        """Waits if too much is on its way."""
        if self._channel is None:
            self._channel = self.link.wait(open_staging(self.link.client, self.writer))
        while self._flying and self._bytes + parcel.batch.size > WINDOW_BYTES:
            self._take()
        self._bytes += parcel.batch.size
        self._flying.append((parcel, self.link.begin(self._channel.publish(parcel.batch))))

    def _take(self) -> None:
        parcel, future = self._flying.popleft()
        offset = future.result()
        self._bytes -= parcel.batch.size
        add_ref(self.parts.setdefault(parcel.place, []), offset, offset + parcel.batch.count - 1)


def add_ref(refs: Refs, first: int, last: int) -> None:
    """One that continues where the last ends is one with it."""
    if refs and refs[-1][1] + 1 == first:
        refs[-1] = (refs[-1][0], last)
    else:
        refs.append((first, last))


async def find_target(client: Client, topic: str) -> Target:
    """How a topic is divided, and what it takes. One that is not there is made when the write is committed."""
    if topic.startswith(BROKERS_OWN):
        raise RequestInvalid(f"{topic} belongs to the broker and cannot be written to")
    try:
        found = await with_retries(lambda: client.ask("topic", {"topic": topic}))
    except TopicNotFound:
        found = {"partitions": 0, "reliable": True, "policies": {}, "key_hash": KeyHash.FNV1A64.value}
    if not found["reliable"]:
        raise NotReliable(f"{topic} is not reliable, so it cannot be written exactly once")
    limit = found["policies"].get("message_bytes_max")
    if limit is None:
        namespace = {"namespace": topic.split("/")[1]}
        limit = (await with_retries(lambda: client.ask("namespace.policies", namespace)))["policies"].get(
            "message_bytes_max"
        )
    return Target(topic, int(found["partitions"]), limit, KeyHash(found["key_hash"]))


def batches_of(rows: Iterable[pa.RecordBatch], parcels: RowBatcher) -> Iterator[PartitionBatch]:
    """All of them, the last ones when there are no more rows."""
    for each in rows:
        yield from parcels.add(each)
    yield from parcels.rest()
