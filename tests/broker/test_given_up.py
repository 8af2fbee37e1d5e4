"""Messages that were damaged and given up: whatever waits for one of them goes on without it."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, connected, publish, subscribed
from pydanube.base.errors import DiskFailed
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy, PoisonPolicy
from pydanube.stream.record import LostRange
from pydanube.topic.records import Cause, SubscriptionKind
from pydanube.wire.batch import Batch
from waiting import until

ROUNDS_MAX = 1000


def damage(world: TopicWorld, host: SubscriptionHost) -> None:
    """Nothing is in memory, and nothing can be read until the disk is cured."""
    host._window.let_go()
    world.disk.fail_next("read", DiskFailed, count=1_000_000)


async def give_up(world: TopicWorld, topic: Topic, host: SubscriptionHost, first: int, last: int) -> None:
    """As `danube salvage` does it."""
    world.disk.cure()
    await topic.ledger.stream.give_up([LostRange(first, last)])
    host.retry_reading()


def forbid_spinning(topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks again and again without an end fails."""
    past_lost, rounds = topic.ledger.past_lost, 0

    def counted(offset: int) -> int:
        nonlocal rounds
        rounds += 1
        assert rounds < ROUNDS_MAX
        return past_lost(offset)

    monkeypatch.setattr(topic.ledger, "past_lost", counted)


@pytest.mark.parametrize("kind", list(SubscriptionKind))
@pytest.mark.parametrize("last", [5, 6])
def test_a_delivery_that_waits_for_its_read_is_left_out_once_its_messages_are_given_up(
    kind: SubscriptionKind, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, kind)
        inbox = connected(topic, host, permits=13)  # one more is there only if the lost one gives its own back
        for number in range(10):
            await publish(topic, f"m{number}", keys=["k"])
        await inbox.until(10)
        await inbox.ack(0, 1, 2, 3, 4, 8, 9)
        inbox.forget()
        damage(world, host)
        inbox.nack(5, 6, 7)
        await until(lambda: bool(host._sender.outbox) and host._window.failures.newest is not None)
        forbid_spinning(topic, monkeypatch)
        await give_up(world, topic, host, 5, last)
        await publish(topic, "new", keys=["k"])
        left = [*range(last + 1, 8), 10]
        assert await inbox.until(len(left)) == left
        await inbox.ack(*left)
        assert host.known.cursor.floor == 11
        assert host.known.counts[Cause.LOST] == last - 4

    world.run(main())
    world.end()


def test_a_poisoned_message_that_is_given_up_is_no_longer_set_aside() -> None:
    world = TopicWorld(cache_bytes=1)

    async def main() -> None:
        topic = await world.open()
        policy = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/d")
        host = await subscribed(topic, SubscriptionKind.SHARED, policy=policy)
        inbox = connected(topic, host)
        for number in range(3):
            await publish(topic, f"m{number}")
        await inbox.until(3)
        await inbox.ack(0, 1)
        damage(world, host)
        inbox.nack(2)
        await asyncio.sleep(5)  # of simulated time, as all here
        assert host.known.cursor.floor == 2
        await give_up(world, topic, host, 2, 2)
        await until(lambda: host.known.cursor.floor == 3)
        assert host.known.counts[Cause.LOST] == 1
        assert world.dead_letters == []

    world.run(main())
    world.end()


def test_a_poisoned_message_is_not_set_aside_if_a_seek_comes_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TopicWorld()

    async def main() -> None:
        topic = await world.open()
        policy = FailurePolicy(max_redelivery_count=0, poison=PoisonPolicy.DEAD_LETTER, dead_letter_topic="/default/d")
        host = await subscribed(topic, SubscriptionKind.SHARED, policy=policy)
        inbox = connected(topic, host)
        await publish(topic, "m0")
        await inbox.until(1)
        at, reading, read = host._window.read_at, asyncio.Event(), asyncio.Event()

        async def slowly(offset: int) -> Batch:
            reading.set()
            await read.wait()
            return await at(offset)

        monkeypatch.setattr(host._window, "read_at", slowly)
        inbox.nack(0)
        await reading.wait()
        inbox.forget()
        await host.seek(0)
        read.set()
        assert await inbox.until(1) == [0]
        await asyncio.sleep(5)
        assert world.dead_letters == []

    world.run(main())
    world.end()


def test_an_unexpected_error_while_a_delivery_waits_for_its_read_is_told_and_delivering_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, mistakes = TopicWorld(cache_bytes=1), [ValueError("a mistake")]

    async def main() -> None:
        topic = await world.open()
        host = await subscribed(topic, SubscriptionKind.SHARED)
        inbox = connected(topic, host)
        await publish(topic, "m0")
        await publish(topic, "m1")
        await inbox.until(2)
        inbox.forget()
        host._window.let_go()
        at = host._window.read_at

        async def mistaken(offset: int) -> Batch:
            if mistakes:
                raise mistakes.pop()
            return await at(offset)

        monkeypatch.setattr(host._window, "read_at", mistaken)
        inbox.nack(0)
        assert await inbox.until(1) == [0]

    world.run(main())
    assert [str(failure.error) for failure in world.loop.failures] == ["a mistake"]
    world.loop.shutdown()
