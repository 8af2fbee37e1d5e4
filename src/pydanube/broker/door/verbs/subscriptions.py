"""Creates, lists, describes, explains, changes, moves and deletes subscriptions, in all partitions of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydanube.access.rights import Action
from pydanube.base.errors import ConsumerBusy, NotReliable, RequestInvalid, SubscriptionNotFound
from pydanube.base.limits import AGE_READS_MAX, SUBSCRIPTIONS_A_TURN
from pydanube.base.names import parse_topic, parse_whole
from pydanube.broker.door.attention import find_abandoned, find_blocked
from pydanube.broker.door.presence import Member, members_of
from pydanube.broker.door.stats import SubscriptionStats, aged, only, subscription_stats
from pydanube.broker.door.verbs.base import Verbs
from pydanube.broker.serving.explaining import Told, explain
from pydanube.broker.serving.open_topic import OpenTopic, Start
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.served import LATEST, ServedSubscription
from pydanube.topic.records import Cause, SubscriptionKind

NO_OPTIONS = "is not reliable, so its subscriptions have no options"


class SubscriptionVerbs(Verbs):
    __slots__ = ()

    async def create(
        self,
        topic: str,
        subscription: str,
        kind: SubscriptionKind,
        *,
        start: Start = LATEST,
        options: SubscriptionOptions | None = None,
    ) -> None:
        """Creates the subscription without a consumer. Where it already exists, its options are left unchanged."""
        whole = str(parse_whole(topic))
        places = await self._door.topics.places(
            self._principal, Action.SUBSCRIPTION_CREATE, whole, subscription=subscription
        )
        if isinstance(start, int) and start:
            only(places, "an offset to start at")
        if options is not None:
            self.ask_dead_letters(options)
            places[0].check_dead_letters(options)
        fields = {
            "subscription": subscription,
            "kind": kind.name,
            "start": start,
            "options": None if options is None else options.stored(),
        }
        await self._door.spreading.change(places[0].record, "subscribe", fields)

    async def delete(self, topic: str, subscription: str, *, only_unused: bool = False, dry_run: bool = False) -> None:
        """Deletes the subscription and tells its consumers; with `only_unused`, it must not have any."""
        found = await self._find(Action.SUBSCRIPTION_DELETE, str(parse_whole(topic)), subscription)
        consumers = sum(len(host.consumers) for _, host in found)
        if only_unused and consumers:
            raise ConsumerBusy(f"{subscription!r} has {consumers} consumers")
        if not dry_run:
            await self._door.spreading.change(found[0][0].record, "unsubscribe", {"subscription": subscription})

    async def listed(self, topic: str, after: str, limit: int) -> tuple[list[SubscriptionStats], bool]:
        """The next `limit` subscriptions, sorted by name, and whether there are more."""
        places, why = await self._door.topics.sound_places(self._principal, Action.SUBSCRIPTION_LIST, topic)
        names = sorted({name for each in places if each for name in each.topic.subscriptions if name > after})
        now, ages, found = self._door.clock.wall(), self._ages(), list[SubscriptionStats]()
        for number, name in enumerate(names[:limit], 1):
            with suppress(SubscriptionNotFound):  # it was deleted meanwhile
                found.append(await aged(subscription_stats(name, places, now, why), places, ages))
            if not number % max(1, SUBSCRIPTIONS_A_TURN // len(places)):
                await asyncio.sleep(0)  # lets other tasks run
        return found, len(names) > limit

    async def describe(self, topic: str, subscription: str) -> SubscriptionStats:
        return await self._described(Action.SUBSCRIPTION_DESCRIBE, topic, subscription)

    async def _described(self, action: Action, topic: str, subscription: str) -> SubscriptionStats:
        places, why = await self._door.topics.sound_places(self._principal, action, topic, subscription=subscription)
        return await aged(subscription_stats(subscription, places, self._door.clock.wall(), why), places, self._ages())

    async def consumers(self, topic: str, subscription: str) -> list[Member]:
        """The connected consumers, in the order of connecting."""
        found = await self._find(Action.SUBSCRIPTION_DESCRIBE, topic, subscription)
        return members_of([opened for opened, _ in found], subscription)

    async def explain(
        self, topic: str, subscription: str, *, offset: int | None = None, consumer: int | None = None
    ) -> list[Told]:
        """Why a message is not delivered, or a consumer gets nothing."""
        door, named = self._door, (topic, subscription)
        return await explain(door.topics, door.clock, self._principal, *named, offset=offset, consumer=consumer)

    async def blocked(self) -> list[tuple[str, str, int]]:
        """Topic, subscription and offset of the first messages that failed too often and block their subscriptions."""
        self._ask(Action.SUBSCRIPTION_LIST)
        return await find_blocked(self._door.topics)

    async def abandoned(self) -> list[tuple[str, str, float]]:
        """Topic, subscription and age of its oldest message, where that is days old and no consumer is connected."""
        self._ask(Action.SUBSCRIPTION_LIST)
        return await find_abandoned(self._door.topics, self._door.clock.wall())

    def _ages(self) -> BacklogAges:
        return BacklogAges(self._door.clock.wall(), AGE_READS_MAX)

    async def alter(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> SubscriptionStats:
        """Changes the named options, which take effect at once; the others stay."""
        found = await self._find(Action.SUBSCRIPTION_ALTER, topic, subscription)
        for opened, host in found:
            opened.topic.as_reliable(NO_OPTIONS)
            options = host.options.changed(changes)
            self.ask_dead_letters(options, host.options)
            opened.check_dead_letters(options)
        if parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "options": dict(changes)}
            await self._door.spreading.change(found[0][0].record, "alter", fields)
        else:
            await found[0][0].reliable.alter_subscription(subscription, changes)
        return await self._described(Action.SUBSCRIPTION_ALTER, topic, subscription)

    async def seek(self, topic: str, subscription: str, to: Start, *, dry_run: bool = False) -> SubscriptionStats:
        """Moves the subscription; all its consumers continue from there."""
        found = await self._find(Action.SUBSCRIPTION_SEEK, topic, subscription)
        if isinstance(to, int) and to:
            only(found, "an offset to seek")
        offsets = {str(opened.name): await self._sought(opened, host, to) for opened, host in found}
        if not dry_run and parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "to": offsets}
            await self._door.spreading.change(found[0][0].record, "seek", fields)
        elif not dry_run:
            [(opened, host)] = found
            await opened.reliable.seek(host.as_reliable(), offsets[str(opened.name)][0])
        return await self._described(Action.SUBSCRIPTION_SEEK, topic, subscription)

    async def _sought(self, opened: OpenTopic, host: ServedSubscription, to: Start) -> tuple[int, int]:
        """The offset that is meant, which a seek may go to, and the generation that it ends."""
        topic = opened.topic.as_reliable(NO_OPTIONS)
        offset, cursor = topic.offset_of(await opened.offset_at(to)), host.as_reliable().known.cursor
        cursor.decide_move(offset, topic.ledger.confirmed_end, Cause.SEEK)
        return offset, cursor.generation

    async def skip(
        self,
        topic: str,
        subscription: str,
        *,
        count: int | None = None,
        to: int | None = None,
        dry_run: bool = False,
    ) -> int:
        """Skips the next `count` messages, or all below an offset; returns how many were skipped."""
        if (count is None) == (to is None) or min(count or 0, to or 0) < 0:
            raise RequestInvalid("give either a number of messages to skip or an offset to skip to")
        opened, host = only(await self._find(Action.SUBSCRIPTION_SKIP, topic, subscription), "what is skipped")
        if not dry_run:
            return await opened.reliable.skip(subscription, count=count, to=to)
        _, end = opened.topic.as_reliable(NO_OPTIONS).bounds
        cursor = host.as_reliable().known.cursor
        moved = cursor.decide_move(cursor.behind(count or 0, end) if to is None else to, end, Cause.SKIPPED)
        return 0 if moved is None else moved.passed

    # -- options that may be set before the subscription exists --------------------------------------------------------

    async def set_options(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        """Changes the options of an existing subscription at once, or those of a new one when it is created."""
        await self._door.errands.run(self._set_options(topic, subscription, changes))

    async def _set_options(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        door, parsed, pending = self._door, parse_topic(topic), self._door.pending
        record = await door.topics.lookup(self._principal, Action.SUBSCRIPTION_ALTER, topic, subscription=subscription)
        if not record.reliable:
            raise NotReliable(f"{topic} {NO_OPTIONS}")
        more_may_come = record.partitions and parsed.partition is None
        if more_may_come:
            pending.check_room(topic, subscription)
        try:
            altered = await self.alter(topic, subscription, changes)
        except SubscriptionNotFound:
            before = pending.get(topic, subscription)
            self.ask_dead_letters(before.changed(changes), before)
            await pending.change(topic, subscription, changes)
            return
        if more_may_come:
            await pending.put(topic, subscription, altered.options)

    async def options(
        self, topic: str, subscription: str
    ) -> tuple[SubscriptionKind | None, SubscriptionOptions] | None:
        """Its type and options; without a type if it does not exist yet; None if nothing is known about it."""
        try:
            found = await self.describe(topic, subscription)
            return found.kind, found.options
        except SubscriptionNotFound:
            options = self._door.pending.find(topic, subscription)
            return None if options is None else (None, options)

    def ask_dead_letters(self, options: SubscriptionOptions, before: SubscriptionOptions | None = None) -> None:
        """A caller that names a dead-letter topic must be allowed to publish there, because the broker will do so."""
        target = options.failure.dead_letter_topic
        if target is not None and (before is None or target != before.failure.dead_letter_topic):
            self._door.topics.ask(self._principal, Action.TOPIC_PUBLISH, parse_topic(target))

    # -- places --------------------------------------------------------------------------------------------------------

    async def _find(self, action: Action, topic: str, subscription: str) -> list[tuple[OpenTopic, ServedSubscription]]:
        """Where the subscription is: not in partitions that were added since, if no consumer has seen them yet."""
        places = await self._door.topics.places(self._principal, action, topic, subscription=subscription)
        found = [(each, host) for each in places if (host := each.topic.subscriptions.get(subscription)) is not None]
        if not found:
            raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
        return found
