"""Reliable and best-effort topics behind the same protocols: all members, and what a best-effort topic refuses."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from broker.door_world import DoorWorld, caller, served
from broker.topic_world import TopicWorld, subscribed
from pydanube.base.errors import DanubeError, NotReliable
from pydanube.broker.commit.rows import admit
from pydanube.broker.door.door import Door
from pydanube.broker.serving.handles import AckVerdict
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.subscription.figures import SubscriptionFigures
from pydanube.broker.topic.best_effort import BestEffortTopic
from pydanube.broker.topic.served import ServedSubscription, ServedTopic
from pydanube.dispatch.policy import DispatchSettings
from pydanube.operations.options import OptionChanges
from pydanube.operations.subscriptions import (
    AlterSubscription,
    CreateSubscription,
    DescribeSubscription,
    Explain,
    ListAbandoned,
    ListBlocked,
    SeekSubscription,
    SkipMessages,
)
from pydanube.operations.topics import CreateTopic, TruncateTopic
from pydanube.topic.records import SubscriptionKind

SHARED = SubscriptionKind.SHARED
TOPIC = "/default/news"


class Sink:
    """A consumer that takes everything and looks at nothing."""

    def deliver(self, delivery: Delivery) -> None: ...
    def reset(self, generation: int) -> None: ...
    def recall(self, generation: int, ranges: object) -> None: ...
    def unreadable(self, error: DanubeError | None) -> None: ...
    def closed(self, error: DanubeError) -> None: ...


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


def missing(protocol: type, served: object) -> set[str]:
    return members(protocol) - set(dir(served))


def test_both_sorts_of_topics_have_every_member(world: TopicWorld) -> None:
    async def life() -> None:
        reliable, best_effort = await world.open(), BestEffortTopic(TOPIC, world.clock)
        for topic in (reliable, best_effort):
            host = await topic.subscribe("s", SHARED)
            assert (missing(ServedTopic, topic), missing(ServedSubscription, host)) == (set(), set())
            assert topic.reliable is host.reliable is (topic is reliable)

    world.run(life())


def test_the_comparison_finds_a_member_that_is_missing() -> None:
    assert {"as_reliable", "publish", "stored_bytes"} <= members(ServedTopic)
    assert missing(ServedTopic, object()) == members(ServedTopic)


def test_a_reliable_topic_is_reliable(world: TopicWorld) -> None:
    async def life() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED, settings=DispatchSettings(unacked_max=7))
        assert topic.as_reliable() is topic
        assert host.as_reliable() is host
        assert (host.name, host.kind, host.id, host.options.dispatch.unacked_max) == ("s", SHARED, host.known.id, 7)

    world.run(life())


def test_a_best_effort_topic_refuses_what_needs_storage(world: TopicWorld) -> None:
    async def life() -> None:
        topic = BestEffortTopic(TOPIC, world.clock)
        host = await topic.subscribe("s", SHARED)
        for each in (topic, host):
            with pytest.raises(NotReliable, match=rf"^{TOPIC} is not reliable and stores nothing$"):
                each.as_reliable()
        with pytest.raises(NotReliable, match=rf"^{TOPIC} cannot do that$"):
            topic.as_reliable("cannot do that")

    world.run(life())


def test_a_best_effort_topic_answers_like_one_without_messages(world: TopicWorld) -> None:
    async def life() -> None:
        topic = BestEffortTopic(TOPIC, world.clock)
        host = await topic.subscribe("s", SHARED)
        consumer = topic.connect(host, "c", Sink()).id
        assert (topic.bounds, topic.stored_bytes, topic.failed, topic.lost) == ((0, 0), 0, 0, False)
        assert topic.producer_name(1) == ""
        assert host.describe() == SubscriptionFigures()
        assert (host.id, host.floor, host.generation, host.backlog, host.ack_timeout) == (None, 0, 0, 0, None)
        host.give_back(consumer, 0, 9)
        assert (host.held(consumer), host.withdraw(consumer), host.is_active(consumer)) == ([], 0, True)

    world.run(life())


# -- what its users are told -------------------------------------------------------------------------------------------


async def through_a_consumer(door: Door, use: Callable[[Any], Any]) -> None:
    consumer = await caller(door).open_consumer(TOPIC, "s", SHARED, Sink())
    assert (consumer.reliable, consumer.active, consumer.held, consumer.unsettled) == (False, True, [], False)
    assert consumer.judge_ack(0, {}) is AckVerdict.VOID
    answer = use(consumer)
    if answer is not None:
        await answer


async def exactly_once(door: Door) -> None:
    staged = await served(door, "/default/staged", create=True)
    await admit(await served(door, TOPIC), staged.reliable, [])


NOTHING = "is not reliable and stores nothing"
NO_OPTIONS = "is not reliable, so its subscriptions have no options"
WAITING = "is not reliable: only waiting consumers get its messages"
ONCE = "is not reliable, so it cannot be written exactly once"


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda door: caller(door).read(TOPIC, 0, 1), NOTHING),
        (lambda door: caller(door).bounds(TOPIC), NOTHING),
        (lambda door: caller(door).offset_of_time(TOPIC, 0), NOTHING),
        (lambda door: caller(door).carry_out(TruncateTopic(TOPIC)), NOTHING),
        (lambda door: caller(door).carry_out(SeekSubscription(TOPIC, "s", "earliest")), NO_OPTIONS),
        (lambda door: caller(door).carry_out(SkipMessages(TOPIC, "s", count=1)), NOTHING),
        (lambda door: caller(door).carry_out(SkipMessages(TOPIC, "s", count=1, dry_run=True)), NO_OPTIONS),
        (lambda door: caller(door).carry_out(AlterSubscription(TOPIC, "s", OptionChanges())), NO_OPTIONS),
        (lambda door: caller(door).subscriptions.set_options(TOPIC, "s", {}), NO_OPTIONS),
        (lambda door: caller(door).carry_out(Explain(TOPIC, "s")), WAITING),
        (lambda door: caller(door).carry_out(Explain(TOPIC, "s", consumer=1)), WAITING),
        (lambda door: through_a_consumer(door, lambda consumer: consumer.seek(offset=0)), NOTHING),
        (lambda door: through_a_consumer(door, lambda consumer: consumer.pause()), NOTHING),
        (lambda door: through_a_consumer(door, lambda consumer: consumer.resume()), NOTHING),
        (exactly_once, ONCE),
    ],
)
def test_users_are_told_why_a_best_effort_topic_cannot_do_it(use: Callable[[Door], Awaitable[Any]], told: str) -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, reliable=False))
        await caller(door).carry_out(CreateSubscription(TOPIC, "s", "shared"))
        with pytest.raises(NotReliable) as refused:
            await use(door)
        assert refused.value.args == (f"{TOPIC} {told}",)

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_best_effort_subscription_is_described_without_offsets() -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, reliable=False))
        await caller(door).carry_out(CreateSubscription(TOPIC, "s", "shared"))
        stats = await caller(door).carry_out(DescribeSubscription(TOPIC, "s"))
        assert (stats.floors, stats.ends, stats.generation, stats.blocked_at) == ([None], [None], None, [None])
        assert (stats.backlog, stats.backlog_seconds, stats.stopped, set(stats.counts.values())) == (0, 0.0, 0, {0})
        assert (await caller(door).carry_out(ListBlocked())).blocked == []
        assert (await caller(door).carry_out(ListAbandoned())).abandoned == []

    world = DoorWorld()
    world.run(work)
    world.end()
