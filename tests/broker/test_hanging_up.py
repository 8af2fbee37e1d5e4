"""A client that hangs up while its change is made: whenever that is, the change is made wholly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from broker.door_world import DoorWorld, caller, host_of, served
from broker.sink_world import KEY, Job, rows_of
from broker.sink_world import TOPIC as TARGET
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import DanubeError, SinkBlocked, SinkExpired, TopicNotFound
from pydanube.broker.door.door import Door
from pydanube.broker.serving.redrive import SUBSCRIPTION
from pydanube.broker.standalone import Broker
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.broker.topic.topic import Topic
from pydanube.operations import topics as operations
from pydanube.operations.namespaces import AlterNamespace
from pydanube.operations.options import DispatchChanges, OptionChanges
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.subscriptions import AlterSubscription
from pydanube.operations.topics import AlterTopic, CreateTopic, DeleteTopic, TruncateTopic
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


async def topic_of(door: Door, name: str) -> Topic:
    return (await served(door, name)).reliable


class Change:
    """What a client asks for: by default of a topic with two partitions, which have a consumer each."""

    async def prepare(self, door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, partitions=2))
        self.watchers = [Watcher() for _ in range(2)]
        for number, watcher in enumerate(self.watchers):
            await caller(door).open_consumer(f"{TOPIC}-part-{number}", "s", SubscriptionKind.SHARED, watcher)

    async def make(self, door: Door) -> None:
        raise NotImplementedError

    def facts(self, door: Door) -> object:
        """Which are others once the change is made."""
        namespace = door.directory.policies("default")
        return [(record.name, record.policies, namespace) for record in door.directory.topics("default")]

    async def check(self, door: Door, *, made: bool) -> None:
        """What is served is what the records say."""
        policies = door.directory.policies("default")
        [record] = door.directory.topics("default")
        for opened in door.topics.opened():
            assert opened.policies == record.policies.over(policies)
            await opened.reliable.publish(build([b"more"], publish_time=1)).confirmed
        assert [watcher.told for watcher in self.watchers] == [None, None]

    async def check_after_restart(self, door: Door, *, made: bool) -> None:
        """That everything is there."""
        assert [str(record.name) for record in door.directory.topics("default")] == [TOPIC]


class Delete(Change):
    async def make(self, door: Door) -> None:
        await caller(door).carry_out(DeleteTopic(TOPIC))

    async def check(self, door: Door, *, made: bool) -> None:
        if not made:
            return await super().check(door, made=made)
        assert door.topics.opened() == []
        assert all(watcher.told is not None for watcher in self.watchers)
        with pytest.raises(TopicNotFound):
            await served(door, TOPIC)
        assert await door.around.catalog.streams() == []

    async def check_after_restart(self, door: Door, *, made: bool) -> None:
        assert len(door.directory.topics("default")) == (0 if made else 1)


class Alter(Change):
    async def make(self, door: Door) -> None:
        await caller(door).carry_out(AlterTopic(TOPIC, partitions=None, policies=PolicyChanges(message_bytes_max=777)))


class AlterPolicies(Change):
    async def make(self, door: Door) -> None:
        await caller(door).carry_out(AlterNamespace("default", PolicyChanges(subscriptions_max=7)))


class TruncatePartition(Change):
    async def prepare(self, door: Door) -> None:
        await super().prepare(door)
        await (await topic_of(door, PART)).publish(build([b"old"] * 3, publish_time=1)).confirmed

    async def make(self, door: Door) -> None:
        await caller(door).carry_out(TruncateTopic(PART))

    def facts(self, door: Door) -> object:
        return next(each.topic.ledger.first for each in door.topics.opened() if str(each.name) == PART)

    async def check(self, door: Door, *, made: bool) -> None:
        topic = await topic_of(door, PART)
        assert topic.ledger.stream.record.ledgers[0].first == (3 if made else 0)
        await super().check(door, made=made)


class AlterPartition(Change):
    async def make(self, door: Door) -> None:
        await caller(door).carry_out(
            AlterSubscription(PART, "s", OptionChanges(dispatch=DispatchChanges(unacked_max=7)))
        )

    def facts(self, door: Door) -> object:
        host: Any = host_of(door, PART, "s")
        return host.known.options

    async def check(self, door: Door, *, made: bool) -> None:
        host: Any = host_of(door, PART, "s")
        assert (host.engine.settings.unacked_max == 7) == made
        await super().check(door, made=made)


class Redrive(Change):
    """Letters that were published again are done: who asks again does not send them twice."""

    async def prepare(self, door: Door) -> None:
        await super().prepare(door)
        await caller(door).carry_out(CreateTopic(LETTERS))
        letters = build([b"a", b"b"], publish_time=1, attributes=[{ORIGIN: PART}] * 2)
        await (await topic_of(door, LETTERS)).publish(letters).confirmed

    async def make(self, door: Door) -> None:
        await caller(door).carry_out(operations.Redrive(LETTERS, limit=2))

    def facts(self, door: Door) -> object:
        return next(each.topic.ledger.confirmed_end for each in door.topics.opened() if str(each.name) == PART)

    async def check(self, door: Door, *, made: bool) -> None:
        host: Any = host_of(door, LETTERS, SUBSCRIPTION)
        assert (host is not None and host.known.cursor.floor == 2) == made

    async def check_after_restart(self, door: Door, *, made: bool) -> None:
        await caller(door).carry_out(operations.Redrive(LETTERS, limit=1))
        await caller(door).carry_out(operations.Redrive(LETTERS, limit=1))
        assert (await topic_of(door, PART)).ledger.confirmed_end == 2


class Abandon(Change):
    """A decided write that cannot go on is given up: whoever it kept from publishing may."""

    async def prepare(self, door: Door) -> None:
        async def lost(*arguments: Any) -> Any:
            raise SinkExpired("what was staged is lost")

        door.sinks.own._append = lost  # type: ignore[method-assign]
        with suppress(SinkBlocked):
            await Job(cast(Broker, SimpleNamespace(door=door))).write(0, {TARGET: rows_of("a", 4)})

    async def make(self, door: Door) -> None:
        await door.sinks.forget(ANONYMOUS, KEY, abandon=True)

    def facts(self, door: Door) -> object:
        return door.sinks._records.listed()

    async def check(self, door: Door, *, made: bool) -> None:
        topic = await topic_of(door, TARGET)
        blocked, hidden = topic.filler.blocked is not None, topic.ledger.hidden_from is not None
        assert (topic.filler.open is not None) is blocked is hidden is not made
        if made:
            await topic.publish(build([b"more"], publish_time=1)).confirmed

    async def check_after_restart(self, door: Door, *, made: bool) -> None:
        assert door.sinks.listed() == [] or not made
        if made:
            assert (await topic_of(door, TARGET)).ledger.hidden_from is None


CHANGES = [Delete, Alter, AlterPolicies, TruncatePartition, AlterPartition, Redrive, Abandon]


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_whose_client_hangs_up_is_made_wholly_or_not_at_all(change: type[Change]) -> None:
    made, seconds = attempt(change(), 60)
    assert made
    found = [attempt(change(), seconds * number / MOMENTS)[0] for number in range(1, MOMENTS)]
    assert found == sorted(found)  # from some moment on it is made


def attempt(change: Change, patience: float) -> tuple[bool, float]:
    """The client waits for so many seconds and leaves. Whether the change is made, and how long the client waited."""
    world = DoorWorld()
    made, waited = False, 0.0

    async def life(door: Door) -> None:
        nonlocal made, waited
        await change.prepare(door)
        before, begun = change.facts(door), world.loop.time()
        request = asyncio.ensure_future(change.make(door))
        await asyncio.wait([request], timeout=patience)
        waited = world.loop.time() - begun
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        await asyncio.sleep(60)
        made = change.facts(door) != before
        await change.check(door, made=made)
        await check_streams(door)

    async def next_life(door: Door) -> None:
        await asyncio.sleep(60)
        await change.check_after_restart(door, made=made)

    world.run(life)
    world.run(next_life)
    world.end()
    return made, waited


async def check_streams(door: Door) -> None:
    """Whoever serves a stream knows its record as the metadata has it: else its next decision is refused."""
    for opened in door.topics.opened():
        topic = opened.reliable
        for stream in (topic.ledger.stream, topic.state_stream):
            stored, version = await door.around.catalog.load(stream.name)
            assert (stream.record, stream._ownership.version) == (stored.owned_by(stream.epoch), version)
