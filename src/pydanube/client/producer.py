"""A producer: takes messages one by one or in lists, and spreads them over the partitions of its topic.

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
from pydanube.base.keys import KeyHash
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
from pydanube.client.arguments import (
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
from pydanube.client.bulk_send import BulkSend
from pydanube.client.channel import DAMAGE_ERRORS
from pydanube.client.errors import copy_of
from pydanube.client.failures import Failures
from pydanube.client.lifecycle import Openable
from pydanube.client.outgoing_batch import OutgoingBatch, Receipt
from pydanube.client.partition_producer import PartitionProducer
from pydanube.client.send_queue import QueuedSend, SendQueue
from pydanube.client.send_results import OnError, Receipts, SendResult, SentMessage, SentMessages
from pydanube.client.topic_watch import follow_topic
from pydanube.client.waiters import Waiters

if TYPE_CHECKING:
    from pydanube.client.client import Client

MESSAGE_BYTES_MAX = BATCH_BYTES_MAX - 64 * KIB  # leaves room in a batch for the key and the other columns
Serializer = Callable[[Any], bytes | None]


class _Message(NamedTuple):
    """One message, checked and ready to be put into a batch."""

    payload: bytes | None
    size: int  # with key, attributes and overhead
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
        self.new = name is None  # a random name, which is used only once
        self.fresh = fresh or self.new  # the program promises not to send again what was sent under this name
        self.name = name or f"producer-{client.randomness.bytes(8).hex()}"
        self.reliable = reliable
        self.create = create
        self.send_timeout = seconds_of(send_timeout)
        self.codec = codec_of(compression)
        self._serializer = serializer
        self._failures = Failures(client, topic, on_error)
        self._linger = seconds_of(linger)
        self.batch_bytes = min(size_of(batch_bytes), BATCH_BYTES_MAX // 4)
        self._message_bytes_max: int | None = None  # the topic's limit for a payload
        self._plain_bytes_max = self.batch_bytes  # messages up to this size take the fast path of `send`
        self._last_row = min(batch_messages, BATCH_MESSAGES_MAX) - 1
        self.buffer_bytes = max(1, size_of(buffer_bytes))
        self._buffered = 0  # bytes of sealed batches; at most one more per partition is being filled
        self._partitions: list[PartitionProducer] = []
        self._turn = 0
        self._hash: Callable[[bytes], int]  # the key hash of the topic
        self._current = cast(PartitionProducer, _NotOpen())  # where messages without a key go now
        self._closed: DanubeError | None = NotOpened(f"the producer of {topic} is not open yet")
        self._room = Waiters()
        self._queue = SendQueue(self)
        self._queued = self._queue.items  # usually empty
        self._making_room = False
        self._opened = False  # true while being opened, too
        self._opening: list[PartitionProducer] = []  # new partitions
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
    ) -> SendResult[Receipt]:
        """Queues a message and returns at once. `await` the result for its receipt, or ignore it.

        The message is sent at once if nothing is in flight, and otherwise together with others when that is answered;
        `linger` waits for more messages. While the buffer is full, the message waits in line, and so does `await`;
        `ProducerBusy` is raised only if too much that no one awaits is queued. Text is sent as UTF-8. Times are
        microseconds since 1970 or datetimes with a time zone; `delay` is seconds or a timedelta from now until
        delivery. `sequence` is the application's own number for the message: a number that was already published,
        even by an earlier process under the producer's name, is not published again; skipping a number raises
        `SequenceGap`. See `last_sequence`.
        """
        if delay is not None:
            delivery_time = self._delivery_time(delay, delivery_time)
        if self._serializer is not None:
            payload = self._serializer(payload)
        if type(payload) is not bytes:
            payload = payload_of(payload)
        size = len(payload) + MESSAGE_OVERHEAD_BYTES if payload else MESSAGE_OVERHEAD_BYTES
        if key is None and attributes is None and event_time is None and delivery_time is None and sequence is None:
            outgoing = self._current.filling  # empty if messages must wait: see `_seal_all`
            row = len(outgoing.payloads)
            if row and size <= self._plain_bytes_max:
                outgoing.payloads.append(payload)
                outgoing.bytes = size = outgoing.bytes + size
                if size >= self.batch_bytes or row >= self._last_row:
                    self._send_batch(outgoing.partition)  # type: ignore[arg-type]  # always a PartitionProducer
                return SentMessage(outgoing, row)
        if self._closed is not None:
            raise copy_of(self._closed)
        message = self._checked(payload, size, key, attributes, event_time, delivery_time, sequence)
        if self._queued or self._buffered >= self.buffer_bytes:
            self._seal_all()
            return self._queue.join(lambda: self._put(message), message.size, 1)
        return self._put(message)

    def _delivery_time(self, delay: Duration, delivery_time: When | None) -> int:
        if delivery_time is not None:
            raise ArgumentInvalid("pass either delay or delivery_time, not both")
        seconds = seconds_of(delay)
        if not seconds >= 0:
            raise ArgumentInvalid(f"a delay must not be negative, got {delay}")
        return self.client.clock.wall() + round(seconds * SECOND)

    def send_nowait(self, payload: Any, **options: Any) -> SendResult[Receipt]:
        """Like `send`, but raises `ProducerBusy` while the buffer is full. Takes the options of `send`."""
        if self.full or self._queue:
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
        """Checks everything that belongs to a message, before any of it is kept."""
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
        """Raises if the payload is larger than the topic allows, as far as the broker has said."""
        limit = self._message_bytes_max
        if limit is not None and largest > limit:
            raise MessageTooLarge(f"{self.topic} accepts messages of at most {limit} bytes, this one has {largest}")

    def _put(self, message: _Message) -> SentMessage:
        """Puts the message into a batch; there is room for it."""
        payload, size, name, texts, happened, due, sequence = message
        partition = self.partition_for(name)
        repeated = sequence is not None and sequence < self.expect(partition, sequence, keyed=name is not None)
        outgoing = partition.filling
        if not outgoing.payloads or size > self.batch_bytes or repeated:
            outgoing = self._begin(partition)
            outgoing.numbered, outgoing.repeated = sequence, repeated
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
        if size >= self.batch_bytes or row >= self._last_row or repeated:
            self._send_batch(partition)
        return SentMessage(outgoing, row)

    def _begin(self, partition: PartitionProducer) -> OutgoingBatch:
        """Returns an empty batch."""
        self.client.check_loop()
        if partition.filling.payloads:
            self._send_batch(partition)
        partition.begin(self._linger)
        return partition.filling

    def _seal_all(self) -> None:
        """Seals all batches being filled, so that no later message joins them and overtakes the queue."""
        for partition in self._partitions:
            if partition.filling.payloads:
                self._send_batch(partition)

    def _send_batch(self, partition: PartitionProducer) -> None:
        partition.seal()
        partition.pump()

    def send_many(
        self,
        payloads: Iterable[Any],
        *,
        keys: Sequence[str | bytes | None] | None = None,
        sequence: int | None = None,
    ) -> SendResult[Receipts]:
        """Like `send`, for many messages at a fraction of the cost. `await` the result for their receipts.

        A list is accepted as a whole or not at all: while the buffer is full it waits in line, and if one of its
        messages cannot be sent, none is. `sequence` is that of the first message, for a topic without partitions.
        """
        if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping):
            raise TypeError(f"send_many takes a list of payloads, got {type(payloads).__name__}; `send` takes one")
        if self._closed is not None:
            raise copy_of(self._closed)
        values = payloads if type(payloads) is list and self._serializer is None else self._serialized(payloads)
        names = None if keys is None else [None if key is None else key_of(key) for key in keys]
        if names is not None and len(names) != len(values):
            raise BatchInvalid(f"{len(names)} keys for {len(values)} messages")
        try:
            total = sum(map(len, values))
        except TypeError:  # a tombstone, or something that cannot be sent
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
        if self._queue or self._buffered >= self.buffer_bytes:
            self._seal_all()
            kept = list(map(payload_of, values))  # a copy: the program may change its list
            return self._queue.join(lambda: self._put_many(kept, total, names, sequence), total, len(values))
        self.client.check_loop()
        return self._put_many(values, total, names, sequence)

    def _put_many(
        self, values: list[Any], total: int, names: list[bytes | None] | None, sequence: int | None
    ) -> SentMessages:
        return SentMessages(BulkSend(self).send(values, total, names, sequence))

    def _serialized(self, payloads: Iterable[Any]) -> list[Any]:
        return list(payloads if self._serializer is None else map(self._serializer, payloads))

    # -- partitions ----------------------------------------------------------------------------------------------------

    @property
    def batch_messages(self) -> int:
        return self._last_row + 1

    @property
    def partitioned(self) -> bool:
        return len(self._partitions) > 1

    def partition_for(self, key: bytes | None) -> PartitionProducer:
        """The partition that a message with this key goes to now."""
        return (
            self._current
            if key is None or len(self._partitions) == 1
            else self._partitions[self._hash(key) % len(self._partitions)]
        )

    def expect(self, partition: PartitionProducer, sequence: int, *, keyed: bool) -> int:
        """The sequence of the next new message, for a program that numbers its messages."""
        if self.new or not self.reliable:
            raise ArgumentInvalid("sequences need a producer name; give this producer one")
        if len(self._partitions) > 1 and not keyed:
            raise ArgumentInvalid("each partition has its own sequences; a message with a sequence needs a key")
        return partition.expect(sequence)

    # -- waiting -------------------------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Bytes that are sealed and not acknowledged."""
        return self._buffered

    @property
    def unsent(self) -> int:
        """The number of messages that have not been answered."""
        unfinished = [
            outgoing for partition in self._partitions for outgoing in partition.unfinished() if not outgoing.done
        ]
        return self._queue.messages + sum(outgoing.count or len(outgoing.payloads) for outgoing in unfinished)

    @property
    def full(self) -> bool:
        """Whether a send has to wait."""
        return self._buffered >= self.buffer_bytes

    @property
    def busy(self) -> bool:
        """Whether the buffer is nearly full, so that a program should wait for `ready`."""
        return bool(self._queue) or (self._buffered > self.buffer_bytes * 3 // 4 and self._closed is None)

    async def ready(self) -> None:
        """Waits until at least a quarter of the buffer is free; returns at once if it already is."""
        while self.busy:
            await self._room.wait(self.client.loop)
        if self._closed is not None:
            raise copy_of(self._closed)

    async def flush(self) -> None:
        """Waits until everything sent so far is answered. Raises the first failure of a send that was not awaited."""
        await self._settled()
        self._failures.raise_first()

    async def _settled(self) -> None:
        await self._queue.settled()
        unfinished: list[OutgoingBatch] = []
        for partition in self._partitions:
            unfinished += partition.unfinished()
            partition.flush()
        for outgoing in unfinished:
            if not outgoing.done:
                waiter: Future[None] = self.client.loop.create_future()
                outgoing.waiters.append(waiter)
                await waiter
            unfinished += outgoing.parts  # the loop continues with them

    # -- called by its partitions --------------------------------------------------------------------------------------

    def limit(self, message_bytes_max: int | None) -> None:
        """Sets the largest payload that the topic accepts, which is the same for all partitions."""
        self._message_bytes_max = message_bytes_max
        largest = self.batch_bytes if message_bytes_max is None else message_bytes_max + MESSAGE_OVERHEAD_BYTES
        self._plain_bytes_max = min(self.batch_bytes, largest)

    def rotate(self, partition: PartitionProducer) -> None:
        """Makes messages without a key continue in the next partition."""
        if partition is self._current and len(self._partitions) > 1:
            for _ in self._partitions:  # skip damaged partitions
                self._turn = (self._turn + 1) % len(self._partitions)
                self._current = self._partitions[self._turn]
                if self._current.damage is None:
                    break

    def buffered(self, outgoing: OutgoingBatch) -> None:
        self._buffered += outgoing.bytes

    def finished(self, outgoing: OutgoingBatch) -> None:
        self._buffered -= outgoing.bytes
        if (self._room or self._queue) and self._buffered <= self.buffer_bytes // 2 and not self._making_room:
            self._making_room = True
            self.loop.call_soon(self._make_room)  # not now: the partition is still changing its state
        if outgoing.error is not None and not outgoing.awaited:
            self.on_unawaited_failure(outgoing, outgoing.error)

    def _make_room(self) -> None:
        self._making_room = False
        self._queue.advance()
        if not self.busy:
            self._room.wake()

    def fail(self, error: DanubeError) -> None:
        """Closes the producer, because one of its partitions cannot be opened again."""
        if self._closed is None:
            self._closed = error
            self._stop_refresher()
            self._queue.fail(error)
            self._room.wake()
            for partition in self._partitions:
                if not partition.closed:
                    partition.closed = True
                    partition.given_up(error)

    # -- called by its queue -------------------------------------------------------------------------------------------

    @property
    def loop(self) -> AbstractEventLoop:
        return self.client.loop

    def obstacle(self) -> DanubeError | None:
        return next(filter(None, (partition.obstacle() for partition in self._partitions)), None)

    def on_unawaited_failure(self, failed: OutgoingBatch | QueuedSend[Any], error: DanubeError) -> None:
        """Messages failed that no one awaits."""
        self._failures.add(failed, error)

    # -- opening and closing -------------------------------------------------------------------------------------------

    @property
    def last_sequence(self) -> int | None:
        """The last sequence that the broker is known to have under the producer's name; None if it has none.

        After a restart, a program continues with the next one. For a partitioned topic, use `last_sequences`.
        """
        if len(self._partitions) > 1:
            raise ArgumentInvalid(
                f"{self.topic} has {len(self._partitions)} partitions, each with its own sequences; use last_sequences"
            )
        return self.last_sequences[0] if self._partitions else None

    @property
    def last_sequences(self) -> list[int | None]:
        """The same for each partition."""
        return [partition.last_sequence for partition in self._partitions]

    @property
    def next_sequences(self) -> list[int]:
        """For each partition, the sequence that its next batch begins with; 0 for a new name."""
        return [partition.next_sequence for partition in self._partitions]

    async def open(self) -> Self:
        """Opens it, once. If opening fails, nothing is left behind, and you can try again."""
        if self._opened:
            raise AlreadyOpened(f"the producer of {self.topic} was already opened")
        self._opened = True
        try:
            found = await self.client.topic(self.topic, create=self.create, reliable=self.reliable)
            self._hash = KeyHash(found.key_hash).function
            for index, name in found.partition_names():
                self._partitions.append(PartitionProducer(self, self.topic, index, name))
            for partition in self._partitions:
                await self._open_partition(partition)
            if all(partition.damage is not None for partition in self._partitions):
                raise copy_of(cast(DanubeError, self._partitions[0].damage))
        except BaseException:  # no message was accepted yet
            partitions, self._partitions, self._opened = self._partitions, [], False
            for partition in partitions:
                partition.close_at_once()
            raise
        self._current = self._partitions[0]
        self._closed = None
        for partition in self._partitions:
            if partition.damage is not None:
                self.rotate(partition)
                partition.retry_later()
        self.client.add(self)
        if found.partitions:  # an unpartitioned topic never gets any
            self._refresher = self.client.loop.create_task(follow_topic(self.client, self.topic, self._add_partitions))
        return self

    async def _open_partition(self, partition: PartitionProducer) -> None:
        try:
            await self.client.within("open_producer", partition.open())
        except DAMAGE_ERRORS as error:
            if not partition.may_recover(error):
                raise

    def _stop_refresher(self) -> None:
        if self._refresher is not None and not self._opening:
            self._refresher.cancel()
        for partition in self._opening:
            partition.closed = True  # it closes its channel when the broker answers

    async def _add_partitions(self) -> None:
        """Opens new partitions. Keys are spread over them once all are open; earlier messages stay where they are."""
        found = await self.client.topic(self.topic)
        for index, name in found.partition_names()[len(self._partitions) :]:
            self._opening.append(PartitionProducer(self, self.topic, index, name))
        opening = self._opening
        try:
            for partition in opening:
                await partition.open()
        except BaseException:
            for partition in opening:
                partition.close_at_once()
            raise
        finally:
            self._opening = []
            if self._closed is not None and self._refresher is not None:
                self._refresher.cancel()  # closed meanwhile, without waiting for this
        self._partitions += opening

    async def close(self) -> None:
        """Sends what is queued, waits for the answers, then closes. Raises as `flush` does.

        Once closing has started, no new messages are accepted. If it is abandoned, by a timeout or by cancelling it,
        messages that are still unanswered fail.
        """
        if self._closed is None:
            self._closed = ClientClosed(f"the producer of {self.topic} was closed")
            self._stop_refresher()
            self._seal_all()
        try:
            await self._settled()
            for partition in self._partitions:
                await partition.close_channel()
        finally:
            self.client.remove(self)
            self._queue.fail(ClientClosed(f"the producer of {self.topic} was closed before it was sent"))
            for partition in self._partitions:
                partition.abandon()
            self._room.wake()
        self._failures.raise_first()

    @property
    def connected(self) -> bool:
        return self.client.connected

    def detach_after_fork(self, error: DanubeError) -> None:
        """After a fork, in the child: the producer belongs to the parent, and using it raises this error."""
        self._closed, self._current = error, cast(PartitionProducer, _NotOpen())
        for partition in self._partitions:
            partition.detach_after_fork(error)
        self._partitions = []


class _NotOpen:
    """A placeholder until a partition is opened. Its batch is empty, so that `send` checks whether it is open."""

    def __init__(self) -> None:
        self.filling = OutgoingBatch(cast(PartitionProducer, self))


def _size_of(attributes: Mapping[str, str]) -> int:
    return sum(map(len, attributes)) * 4 + sum(map(len, attributes.values())) * 4


def _too_large(size: int) -> BatchTooLarge:
    return BatchTooLarge(f"a message of {size} bytes is too large; the maximum is {MESSAGE_BYTES_MAX}")
