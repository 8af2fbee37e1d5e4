"""I10 for dead letters: the broker publishes them as itself, so whoever has them sent somewhere must be allowed to."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from api.door_cases import of_topic
from api.door_rig import CALLER, LETTERS, ORDERS, SECOND, Right, World, native_code, published
from api.frame_client import Client
from api.test_door import run
from pydanube.access.principals import Principal, PrincipalKind
from pydanube.access.rights import Action
from pydanube.base.errors import NotAllowed
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.serving import dead_letters, redrive
from pydanube.broker.serving.republish import Republisher
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.operations.options import FailureChanges, OptionChanges
from pydanube.operations.subscriptions import AlterSubscription, CreateSubscription, DescribeSubscription, Explain
from pydanube.operations.topics import CreateTopic, GetBounds, Redrive
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.commands import Deliver, Grant, Nack

PRIVATE = f"{ORDERS}-private-dlq"  # the default of the subscription `private`
PUBLISHING = (Action.TOPIC_PUBLISH, of_topic(PRIVATE))
STRANGER = Principal(PrincipalKind.ANONYMOUS, "a stranger")
SINK: Any = Mock()  # nothing is delivered to it
CHANGES = {"failure": {"max_redelivery_count": 0}}
OPTIONS = OptionChanges(failure=FailureChanges(max_redelivery_count=0))


def caller(world: World) -> Session:
    return world.door.session(CALLER, Origin("test"))


async def with_pending_options(session: Session) -> None:
    await session.subscriptions.set_options(ORDERS, "private", CHANGES)
    await session.open_consumer(ORDERS, "private", SubscriptionKind.SHARED, SINK, pending=True)


WAYS: dict[str, Any] = {
    "by a consumer": lambda session: session.open_consumer(ORDERS, "private", SubscriptionKind.SHARED, SINK),
    "in advance": lambda session: session.carry_out(CreateSubscription(ORDERS, "private", "shared")),
    "with options": lambda session: session.carry_out(CreateSubscription(ORDERS, "private", "shared", options=OPTIONS)),
    "with pending options": with_pending_options,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_subscription_whose_default_dead_letter_topic_is_of_somebody_else_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def story(world: World) -> None:
        await world.system.carry_out(CreateTopic(PRIVATE))
        with world.recorder.refusing(lambda *right: right == PUBLISHING), pytest.raises(NotAllowed):
            await WAYS[way](caller(world))
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert "private" not in opened.topic.subscriptions
        with world.recorder.recording() as asked:
            await WAYS[way](caller(world))
        assert PUBLISHING in asked
        assert not opened.reliable.subscriptions["private"].options.default_letters
        assert world.door.pending.find(ORDERS, "private") is None
        with world.recorder.refusing(lambda *right: right == PUBLISHING):  # it exists by now
            await caller(world).carry_out(CreateSubscription(ORDERS, "private", "shared"))
            await caller(world).open_consumer(ORDERS, "private", SubscriptionKind.SHARED, SINK)

    run(tmp_path, monkeypatch, story)


async def nacked(client: Client) -> None:
    client.send(Grant(1, 1, 0))
    while not isinstance(delivered := await client.receive(), Deliver):
        pass
    client.send(Nack(1, 0, delivered.generation, [(delivered.first, delivered.last)], 0, "bad"))


def test_letters_are_not_published_where_nobody_was_asked_about_and_the_subscription_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ordinary topic is made after the subscription. Then somebody who may publish there names it."""

    async def story(world: World) -> None:
        client, subscription = await Client.connect(world.server.address), (ORDERS, "private")
        await client.ask("open_consumer", channel=1, topic=ORDERS, subscription="private", type="shared", start=0)
        await client.ask("subscription.alter", topic=ORDERS, subscription="private", options=CHANGES)
        await world.system.carry_out(CreateTopic(PRIVATE))
        named = {**_SUBSCRIPTION, "options": {"failure": {"dead_letter_topic": PRIVATE}}}
        with world.recorder.refusing(lambda *right: right == PUBLISHING):
            await nacked(client)
            while (await world.system.carry_out(DescribeSubscription(*subscription))).blocked != "at offset 0":  # noqa: ASYNC110
                await asyncio.sleep(0)
            why = (await world.system.carry_out(Explain(*subscription, offset=0))).sentence
            assert f"cannot be set aside: {PRIVATE} was not created for dead letters" in why
            assert (await world.system.carry_out(GetBounds(PRIVATE))).end == 0
            assert await native_code(client, 50, "subscription.alter", named) == "not_allowed"
        assert await native_code(client, 51, "subscription.alter", named) is None
        while (await world.system.carry_out(GetBounds(PRIVATE))).end != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await world.system.carry_out(DescribeSubscription(*subscription))).blocked is None

    run(tmp_path, monkeypatch, story)


