"""What a consumer is handed, and what a consumer is to its topic."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import DECODED_ATTRIBUTES_BYTES, LOOKED_INTO_AT_ONCE
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.dispatch.events import Run
from pydanube.topic.records import SubscriptionKind
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch, Codec

PRODUCER_ATTRIBUTE = "x-danube-producer"  # name of the producer, where it has no number that the topic knows


class Delivery(NamedTuple):
    """The same bytes as published, and the part of them that is meant: offsets `first` to `last`."""

    batch: Batch
    first: int
    last: int
    attempt: int  # deliveries of these messages that failed before
    generation: int  # to be named in acks; a seek makes it stale

    def cut(self) -> Batch:
        """A batch of just these messages. Decompresses: offload it where that is much."""
        return self.batch.slice(self.first - self.batch.base_offset, self.last - self.first + 1)


def keys_of(batch: Batch, rows: range | None = None) -> list[bytes]:
    """By which Key-Shared goes, of all messages or these: those without a key keep the order of their producer."""
    nameless, keys = b"%d" % batch.producer_id, batch.keys(rows)
    if not batch.producer_id and _may_name_producers(batch) and None in keys:
        names = _producers_of(batch)
        names = names if rows is None else names[rows.start : rows.stop]
        return [name or nameless if key is None else key for key, name in zip(keys, names, strict=True)]
    return [nameless if key is None else key for key in keys]


def _may_name_producers(batch: Batch) -> bool:
    """Names are attributes only in what the gRPC face publishes, which is not compressed and has few of them."""
    return batch.has_attributes and batch.codec is Codec.NONE and batch.attributes_bytes <= DECODED_ATTRIBUTES_BYTES


def _producers_of(batch: Batch) -> list[bytes]:
    """Their names, where they are attributes. Nobody has looked at these yet: what cannot be read has none."""
    try:
        return [(row or {}).get(PRODUCER_ATTRIBUTE, "").encode() for row in batch.attributes()]
    except DanubeError:
        return [b""] * batch.count


def is_looked_into(batch: Batch, kind: SubscriptionKind) -> bool:
    """Whether that type of subscription looks at each message, so that many of them take long."""
    return kind is SubscriptionKind.KEY_SHARED or (kind is SubscriptionKind.SHARED and batch.has_delivery_times)


def looked_into(
    batch: Batch, kind: SubscriptionKind, first: int, last: int, most: int, key_bytes: int
) -> tuple[int, int]:
    """The last of first..last that is looked at in this turn, and how much of `most` it takes: long keys take more."""
    if last < first or not is_looked_into(batch, kind):
        return last, 0
    last = min(last, first + most - 1)
    if kind is not SubscriptionKind.KEY_SHARED:
        return last, last - first + 1
    rows = range(first - batch.base_offset, last - batch.base_offset + 1)
    count, size = batch.rows_by_key_bytes(rows, key_bytes * most // LOOKED_INTO_AT_ONCE)
    return first + count - 1, min(most, max(count, LOOKED_INTO_AT_ONCE * size // key_bytes))


def runs_of(batch: Batch, known: Subscription, first: int, last: int, clock_ahead: int) -> Iterator[Run]:
    """What of first..last the subscription has not done, for its engine."""
    base = batch.base_offset
    keys, due = _columns_of(batch, range(first - base, last - base + 1), known.kind, clock_ahead)
    for start, end in known.cursor.pending(first, last):
        rows = slice(start - first, end - first + 1)
        yield Run(start, end, keys and keys[rows], due and due[rows])


def _columns_of(
    batch: Batch, rows: range, kind: SubscriptionKind, clock_ahead: int
) -> tuple[list[bytes] | None, list[int | None] | None]:
    """Keys, and delivery times on a clock that is behind by so much, where that type of subscription looks at them."""
    if not is_looked_into(batch, kind):
        return None, None
    if kind is SubscriptionKind.KEY_SHARED:
        return keys_of(batch, rows), None
    return None, [None if time is None else time - clock_ahead for time in batch.delivery_times(rows)]


class ConsumerSink(Protocol):
    """The connection behind a consumer. No call may block or raise: a sink has its own bounded queue."""

    def deliver(self, delivery: Delivery) -> None: ...

    def reset(self, generation: int) -> None:
        """A seek: what was delivered before and is not acknowledged is void."""
        ...

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """These were delivered and are the consumer's no more: what its program has not taken is not to be."""
        ...

    def hindered(self, error: DanubeError | None) -> None:
        """What comes next cannot be read, and waiting does not help; None when it goes on, as somebody has acted."""
        ...

    def closed(self, error: DanubeError) -> None:
        """The subscription has ended, and why; nothing comes any more."""
        ...


class Timing(Enum):
    """When the ack timeout of a message begins, by what its consumer can say."""

    DELIVERED = "delivered"  # it says nothing
    TAKEN = "taken"  # it says what its program has taken; until then it holds a message for as long as it is there
    CHOSEN = "chosen"  # it queues messages and says nothing: as delivered, if somebody chose a timeout, else never


@dataclass(slots=True)
class Consumer:
    id: ConsumerId
    name: str
    sink: ConsumerSink
    timing: Timing = Timing.DELIVERED
    tell_timeout: Callable[[int | None], None] | None = None  # to be told when the ack timeout (µs) may have changed

    def take(self, delivery: Delivery) -> str:
        """Hands it to the sink. Why that failed, if it did: a mistake of one face must not stop the others."""
        try:
            self.sink.deliver(delivery)
        except Exception as error:
            context = {"message": f"delivering to consumer {self.name!r} failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
            return f"cannot be delivered: {type(error).__name__}: {error}"
        return ""

    def is_timed(self, options: SubscriptionOptions) -> bool:
        """Whether the ack timeout of a message begins when it is delivered."""
        return self.timing is Timing.DELIVERED or (self.timing is Timing.CHOSEN and options.timeout_chosen)
