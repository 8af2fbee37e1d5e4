"""Reading without a subscription: nothing is acknowledged, and no one else is affected."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from pydanube.base.errors import ArgumentInvalid, ClientClosed, DanubeError, NothingReceived, NotOpened
from pydanube.base.names import full_name
from pydanube.base.retry import Backoff
from pydanube.client.arguments import Duration, seconds_of
from pydanube.client.channel import RETRY
from pydanube.client.consumer import Start, wire_position
from pydanube.client.errors import copy_of
from pydanube.client.lifecycle import Openable
from pydanube.client.messages import Deserializer, Message, MessageBatch
from pydanube.client.topic_watch import follow_topic
from pydanube.operations.channels import Read
from pydanube.operations.fields import AtTime
from pydanube.operations.topics import FindOffset
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.client.client import Client, TopicInfo

POLL = Backoff(0.005, 0.1)  # at the end of a topic, while nothing arrives
Offsets = Mapping[int | None, int]  # by partition; None is a topic without partitions
log = logging.getLogger(__name__)


class PartitionPosition:
    """The position of a reader in one partition."""

    def __init__(
        self, found: TopicInfo, partition: int | None, name: str, offset: int, deserializer: Deserializer | None = None
    ) -> None:
        self.topic = found.topic
        self.partition = partition
        self.name = name
        self._mark = str(found.id)  # refuses another topic with the same name, whose offsets mean something else
        self.offset = offset  # the next to read from the broker
        self.returned = offset  # the next to return to the program
        self.deserializer = deserializer
        self.end: int | None = None  # exclusive; None to continue forever

    @property
    def at_end(self) -> bool:
        return self.end is not None and self.offset >= self.end

    async def read(self, client: Client, end: int | None = None) -> list[MessageBatch]:
        """Reads the next batches, up to `end` (exclusive); none if there are none yet."""
        found = await self._read(client, end)
        if found or end is None or self.offset >= end or end > (await client.bounds(self.name))[1]:
            return found
        found = await self._read(client, end)  # again: messages may have arrived after the first answer
        if not found:
            self.offset = end  # the messages up to `end` were deleted
        return found

    async def _read(self, client: Client, end: int | None) -> list[MessageBatch]:
        answer = await client.ask_any(Read(topic=self.name, offset=self.offset, resume=self._mark))
        found: list[MessageBatch] = []
        for data in answer.batches if isinstance(answer, Batches) else ():
            content = Batch.parse(data)
            first = max(self.offset, content.base_offset)
            last = content.last_offset if end is None else min(content.last_offset, end - 1)
            if first <= last:
                found.append(MessageBatch(self, content, first, last, 0, 0))
            self.offset = max(self.offset, last + 1)
        return found


async def partition_positions(
    client: Client,
    topic: str,
    start: Start | Offsets,
    partition: int | None,
    deserializer: Deserializer | None = None,
    end: Start | Offsets | None = None,
) -> list[PartitionPosition]:
    """The positions of `start` in all partitions, or in one, with `end` as their end."""
    topic = full_name(topic)
    found = await client.topic(topic)
    wanted = [(number, name) for number, name in found.partition_names() if partition is None or number == partition]
    for position in (start, end):
        if not wanted or (type(position) is int and position and len(wanted) > 1):
            raise ArgumentInvalid(f"{topic} has {found.partitions} partitions; to read from {position!r}, name one")
    positions: list[PartitionPosition] = []
    for number, name in wanted:
        offset = await offset_of(client, name, _part_of(start, number))
        positions.append(PartitionPosition(found, number, name, offset, deserializer))
        if end is not None:
            positions[-1].end = await offset_of(client, name, _part_of(end, number))
    return positions


def _part_of(position: Start | Offsets, partition: int | None) -> Start:
    """The start of one partition, if `position` has offsets by partition. One that it lacks is new, and read in full.

    Partitions may be strings, as in offsets that were stored as JSON.
    """
    if not isinstance(position, Mapping) or "time" in position:
        return cast(Start, position)
    offsets = {"null" if each is None else str(each): offset for each, offset in position.items()}
    for name in offsets:
        if name != "null" and not name.isdecimal():
            raise ArgumentInvalid(f"offsets must be numbers by partition, as in {{0: 42}}; {name!r} is not a partition")
    return offsets.get("null" if partition is None else str(partition), "earliest")


async def offset_of(client: Client, name: str, start: Start) -> int:
    position = wire_position(start, client.clock.wall())
    if isinstance(position, AtTime):
        return (await client.ask(FindOffset(topic=name, time=position.time))).offset
    if isinstance(position, str):
        first, end = await client.bounds(name)
        return first if position == "earliest" else end
    return position


class Reader(Openable):
    """A reader, created by `Client.reader`. Use it with `async with`. It reads all partitions and skips nothing.

    `start` and `end` are earliest, latest, an offset, a time (a datetime, `yesterday`, `10m` for ten minutes ago, or a
    timedelta), or the `offsets` of an earlier reader, also as JSON keeps them. Without an `end` it waits for new
    messages. Reads that fail with a broken connection are repeated, and new partitions are read from their beginning.
    Several tasks can share a reader: each message goes to one of them. If the topic is deleted, reading raises
    `TopicNotFound`, also if a new topic has its name by then.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        start: Start | Offsets = "earliest",
        end: Start | Offsets | None = None,
        partition: int | None = None,
        deserializer: Deserializer | None = None,
    ) -> None:
        topic = full_name(topic)
        self.client = client
        self.topic = topic
        self._start = start
        self._end = end
        self._partition = partition
        self._deserializer = deserializer
        self._positions: list[PartitionPosition] = []  # a new list after each seek
        self._turn = 0
        self._queue: deque[MessageBatch] = deque()  # not returned to the program yet
        self._rows: Iterator[Message] = iter(())  # the rest of the current batch
        self._reading = asyncio.Lock()
        self._refresher: Task[None] | None = None  # waits for new partitions
        self._closed: DanubeError | None = NotOpened(f"the reader of {topic} is not open yet")

    @property
    def offsets(self) -> dict[int | None, int]:
        """For each partition, the offset after the last message returned: where another reader can continue."""
        return {position.partition: position.returned for position in self._positions}

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self._next()) is not None:
            yield message

    async def __anext__(self) -> Message:
        message = await self._next()
        if message is None:
            raise StopAsyncIteration
        return message

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Yields batches as they were published; of a batch partly read message by message, the rest."""
        while True:
            batch = self._take_batch()
            if batch is not None:
                yield batch
            elif not await self._fill():
                return

    async def receive(self, timeout: Duration | None = None) -> Message:  # noqa: ASYNC109 - a word of the API
        """Returns the next message. Raises `NothingReceived` after `timeout` seconds, or at the reader's end."""
        try:
            async with asyncio.timeout(None if timeout is None else seconds_of(timeout)):
                message = await self._next()
        except TimeoutError:
            raise NothingReceived(f"no more messages in {self.topic} within {timeout} seconds") from None
        if message is None:
            raise NothingReceived(f"the reader of {self.topic} has reached its end")
        return message

    async def _next(self) -> Message | None:
        """Returns the next message, None at the end. Awaits nothing after taking one, so none is lost or repeated."""
        while True:
            for message in self._rows:
                cast(PartitionPosition, message.batch.source).returned = message.offset + 1
                return message
            if self._queue:
                batch = self._queue.popleft()
                position = cast(PartitionPosition, batch.source)
                position.returned = batch.last + 1  # so that a batch that cannot be decoded is skipped
                self._rows = batch.messages()
                position.returned = batch.first
            elif not await self._fill():
                return None

    def _take_batch(self) -> MessageBatch | None:
        batch = None
        for message in self._rows:
            self._rows = iter(())
            batch = message.batch.part(message.offset, message.batch.last)
            break
        else:
            if self._queue:
                batch = self._queue.popleft()
        if batch is not None:
            cast(PartitionPosition, batch.source).returned = batch.last + 1
        return batch

    async def _fill(self) -> bool:
        """Reads until there are messages; returns False at the end. One task at a time reads, for all tasks."""
        async with self._reading:
            pauses, failures = iter(POLL), 0
            while not self._queue:
                if self._closed is not None:
                    raise copy_of(self._closed)
                try:
                    await self._read_in_turn()
                except DanubeError as error:
                    if not error.retriable:
                        raise
                    failures += 1
                    log.info("reading %s failed, retrying: %s", self.topic, error)
                    await asyncio.sleep(RETRY.after(failures, self.client.randomness.below))
                    continue
                failures = 0
                if self._queue:
                    break
                if self._positions and all(position.at_end for position in self._positions):
                    return False
                await asyncio.sleep(next(pauses))
            return True

    async def _read_in_turn(self) -> None:
        """Reads from the next partition that has messages."""
        positions = self._positions
        for _ in range(len(positions)):
            position = positions[self._turn % len(positions)]
            self._turn = (self._turn + 1) % len(positions)
            if position.at_end:
                continue
            found = await position.read(self.client, position.end)
            if positions is not self._positions:  # a seek came meanwhile
                return
            if found:
                self._queue.extend(found)
                return

    async def _add_partitions(self) -> None:
        """Adds new partitions, from their beginning."""
        positions = self._positions
        found = await self.client.topic(self.topic)
        for number, name in found.partition_names()[len(positions) :]:
            first, _ = await self.client.bounds(name)
            if positions is self._positions:  # otherwise a seek came meanwhile, and has found it
                positions.append(PartitionPosition(found, number, name, first, self._deserializer))

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def seek(self, to: Start | Offsets) -> None:
        """Moves to earliest, latest, an offset, a time, or the `offsets` of another reader."""
        positions = await partition_positions(
            self.client, self.topic, to, self._partition, self._deserializer, self._end
        )
        self._positions, self._turn = positions, 0
        self._queue.clear()
        self._rows = iter(())

    async def open(self) -> Self:
        await self.seek(self._start)
        self._closed = None
        self.client.add(self)
        if self._end is None and self._partition is None and self._positions[0].partition is not None:
            self._refresher = self.client.loop.create_task(follow_topic(self.client, self.topic, self._add_partitions))
        return self

    async def close(self) -> None:
        self._closed = ClientClosed(f"the reader of {self.topic} was closed")
        if self._refresher is not None:
            self._refresher.cancel()
        self.client.remove(self)

    @property
    def connected(self) -> bool:
        return self.client.connected

    @property
    def unsent(self) -> int:
        return 0

    def detach_after_fork(self, error: DanubeError) -> None:
        """After a fork, in the child: the reader belongs to the parent, and using it raises this error."""
        self._closed = error


async def read_arrow(client: Client, topic: str, start: Start, end: Start, partition: int | None) -> pa.Table:
    import pyarrow as pa

    from pydanube.wire.arrow import record_schema

    parts: list[Any] = []
    for position in await partition_positions(client, topic, start, partition):
        _, confirmed = await client.bounds(position.name)
        stop = min(await offset_of(client, position.name, end), confirmed)
        while position.offset < stop:
            batches = await position.read(client, stop)
            if not batches:
                break
            parts += [batch.to_arrow() for batch in batches]
    return pa.Table.from_batches(parts, schema=record_schema())
