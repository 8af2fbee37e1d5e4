"""A consumer: messages of one or more topics in the order they came, by message or by batch, and their acks.

A consumer has at most `prefetch` messages of a partition that are not acknowledged: what waits here, and what its
program has in hand. What waits here has about `prefetch_bytes` at most, of all partitions.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self, cast

from pydanube.base.errors import (
    AlreadyOpened,
    ArgumentInvalid,
    BatchUnreadable,
    ClientClosed,
    DanubeError,
    NothingReceived,
    NotOpened,
    TopicNotFound,
)
from pydanube.base.fields import Fields
from pydanube.base.limits import (
    CONSUMER_PREFETCH_BYTES,
    CONSUMER_PREFETCH_MESSAGES,
    GRANTED_BYTES_MAX,
    OFFSET_MAX,
    PERMITS_MAX,
    SECOND,
)
from pydanube.base.names import full_name, parse_topic
from pydanube.base.ranges import ranges_of
from pydanube.base.units import microseconds_of, moment_of
from pydanube.client.acks import AckGroup
from pydanube.client.channel import HINDRANCES
from pydanube.client.ending import Openable
from pydanube.client.feed import Feed
from pydanube.client.inbox import Inbox
from pydanube.client.messages import Deserializer, Message, MessageBatch
from pydanube.client.outgoing import OnError, fresh
from pydanube.client.topic_watch import Failed, Names, News, follow
from pydanube.client.values import Duration, Size, plain, seconds_of, size_of
from pydanube.client.waiters import Waiters

if TYPE_CHECKING:
    from pydanube.client.client import Client

TYPES = ("exclusive", "shared", "failover", "key_shared")
Start = str | int | datetime | timedelta | Mapping[str, int]


def type_of(text: str) -> str:
    """In any case, also as `KeyShared`."""
    plain = str(text).lower().replace("-", "").replace("_", "")
    for name in TYPES:
        if plain == name.replace("_", ""):
            return name
    raise ArgumentInvalid(f"a subscription type must be one of {', '.join(TYPES)}, got {text!r}")


def wire_start(start: Start, now: int) -> str | int | dict[str, int]:
    """A place as the protocol says it: earliest, latest, an offset, or {"time": µs}. Durations are before `now`."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ArgumentInvalid("a start time needs a time zone")
        return {"time": round(start.timestamp() * SECOND)}
    if isinstance(start, Mapping):
        return dict(start)
    if type(start) is int and 0 <= start <= OFFSET_MAX:
        return start
    try:
        if isinstance(start, str):
            return start if start in ("earliest", "latest") else {"time": moment_of(start, now)}
        if isinstance(start, timedelta):
            return {"time": now - microseconds_of(start)}
    except ValueError:
        pass
    known = "earliest, latest, an offset, a time such as yesterday or 10m (ago), a datetime or a timedelta"
    raise ArgumentInvalid(f"start must be {known}, got {start!r}")


