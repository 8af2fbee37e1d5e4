"""Consumers that queue messages and cannot say what was taken: a live one holds them, unless a timeout was chosen."""

from __future__ import annotations

import asyncio

import pytest

from broker.topic_world import TopicWorld, connected, numbers, publish
from pydanube.base.limits import SECOND
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import Timing
from pydanube.dispatch.policy import FailurePolicy
from pydanube.topic.records import SubscriptionKind

ALL = list(SubscriptionKind)


@pytest.mark.parametrize("kind", ALL)
def test_a_live_stream_holds_its_messages_for_as_long_as_it_lives(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await topic.subscribe("s", kind, start="earliest")
        inbox = connected(topic, host, timing=Timing.CHOSEN)
        await publish(topic, *numbers(0, 2))
        await inbox.until(3)
        await asyncio.sleep(10_000)
        assert (inbox.offsets, inbox.recalled) == ([0, 1, 2], [])
        host.leave(inbox.id, crashed=False)
        assert await connected(topic, host, timing=Timing.CHOSEN).until(3) == [0, 1, 2]

    world.run(main())


@pytest.mark.parametrize("kind", ALL)
def test_a_timeout_that_was_chosen_runs_from_the_delivery(world: TopicWorld, kind: SubscriptionKind) -> None:
    async def main() -> None:
        topic = await world.open()
        options = SubscriptionOptions().changed({"failure": {"ack_timeout": 30}})  # as by default
        host = await topic.subscribe("s", kind, start="earliest", options=options)
        inbox = connected(topic, host, timing=Timing.CHOSEN)
        await publish(topic, "m", keys=["k"])
        began = world.loop.time()
        assert await inbox.until(2) == [0, 0]
        assert 31 <= world.loop.time() - began < 32
        assert inbox.recalled == [0]

    world.run(main())


def test_a_timeout_that_is_chosen_while_a_stream_lives_begins_then(world: TopicWorld) -> None:
    async def main() -> None:
        topic = await world.open()
        host = await topic.subscribe("s", SubscriptionKind.SHARED, start="earliest")
        inbox = connected(topic, host, timing=Timing.CHOSEN)
        await publish(topic, "m")
        await inbox.until(1)
        await asyncio.sleep(1000)
        await topic.alter_subscription("s", {"failure": {"ack_timeout": 5}})
        began = world.loop.time()
        assert await inbox.until(2) == [0, 0]
        assert 6 <= world.loop.time() - began < 6.2

    world.run(main())


def test_that_a_timeout_was_chosen_is_stored_with_the_subscription() -> None:
    default, chosen = SubscriptionOptions(), SubscriptionOptions().changed({"failure": {"ack_timeout": None}})
    assert not SubscriptionOptions.decode(default.encode()).timeout_chosen
    assert SubscriptionOptions.decode(chosen.encode()).timeout_chosen
    assert default.to_json()["failure"]["ack_timeout"] == 30
    own = SubscriptionOptions(FailurePolicy(ack_timeout=SECOND))
    assert SubscriptionOptions.decode(own.encode()).failure.ack_timeout == SECOND