def test_letters_go_to_an_ordinary_topic_that_a_connected_consumer_may_publish_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that consumes from the dead-letter topic before the first letter creates it as an ordinary one.

    Publishing there without authentication is refused.
    """

    async def story(world: World) -> None:
        monkeypatch.setattr(dead_letters, "ANONYMOUS", STRANGER)
        by = world.recorder.by
        world.recorder.callers.add(STRANGER)
        client = await Client.connect(world.server.address)
        await client.ask("open_consumer", channel=1, **_SUBSCRIPTION, type="shared", start=0)
        await client.ask("subscription.alter", **_SUBSCRIPTION, options=CHANGES)
        await client.ask("open_consumer", channel=2, topic=PRIVATE, subscription="letters", type="shared")
        with world.recorder.refusing(lambda *_: by[-1] == (STRANGER, Action.TOPIC_PUBLISH)):
            await nacked(client)
            while (await world.system.carry_out(GetBounds(PRIVATE))).end != 1:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert (STRANGER, Action.TOPIC_PUBLISH) in by

    run(tmp_path, monkeypatch, story)


_SUBSCRIPTION = {"topic": ORDERS, "subscription": "private"}


def test_letters_go_to_an_ordinary_topic_that_the_caller_was_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        client = await Client.connect(world.server.address)
        await world.system.carry_out(CreateTopic(PRIVATE))
        await client.ask("open_consumer", channel=1, **_SUBSCRIPTION, type="shared", start="earliest", options=CHANGES)
        await nacked(client)
        while (await world.system.carry_out(GetBounds(PRIVATE))).end != 1:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    run(tmp_path, monkeypatch, story)


def test_options_set_before_the_subscription_exists_name_only_a_topic_that_the_caller_may_publish_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {"failure": {"poison": "dead_letter", "dead_letter_topic": PRIVATE}}

    async def story(world: World) -> None:
        before = world.state()
        with world.recorder.refusing(lambda *right: right == PUBLISHING), pytest.raises(NotAllowed):
            await caller(world).subscriptions.set_options(ORDERS, "private", changes)
        assert world.state() == before
        await caller(world).subscriptions.set_options(ORDERS, "private", changes)

    run(tmp_path, monkeypatch, story)


NAMING = {"failure": {"poison": "dead_letter", "dead_letter_topic": "/default/nowhere"}}
NAMED = OptionChanges(failure=FailureChanges(poison="dead_letter", dead_letter_topic="/default/nowhere"))


@pytest.mark.parametrize(
    "name_it",
    [
        lambda session: session.carry_out(AlterSubscription(ORDERS, "billing", NAMED)),
        lambda session: session.carry_out(CreateSubscription(ORDERS, "new", "shared", options=NAMED)),
        lambda session: session.subscriptions.set_options(ORDERS, "not yet", NAMING),
        lambda session: session.open_consumer(
            ORDERS, "new", SubscriptionKind.SHARED, SINK, options=SubscriptionOptions.from_json(NAMING)
        ),
    ],
    ids=["alter", "create", "in advance", "by a consumer"],
)
def test_whoever_names_a_dead_letter_topic_that_does_not_exist_must_be_allowed_to_create_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_it: Any
) -> None:
    """The broker creates it as itself when the first letter comes."""

    async def story(world: World) -> None:
        creating, before = (Action.TOPIC_CREATE, of_topic("/default/nowhere")), world.state()
        with world.recorder.refusing(lambda *right: right == creating), pytest.raises(NotAllowed):
            await name_it(caller(world))
        assert world.state() == before
        with world.recorder.recording() as asked:
            await name_it(caller(world))
        assert creating in asked

    run(tmp_path, monkeypatch, story)


DEAD = "/default/dead"


@pytest.mark.parametrize(
    ("ended", "after", "published_to"),
    [
        ((Action.TOPIC_REDRIVE, of_topic(DEAD)), 4, [2, 2]),  # before the next partition
        ((Action.TOPIC_REDRIVE, of_topic(DEAD)), 2, [1, 1]),  # before the next letters of a partition
        ((Action.TOPIC_PUBLISH, of_topic(SECOND)), 3, [2, 1]),  # before the next target
    ],
    ids=["partition", "letters", "target"],
)
def test_a_redrive_publishes_nothing_more_when_its_caller_has_lost_a_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: Right, after: int, published_to: list[int]
) -> None:
    batches = 0
    publish = Republisher.publish

    async def story(world: World) -> None:
        async def publishing(*arguments: Any) -> int:
            nonlocal batches
            count, batches = await publish(*arguments), batches + 1
            if batches == after:
                world.recorder.refuses = lambda *right: right == ended
                world.door.reconsider()
            return count

        await world.system.carry_out(CreateTopic(DEAD, partitions=2))
        attributes = [{ORIGIN: LETTERS}, {ORIGIN: SECOND}] * 2
        for partition in range(2):
            await published(world.system, f"{DEAD}-part-{partition}", *[b"x"] * 4, attributes=attributes)
        monkeypatch.setattr(redrive, "READ_AHEAD_BYTES", 2)  # letters at a time
        monkeypatch.setattr(Republisher, "publish", publishing)
        before = [(await world.system.carry_out(GetBounds(name))).end for name in (LETTERS, SECOND)]
        with world.recorder.refusing(lambda *right: False), pytest.raises(NotAllowed):
            await caller(world).carry_out(Redrive(DEAD))
        after_it = [(await world.system.carry_out(GetBounds(name))).end for name in (LETTERS, SECOND)]
        assert [end - start for start, end in zip(before, after_it, strict=True)] == published_to
        monkeypatch.setattr(Republisher, "publish", publish)
        left = 8 - sum(published_to)
        assert (await caller(world).carry_out(Redrive(DEAD))).redriven == left  # each once

    run(tmp_path, monkeypatch, story)


def test_letters_stay_when_their_caller_loses_the_right_to_publish_them_on_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(world: World) -> None:
        publish = Republisher.publish

        async def publishing(*arguments: Any) -> int:
            count = await publish(*arguments)
            world.recorder.refuses = lambda *right: right == (Action.TOPIC_PUBLISH, of_topic(SECOND))
            world.door.reconsider()
            return count

        await published(world.system, LETTERS, b"another", attributes=[{ORIGIN: ORDERS}])
        await published(world.system, LETTERS, b"another", attributes=[{ORIGIN: SECOND}])
        monkeypatch.setattr(redrive, "READ_AHEAD_BYTES", 10)  # the first two, and then the last
        monkeypatch.setattr(Republisher, "publish", publishing)
        done = await caller(world).carry_out(Redrive(LETTERS, limit=10))
        assert (done.redriven, done.refused) == (2, 1)

    run(tmp_path, monkeypatch, story)
