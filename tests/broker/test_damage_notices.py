"""Consumers hear of damage once, and that it is over when it is: what is read elsewhere says nothing about it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from broker.topic_world import TopicWorld, connected, publish, subscribed
from pydanube.base.errors import OffsetsDamaged
from pydanube.base.limits import SECOND
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.policy import FailurePolicy
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def damaged_topic(world: TopicWorld, monkeypatch: pytest.MonkeyPatch) -> tuple[Topic, set[int]]:
    """Four messages, none of them in memory, and the offsets of those that cannot be read: the third."""
    topic = await world.open()
    for number in range(4):
        await publish(topic, f"m{number}")
    read, damaged = topic.ledger.read, {2}

    async def damaged_read(offset: int) -> list[Batch]:
        if offset in damaged:
            raise OffsetsDamaged.between(offset, offset, topic.name)
        return (await read(offset))[:1]

    monkeypatch.setattr(topic.ledger, "read", damaged_read)
    monkeypatch.setattr(topic.ledger, "find", lambda offset: None)
    return topic, damaged


def test_a_notice_of_damage_lasts_while_other_messages_are_delivered_again(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic, damaged = await damaged_topic(world, monkeypatch)
        host = await subscribed(topic, SubscriptionKind.SHARED, start=0, policy=FailurePolicy(base_delay=SECOND))
        inbox = connected(topic, host)
        for again in range(4):
            await inbox.until(2 + 2 * again)
            host._window.keep([])
            inbox.nack(0, 1)
        assert [type(each) for each in inbox.notices] == [OffsetsDamaged] * len(inbox.notices)
        assert 1 <= len(inbox.notices) <= 2  # again after some seconds, and not each time that something was read
        assert host.explain_reading() is not None
        damaged.clear()
        await inbox.until(12)
        assert inbox.notices[-1] is None
        assert {2, 3} <= set(inbox.offsets)
        assert host.explain_reading() is None

    world.run(main())


def test_a_notice_of_damage_ends_when_nobody_wants_what_is_damaged(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic, _ = await damaged_topic(world, monkeypatch)
        inbox = connected(topic, await subscribed(topic, SubscriptionKind.SHARED, start=0))
        await inbox.until(2)
        while not inbox.notices:  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.1)
        await topic.skip("s", to=3)
        assert await inbox.until(3) == [0, 1, 3]
        assert inbox.notices[-1] is None

    world.run(main())
