"""A producer: takes messages one by one or in lists, and spreads them over the lanes of its topic's partitions.

`send` is a plain call and must stay one of the cheapest things in the client: per message it appends to a list, counts
bytes and makes one small object. Everything else happens per batch.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, Future, Task
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, cast

from pydanube.base.errors import (
    AlreadyOpened,
    ArgumentInvalid,
    BatchInvalid,
    BatchTooLarge,
    ClientClosed,
    DanubeError,
    MessageTooLarge,
    NotOpened,
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
    SECOND,
)
from pydanube.base.names import full_name
from pydanube.client.bulk import Bulk
from pydanube.client.channel import HINDRANCES
from pydanube.client.ending import Openable
from pydanube.client.failures import Failures
from pydanube.client.lane import Lane
from pydanube.client.line import InLine, Line
from pydanube.client.outgoing import Handed, OnError, Outgoing, Receipt, Receipts, Sent, SentMany, fresh
from pydanube.client.topic_watch import follow_topic
from pydanube.client.values import (
    Duration,
    Size,
    When,
    attributes_of,
    codec_of,
    key_of,
    microseconds_of,
    payload_of,
    seconds_of,
    size_of,
)
from pydanube.client.waiters import Waiters

if TYPE_CHECKING:
    from pydanube.client.client import Client

MESSAGE_BYTES_MAX = BATCH_BYTES_MAX - 64 * KIB  # with its key, and the columns around it, it fits a batch
Serializer = Callable[[Any], bytes | None]


class _Message(NamedTuple):
    """One message, checked and ready to be put into a batch."""

    payload: bytes | None
    size: int  # with what goes along
    key: bytes | None
    attributes: Mapping[str, str] | None
    event_time: int | None
    delivery_time: int | None
    sequence: int | None


class Producer(Openable):
    """A producer, created by `Client.producer`. Use it with `async with`, or `open` and `close`."""

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
        linger: Duration = 0.0,
        batch_bytes: Size = PRODUCER_BATCH_BYTES,
        batch_messages: int = PRODUCER_BATCH_MESSAGES,
        buffer_bytes: Size = PRODUCER_BUFFER_BYTES,
        send_timeout: Duration = 30.0,
    ) -> None:
        topic = full_name(topic)
        self.client = client
        self.topic = topic
        self.new = name is None  # nobody has used the name before, and nobody will again
        self.fresh = fresh or self.new  # its user vouches that it sends nothing that was sent under the name before
        self.name = name or f"producer-{client.randomness.bytes(8).hex()}"
        self.reliable = reliable
        self.create = create
        self.send_timeout = seconds_of(send_timeout)
        self.codec = codec_of(compression)
        self._serializer = serializer
        self._failures = Failures(client, topic, on_error)
        self._linger = seconds_of(linger)
        self.batch_bytes = min(size_of(batch_bytes), BATCH_BYTES_MAX // 4)
        self._message_bytes_max: int | None = None  # of a payload, as the topic's policies have it
        self._plain_bytes_max = self.batch_bytes  # a message that joins others in a batch without a closer look
        self._last_row = min(batch_messages, BATCH_MESSAGES_MAX) - 1
        self.buffer_bytes = max(1, size_of(buffer_bytes))
        self._buffered = 0  # of sealed batches; those being filled come on top, one for each partition at most
        self._lanes: list[Lane] = []
        self._turn = 0
        self._hash: Callable[[bytes], int]  # of keys, as the topic has it
        self._lane = cast(Lane, _Nowhere())  # takes the keyless messages now
        self._closed: DanubeError | None = NotOpened(f"the producer of {topic} is not open yet")
        self._room = Waiters()
        self._line = Line(self)
        self._in_line = self._line.queue  # empty most of the time
        self._making_room = False
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
        delay: Duration | None = None,
        sequence: int | None = None,
    ) -> Handed[Receipt]:
        """Queues a message and returns at once. `await` the result for its receipt, or ignore it.

        The message is sent at once if nothing is in flight, and otherwise together with others when that is answered;
        `linger` waits for more messages. While the buffer is full, the message waits in line, and so does `await`;
        `ProducerBusy` is raised only if too much that nobody awaits is waiting. Text is sent as UTF-8. Times are
        microseconds since 1970 or datetimes with a time zone; `delay` is seconds or a timedelta from now until
        delivery. `sequence` is the application's own number for the message: a number that was already published,
        even by an earlier process under the producer's name, is not published again; skipping a number raises
        `SequenceGap`. See `last_sequence`.
        """
        if delay is not None:
            delivery_time = self._due(delay, delivery_time)
        if self._serializer is not None:
            payload = self._serializer(payload)
        if type(payload) is not bytes:
            payload = payload_of(payload)
        size = len(payload) + MESSAGE_OVERHEAD_BYTES if payload else MESSAGE_OVERHEAD_BYTES
        if key is None and attributes is None and event_time is None and delivery_time is None and sequence is None:
            outgoing = self._lane.filling  # empty while anything stands in the way: see `_hold_back`
            row = len(outgoing.payloads)
            if row and size <= self._plain_bytes_max:
                outgoing.payloads.append(payload)
                outgoing.bytes = size = outgoing.bytes + size
                if size >= self.batch_bytes or row >= self._last_row:
                    self._full(outgoing.way)  # type: ignore[arg-type]  # a lane: every way of a producer is
                return Sent(outgoing, row)
        if self._closed is not None:
            raise fresh(self._closed)
        message = self._checked(payload, size, key, attributes, event_time, delivery_time, sequence)
        if self._in_line or self._buffered >= self.buffer_bytes:
            self._hold_back()
            return self._line.join(lambda: self._put(message), message.size, 1)
        return self._put(message)

    def _due(self, delay: Duration, delivery_time: When | None) -> int:
        if delivery_time is not None:
            raise ArgumentInvalid("pass either delay or delivery_time, not both")
        seconds = seconds_of(delay)
        if not seconds >= 0:
            raise ArgumentInvalid(f"a delay must not be negative, got {delay}")
        return self.client.clock.wall() + round(seconds * SECOND)

    def send_nowait(self, payload: Any, **options: Any) -> Handed[Receipt]:
        """Like `send`, but raises `ProducerBusy` while the buffer is full. Takes the options of `send`."""
        if self.full or self._line:
            raise ProducerBusy(f"{self._buffered} bytes sent to {self.topic} are not acknowledged yet")
        return self.send(payload, **options)

    def _checked(
        self,
        payload: bytes | None,
        size: int,
        key: str | bytes | None,
        attributes: Mapping[str, str] | None,
        event_time: When | None,
        delivery_time: When | None,
        sequence: int | None,
    ) -> _Message:
        """Everything that belongs to a message, before any of it is kept; raises what is wrong with it."""
        name = None if key is None else key_of(key)
        happened = None if event_time is None else microseconds_of(event_time)
        due = None if delivery_time is None else microseconds_of(delivery_time)
        texts = attributes_of(attributes) if attributes else None
        if name is not None:
            size += len(name)
        if texts:
            size += _size_of(texts)
        if size > MESSAGE_BYTES_MAX:
            raise _too_large(size)
        self._check_size(len(payload or b""))
        return _Message(payload, size, name, texts, happened, due, sequence)

    def _check_size(self, largest: int) -> None:
        """Raises if the topic takes no payload of this size, as far as its broker has said."""
        limit = self._message_bytes_max
        if limit is not None and largest > limit:
            raise MessageTooLarge(f"{self.topic} accepts messages of at most {limit} bytes, this one has {largest}")

    def _put(self, message: _Message) -> Sent:
        """There is room: the message is kept."""
        payload, size, name, texts, happened, due, sequence = message
        lane = self.lane_of(name)
        again = sequence is not None and sequence < self.expect(lane, sequence, keyed=name is not None)
        outgoing = lane.filling
        if not outgoing.payloads or size > self.batch_bytes or again:
            outgoing = self._begin(lane)
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
        outgoing.payloads.append(payload)
        outgoing.bytes = size = outgoing.bytes + size
        if size >= self.batch_bytes or row >= self._last_row or again:
            self._full(lane)
        return Sent(outgoing, row)

    def _begin(self, lane: Lane) -> Outgoing:
        """A batch with nothing in it."""
        self.client.check_loop()
        if lane.filling.payloads:
            self._full(lane)
        lane.begin(self._linger)
        return lane.filling

    def _hold_back(self) -> None:
        """What is being filled goes, so that nothing that comes now slips in before others who wait, or unseen."""
        for lane in self._lanes:
            if lane.filling.payloads:
                self._full(lane)

    def _full(self, lane: Lane) -> None:
        lane.seal()
        lane.pump()

    def send_many(
        self,
        payloads: Iterable[Any],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        sequence: int | None = None,
    ) -> Handed[Receipts]:
        """Like `send`, for many messages at a fraction of the cost. `await` the result for their receipts.

        A list is accepted as a whole or not at all: while the buffer is full it waits in line, and if one of its
        messages cannot be sent, none is. `sequence` is that of the first message, for a topic without partitions.
        """
        if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
            raise TypeError(f"send_many takes a list of payloads, got {type(payloads).__name__}; `send` takes one")
        if self._closed is not None:
            raise fresh(self._closed)
        values = payloads if type(payloads) is list and self._serializer is None else self._serialized(payloads)
        names = None if keys is None else [None if key is None else key_of(key) for key in keys]
        if names is not None and len(names) != len(values):
            raise BatchInvalid(f"{len(names)} keys for {len(values)} messages")
        try:
            total = sum(map(len, values))
        except TypeError:  # a tombstone, or nothing that can be sent
            values = list(map(payload_of, values))
            total = sum(len(value) for value in values if value is not None)
        limit = self._message_bytes_max
        if (total > self.batch_bytes or limit is not None) and set(map(type, values)) != {bytes}:
            values = list(map(payload_of, values))
            total = sum(len(value) for value in values if value is not None)
        if total > MESSAGE_BYTES_MAX or (limit is not None and total > limit):
            largest = max(map(len, filter(None, values)))
            if largest > MESSAGE_BYTES_MAX:
                raise _too_large(largest)
            self._check_size(largest)
        if self._line or self._buffered >= self.buffer_bytes:
            self._hold_back()
            kept = list(map(payload_of, values))  # the program may change its list meanwhile
            return self._line.join(lambda: self._put_many(kept, total, names, sequence), total, len(values))
        self.client.check_loop()
        return self._put_many(values, total, names, sequence)

    def _put_many(
        self, values: list[Any], total: int, names: list[bytes | None] | None, sequence: int | None
    ) -> SentMany:
        return SentMany(Bulk(self).send(values, total, names, sequence))

    def _serialized(self, payloads: Iterable[Any]) -> list[Any]:
        return list(payloads if self._serializer is None else map(self._serializer, payloads))

    # -- ways ----------------------------------------------------------------------------------------------------------

    @property
    def batch_messages(self) -> int:
        return self._last_row + 1

    @property
    def partitioned(self) -> bool:
        return len(self._lanes) > 1

    def lane_of(self, key: bytes | None) -> Lane:
        """The way that a message with this key goes now."""
        return self._lane if key is None or len(self._lanes) == 1 else self._lanes[self._hash(key) % len(self._lanes)]

    def expect(self, lane: Lane, sequence: int, *, keyed: bool) -> int:
        """The application numbers its messages: what the next new one has."""
        if self.new or not self.reliable:
            raise ArgumentInvalid("sequences need a producer name; give this producer one")
        if len(self._lanes) > 1 and not keyed:
            raise ArgumentInvalid("each partition has its own sequences; a message with a sequence needs a key")
        return lane.expect(sequence)

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Sealed and not acknowledged."""
        return self._buffered

    @property
    def unsent(self) -> int:
        """Messages that were handed over and are not answered."""
        under_way = [outgoing for lane in self._lanes for outgoing in lane.unfinished() if not outgoing.done]
        return self._line.messages + sum(outgoing.count or len(outgoing.payloads) for outgoing in under_way)

    @property
    def full(self) -> bool:
        """Whether a send would have to wait."""
        return self._buffered >= self.buffer_bytes

    @property
    def busy(self) -> bool:
        """Whether `send` may have no room."""
        return bool(self._line) or (self._buffered > self.buffer_bytes * 3 // 4 and self._closed is None)

    async def ready(self) -> None:
        """Waits until at least a quarter of the buffer is free; returns at once if it already is."""
        while self.busy:
            await self._room.wait(self.client.loop)
        if self._closed is not None:
            raise fresh(self._closed)

    async def flush(self) -> None:
        """Waits until everything sent so far is answered. Raises the first failure of a send that was not awaited."""
        await self._settled()
        self._failures.raise_first()

    async def _settled(self) -> None:
        await self._line.settled()
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

    # -- for its lanes -------------------------------------------------------------------------------------------------

    def limit(self, message_bytes_max: int | None) -> None:
        """What the topic takes now; it is the same for all partitions."""
        self._message_bytes_max = message_bytes_max
        largest = self.batch_bytes if message_bytes_max is None else message_bytes_max + MESSAGE_OVERHEAD_BYTES
        self._plain_bytes_max = min(self.batch_bytes, largest)

    def rotate(self, lane: Lane) -> None:
        """Keyless messages go on to the next partition with each batch."""
        if lane is self._lane and len(self._lanes) > 1:
            for _ in self._lanes:  # past those that are damaged
                self._turn = (self._turn + 1) % len(self._lanes)
                self._lane = self._lanes[self._turn]
                if self._lane.hindrance is None:
                    break

    def taken(self, outgoing: Outgoing) -> None:
        self._buffered += outgoing.bytes

    def finished(self, outgoing: Outgoing) -> None:
        self._buffered -= outgoing.bytes
        if (self._room or self._line) and self._buffered <= self.buffer_bytes // 2 and not self._making_room:
            self._making_room = True
            self.loop.call_soon(self._make_room)  # not at once: the lane is in the middle of something
        if outgoing.error is not None and not outgoing.watched:
            self.unwatched(outgoing, outgoing.error)

    def _make_room(self) -> None:
        self._making_room = False
        self._line.advance()
        if not self.busy:
            self._room.wake()

    def fail(self, error: DanubeError) -> None:
        """A lane is gone for good, and with it the producer."""
        if self._closed is None:
            self._closed = error
            self._stop_looking()
            self._line.fail(error)
            self._room.wake()
            for lane in self._lanes:
                if not lane.closed:
                    lane.closed = True
                    lane.given_up(error)

    # -- for its line --------------------------------------------------------------------------------------------------

    @property
    def loop(self) -> AbstractEventLoop:
        return self.client.loop

    def obstacle(self) -> DanubeError | None:
        return next(filter(None, (lane.obstacle() for lane in self._lanes)), None)

    def unwatched(self, failed: Outgoing | InLine[Any], error: DanubeError) -> None:
        """Messages failed, and nobody awaits them."""
        self._failures.add(failed, error)

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that the broker is known to have under the producer's name; None if it has none.

        After a restart the application continues with the next one. Of a topic with partitions see `last_sequences`.
        """
        if len(self._lanes) > 1:
            raise ArgumentInvalid(
                f"{self.topic} has {len(self._lanes)} partitions, each with its own sequences; use last_sequences"
            )
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
        """Opens it, once. If opening fails, nothing is left behind, and you can try again."""
        if self._opened:
            raise AlreadyOpened(f"the producer of {self.topic} was already opened")
        self._opened = True
        try:
            found = await self.client.topic(self.topic, create=self.create, reliable=self.reliable)
            self._hash = found.key_hash.function
            for partition, place in found.places():
                self._lanes.append(Lane(self, self.topic, partition, place))
            for lane in self._lanes:
                await self._open_lane(lane)
            if all(lane.hindrance is not None for lane in self._lanes):
                raise fresh(cast(DanubeError, self._lanes[0].hindrance))
        except BaseException:  # nothing was taken yet
            lanes, self._lanes, self._opened = self._lanes, [], False
            for lane in lanes:
                lane.close_at_once()
            raise
        self._lane = self._lanes[0]
        self._closed = None
        for lane in self._lanes:
            if lane.hindrance is not None:
                self.rotate(lane)
                lane.wait_for_mending()
        self.client.add(self)
        if found.partitions:  # else it never has any
            self._refresher = self.client.loop.create_task(follow_topic(self.client, self.topic, self._grow))
        return self

    async def _open_lane(self, lane: Lane) -> None:
        try:
            await self.client.within("open_producer", lane.open())
        except HINDRANCES as error:
            if not lane.mends(error):
                raise

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
            if self._closed is not None and self._refresher is not None:
                self._refresher.cancel()  # it was closed meanwhile, which waits for nothing that is being opened
        self._lanes += opening

    async def close(self) -> None:
        """Sends what is queued, waits for the answers, then closes. Raises as `flush` does.

        Once closing has started, no new messages are accepted. If it is abandoned, by a timeout or by cancelling it,
        messages that are still unanswered fail.
        """
        if self._closed is None:
            self._closed = ClientClosed(f"the producer of {self.topic} was closed")
            self._stop_looking()
            self._hold_back()
        try:
            await self._settled()
            for lane in self._lanes:
                await lane.close_channel()
        finally:
            self.client.remove(self)
            self._line.fail(ClientClosed(f"the producer of {self.topic} was closed before it was sent"))
            for lane in self._lanes:
                lane.abandon()
            self._room.wake()
        self._failures.raise_first()

    @property
    def connected(self) -> bool:
        return self.client.connected

    def disown(self, error: DanubeError) -> None:
        """It belongs to another process: whoever uses it here gets this error."""
        self._closed, self._lane = error, cast(Lane, _Nowhere())
        for lane in self._lanes:
            lane.disown(error)
        self._lanes = []


class _Nowhere:
    """In the place of a lane before there is one: has no room, so that `send` looks why."""

    def __init__(self) -> None:
        self.filling = Outgoing(cast(Lane, self))


def _size_of(attributes: Mapping[str, str]) -> int:
    return sum(map(len, attributes)) * 4 + sum(map(len, attributes.values())) * 4


def _too_large(size: int) -> BatchTooLarge:
    return BatchTooLarge(f"a message of {size} bytes is too large; the maximum is {MESSAGE_BYTES_MAX}")
