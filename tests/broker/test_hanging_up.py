"""A client that hangs up while its change is made: whenever that is, the change is made wholly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.service_world import ServiceWorld
from broker.sink_world import KEY, Job, rows_of
from broker.sink_world import TOPIC as TARGET
from pydanube.base.errors import DanubeError, SinkBlocked, SinkExpired, TopicNotFound
from pydanube.broker.door.service import Service
from pydanube.broker.serving.open_topic import ANONYMOUS
from pydanube.broker.serving.redrive import SUBSCRIPTION, Wanted
from pydanube.broker.standalone import Broker
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.broker.topic.topic import Topic
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

TOPIC, LETTERS = "/default/orders", "/default/letters"
PART = f"{TOPIC}-part-0"
MOMENTS = 40  # at which the client may leave


class Watcher:
    """A consumer that notes whether it was told that its topic is gone."""

    told: DanubeError | None = None

    def deliver(self, delivery: Delivery) -> None: ...
    def reset(self, generation: int) -> None: ...
    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None: ...
    def unreadable(self, error: DanubeError | None) -> None: ...
    def closed(self, error: DanubeError) -> None:
        self.told = error


async def topic_of(service: Service, name: str) -> Topic:
    return service.reliable(await service.open(ANONYMOUS, name))


class Change:
    """What a client asks for: by default of a topic with two partitions, which have a consumer each."""

    async def prepare(self, service: Service) -> None:
        await service.create_topic(ANONYMOUS, TOPIC, partitions=2)
        self.watchers = [Watcher() for _ in range(2)]
        for number, watcher in enumerate(self.watchers):
            await service.open_consumer(ANONYMOUS, f"{TOPIC}-part-{number}", "s", SubscriptionKind.SHARED, watcher)

    async def make(self, service: Service) -> None:
        raise NotImplementedError

    def facts(self, service: Service) -> object:
        """Which are others once the change is made."""
        namespace = service._directory.policies("default")
        return [(record.name, record.policies, namespace) for record in service.topics(ANONYMOUS, "default")]

    async def check(self, service: Service, *, made: bool) -> None:
        """What is served is what the records say."""
        policies = await service.namespace_policies(ANONYMOUS, "default")
        [record] = service.topics(ANONYMOUS, "default")
        for opened in service.opened():
            assert opened.policies == record.policies.over(policies)
            await service.reliable(opened).publish(build([b"more"], publish_time=1)).confirmed
        assert [watcher.told for watcher in self.watchers] == [None, None]

    async def check_after_restart(self, service: Service, *, made: bool) -> None:
        """That everything is there."""
        assert [str(record.name) for record in service.topics(ANONYMOUS, "default")] == [TOPIC]


class Delete(Change):
    async def make(self, service: Service) -> None:
        await service.delete_topic(ANONYMOUS, TOPIC)

    async def check(self, service: Service, *, made: bool) -> None:
        if not made:
            return await super().check(service, made=made)
        assert service.opened() == []
        assert all(watcher.told is not None for watcher in self.watchers)
        with pytest.raises(TopicNotFound):
            await service.open(ANONYMOUS, TOPIC)
        assert await service.surroundings.catalog.streams() == []

    async def check_after_restart(self, service: Service, *, made: bool) -> None:
        assert len(service.topics(ANONYMOUS, "default")) == (0 if made else 1)


class Alter(Change):
    async def make(self, service: Service) -> None:
        await service.alter_topic(ANONYMOUS, TOPIC, partitions=None, policies={"message_bytes_max": 777})


class AlterNamespace(Change):
    async def make(self, service: Service) -> None:
        await service.namespace_policies(ANONYMOUS, "default", {"subscriptions_max": 7})


class TruncatePartition(Change):
    async def prepare(self, service: Service) -> None:
        await super().prepare(service)
        await (await topic_of(service, PART)).publish(build([b"old"] * 3, publish_time=1)).confirmed

    async def make(self, service: Service) -> None:
        await service.admin.truncate(ANONYMOUS, PART)

    def facts(self, service: Service) -> object:
        return next(each.topic.ledger.first for each in service.opened() if str(each.name) == PART)

    async def check(self, service: Service, *, made: bool) -> None:
        topic = await topic_of(service, PART)
        assert topic.ledger.stream.record.ledgers[0].first == (3 if made else 0)
        await super().check(service, made=made)


class AlterPartition(Change):
    async def make(self, service: Service) -> None:
        await service.admin.alter_subscription(ANONYMOUS, PART, "s", {"dispatch": {"unacked_max": 7}})

    def facts(self, service: Service) -> object:
        host: Any = service.subscription(ANONYMOUS, PART, "s")
        return host.known.options

    async def check(self, service: Service, *, made: bool) -> None:
        host: Any = service.subscription(ANONYMOUS, PART, "s")
        assert (host.engine.settings.unacked_max == 7) == made
        await super().check(service, made=made)


class Redrive(Change):
    """Letters that were published again are done: who asks again does not send them twice."""

    async def prepare(self, service: Service) -> None:
        await super().prepare(service)
        await service.create_topic(ANONYMOUS, LETTERS)
        letters = build([b"a", b"b"], publish_time=1, attributes=[{ORIGIN: PART}] * 2)
        await (await topic_of(service, LETTERS)).publish(letters).confirmed

    async def make(self, service: Service) -> None:
        await service.admin.redrive(ANONYMOUS, LETTERS, Wanted(limit=2))

    def facts(self, service: Service) -> object:
        return next(each.topic.ledger.confirmed_end for each in service.opened() if str(each.name) == PART)

    async def check(self, service: Service, *, made: bool) -> None:
        host: Any = service.subscription(ANONYMOUS, LETTERS, SUBSCRIPTION)
        assert (host is not None and host.known.cursor.floor == 2) == made

    async def check_after_restart(self, service: Service, *, made: bool) -> None:
        await service.admin.redrive(ANONYMOUS, LETTERS, Wanted(limit=1))
        await service.admin.redrive(ANONYMOUS, LETTERS, Wanted(limit=1))
        assert (await topic_of(service, PART)).ledger.confirmed_end == 2


class Abandon(Change):
    """A decided write that cannot go on is given up: whoever it kept from publishing may."""

    async def prepare(self, service: Service) -> None:
        sinks, real, asked = service.sinks, service.sinks._decision, 0

        async def lost(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise SinkExpired("what was staged is lost")
            return await real(*arguments)

        sinks._decision = lost  # type: ignore[method-assign]
        with suppress(SinkBlocked):
            await Job(cast(Broker, SimpleNamespace(service=service))).write(0, {TARGET: rows_of("a", 4)})

    async def make(self, service: Service) -> None:
        await service.sinks.forget(ANONYMOUS, KEY, abandon=True)

    def facts(self, service: Service) -> object:
        return service.sinks._records.listed()

    async def check(self, service: Service, *, made: bool) -> None:
        topic = await topic_of(service, TARGET)
        assert topic.reserved is (topic.blocked is not None) is (topic.ledger.hidden_from is not None) is not made
        if made:
            await topic.publish(build([b"more"], publish_time=1)).confirmed

    async def check_after_restart(self, service: Service, *, made: bool) -> None:
        assert service.sinks.listed() == [] or not made


CHANGES = [Delete, Alter, AlterNamespace, TruncatePartition, AlterPartition, Redrive, Abandon]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_client_hangs_up_is_made_wholly_or_not_at_all(change: type[Change]) -> None:
    made, seconds = attempt(change(), 60)
    assert made
    found = [attempt(change(), seconds * number / MOMENTS)[0] for number in range(1, MOMENTS)]
    assert found == sorted(found)  # from some moment on it is made


def attempt(change: Change, patience: float) -> tuple[bool, float]:
    """The client waits for so many seconds and leaves. Whether the change is made, and how long the client waited."""
    world = ServiceWorld()
    made, waited = False, 0.0

    async def life(service: Service) -> None:
        nonlocal made, waited
        await change.prepare(service)
        before, begun = change.facts(service), world.loop.time()
        request = asyncio.ensure_future(change.make(service))
        await asyncio.wait([request], timeout=patience)
        waited = world.loop.time() - begun
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        await asyncio.sleep(60)
        made = change.facts(service) != before
        await change.check(service, made=made)
        await check_streams(service)

    async def next_life(service: Service) -> None:
        await asyncio.sleep(60)
        await change.check_after_restart(service, made=made)

    world.run(life)
    world.run(next_life)
    world.end()
    return made, waited


async def check_streams(service: Service) -> None:
    """Whoever serves a stream knows its record as the metadata has it: else its next decision is refused."""
    for opened in service.opened():
        topic = service.reliable(opened)
        for stream in (topic.ledger.stream, topic.state_stream):
            assert (stream.record, stream._version) == await service.surroundings.catalog.load(stream.name)
