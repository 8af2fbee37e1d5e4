"""Changes of all partitions of a topic: wherever the power goes, after a restart all of them have it, or none."""

from __future__ import annotations

import asyncio

import pytest

from broker.service_world import ServiceWorld, Work
from pydanube.base.errors import DanubeError, MetadataFull, NodeBusy, TopicClosed, TopicNotFound
from pydanube.base.limits import TOPICS_REOPENING, TOPICS_RESUMING
from pydanube.base.names import parse_topic
from pydanube.broker.door.service import Service
from pydanube.broker.serving.open_topic import ANONYMOUS, Opened
from pydanube.broker.serving.spreading import change_of
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.topic import Topic
from pydanube.metadata import state as metadata
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

TOPIC = "/default/orders"
SHARED = SubscriptionKind.SHARED
State = tuple[object, ...]


async def prepared(service: Service) -> None:
    """Three partitions, of which each has two messages and the subscription `billing` before them."""
    await service.create_topic(ANONYMOUS, TOPIC, partitions=3)
    await service.admin.subscribe(ANONYMOUS, TOPIC, "billing", SHARED)
    for topic in await partitions(service):
        await topic.publish(build([b"1", b"2"], publish_time=1)).confirmed


async def partitions(service: Service) -> list[Topic]:
    record = await service.topic(ANONYMOUS, TOPIC)
    return [service.reliable(await service.open(ANONYMOUS, str(place))) for place in record.places()]


async def states(service: Service) -> list[State]:
    """Of each partition: where it begins, and what its subscriptions are."""
    found: list[State] = []
    for topic in await partitions(service):
        subscriptions = [
            (host.known.name, host.known.kind, host.known.options, host.known.cursor.floor)
            for _, host in sorted(topic.subscriptions.items())
        ]
        found.append((topic.ledger.first, *subscriptions))
    return found


async def reopened(service: Service) -> None:
    service.reopen()
    assert service._reopening is not None
    await service._reopening


async def grow(service: Service) -> None:
    await service.alter_topic(ANONYMOUS, TOPIC, partitions=5, policies={})


async def subscribe(service: Service) -> None:
    options = SubscriptionOptions(idle_seconds=5)
    await service.admin.subscribe(ANONYMOUS, TOPIC, "audit", SHARED, start="earliest", options=options)


async def unsubscribe(service: Service) -> None:
    await service.admin.unsubscribe(ANONYMOUS, TOPIC, "billing")


async def alter(service: Service) -> None:
    await service.admin.alter_subscription(ANONYMOUS, TOPIC, "billing", {"idle_seconds": 7})


async def seek(service: Service) -> None:
    await service.admin.seek(ANONYMOUS, TOPIC, "billing", "latest")


async def truncate(service: Service) -> None:
    await service.admin.truncate(ANONYMOUS, TOPIC)


@pytest.mark.slow
@pytest.mark.parametrize(
    "change", [grow, subscribe, unsubscribe, alter, seek, truncate], ids=lambda work: work.__name__
)
def test_wherever_the_power_goes_all_partitions_are_alike(change: Work) -> None:
    seen: set[str] = set()
    for cut in range(400):
        world = ServiceWorld(cut)
        over = world.run_until_cut(prepared, change, cut)

        async def look(service: Service) -> None:
            found = await states(service)
            old, new = found[:3], found[3:]
            assert len(set(old)) == 1
            assert len(new) in (0, 2)
            for state in new:  # a partition that is new has what the others have, from its first message on
                assert state == (0, ("billing", SHARED, old[0][1][2], 0))  # type: ignore[index]
            seen.add(str(found))
            await reopened(service)
            assert service._directory.store.scan("changes/") == []

        world.run(look)
        world.end()
        if over:
            break
    assert over
    assert len(seen) == 2  # as it was, and as it is to be


