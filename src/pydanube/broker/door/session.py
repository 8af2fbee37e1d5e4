"""What one caller may ask of the broker: `carry_out` for what is one request and one answer, and methods for the rest.

Each method first checks whether the caller may do it; opening a topic does so itself. For producers and consumers, this
is checked when they are opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pydanube.access.principals import Principal
from pydanube.access.rights import BROKER, Action, Resource
from pydanube.base.errors import ConsumerBusy, SubscriptionInUse, SubscriptionNotFound
from pydanube.base.limits import READ_BYTES_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.door.verbs.backups import BackupVerbs
from pydanube.broker.door.verbs.base import METHODS
from pydanube.broker.door.verbs.broker import BrokerVerbs
from pydanube.broker.door.verbs.leases import LeaseVerbs
from pydanube.broker.door.verbs.pipelines import PipelineVerbs
from pydanube.broker.door.verbs.schemas import SchemaVerbs
from pydanube.broker.door.verbs.security import SecurityVerbs
from pydanube.broker.door.verbs.sinks import SinkVerbs
from pydanube.broker.door.verbs.storage import StorageVerbs
from pydanube.broker.door.verbs.subscriptions import SubscriptionVerbs
from pydanube.broker.door.verbs.topics import NamespaceVerbs, TopicVerbs
from pydanube.broker.serving.handles import ConsumerHandle, Ended, ProducerHandle, SubscriptionHandle
from pydanube.broker.serving.open_topic import OpenTopic, Start
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import Consumer, ConsumerSink, Timing
from pydanube.broker.topic.served import LATEST, ServedSubscription
from pydanube.broker.topic.topic import Topic
from pydanube.metadata.tables import KnownConsumer
from pydanube.operations.operation import A, Request
from pydanube.topic.dedup import Renewal
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.door.door import Door


T = TypeVar("T")
CARRIED_OUT = tuple(METHODS)  # the requests that `Session.carry_out` answers


class Origin(NamedTuple):
    """Where a caller comes from. This is for display only, and never a reason to allow anything."""

    face: str  # native, grpc or http
    address: str = ""  # host:port of the peer


class Session:
    """Created by `Door.session`. It needs no closing."""

    __slots__ = ("_door", "origin", "principal")

    def __init__(self, door: Door, principal: Principal, origin: Origin) -> None:
        self.principal = principal
        self.origin = origin
        self._door = door

    def without_address(self) -> Session:
        """The same caller, for what outlives the connection that it came through."""
        return Session(self._door, self.principal, Origin(self.origin.face))

    def ask(self, action: Action, resource: Resource = BROKER) -> None:
        """Raises `NotAllowed` unless the caller may do this. Faces call it for what they answer themselves."""
        self._door.authorise(self.principal, action, resource)

    # -- groups --------------------------------------------------------------------------------------------------------

    @property
    def namespaces(self) -> NamespaceVerbs:
        return NamespaceVerbs(self._door, self)

    @property
    def topics(self) -> TopicVerbs:
        return TopicVerbs(self._door, self)

    @property
    def subscriptions(self) -> SubscriptionVerbs:
        return SubscriptionVerbs(self._door, self)

    @property
    def storage(self) -> StorageVerbs:
        return StorageVerbs(self._door, self)

    @property
    def schemas(self) -> SchemaVerbs:
        return SchemaVerbs(self._door, self)

    @property
    def sinks(self) -> SinkVerbs:
        return SinkVerbs(self._door, self)

    @property
    def pipelines(self) -> PipelineVerbs:
        return PipelineVerbs(self._door, self)

    @property
    def backups(self) -> BackupVerbs:
        return BackupVerbs(self._door, self)

    @property
    def security(self) -> SecurityVerbs:
        return SecurityVerbs(self._door, self)

    @property
    def leases(self) -> LeaseVerbs:
        return LeaseVerbs(self._door, self)

    @property
    def broker(self) -> BrokerVerbs:
        return BrokerVerbs(self._door, self)

    async def carry_out(self, request: Request[A]) -> A:
        """Answers any request that needs no connection; `Verbs.carries_out` of the groups says which ones there are."""
        group, method = METHODS[type(request)]
        work: Awaitable[A] = method(group(self._door, self), request)  # type: ignore[assignment]
        return await (work if request.changes else self.allowed_to_see(work))

    async def allowed_to_see(self, work: Awaitable[T]) -> T:
        """What the work finds. If rights have changed while it waited, all that it has asked is asked again."""
        version = self._door.topics.rights_version
        with self._door.authorise.noting(self.principal) as allowed:
            found = await work
        if version != self._door.topics.rights_version:
            for action, resource in allowed.rights:
                self.ask(action, resource)
        return found

    # -- producers -----------------------------------------------------------------------------------------------------

    async def open_producer(
        self,
        topic: str,
        ended: Ended,
        *,
        name: str | None = None,
        resume: str | None = None,
        fresh: bool = False,
        temporary: bool = False,
        renewal: Renewal | None = None,
        reliable: bool = True,
        create: bool = True,
        exclusive: bool = False,
    ) -> ProducerHandle:
        """Opens a producer. With a name, its batches are deduplicated; see `Topic.attach`. `ended` is called when the
        topic is no longer served.

        With `resume`, the mark of an earlier handle, only the same topic is accepted, not a new one of that name. An
        exclusive producer is the only one of its topic.
        """
        topics = self._door.topics
        version = topics.rights_version
        opened = await topics.open(
            self.principal, Action.TOPIC_PUBLISH, topic, create=create and resume is None, reliable=reliable
        )
        opened.check_mark(resume)
        await topics.counted(opened.name.namespace)
        opened.check_producers(exclusive=exclusive)
        session = None
        if name is not None and opened.topic.reliable:
            with topics.unless_deleted(opened):
                session = await opened.reliable.attach(name, fresh=fresh, temporary=temporary, renewal=renewal)
            opened.check_producers(exclusive=exclusive)  # others may have attached meanwhile
        topics.ask_again(version, self.principal, Action.TOPIC_PUBLISH, opened.name)
        if session is not None:
            opened.reliable.sessions.hold(session)
            temporary = opened.reliable.state.producers.get(session.producer).temporary  # whatever the caller says
        producer = ProducerHandle(topics, self.principal, opened, session, ended, temporary=temporary)
        opened.producers[producer] = None
        opened.exclusive = producer if exclusive else None
        return producer

    # -- consumers -----------------------------------------------------------------------------------------------------

    async def open_consumer(
        self,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        sink: ConsumerSink,
        *,
        name: str = "",
        start: Start = LATEST,
        filters: Sequence[bytes] = (),
        create: bool = True,
        subscribe: bool = True,
        reliable: bool | None = None,
        resume: str | None = None,
        options: SubscriptionOptions | None = None,
        pending: bool = False,
        timing: Timing = Timing.DELIVERED,
        takes_over: bool = False,
    ) -> ConsumerHandle:
        """Opens a consumer of the subscription, which is created if it does not exist and `subscribe` is set.

        With `resume`, the mark of an earlier handle, only the same subscription is accepted, not a new one of that
        name. With `pending`, a new subscription of a reliable topic gets the options that were set in advance. With
        `takes_over`, a consumer of the same name that is in the way is ended: its connection may be half open, and only
        the caller knows that no one is at the other end.
        """
        door, action = self._door, Action.SUBSCRIPTION_CONSUME
        version = door.topics.rights_version
        if options is not None:
            self.subscriptions.ask_dead_letters(options)
        opened = await door.topics.open(
            self.principal,
            action,
            topic,
            subscription=subscription,
            create=create and resume is None,
            reliable=reliable,
        )
        opened.check_mark(resume)
        opened.check_consumers()
        is_new = subscription not in opened.topic.subscriptions
        if pending and opened.record.reliable:
            options = door.pending.get(topic, subscription)
        if is_new and subscribe and resume is None:
            options = self.subscriptions.ask_default_letters(opened, subscription, kind, options)
        with door.topics.unless_deleted(opened):
            host = await opened.enter(subscription, kind, start, options, create=subscribe and resume is None)
        if resume not in (None, opened.mark(host)):
            raise SubscriptionNotFound(f"{subscription!r} was deleted, and another subscription now has its name")
        if pending and is_new:
            await door.pending.forget(topic, subscription)
        opened.check_consumers()  # others may have joined meanwhile
        opened.check_subscription(host)
        door.topics.ask_again(version, self.principal, action, opened.name, subscription)

        def connected() -> Consumer:
            return opened.topic.connect(host, name, sink, filters, timing)

        try:
            consumer = connected()
        except ConsumerBusy:  # the caller's rights have been checked by now
            if not takes_over or not self._take_over(opened, host, subscription, name):
                raise
            consumer = connected()
        handle = ConsumerHandle(door.topics, self.principal, opened, subscription, host, consumer, *self.origin)
        opened.consumers[handle] = None
        return handle

    def _take_over(self, opened: OpenTopic, host: ServedSubscription, subscription: str, name: str) -> bool:
        """Whether one that has the caller's own name has gone."""
        own = (self.principal, self.origin.face, name)
        for each in list(opened.consumers) if name else ():
            if each.subscription is host and (each.principal, each.face, each.name) == own:
                each.end(SubscriptionInUse(f"{subscription!r} was taken over by {name}"), crashed=True)
                return True
        return False

    async def find_subscription(self, topic: str, name: str, *, stored: bool = False) -> SubscriptionHandle | None:
        """A handle to acknowledge messages without being a consumer; None if the subscription does not exist.

        With `stored`, the topic must be one that stores messages.
        """
        topics = self._door.topics
        opened = await topics.open(self.principal, Action.SUBSCRIPTION_CONSUME, topic, subscription=name)
        host = (opened.reliable if stored else opened.topic).subscriptions.get(name)
        return None if host is None else SubscriptionHandle(topics, self.principal, opened, name, host)

    async def subscription(self, topic: str, name: str, *, stored: bool = False) -> SubscriptionHandle:
        """Like `find_subscription`, but raises `SubscriptionNotFound` if the subscription does not exist."""
        found = await self.find_subscription(topic, name, stored=stored)
        if found is None:
            raise SubscriptionNotFound(f"{topic} has no subscription {name!r:.200}")
        return found

    # -- consumers that continue after a restart without subscribing again ---------------------------------------------

    async def remember_consumer(self, known: KnownConsumer, connected: Callable[[], Container[int]]) -> None:
        """Stores durably what its client needs to continue; `connected` returns the ids of consumers that are."""
        self._ask_known(known)
        await self._door.known_consumers.remember(known, connected)

    def known_consumer(self, number: int) -> KnownConsumer | None:
        known = self._door.known_consumers.find(number)
        if known is not None:
            self._ask_known(known)
        return known

    async def forget_consumer(self, known: KnownConsumer) -> None:
        self._ask_known(known)
        await self._door.known_consumers.forget(known.id)

    def _ask_known(self, known: KnownConsumer) -> None:
        topic = parse_topic(known.topic)
        self._door.topics.ask(self.principal, Action.SUBSCRIPTION_CONSUME, topic, known.subscription)

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _readable(self, topic: str, resume: str | None = None) -> Topic:
        opened = await self._door.topics.open(self.principal, Action.TOPIC_READ, topic)
        opened.check_mark(resume)
        return opened.reliable

    async def read(self, topic: str, offset: int, bytes_max: int, *, resume: str | None = None) -> list[Batch]:
        """Confirmed batches, beginning with the one that holds `offset`; none if there are none yet.

        With `resume`, the id of the topic where the reader began, only the same topic is accepted.
        """
        topics = self._door.topics
        version = topics.rights_version
        ledger = (await self._readable(topic, resume)).ledger
        offset = ledger.past_lost(max(offset, ledger.first))
        if offset >= ledger.confirmed_end:
            return []
        bytes_max = max(1, min(bytes_max, READ_BYTES_MAX // 4))
        batches = await ledger.read(offset, bytes_max)
        topics.ask_again(version, self.principal, Action.TOPIC_READ, parse_topic(topic))
        left = bytes_max - sum(batch.size for batch in batches)
        while batches and (following := ledger.find(batches[-1].last_offset + 1)) and following.size <= left:
            batches.append(following)  # the cache returns one at a time
            left -= following.size
        return batches

    async def wait_beyond(self, topic: str, offset: int, seconds: float) -> None:
        """Waits until there is a message at `offset`, for at most `seconds`."""
        topics = self._door.topics
        version = topics.rights_version
        await (await self._readable(topic)).wait_beyond(offset, seconds)
        topics.ask_again(version, self.principal, Action.TOPIC_READ, parse_topic(topic))

    async def bounds(self, topic: str) -> tuple[int, int]:
        """The first offset that still exists, and the offset after the last visible one."""
        return (await self._readable(topic)).bounds

    async def offset_of_time(self, topic: str, time: int) -> int:
        topics = self._door.topics
        version = topics.rights_version
        offset = await (await self._readable(topic)).find_time(time)
        topics.ask_again(version, self.principal, Action.TOPIC_READ, parse_topic(topic))
        return offset
