"""A client that hangs up while its change is made: whenever that is, the change is made wholly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from broker.service_world import ServiceWorld, Work
from pydanube.base.errors import DanubeError, TopicNotFound
from pydanube.broker.delivery import Delivery
from pydanube.broker.holds import ANONYMOUS
from pydanube.broker.service import Service
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.wire.batch import build

TOPIC = "/default/orders"
MOMENTS = 40  # at which the client may leave


class Watcher:
    """A consumer that notes whether it was told that its topic is gone."""

    told: DanubeError | None = None

    def deliver(self, delivery: Delivery) -> None: ...
    def reset(self, generation: int) -> None: ...
    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None: ...
    def hindered(self, error: DanubeError | None) -> None: ...
    def closed(self, error: DanubeError) -> None:
        self.told = error


async def delete(service: Service) -> None:
    await service.delete_topic(ANONYMOUS, TOPIC)


async def alter(service: Service) -> None:
    await service.alter_topic(ANONYMOUS, TOPIC, partitions=None, policies={"message_bytes_max": 777})


async def alter_namespace(service: Service) -> None:
    await service.namespace_policies(ANONYMOUS, "default", {"subscriptions_max": 7})


CHANGES = [delete, alter, alter_namespace]


async def check(service: Service, watchers: Sequence[Watcher]) -> None:
    """What is served is what the records say, and who uses it was told otherwise."""
    record = next(iter(service.topics(ANONYMOUS, "default")), None)
    served = {str(opened.name): opened for opened in service.opened()}
    assert [watcher.told is not None for watcher in watchers] == [record is None] * len(watchers)
    if record is None:
        assert served == {}
        with pytest.raises(TopicNotFound):
            await service.open(ANONYMOUS, TOPIC)
        assert await service.surroundings.catalog.streams() == []
        return
    wanted = record.policies.over(await service.namespace_policies(ANONYMOUS, "default"))
    assert {opened.policies for opened in served.values()} == {wanted}
    for opened in served.values():
        await service.reliable(opened).publish(build([b"more"], publish_time=1)).confirmed


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: str(change.__name__))
def test_a_change_whose_client_hangs_up_is_made_wholly_or_not_at_all(change: Work) -> None:
    made, seconds = attempt(change, 60)
    assert made
    found = [attempt(change, seconds * number / MOMENTS)[0] for number in range(1, MOMENTS)]
    assert found == sorted(found)  # from some moment on it is made


def attempt(change: Work, patience: float) -> tuple[bool, float]:
    """The client waits for so many seconds and leaves. Whether the change is made, and how long the client waited."""
    world = ServiceWorld()
    made, waited = False, 0.0

    async def life(service: Service) -> None:
        nonlocal made, waited
        await service.create_topic(ANONYMOUS, TOPIC, partitions=2)
        watchers = [Watcher() for _ in range(2)]
        for number, watcher in enumerate(watchers):
            await service.open_consumer(ANONYMOUS, f"{TOPIC}-part-{number}", "s", SubscriptionKind.SHARED, watcher)
        before, begun = facts(service), world.loop.time()
        request = asyncio.ensure_future(change(service))
        await asyncio.wait([request], timeout=patience)
        waited = world.loop.time() - begun
        request.cancel()
        await asyncio.wait([request])
        await asyncio.sleep(60)
        made = facts(service) != before
        await check(service, watchers)

    async def next_life(service: Service) -> None:
        await asyncio.sleep(60)
        assert bool(facts(service)) == (not made or change is not delete)

    world.run(life)
    world.run(next_life)
    world.end()
    return made, waited


def facts(service: Service) -> list[object]:
    namespace = service._directory.policies("default")
    return [(record.name, record.policies, namespace) for record in service.topics(ANONYMOUS, "default")]
