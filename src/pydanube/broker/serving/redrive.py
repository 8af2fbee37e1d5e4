"""Publishes dead letters again to the topics they came from, and remembers which are done.

A subscription of the dead-letter topic records which were published; like any message, they are deleted once all
subscriptions have finished them. `republish` makes sure that none is published twice. Nothing is created until there is
something to publish and a topic to publish it to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from pydanube.access.principals import Principal
from pydanube.access.rights import Action
from pydanube.base.errors import NameInvalid, NotAllowed, PartitionMissing, TopicKindDiffers, TopicNotFound
from pydanube.base.limits import (
    LISTED_BYTES_MAX,
    LISTED_MAX,
    OFFSET_MAX,
    READ_AHEAD_BYTES,
    REDELIVERIES_MAX,
    REDRIVE_LETTERS_MAX,
    UNACKED_MAX,
)
from pydanube.base.names import parse_topic
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.serving.republish import Refusals, Republisher
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.dead_letter import ORIGIN, REASON, SUBSCRIBER
from pydanube.broker.topic.served import EARLIEST
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.decoding import run_decoding
from pydanube.broker.work.errands import Errands
from pydanube.dispatch.policy import DispatchSettings, FailurePolicy
from pydanube.ports.clock import Clock
from pydanube.ports.metadata import MetadataStore
from pydanube.ports.offload import Offload
from pydanube.topic.cursor import Cursor
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch, Message

SUBSCRIPTION = "danube-redrive"
_OPTIONS = SubscriptionOptions(
    FailurePolicy(ack_timeout=None, max_redelivery_count=REDELIVERIES_MAX),
    DispatchSettings(unacked_max=UNACKED_MAX),
    poison_chosen=True,
)
COUNT_BYTES = 16  # of a number in an answer, with what is around it
_NAMED = {"topic": ORIGIN, "subscription": SUBSCRIBER}
Unfit: TypeAlias = TopicNotFound | TopicKindDiffers | NotAllowed
# Targets, or why letters cannot go there, by the version of rights that was asked, and by name
Records: TypeAlias = dict[tuple[int, str], TopicRecord | Unfit]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters to publish, and where. A letter must match all `filters`."""

    limit: int | None  # None means all, which are then only counted and not published
    target: str | None = None  # if None, each goes to the topic it came from
    filters: Mapping[str, str] = field(default_factory=dict)
    dry_run: bool = False
    start: int = 0  # earlier letters are left alone, so that a caller can continue slice by slice
    end: int = OFFSET_MAX  # letters from here on are left alone too

    def has(self, letter: Message) -> bool:
        return all(_matches(letter, name, text) for name, text in self.filters.items())


@dataclass(slots=True)
class Redriven:
    """What was published again, or would be: how many letters to which topic."""

    count: int = 0
    targets: dict[str, int] = field(default_factory=dict)  # as many as fit into an answer
    left: int = 0  # messages that stay because they do not say where they came from
    refused: Refusals = field(default_factory=Refusals)  # letters that stay because their targets do not accept them
    next: int | None = None  # the offset to continue from, if there may be more

    _left: int = LISTED_BYTES_MAX  # for more targets, by length of their names

    def add(self, target: str, count: int) -> None:
        self.count += count
        if not count:
            return
        if target in self.targets:
            self.targets[target] += count
        elif len(self.targets) < LISTED_MAX and len(target) < self._left:
            self.targets[target] = count
            self._left -= len(target) + COUNT_BYTES


