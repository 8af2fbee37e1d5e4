"""A consumer: receives messages of one or more topics, one by one or in batches, and acknowledges them.

Per partition, a consumer has at most `prefetch` unacknowledged messages, counting those that wait here and those that
the program has received. Those that wait here have about `prefetch_bytes` at most, for all partitions together.
"""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Self, cast, get_args

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
from pydanube.base.fields import Fields, listed
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
from pydanube.client.arguments import Duration, Size, options_of, seconds_of, size_of
from pydanube.client.channel import DAMAGE_ERRORS
from pydanube.client.errors import copy_of
from pydanube.client.inbox import Inbox
from pydanube.client.lifecycle import Openable
from pydanube.client.messages import Deserializer, Message, MessageBatch
from pydanube.client.partition_consumer import PartitionConsumer
from pydanube.client.send_results import OnError
from pydanube.client.topic_watch import FailedTopics, TopicChanges, TopicNames, follow
from pydanube.client.waiters import Waiters
from pydanube.operations.channels import Pause, Resume, Seek
from pydanube.operations.fields import TYPES, AtTime, End, Position, TypeName, type_named
from pydanube.operations.operation import read

if TYPE_CHECKING:
    from pydanube.client.client import Client

_ENDS: dict[str, End] = {each: each for each in get_args(End)}
Start = str | int | datetime | timedelta | Mapping[str, int]


def type_of(text: str) -> TypeName:
    """A subscription type in any spelling, such as `KeyShared`."""
    name = type_named(str(text))
    if name is None:
        raise ArgumentInvalid(f"a subscription type must be {listed(TYPES)}, got {text!r}")
    return name


