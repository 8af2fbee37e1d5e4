"""The topics that the broker makes for dead letters: always made, marked, and without dead letters of their own."""

from __future__ import annotations

import pytest

from broker.service_world import ServiceWorld
from pydanube.base.errors import PolicyInvalid
from pydanube.broker.door.service import Service
from pydanube.broker.serving.open_topic import ANONYMOUS
from pydanube.broker.serving.redrive import publish_dead_letter
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.dispatch.policy import PoisonPolicy
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

LETTERS = "/default/orders-billing-dlq"
SHARED = SubscriptionKind.SHARED


def test_it_is_made_and_marked_though_topics_are_not_made_by_using_them() -> None:
    async def publish(service: Service) -> None:
        service.auto_create = False
        await publish_dead_letter(service, service._directory, LETTERS, build([b"poison"], publish_time=1))
        assert await service.bounds(ANONYMOUS, LETTERS) == (0, 1)

    async def look(service: Service) -> None:
        assert (await service.topic(ANONYMOUS, LETTERS)).dead_letters

    world = ServiceWorld()
    world.run(publish)
    world.run(look)
    world.end()


def test_a_topic_that_was_there_before_is_not_marked() -> None:
    async def work(service: Service) -> None:
        await service.create_topic(ANONYMOUS, LETTERS)
        await publish_dead_letter(service, service._directory, LETTERS, build([b"poison"], publish_time=1))
        assert not (await service.topic(ANONYMOUS, LETTERS)).dead_letters

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_its_subscriptions_have_no_dead_letters_unless_somebody_says_so() -> None:
    async def work(service: Service) -> None:
        await publish_dead_letter(service, service._directory, LETTERS, build([b"poison"], publish_time=1))
        await service.admin.subscribe(ANONYMOUS, LETTERS, "inspector", SHARED)
        opened = await service.open(ANONYMOUS, LETTERS)
        host = service.reliable(opened).subscriptions["inspector"]
        assert SubscriptionOptions.decode(host.known.options).failure.poison is PoisonPolicy.BLOCK
        itself = SubscriptionOptions.from_json({"failure": {"poison": "dead_letter", "dead_letter_topic": LETTERS}})
        with pytest.raises(PolicyInvalid):
            await service.enter(opened, "loop", SHARED, "earliest", itself)

    world = ServiceWorld()
    world.run(work)
    world.end()
