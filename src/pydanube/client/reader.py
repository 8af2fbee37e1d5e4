"""Reading without a subscription: nothing is acknowledged, nobody else is affected, and the reader keeps its place."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections import deque
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, cast

from pydanube.base.errors import ArgumentInvalid, ClientClosed, DanubeError, NothingReceived, NotOpened
from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.base.names import full_name
from pydanube.base.retry import Backoff
from pydanube.client.channel import RETRY
from pydanube.client.consumer import Start, wire_start
from pydanube.client.ending import Openable
from pydanube.client.messages import Deserializer, Message, MessageBatch
from pydanube.client.outgoing import fresh
from pydanube.client.topic_watch import follow_topic
from pydanube.client.values import Duration, seconds_of
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.client.client import Client, TopicInfo

POLL = Backoff(0.005, 0.1)  # at the end of a topic, while nothing comes
Offsets = Mapping[int | None, int]  # by partition; None is a topic without partitions
log = logging.getLogger(__name__)


class Place:
    """Where a reader stands in one partition."""

    def __init__(
        self, found: TopicInfo, partition: int | None, name: str, offset: int, deserializer: Deserializer | None = None
    ) -> None:
        self.topic = found.topic
        self.partition = partition
        self.name = name
        self._mark = str(found.id)  # offsets of another topic that has its name by now mean something else
        self.offset = offset  # the next to be read
        self.handed = offset  # the next to be handed to the program
        self.deserializer = deserializer
        self.end: int | None = None  # not read any more

    @property
    def over(self) -> bool:
        return self.end is not None and self.offset >= self.end

    async def read(self, client: Client, end: int | None = None) -> list[MessageBatch]:
        """What follows, up to `end` (exclusive); nothing if nothing is there."""
        found = await self._read(client, end)
        if found or end is None or self.offset >= end or end > (await client.bounds(self.name))[1]:
            return found
        found = await self._read(client, end)  # what is there by now may have come behind the first answer
        if not found:
            self.offset = end  # what was there is deleted
        return found

    async def _read(self, client: Client, end: int | None) -> list[MessageBatch]:
        place = {"topic": self.name, "resume": self._mark, "offset": self.offset}
        answer = await client.ask_any("read", {**place, "bytes_max": READ_AHEAD_BYTES})
        found: list[MessageBatch] = []
        for data in answer.batches if isinstance(answer, Batches) else ():
            content = Batch.parse(data)
            first = max(self.offset, content.base_offset)
            last = content.last_offset if end is None else min(content.last_offset, end - 1)
            if first <= last:
                found.append(MessageBatch(self, content, first, last, 0, 0))
            self.offset = max(self.offset, last + 1)
        return found


async def places_of(
    client: Client,
    topic: str,
    start: Start | Offsets,
    partition: int | None,
    deserializer: Deserializer | None = None,
    end: Start | Offsets | None = None,
) -> list[Place]:
    """Where `start` and `end` are in each partition, or in the one that is named."""
    topic = full_name(topic)
    found = await client.topic(topic)
    wanted = [(number, name) for number, name in found.places() if partition is None or number == partition]
    for place in (start, end):
        if not wanted or (type(place) is int and place and len(wanted) > 1):
            raise ArgumentInvalid(f"{topic} has {found.partitions} partitions; to read from {place!r}, name one")
    places: list[Place] = []
    for number, name in wanted:
        offset = await offset_of(client, name, _part_of(start, number))
        places.append(Place(found, number, name, offset, deserializer))
        if end is not None:
            places[-1].end = await offset_of(client, name, _part_of(end, number))
    return places


def _part_of(place: Start | Offsets, partition: int | None) -> Start:
    """Of offsets by partition, this one's; a partition that is not named is new, and read from its beginning.

    A checkpoint that was kept as JSON has its partitions as text.
    """
    if not isinstance(place, Mapping) or "time" in place:
        return cast(Start, place)
    offsets = {"null" if each is None else str(each): offset for each, offset in place.items()}
    for name in offsets:
        if name != "null" and not name.isdecimal():
            raise ArgumentInvalid(f"offsets must be numbers by partition, as in {{0: 42}}; {name!r} is not a partition")
    return offsets.get("null" if partition is None else str(partition), "earliest")


async def offset_of(client: Client, name: str, start: Start) -> int:
    place = wire_start(start, client.clock.wall())
    if isinstance(place, dict):
        return int((await client.ask("offset_of_time", {"topic": name, **place}))["offset"])
    if isinstance(place, str):
        first, end = await client.bounds(name)
        return first if place == "earliest" else end
    return place


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
        self._places: list[Place] = []  # another list after each seek
        self._turn = 0
        self._queue: deque[MessageBatch] = deque()  # read and not handed out
        self._rows: Iterator[Message] = iter(())  # of the batch that is being handed out
        self._reading = asyncio.Lock()
        self._refresher: Task[None] | None = None  # looks for new partitions
        self._closed: DanubeError | None = NotOpened(f"the reader of {topic} is not open yet")

    @property
    def offsets(self) -> dict[int | None, int]:
        """For each partition, the offset after the last message returned: where another reader can continue."""
        return {place.partition: place.handed for place in self._places}

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
        """The next message, None at the end. Once it is here nothing is awaited: none is lost or given twice."""
        while True:
            for message in self._rows:
                cast(Place, message.batch.source).handed = message.offset + 1
                return message
            if self._queue:
                batch = self._queue.popleft()
                cast(Place, batch.source).handed = batch.last + 1  # if it cannot be read, the reader stands behind it
                self._rows = batch.messages()
                cast(Place, batch.source).handed = batch.first
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
            cast(Place, batch.source).handed = batch.last + 1
        return batch

    async def _fill(self) -> bool:
        """Until there is something to hand out; False at the end. One task at a time reads, for all."""
        async with self._reading:
            pauses, failures = iter(POLL), 0
            while not self._queue:
                if self._closed is not None:
                    raise fresh(self._closed)
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
                if self._places and all(place.over for place in self._places):
                    return False
                await asyncio.sleep(next(pauses))
            return True

    async def _read_in_turn(self) -> None:
        """From the next partition that has something."""
        places = self._places
        for _ in range(len(places)):
            place = places[self._turn % len(places)]
            self._turn = (self._turn + 1) % len(places)
            if place.over:
                continue
            found = await place.read(self.client, place.end)
            if places is not self._places:  # somebody has sought meanwhile
                return
            if found:
                self._queue.extend(found)
                return

    async def _grow(self) -> None:
        """New partitions join, from their beginning."""
        places = self._places
        found = await self.client.topic(self.topic)
        for number, name in found.places()[len(places) :]:
            first, _ = await self.client.bounds(name)
            if places is self._places:  # else somebody has sought meanwhile, and found it
                places.append(Place(found, number, name, first, self._deserializer))

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def seek(self, to: Start | Offsets) -> None:
        """Moves to earliest, latest, an offset, a time, or the `offsets` of another reader."""
        places = await places_of(self.client, self.topic, to, self._partition, self._deserializer, self._end)
        self._places, self._turn = places, 0
        self._queue.clear()
        self._rows = iter(())

    async def open(self) -> Self:
        await self.seek(self._start)
        self._closed = None
        self.client.add(self)
        if self._end is None and self._partition is None and self._places[0].partition is not None:
            self._refresher = self.client.loop.create_task(follow_topic(self.client, self.topic, self._grow))
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

    def disown(self, error: DanubeError) -> None:
        """It belongs to another process: whoever uses it here gets this error."""
        self._closed = error


async def read_arrow(client: Client, topic: str, start: Start, end: Start, partition: int | None) -> pa.Table:
    import pyarrow as pa

    from pydanube.wire.arrow import record_schema

    parts: list[Any] = []
    for place in await places_of(client, topic, start, partition):
        _, confirmed = await client.bounds(place.name)
        stop = min(await offset_of(client, place.name, end), confirmed)
        while place.offset < stop:
            batches = await place.read(client, stop)
            if not batches:
                break
            parts += [batch.to_arrow() for batch in batches]
    return pa.Table.from_batches(parts, schema=record_schema())
