"""What fails is delivered again, later, and not forever: nacks, timeouts, crashes, poison, delayed delivery."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from broker.topic_world import Inbox, TopicWorld, batch_of, connected, numbers, publish, subscribed
from pydanube.base.errors import NodeUnreachable, PolicyInvalid
from pydanube.base.limits import SECOND
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.topic.dependencies import LetterSource
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.dispatch.policy import BackoffPolicy, FailurePolicy, PoisonPolicy
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.wire.batch import Batch

ALL = list(SubscriptionKind)
SHARED = SubscriptionKind.SHARED


async def handed_out(
    world: TopicWorld, kind: SubscriptionKind, policy: FailurePolicy | None = None, count: int = 3
) -> tuple[Topic, Inbox]:
    topic = await world.open()
    inbox = connected(topic, await subscribed(topic, kind, policy=policy))
    await publish(topic, *numbers(0, count - 1), keys=[f"k{number}" for number in range(count)])
    await inbox.until(count)
    return topic, inbox


async def time_of_next(world: TopicWorld, inbox: Inbox) -> float:
    """Seconds until more is delivered than now."""
    start = world.loop.time()
    await inbox.until(len(inbox.offsets) + 1)
    return round(world.loop.time() - start, 6)  # the clock is a float


@pytest.mark.parametrize("kind", ALL)
def test_a_nack_brings_the_message_back_after_its_delay(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        _, inbox = await handed_out(world, kind, FailurePolicy(base_delay=SECOND))
        await inbox.ack(0, 1)
        inbox.nack(2, delay=7 * SECOND)
        assert 7 <= await time_of_next(world, inbox) < 7.1
        assert inbox.deliveries[-1].attempt == 1
        await inbox.ack(2)
        await asyncio.sleep(200)
        assert inbox.offsets == [0, 1, 2, 2]

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_delays_double_up_to_their_bound_and_attempts_are_counted(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        policy = FailurePolicy(base_delay=SECOND, max_delay=4 * SECOND, max_redelivery_count=9)
        _, inbox = await handed_out(world, kind, policy, 1)
        waits = []
        for _ in range(4):
            inbox.nack(0)
            waits.append(round(await time_of_next(world, inbox)))
        assert waits == [1, 2, 4, 4]
        assert [delivery.attempt for delivery in inbox.deliveries] == [0, 1, 2, 3, 4]

    world.run(main())


def test_fixed_backoff_does_not_grow(world: TopicWorld) -> None:
    async def main() -> None:
        _, inbox = await handed_out(world, SHARED, FailurePolicy(base_delay=SECOND, backoff=BackoffPolicy.FIXED), 1)
        for _ in range(3):
            inbox.nack(0)
            assert 1 <= await time_of_next(world, inbox) < 1.1

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_what_is_not_acknowledged_in_time_comes_again(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        _, inbox = await handed_out(world, kind, FailurePolicy(ack_timeout=10 * SECOND, base_delay=SECOND), 1)
        assert 11 <= await time_of_next(world, inbox) < 11.5
        assert inbox.deliveries[-1].attempt == 1
        await inbox.ack(0)
        await asyncio.sleep(100)
        assert inbox.offsets == [0, 0]

    world.run(main())


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not SubscriptionKind.EXCLUSIVE])
def test_what_a_crashed_consumer_held_goes_to_another(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic, inbox = await handed_out(world, kind)
        other = connected(topic, inbox.host, "other")
        await inbox.ack(1)
        inbox.host.leave(inbox.id, crashed=True)
        assert sorted(await other.until(2)) == [0, 2]
        assert other.deliveries[0].attempt == 1
        await inbox.ack(0)  # the first consumer had done it after all
        await other.ack(2)
        assert inbox.host.known.cursor.floor == 3

    world.run(main())


def test_poison_that_blocks_stops_what_follows_until_it_is_acknowledged(world: TopicWorld) -> None:
    async def main() -> None:
        policy = FailurePolicy(max_redelivery_count=1, base_delay=0, poison=PoisonPolicy.BLOCK)
        topic, inbox = await handed_out(world, SubscriptionKind.EXCLUSIVE, policy, 1)
        inbox.nack(0)
        await inbox.until(2)
        inbox.nack(0)
        await publish(topic, "later")
        await asyncio.sleep(100)
        assert inbox.offsets == [0, 0]
        assert inbox.host.explain(0).cause is Why.POISON_BLOCKS
        await inbox.ack(0)
        assert await inbox.until(3) == [0, 0, 1]

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_poison_that_is_dropped_is_counted_and_stays_dropped(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def first_life() -> None:
        policy = FailurePolicy(max_redelivery_count=0, base_delay=0, poison=PoisonPolicy.DROP)
        _, inbox = await handed_out(world, kind, policy)
        inbox.nack(1)
        await inbox.ack(0)
        await asyncio.sleep(1)
        await inbox.ack(2)
        assert inbox.host.known.counts[Cause.POISON] == 1
        assert inbox.host.known.cursor.floor == 3

    async def second_life() -> None:
        topic = await world.open()
        host = topic.subscriptions["s"]
        assert (host.known.cursor.floor, host.known.counts[Cause.POISON]) == (3, 1)

    world.run(first_life())
    world.cut()
    world.run(second_life())


TO_THE_MORGUE = FailurePolicy(
    max_redelivery_count=1, base_delay=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/dead"
)


@pytest.mark.parametrize("kind", ALL)
def test_a_dead_letter_keeps_its_message_and_says_where_it_comes_from(
    world: TopicWorld, kind: SubscriptionKind
) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, kind, policy=TO_THE_MORGUE))
        batch = batch_of(
            "a", "b", keys=["k", None], attributes=[{"colour": "red"}, None], schema_ids=[7, 8],
            schema_versions=[2, 3], event_times=[11, None],
        )  # fmt: skip
        await topic.publish(batch).confirmed
        await inbox.until(2)
        inbox.nack(0, reason="no such customer")
        await inbox.until(3)
        inbox.nack(0, reason="still no such customer")
        await asyncio.sleep(1)
        [(target, letter)] = world.dead_letters
        [message] = letter.messages()
        assert target == "/default/dead"
        assert (message.payload, message.key, message.schema_id, message.schema_version) == (b"a", b"k", 7, 2)
        assert message.event_time == 11
        assert message.attributes == {
            "colour": "red",
            "x-original-topic": "/default/t",
            "x-original-subscription": "s",
            "x-original-topic-offset": "0",
            "x-original-producer-id": "0",
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "2",
            "x-failure-reason": "still no such customer",
        }
        assert inbox.host.known.counts[Cause.DEAD_LETTERED] == 1
        assert inbox.host.known.cursor.floor == 1

    world.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_a_message_stays_while_the_dead_letter_topic_is_down(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        _, inbox = await handed_out(world, kind, TO_THE_MORGUE, 1)
        world.dead_letters_fail = True
        inbox.nack(0)
        await inbox.until(2)
        inbox.nack(0)
        await asyncio.sleep(500)
        assert inbox.host.known.cursor.floor == 0
        assert inbox.host.explain(0).cause is Why.POISON_STUCK
        assert inbox.host.engine.blocked_at == 0
        world.dead_letters_fail = False
        await asyncio.sleep(100)
        assert inbox.host.engine.blocked_at is None
        assert len(world.dead_letters) == 1
        assert inbox.host.known.cursor.floor == 1
        assert inbox.offsets == [0, 0]

    world.run(main())


@pytest.mark.slow
def test_many_dead_letters_that_cannot_be_published_are_logged_now_and_then(
    world: TopicWorld, caplog: pytest.LogCaptureFixture
) -> None:
    logging.disable(logging.NOTSET)

    async def main() -> None:
        _, inbox = await handed_out(world, SHARED, TO_THE_MORGUE, 200)
        world.dead_letters_fail = True
        for times in (1, 2):
            await inbox.until(200 * times)
            inbox.nack(*range(200))
        await asyncio.sleep(50)
        [line] = [each for each in caplog.messages if "could not set aside offset" in each]
        assert line.startswith("subscription s could not set aside offset ")
        await asyncio.sleep(100)
        lines = [each for each in caplog.messages if "could not set aside offset" in each]
        assert 2 <= len(lines) <= 3
        assert "more times since it was last logged" in lines[-1]

    world.run(main())


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", ALL)
def test_a_dead_letter_is_published_once_though_the_state_cannot_be_written(
    world: TopicWorld, kind: SubscriptionKind, when: str
) -> None:
    """The state log breaks before the letter is published, or when it is; and it stays broken for long."""

    async def main() -> None:
        topic, inbox = await handed_out(world, kind, TO_THE_MORGUE, 1)
        append, down = topic.state_stream.append, True

        def refuse(batch: Batch) -> tuple[Batch, asyncio.Future[None]]:
            if down:
                raise NodeUnreachable("away")
            return append(batch)

        async def publish_and_break(target: str, message: Batch, source: LetterSource) -> None:
            world.dead_letters.append((target, message))
            topic._core.log._break(NodeUnreachable("away"))

        topic.state_stream.append = refuse  # type: ignore[method-assign]
        if when == "before":
            topic._core.log._break(NodeUnreachable("away"))
        else:
            hosted = topic._hosted
            hosted._dependencies = replace(hosted._dependencies, publish=publish_and_break)
        inbox.nack(0)
        await inbox.until(2)
        inbox.nack(0)
        await asyncio.sleep(500)
        assert (len(world.dead_letters), inbox.host.known.cursor.floor) == (int(when == "after"), 0)
        down = False
        await asyncio.sleep(100)
        assert (len(world.dead_letters), inbox.host.known.cursor.floor) == (1, 1)
        assert inbox.host.known.counts[Cause.DEAD_LETTERED] == 1

    world.run(main())


def test_a_dead_letter_is_read_from_disk_if_it_must_be() -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        _, inbox = await handed_out(world, SHARED, TO_THE_MORGUE)
        inbox.nack(1)
        await inbox.until(4)
        inbox.nack(1)
        await asyncio.sleep(1)
        assert [letter.payloads() for _, letter in world.dead_letters] == [[b"m1"]]

    world.run(main())
    world.end()


def test_a_dead_letter_policy_names_its_topic() -> None:
    with pytest.raises(PolicyInvalid):
        FailurePolicy(poison=PoisonPolicy.DEAD_LETTER)


# -- delayed delivery --------------------------------------------------------------------------------------------------


async def delayed(world: TopicWorld, topic: Topic, *seconds: float) -> None:
    times = [world.clock.wall() + round(wait * SECOND) if wait else None for wait in seconds]
    await publish(topic, *numbers(0, len(seconds) - 1), delivery_times=times)


def test_shared_delivers_at_the_delivery_time_also_after_a_restart(world: TopicWorld) -> None:
    async def first_life() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SHARED))
        await delayed(world, topic, 60, 0, 20)
        assert await inbox.until(1) == [1]
        await inbox.ack(1)
        assert inbox.host.explain(0).cause is Why.DELAYED
        await asyncio.sleep(10)

    async def second_life() -> None:
        topic = await world.open()
        inbox = connected(topic, topic.subscriptions["s"])
        assert 9 < await time_of_next(world, inbox) < 11
        assert inbox.offsets == [2]
        await inbox.ack(2)
        assert 39 < await time_of_next(world, inbox) < 41
        assert inbox.offsets == [2, 0]

    world.run(first_life())
    world.cut()
    world.run(second_life())


@pytest.mark.parametrize("kind", [kind for kind in ALL if kind is not SHARED])
def test_the_other_types_deliver_in_order_at_once(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, kind))
        await delayed(world, topic, 60, 0, 20)
        assert await inbox.until(3) == [0, 1, 2]
        assert world.loop.time() < 5

    world.run(main())


def test_an_acknowledged_delayed_message_is_not_delivered(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        inbox = connected(topic, await subscribed(topic, SHARED))
        await delayed(world, topic, 60, 60)
        await inbox.ack(0)
        assert await inbox.until(1) == [1]
        await asyncio.sleep(10)
        assert inbox.offsets == [1]

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_a_sink_that_raises_fails_its_message_and_stops_nothing_else(
    world: TopicWorld, kind: SubscriptionKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        policy = FailurePolicy(base_delay=0, max_redelivery_count=1, poison=PoisonPolicy.DROP)
        topic = await world.open()
        host = await subscribed(topic, kind, policy=policy)
        inbox, raised = connected(topic, host), []
        deliver = inbox.deliver

        def fragile(delivery: Delivery) -> None:
            if delivery.first <= 1 <= delivery.last:
                raise ValueError("negative")
            deliver(delivery)

        inbox.deliver = fragile  # type: ignore[method-assign]
        monkeypatch.setattr(world.loop, "call_exception_handler", lambda told: raised.append(str(told["exception"])))
        for number in range(4):
            await publish(topic, *numbers(number, number), keys=[f"k{number}"])
        while set(inbox.offsets) != {0, 2, 3}:  # noqa: ASYNC110
            await asyncio.sleep(1)
        await inbox.ack(*set(inbox.offsets))
        while host.known.cursor.floor < 4:  # noqa: ASYNC110
            await asyncio.sleep(1)
        assert raised == ["negative"] * 2, "it was tried again once"

    world.run(main())