@pytest.mark.parametrize("change", [subscribe, unsubscribe, alter], ids=lambda work: work.__name__)
def test_a_change_that_waits_behind_new_partitions_is_made_in_them_too(change: Work) -> None:
    async def main(service: Service) -> None:
        await prepared(service)
        await asyncio.gather(grow(service), change(service))
        found = await states(service)
        assert len(found) == 5
        assert len(set(found)) == 1

    world = ServiceWorld()
    world.run(main)
    world.end()


@pytest.mark.slow
@pytest.mark.parametrize("change", [subscribe, unsubscribe, alter, seek, truncate], ids=lambda work: work.__name__)
def test_wherever_the_power_goes_a_change_that_waits_behind_new_partitions_is_whole(change: Work) -> None:
    async def both(service: Service) -> None:
        await asyncio.gather(grow(service), change(service))

    for cut in range(800):
        world = ServiceWorld(cut)
        over = world.run_until_cut(prepared, both, cut)

        async def look(service: Service) -> None:
            found = await states(service)
            assert len(set(found[:3])) == 1
            assert len(found) in (3, 5)
            assert len({str([each[:3] for each in state[1:]]) for state in found}) == 1  # type: ignore[index]
            await reopened(service)
            assert service._directory.store.scan("changes/") == []

        world.run(look)
        world.end()
        if over:
            break
    assert over


@pytest.mark.slow
def test_wherever_the_power_goes_a_deleted_topic_is_gone_with_its_options_or_whole() -> None:
    async def options(service: Service) -> None:
        await prepared(service)
        await service.pending.change(TOPIC, "audit", {"idle_seconds": 5})

    async def delete(service: Service) -> None:
        await service.delete_topic(ANONYMOUS, TOPIC)

    seen: set[bool] = set()
    for cut in range(400):
        world = ServiceWorld(cut)
        over = world.run_until_cut(options, delete, cut)

        async def look(service: Service) -> None:
            there = service._directory.find(parse_topic(TOPIC)) is not None
            assert (service.pending.find(TOPIC, "audit") is not None) is there
            if there:
                assert len(set(await states(service))) == 1
            else:
                while await service._around.catalog.streams():
                    await service.leftovers.sweep()
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
    async def change_at_the_limit(service: Service) -> None:
        before, there = await states(service), service._directory.store._state  # type: ignore[attr-defined]
        monkeypatch.setattr(metadata, limit, len(there) if limit == "METADATA_KEYS_MAX" else there.bytes)
        with pytest.raises(MetadataFull):
            await subscribe(service)
        await change(service)
        found = await states(service)
        assert found != before
        assert len(set(found)) == 1

    world = ServiceWorld()
    world.run(prepared, change_at_the_limit)
    world.end()


def test_who_opens_a_new_partition_waits_until_it_has_the_subscriptions() -> None:
    async def main(service: Service) -> None:
        await prepared(service)
        growing = asyncio.ensure_future(grow(service))
        while service._directory.get(parse_topic(TOPIC)).partitions == 3:  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        assert not growing.done()
        opened = await service.open(ANONYMOUS, f"{TOPIC}-part-4")
        assert list(opened.topic.subscriptions) == ["billing"]
        await growing

    world = ServiceWorld()
    world.run(main)
    world.end()