class Redriver:
    """Owned by the broker's loop."""

    def __init__(
        self, topics: OpenTopics, metadata: MetadataStore, errands: Errands, offload: Offload, clock: Clock
    ) -> None:
        self._topics = topics
        self._metadata = metadata
        self._errands = errands
        self._offload = offload
        self._clock = clock

    async def redrive(self, principal: Principal, topic: str, wanted: Wanted) -> Redriven:
        """Publishes dead letters again to where they came from, or to another topic. From a single topic or partition
        it takes one slice, and `next` says where to continue; from several partitions, which have no common offset, it
        takes all slices.

        The caller must be allowed to publish to each target, as if it published there itself. Once it has lost a
        right on the way, no more letters are published.
        """
        done, partitions = Redriven(), await self._topics.open_all(principal, Action.TOPIC_REDRIVE, topic)
        for each in partitions:
            await self._slice(principal, each, wanted, done)
            while len(partitions) > 1 and done.next is not None and done.count != wanted.limit:
                await self._slice(principal, each, replace(wanted, start=done.next), done)
        if len(partitions) > 1:
            done.next = None
        return done

    async def _slice(self, principal: Principal, opened: OpenTopic, wanted: Wanted, done: Redriven) -> None:
        """Publishes the next letters that were not published again yet: as many as wanted, among as many as one request
        looks at.

        A caller that disconnects before its turn publishes nothing. From its turn on, the work is completed without the
        caller, so that no letter stays published but not acknowledged.
        """
        assert wanted.dry_run or wanted.limit is not None
        work = partial(self._redrive, principal, opened, wanted, done)
        if wanted.dry_run:
            return await work()
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(opened.redriving)
            await self._errands.run_holding(turn, work)

    async def _redrive(self, principal: Principal, opened: OpenTopic, wanted: Wanted, done: Redriven) -> None:
        self._topics.ask(principal, Action.TOPIC_REDRIVE, opened.name)  # it may have waited for its turn
        republisher = Republisher(
            self._topics, self._metadata, self._offload, self._clock, principal, opened, done.refused
        )
        try:
            await self._publish(principal, opened, wanted, done, republisher)
        except NotAllowed:
            await republisher.end()  # it is asked between batches: what was published is acknowledged
            raise
        await republisher.end()

    async def _publish(
        self, principal: Principal, opened: OpenTopic, wanted: Wanted, done: Redriven, republisher: Republisher
    ) -> None:
        topic = opened.reliable
        host = topic.subscriptions.get(SUBSCRIPTION)
        if host is not None and not wanted.dry_run:
            await republisher.settle(host)
        cursor = Cursor(0, topic.ledger.first) if host is None else host.known.cursor
        offset = cursor.above.next_missing(max(wanted.start, cursor.floor, topic.ledger.first))
        whole = min(
            topic.ledger.confirmed_end, cursor.ceiling, wanted.end
        )  # letters that fail again at once are appended after it
        end = whole if wanted.limit is None else min(whole, offset + REDRIVE_LETTERS_MAX)
        records: Records = {}
        while wanted.limit is None or done.count < wanted.limit:
            generation = cursor.generation
            letters, offset = await _next_letters(self._offload, topic, cursor, wanted, offset, end, done)
            if not letters:
                break
            self._topics.ask(principal, Action.TOPIC_REDRIVE, opened.name)
            groups = await self._by_target(principal, letters, wanted.target, done.refused, records)
            if wanted.dry_run:
                for target, group in groups.items():
                    done.add(target, len(group))
                continue
            if groups and host is None:
                entered = await opened.enter(SUBSCRIPTION, SubscriptionKind.SHARED, EARLIEST, _OPTIONS)
                host = entered.as_reliable()
                cursor = host.known.cursor
                generation = cursor.generation
            for target, group in groups.items():
                assert host is not None
                done.add(target, await republisher.publish(host, generation, target, group))
        done.next = offset if offset < whole else None

    async def _by_target(
        self, principal: Principal, letters: list[Message], target: str | None, refused: Refusals, records: Records
    ) -> dict[str, list[Message]]:
        """The letters by the topic or partition that each goes to. A letter stays if its own topic is gone, stores
        nothing, or is closed to the caller."""
        groups: dict[str, list[Message]] = {}
        for letter in letters:
            topic = target or _origin(letter)
            assert topic is not None
            try:
                name, record = parse_topic(topic), await self._record(principal, topic, records)
                if name.partition is None and record.partitions:
                    name = record.partition_of(letter.key or b"")
                record.check_partition(name)
            except (TopicNotFound, TopicKindDiffers, NameInvalid, PartitionMissing, NotAllowed) as error:
                if target is not None:
                    raise
                refused.add(letter, topic, error)
                continue
            groups.setdefault(str(name), []).append(letter)
        return groups

    async def _record(self, principal: Principal, topic: str, records: Records) -> TopicRecord:
        """The record of a target. Each is looked up only once while rights stay the same, even if it does not exist."""
        key = self._topics.rights_version, topic
        if key not in records:
            try:
                records[key] = await self._topics.lookup(principal, Action.TOPIC_PUBLISH, topic, reliable=True)
            except (TopicNotFound, TopicKindDiffers, NotAllowed) as error:
                records[key] = error
        found = records[key]
        if isinstance(found, TopicRecord):
            return found
        raise found


async def _next_letters(
    offload: Offload, topic: Topic, cursor: Cursor, wanted: Wanted, offset: int, end: int, done: Redriven
) -> tuple[list[Message], int]:
    """The next letters that are not done, up to about a MiB or as many as fit into an answer, and where to continue.

    The result depends only on which letters are done and wanted, and not on how they are stored.
    """
    found: list[Message] = []
    most = LISTED_MAX if wanted.limit is None else wanted.limit - done.count
    size, offset = 0, max(offset, topic.ledger.first)
    while (offset := _next_undone(topic, cursor, offset)) < end:
        for batch in await topic.ledger.read(offset):
            for first, last in cursor.pending(max(offset, batch.base_offset), min(batch.last_offset, end - 1)):
                room = most - len(found), READ_AHEAD_BYTES - size
                letters, left = await run_decoding(offload, _letters_in, batch, first, last, wanted, *room)
                found += letters
                done.left += left
                size += sum(len(letter.payload or b"") for letter in letters)
                if len(found) == most or size >= READ_AHEAD_BYTES:
                    return found, found[-1].offset + 1
            offset = max(offset, min(batch.last_offset + 1, end))
        await asyncio.sleep(0)  # lets other tasks run
    return found, offset


def _next_undone(topic: Topic, cursor: Cursor, offset: int) -> int:
    """The next letter that is neither done nor part of an accepted loss."""
    return topic.ledger.past_lost(max(offset, cursor.above.next_missing(max(offset, cursor.floor))))


def _letters_in(
    batch: Batch, first: int, last: int, wanted: Wanted, most: int, bytes: int
) -> tuple[list[Message], int]:
    """The letters within these offsets, up to `most` or about `bytes`; and how many stay for lack of a target."""
    found: list[Message] = []
    left = 0
    for letter in batch.slice(first - batch.base_offset, last - first + 1).messages():
        if not wanted.has(letter):
            continue
        if wanted.target is None and _origin(letter) is None:
            left += 1
            continue
        found.append(letter)
        bytes -= len(letter.payload or b"")
        if len(found) == most or bytes <= 0:
            break
    return found, left


def _origin(letter: Message) -> str | None:
    return (letter.attributes or {}).get(ORIGIN)


def _matches(letter: Message, name: str, text: str) -> bool:
    attributes = letter.attributes or {}
    if name == "key":
        return letter.key == text.encode()
    if name == "reason":
        return text in attributes.get(REASON, "")
    return attributes.get(_NAMED.get(name, name)) == text
