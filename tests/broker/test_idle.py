"""A subscription that says how long it may be without a consumer goes when it has been, and not before."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, connected, numbers, publish
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.topic import Topic
from pydanube.topic.records import SubscriptionKind

EXCLUSIVE = SubscriptionKind.EXCLUSIVE
A_MINUTE = SubscriptionOptions(idle_seconds=60)


async def passes(topic: Topic, seconds: int) -> None:
    for _ in range(seconds):
        await asyncio.sleep(1)
        await topic.tick()


def test_an_idle_subscription_is_deleted_and_the_others_stay(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        await topic.subscribe("short", EXCLUSIVE, options=A_MINUTE)
        await topic.subscribe("forever", EXCLUSIVE)
        await passes(topic, 59)
        assert sorted(topic.subscriptions) == ["forever", "short"]
        await passes(topic, 3)
        assert sorted(topic.subscriptions) == ["forever"]

    async def next_life() -> None:
        assert sorted((await world.open()).subscriptions) == ["forever"]

    world.run(main())
    world.cut()
    world.run(next_life())


def test_a_consumer_keeps_it_and_its_leaving_begins_the_time_again(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await topic.subscribe("s", EXCLUSIVE, options=A_MINUTE)
        await passes(topic, 40)
        inbox = connected(topic, host)
        await publish(topic, *numbers(0, 3))
        await passes(topic, 100)
        assert "s" in topic.subscriptions
        host.leave(inbox.id, crashed=False)
        await passes(topic, 58)
        assert "s" in topic.subscriptions
        await passes(topic, 4)
        assert "s" not in topic.subscriptions

    world.run(main())


def test_consumers_that_come_for_a_moment_between_two_looks_keep_it(world: TopicWorld) -> None:
    """A job that is run every few minutes, or a shell script that receives over HTTP."""

    async def main() -> None:
        topic = await world.open()
        host = await topic.subscribe("s", EXCLUSIVE, options=A_MINUTE)
        for _ in range(5):
            await passes(topic, 50)
            assert "s" in topic.subscriptions
            host.leave(connected(topic, host).id, crashed=False)
        await passes(topic, 58)
        assert "s" in topic.subscriptions
        await passes(topic, 4)
        assert "s" not in topic.subscriptions

    world.run(main())


def test_the_option_is_stored_and_can_be_changed() -> None:
    stored = SubscriptionOptions.decode(A_MINUTE.encode())
    assert stored.idle_seconds == 60
    assert stored.changed({"idle_seconds": None}).idle_seconds is None
    assert "idle_seconds" not in SubscriptionOptions().to_json()


def test_a_consumer_that_comes_while_another_idle_subscription_is_deleted_keeps_its_own(
    world: TopicWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        topic = await world.open()
        hosts = {name: await topic.subscribe(name, EXCLUSIVE, options=A_MINUTE) for name in ("a", "b")}
        unsubscribe = topic._hosted.unsubscribe

        async def slowly(name: str) -> None:
            await unsubscribe(name)
            if "b" in topic.subscriptions and not hosts["b"].consumers:
                connected(topic, hosts["b"])

        monkeypatch.setattr(topic._hosted, "unsubscribe", slowly)
        await passes(topic, 63)
        assert sorted(topic.subscriptions) == ["b"]

    world.run(main())