def test_after_a_crash_in_a_change_everyone_who_opens_a_partition_gets_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opening, streams = Topic.open, []

    async def counted(stream: str, *arguments: object) -> Topic:
        streams.append(stream)
        return await opening(stream, *arguments)  # type: ignore[arg-type]

    async def first(service: Service) -> None:
        await prepared(service)
        record = await service.topic(ANONYMOUS, TOPIC)
        fields = {"subscription": "audit", "kind": SHARED.name, "start": "latest", "options": None}
        await service._directory.store.transact((), [change_of(record.id, "subscribe", fields)])

    async def second(service: Service) -> None:
        async def come(milliseconds: float) -> Opened:
            await asyncio.sleep(milliseconds / 1000)
            return await service.open(ANONYMOUS, f"{TOPIC}-part-0")

        monkeypatch.setattr(Topic, "open", counted)
        service.reopen()
        got = await asyncio.gather(*(come(number / 20) for number in range(2000)))
        assert len(streams) == len(set(streams)) == 3
        assert {id(each) for each in got} == {id(service._opened[got[0].name])}
        assert sorted(got[0].topic.subscriptions) == ["audit", "billing"]

    world = ServiceWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_topic_that_is_no_longer_the_one_of_that_name_is_never_handed_out() -> None:
    async def main(service: Service) -> None:
        await service.create_topic(ANONYMOUS, TOPIC)
        old = await service.open(ANONYMOUS, TOPIC)
        told: list[DanubeError] = []
        await service.open_producer(ANONYMOUS, TOPIC, told.append)
        await service._directory.delete_topic(parse_topic(TOPIC))  # behind the back of who serves it
        with pytest.raises(TopicNotFound):
            await service.open(ANONYMOUS, TOPIC)
        record = await service.create_topic(ANONYMOUS, TOPIC)
        new = await service.open(ANONYMOUS, TOPIC)
        assert new is not old
        assert new.record.id == record.id
        assert [type(each) for each in told] == [TopicClosed]

    world = ServiceWorld()
    world.run(main)
    world.end()


def test_a_new_partition_that_could_not_be_prepared_is_when_it_is_first_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = True
    opening = Topic.open

    async def main(service: Service) -> None:
        nonlocal failing
        await prepared(service)
        with pytest.raises(NodeBusy):
            await grow(service)
        assert service._directory.get(parse_topic(TOPIC)).partitions == 5
        with pytest.raises(NodeBusy):
            await service.open(ANONYMOUS, f"{TOPIC}-part-3")
        failing = False
        opened = await service.open(ANONYMOUS, f"{TOPIC}-part-3")
        assert list(opened.topic.subscriptions) == ["billing"]

    async def busy(stream: str, *arguments: object) -> Topic:
        if failing and stream.endswith(".4"):
            raise NodeBusy("later")
        return await opening(stream, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Topic, "open", busy)
    world = ServiceWorld()
    world.run(main)
    world.end()


def test_open_partitions_know_of_new_ones_that_could_not_be_prepared(monkeypatch: pytest.MonkeyPatch) -> None:
    subscribing = Topic.subscribe

    async def busy_once(*_: object, **__: object) -> None:
        monkeypatch.setattr(Topic, "subscribe", subscribing)
        raise NodeBusy("later")

    async def main(service: Service) -> None:
        await prepared(service)
        monkeypatch.setattr(Topic, "subscribe", busy_once)
        with pytest.raises(NodeBusy):
            await service.alter_topic(ANONYMOUS, TOPIC, partitions=5, policies={"message_bytes_max": 10})
        known = {(each.record.partitions, each.policies.message_bytes_max) for each in service.opened()}
        assert known == {(5, 10)}
        await subscribe(service)
        assert [sorted(topic.subscriptions) for topic in await partitions(service)] == [["audit", "billing"]] * 5

    world = ServiceWorld()
    world.run(main)
    world.end()


def test_what_waits_for_its_turn_is_not_done_to_another_topic_of_the_same_name() -> None:
    async def main(service: Service) -> None:
        await prepared(service)
        before = await service.topic(ANONYMOUS, TOPIC)
        await service.delete_topic(ANONYMOUS, TOPIC)
        await prepared(service)
        with pytest.raises(TopicNotFound):
            await service.spreading.change(before, "unsubscribe", {"subscription": "billing"})
        assert [sorted(topic.subscriptions) for topic in await partitions(service)] == [["billing"]] * 3

    world = ServiceWorld()
    world.run(main)
    world.end()