class Consumer(Openable):
    """A consumer, created by `Client.consumer`. Use it with `async with`, or `open` and `close`."""

    def __init__(
        self,
        client: Client,
        topics: str | Sequence[str] | None = None,
        *,
        subscription: str,
        pattern: str | None = None,
        type: str = "exclusive",  # the word of the whole project for it
        start: Start = "latest",
        name: str | None = None,
        filters: Sequence[str] = (),
        reliable: bool | None = None,
        create: bool = True,
        options: Mapping[str, Any] | None = None,
        prefetch: int = CONSUMER_PREFETCH_MESSAGES,
        prefetch_bytes: Size = CONSUMER_PREFETCH_BYTES,
        deserializer: Deserializer | None = None,
        on_error: OnError | None = None,
    ) -> None:
        if (topics is None) == (pattern is None):
            raise ArgumentInvalid("give the consumer either topics or a pattern")
        if topics is not None and not topics:
            raise ArgumentInvalid("a consumer needs at least one topic")
        given = Fields(ArgumentInvalid, {"prefetch": prefetch, "prefetch_bytes": size_of(prefetch_bytes)})
        given.whole("prefetch", 1, PERMITS_MAX)
        self.prefetch_bytes = given.whole("prefetch_bytes", 1, GRANTED_BYTES_MAX)
        self.client = client
        self.topics = [full_name(each) for each in ([topics] if isinstance(topics, str) else topics or ())]
        self.pattern = None if pattern is None else full_name(pattern)
        self.subscription = subscription
        self.type = type_of(type)
        self.start = wire_start(start, client.clock.wall())
        self.name = name or f"consumer-{client.randomness.bytes(8).hex()}"
        self.filters = tuple(filters)
        self.reliable = reliable
        self.create = create and pattern is None
        self.options: Mapping[str, Any] | None = plain(options)
        self.prefetch = prefetch
        self.deserializer = deserializer
        self._on_error = on_error
        self.outer: Any = None  # the consumer without `await` that this one serves
        self._opened = False  # or being opened
        self._feeds: dict[str, Feed] = {}  # by the name of the topic or partition
        self._expected = 1  # feeds, at least, while they are opened one by one
        self.inbox = Inbox(self._refuse)
        self.short: dict[Feed, None] = {}  # with little room left for what the broker may send
        self._arrivals = Waiters()
        self._hindrance: DanubeError | None = None  # to be raised, once, by whoever waits
        self._closed: DanubeError | None = NotOpened(f"the consumer of {subscription!r} is not open yet")
        self._news = News()  # topics to look at: new ones, and those that were lost
        self._refresher: Task[None] | None = None

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            rows = self.inbox.rows
            for message in rows:  # lives on when this iteration is left
                yield message
            if rows is self.inbox.rows and not self.inbox.advance():  # else another task is at the next batch
                await self._arrival()

    async def __anext__(self) -> Message:
        return await self.receive()

    async def batches(self) -> AsyncIterator[MessageBatch]:
        """Yields messages in the batches they were delivered in. The cheapest way to consume."""
        while True:
            batch = self.inbox.take_batch()
            if batch is None:
                await self._arrival()
            else:
                cast(Feed, batch.source).handed_out([(batch.first, batch.last)])
                yield batch

    async def receive(self, timeout: Duration | None = None) -> Message:  # noqa: ASYNC109 - a word of the API
        """Returns the next message. Raises `NothingReceived` if none arrives within `timeout` seconds.

        Where everything that it consumes stands at messages that are damaged on the broker's disk, it raises
        `OffsetsDamaged` instead of waiting, every few seconds for as long as that is so.
        """
        try:
            async with asyncio.timeout(None if timeout is None else seconds_of(timeout)):
                while True:
                    for message in self.inbox.rows:
                        return message
                    if not self.inbox.advance():
                        await self._arrival()
        except TimeoutError:
            raise NothingReceived(self._nothing(timeout)) from None

    async def fetch(self, count: int, timeout: Duration | None = None) -> list[Message]:  # noqa: ASYNC109
        """Returns `count` messages, or as many as arrive within `timeout` seconds, possibly none."""
        found = self.inbox.begin()
        try:
            async with asyncio.timeout(None if timeout is None else seconds_of(timeout)):
                while True:
                    found += self.arrived(count - len(found))
                    if len(found) >= count:
                        return found
                    await self._arrival(count - len(found))
        except TimeoutError:
            return found
        except DanubeError:  # nothing more will come: the next call hears of it
            if found:
                return found
            raise
        except BaseException:
            self.inbox.give_back(found)
            found.clear()
            self._arrivals.wake()
            raise
        finally:
            self.inbox.end(found)
            self._hand_out(found)

    def _hand_out(self, messages: list[Message]) -> None:
        by_feed: dict[Feed, list[int]] = {}
        for message in messages:
            by_feed.setdefault(cast(Feed, message.batch.source), []).append(message.offset)
        for feed, offsets in by_feed.items():
            feed.handed_out(ranges_of(sorted(offsets)))

    def arrived(self, count: int) -> list[Message]:
        """At most `count` messages that are here already; does not wait."""
        return self.inbox.arrived(count)

    def _refuse(self, batch: MessageBatch, error: BatchUnreadable) -> None:
        """Nobody can do it: what becomes of it is the subscription's failure policy."""
        self.nack(batch, reason=str(error))
        self._say("unreadable", error, len(batch))

    async def _arrival(self, wanted: int = 0) -> None:
        """Waits for more. If so many are `wanted` at once, it is for more than fits the prefetch, if need be."""
        if self._closed is not None:
            raise fresh(self._closed)
        if self._hindrance is not None and self._stands_still:
            error, self._hindrance = self._hindrance, None
            raise fresh(error)
        for feed in list(self.short):
            feed.hurry()
            if wanted:
                feed.lend(min(wanted, PERMITS_MAX))
        await self._arrivals.wait(self.client.loop)

    @property
    def hungry(self) -> bool:
        """Nothing waits here, and somebody waits for more."""
        return bool(self._arrivals)

    def _nothing(self, timeout: Duration | None) -> str:
        text = f"no message for {self.subscription!r} within {timeout} seconds"
        full = [feed for feed in self._feeds.values() if feed.unacked >= self.prefetch]
        if hindered := [feed.hindrance for feed in self._feeds.values() if feed.hindrance is not None]:
            text += f"; {hindered[0]}"
        elif full:
            text += f"; {full[0].place} has sent {self.prefetch} messages (prefetch) that are not acknowledged yet"
        return text

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, what: Message | MessageBatch) -> AckGroup:
        """Acknowledges the message. The ack is sent within milliseconds; `await` the result to know that it is durable.

        Without a connection it is sent on the next one. A failure that is not awaited is reported to `on_error` and to
        the client's events, and the message is delivered again.
        """
        if type(what) is Message:
            batch, offset = what[0], what[1]
            feed: Feed = batch.source  # type: ignore[assignment]  # a cast would cost as much as the rest
            return feed.ack(offset, offset, batch.generation)
        batch = cast(MessageBatch, what)
        return cast(Feed, batch.source).ack(batch.first, batch.last, batch.generation)

    def ack_all(self, what: Message | MessageBatch) -> AckGroup:
        """Acknowledges the message and everything before it in its partition."""
        batch, _, last = _range_of(what)
        return cast(Feed, batch.source).ack_all(last, batch.generation)

    def nack(self, what: Message | MessageBatch, delay: Duration = 0.0, reason: str = "") -> None:
        """Rejects the message: the broker delivers it again after at least `delay` seconds.

        The subscription's `max_delay` limits the delay. Without a connection nothing is sent: everything
        unacknowledged is delivered again on the next connection, and this consumer holds such messages back until
        their delay is over.
        """
        batch, first, last = _range_of(what)
        cast(Feed, batch.source).nack(first, last, batch.generation, seconds_of(delay), reason)

    # -- steering ------------------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stops deliveries to the whole subscription until `resume`."""
        await self._ask_all("pause")

    async def resume(self) -> None:
        """Resumes deliveries, even if another consumer paused the subscription."""
        await self._ask_all("resume")

    async def seek(self, to: Start, *, partition: int | None = None) -> None:
        """Moves the subscription to earliest, latest, an offset or a time. The move is durable when this returns.

        Messages received before can no longer be acknowledged. An offset needs the partition if the topic has several.
        """
        feeds = [feed for feed in self._feeds.values() if partition is None or feed.partition == partition]
        place = wire_start(to, self.client.clock.wall())
        if not feeds or (type(place) is int and len(feeds) > 1):
            raise ArgumentInvalid(f"seek({to!r}) works on one partition; this consumer has {len(feeds)}")
        for feed in feeds:
            fields = {"offset": place} if not isinstance(place, dict) else place
            if isinstance(place, str):
                first, end = await self.client.bounds(feed.place)
                fields = {"offset": first if place == "earliest" else end}
            reply = await feed.ask("seek", fields)
            if "generation" in reply:
                feed.reset(int(reply["generation"]))

    async def _ask_all(self, verb: str) -> None:
        for feed in list(self._feeds.values()):
            await feed.ask(verb, {})

    @property
    def partitions(self) -> list[tuple[str, int | None]]:
        """Topic and partition of everything it consumes."""
        return [(feed.topic, feed.partition) for feed in self._feeds.values()]

    # -- for its feeds -------------------------------------------------------------------------------------------------

    @property
    def share_bytes(self) -> int:
        """What one of them may bring before the program takes some of it."""
        return max(1, self.prefetch_bytes // max(self._expected, len(self._feeds)))

    def put(self, batch: MessageBatch) -> None:
        self.inbox.put(batch)
        if self._arrivals:
            self._arrivals.wake()

    def ack_failed(self, error: DanubeError, count: int) -> None:
        """Of messages whose acks nobody awaits."""
        self._say("ack_failed", error, count)

    def hindered(self, error: DanubeError, *, new: bool) -> None:
        """The broker cannot read on for a feed. Whoever waits is told if no other feed can bring anything."""
        if new:
            self._say("damaged", error, 0)
        self._hindrance = error
        if self._stands_still:
            self._arrivals.wake()

    @property
    def _stands_still(self) -> bool:
        return all(feed.hindrance is not None for feed in self._feeds.values())

    def _say(self, what: str, error: DanubeError, count: int) -> None:
        self.client.say(what, error)
        if self._on_error is not None:
            self.client.call_back(self._on_error, error, count)

    def lose(self, feed: Feed, error: DanubeError) -> None:
        """A feed is gone for good; what has arrived may still be taken. A pattern continues without a deleted topic."""
        self.short.pop(feed, None)
        if self.pattern is not None and isinstance(error, TopicNotFound):
            self._feeds.pop(feed.place, None)
            self._news.add(
                [feed.topic]
            )  # made again, perhaps: what the broker said of that came while this one was here
        elif self._closed is None:
            self._closed = error
            if self._refresher is not None:
                self._refresher.cancel()
            self._arrivals.wake()

    # -- opening and closing -------------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Opens it, once. If opening fails, nothing is left behind, and you can try again."""
        if self._opened:
            raise AlreadyOpened(f"the consumer of {self.subscription!r} was already opened")
        self._opened = True
        try:
            await self._join(None, self.start, create=self.create)
        except BaseException:
            feeds, self._feeds, self._opened = self._feeds, {}, False
            self.inbox.clear()
            for feed in feeds.values():
                feed.close_at_once()
            raise
        self._closed = None
        self.client.add(self)
        if self.pattern is not None or any(feed.partition is not None for feed in self._feeds.values()):
            self._refresher = self.client.loop.create_task(self._refresh())
        return self

    async def _join(self, changed: Names, start: Any, *, create: bool) -> None:
        """Opens a feed for every partition that has none yet, of the topics that have changed or of all."""
        names = await self._wanted(changed)
        self._expected = len(names)
        for name in names:
            await self._join_topic(name, start, create=create)
        self._expected = 1

    async def _join_changed(self, changed: Names) -> Failed:
        """Whatever can be joined is; the others are told, and come again."""
        failed: Failed = {}
        for name in await self._wanted(changed):
            try:
                await self._join_topic(name, None, create=False)
            except DanubeError as error:
                failed[name] = error
        self._expected = 1
        return failed

    async def _join_topic(self, name: str, start: Any, *, create: bool) -> None:
        try:
            found = await self.client.topic(name, create=create, reliable=self.reliable)
        except TopicNotFound:
            if self.pattern is None:
                raise
            return  # deleted meanwhile
        if found.dead_letters and self.pattern not in (None, name):
            return  # a pattern would follow its own dead letters
        if not found.reliable and (start is None or self.pattern is not None):
            start = "latest"  # it keeps nothing to start at
        elif start is None:
            start = "earliest"  # it is new
        hindered: dict[Feed, DanubeError] = {}
        places = found.places()
        self._expected = max(self._expected, len(self._feeds.keys() | {place for _, place in places}))
        for partition, place in places:
            if place not in self._feeds:
                feed = self._feeds[place] = Feed(self, name, partition, place, start)
                try:
                    await self.client.within("open_consumer", feed.open())
                except BaseException as error:
                    if not isinstance(error, HINDRANCES) or not feed.mends(error):
                        self._feeds.pop(place, None)
                        raise
                    hindered[feed] = error
        if len(hindered) == len(places):
            for feed in hindered:
                del self._feeds[feed.place]
            raise next(iter(hindered.values()))
        for feed in hindered:
            feed.wait_for_mending()

    async def _wanted(self, changed: Names) -> list[str]:
        if self.pattern is None:
            return [name for name in self.topics if changed is None or str(parse_topic(name).whole) in changed]
        if changed is None:
            changed = await self.client.admin.topics(_namespace_of(self.pattern))
        return [name for name in sorted(changed) if fnmatchcase(name, self.pattern)]

    async def _refresh(self) -> None:
        namespaces = {parse_topic(name).namespace for name in self.topics}
        if self.pattern is not None:
            namespaces.add(_namespace_of(self.pattern))
        await follow(self.client, namespaces, self._join_changed, self._news)

    async def close(self) -> None:
        """Sends pending acks, then leaves. Unacknowledged messages go to other consumers."""
        self._closed = ClientClosed(f"the consumer of {self.subscription!r} was closed")
        self.client.remove(self)
        try:
            if self._refresher is not None:
                self._refresher.cancel()
                await asyncio.wait([self._refresher])  # it takes back what it was opening
            for feed in list(self._feeds.values()):  # one whose topic is deleted meanwhile leaves
                await feed.close()
        finally:
            for feed in list(self._feeds.values()):  # also when the closing was given up: who waits for them is told
                feed.abandon()
            self.inbox.clear()
            self._arrivals.wake()

    @property
    def connected(self) -> bool:
        return self.client.connected

    @property
    def unsent(self) -> int:
        return 0

    def disown(self, error: DanubeError) -> None:
        """It belongs to another process: whoever uses it here gets this error."""
        self._closed = error
        self.inbox.clear()
        for feed in self._feeds.values():
            feed.disown(error)


def _namespace_of(pattern: str) -> str:
    """A pattern matches within one namespace."""
    _, namespace, *rest = pattern.split("/") if pattern.startswith("/") else ("", "")
    if len(rest) != 1 or any(mark in namespace for mark in "*?["):
        raise ArgumentInvalid(f"a pattern must look like /namespace/pattern, got {pattern!r}")
    return namespace


def _range_of(what: Message | MessageBatch) -> tuple[MessageBatch, int, int]:
    if isinstance(what, MessageBatch):
        return what, what.first, what.last
    return what.batch, what.offset, what.offset
