"""Reading without a subscription: nothing is acknowledged, nobody else is affected, and the reader keeps its place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydanube.base.errors import ArgumentInvalid, ClientClosed, NothingReceived
from pydanube.base.limits import READ_AHEAD_BYTES
from pydanube.client.consumer import Start, wire_start
from pydanube.client.messages import Deserializer, Message, MessageBatch
from pydanube.wire.batch import Batch
from pydanube.wire.commands import Batches

if TYPE_CHECKING:
    import pyarrow as pa

    from pydanube.client.client import Client

POLL_SECONDS = 0.005  # at the end of a topic: doubled while nothing comes
POLL_SECONDS_MAX = 0.1


class Place:
    """Where a reader stands in one partition."""

    def __init__(self, topic: str, partition: int | None, name: str, offset: int, deserializer: Deserializer | None):
        self.topic = topic
        self.partition = partition
        self.name = name
        self.offset = offset  # the next to be read
        self.deserializer = deserializer

    async def read(self, client: Client, end: int | None = None) -> list[MessageBatch]:
        """What follows, up to `end` (exclusive); nothing if nothing is there."""
        request = {"topic": self.name, "offset": self.offset, "bytes_max": READ_AHEAD_BYTES}
        answer = await client.ask_any("read", request)
        if not isinstance(answer, Batches):
            return []
        found: list[MessageBatch] = []
        for data in answer.batches:
            content = Batch.parse(data)
            first = max(self.offset, content.base_offset)
            last = content.last_offset if end is None else min(content.last_offset, end - 1)
            if first > last:
                continue
            found.append(MessageBatch(self, content, first, last, 0, 0))
            self.offset = last + 1
        return found


async def places_of(
    client: Client, topic: str, start: Start, partition: int | None, deserializer: Deserializer | None = None
) -> list[Place]:
    """Where `start` is in each partition, or in the one that is named."""
    found = await client.topic(topic)
    wanted = [(number, name) for number, name in found.places() if partition is None or number == partition]
    if not wanted or (type(start) is int and start and len(wanted) > 1):
        raise ArgumentInvalid(f"{topic} from {start!r} needs one of its {found.partitions} partitions")
    places = [Place(topic, number, name, await offset_of(client, name, start), deserializer) for number, name in wanted]
    return places


async def offset_of(client: Client, name: str, start: Start) -> int:
    place = wire_start(start)
    if isinstance(place, dict):
        return int((await client.ask("offset_of_time", {"topic": name, **place}))["offset"])
    if isinstance(place, str):
        first, end = await client.bounds(name)
        return first if place == "earliest" else end
    return place


class Reader:
    """Made by `Client.reader`; used with `async with`. Goes through the partitions in turn."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        start: Start = "earliest",
        partition: int | None = None,
        deserializer: Deserializer | None = None,
    ) -> None:
        self.client = client
        self.topic = topic
        self._start = start
        self._partition = partition
        self._deserializer = deserializer
        self._places: list[Place] = []
        self._turn = 0
        self._ready: list[MessageBatch] = []  # read and not handed out, the next last
        self._rows: Iterator[Message] = iter(())
        self._closed = True

    @property
    def offsets(self) -> dict[int | None, int]:
        """By partition the offset that is read from the broker next."""
        return {place.partition: place.offset for place in self._places}

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in self._rows:
                yield message
            self._rows = (await self._next_batch()).messages()

    async def batches(self) -> AsyncIterator[MessageBatch]:
        while True:
            yield await self._next_batch()

    async def receive(self, timeout: float | None = None) -> Message:  # noqa: ASYNC109 - a word of the API
        try:
            async with asyncio.timeout(timeout):
                while True:
                    for message in self._rows:
                        return message
                    self._rows = (await self._next_batch()).messages()
        except TimeoutError:
            raise NothingReceived(f"nothing more in {self.topic} for {timeout} seconds") from None

    async def _next_batch(self) -> MessageBatch:
        pause = POLL_SECONDS
        while not self._ready:
            for _ in self._places:
                if self._closed:
                    raise ClientClosed("the reader was closed")
                place = self._places[self._turn]
                self._turn = (self._turn + 1) % len(self._places)
                self._ready = (await place.read(self.client))[::-1]
                if self._ready:
                    break
            else:
                await asyncio.sleep(pause)
                pause = min(pause * 2, POLL_SECONDS_MAX)
        return self._ready.pop()

    async def seek(self, to: Start) -> None:
        self._places = await places_of(self.client, self.topic, to, self._partition, self._deserializer)
        self._turn = 0
        self._ready = []
        self._rows = iter(())

    async def open(self) -> Self:
        await self.seek(self._start)
        self._closed = False
        self.client.add(self)
        return self

    async def close(self) -> None:
        self._closed = True
        self.client.remove(self)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


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
