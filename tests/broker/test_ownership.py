"""Two brokers and one topic: the newer owner has it, the older one can neither write, acknowledge nor delete."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import Inbox, TopicWorld, batch_of, connected, numbers, publish, subscribed
from pydanube.base.errors import DanubeError, OwnershipLost, TopicClosed
from pydanube.base.limits import KIB
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.topic import Topic
from pydanube.topic.records import SubscriptionKind

ALL = list(SubscriptionKind)


async def taken_over(world: TopicWorld, kind: SubscriptionKind) -> tuple[Topic, Inbox, Topic]:
    """The old owner with its consumer, half of whose messages are acknowledged, and the new owner."""
    old = await world.open()
    inbox = connected(old, await subscribed(old, kind))
    for first in range(0, 20, 10):
        await publish(old, *numbers(first, first + 9))
    await inbox.until(20)
    await inbox.ack(*range(10))
    return old, inbox, await world.open_topic()


@pytest.mark.parametrize("kind", ALL)
def test_the_new_owner_redelivers_no_confirmed_ack_and_the_old_one_confirms_none(
    world: TopicWorld, kind: SubscriptionKind
) -> None:
    async def main() -> None:
        old, inbox, new = await taken_over(world, kind)
        for _ in range(3):
            with pytest.raises(DanubeError) as refused:
                await inbox.ack(10, 11)
            assert refused.value.retriable
            await asyncio.sleep(1)
        with pytest.raises(TopicClosed):
            await inbox.ack(10, 11)
        assert old.lost
        successor = connected(new, new.subscriptions["s"])
        assert sorted(await successor.until(10)) == list(range(10, 20))
        await successor.ack_all()
        assert successor.host.known.cursor.floor == 20

    world.run(main())


def test_the_old_owner_can_do_nothing_any_more(world: TopicWorld) -> None:
    async def main() -> None:
        old, inbox, new = await taken_over(world, SubscriptionKind.SHARED)
        sent = old.publish(batch_of("too late"))
        for attempt in (
            sent.confirmed,
            old.seek(inbox.host, 0),
            old.attach("p"),
            old.unsubscribe("s"),
            old.subscribe("other", SubscriptionKind.SHARED),
        ):
            with pytest.raises(DanubeError):
                await attempt
        await asyncio.sleep(1)
        assert old.lost
        with pytest.raises(TopicClosed):
            old.publish(batch_of("too late"))
        await old.tick()
        await old.close()
        assert new.ledger.confirmed_end == 20
        assert await publish(new, "in time") == 20
        cursor = new.subscriptions["s"].known.cursor
        assert (cursor.generation, cursor.floor) == (0, 10)
        assert list(new.subscriptions) == ["s"]

    world.run(main())


def test_the_old_owner_deletes_nothing_that_the_new_one_has(world: TopicWorld) -> None:
    world.options = TopicOptions(ledger_bytes=KIB)

    async def main() -> None:
        old = await world.open()
        host = await subscribed(old, SubscriptionKind.SHARED)
        for _ in range(3):
            await publish(old, "x" * 2000)
            await asyncio.sleep(0.1)
        await host.ack(0, [(0, 2)])
        new = await world.open_topic()
        await new.seek(new.subscriptions["s"], 0)
        await old.tick()
        with pytest.raises(OwnershipLost):
            await old.ledger.stream.trim(3)
        assert old.lost
        inbox = connected(new, new.subscriptions["s"])
        assert sorted(await inbox.until(3)) == [0, 1, 2]

    world.run(main())


def test_what_the_old_owner_had_not_confirmed_is_decided_once(world: TopicWorld) -> None:
    async def main() -> None:
        old = await world.open()
        session = await old.attach("p")
        sent = [
            old.publish(batch_of(f"m{number}", producer_id=session.producer, first_sequence=number), session.epoch)
            for number in range(20)
        ]
        new = await world.open_topic()
        answers = await asyncio.gather(*(receipt.confirmed for receipt in sent), return_exceptions=True)
        confirmed = [answer is None for answer in answers]
        assert confirmed == sorted(confirmed, reverse=True)
        newer = await new.attach("p")
        assert newer.next_sequence >= sum(confirmed)
        for number in range(20):
            batch = batch_of(f"m{number}", producer_id=newer.producer, first_sequence=number)
            await new.publish(batch, newer.epoch).confirmed
        inbox = connected(new, await subscribed(new, SubscriptionKind.EXCLUSIVE))
        await inbox.until(20)
        assert inbox.payloads == [name.encode() for name in numbers(0, 19)]

    world.run(main())


@pytest.mark.parametrize("seed", range(5))
def test_acks_under_way_during_the_takeover_are_confirmed_only_if_the_new_owner_has_them(seed: int) -> None:
    world = TopicWorld(seed)

    async def main() -> None:
        old = await world.open()
        inbox = connected(old, await subscribed(old, SubscriptionKind.SHARED))
        await publish(old, *numbers(0, 99))
        await inbox.until(100)
        confirmed: list[int] = []

        async def ack_all() -> None:
            for offset in range(100):
                await inbox.ack(offset)
                confirmed.append(offset)

        acking = asyncio.ensure_future(ack_all())
        await asyncio.sleep(0.02 * seed)
        new = await world.open_topic()
        known = new.subscriptions["s"].known.cursor
        await asyncio.wait([acking])
        assert acking.exception() is not None or len(confirmed) == 100
        assert [offset for offset in confirmed if known.pending(offset, offset)] == []

    world.run(main())
    world.end()
