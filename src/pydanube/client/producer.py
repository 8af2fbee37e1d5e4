"""A producer: takes messages one by one or in lists, and spreads them over the lanes of its topic's partitions.

`send` is a plain call and must stay one of the cheapest things in the client: per message it appends to a list, counts
bytes and makes one small object. Everything else happens per batch.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pydanube.base.errors import (
    AlreadyOpened,
    ArgumentInvalid,
    BatchInvalid,
    BatchTooLarge,
    ClientClosed,
    DanubeError,
    ProducerBusy,
)
from pydanube.base.limits import (
    BATCH_BYTES_MAX,
    BATCH_MESSAGES_MAX,
    KIB,
    MESSAGE_OVERHEAD_BYTES,
    PRODUCER_BATCH_BYTES,
    PRODUCER_BATCH_MESSAGES,
    PRODUCER_BUFFER_BYTES,
)
from pydanube.client.lane import Lane
from pydanube.client.outgoing import OnError, Outgoing, Sent, SentMany, fresh
from pydanube.client.values import When, attributes_of, codec_of, key_of, microseconds_of, payload_of

if TYPE_CHECKING:
    from pydanube.client.client import Client

REFRESH_SECONDS = 5.0  # how often new partitions are looked for
MESSAGE_BYTES_MAX = BATCH_BYTES_MAX - 64 * KIB  # with its key, and the columns around it, it fits a batch
Serializer = Callable[[Any], bytes | None]


class Producer:
    """Made by `Client.producer`; used with `async with`, or `open` and `close`."""

    def __init__(
        self,
        client: Client,
        topic: str,
        *,
        name: str | None = None,
        fresh: bool = False,
        reliable: bool = True,
        create: bool = True,
        compression: str = "none",
        serializer: Serializer | None = None,
        on_error: OnError | None = None,
        linger: float = 0.002,
        batch_bytes: int = PRODUCER_BATCH_BYTES,
        batch_messages: int = PRODUCER_BATCH_MESSAGES,
        buffer_bytes: int = PRODUCER_BUFFER_BYTES,
        send_timeout: float = 30.0,
    ) -> None:
        self.client = client
        self.topic = topic
        self.new = name is None  # nobody has used the name before, and nobody will again
        self.fresh = fresh or self.new  # its user vouches that it sends nothing that was sent under the name before
        self.name = name or f"producer-{client.randomness.bytes(8).hex()}"
        self.reliable = reliable
        self.create = create
        self.send_timeout = send_timeout
        self.codec = codec_of(compression)
        self._serializer = serializer
        self._on_error = on_error
        self._linger = linger
        self._batch_bytes = min(batch_bytes, BATCH_BYTES_MAX // 4)
        self._last_row = min(batch_messages, BATCH_MESSAGES_MAX) - 1
        self._buffer_bytes = buffer_bytes
        self._buffered = 0  # of sealed batches; those being filled come on top, one for each partition at most
        self._lanes: list[Lane] = []
        self._turn = 0
        self._hash: Callable[[bytes], int]  # of keys, as the topic has it
        self._lane: Lane  # takes the keyless messages now
        self._closed: DanubeError | None = ClientClosed("the producer is not open yet")
        self._failed: list[tuple[Outgoing, DanubeError]] = []  # the first of them that nobody waited for
        self._failures = 0
        self._room: list[Future[None]] = []
        self._opened = False  # or being opened
        self._opening: list[Lane] = []  # of partitions that are new
        self._refresher: Task[None] | None = None

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(
        self,
        payload: Any,
        *,
        key: str | bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        event_time: When | None = None,
        delivery_time: When | None = None,
        sequence: int | None = None,
    ) -> Sent:
        """Hands a message over and returns at once. `await` the answer for its receipt, or drop it.

        Awaiting sends at once; else it goes within `linger`, with others. Raises `ProducerBusy` when too much is not
        acknowledged yet. Times are microseconds since 1970 or datetimes with a zone. `sequence` is the application's
        own number for the message: one that was published before, also by an earlier process under the producer's
        name, is not published again; a number left out is a `SequenceGap`. See `last_sequence`.
        """
        if self._serializer is not None:
            payload = self._serializer(payload)
        if type(payload) is not bytes:
            payload = payload_of(payload)
        size = len(payload) + MESSAGE_OVERHEAD_BYTES if payload else MESSAGE_OVERHEAD_BYTES
        if key is None and attributes is None and event_time is None and delivery_time is None and sequence is None:
            outgoing = self._lane.filling
            row = len(outgoing.payloads)
            if not row or size > self._batch_bytes:
                outgoing = self._begin(self._lane, size)
                row = 0
        else:
            outgoing, size = self._put_aside(size, key, attributes, event_time, delivery_time, sequence)
            row = len(outgoing.payloads)
        outgoing.payloads.append(payload)
        outgoing.bytes = size = outgoing.bytes + size
        if size >= self._batch_bytes or row >= self._last_row or outgoing.again:
            self._full(outgoing.way)  # type: ignore[arg-type]  # a lane: every way of a producer is
        return Sent(outgoing, row)

    def _begin(self, lane: Lane, size: int) -> Outgoing:
        """A batch with nothing in it, for a message of this size."""
        if self._closed is not None:
            raise fresh(self._closed)
        if size > MESSAGE_BYTES_MAX:
            raise BatchTooLarge(f"a message of {size} bytes, at most {MESSAGE_BYTES_MAX}")
        if self._buffered >= self._buffer_bytes:
            raise ProducerBusy(f"{self._buffered} bytes sent to {self.topic} are not acknowledged yet")
        if lane.filling.payloads:
            self._full(lane)
        lane.begin(self._linger)
        return lane.filling

    def _put_aside(
        self,
        size: int,
        key: str | bytes | None,
        attributes: Mapping[str, str] | None,
        event_time: When | None,
        delivery_time: When | None,
        sequence: int | None,
    ) -> tuple[Outgoing, int]:
        """Checks what belongs to a message besides its payload before any of it is kept, and keeps it."""
        name = None if key is None else key_of(key)
        happened = None if event_time is None else microseconds_of(event_time)
        due = None if delivery_time is None else microseconds_of(delivery_time)
        texts = attributes_of(attributes) if attributes else None
        size += len(name or b"")
        if texts:
            size += sum(map(len, texts)) * 4 + sum(map(len, texts.values())) * 4
        lane = self._lane if name is None else self._lane_of(name)
        again = sequence is not None and sequence < self._expect(lane, sequence, keyed=name is not None)
        outgoing = lane.filling
        if not outgoing.payloads or size > self._batch_bytes or again:
            outgoing = self._begin(lane, size)
            outgoing.numbered, outgoing.again = sequence, again
        row = len(outgoing.payloads)
        if name is not None:
            outgoing.keys[row] = name
        if texts:
            outgoing.attributes[row] = texts
        if happened is not None:
            outgoing.event_times[row] = happened
        if due is not None:
            outgoing.delivery_times[row] = due
        return outgoing, size

    def _lane_of(self, key: bytes) -> Lane:
        return self._lanes[self._hash(key) % len(self._lanes)] if len(self._lanes) > 1 else self._lane

    def _expect(self, lane: Lane, sequence: int, *, keyed: bool) -> int:
        if self.new or not self.reliable:
            raise ArgumentInvalid("sequences are remembered by name: give the producer of a reliable topic one")
        if len(self._lanes) > 1 and not keyed:
            raise ArgumentInvalid("each partition has its own sequences: a message with one needs a key")
        return lane.expect(sequence)

    def _full(self, lane: Lane) -> None:
        lane.seal()
        lane.pump()

    def send_many(
        self,
        payloads: Iterable[Any],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        sequence: int | None = None,
    ) -> SentMany:
        """As `send`, for many messages at once and at a fraction of the cost. `await` it for their receipts.

        A list counts as one when it comes to `ProducerBusy`: it is taken as a whole or not at all. `sequence` is the
        first message's, for a topic without partitions.
        """
        if self._closed is not None:
            raise fresh(self._closed)
        if self._buffered >= self._buffer_bytes:
            raise ProducerBusy(f"{self._buffered} bytes sent to {self.topic} are not acknowledged yet")
        values = payloads if type(payloads) is list and self._serializer is None else self._serialized(payloads)
        names = None if keys is None else [None if key is None else key_of(key) for key in keys]
        if names is not None and len(names) != len(values):
            raise BatchInvalid(f"{len(names)} keys for {len(values)} messages")
        try:
            total = sum(map(len, values))
        except TypeError:  # a tombstone, or nothing that can be sent
            values = list(map(payload_of, values))
            total = sum(len(value) for value in values if value is not None)
        if total > self._batch_bytes or len(values) > self._last_row:  # several batches: all of them are sound, or none
            values = list(map(payload_of, values)) if set(map(type, values)) != {bytes} else values
            if total > MESSAGE_BYTES_MAX and max(map(len, filter(None, values))) > MESSAGE_BYTES_MAX:
                raise BatchTooLarge(f"a message of more than {MESSAGE_BYTES_MAX} bytes")
        batches: list[Outgoing] = []
        known = 0  # of the first messages, those that were sent before: each goes alone, however they were cut then
        if sequence is not None:
            known = min(len(values), self._expect(self._lane, sequence, keyed=False) - sequence)
            for row in range(known):
                one = slice(row, row + 1)
                self._send_rows(self._lane, values[one], names and names[one], batches, sequence + row, again=True)
            values, names = values[known:], names and names[known:]
        for lane, first, last in self._cuts(total, len(values), names):
            numbered = None if sequence is None else sequence + known + first
            self._send_rows(lane, values[first:last], names and names[first:last], batches, numbered)
        return SentMany(batches)

    def _serialized(self, payloads: Iterable[Any]) -> list[Any]:
        return list(payloads if self._serializer is None else map(self._serializer, payloads))

    def _cuts(self, total: int, count: int, names: list[bytes | None] | None) -> Iterator[tuple[Lane, int, int]]:
        """Rows that go the same way, about as many as make a batch."""
        each = self._last_row + 1
        if total > self._batch_bytes:
            each = max(1, min(each, self._batch_bytes * count // total))
        if names is None or len(self._lanes) == 1:
            for first in range(0, count, each):
                yield self._lane, first, min(first + each, count)
            return
        first = 0
        while first < count:
            lane = self._way_of(names[first])
            last = first + 1
            while last < count and last - first < each and self._way_of(names[last]) is lane:
                last += 1
            yield lane, first, last
            first = last

    def _way_of(self, name: bytes | None) -> Lane:
        return self._lane if name is None else self._lane_of(name)

    def _send_rows(
        self,
        lane: Lane,
        values: list[Any],
        names: list[bytes | None] | None,
        batches: list[Outgoing],
        sequence: int | None = None,
        *,
        again: bool = False,
    ) -> None:
        """A batch of its own, checked as it is built; of messages of very different sizes, several."""
        if lane.filling.payloads:
            self._full(lane)
        outgoing = Outgoing(lane)
        outgoing.payloads = values
        outgoing.together = True
        outgoing.numbered, outgoing.again = sequence, again
        if names is not None:
            outgoing.keys = {row: name for row, name in enumerate(names) if name is not None}
        try:
            lane.add(outgoing)
        except BatchTooLarge:
            if len(values) == 1:
                raise
            half = len(values) // 2
            self._send_rows(lane, values[:half], names and names[:half], batches, sequence)
            behind = None if sequence is None else sequence + half
            self._send_rows(lane, values[half:], names and names[half:], batches, behind)
            return
        batches.append(outgoing)
        lane.pump()
        self.rotate(lane)

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Sealed and not acknowledged."""
        return self._buffered

    @property
    def busy(self) -> bool:
        """Whether `send` may have no room."""
        return self._buffered > self._buffer_bytes * 3 // 4 and self._closed is None

    async def ready(self) -> None:
        """Until `send` has room again, for a quarter of the buffer at least. Returns at once when it has."""
        while self.busy:
            room: Future[None] = self.client.loop.create_future()
            self._room.append(room)
            await room
        if self._closed is not None:
            raise fresh(self._closed)

    async def flush(self) -> None:
        """Until everything sent before is answered. Raises the first failure of a send that nobody awaited."""
        under_way: list[Outgoing] = []
        for lane in self._lanes:
            under_way += lane.unfinished()
            lane.flush()
        for outgoing in under_way:
            if not outgoing.done:
                waiter: Future[None] = self.client.loop.create_future()
                outgoing.waiters.append(waiter)
                await waiter
            under_way += outgoing.parts  # the loop goes on to them
        self._raise_failures()

    def _raise_failures(self) -> None:
        failed = [error for outgoing, error in self._failed if not outgoing.watched]
        count, self._failed, self._failures = self._failures, [], 0
        if failed:
            error = fresh(failed[0])
            error.add_note(f"{count} messages that nobody waited for were not published")
            raise error

    # -- for its lanes -------------------------------------------------------------------------------------------------

    def rotate(self, lane: Lane) -> None:
        """Keyless messages go on to the next partition with each batch."""
        if lane is self._lane and len(self._lanes) > 1:
            self._turn = (self._turn + 1) % len(self._lanes)
            self._lane = self._lanes[self._turn]

    def taken(self, outgoing: Outgoing) -> None:
        self._buffered += outgoing.bytes

    def finished(self, outgoing: Outgoing) -> None:
        self._buffered -= outgoing.bytes
        if self._room and self._buffered <= self._buffer_bytes // 2:
            self._wake()
        if outgoing.error is not None and not outgoing.watched:
            self._failures += outgoing.count
            if len(self._failed) < 100:
                self._failed.append((outgoing, outgoing.error))
            if self._on_error is not None:
                self.client.call_back(self._on_error, outgoing.error, outgoing.count)

    def _wake(self) -> None:
        for room in self._room:
            if not room.done():
                room.set_result(None)
        self._room.clear()

    def fail(self, error: DanubeError) -> None:
        """A lane is gone for good, and with it the producer."""
        if self._closed is None:
            self._closed = error
            self._stop_looking()
            self._wake()
            for lane in self._lanes:
                if not lane.closed:
                    lane.closed = True
                    lane.given_up(error)

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that the broker is known to have under the producer's name; None if it has none.

        After a restart the application goes on with the next one. Of a topic with partitions see `last_sequences`.
        """
        if len(self._lanes) > 1:
            raise ArgumentInvalid(f"{self.topic} has {len(self._lanes)} partitions, each with its own sequences")
        return self.last_sequences[0] if self._lanes else None

    @property
    def last_sequences(self) -> list[int | None]:
        """The same for each partition."""
        return [lane.last_sequence for lane in self._lanes]

    @property
    def next_sequences(self) -> list[int]:
        """For each partition the number its next batch begins with; 0 for a new name."""
        return [lane.next_sequence for lane in self._lanes]

    async def open(self) -> Self:
        """Once. If it fails nothing is left of it, and it may be tried again."""
        if self._opened:
            raise AlreadyOpened(f"the producer of {self.topic} was opened before")
        self._opened = True
        try:
            found = await self.client.topic(self.topic, create=self.create, reliable=self.reliable)
            self._hash = found.key_hash.function
            for partition, place in found.places():
                self._lanes.append(Lane(self, self.topic, partition, place))
            for lane in self._lanes:
                await self.client.within("open_producer", lane.open())
        except BaseException:
            lanes, self._lanes, self._opened = self._lanes, [], False
            for lane in lanes:
                lane.close_at_once()
            raise
        self._lane = self._lanes[0]
        self._closed = None
        self.client.add(self)
        if found.partitions:  # else it never has any
            self._refresher = self.client.loop.create_task(self._refresh())
        return self

    async def _refresh(self) -> None:
        while self._closed is None:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self._grow()
            except DanubeError as error:
                self.client.say("refresh_failed", error)  # looked for again

    def _stop_looking(self) -> None:
        if self._refresher is not None and not self._opening:
            self._refresher.cancel()
        for lane in self._opening:
            lane.closed = True  # it lets go of what the broker opens, when it has the answer

    async def _grow(self) -> None:
        """Ways to partitions that are new, used once all of them are open: keys are spread over all from then on.

        What was handed over before stays on its way.
        """
        found = await self.client.topic(self.topic)
        for partition, place in found.places()[len(self._lanes) :]:
            self._opening.append(Lane(self, self.topic, partition, place))
        opening = self._opening
        try:
            for lane in opening:
                await lane.open()
        except BaseException:
            for lane in opening:
                lane.close_at_once()
            raise
        finally:
            self._opening = []
        self._lanes += opening

    async def close(self) -> None:
        """Sends and awaits what was handed over, then lets go. Raises as `flush` does."""
        if self._closed is not None:
            self.client.remove(self)
            self._raise_failures()
            return
        try:
            await self.flush()
        finally:
            self._stop_looking()
            self._closed = ClientClosed(f"the producer of {self.topic} was closed")
            self._wake()
            self.client.remove(self)
            for lane in self._lanes:
                lane.stop()
                await lane.close_channel()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except DanubeError:
            if error is None:  # else the program's own error says more
                raise
