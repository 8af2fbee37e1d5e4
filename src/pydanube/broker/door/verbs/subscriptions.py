"""Creates, lists, describes, explains, changes, moves and deletes subscriptions, in all partitions of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from pydanube.access.rights import Action
from pydanube.base.errors import ConsumerBusy, NotReliable, RequestInvalid, SubscriptionNotFound
from pydanube.base.limits import AGE_READS_MAX, LISTED_MAX, SUBSCRIPTIONS_A_TURN
from pydanube.base.names import parse_topic, parse_whole
from pydanube.broker.door.attention import find_abandoned, find_blocked
from pydanube.broker.door.presence import members_of
from pydanube.broker.door.stats import aged, describe_subscription, in_brief, only
from pydanube.broker.door.values import start_of, subscription_kind
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.broker.serving.explaining import explain, summary
from pydanube.broker.serving.open_topic import OpenTopic, Start
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.backlog_ages import BacklogAges
from pydanube.broker.topic.served import ServedSubscription
from pydanube.operations.operation import Done
from pydanube.operations.subscriptions import (
    AbandonedSubscription,
    AbandonedSubscriptions,
    AlterSubscription,
    BlockedSubscription,
    BlockedSubscriptions,
    Consumers,
    CreateSubscription,
    DeleteSubscription,
    DescribeSubscription,
    Explain,
    Explanation,
    Explanations,
    ListAbandoned,
    ListBlocked,
    ListConsumers,
    ListSubscriptions,
    SeekSubscription,
    SkipMessages,
    Skipped,
    SubscriptionDescription,
    Subscriptions,
)
from pydanube.topic.records import Cause, SubscriptionKind

NO_OPTIONS = "is not reliable, so its subscriptions have no options"


class SubscriptionVerbs(Verbs):
    __slots__ = ()

    async def create(self, request: CreateSubscription) -> Done:
        """Creates the subscription without a consumer. Where it already exists, its options are left unchanged."""
        whole, start = str(parse_whole(request.topic)), start_of(request.start)
        options = None if request.options is None else SubscriptionOptions.from_json(request.options.given())
        fields = {
            "subscription": request.subscription,
            "kind": subscription_kind(request.type).name,
            "start": start,
            "options": None if options is None else options.stored(),
        }
        partitions = await self._door.topics.open_all(
            self._principal, Action.SUBSCRIPTION_CREATE, whole, subscription=request.subscription
        )
        if isinstance(start, int) and start:
            only(partitions, "an offset to start at")
        if options is not None:
            self.ask_dead_letters(options)
            partitions[0].check_dead_letters(options)
        if any(request.subscription not in each.topic.subscriptions for each in partitions):
            kind = subscription_kind(request.type)
            options = self.ask_default_letters(partitions[0], request.subscription, kind, options)
            fields["options"] = None if options is None else options.stored()
        await self._change(partitions[0], Action.SUBSCRIPTION_CREATE, "subscribe", fields)
        return Done()

    async def delete(self, request: DeleteSubscription, *, only_unused: bool = False) -> Done:
        """Deletes the subscription and tells its consumers; with `only_unused`, it must not have any."""
        name = request.subscription
        found = await self._find(Action.SUBSCRIPTION_DELETE, str(parse_whole(request.topic)), name)
        consumers = sum(len(host.consumers) for _, host in found)
        if only_unused and consumers:
            raise ConsumerBusy(f"{name!r} has {consumers} consumers")
        if not request.dry_run:
            await self._change(found[0][0], Action.SUBSCRIPTION_DELETE, "unsubscribe", {"subscription": name})
        return Done()

    async def list_page(self, request: ListSubscriptions) -> Subscriptions:
        topic, limit = request.topic, min(request.limit, LISTED_MAX)
        opened, why = await self._door.topics.open_undamaged(self._principal, Action.SUBSCRIPTION_LIST, topic)
        names = sorted({name for each in opened if each for name in each.topic.subscriptions if name > request.after})
        now, ages, found = self._door.clock.wall(), self._ages(), list[SubscriptionDescription]()
        for number, name in enumerate(names[:limit], 1):
            with suppress(SubscriptionNotFound):  # it was deleted meanwhile
                found.append(await aged(describe_subscription(name, opened, now, why), opened, ages))
            if not number % max(1, SUBSCRIPTIONS_A_TURN // len(opened)):
                await asyncio.sleep(0)  # lets other tasks run
        rows, more = page([in_brief(each) for each in found], limit)
        return Subscriptions(rows, more or len(names) > limit)

    async def describe(self, request: DescribeSubscription) -> SubscriptionDescription:
        return await self._described(Action.SUBSCRIPTION_DESCRIBE, request.topic, request.subscription)

    async def _described(self, action: Action, topic: str, name: str) -> SubscriptionDescription:
        opened, why = await self._door.topics.open_undamaged(self._principal, action, topic, subscription=name)
        return await aged(describe_subscription(name, opened, self._door.clock.wall(), why), opened, self._ages())

    async def list_consumers(self, request: ListConsumers) -> Consumers:
        """The connected consumers, in the order of connecting."""
        found = await self._find(Action.SUBSCRIPTION_DESCRIBE, request.topic, request.subscription)
        members = members_of([opened for opened, _ in found], request.subscription)
        return Consumers(*page(members[max(0, request.after) :], request.limit))

    async def explain(self, request: Explain) -> Explanations:
        """Why a message is not delivered, or a consumer gets nothing. If more partitions are explained than fit into an
        answer, those without a backlog are left out first."""
        door, named = self._door, (request.topic, request.subscription)
        found = await explain(
            door.topics, door.clock, self._principal, *named, offset=request.offset, consumer=request.consumer
        )
        rows, more = page([Explanation(*each) for each in sorted(found, key=lambda each: not each.backlog)], LISTED_MAX)
        rows.sort(key=lambda each: each.partition or 0)
        backlog, total = sum(each.backlog for each in found), sum(each.total for each in found)
        return Explanations(summary(found), backlog, total, rows, more)

    async def list_blocked(self, request: ListBlocked) -> BlockedSubscriptions:
        """The first messages that failed too often and block their subscriptions."""
        self._ask(Action.SUBSCRIPTION_LIST)
        return BlockedSubscriptions([BlockedSubscription(*each) for each in await find_blocked(self._door.topics)])

    async def list_abandoned(self, request: ListAbandoned) -> AbandonedSubscriptions:
        """Subscriptions whose oldest message is days old, and that no consumer is connected to."""
        self._ask(Action.SUBSCRIPTION_LIST)
        found = await find_abandoned(self._door.topics, self._door.clock.wall())
        return AbandonedSubscriptions([AbandonedSubscription(*each) for each in found])

    def _ages(self) -> BacklogAges:
        return BacklogAges(self._door.clock.wall(), AGE_READS_MAX)

    async def alter(self, request: AlterSubscription) -> SubscriptionDescription:
        """Changes the named options, which take effect at once; the others stay."""
        await self._alter(request.topic, request.subscription, request.options.given())
        return await self._described(Action.SUBSCRIPTION_ALTER, request.topic, request.subscription)

    async def _alter(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> SubscriptionOptions:
        found = await self._find(Action.SUBSCRIPTION_ALTER, topic, subscription)
        for opened, host in found:
            opened.topic.as_reliable(NO_OPTIONS)
            options = host.options.changed(changes)
            self.ask_dead_letters(options, host.options)
            opened.check_dead_letters(options)
        if parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "options": dict(changes)}
            await self._change(found[0][0], Action.SUBSCRIPTION_ALTER, "alter", fields)
        else:
            await found[0][0].reliable.alter_subscription(subscription, changes)
        return (await self._find(Action.SUBSCRIPTION_ALTER, topic, subscription))[0][1].options

    async def seek(self, request: SeekSubscription) -> SubscriptionDescription:
        """Moves the subscription; all its consumers continue from there."""
        topic, subscription, to = request.topic, request.subscription, start_of(request.to)
        found = await self._find(Action.SUBSCRIPTION_SEEK, topic, subscription)
        if isinstance(to, int) and to:
            only(found, "an offset to seek")
        offsets = {str(opened.name): await self._sought(opened, host, to) for opened, host in found}
        if not request.dry_run and parse_topic(topic).partition is None:
            fields = {"subscription": subscription, "to": offsets}
            await self._change(found[0][0], Action.SUBSCRIPTION_SEEK, "seek", fields)
        elif not request.dry_run:
            [(opened, host)] = found
            await opened.reliable.seek(host.as_reliable(), offsets[str(opened.name)][0])
        return await self._described(Action.SUBSCRIPTION_SEEK, topic, subscription)

    async def _sought(self, opened: OpenTopic, host: ServedSubscription, to: Start) -> tuple[int, int]:
        """The offset that is meant, which a seek may go to, and the generation that it ends."""
        topic = opened.topic.as_reliable(NO_OPTIONS)
        offset, cursor = topic.offset_of(await opened.offset_at(to)), host.as_reliable().known.cursor
        cursor.decide_move(offset, topic.ledger.confirmed_end, Cause.SEEK)
        return offset, cursor.generation

    async def skip(self, request: SkipMessages) -> Skipped:
        """Skips the next `count` messages, or all below an offset."""
        name, count, to = request.subscription, request.count, request.offset
        if (count is None) == (to is None):
            raise RequestInvalid("give either a number of messages to skip or an offset to skip to")
        opened, host = only(await self._find(Action.SUBSCRIPTION_SKIP, request.topic, name), "what is skipped")
        if not request.dry_run:
            return Skipped(await opened.reliable.skip(name, count=count, to=to))
        _, end = opened.topic.as_reliable(NO_OPTIONS).bounds
        cursor = host.as_reliable().known.cursor
        moved = cursor.decide_move(cursor.behind(count or 0, end) if to is None else to, end, Cause.SKIPPED)
        return Skipped(0 if moved is None else moved.passed)

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
            options = await self._alter(topic, subscription, changes)
        except SubscriptionNotFound:
            before = pending.get(topic, subscription)
            self.ask_dead_letters(before.changed(changes), before)
            await pending.change(topic, subscription, changes)
            return
        if more_may_come:
            await pending.put(topic, subscription, options)

    async def options(
        self, topic: str, subscription: str
    ) -> tuple[SubscriptionKind | None, SubscriptionOptions] | None:
        """Its type and options; without a type if it does not exist yet; None if nothing is known about it."""
        action = Action.SUBSCRIPTION_DESCRIBE
        opened, _ = await self._door.topics.open_undamaged(self._principal, action, topic, subscription=subscription)
        for host in (each.topic.subscriptions.get(subscription) for each in opened if each is not None):
            if host is not None:
                return host.kind, host.options
        options = self._door.pending.find(topic, subscription)
        return None if options is None else (None, options)

    def ask_dead_letters(self, options: SubscriptionOptions, before: SubscriptionOptions | None = None) -> None:
        """A caller that names a dead-letter topic must be allowed to publish there, because the broker will do so, and
        to create it if it does not exist yet."""
        target = options.failure.dead_letter_topic
        if target is None or options.default_letters:
            return
        if before is None or before.default_letters or target != before.failure.dead_letter_topic:
            name = parse_topic(target)
            self._door.topics.ask(self._principal, Action.TOPIC_PUBLISH, name)
            if self._door.directory.find(name) is None:
                self._door.topics.ask(self._principal, Action.TOPIC_CREATE, name)

    def ask_default_letters(
        self, opened: OpenTopic, name: str, kind: SubscriptionKind, options: SubscriptionOptions | None
    ) -> SubscriptionOptions | None:
        """The options to create a subscription with. If its default dead-letter topic is an ordinary topic, the caller
        must be allowed to publish there, as if it was named."""
        resolved = opened.options_for(name, kind, options)
        target = None if resolved is None or not resolved.default_letters else resolved.failure.dead_letter_topic
        record = None if target is None else self._door.directory.find(parse_topic(target))
        if resolved is None or record is None or record.dead_letters:
            return options
        self._door.topics.ask(self._principal, Action.TOPIC_PUBLISH, record.name)
        return replace(resolved, default_letters=False)

    # -- partitions ----------------------------------------------------------------------------------------------------

    async def _change(self, opened: OpenTopic, action: Action, change: str, fields: Mapping[str, Any]) -> None:
        """Changes the subscription in all partitions, if the caller is still allowed to when its turn has come."""
        ask = partial(self._door.topics.ask, self._principal, action, opened.name, fields["subscription"])
        await self._door.spreading.change(opened.record, change, fields, ask=ask)

    async def _find(self, action: Action, topic: str, subscription: str) -> list[tuple[OpenTopic, ServedSubscription]]:
        """Where the subscription is: not in partitions that were added since, if no consumer has seen them yet."""
        partitions = await self._door.topics.open_all(self._principal, action, topic, subscription=subscription)
        found = [
            (each, host) for each in partitions if (host := each.topic.subscriptions.get(subscription)) is not None
        ]
        if not found:
            raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
        return found

    carries_out: ClassVar = (
        CreateSubscription.carried_out_by(create),
        ListSubscriptions.carried_out_by(list_page),
        DescribeSubscription.carried_out_by(describe),
        AlterSubscription.carried_out_by(alter),
        SeekSubscription.carried_out_by(seek),
        SkipMessages.carried_out_by(skip),
        DeleteSubscription.carried_out_by(delete),
        ListConsumers.carried_out_by(list_consumers),
        ListBlocked.carried_out_by(list_blocked),
        ListAbandoned.carried_out_by(list_abandoned),
        Explain.carried_out_by(explain),
    )