def wire_position(start: Start, now: int) -> Position:
    """A position in the protocol: earliest, latest, an offset, or a time. Durations are before `now`."""
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ArgumentInvalid("a start time needs a time zone")
        return AtTime(round(start.timestamp() * SECOND))
    if isinstance(start, Mapping):
        return read(AtTime, start, ArgumentInvalid)
    if type(start) is int and 0 <= start <= OFFSET_MAX:
        return start
    try:
        if isinstance(start, str):
            return _ENDS.get(start) or AtTime(moment_of(start, now))
        if isinstance(start, timedelta):
            return AtTime(now - microseconds_of(start))
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
        type: str = "exclusive",  # shadows the builtin: it is the word that the whole project uses
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
        self.start = wire_position(start, client.clock.wall())
        self.name = name or f"consumer-{client.randomness.bytes(8).hex()}"
        self.filters = tuple(filters)
        self.reliable = reliable
        self.create = create and pattern is None
        self.options = None if not options else options_of(options)
        self.prefetch = prefetch
        self.deserializer = deserializer
        self._on_error = on_error
        self.outer: Any = None  # the synchronous consumer around this one, if any
        self._opened = False  # true while being opened, too
        self._sources: dict[str, PartitionConsumer] = {}  # by the name of the topic or partition
        self._expected = 1  # number of sources expected, while they are opened one by one
        self.inbox = Inbox(self._refuse)
        self.nearly_full: dict[PartitionConsumer, None] = {}  # sources whose prefetch is nearly used up
        self._arrivals = Waiters()
        self._damage: DanubeError | None = None  # raised once, to a waiting caller
        self._closed: DanubeError | None = NotOpened(f"the consumer of {subscription!r} is not open yet")
        self._changes = TopicChanges()  # topics to look at: new ones, and deleted ones
        self._refresher: Task[None] | None = None

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            rows = self.inbox.rows
            for message in rows:  # shared: continues if the caller leaves this iteration
                yield message
            if rows is self.inbox.rows and not self.inbox.advance():  # otherwise another task has begun the next batch
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
                cast(PartitionConsumer, batch.source).handed_out([(batch.first, batch.last)])
                yield batch

    async def receive(self, timeout: Duration | None = None) -> Message:  # noqa: ASYNC109 - a word of the API
        """Returns the next message. Raises `NothingReceived` if none arrives within `timeout` seconds.

        If all partitions are stuck at messages that are damaged on the broker's disk, it raises `OffsetsDamaged`
        instead of waiting, again every few seconds.
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
        except DanubeError:  # nothing more will arrive; the next call raises it
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
        by_source: dict[PartitionConsumer, list[int]] = {}
        for message in messages:
            by_source.setdefault(cast(PartitionConsumer, message.batch.source), []).append(message.offset)
        for source, offsets in by_source.items():
            source.handed_out(ranges_of(sorted(offsets)))

    def arrived(self, count: int) -> list[Message]:
        """Returns at most `count` messages that have already arrived. Does not wait."""
        return self.inbox.arrived(count)

    def _refuse(self, batch: MessageBatch, error: BatchUnreadable) -> None:
        """Rejects a batch that cannot be decoded, so that the subscription's failure policy applies."""
        self.nack(batch, reason=str(error))
        self._report("unreadable", error, len(batch))

    async def _arrival(self, wanted: int = 0) -> None:
        """Waits for more messages. If the caller wants `wanted` at once, allows more than `prefetch` of them."""
        if self._closed is not None:
            raise copy_of(self._closed)
        if self._damage is not None and self._all_damaged:
            error, self._damage = self._damage, None
            raise copy_of(error)
        for source in list(self.nearly_full):
            source.make_room()
            if wanted:
                source.lend(min(wanted, PERMITS_MAX))
        await self._arrivals.wait(self.client.loop)

    @property
    def has_waiters(self) -> bool:
        """Whether someone waits for messages, and none are here."""
        return bool(self._arrivals)

    def _nothing(self, timeout: Duration | None) -> str:
        text = f"no message for {self.subscription!r} within {timeout} seconds"
        full = [source for source in self._sources.values() if source.unacked >= self.prefetch]
        if damaged := [source.damage for source in self._sources.values() if source.damage is not None]:
            text += f"; {damaged[0]}"
        elif full:
            text += f"; {full[0].name} has sent {self.prefetch} messages (prefetch) that are not acknowledged yet"
        return text

    # -- acknowledging -------------------------------------------------------------------------------------------------

    def ack(self, what: Message | MessageBatch) -> AckGroup:
        """Acknowledges the message. `await` the result to know that the ack is durable.

        It is sent at once if no other is in flight in its partition, and otherwise together with others when that is
        answered. Without a connection it is sent on the next one. A failure that is not awaited is reported to
        `on_error` and to the client's events, and the message is delivered again.
        """
        if type(what) is Message:
            batch, offset = what[0], what[1]
            source: PartitionConsumer = batch.source  # type: ignore[assignment]  # a cast would double the cost
            return source.ack(offset, offset, batch.generation)
        batch = cast(MessageBatch, what)
        return cast(PartitionConsumer, batch.source).ack(batch.first, batch.last, batch.generation)

    def ack_all(self, what: Message | MessageBatch) -> AckGroup:
        """Acknowledges the message and everything before it in its partition."""
        batch, _, last = _range_of(what)
        return cast(PartitionConsumer, batch.source).ack_all(last, batch.generation)

    def nack(self, what: Message | MessageBatch, delay: Duration = 0.0, reason: str = "") -> None:
        """Rejects the message: the broker delivers it again after at least `delay` seconds.

        The subscription's `max_delay` limits the delay. Without a connection nothing is sent: everything
        unacknowledged is delivered again on the next connection, and this consumer holds such messages back until
        their delay is over.
        """
        batch, first, last = _range_of(what)
        cast(PartitionConsumer, batch.source).nack(first, last, batch.generation, seconds_of(delay), reason)

    # -- pausing and seeking -------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        """Stops deliveries to the whole subscription until `resume`."""
        for source in list(self._sources.values()):
            await source.ask(Pause(channel=source.number))

    async def resume(self) -> None:
        """Resumes deliveries, even if another consumer paused the subscription."""
        for source in list(self._sources.values()):
            await source.ask(Resume(channel=source.number))

    async def seek(self, to: Start, *, partition: int | None = None) -> None:
        """Moves the subscription to earliest, latest, an offset or a time. The move is durable when this returns.

        Messages received before can no longer be acknowledged. An offset needs the partition if the topic has several.
        """
        sources = [source for source in self._sources.values() if partition is None or source.partition == partition]
        target = wire_position(to, self.client.clock.wall())
        if not sources or (type(target) is int and len(sources) > 1):
            raise ArgumentInvalid(f"seek({to!r}) works on one partition; this consumer has {len(sources)}")
        for source in sources:
            request = Seek(channel=source.number)
            if isinstance(target, AtTime):
                request.time = target.time
            elif isinstance(target, int):
                request.offset = target
            else:
                first, end = await self.client.bounds(source.name)
                request.offset = first if target == "earliest" else end
            source.reset((await source.ask(request)).generation)

    @property
    def partitions(self) -> list[tuple[str, int | None]]:
        """The topics and partitions that it receives from."""
        return [(source.topic, source.partition) for source in self._sources.values()]

    # -- called by its sources -----------------------------------------------------------------------------------------

    @property
    def share_bytes(self) -> int:
        """How many bytes of one source may wait here."""
        return max(1, self.prefetch_bytes // max(self._expected, len(self._sources)))

    def put(self, batch: MessageBatch) -> None:
        self.inbox.put(batch)
        if self._arrivals:
            self._arrivals.wake()

    def ack_failed(self, error: DanubeError, count: int) -> None:
        """Acks failed that no one awaits."""
        self._report("ack_failed", error, count)

    def on_damage(self, error: DanubeError, *, new: bool) -> None:
        """A source is stuck at damaged messages. Callers that wait get the error if all sources are."""
        if new:
            self._report("damaged", error, 0)
        self._damage = error
        if self._all_damaged:
            self._arrivals.wake()

    @property
    def _all_damaged(self) -> bool:
        return all(source.damage is not None for source in self._sources.values())

    def _report(self, what: str, error: DanubeError, count: int) -> None:
        self.client.emit(what, error)
        if self._on_error is not None:
            self.client.call_back(self._on_error, error, count)

    def partition_failed(self, source: PartitionConsumer, error: DanubeError) -> None:
        """A source failed for good. Messages that have arrived stay. A pattern continues without a deleted topic."""
        self.nearly_full.pop(source, None)
        if self.pattern is not None and isinstance(error, TopicNotFound):
            self._sources.pop(source.name, None)
            self._changes.add([source.topic])  # it may have been created again before this was noticed
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
            sources, self._sources, self._opened = self._sources, {}, False
            self.inbox.clear()
            for source in sources.values():
                source.close_at_once()
            raise
        self._closed = None
        self.client.add(self)
        if self.pattern is not None or any(source.partition is not None for source in self._sources.values()):
            self._refresher = self.client.loop.create_task(self._refresh())
        return self

    async def _join(self, changed: TopicNames, start: Any, *, create: bool) -> None:
        """Opens a source for every partition that has none yet, of the changed topics, or of all."""
        names = await self._wanted(changed)
        self._expected = len(names)
        for name in names:
            await self._join_topic(name, start, create=create)
        self._expected = 1

    async def _join_changed(self, changed: TopicNames) -> FailedTopics:
        """Opens sources for changed topics. Returns the topics that failed, which will be tried again."""
        failed: FailedTopics = {}
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
            start = "latest"  # it stores nothing, so there is no other position
        elif start is None:
            start = "earliest"  # a new topic or partition
        damaged: dict[PartitionConsumer, DanubeError] = {}
        partitions = found.partition_names()
        self._expected = max(self._expected, len(self._sources.keys() | {each for _, each in partitions}))
        for number, each in partitions:
            if each not in self._sources:
                source = self._sources[each] = PartitionConsumer(self, name, number, each, start)
                try:
                    await self.client.within("open_consumer", source.open())
                except BaseException as error:
                    if not isinstance(error, DAMAGE_ERRORS) or not source.may_recover(error):
                        self._sources.pop(each, None)
                        raise
                    damaged[source] = error
        if len(damaged) == len(partitions):
            for source in damaged:
                del self._sources[source.name]
            raise next(iter(damaged.values()))
        for source in damaged:
            source.retry_later()

    async def _wanted(self, changed: TopicNames) -> list[str]:
        if self.pattern is None:
            return [name for name in self.topics if changed is None or str(parse_topic(name).whole) in changed]
        if changed is None:
            changed = await self.client.admin.topics(_namespace_of(self.pattern))
        return [name for name in sorted(changed) if fnmatchcase(name, self.pattern)]

    async def _refresh(self) -> None:
        namespaces = {parse_topic(name).namespace for name in self.topics}
        if self.pattern is not None:
            namespaces.add(_namespace_of(self.pattern))
        await follow(self.client, namespaces, self._join_changed, self._changes)

    async def close(self) -> None:
        """Sends pending acks, then leaves. Unacknowledged messages go to other consumers."""
        self._closed = ClientClosed(f"the consumer of {self.subscription!r} was closed")
        self.client.remove(self)
        try:
            if self._refresher is not None:
                self._refresher.cancel()
                await asyncio.wait([self._refresher])  # it closes what it was opening
            for source in list(self._sources.values()):  # a copy, because a source is removed when its topic is deleted
                await source.close()
        finally:
            for source in list(self._sources.values()):  # also if closing was interrupted: their callers get an error
                source.abandon()
            self.inbox.clear()
            self._arrivals.wake()

    @property
    def connected(self) -> bool:
        return self.client.connected

    @property
    def unsent(self) -> int:
        return 0

    def detach_after_fork(self, error: DanubeError) -> None:
        """After a fork, in the child: the consumer belongs to the parent, and using it raises this error."""
        self._closed = error
        self.inbox.clear()
        for source in self._sources.values():
            source.detach_after_fork(error)


def _namespace_of(pattern: str) -> str:
    """The namespace of a pattern, which must not contain wildcards."""
    _, namespace, *rest = pattern.split("/") if pattern.startswith("/") else ("", "")
    if len(rest) != 1 or any(mark in namespace for mark in "*?["):
        raise ArgumentInvalid(f"a pattern must look like /namespace/pattern, got {pattern!r}")
    return namespace


def _range_of(what: Message | MessageBatch) -> tuple[MessageBatch, int, int]:
    if isinstance(what, MessageBatch):
        return what, what.first, what.last
    return what.batch, what.offset, what.offset
