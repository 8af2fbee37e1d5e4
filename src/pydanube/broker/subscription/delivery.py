"""A consumer as its subscription sees it, and what is delivered to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.wire.batch import Batch

PRODUCER_ATTRIBUTE = "x-danube-producer"  # the producer's name, if the topic has no number for it


class Delivery(NamedTuple):
    """The batch as it was published, and the part of it that is delivered: offsets `first` to `last`."""

    batch: Batch
    first: int
    last: int
    attempt: int  # how many earlier deliveries of these messages failed
    generation: int  # acks must name it; a seek makes it out of date

    def cut(self) -> Batch:
        """A batch of only these messages. May decompress the whole batch: run it off the loop if that takes long."""
        return self.batch.slice(self.first - self.batch.base_offset, self.last - self.first + 1)


class ConsumerSink(Protocol):
    """The connection behind a consumer. No call may block or raise: a sink has its own bounded queue."""

    def deliver(self, delivery: Delivery) -> None: ...

    def reset(self, generation: int) -> None:
        """Called after a seek: unacknowledged deliveries from before it no longer count."""

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """These messages no longer belong to this consumer: its program must not get those it has not taken yet."""

    def unreadable(self, error: DanubeError | None) -> None:
        """Reports that the next messages cannot be read, and waiting does not help; None when reading works again."""

    def closed(self, error: DanubeError) -> None:
        """Reports that the subscription has ended, and why. Nothing more is delivered."""


class Timing(Enum):
    """When the ack timeout of a message begins. That depends on what its consumer reports."""

    DELIVERED = "delivered"  # when it is delivered: the consumer reports nothing
    TAKEN = "taken"  # when the consumer reports that its program took it; until then it may hold the message
    CHOSEN = "chosen"  # like DELIVERED if a timeout was set explicitly, otherwise never: the client only queues


@dataclass(slots=True)
class Consumer:
    """One consumer of one subscription."""

    id: ConsumerId
    name: str
    sink: ConsumerSink
    timing: Timing = Timing.DELIVERED
    tell_timeout: Callable[[int | None], None] | None = None  # called when the ack timeout (µs) may have changed

    def take(self, delivery: Delivery) -> str:
        """Hands the delivery to the sink. Returns why that failed, or "": an error in one face must not stop the
        others."""
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
