"""The topics that the broker makes for dead letters: always made, marked, and without dead letters of their own."""

from __future__ import annotations

import pytest

from broker.door_world import DoorWorld, caller, served
from pydanube.base.errors import PolicyInvalid
from pydanube.broker.door.door import Door
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.dependencies import LetterSource
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.operations.subscriptions import CreateSubscription
from pydanube.operations.topics import CreateTopic
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

LETTERS = "/default/orders-billing-dlq"
SHARED = SubscriptionKind.SHARED


def test_it_is_made_and_marked_though_topics_are_not_made_by_using_them() -> None:
    async def publish(door: Door) -> None:
        door.topics.auto_create = False
        await door.around.publish(
            LETTERS, build([b"poison"], publish_time=1), LetterSource("/default/orders", "s", chosen=False)
        )
        assert await caller(door).bounds(LETTERS) == (0, 1)

    async def look(door: Door) -> None:
        assert (await caller(door).topics.lookup(LETTERS)).dead_letters

    world = DoorWorld()
    world.run(publish)
    world.run(look)
    world.end()


def test_a_topic_that_was_there_before_is_not_marked() -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(LETTERS))
        await door.around.publish(
            LETTERS, build([b"poison"], publish_time=1), LetterSource("/default/orders", "s", chosen=True)
        )
        assert not (await caller(door).topics.lookup(LETTERS)).dead_letters

    world = DoorWorld()
    world.run(work)
    world.end()


def test_letters_go_to_an_ordinary_topic_without_authentication_while_no_consumer_is_connected() -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(LETTERS))
        await door.around.publish(
            LETTERS, build([b"poison"], publish_time=1), LetterSource("/default/orders", "s", chosen=False)
        )
        assert await caller(door).bounds(LETTERS) == (0, 1)

    world = DoorWorld()
    world.run(work)
    world.end()


def test_its_subscriptions_have_no_dead_letters_unless_somebody_says_so() -> None:
    async def work(door: Door) -> None:
        await door.around.publish(
            LETTERS, build([b"poison"], publish_time=1), LetterSource("/default/orders", "s", chosen=False)
        )
        await caller(door).carry_out(CreateSubscription(LETTERS, "inspector", "shared"))
        opened = await served(door, LETTERS)
        host = opened.reliable.subscriptions["inspector"]
        assert SubscriptionOptions.decode(host.known.options).failure.poison is PoisonPolicy.BLOCK
        itself = SubscriptionOptions.from_json({"failure": {"poison": "dead_letter", "dead_letter_topic": LETTERS}})
        with pytest.raises(PolicyInvalid):
            await opened.enter("loop", SHARED, "earliest", itself)

    world = DoorWorld()
    world.run(work)
    world.end()
