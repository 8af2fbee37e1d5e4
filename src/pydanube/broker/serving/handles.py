"""Handles of an open topic that a caller holds: a producer, a consumer, or a subscription to send acks to.

Rights are checked when a handle is created, and again when rights have changed, but never for each call (§50).
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from pydanube.access.principals import Principal
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, RequestInvalid
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.subscription.delivery import Consumer, Timing
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.producer_sessions import Session
from pydanube.broker.topic.served import Receipt, ServedSubscription
from pydanube.dispatch.explain import Cause
from pydanube.topic.cursor import Range
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.serving.open_topics import OpenTopics

Ended = Callable[[DanubeError], None]
NEVER_GIVEN = (Cause.NOT_PUBLISHED, Cause.BELOW_START, Cause.CURSOR_FULL)  # such messages were never delivered


class ProducerHandle:
    """One producer of a topic or partition."""

    __slots__ = (
        "_ended",
        "_open",
        "_tell_ended",
        "_temporary",
        "_topics",
        "mark",
        "on_limit",
        "principal",
        "reliable",
        "session",
        "topic",
    )

    def __init__(
        self,
        topics: OpenTopics,
        principal: Principal,
        open: OpenTopic,
        session: Session | None,
        ended: Ended,
        *,
        temporary: bool,
    ) -> None:
        self.principal = principal
        self.topic, self.reliable = open.name, open.record.reliable
        self.mark = open.mark()  # identifies the topic: a client that comes back with it gets the same one, or an error
        self.session = session or Session(0, 0, 0)  # all 0 without a name: then batches are not deduplicated
        self.on_limit: Callable[[int | None], None] | None = None  # called when the limit on message sizes changes
        self._topics = topics
        self._open = open
        self._temporary = temporary  # its name was generated for it
        self._tell_ended = ended
        self._ended: DanubeError | None = None  # why

    # -- what is true of it --------------------------------------------------------------------------------------------

    @property
    def receipt(self) -> str:
        """The durability that a confirmed publish has reached."""
        return self._open.topic.receipt

    @property
    def message_bytes_max(self) -> int | None:
        return self._open.policies.message_bytes_max

    # -- its user ------------------------------------------------------------------------------------------------------

    def publish(self, batch: Batch) -> Receipt:
        """Publishes; the receipt's future is done when the batch is as durable as the topic promises."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        self._topics.check_serving()
        try:
            return self._open.publish(batch, self.session.epoch)
        except DanubeError as error:
            self._topics.count_rejected(error)
            raise

    def used_by(self, principal: Principal) -> None:
        """Called when its principal uses it through another connection: it lives as long as the token there."""
        if principal == self.principal and principal.expires >= self.principal.expires:
            self.principal = principal

    def close(self, *, lost: bool) -> None:
        """The client has closed it, or, if `lost`, has lost its connection and may come back."""
        self._open.producers.pop(self, None)
        if self._open.exclusive is self:
            self._open.exclusive = None
        if not self.session.producer:
            return
        sessions = self._open.reliable.sessions
        if self._temporary and not lost:
            sessions.release(self.session)
        else:
            sessions.let_go(self.session)

    # -- its topic and the door ----------------------------------------------------------------------------------------

    def limited(self, message_bytes_max: int | None) -> None:
        if self.on_limit is not None:
            self.on_limit(message_bytes_max)

    def ended(self, why: DanubeError) -> None:
        """Called when the topic is no longer served."""
        self._ended = why
        self._tell_ended(why)

    def reconsider(self) -> None:
        """Ends it if its caller may no longer publish. What was accepted before stays accepted."""
        why = self._topics.refusal(self.principal, Action.TOPIC_PUBLISH, self._open.name)
        if why is not None:
            self._ended = why  # before anything that might fail
            self.close(lost=True)
            self._tell_ended(why)


class AckVerdict(Enum):
    """The meaning of an ack for one message."""

    VOID = "no consumer can have been given the message"
    LATE = "it is acknowledged already, or was given before a seek"
    COUNTS = "the message is done"


