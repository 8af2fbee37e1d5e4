"""Dispatch rates and backlog quotas of a topic, by the simulated clock; what policies may say."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broker.topic_world import TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.errors import BacklogFull, NotReliable, PolicyInvalid
from pydanube.base.names import parse_topic
from pydanube.broker.serving.open_topic import topic_options
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.topic import Topic
from pydanube.operations.namespaces import AlterNamespace
from pydanube.operations.operation import read
from pydanube.stream.record import Copies
from pydanube.topic.policies import BacklogQuota, Policies
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import Cause, SubscriptionKind

SHARED, EXCLUSIVE = SubscriptionKind.SHARED, SubscriptionKind.EXCLUSIVE
FILLER = "x" * 1000


async def passes(topic: Topic, seconds: int) -> None:
    for _ in range(seconds):
        await asyncio.sleep(1)
        await topic.tick()


async def fill(topic: Topic, count: int) -> None:
    for _ in range(count):
        topic.admit(1000)
        await publish(topic, FILLER)


# -- dispatch rate -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", list(SubscriptionKind), ids=lambda kind: kind.name.lower())
def test_a_subscription_gets_no_more_than_its_rate(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 999))
        host = await subscribed(topic, kind)
        inbox = connected(topic, host)
        for second in range(1, 5):
            await asyncio.sleep(1)
            assert 100 * second <= len(inbox.offsets) <= 100 * (second + 1) + 10, second
        assert inbox.offsets == list(range(len(inbox.offsets)))
        assert len(inbox.deliveries) < 30 * 4  # ranges, not messages one by one

    world.options = TopicOptions(dispatch_messages_per_second=100)
    world.run(main())


def test_a_rate_of_bytes_holds_back_too(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        for _ in range(20):
            await publish(topic, FILLER)
        inbox = connected(topic, await subscribed(topic, EXCLUSIVE))
        await asyncio.sleep(3)
        assert 6 <= len(inbox.offsets) <= 9

    world.options = TopicOptions(dispatch_bytes_per_second=2200)
    world.run(main())


def test_redeliveries_count_and_wait_for_their_turn(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 29))
        host = await subscribed(topic, SHARED)
        inbox = connected(topic, host)
        await inbox.until(10)
        inbox.nack(*inbox.offsets)
        await asyncio.sleep(2)
        assert len(inbox.offsets) <= 10 * 3 + 5
        await asyncio.sleep(8)
        assert sorted(set(inbox.offsets)) == list(range(30))

    world.options = TopicOptions(dispatch_messages_per_second=10)
    world.run(main())


def test_an_explanation_names_the_rate(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 99))
        host = await subscribed(topic, EXCLUSIVE)
        inbox = connected(topic, host)
        await inbox.until(10)
        assert "dispatch rate" in host.explain(50).sentence
        assert "dispatch rate" in host.explain_consumer(inbox.id).sentence

    world.options = TopicOptions(dispatch_messages_per_second=10)
    world.run(main())


def test_a_rate_that_is_lifted_lets_everything_go_at_once(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await publish(topic, *numbers(0, 499))
        inbox = connected(topic, await subscribed(topic, EXCLUSIVE))
        await inbox.until(1)
        topic.alter(replace(topic.options, dispatch_messages_per_second=None))
        await asyncio.sleep(0.1)
        assert inbox.offsets == list(range(500))

    world.options = TopicOptions(dispatch_messages_per_second=1)
    world.run(main())


def test_a_batch_cut_by_the_rate_is_not_lost_when_the_cache_forgets_it(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        for first in range(0, 60, 20):
            await publish(topic, *numbers(first, first + 19))
        inbox = connected(topic, await subscribed(topic, EXCLUSIVE))
        assert await inbox.until(60) == list(range(60))
        assert inbox.payloads == [f"m{number}".encode() for number in range(60)]

    world.cache_bytes = 1
    world.options = TopicOptions(dispatch_messages_per_second=7)
    world.run(main())


# -- backlog -----------------------------------------------------------------------------------------------------------


def test_a_full_backlog_refuses_until_consumers_catch_up(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        with pytest.raises(BacklogFull):
            await fill(topic, 20)
        end = topic.ledger.confirmed_end
        assert 8 <= end <= 10
        await host.ack(0, [(0, 4)])
        await fill(topic, 4)
        with pytest.raises(BacklogFull):
            await fill(topic, 4)
        await topic.unsubscribe("s")
        await fill(topic, 20)  # nobody is behind

    world.options = TopicOptions(backlog=BacklogQuota(bytes=10_000))
    world.run(main())


def test_what_is_dropped_is_told_once_a_turn_and_not_with_every_publish(
    world: TopicWorld, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        topic = await world.open()
        slow = await subscribed(topic, SHARED, name="slow")
        await fill(topic, 60)
        await topic.tick()
        await topic.tick()
        told = [record.getMessage() for record in caplog.records if "dropped" in record.getMessage()]
        dropped = slow.known.counts[Cause.DROPPED]
        assert told == [f"{topic.name}: subscription slow was too far behind; dropped {dropped} of its messages"]

    world.options = TopicOptions(backlog=BacklogQuota(bytes=10_000, drop_oldest=True))
    with caplog.at_level("WARNING"):
        world.run(main())


def test_the_oldest_go_where_that_was_chosen_and_are_counted_for_good(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        slow, quick = await subscribed(topic, SHARED, name="slow"), await subscribed(topic, SHARED, name="quick")
        await fill(topic, 9)
        await quick.ack(0, [(0, 8)])
        await fill(topic, 21)
        await asyncio.sleep(0.1)
        dropped = slow.known.counts[Cause.DROPPED]
        assert 20 <= dropped <= 25
        assert slow.known.cursor.floor == dropped
        assert quick.known.cursor.floor == dropped
        assert 11 <= quick.known.counts[Cause.DROPPED] == dropped - 9
        inbox = connected(topic, slow)
        assert (await inbox.until(30 - dropped))[0] == dropped

    async def second_life() -> None:
        topic = await world.open()
        known = topic.subscriptions["slow"].known
        assert known.cursor.floor == known.counts[Cause.DROPPED] >= 20

    world.options = TopicOptions(backlog=BacklogQuota(bytes=10_000, drop_oldest=True))
    world.run(first_life())
    world.cut()
    world.run(second_life())


def test_a_backlog_that_is_too_old_refuses(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await fill(topic, 2)
        await passes(topic, 5)
        await fill(topic, 1)
        await passes(topic, 6)
        with pytest.raises(BacklogFull):
            await fill(topic, 1)
        await host.ack(0, [(0, 1)])
        await fill(topic, 1)

    world.options = TopicOptions(backlog=BacklogQuota(seconds=10))
    world.run(main())


def test_a_backlog_that_is_too_old_is_dropped_where_that_was_chosen(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SHARED)
        await fill(topic, 2)
        await passes(topic, 5)
        await fill(topic, 1)
        await passes(topic, 6)
        assert (host.known.cursor.floor, host.known.counts[Cause.DROPPED]) == (2, 2)
        await fill(topic, 1)

    world.options = TopicOptions(backlog=BacklogQuota(seconds=10, drop_oldest=True))
    world.run(main())


def test_a_quota_that_is_set_later_holds_from_then_on(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await subscribed(topic, SHARED)
        await fill(topic, 10)
        topic.alter(replace(topic.options, backlog=BacklogQuota(bytes=5_000)))
        with pytest.raises(BacklogFull):
            await fill(topic, 1)
        topic.alter(replace(topic.options, backlog=None))
        await fill(topic, 1)

    world.run(main())


# -- policies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"producers_max": 0},
        {"ttl_seconds": True},
        {"publish_messages_per_second": 1.5},
        {"backlog_policy": "drop_newest"},
        {"backlog_policy": 3},
        {"no_such": 1},
        {"no_such": "1"},
        {"producers_max": "0"},
        {"producers_max": "five"},
        {"publish_messages_per_second": "-1"},
        {"publish_messages_per_second": "9" * 20},
        {"topics_max": "1.5"},
    ],
)
def test_a_policy_that_means_nothing_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(PolicyInvalid):
        Policies().changed(wrong)


def test_text_stands_for_a_number_with_and_without_a_unit() -> None:
    texts = {"producers_max": "5", "publish_messages_per_second": " 100", "retention_bytes": "10", "ttl_seconds": "1m"}
    fields = {"namespace": "n", "policies": {**texts, "backlog_policy": "reject", "table": "none"}}
    found = Policies().changed(read(AlterNamespace, fields).policies.given())
    assert dict(found) == {
        "producers_max": 5,
        "publish_messages_per_second": 100,
        "retention_bytes": 10,
        "ttl_seconds": 60,
        "backlog_policy": "reject",
        "table": "none",
    }


def test_a_topic_has_no_policies_of_a_namespace_and_keeps_what_it_can() -> None:
    for name in ("topics_max", "namespace_bytes_max"):
        with pytest.raises(PolicyInvalid):
            Policies().changed({name: 1}).check_topic("t", reliable=True)
    kept = {"retention_seconds": 1, "retention_bytes": 1, "ttl_seconds": 1, "backlog_bytes_max": 1}
    for name, value in kept.items():
        with pytest.raises(NotReliable):
            Policies().changed({name: value}).check_topic("t", reliable=False)
        Policies().changed({name: value}).check_topic("t", reliable=True)
    Policies(producers_max=1, publish_bytes_per_second=1, dispatch_bytes_per_second=1).check_topic("t", reliable=False)


# -- what no policy sets -----------------------------------------------------------------------------------------------


def test_what_no_policy_sets_is_a_default_of_the_broker() -> None:
    record = TopicRecord(parse_topic("/default/t"), 1, True, 0)
    defaults = TopicOptions(copies=Copies(3, 3, 2), ledger_bytes=4_000, ttl_seconds=9, dispatch_bytes_per_second=7)
    found = topic_options(record, Policies(ttl_seconds=3), defaults)
    assert found == TopicOptions(copies=Copies(3, 3, 2), ledger_bytes=4_000, ttl_seconds=3)
    assert topic_options(record, Policies()) == TopicOptions()
