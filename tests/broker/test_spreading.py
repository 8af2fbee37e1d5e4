"""Changes of all partitions of a topic: wherever the power goes, after a restart all of them have it, or none."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.door_world import DoorWorld, Work, caller, served
from pydanube.base.errors import DanubeError, MetadataFull, NodeBusy, TopicClosed, TopicNotFound
from pydanube.base.limits import TOPICS_REOPENING, TOPICS_RESUMING
from pydanube.base.names import parse_topic
from pydanube.broker.door.door import Door
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.topic import Topic
from pydanube.metadata import state as metadata
from pydanube.metadata.tables import CHANGES, PartitionsChange
from pydanube.operations.namespaces import CreateNamespace, DeleteNamespace
from pydanube.operations.options import OptionChanges
from pydanube.operations.policies import PolicyChanges
from pydanube.operations.subscriptions import (
    AlterSubscription,
    CreateSubscription,
    DeleteSubscription,
    SeekSubscription,
)
from pydanube.operations.topics import AlterTopic, CreateTopic, DeleteTopic, TruncateTopic
from pydanube.storage.metadata.table import Table
from pydanube.storage.stream.tenure import Tenure
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

TOPIC = "/default/orders"
SHARED = SubscriptionKind.SHARED
State = tuple[object, ...]


async def prepared(door: Door) -> None:
    """Three partitions, of which each has two messages and the subscription `billing` before them."""
    await caller(door).carry_out(CreateTopic(TOPIC, partitions=3))
    await caller(door).carry_out(CreateSubscription(TOPIC, "billing", "shared"))
    for topic in await partitions(door):
        await topic.publish(build([b"1", b"2"], publish_time=1)).confirmed


async def partitions(door: Door) -> list[Topic]:
    record = await caller(door).topics.lookup(TOPIC)
    return [(await served(door, str(place))).reliable for place in record.partition_names()]


async def states(door: Door) -> list[State]:
    """Of each partition: where it begins, and what its subscriptions are."""
    found: list[State] = []
    for topic in await partitions(door):
        subscriptions = [
            (host.known.name, host.known.kind, host.known.options, host.known.cursor.floor)
            for _, host in sorted(topic.subscriptions.items())
        ]
        found.append((topic.ledger.first, *subscriptions))
    return found


async def reopened(door: Door) -> None:
    door.reopen()
    assert door._reopening is not None
    await door._reopening


async def grow(door: Door) -> None:
    await caller(door).carry_out(AlterTopic(TOPIC, partitions=5, policies=PolicyChanges()))


async def subscribe(door: Door) -> None:
    request = CreateSubscription(TOPIC, "audit", "shared", start="earliest", options=OptionChanges(idle_seconds=5))
    await caller(door).carry_out(request)


async def unsubscribe(door: Door) -> None:
    await caller(door).carry_out(DeleteSubscription(TOPIC, "billing"))


async def alter(door: Door) -> None:
    await caller(door).carry_out(AlterSubscription(TOPIC, "billing", OptionChanges(idle_seconds=7)))


async def seek(door: Door) -> None:
    await caller(door).carry_out(SeekSubscription(TOPIC, "billing", "latest"))


async def truncate(door: Door) -> None:
    await caller(door).carry_out(TruncateTopic(TOPIC))


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [grow, subscribe, unsubscribe, alter, seek, truncate], ids=lambda work: work.__name__
)
def test_wherever_the_power_goes_all_partitions_are_alike(change: Work) -> None:
    seen: set[str] = set()
    for cut in range(400):
        world = DoorWorld(cut)
        over = world.run_until_cut(prepared, change, cut)

        async def look(door: Door) -> None:
            found = await states(door)
            old, new = found[:3], found[3:]
            assert len(set(old)) == 1
            assert len(new) in (0, 2)
            for state in new:  # a partition that is new has what the others have, from its first message on
                assert state == (0, ("billing", SHARED, old[0][1][2], 0))  # type: ignore[index]
            seen.add(str(found))
            await reopened(door)
            assert door.directory.store.scan("changes/") == []

        world.run(look)
        world.end()
        if over:
            break
    assert over
    assert len(seen) == 2  # as it was, and as it is to be


@pytest.mark.parametrize("change", [subscribe, unsubscribe, alter], ids=lambda work: work.__name__)
def test_a_change_that_waits_behind_new_partitions_is_made_in_them_too(change: Work) -> None:
    async def main(door: Door) -> None:
        await prepared(door)
        await asyncio.gather(grow(door), change(door))
        found = await states(door)
        assert len(found) == 5
        assert len(set(found)) == 1

    world = DoorWorld()
    world.run(main)
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize("change", [subscribe, unsubscribe, alter, seek, truncate], ids=lambda work: work.__name__)
def test_wherever_the_power_goes_a_change_that_waits_behind_new_partitions_is_whole(change: Work) -> None:
    async def both(door: Door) -> None:
        await asyncio.gather(grow(door), change(door))

    for cut in range(800):
        world = DoorWorld(cut)
        over = world.run_until_cut(prepared, both, cut)

        async def look(door: Door) -> None:
            found = await states(door)
            assert len(set(found[:3])) == 1
            assert len(found) in (3, 5)
            assert len({str([each[:3] for each in state[1:]]) for state in found}) == 1  # type: ignore[index]
            await reopened(door)
            assert door.directory.store.scan("changes/") == []

        world.run(look)
        world.end()
        if over:
            break
    assert over


@pytest.mark.slow
def test_wherever_the_power_goes_a_deleted_topic_is_gone_with_its_options_or_whole() -> None:
    async def options(door: Door) -> None:
        await prepared(door)
        await door.pending.change(TOPIC, "audit", {"idle_seconds": 5})

    async def delete(door: Door) -> None:
        await caller(door).carry_out(DeleteTopic(TOPIC))

    seen: set[bool] = set()
    for cut in range(400):
        world = DoorWorld(cut)
        over = world.run_until_cut(options, delete, cut)

        async def look(door: Door) -> None:
            there = door.directory.find(parse_topic(TOPIC)) is not None
            assert (door.pending.find(TOPIC, "audit") is not None) is there
            if there:
                assert len(set(await states(door))) == 1
            else:
                while await door.around.catalog.streams():
                    await door.leftovers.sweep()
                    await asyncio.sleep(0.1)
            seen.add(there)

        world.run(look)
        world.end()
        if over:
            break
    assert over
    assert seen == {True, False}


@pytest.mark.parametrize("limit", ["METADATA_KEYS_MAX", "METADATA_BYTES_MAX"])
@pytest.mark.parametrize("change", [unsubscribe, seek, truncate], ids=lambda work: work.__name__)
def test_a_change_that_lets_messages_go_is_made_although_the_metadata_is_full(
    change: Work, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def change_at_the_limit(door: Door) -> None:
        before, there = await states(door), door.directory.store._state  # type: ignore[attr-defined]
        monkeypatch.setattr(metadata, limit, len(there) if limit == "METADATA_KEYS_MAX" else there.bytes)
        with pytest.raises(MetadataFull):
            await subscribe(door)
        await change(door)
        found = await states(door)
        assert found != before
        assert len(set(found)) == 1

    world = DoorWorld()
    world.run(prepared, change_at_the_limit)
    world.end()


def test_who_opens_a_new_partition_waits_until_it_has_the_subscriptions() -> None:
    async def main(door: Door) -> None:
        await prepared(door)
        growing = asyncio.ensure_future(grow(door))
        while door.directory.get(parse_topic(TOPIC)).partitions == 3:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        assert not growing.done()
        opened = await served(door, f"{TOPIC}-part-4")
        assert list(opened.topic.subscriptions) == ["billing"]
        await growing

    world = DoorWorld()
    world.run(main)
    world.end()


def test_after_a_crash_in_a_change_everyone_who_opens_a_partition_gets_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, streams = Topic.open, []

    async def counted(tenure: Tenure, *arguments: object) -> Topic:
        streams.append(tenure.topic)
        return await opening(tenure, *arguments)  # type: ignore[arg-type]

    async def first(door: Door) -> None:
        await prepared(door)
        record = await caller(door).topics.lookup(TOPIC)
        fields = {"subscription": "audit", "kind": SHARED.name, "start": "latest", "options": None}
        changes = Table(door.directory.store, CHANGES)
        await changes.write(str(record.id), PartitionsChange("subscribe", fields))

    async def second(door: Door) -> None:
        async def come(milliseconds: float) -> OpenTopic:
            await asyncio.sleep(milliseconds / 1000)
            return await served(door, f"{TOPIC}-part-0")

        monkeypatch.setattr(Topic, "open", counted)
        door.reopen()
        got = await asyncio.gather(*(come(number / 20) for number in range(2000)))
        assert len(streams) == len(set(streams)) == 3
        assert {id(each) for each in got} == {id(door.topics._opened[got[0].name])}
        assert sorted(got[0].topic.subscriptions) == ["audit", "billing"]

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_topic_that_is_no_longer_the_one_of_that_name_is_never_handed_out() -> None:
    async def main(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC))
        old = await served(door, TOPIC)
        told: list[DanubeError] = []
        await caller(door).open_producer(TOPIC, told.append)
        await door.directory.delete_topic(parse_topic(TOPIC))  # behind the back of who serves it
        with pytest.raises(TopicNotFound):
            await served(door, TOPIC)
        record = await caller(door).carry_out(CreateTopic(TOPIC))
        new = await served(door, TOPIC)
        assert new is not old
        assert new.record.id == record.id
        assert [type(each) for each in told] == [TopicClosed]

    world = DoorWorld()
    world.run(main)
    world.end()


def test_a_new_partition_that_could_not_be_prepared_is_when_it_is_first_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = True
    opening = Topic.open

    async def main(door: Door) -> None:
        nonlocal failing
        await prepared(door)
        with pytest.raises(NodeBusy):
            await grow(door)
        assert door.directory.get(parse_topic(TOPIC)).partitions == 5
        with pytest.raises(NodeBusy):
            await served(door, f"{TOPIC}-part-3")
        failing = False
        opened = await served(door, f"{TOPIC}-part-3")
        assert list(opened.topic.subscriptions) == ["billing"]

    async def busy(tenure: Tenure, *arguments: object) -> Topic:
        if failing and tenure.topic.endswith(".4"):
            raise NodeBusy("later")
        return await opening(tenure, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Topic, "open", busy)
    world = DoorWorld()
    world.run(main)
    world.end()


def test_open_partitions_know_of_new_ones_that_could_not_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribing = Topic.subscribe

    async def busy_once(*_: object, **__: object) -> None:
        monkeypatch.setattr(Topic, "subscribe", subscribing)
        raise NodeBusy("later")

    async def main(door: Door) -> None:
        await prepared(door)
        monkeypatch.setattr(Topic, "subscribe", busy_once)
        with pytest.raises(NodeBusy):
            await caller(door).carry_out(AlterTopic(TOPIC, partitions=5, policies=PolicyChanges(message_bytes_max=10)))
        known = {(each.record.partitions, each.policies.message_bytes_max) for each in door.topics.opened()}
        assert known == {(5, 10)}
        await subscribe(door)
        assert [sorted(topic.subscriptions) for topic in await partitions(door)] == [["audit", "billing"]] * 5

    world = DoorWorld()
    world.run(main)
    world.end()


def test_what_waits_for_its_turn_is_not_done_to_another_topic_of_the_same_name() -> None:
    async def main(door: Door) -> None:
        await prepared(door)
        before = await caller(door).topics.lookup(TOPIC)
        await caller(door).carry_out(DeleteTopic(TOPIC))
        await prepared(door)
        with pytest.raises(TopicNotFound):
            await door.spreading.change(before, "unsubscribe", {"subscription": "billing"}, ask=lambda: None)
        assert [sorted(topic.subscriptions) for topic in await partitions(door)] == [["billing"]] * 3

    world = DoorWorld()
    world.run(main)
    world.end()


@pytest.mark.parametrize("entry", [b"{", b"[]", b'["unknown",{}]', b'["subscribe",{}]', b'["grow",7]'])
def test_a_change_that_is_not_valid_keeps_no_topic_closed(entry: bytes) -> None:
    async def first(door: Door) -> None:
        await prepared(door)
        await caller(door).carry_out(CreateTopic("/default/other"))
        record = await caller(door).topics.lookup(TOPIC)
        await door.directory.store.transact((), [(f"changes/{record.id}", entry)])

    async def second(door: Door) -> None:
        await reopened(door)
        assert len(door.topics.opened()) == 4
        assert door.directory.store.scan("changes/") == []
        assert [sorted(topic.subscriptions) for topic in await partitions(door)] == [["billing"]] * 3

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


@pytest.mark.parametrize("broken", [False, True], ids=["slow", "broken"])
def test_topics_whose_changes_cannot_be_finished_hold_up_no_others(
    broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = Topic.open
    names = [f"/default/t{number}" for number in range(TOPICS_RESUMING)]  # before the others
    slow: list[str] = []

    async def first(door: Door) -> None:
        await prepared(door)
        for name in names:
            record = await caller(door).carry_out(CreateTopic(name, partitions=TOPICS_REOPENING))
            slow.append(f"t{record.id}.")
            await door.directory.store.transact((), [(f"changes/{record.id}", b'["grow",{"from":1}]')])

    async def second(door: Door) -> None:
        released = asyncio.Event()

        async def hanging(tenure: Tenure, *arguments: object) -> Topic:
            if tenure.topic.startswith(tuple(slow)):
                if broken:
                    raise RuntimeError("broken")
                await released.wait()
            return await opening(tenure, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Topic, "open", hanging)
        door.reopen()
        assert door._reopening is not None
        while len(door.topics.opened()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert door.directory.store.count("changes/") == len(names)
        if broken:
            return await door._reopening
        released.set()
        await door._reopening
        assert len(door.topics.opened()) == 3 + len(names) * TOPICS_REOPENING

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_change_that_a_stop_of_the_broker_interrupts_is_finished_after_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscribing = Topic.subscribe

    async def first(door: Door) -> None:
        await prepared(door)
        hung = asyncio.Event()

        async def hanging(self: Topic, *arguments: object, **options: object) -> object:
            if self.name.endswith("-part-2"):
                hung.set()
                await asyncio.Event().wait()
            return await subscribing(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Topic, "subscribe", hanging)
        asked = asyncio.ensure_future(subscribe(door))
        await hung.wait()
        await door.close()
        await asyncio.wait([asked])
        monkeypatch.setattr(Topic, "subscribe", subscribing)

    async def second(door: Door) -> None:
        await reopened(door)
        assert [sorted(topic.subscriptions) for topic in await partitions(door)] == [["audit", "billing"]] * 3

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_what_is_left_of_a_change_whose_topic_was_deleted_goes_at_the_next_start() -> None:
    async def first(door: Door) -> None:
        await prepared(door)
        await door.directory.store.transact((), [("changes/4711", b'["grow",{"from":1}]')])

    async def second(door: Door) -> None:
        await reopened(door)
        assert door.directory.store.scan("changes/") == []

    world = DoorWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_change_goes_on_when_its_caller_gives_up_and_the_next_waits_for_it() -> None:
    async def main(door: Door) -> None:
        await prepared(door)
        asked = asyncio.ensure_future(subscribe(door))
        while not door.directory.store.scan("changes/"):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        asked.cancel()
        await caller(door).carry_out(DeleteSubscription(TOPIC, "billing"))
        assert [sorted(topic.subscriptions) for topic in await partitions(door)] == [["audit"]] * 3

    world = DoorWorld()
    world.run(main)
    world.end()


def test_a_topic_without_partitions_writes_nothing_more_than_its_own_record() -> None:
    async def main(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC))
        await served(door, TOPIC)
        before = door.directory.store.revision
        await caller(door).carry_out(CreateSubscription(TOPIC, "billing", "shared"))
        await caller(door).carry_out(SeekSubscription(TOPIC, "billing", "earliest"))
        assert door.directory.store.revision - before <= LEDGER_REVISIONS
        with pytest.raises(TopicNotFound):
            await served(door, "/default/other")

    world = DoorWorld()
    world.run(main)
    world.end()


LEDGER_REVISIONS = 2  # the state's stream and its first ledger


@pytest.mark.parametrize("partitioned", [0, 3])
def test_a_shared_subscription_made_with_other_options_has_dead_letters_as_any(partitioned: int) -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, partitions=partitioned))
        await subscribe(door)
        for topic in await partitions(door):
            options = SubscriptionOptions.decode(topic.subscriptions["audit"].known.options)
            assert options.failure.dead_letter_topic == f"{TOPIC}-audit-dlq"
            assert not options.timeout_chosen

    world = DoorWorld()
    world.run(work)
    world.end()


def test_a_new_partition_has_the_dead_letters_of_the_others_though_options_were_set_before() -> None:
    async def work(door: Door) -> None:
        await caller(door).carry_out(CreateTopic(TOPIC, partitions=1))
        await door.pending.change(TOPIC, "audit", {"failure": {"max_redelivery_count": 2}})
        sink: Any = None  # nothing is delivered to it
        consumer = await caller(door).open_consumer(f"{TOPIC}-part-0", "audit", SHARED, sink, pending=True)
        consumer.close(crashed=False)
        await caller(door).carry_out(AlterTopic(TOPIC, partitions=2, policies=PolicyChanges()))
        first, second = [topic.subscriptions["audit"].known.options for topic in await partitions(door)]
        assert first == second
        failure = SubscriptionOptions.decode(second).failure
        assert (failure.max_redelivery_count, failure.dead_letter_topic) == (2, f"{TOPIC}-audit-dlq")

    world = DoorWorld()
    world.run(work)
    world.end()


def test_partitions_of_a_topic_that_keeps_nothing_are_added_in_turn_too() -> None:
    async def main(door: Door) -> None:
        record = await caller(door).carry_out(CreateTopic(TOPIC, reliable=False, partitions=3))
        async with door.spreading._turns.of(record.id):
            growing = asyncio.ensure_future(grow(door))
            await asyncio.sleep(10)
            assert not growing.done()
        await growing
        assert (await caller(door).topics.lookup(TOPIC)).partitions == 5

    world = DoorWorld()
    world.run(main)
    world.end()


def test_a_topic_never_outlives_its_namespace() -> None:
    outcomes = set()
    for steps in range(12):

        async def main(door: Door, steps: int = steps) -> None:
            await caller(door).carry_out(CreateTopic("/default/first"))  # numbers of topics are set aside
            await caller(door).carry_out(CreateNamespace("shop"))
            deleting = asyncio.ensure_future(caller(door).carry_out(DeleteNamespace("shop")))
            for _ in range(steps):
                await asyncio.sleep(0)
            creating = asyncio.ensure_future(caller(door).carry_out(CreateTopic("/shop/orders")))
            ended = await asyncio.gather(deleting, creating, return_exceptions=True)
            outcomes.add(tuple(type(each).__name__ for each in ended))

        async def creation_first(door: Door, steps: int = steps) -> None:
            await caller(door).carry_out(CreateTopic("/default/second"))
            await caller(door).carry_out(CreateNamespace("shop"))
            creating = asyncio.ensure_future(caller(door).carry_out(CreateTopic("/shop/orders")))
            for _ in range(steps):
                await asyncio.sleep(0)
            deleting = asyncio.ensure_future(caller(door).carry_out(DeleteNamespace("shop")))
            ended = await asyncio.gather(deleting, creating, return_exceptions=True)
            outcomes.add(tuple(type(each).__name__ for each in ended))

        for work in (main, creation_first):
            world = DoorWorld()
            world.run(work)
            world.end()
    assert outcomes == {("Done", "NamespaceNotFound"), ("NamespaceNotEmpty", "Topic")}