class SubscriptionHandle:
    """One subscription of a topic or partition, for callers that acknowledge without being its consumer."""

    __slots__ = ("_host", "_name", "_open", "_reliable", "_topics", "_valid", "kind", "mark", "principal", "reliable")

    def __init__(self, topics: OpenTopics, principal: Principal, open: OpenTopic, name: str, host: ServedSubscription):
        self.principal = principal
        self._topics = topics
        self._open = open
        self._name = name
        self._host = host
        self._reliable = host.as_reliable() if host.reliable else None  # None if the topic is best effort
        self._valid = topics.rights_version
        self.kind, self.reliable = host.kind, host.reliable
        self.mark = open.mark(host)  # identifies the subscription: with it a client gets the same one back, or an error

    @property
    def served(self) -> bool:
        """Whether it can still be used. If not, it has ended or rights have changed, and a new handle is needed."""
        open, topics = self._open, self._topics
        return (
            open.ended is None
            and open.topic.subscriptions.get(self._name) is self._host
            and self._valid == topics.rights_version
        )

    @property
    def subscription(self) -> object:
        """Identifies the subscription, as long as it is served, for use as a key."""
        return self._host

    @property
    def generation(self) -> int:
        return self._host.generation

    @property
    def floor(self) -> int:
        return self._host.floor

    @property
    def ack_timeout(self) -> int | None:
        """In microseconds."""
        return self._host.ack_timeout

    def ack(self, generation: int, ranges: Sequence[Range]) -> Future[None]:
        """Done when it is durable. An ack of a delivery from before a seek succeeds and changes nothing (§14)."""
        return self._host.ack(generation, ranges)

    def judge_ack(self, offset: int, handed_out: Mapping[object, tuple[int, int]]) -> AckVerdict:
        """The meaning of an ack without a generation, which the caller's protocol does not have (§14).

        `handed_out` has, by `subscription`, the last generation in which the caller handed out messages, and the offset
        after the last of them. If the subscription was never sought, every message may have been handed out, even
        before a restart.
        """
        host = self._reliable
        if host is None:
            return AckVerdict.VOID
        cause = host.explain(offset).cause
        if cause in NEVER_GIVEN:
            return AckVerdict.VOID
        if cause is Cause.IN_FLIGHT:
            return AckVerdict.COUNTS
        if cause is Cause.ACKED:
            return AckVerdict.LATE
        now, (generation, end) = host.known.cursor.generation, handed_out.get(host, (0, 0))
        return AckVerdict.COUNTS if not now or (now == generation and offset < end) else AckVerdict.LATE

    def nack_offset(self, offset: int, delay: int, reason: str) -> None:
        """Marks a message as failed, whichever consumer has it; ignored if none has. `delay` is in microseconds."""
        if self._reliable is None:
            return
        found = self._reliable.explain(offset)
        if found.cause is Cause.IN_FLIGHT and found.consumer is not None:
            self._reliable.nack(found.consumer, self.generation, [(offset, offset)], delay, reason)


