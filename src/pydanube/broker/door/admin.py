"""Managing topics and subscriptions from outside: a part of the one door, as `service.admin`.

A call that names a partitioned topic as a whole is about all its partitions; what can only be said of one partition,
such as an offset, is refused then. What was done to some partitions when another failed stays done: every call can be
repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from pydanube.base.errors import NotReliable, OffsetsDamaged, RequestInvalid, SubscriptionNotFound
from pydanube.base.limits import (
    ABANDONED_SECONDS,
    AGE_READS_MAX,
    BLOCKED_LISTED_MAX,
    METRIC_SLICE,
    SUBSCRIPTIONS_A_TURN,
)
from pydanube.base.names import TopicName, parse_topic, parse_whole
from pydanube.broker.cold.tables import TABLE_STEPS, Table
from pydanube.broker.cold.tiers import Usage, total
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.pipelines import Pipelines
from pydanube.broker.serving.open_topic import AnySubscription, Opened, Principal
from pydanube.broker.serving.redrive import Redriven, Wanted, redrive
from pydanube.broker.serving.spreading import together
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.best_effort_subscription import BestEffortSubscription
from pydanube.broker.topic.served import LATEST
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.storage.stream.stream import Stream
from pydanube.stream.record import Lost
from pydanube.topic.records import Cause, SubscriptionKind

if TYPE_CHECKING:
    from pydanube.broker.door.service import Service

Start = str | int | Mapping[str, int]  # earliest, latest, an offset, or {"time": microseconds}
Result = TypeVar("Result")
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class TopicStats:
    """A topic, or one partition of it, as it is now. Lists have one value for each partition, in order."""

    record: TopicRecord
    firsts: list[int]  # the first offset that is there
    ends: list[int]  # one after the last that may be seen
    bytes: int  # about; of one copy
    producers: int
    consumers: int
    subscriptions: int
    tiers: Usage  # what lies where
    lost: list[Lost]  # given up as damaged, of all partitions
    damaged: list[tuple[int | None, int, int]]  # partition, first and last offset of what was found, and not given up


@dataclass(frozen=True, slots=True)
class SubscriptionStats:
    """A subscription as it is now. Lists have one value for each partition, in order; None where it is not."""

    name: str
    kind: SubscriptionKind
    options: SubscriptionOptions
    floors: list[int | None]  # everything below is done
    ends: list[int | None]
    generations: list[int | None]
    backlog: int  # messages that are not done
    in_flight: int
    consumers: int
    paused: bool  # in some partition
    counts: dict[str, int]  # messages done or passed over, by cause
    blocked: list[int | None]  # where a message whose retries are exhausted stops others, or cannot be given up
    unreadable: str | None = None  # why what comes next cannot be read, in some partition
    backlog_seconds: float | None = (
        None  # age of the oldest message that is not done; None if not known in all partitions
    )
    delayed: int = 0  # messages that wait for their delivery times, as far as they were read
    delayed_until: int | None = None  # the earliest of these, in microseconds since 1970
    stopped: int = 0  # messages that nobody gets until somebody decides about one that failed too often


class Admin:
    """Owned by its service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self.pipelines = Pipelines(service.clock)
        self.backups: Backups | None = None  # of a broker with storage of its own

    # -- topics --------------------------------------------------------------------------------------------------------

    async def describe_topic(self, principal: Principal, name: str) -> TopicStats:
        places = await self.places(principal, name)
        bounds = [_bounds(each) for each in places]
        names = dict.fromkeys(subscription for each in places for subscription in each.topic.subscriptions)
        return TopicStats(
            places[0].record,
            [first for first, _ in bounds],
            [end for _, end in bounds],
            sum(each.topic.ledger.stream.bytes for each in places if isinstance(each.topic, Topic)),
            sum(len(each.producers) for each in places),
            sum(len(each.consumers) for each in places),
            len(names),
            self._usage(places),
            [lost for stream in _streams(places) for lost in stream.record.lost],
            [
                (each.name.partition, first, last)
                for each in places
                if isinstance(each.topic, Topic)
                for first, last in sorted(each.topic.ledger.stream.damaged.items())
            ],
        )

    async def usage(self, principal: Principal, name: str) -> Usage:
        """What a topic that keeps messages, or one partition, has in which tier."""
        places = await self.places(principal, name)
        self._service.reliable(places[0])
        return self._usage(places)

    async def table(self, principal: Principal, name: str) -> Table:
        """Of a topic as a whole, whichever partition is named. `ObjectsRefused` if it cannot have one here."""
        topics = [self._service.reliable(each) for each in await self.places(principal, name)]
        tiering, streams = self._service.tiers.tiering, [topic.ledger.stream for topic in topics]
        uri = tiering.tables.uri(streams[0].name)
        made = any(stream.record.cold.tabled for stream in streams)
        troubles = [trouble for stream in streams for trouble in tiering.troubles.of(stream.name, *TABLE_STEPS)]
        return Table(uri, made, any(topic.options.table for topic in topics), tuple(dict.fromkeys(troubles)))

    def _usage(self, places: Sequence[Opened]) -> Usage:
        tiers, now = self._service.tiers, self._service.clock.wall()
        found = [(each, tiers.usage(each.topic, now)) for each in places if isinstance(each.topic, Topic)]
        return found[0][1] if len(found) == 1 else total((str(each.name), usage) for each, usage in found)

    async def truncate(
        self, principal: Principal, name: str, before: int | None = None, *, dry_run: bool = False
    ) -> int:
        """Deletes all messages there are now, or those below an offset; says how many. Subscriptions pass over them."""
        places = await self.places(principal, name)
        if before is not None:
            _only(places, "an offset to delete before")
        topics = [self._service.reliable(each) for each in places]
        ends = {str(each.name): topic.beginning(before) for each, topic in zip(places, topics, strict=True)}
        messages = sum(max(0, ends[topic.name] - topic.ledger.first) for topic in topics)
        if not dry_run and parse_topic(name).partition is None:
            await self._service.spreading.change(places[0].record, "truncate", {"before": ends})
        elif not dry_run:
            await self._service.errands.run(topics[0].truncate(before))
        return messages

    # -- subscriptions -------------------------------------------------------------------------------------------------

    async def subscribe(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        *,
        start: Start = LATEST,
        options: SubscriptionOptions | None = None,
    ) -> None:
        """Makes it where it is new, without a consumer; where it is known, its options stay as they are."""
        places = await self.places(principal, str(parse_whole(topic)))
        if isinstance(start, int) and start:
            _only(places, "an offset to start at")
        if options is not None:
            places[0].check_dead_letters(options)
        fields = {
            "subscription": subscription,
            "kind": kind.name,
            "start": start,
            "options": None if options is None else options.stored(),
        }
        await self._service.spreading.change(places[0].record, "subscribe", fields)

    async def unsubscribe(self, principal: Principal, topic: str, subscription: str, *, dry_run: bool = False) -> None:
        """Deletes it, with its consumers told so."""
        found = await self._find(principal, str(parse_whole(topic)), subscription)
        if dry_run:
            return
        record = found[0][0].record
        await self._service.spreading.change(record, "unsubscribe", {"subscription": subscription})

    async def subscriptions(
        self, principal: Principal, topic: str, after: str, limit: int
    ) -> tuple[list[SubscriptionStats], bool]:
        """The next `limit` of them in the order of their names, and whether there are more."""
        places, why = await self._readable(principal, topic)
        names = sorted({name for each in places if each for name in each.topic.subscriptions if name > after})
        now, ages, found = self._service.clock.wall(), self._ages(), list[SubscriptionStats]()
        for number, name in enumerate(names[:limit], 1):
            with suppress(SubscriptionNotFound):  # deleted meanwhile
                found.append(await _aged(_stats(name, places, now, why), places, ages))
            if not number % max(1, SUBSCRIPTIONS_A_TURN // len(places)):
                await asyncio.sleep(0)  # the others of the loop first
        return found, len(names) > limit

    async def describe_subscription(self, principal: Principal, topic: str, subscription: str) -> SubscriptionStats:
        places, why = await self._readable(principal, topic)
        return await _aged(_stats(subscription, places, self._service.clock.wall(), why), places, self._ages())

    async def blocked(self, principal: Principal) -> list[tuple[str, str, int]]:
        """Topic, subscription and offset of the first messages that failed too often and go no further."""

        async def blocked_at(topic: Topic, host: SubscriptionHost) -> int | None:
            return host.engine.blocked_at

        return await self._listed(blocked_at)

    async def abandoned(self, principal: Principal) -> list[tuple[str, str, float]]:
        """Topic, subscription and the age of its oldest message, where that is days and no consumer is connected."""
        ages = self._ages()

        async def abandoned_for(topic: Topic, host: SubscriptionHost) -> float | None:
            seconds = None if host.consumers else await ages.seconds(topic, host)
            return None if seconds is None or seconds < ABANDONED_SECONDS else seconds

        return await self._listed(abandoned_for)

    async def _listed(
        self, trouble: Callable[[Topic, SubscriptionHost], Awaitable[Found | None]]
    ) -> list[tuple[str, str, Found]]:
        """The first subscriptions of reliable topics that have this trouble, and what it is."""
        found: list[tuple[str, str, Found]] = []
        for number, opened in enumerate(self._service.opened(), 1):
            if isinstance(topic := opened.topic, Topic):
                for name, host in list(topic.subscriptions.items()):
                    if (has := await trouble(topic, host)) is not None:
                        found.append((str(opened.name), name, has))
            if len(found) >= BLOCKED_LISTED_MAX:
                break
            if not number % METRIC_SLICE:
                await asyncio.sleep(0)  # the others of the loop first
        return found[:BLOCKED_LISTED_MAX]

    def _ages(self) -> BacklogAges:
        return BacklogAges(self._service.surroundings.clock.wall(), AGE_READS_MAX)

    async def alter_subscription(
        self, principal: Principal, topic: str, subscription: str, changes: Mapping[str, Any]
    ) -> SubscriptionStats:
        """Other options; what is not named stays. It goes by them at once."""
        found = await self._find(principal, topic, subscription)
        for opened, host in found:
            options = SubscriptionOptions.decode(_kept(opened, host).known.options).changed(changes)
            opened.check_dead_letters(options)
        if parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "options": dict(changes)}
            await self._service.spreading.change(found[0][0].record, "alter", fields)
        else:
            await self._service.reliable(found[0][0]).alter_subscription(subscription, changes)
        return await self.describe_subscription(principal, topic, subscription)

    async def seek(
        self, principal: Principal, topic: str, subscription: str, to: Start, *, dry_run: bool = False
    ) -> SubscriptionStats:
        """Its consumers continue from there, whoever they are."""
        found = await self._find(principal, topic, subscription)
        if isinstance(to, int) and to:
            _only(found, "an offset to seek")
        offsets = {str(opened.name): await self._sought(opened, _kept(opened, host), to) for opened, host in found}
        if not dry_run and parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "to": offsets}
            await self._service.spreading.change(found[0][0].record, "seek", fields)
        elif not dry_run:
            [(opened, host)] = found
            await self._service.reliable(opened).seek(_kept(opened, host), offsets[str(opened.name)][0])
        return await self.describe_subscription(principal, topic, subscription)

    async def _sought(self, opened: Opened, host: SubscriptionHost, to: Start) -> tuple[int, int]:
        """The offset that is meant, which a seek may go to, and the generation that it ends."""
        topic, place = self._service.reliable(opened), await self._service.place(opened, to)
        offset, cursor = topic.offset_of(place), host.known.cursor
        cursor.decide_move(offset, topic.ledger.confirmed_end, Cause.SEEK)
        return offset, cursor.generation

    async def skip(
        self,
        principal: Principal,
        topic: str,
        subscription: str,
        *,
        count: int | None = None,
        to: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Gives up the next `count` messages, or all below an offset; says how many that were."""
        if (count is None) == (to is None) or min(count or 0, to or 0) < 0:
            raise RequestInvalid("give either a number of messages to skip or an offset to skip to")
        opened, host = _only(await self._find(principal, topic, subscription), "what is skipped")
        if not dry_run:
            return await self._service.reliable(opened).skip(subscription, count=count, to=to)
        cursor, end = _kept(opened, host).known.cursor, _bounds(opened)[1]
        moved = cursor.decide_move(cursor.behind(count or 0, end) if to is None else to, end, Cause.SKIPPED)
        return 0 if moved is None else moved.passed

    async def redrive(self, principal: Principal, topic: str, wanted: Wanted) -> Redriven:
        """Publishes dead letters again to where they come from, or elsewhere: a slice of those in one place, whose
        `next` is where to go on; or, slice by slice, those in all partitions, which have no such offset in common.
        """
        done, places = Redriven(), await self.places(principal, topic)
        for each in places:
            await redrive(self._service, principal, each, wanted, done)
            while len(places) > 1 and done.next is not None and done.count != wanted.limit:
                await redrive(self._service, principal, each, replace(wanted, start=done.next), done)
        if len(places) > 1:
            done.next = None
        return done

    # -- places --------------------------------------------------------------------------------------------------------

    async def places(self, principal: Principal, name: str) -> list[Opened]:
        """The partition that is named, or all of the topic."""
        parsed, service = parse_topic(name), self._service
        record = await service.topic(principal, name)
        places = [parsed] if parsed.partition is not None else record.places()
        return await together(lambda place: service.open(principal, str(place)), places)

    async def _readable(self, principal: Principal, name: str) -> tuple[list[Opened | None], str | None]:
        """The same, with None for partitions whose state is damaged, and why the first of them is, if some is sound."""
        parsed, service, damage = parse_topic(name), self._service, list[OffsetsDamaged]()

        async def opened(place: TopicName) -> Opened | None:
            try:
                return await service.open(principal, str(place))
            except OffsetsDamaged as error:
                damage.append(error)
                return None

        record = await service.topic(principal, name)
        found = await together(opened, [parsed] if parsed.partition is not None else record.places())
        if not any(found):
            raise damage[0]
        return found, str(damage[0]) if damage else None

    async def _find(self, principal: Principal, topic: str, subscription: str) -> list[tuple[Opened, AnySubscription]]:
        """Where the subscription is: not in partitions that were added since, if no consumer has seen them yet."""
        places = await self.places(principal, topic)
        found = [(each, host) for each in places if (host := each.topic.subscriptions.get(subscription)) is not None]
        if not found:
            raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
        return found


def _only(found: Sequence[Found], what: str) -> Found:
    if len(found) != 1:
        raise RequestInvalid(f"{what} needs a single partition, as in orders-part-0; the topic has {len(found)}")
    return found[0]


def _kept(opened: Opened, host: AnySubscription) -> SubscriptionHost:
    if isinstance(host, BestEffortSubscription):
        raise NotReliable(f"{opened.name} is not reliable, so its subscriptions have no options")
    return host


def _streams(places: Sequence[Opened]) -> list[Stream]:
    return [each.topic.ledger.stream for each in places if isinstance(each.topic, Topic)]


def _bounds(opened: Opened) -> tuple[int, int]:
    topic = opened.topic
    return (topic.ledger.first, topic.ledger.confirmed_end) if isinstance(topic, Topic) else (topic.published,) * 2


def _stats(name: str, places: Sequence[Opened | None], now: int, damage: str | None = None) -> SubscriptionStats:
    """`damage` says why some place is None."""
    hosts = [None if each is None else each.topic.subscriptions.get(name) for each in places]
    there = [host for host in hosts if host is not None]
    if not there:
        [whole, *_] = [each.record.name for each in places if each is not None]
        raise SubscriptionNotFound(f"{whole} has no subscription {name!r}")
    kept = [host if isinstance(host, SubscriptionHost) else None for host in hosts]
    cursors = [None if host is None else host.known.cursor for host in kept]
    ends = [
        _bounds(each)[1] if each is not None and cursor is not None else None
        for each, cursor in zip(places, cursors, strict=True)
    ]
    left = [backlog_of(host, end or 0) for host, end in zip(kept, ends, strict=True) if host is not None]
    some, found = there[0], [host for host in kept if host is not None]
    known = [host.known for host in found]
    dues = [due - host.now + now for host in found if (due := host.engine.delayed_until) is not None]
    return SubscriptionStats(
        name,
        some.kind if isinstance(some, BestEffortSubscription) else some.known.kind,
        SubscriptionOptions.decode(known[0].options) if known else SubscriptionOptions(),
        [None if cursor is None else cursor.floor for cursor in cursors],
        ends,
        [None if cursor is None else cursor.generation for cursor in cursors],
        sum(left),
        sum(host.engine.in_flight for host in found),
        sum(len(host.consumers) for host in there),
        any(host.engine.paused for host in found),
        {cause.name.lower(): sum(each.counts[cause] for each in known) for cause in Cause},
        [None if host is None else host.engine.blocked_at for host in kept],
        damage or next((what for host in found if (what := _unreadable(host)) is not None), None),
        delayed=sum(host.engine.delayed for host in found),
        delayed_until=min(dues, default=None),
        stopped=sum(map(_stopped, found, left)),
    )


def backlog_of(host: SubscriptionHost, end: int) -> int:
    """Messages that are not done, of one partition that ends there."""
    return end - host.known.cursor.floor - host.known.cursor.above.count


def _stopped(host: SubscriptionHost, backlog: int) -> int:
    """What is not read yet counts if nothing is read any more."""
    engine = host.engine
    unread = backlog - engine.waiting - engine.in_flight if engine.at_a_stand else 0
    return engine.stopped + max(0, unread)


def _unreadable(host: SubscriptionHost) -> str | None:
    held_up = host.explain_reading()
    return held_up.what if held_up is not None and held_up.cause is Why.UNREADABLE else None


async def _aged(stats: SubscriptionStats, places: Sequence[Opened | None], ages: BacklogAges) -> SubscriptionStats:
    """With the age of the oldest message of all partitions."""
    oldest = 0.0
    for topic in [each.topic for each in places if each is not None and isinstance(each.topic, Topic)]:
        if (host := topic.subscriptions.get(stats.name)) is None:
            continue
        seconds = await ages.seconds(topic, host)
        if seconds is None:
            return stats
        oldest = max(oldest, seconds)
    return replace(stats, backlog_seconds=oldest)