@pytest.mark.parametrize("entry", [b"{", b"[]", b'["unknown",{}]', b'["subscribe",{}]', b'["grow",7]'])
def test_a_change_that_is_not_valid_keeps_no_topic_closed(entry: bytes) -> None:
    async def first(service: Service) -> None:
        await prepared(service)
        await service.create_topic(ANONYMOUS, "/default/other")
        record = await service.topic(ANONYMOUS, TOPIC)
        await service._directory.store.transact((), [(f"changes/{record.id}", entry)])

    async def second(service: Service) -> None:
        await reopened(service)
        assert len(service.opened()) == 4
        assert service._directory.store.scan("changes/") == []
        assert [sorted(topic.subscriptions) for topic in await partitions(service)] == [["billing"]] * 3

    world = ServiceWorld()
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

    async def first(service: Service) -> None:
        await prepared(service)
        for name in names:
            record = await service.create_topic(ANONYMOUS, name, partitions=TOPICS_REOPENING)
            slow.append(f"t{record.id}.")
            await service._directory.store.transact((), [(f"changes/{record.id}", b'["grow",{"from":1}]')])

    async def second(service: Service) -> None:
        released = asyncio.Event()

        async def hanging(stream: str, *arguments: object) -> Topic:
            if stream.startswith(tuple(slow)):
                if broken:
                    raise RuntimeError("broken")
                await released.wait()
            return await opening(stream, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(Topic, "open", hanging)
        service.reopen()
        assert service._reopening is not None
        while len(service.opened()) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert service._directory.store.count("changes/") == len(names)
        if broken:
            return await service._reopening
        released.set()
        await service._reopening
        assert len(service.opened()) == 3 + len(names) * TOPICS_REOPENING

    world = ServiceWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_change_that_a_stop_of_the_broker_interrupts_is_finished_after_the_next_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subscribing = Topic.subscribe

    async def first(service: Service) -> None:
        await prepared(service)
        hung = asyncio.Event()

        async def hanging(self: Topic, *arguments: object, **options: object) -> object:
            if self.name.endswith("-part-2"):
                hung.set()
                await asyncio.Event().wait()
            return await subscribing(self, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(Topic, "subscribe", hanging)
        asked = asyncio.ensure_future(subscribe(service))
        await hung.wait()
        await service.close()
        await asyncio.wait([asked])
        monkeypatch.setattr(Topic, "subscribe", subscribing)

    async def second(service: Service) -> None:
        await reopened(service)
        assert [sorted(topic.subscriptions) for topic in await partitions(service)] == [["audit", "billing"]] * 3

    world = ServiceWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_what_is_left_of_a_change_whose_topic_was_deleted_goes_at_the_next_start() -> None:
    async def first(service: Service) -> None:
        await prepared(service)
        await service._directory.store.transact((), [("changes/4711", b'["grow",{"from":1}]')])

    async def second(service: Service) -> None:
        await reopened(service)
        assert service._directory.store.scan("changes/") == []

    world = ServiceWorld()
    world.run(first)
    world.run(second)
    world.end()


def test_a_change_goes_on_when_its_caller_gives_up_and_the_next_waits_for_it() -> None:
    async def main(service: Service) -> None:
        await prepared(service)
        asked = asyncio.ensure_future(subscribe(service))
        while not service._directory.store.scan("changes/"):  # noqa: ASYNC110
            await asyncio.sleep(0.0001)
        asked.cancel()
        await service.admin.unsubscribe(ANONYMOUS, TOPIC, "billing")
        assert [sorted(topic.subscriptions) for topic in await partitions(service)] == [["audit"]] * 3

    world = ServiceWorld()
    world.run(main)
    world.end()


def test_a_topic_without_partitions_writes_nothing_more_than_its_own_record() -> None:
    async def main(service: Service) -> None:
        await service.create_topic(ANONYMOUS, TOPIC)
        await service.open(ANONYMOUS, TOPIC)
        before = service._directory.store.revision
        await service.admin.subscribe(ANONYMOUS, TOPIC, "billing", SHARED)
        await service.admin.seek(ANONYMOUS, TOPIC, "billing", "earliest")
        assert service._directory.store.revision - before <= LEDGER_REVISIONS
        with pytest.raises(TopicNotFound):
            await service.open(ANONYMOUS, "/default/other")

    world = ServiceWorld()
    world.run(main)
    world.end()


LEDGER_REVISIONS = 2  # the state's stream and its first ledger


@pytest.mark.parametrize("partitioned", [0, 3])
def test_a_shared_subscription_made_with_other_options_has_dead_letters_as_any(partitioned: int) -> None:
    async def work(service: Service) -> None:
        await service.create_topic(ANONYMOUS, TOPIC, partitions=partitioned)
        await subscribe(service)
        for topic in await partitions(service):
            options = SubscriptionOptions.decode(topic.subscriptions["audit"].known.options)
            assert options.failure.dead_letter_topic == f"{TOPIC}-audit-dlq"
            assert not options.timeout_chosen

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_a_new_partition_has_the_dead_letters_of_the_others_though_options_were_set_before() -> None:
    async def work(service: Service) -> None:
        await service.create_topic(ANONYMOUS, TOPIC, partitions=1)
        await service.pending.change(TOPIC, "audit", {"failure": {"max_redelivery_count": 2}})
        options = service.pending.get(TOPIC, "audit")
        await service.admin.subscribe(ANONYMOUS, TOPIC, "audit", SHARED, options=options)
        await service.alter_topic(ANONYMOUS, TOPIC, partitions=2, policies={})
        first, second = [topic.subscriptions["audit"].known.options for topic in await partitions(service)]
        assert first == second
        assert SubscriptionOptions.decode(second).failure.dead_letter_topic == f"{TOPIC}-audit-dlq"

    world = ServiceWorld()
    world.run(work)
    world.end()


def test_partitions_of_a_topic_that_keeps_nothing_are_added_in_turn_too() -> None:
    async def main(service: Service) -> None:
        record = await service.create_topic(ANONYMOUS, TOPIC, reliable=False, partitions=3)
        async with service.spreading._turns.of(record.id):
            growing = asyncio.ensure_future(grow(service))
            await asyncio.sleep(10)
            assert not growing.done()
        await growing
        assert (await service.topic(ANONYMOUS, TOPIC)).partitions == 5

    world = ServiceWorld()
    world.run(main)
    world.end()


def test_a_topic_never_outlives_its_namespace() -> None:
    outcomes = set()
    for steps in range(12):

        async def main(service: Service, steps: int = steps) -> None:
            await service.create_topic(ANONYMOUS, "/default/first")  # numbers of topics are set aside
            await service.create_namespace(ANONYMOUS, "shop", {})
            deleting = asyncio.ensure_future(service.delete_namespace(ANONYMOUS, "shop"))
            for _ in range(steps):
                await asyncio.sleep(0)
            creating = asyncio.ensure_future(service.create_topic(ANONYMOUS, "/shop/orders"))
            ended = await asyncio.gather(deleting, creating, return_exceptions=True)
            outcomes.add(tuple(type(each).__name__ for each in ended))

        async def creation_first(service: Service, steps: int = steps) -> None:
            await service.create_topic(ANONYMOUS, "/default/second")
            await service.create_namespace(ANONYMOUS, "shop", {})
            creating = asyncio.ensure_future(service.create_topic(ANONYMOUS, "/shop/orders"))
            for _ in range(steps):
                await asyncio.sleep(0)
            deleting = asyncio.ensure_future(service.delete_namespace(ANONYMOUS, "shop"))
            ended = await asyncio.gather(deleting, creating, return_exceptions=True)
            outcomes.add(tuple(type(each).__name__ for each in ended))

        for work in (main, creation_first):
            world = ServiceWorld()
            world.run(work)
            world.end()
    assert outcomes == {("NoneType", "NamespaceNotFound"), ("NamespaceNotEmpty", "TopicRecord")}
