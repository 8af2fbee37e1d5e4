"""Messages and batches of messages, as consumers and readers return them. Columns are decoded on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pydanube.base.errors import ArgumentInvalid, BatchDamaged, BatchInvalid, BatchUnreadable, DanubeError
from pydanube.client.arguments import Duration
from pydanube.wire.arrow import to_record_batch
from pydanube.wire.batch import Batch
from pydanube.wire.columns import Column, ColumnKind, kind_of

if TYPE_CHECKING:
    import pyarrow as pa

Deserializer = Callable[[bytes], Any]
_NOTHING: Mapping[str, str] = MappingProxyType({})


class Source(Protocol):
    """The partition that a batch came from."""

    topic: str  # without the partition
    partition: int | None
    deserializer: Deserializer | None


class Message(NamedTuple):
    """One message. Times are microseconds since 1970."""

    batch: MessageBatch  # the batch that it was delivered in
    offset: int
    payload: bytes | None  # None is a tombstone, b"" an empty message
    key_bytes: bytes | None
    attributes: Mapping[str, str]
    publish_time: int
    event_time: int | None

    @property
    def key(self) -> str | None:
        """The key as text. `key_bytes` is the key as it was sent; sending this text gives the same bytes."""
        return None if self.key_bytes is None else self.key_bytes.decode("utf-8", "surrogateescape")

    @property
    def value(self) -> Any:
        """The deserialized payload; None for a tombstone."""
        return self.batch.read(self.payload)

    @property
    def topic(self) -> str:
        """The full name, such as `/default/orders`."""
        return self.batch.topic

    @property
    def partition(self) -> int | None:
        """None if the topic has no partitions."""
        return self.batch.partition

    @property
    def redelivery_count(self) -> int:
        """How many earlier deliveries of this message failed."""
        return self.batch.redelivery_count

    @property
    def append_time(self) -> int:
        """When the broker accepted the message."""
        return self.batch.content.append_time

    @property
    def delivery_time(self) -> int | None:
        """The earliest time at which it may be delivered; None if it is not delayed."""
        return self.batch.delivery_times[self.offset - self.batch.first]

    @property
    def producer(self) -> int:
        """The producer's number in its topic (partition); 0 if it has none."""
        return self.batch.content.producer_id

    @property
    def sequence(self) -> int:
        """The producer's number for this message."""
        return self.batch.content.first_sequence + self.offset - self.batch.content.base_offset

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self) -> Any:
        """Like `consumer.ack(message)`. To wait until it is durable, `await` it, or call `result()` without asyncio."""
        return self.batch.consumer.ack(self)

    def nack(self, delay: Duration = 0.0, reason: str = "") -> None:
        """Like `consumer.nack(message)`."""
        self.batch.consumer.nack(self, delay, reason)

    # -- as a value ----------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        """Whether it is the same message of the same topic, even if delivered again or pickled."""
        if not isinstance(other, Message):
            return NotImplemented
        return (self.topic, self.partition, *self[1:]) == (other.topic, other.partition, *other[1:])

    def __ne__(self, other: object) -> bool:  # tuples would compare the batches
        return not self == other

    def __hash__(self) -> int:
        return self.offset

    def __copy__(self) -> Message:
        return self

    def __deepcopy__(self, memo: Any) -> Message:
        return self  # it is immutable

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the message without the rest of its batch. The copy cannot be acknowledged."""
        return _only, (self.batch.alone(self.offset),)

    def __repr__(self) -> str:
        return f"<Message {self.topic} {self.offset}, {len(self.payload or b'')} bytes>"


_MESSAGE_OF: Callable[[tuple[Any, ...]], Message] = partial(tuple.__new__, Message)  # twice as fast as Message(…)


@dataclass(slots=True)
class Origin:
    """The origin of unpickled messages."""

    topic: str
    partition: int | None
    deserializer: Deserializer | None


def _only(batch: MessageBatch) -> Message:
    return next(batch.messages())


def _restored(origin: Origin, content: bytes, first: int, last: int, attempt: int) -> MessageBatch:
    return MessageBatch(origin, Batch.parse(content), first, last, attempt, 0)


class MessageBatch:
    """Messages first..last of a batch, as they were delivered. `content` is the whole batch."""

    __slots__ = ("_delivery_times", "_payloads", "content", "first", "generation", "last", "redelivery_count", "source")

    def __init__(self, source: Source, content: Batch, first: int, last: int, attempt: int, generation: int) -> None:
        self.source = source
        self.content = content
        self.first = first
        self.last = last
        self.redelivery_count = attempt
        self.generation = generation
        self._payloads: list[bytes | None] | None = None
        self._delivery_times: list[int | None] | None = None

    @property
    def topic(self) -> str:
        """The full name, such as `/default/orders`."""
        return self.source.topic

    @property
    def partition(self) -> int | None:
        """None if the topic has no partitions."""
        return self.source.partition

    @property
    def offsets(self) -> range:
        """The offset of each message, ascending."""
        return range(self.first, self.last + 1)

    @property
    def payloads(self) -> list[bytes | None]:
        """The payloads as they were sent; None for a tombstone."""
        if self._payloads is None:
            self._payloads = self._rows(self.content.payloads())
        return self._payloads

    @property
    def delivery_times(self) -> list[int | None]:
        """The earliest time at which each may be delivered; None if it is not delayed."""
        if self._delivery_times is None:
            self._delivery_times = self._rows(self.content.delivery_times())
        return self._delivery_times

    @property
    def values(self) -> list[Any]:
        """The deserialized payloads."""
        return list(map(self.read, self.payloads))

    @property
    def keys(self) -> list[bytes | None]:
        """The keys as they were sent; None for a message without a key."""
        return self._rows(self.content.keys())

    def messages(self, offsets: Iterable[int] | None = None) -> Iterator[Message]:
        """Returns the messages. Raises `BatchUnreadable` at once, not during iteration."""
        try:
            return self._messages(self.offsets if offsets is None else offsets)
        except (BatchInvalid, BatchDamaged) as error:
            raise self._unreadable(error) from error

    def _messages(self, offsets: Iterable[int]) -> Iterator[Message]:
        content = self.content
        columns = content.columns
        keys: Any = repeat(None)
        attributes: Any = repeat(_NOTHING)
        publish_times: Any = repeat(content.publish_time)
        event_times: Any = repeat(None)
        if kind_of(columns, Column.KEY) != ColumnKind.ABSENT:
            keys = self._rows(content.keys())
        if kind_of(columns, Column.ATTRIBUTES) != ColumnKind.ABSENT:
            attributes = [each or _NOTHING for each in self._rows(content.attributes())]
        if kind_of(columns, Column.PUBLISH_TIME) != ColumnKind.ABSENT:
            publish_times = self._rows(content.publish_times())
        if kind_of(columns, Column.EVENT_TIME) != ColumnKind.ABSENT:
            event_times = self._rows(content.event_times())
        columns_of_rows = (repeat(self), offsets, self.payloads, keys, attributes, publish_times, event_times)
        rows = zip(*columns_of_rows, strict=False)  # `repeat` never ends
        return map(_MESSAGE_OF, rows)

    def to_arrow(self) -> pa.RecordBatch:
        """Returns all columns, under the names that Parquet and Spark use. Needs `pip install pydanube[arrow]`."""
        try:
            whole = to_record_batch(self.content, derived=True)
        except (BatchInvalid, BatchDamaged) as error:
            raise self._unreadable(error) from error
        return whole.slice(self.first - self.content.base_offset, len(self))

    @property
    def consumer(self) -> Any:
        """The consumer that received it."""
        consumer = getattr(self.source, "consumer", None)
        if consumer is None:
            raise ArgumentInvalid(
                f"these messages of {self.topic} did not come from a consumer and cannot be acknowledged"
            )
        return consumer.outer or consumer

    def alone(self, offset: int) -> MessageBatch:
        """A batch with only this message."""
        content = self.content.slice(offset - self.content.base_offset, 1)
        return MessageBatch(self.source, content, offset, offset, self.redelivery_count, self.generation)

    def __reduce__(self) -> tuple[Any, ...]:
        origin = Origin(self.topic, self.partition, self.source.deserializer)
        content = b"".join(self.content.parts())
        return _restored, (origin, content, self.first, self.last, self.redelivery_count)

    def part(self, first: int, last: int) -> MessageBatch:
        """A batch with some of its messages, which shares the content."""
        return MessageBatch(self.source, self.content, first, last, self.redelivery_count, self.generation)

    def _unreadable(self, error: DanubeError) -> BatchUnreadable:
        origin = self.topic if self.partition is None else f"partition {self.partition} of {self.topic}"
        return BatchUnreadable(f"messages {self.first}..{self.last} of {origin} cannot be read: {error}")

    def read(self, payload: bytes | None) -> Any:
        deserializer = self.source.deserializer
        return payload if payload is None or deserializer is None else deserializer(payload)

    def _rows(self, column: list[Any]) -> list[Any]:
        if len(self) == len(column):
            return column
        at = self.first - self.content.base_offset
        return column[at : at + len(self)]

    def __len__(self) -> int:
        return self.last - self.first + 1

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def __repr__(self) -> str:
        return f"<MessageBatch {self.topic} {self.first}..{self.last}>"
