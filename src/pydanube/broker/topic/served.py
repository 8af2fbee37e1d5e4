"""The interface of a served topic and of its subscriptions to the rest of the broker, for both kinds of topic.

`Topic` and `BestEffortTopic` implement `ServedTopic`, `SubscriptionHost` and `BestEffortSubscription` implement
`ServedSubscription`. A best-effort topic answers questions about storage like a topic without messages. Callers that
need what is stored call `as_reliable`, which raises `NotReliable` there. So no caller has to look at the class.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pydanube.base.counting import Traffic
from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.broker.state.options import SubscriptionOptions, TopicOptions
from pydanube.broker.subscription.delivery import Consumer, ConsumerSink, Timing
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.topic.cursor import Range
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.subscription.host import SubscriptionHost
    from pydanube.broker.topic.topic import Topic

EARLIEST, LATEST = "earliest", "latest"
STORES_NOTHING = "is not reliable and stores nothing"


class Receipt(NamedTuple):
    """Where a batch is, and its confirmation: nothing is promised until that is done."""

    offset: int
    confirmed: Future[None]
    duplicate: bool = False
    written: Future[None] | None = None  # done earlier, if the answer is delayed for longer than the write takes


class ServedSubscription(Protocol):
    """A subscription of one topic or partition that this broker serves."""

    @property
    def reliable(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> SubscriptionKind: ...
    @property
    def id(self) -> int | None:
        """Distinguishes it from one of the same name that was deleted; None if it ends with its topic."""

    @property
    def consumers(self) -> Mapping[ConsumerId, Consumer]: ...
    @property
    def options(self) -> SubscriptionOptions: ...
    @property
    def generation(self) -> int:
        """Counts seeks. Deliveries and acks name it."""

    @property
    def floor(self) -> int:
        """Everything below this offset is done."""

    @property
    def ack_timeout(self) -> int | None:
        """In microseconds; None if messages are never taken back."""

    @property
    def backlog(self) -> int:
        """How many messages are not done."""

    @property
    def outbound(self) -> Traffic:
        """What was handed to consumers, redeliveries included."""

    @property
    def redelivered(self) -> int:
        """How many of these messages had failed before."""

    @property
    def drops(self) -> Mapping[str, int]:
        """How many messages no consumer will get, by reason."""

    @property
    def unsettled(self) -> bool:
        """Whether acks or nacks of its consumers wait for later turns of the loop."""

    def describe(self) -> SubscriptionFigures: ...

    def as_reliable(self) -> SubscriptionHost:
        """Itself, for callers that need what is stored. Raises `NotReliable` if it stores nothing."""

    def join(self, consumer: Consumer, filters: Sequence[bytes] = ()) -> None: ...

    def leave(self, consumer: ConsumerId, *, crashed: bool) -> None: ...

    def is_active(self, consumer: ConsumerId) -> bool:
        """Whether the consumer is active; if not, it is a standby."""

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        """Allows the consumer this many more messages."""

    def withdraw(self, consumer: ConsumerId) -> int:
        """Takes back the consumer's permits while its connection is busy; returns how many."""

    def held(self, consumer: ConsumerId) -> list[Range]:
        """The ranges in flight with the consumer, ascending."""

    def give_back(self, consumer: ConsumerId, first: int, last: int) -> None:
        """Returns messages that the consumer's program did not get: they are delivered again, and have not failed."""

    def ack(self, generation: int, ranges: Sequence[Range]) -> Future[None]:
        """Acknowledges messages; done when it is durable."""

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        """Acknowledges everything up to `offset`."""

    def nack(
        self, consumer: ConsumerId, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = ""
    ) -> None:
        """Marks messages as failed; `delay` is in microseconds."""

    def taken(self, consumer: ConsumerId, generation: int, ranges: Sequence[Range]) -> None:
        """The consumer's program has started on these messages, so their ack timeout begins."""


class ServedTopic(Protocol):
    """A topic or partition that this broker serves."""

    @property
    def reliable(self) -> bool: ...
    @property
    def name(self) -> str: ...
    @property
    def subscriptions(self) -> Mapping[str, ServedSubscription]: ...
    @property
    def receipt(self) -> str:
        """The durability that a confirmed publish has reached."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The first offset that still exists, and the offset after the last visible one."""

    @property
    def stored_bytes(self) -> int: ...
    @property
    def inbound(self) -> Traffic:
        """What was published."""

    @property
    def failed(self) -> int:
        """How many of these batches did not become durable as they were."""

    @property
    def drops(self) -> Mapping[str, int]:
        """How many messages no subscription got, by reason."""

    @property
    def lost(self) -> bool:
        """Whether another broker owns it now."""

    def as_reliable(self, refusal: str = STORES_NOTHING) -> Topic:
        """Itself, for callers that need what is stored. If it stores nothing, raises `NotReliable` with `refusal`."""

    def alter(self, options: TopicOptions) -> None:
        """Applies new options."""

    def producer_name(self, producer: int) -> str:
        """The name of the producer with that number; empty if it has none, or is no longer known."""

    def admit(self, bytes: int) -> None:
        """Raises if its subscriptions are too far behind for more messages."""

    def publish(self, batch: Batch, producer_epoch: int = 0) -> Receipt: ...

    async def subscribe(
        self,
        name: str,
        kind: SubscriptionKind,
        *,
        start: str | int = LATEST,
        options: SubscriptionOptions | None = None,
        create: bool = True,
    ) -> ServedSubscription:
        """The subscription of that name, created if it is new."""

    async def unsubscribe(self, name: str) -> None: ...

    def connect(
        self,
        host: ServedSubscription,
        name: str,
        sink: ConsumerSink,
        filters: Sequence[bytes] = (),
        timing: Timing = Timing.DELIVERED,
    ) -> Consumer:
        """Connects a consumer to the subscription; it gets nothing before it grants permits."""

    def end_unused(self) -> None:
        """Called about once a second: ends unused subscriptions, unless that needs a record."""

    async def close(self, why: DanubeError | None = None, *, seal: bool = True) -> None:
        """Closes it, and tells its users `why`. Without `seal`, it closes faster and opens more slowly."""


class ConnectsConsumers:
    """Connects consumers to subscriptions, the same way for both kinds of topic."""

    _consumers = 0  # ids given so far

    def _check_open(self) -> None:
        raise NotImplementedError

    def connect(
        self,
        host: ServedSubscription,
        name: str,
        sink: ConsumerSink,
        filters: Sequence[bytes] = (),
        timing: Timing = Timing.DELIVERED,
    ) -> Consumer:
        self._check_open()
        self._consumers += 1
        consumer = Consumer(ConsumerId(self._consumers), name, sink, timing)
        host.join(consumer, filters)
        return consumer