class ConsumerHandle(SubscriptionHandle):
    """One consumer of a subscription of a topic or partition."""

    __slots__ = ("_consumer", "_ended", "address", "face", "id", "name", "partition", "says_taken")

    def __init__(
        self,
        topics: OpenTopics,
        principal: Principal,
        open: OpenTopic,
        name: str,
        host: ServedSubscription,
        consumer: Consumer,
        face: str,
        address: str,
    ) -> None:
        super().__init__(topics, principal, open, name, host)
        self.face = face
        self.address = address  # host:port of the client that opened it
        self.id, self.name, self.partition = consumer.id, consumer.name, open.name.partition
        self.says_taken = consumer.timing is Timing.TAKEN  # its client reports what its program has taken
        self._consumer = consumer
        self._ended: DanubeError | None = None  # why

    # -- what is true of it --------------------------------------------------------------------------------------------

    @property
    def unsettled(self) -> bool:
        """Whether acks or nacks that it sent still wait for later turns of the loop. It must not leave before."""
        return self._host.unsettled

    @property
    def held(self) -> Sequence[Range]:
        """The messages that were delivered to it and are not done."""
        return self._host.held(self.id)

    @property
    def active(self) -> bool:
        """Whether it is the active consumer; otherwise it is a standby."""
        return self._host.is_active(self.id)

    def is_in_flight(self, offset: int) -> bool:
        """Whether a consumer has the message in flight; always false on a best-effort topic."""
        return self._reliable is None or self._reliable.explain(offset).cause is Cause.IN_FLIGHT

    def producer_names(self) -> Callable[[int], str]:
        """A function that maps a batch's producer number to its name; empty if the topic does not know it."""
        return self._open.topic.producer_name

    # -- its user ------------------------------------------------------------------------------------------------------

    def grant(self, permits: int) -> None:
        self._host.grant(self.id, permits)

    def withdraw(self) -> int:
        """Takes back its permits while its connection is busy; returns how many. A best-effort topic ignores this."""
        return self._host.withdraw(self.id)

    def ack(self, generation: int, ranges: Sequence[Range]) -> Future[None]:
        """Done when it is durable. An ack of a delivery from before a seek succeeds and changes nothing (§14)."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        return self._host.ack(generation, ranges)

    def ack_through(self, generation: int, offset: int) -> Future[None]:
        """Acknowledges everything up to the offset, for subscriptions that deliver in order."""
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        return self._host.ack_through(generation, offset)

    def nack(self, generation: int, ranges: Sequence[Range], delay: int = 0, reason: str = "") -> None:
        """Marks messages as failed; `delay` is in microseconds."""
        if self._ended is None:
            self._host.nack(self.id, generation, ranges, delay, reason)

    def taken(self, generation: int, ranges: Sequence[Range]) -> None:
        """Its program has started on these messages, so their ack timeout begins."""
        self._host.taken(self.id, generation, ranges)

    def give_back(self, first: int, last: int) -> None:
        """Returns messages that its program did not get: they are delivered again, and have not failed."""
        self._host.give_back(self.id, first, last)

    def on_timeout(self, changed: Callable[[int | None], None]) -> None:
        """Registers a function to call when the ack timeout, in microseconds, may have changed."""
        self._consumer.tell_timeout = changed

    async def seek(self, *, offset: int | None = None, time: int | None = None) -> int:
        """Seeks to an offset or a time, for all consumers of the subscription; returns the new generation."""
        self._ask(Action.SUBSCRIPTION_SEEK)
        topic, host = self._open.reliable, self._host.as_reliable()
        if (offset is None) == (time is None):
            raise RequestInvalid("a seek needs an offset or a time")
        if offset is None:
            offset = await topic.find_time(time or 0)
            self._ask(Action.SUBSCRIPTION_SEEK)  # it may have waited for storage
        await topic.seek(host, offset)
        return host.generation

    def pause(self) -> None:
        """Stops delivery to all consumers of the subscription until one of them resumes it, or this one leaves."""
        self._pausable().pause(self.id)

    def resume(self) -> None:
        self._pausable().resume()

    def _pausable(self) -> SubscriptionHost:
        self._ask(Action.SUBSCRIPTION_PAUSE)
        return self._host.as_reliable()

    def _ask(self, action: Action) -> None:
        if self._ended is not None:
            raise type(self._ended)(*self._ended.args)
        self._topics.ask(self.principal, action, self._open.name, self._name)

    def close(self, *, crashed: bool) -> None:
        self._open.consumers.pop(self, None)
        self._host.leave(self.id, crashed=crashed)

    # -- the door ------------------------------------------------------------------------------------------------------

    def end(self, why: DanubeError, *, crashed: bool) -> None:
        """Removes it from its subscription, and tells its client why."""
        self._ended = why
        self.close(crashed=crashed)
        self._consumer.sink.closed(why)

    def reconsider(self) -> None:
        """Ends it if its caller may no longer consume: nothing more is delivered, and no ack counts."""
        why = self._topics.refusal(self.principal, Action.SUBSCRIPTION_CONSUME, self._open.name, self._name)
        if why is not None:
            self.end(why, crashed=False)
