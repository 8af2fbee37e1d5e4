"""What subscriptions have in memory of what they read: nothing without a consumer, and all together not too much."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from broker.topic_world import TopicWorld, connected, numbers, publish, subscribed
from pydanube.base.limits import CURSOR_CHUNK_OFFSETS
from pydanube.broker.subscription.dispatcher import Dispatcher
from pydanube.broker.subscription.reading_window import ReadAheadBudget
from pydanube.broker.topic.topic import Topic
from pydanube.topic import ackset
from pydanube.topic.records import SubscriptionKind

KINDS = list(SubscriptionKind)


@pytest.fixture
def world() -> Iterator[TopicWorld]:
    """Nothing is cached: all is read from disk, as by subscriptions that are far behind."""
    world = TopicWorld(cache_bytes=0)
    yield world
    world.end()


async def filled(world: TopicWorld, batches: int = 40) -> Topic:
    topic = await world.open()
    for number in range(batches):
        await publish(topic, *numbers(10 * number, 10 * number + 9))
    return topic


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("waited", [0.0, 0.0005, 0.001, 0.002, 0.005, 1.0])
def test_what_was_read_ahead_goes_with_the_last_consumer(
    world: TopicWorld, kind: SubscriptionKind, waited: float
) -> None:
    async def main() -> None:
        topic = await filled(world)
        host = await subscribed(topic, kind)
        first, second = connected(topic, host, permits=15), None
        if kind is not SubscriptionKind.EXCLUSIVE:
            second = connected(topic, host, permits=15)
        await asyncio.sleep(waited)  # a read may be under way
        assert world.read_ahead.bytes or waited < 1
        if second is not None:
            host.leave(second.id, crashed=False)
        host.leave(first.id, crashed=False)
        await asyncio.sleep(1)
        assert world.read_ahead.bytes == 0
        again = connected(topic, host)
        assert sorted(set(await again.until(400))) == list(range(400))

    world.run(main())


def test_all_subscriptions_together_stay_within_one_bound_and_get_everything(world: TopicWorld) -> None:
    world.read_ahead = ReadAheadBudget(bytes_max=3_000)
    held: list[tuple[int, int]] = []

    async def main() -> None:
        topic = await filled(world, 10)
        hosts = [await subscribed(topic, SubscriptionKind.SHARED, name=f"s{number}") for number in range(5)]
        inboxes = [connected(topic, host, permits=1) for host in hosts]
        for round in range(1, 101):
            await asyncio.gather(*(inbox.until(round) for inbox in inboxes))
            held.append((world.read_ahead.bytes, len(world.read_ahead._users)))
            for inbox in inboxes:
                inbox.host.grant(inbox.id, 1)
        assert [inbox.offsets for inbox in inboxes] == [list(range(100))] * 5
        await topic.close()

    world.run(main())
    assert all(bytes <= 3_000 or users == 1 for bytes, users in held)  # one may have what it needs
    assert all(bytes for bytes, _ in held)
    assert world.read_ahead.bytes == 0  # whoever is closed holds nothing


def test_a_publish_wakes_no_subscription_that_has_no_consumer(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[str] = []
    turn = Dispatcher.turn

    def counted(dispatcher: Dispatcher) -> None:
        woken.append(dispatcher._core.known.name)
        turn(dispatcher)

    monkeypatch.setattr(Dispatcher, "turn", counted)

    async def main() -> None:
        topic = await world.open()
        hosts = [await subscribed(topic, SubscriptionKind.SHARED, name=f"s{number}") for number in range(5)]
        inbox = connected(topic, hosts[0])
        await asyncio.sleep(1)
        woken.clear()
        await publish(topic, "a")
        await inbox.until(1)
        await asyncio.sleep(1)
        assert set(woken) == {"s0"}
        for host in hosts[1:]:  # and whoever comes later gets it all the same
            assert await connected(topic, host).until(1) == [0]

    world.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_the_rest_of_a_batch_at_the_ceiling_of_the_cursor_comes_when_that_rises(
    world: TopicWorld, kind: SubscriptionKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One message stays open for so long that the cursor can hold no more behind it; others are read ahead by then."""
    monkeypatch.setattr(ackset, "CURSOR_CHUNKS_MAX", 1)
    ceiling, size = CURSOR_CHUNK_OFFSETS, 300
    total = (ceiling // size + 3) * size

    async def main() -> None:
        topic = await world.open()
        for first in range(0, total, size):
            await publish(topic, *numbers(first, first + size - 1))
        host = await subscribed(topic, kind)
        inbox = connected(topic, host, permits=2 * total)
        assert sorted(await inbox.until(ceiling)) == list(range(ceiling))
        await inbox.ack(*range(1, ceiling))
        await asyncio.sleep(1)
        assert len(inbox.offsets) == host.known.cursor.ceiling == ceiling
        await inbox.ack(0)
        assert sorted(await inbox.until(total)) == list(range(total))
        assert host.known.cursor.floor == ceiling

    world.run(main())
