"""Consuming without a connection: messages are handed out under leases, each of which ends at its deadline.

Requests that name the same consumer share one consumer of the subscription, for as long as one of them waits or one of
its leases is open. A lease exists only in memory, but its token is enough to acknowledge the message after a restart.
"""

from __future__ import annotations

import asyncio
import re
from asyncio import Future, Task, TimerHandle
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pydanube.access.principals import Principal
from pydanube.base.errors import (
    DanubeError,
    LeaseEnded,
    RequestInvalid,
    TooManyLeases,
    TopicClosed,
)
from pydanube.base.limits import LEASES_MAX, SECOND
from pydanube.base.names import TopicName, parse_topic
from pydanube.base.ranges import Ranges, ranges_of
from pydanube.broker.serving.handles import ConsumerHandle
from pydanube.broker.subscription.delivery import Delivery, Timing
from pydanube.dispatch.agenda import Agenda
from pydanube.dispatch.redelivery import TIMED_OUT
from pydanube.ports.clock import Clock

if TYPE_CHECKING:
    from pydanube.broker.door.session import Session

_TOKEN = re.compile(r"([0-9]{1,18}\.[0-9]{1,18})\.([0-9]{0,9})\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)
LOOK_SECONDS = 0.25  # for stored messages to be read; even a request that does not want to wait gets this much


class Token(NamedTuple):
    """The name of a lease, as clients see it."""

    mark: str  # identifies the topic and the subscription
    partition: int | None
    generation: int
    offset: int
    number: int

    def __str__(self) -> str:
        partition = "" if self.partition is None else self.partition
        return f"{self.mark}.{partition}.{self.generation}.{self.offset}.{self.number}"


def parse_token(text: str) -> Token:
    found = _TOKEN.fullmatch(text)
    if found is None:
        raise RequestInvalid(f"{text[:100]!r} is not a lease")
    mark, partition, *numbers = found.groups()
    return Token(mark, int(partition) if partition else None, *map(int, numbers))


@dataclass(eq=False, slots=True)
class Lease:
    """One message that is handed out."""

    token: Token
    _sink: LeaseSink  # not for its holder
    attempt: int


@dataclass(eq=False, slots=True)
class Poll:
    """A request that waits for messages."""

    limit: int
    lease_seconds: float | None
    partitions: int  # how many it waits for; 1 for a topic without partitions
    ready: Future[None]
    taken: list[tuple[Delivery, list[Lease]]] = field(default_factory=list)
    failures: dict[LeaseSink, BaseException] = field(default_factory=dict)  # of partitions that cannot serve it

    @property
    def wants(self) -> int:
        return 0 if self.ready.done() else self.limit - sum(len(leases) for _, leases in self.taken)

    def fail(self, sink: LeaseSink, error: BaseException) -> None:
        """Notes the failure of one partition. The request waits as long as another one may have a message."""
        self.failures[sink] = error
        if len(self.failures) == self.partitions and not self.ready.done():
            self.ready.set_exception(error)


class Received(NamedTuple):
    """A part of a batch, and the leases of its messages by ascending offset."""

    topic: TopicName
    delivery: Delivery
    leases: list[Lease]


class LeaseSink:
    """The sink of one consumer of one subscription of a topic or partition, with all requests that share it."""

    def __init__(self, leasing: Leasing, key: Key) -> None:
        self.key = key
        self.handle: ConsumerHandle | None = None  # while it is connected to the subscription
        self.opening: Task[None] | None = None  # connects it
        self.leases: dict[int, Lease] = {}  # by offset
        self.polls: dict[Poll, None] = {}
        self._leasing = leasing
        self._arrived: deque[Delivery] = deque()
        self._sharing = False

    # -- the sink ------------------------------------------------------------------------------------------------------

    def deliver(self, delivery: Delivery) -> None:
        """Collects deliveries, which are shared out in the next turn, when all those of one decision have arrived."""
        self._arrived.append(delivery)
        if not self._sharing:
            self._sharing = True
            asyncio.get_running_loop().call_soon(self._share)

    def reset(self, generation: int) -> None:
        self._arrived.clear()
        self._end(list(self.leases.values()))

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        gone = Ranges(ranges)
        arrived, self._arrived = self._arrived, deque()
        for delivery in arrived:
            left = Ranges([(delivery.first, delivery.last)])
            for first, last in gone:
                left.cut(first, last)
            self._arrived += [delivery._replace(first=first, last=last) for first, last in left]
        self._end([lease for offset, lease in self.leases.items() if offset in gone])

    def _end(self, leases: Sequence[Lease]) -> None:
        """If the consumer leaves, it does so in the next turn: its subscription is iterating over its sinks."""
        self._leasing.end(leases, drop=False)
        asyncio.get_running_loop().call_soon(self._leasing.drop, self)

    def unreadable(self, error: DanubeError | None) -> None:
        if error is not None:
            return self._tell(error)
        for poll in self.polls:
            poll.failures.pop(self, None)

    def closed(self, error: DanubeError) -> None:
        self.handle = None
        self._arrived.clear()
        self._leasing.end(list(self.leases.values()))
        self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """It has no consumer, so later requests get another one."""
        self._leasing.forget(self)
        self._tell(error)

    def _tell(self, error: BaseException) -> None:
        for poll in self.polls:
            poll.fail(self, error)

    # -- requests ------------------------------------------------------------------------------------------------------

    def begin(self, opening: Task[None]) -> None:
        """Requests may enter at once, and are served when the consumer is connected."""
        self.opening = opening
        opening.add_done_callback(self._opened)

    def _opened(self, opening: Task[None]) -> None:
        self.opening = None
        error = TopicClosed("the broker is stopping") if opening.cancelled() else opening.exception()
        if error is None:  # even so, its consumer may have been ended by now
            self._ask()
            self._leasing.drop(self)
        else:
            self._fail(error)

    def enter(self, poll: Poll) -> None:
        self.polls[poll] = None
        self._ask()

    def leave(self, poll: Poll) -> None:
        self.polls.pop(poll, None)
        self._ask()
        self._leasing.drop(self)

    def give_back(self, first: int, last: int) -> None:
        """Returns messages that were not handed out: they are dispatched again, and have not failed."""
        if self.handle is not None:
            self.handle.give_back(first, last)
            self._ask()

    def _ask(self) -> None:
        """Sets the permits to the number of messages that the waiting requests want."""
        if self.handle is not None:
            self.handle.withdraw()
            self.handle.grant(sum(poll.wants for poll in self.polls))

    def _share(self) -> None:
        self._sharing = False
        served: dict[Poll, None] = {}
        while self._arrived:
            delivery = self._arrived.popleft()
            poll = next((poll for poll in self.polls if poll.wants), None)
            if poll is None or self.handle is None or delivery.generation != self.handle.generation:
                self.give_back(delivery.first, delivery.last)
                continue
            last = min(delivery.last, delivery.first + poll.wants - 1)
            if last < delivery.last:
                self._arrived.appendleft(delivery._replace(first=last + 1))
            part = delivery._replace(last=last)
            poll.taken.append((part, self._leasing.open(self, part, poll.lease_seconds)))
            served[poll] = None
        for poll in served:
            poll.ready.set_result(None)
        self._ask()
        self._leasing.drop(self)

    @property
    def idle(self) -> bool:
        return not (self.leases or self.polls or self._arrived or self.opening)


class Key(NamedTuple):
    """Requests with equal keys share one consumer."""

    principal: Principal
    topic: TopicName  # or partition
    subscription: str
    consumer: str  # its name


class Leasing:
    """All leases of a broker. Owned by its loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sinks: dict[Key, LeaseSink] = {}
        self._leases: dict[int, Lease] = {}  # by number
        self._deadlines = Agenda()
        self._number = self._clock.wall()  # higher than that of any lease from before a restart
        self._timer: TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._leases)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def receive(
        self,
        session: Session,
        partitions: Sequence[TopicName],
        subscription: str,
        *,
        consumer: str,
        limit: int,
        wait: float,
        lease_seconds: float | None,
    ) -> list[Received]:
        """Waits for messages and returns them under leases; none if none comes in time.

        The failure of one partition is raised only if no other one had a message in time. The caller returns what it
        cannot use with `release`. Without `lease_seconds`, the ack timeout of the subscription counts.
        """
        if len(self._leases) + limit > LEASES_MAX:
            raise TooManyLeases(f"{len(self._leases)} messages are leased; the maximum is {LEASES_MAX}")
        poll = Poll(limit, lease_seconds, len(partitions), asyncio.get_running_loop().create_future())
        sinks: list[LeaseSink] = []
        try:
            for partition in partitions:
                sinks.append(self._sink(session, Key(session.principal, partition, subscription, consumer)))
                sinks[-1].enter(poll)
            async with asyncio.timeout(max(wait, LOOK_SECONDS)):
                await poll.ready
        except TimeoutError:
            for error in poll.failures.values():
                raise error from None
        except BaseException:
            for _, leases in poll.taken:
                self.release(leases)
            raise
        finally:
            if not poll.ready.cancel() and not poll.ready.cancelled():
                poll.ready.exception()  # marks it as retrieved
            for sink in sinks:
                sink.leave(poll)
        return [Received(leases[0]._sink.key.topic, delivery, leases) for delivery, leases in poll.taken]

    def open(self, sink: LeaseSink, delivery: Delivery, lease_seconds: float | None) -> list[Lease]:
        handle, partition = sink.handle, sink.key.topic.partition
        assert handle is not None
        timeout, mark = handle.ack_timeout if lease_seconds is None else round(lease_seconds * SECOND), handle.mark
        found = []
        for offset in range(delivery.first, delivery.last + 1):
            self._number += 1
            token = Token(mark, partition, delivery.generation, offset, self._number)
            lease = self._leases[self._number] = sink.leases[offset] = Lease(token, sink, delivery.attempt)
            if timeout is not None:
                self._deadlines.set(self._number, self._now + timeout)
            found.append(lease)
        self._set_timer()
        return found

    def is_open(self, lease: Lease) -> bool:
        return self._leases.get(lease.token.number) is lease

    def release(self, leases: Sequence[Lease]) -> None:
        """Ends leases whose messages were not handed out after all."""
        for sink, ranges in _by_sink([each for each in leases if self.is_open(each)]):
            self.end(_at(sink, ranges), drop=False)
            for first, last in ranges:
                sink.give_back(first, last)
            self.drop(sink)

    def _sink(self, session: Session, key: Key) -> LeaseSink:
        sink = self._sinks.get(key)
        if sink is None:
            sink = self._sinks[key] = LeaseSink(self, key)
            sink.begin(asyncio.get_running_loop().create_task(self._connect(session.without_address(), sink)))
        else:
            sink.key.principal.renew(session.principal)
        return sink

    async def _connect(self, session: Session, sink: LeaseSink) -> None:
        _, topic, subscription, consumer = sink.key
        found = await session.subscription(str(topic), subscription, stored=True)
        sink.handle = await session.open_consumer(
            str(topic),
            subscription,
            found.kind,
            sink,
            name=consumer,
            resume=found.mark,
            timing=Timing.TAKEN,  # the deadlines of leases are kept in this module
        )

    # -- what becomes of them ------------------------------------------------------------------------------------------

    async def ack(self, session: Session, topic: str, subscription: str, tokens: Sequence[str]) -> list[str]:
        """Acknowledges durably; returns the tokens that are void. A lease that has ended can still be acknowledged."""
        acks: dict[tuple[TopicName, str, int], list[Token]] = {}
        for token in map(parse_token, tokens):
            acks.setdefault((self._partition(topic, token), token.mark, token.generation), []).append(token)
        void: list[str] = []
        answers: list[Future[None]] = []
        for (partition, mark, generation), of_partition in acks.items():
            found = await session.subscription(str(partition), subscription, stored=True)
            if found.mark != mark or generation != found.generation:
                void += map(str, of_partition)
                continue
            answers.append(found.ack(generation, ranges_of(sorted({token.offset for token in of_partition}))))
            self.end([lease for lease in map(self._lease, of_partition) if lease is not None])
        await asyncio.gather(*answers)
        _check_some(tokens, void, "the subscription has since been deleted or moved by a seek")
        return void

    def nack(
        self, topic: str, subscription: str, tokens: Sequence[str], delay_seconds: float, reason: str
    ) -> list[str]:
        """The messages failed, and are redelivered. Returns tokens of ended leases, which are redelivered anyway."""
        leases, ended = self._held(topic, subscription, tokens)
        self._failed(leases, delay_seconds, reason)
        return ended

    def fail(self, leases: Sequence[Lease], reason: str) -> None:
        """Marks messages as failed because they cannot be handed out."""
        self._failed([each for each in leases if self.is_open(each)], 0, reason)

    def _failed(self, leases: Sequence[Lease], delay_seconds: float, reason: str) -> None:
        for sink, ranges in _by_sink(leases):
            self.end(_at(sink, ranges), drop=False)
            assert sink.handle is not None
            sink.handle.nack(sink.handle.generation, ranges, round(delay_seconds * SECOND), reason)
            self.drop(sink)

    def extend(self, topic: str, subscription: str, tokens: Sequence[str], lease_seconds: float) -> list[str]:
        """The leases end `lease_seconds` from now. Returns the tokens of those that have already ended."""
        leases, ended = self._held(topic, subscription, tokens)
        for lease in leases:
            self._deadlines.set(lease.token.number, self._now + round(lease_seconds * SECOND))
        self._set_timer()
        return ended

    def _held(self, topic: str, subscription: str, tokens: Sequence[str]) -> tuple[list[Lease], list[str]]:
        """The open leases of the subscription, and the tokens that are not open."""
        parsed = [parse_token(text) for text in dict.fromkeys(tokens)]
        found = [(token, self._lease_of(self._partition(topic, token), subscription, token)) for token in parsed]
        ended = [str(token) for token, lease in found if lease is None]
        _check_some(parsed, ended, "they expired, or the broker was restarted")
        return [lease for _, lease in found if lease is not None], ended

    def _lease_of(self, topic: TopicName, subscription: str, token: Token) -> Lease | None:
        """The open lease; None if it is of another subscription, for which the caller's rights were not checked."""
        lease = self._lease(token)
        return lease if lease is not None and lease._sink.key[1:3] == (topic, subscription) else None

    def _lease(self, token: Token) -> Lease | None:
        lease = self._leases.get(token.number)
        return lease if lease is not None and lease.token == token else None

    def _partition(self, topic: str, token: Token) -> TopicName:
        parsed = parse_topic(topic)
        if parsed.partition not in (None, token.partition):
            raise RequestInvalid(f"{str(token)!r} is a lease of another partition")
        return parsed._replace(partition=token.partition)

    def end(self, leases: Sequence[Lease], *, drop: bool = True) -> None:
        for lease in leases:
            number, offset = lease.token.number, lease.token.offset
            if self._leases.pop(number, None) is not None:
                self._deadlines.discard(number)
                del lease._sink.leases[offset]
        for sink in dict.fromkeys(lease._sink for lease in leases) if drop else ():
            self.drop(sink)

    def forget(self, sink: LeaseSink) -> None:
        if self._sinks.get(sink.key) is sink:
            del self._sinks[sink.key]

    def drop(self, sink: LeaseSink) -> None:
        """The consumer leaves if no request waits and nothing is leased; messages it was just given have not failed."""
        if sink.idle:
            self.forget(sink)
            if sink.handle is not None:
                sink.handle.close(crashed=False)
                sink.handle = None

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def _now(self) -> int:
        return int(self._clock.monotonic() * SECOND)

    def pass_time(self) -> None:
        """Ends the leases that have expired; their messages have failed once more."""
        self._failed([self._leases[number] for number in self._deadlines.take_due(self._now)], 0, TIMED_OUT)
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        due = self._deadlines.next_time()
        seconds = 0.0 if due is None else max(0.0, (due - self._now) / SECOND)
        self._timer = None if due is None else asyncio.get_running_loop().call_later(seconds, self.pass_time)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _at(sink: LeaseSink, ranges: Sequence[tuple[int, int]]) -> list[Lease]:
    return [sink.leases[offset] for first, last in ranges for offset in range(first, last + 1)]


def _by_sink(leases: Sequence[Lease]) -> Iterator[tuple[LeaseSink, list[tuple[int, int]]]]:
    offsets: dict[LeaseSink, list[int]] = {}
    for lease in leases:
        offsets.setdefault(lease._sink, []).append(lease.token.offset)
    for sink, found in offsets.items():
        yield sink, ranges_of(sorted(found))


def _check_some(tokens: Sequence[object], ended: Sequence[str], why: str) -> None:
    if tokens and len(ended) == len(tokens):
        raise LeaseEnded(f"none of the {len(ended)} leases is open: {why}")
