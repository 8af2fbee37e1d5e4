"""Two brokers over one metadata store: one serves a topic, and the other says where it is and never takes it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from broker.door_world import caller, host_of, served
from broker.topic_world import batch_of
from pydanube.api.grpc.discovery import DiscoveryService
from pydanube.base.errors import DanubeError, NotOwner, TopicClosed, TopicNotFound
from pydanube.base.limits import METADATA_OPERATIONS_MAX, WATCH_CHANGES_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.door.door import Door
from pydanube.broker.door.process import Process
from pydanube.broker.routing.elsewhere import ELSEWHERE
from pydanube.broker.routing.router import HERE, Elsewhere, Router
from pydanube.broker.serving.dead_letters import publish_dead_letter
from pydanube.broker.topic.dependencies import LetterSource
from pydanube.broker.topic.topic import Topic
from pydanube.operations.broker import BrokerAddress, LookUpTopic
from pydanube.operations.subscriptions import DescribeSubscription
from pydanube.operations.topics import CreateTopic, DeleteTopic, DescribeTopic, TruncateTopic
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.machine.offload import SimOffload
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.stream.assignments import Assignments
from pydanube.storage.stream.catalog import MetadataCatalog
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.records import SubscriptionKind
from storage.stream_world import Nodes

TOPIC = "/default/orders"
SOURCE = Path(__file__).resolve().parent.parent.parent / "src/pydanube/broker"
Story = Callable[["Brokers"], Awaitable[None]]


class Brokers:
    """They share the metadata and the storage nodes."""

    def __init__(self) -> None:
        self.loop = SimLoop(1)
        self.randomness = SimRandomness(Random(1))
        self.store = MemoryMetadata()
        self.assignments = Assignments(self.store)

    async def start(self, name: str) -> Door:
        directory = Directory(self.store)
        await directory.prepare()
        offload = SimOffload(self.loop, self.loop.fork_random("offload"))
        catalog = MetadataCatalog(self.store)
        router = Router.of(name, self.store, catalog, self.randomness)
        door = Door(
            directory, catalog, self.nodes, SimClock(self.loop), self.randomness, router=router, offload=offload
        )  # fmt: skip
        await door.router.announce(f"{name}:6650")
        return door

    def play(self, story: Story) -> None:
        async def life() -> None:
            self.nodes = Nodes(MemoryNode(self.randomness))
            await story(self)

        self.loop.run_until_complete(life())
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == []


async def filled(door: Door) -> None:
    """A topic of this broker with a subscription and three messages."""
    await caller(door).carry_out(CreateTopic(TOPIC))
    topic = (await served(door, TOPIC)).reliable
    await topic.subscribe("s", SubscriptionKind.SHARED, start="earliest")
    for number in range(3):
        await topic.publish(batch_of(f"m{number}")).confirmed


async def letter(door: Door) -> None:
    source = LetterSource("/default/other", "s", chosen=True)
    await publish_dead_letter(door.topics, door.directory, door.room, TOPIC, batch_of("letter"), source)


REFUSED: dict[str, Callable[[Door], Awaitable[object]]] = {
    "opening": lambda door: served(door, TOPIC),
    "a producer": lambda door: caller(door).open_producer(TOPIC, lambda *_: None),
    "a reader": lambda door: caller(door).read(TOPIC, 0, 1000),
    "its bounds": lambda door: caller(door).bounds(TOPIC),
    "an acknowledgement": lambda door: caller(door).find_subscription(TOPIC, "s"),
    "a description": lambda door: caller(door).carry_out(DescribeTopic(TOPIC)),
    "a subscription": lambda door: caller(door).carry_out(DescribeSubscription(TOPIC, "s")),
    "truncating": lambda door: caller(door).carry_out(TruncateTopic(TOPIC)),
    "a dead letter": letter,
}


@pytest.mark.parametrize("asked", REFUSED)
def test_a_broker_that_does_not_own_a_topic_names_the_owner_and_takes_nothing(asked: str) -> None:
    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        await filled(first)
        before = brokers.store.revision
        with pytest.raises(NotOwner, match=re.escape("is served by a:6650")) as refused:
            await REFUSED[asked](second)
        assert refused.value.retriable
        assert brokers.store.revision == before
        assert second.topics.opened() == []
        record = second.directory.get(parse_topic(TOPIC))
        assert second.router.where(record, record.name) == Elsewhere("a", "a:6650")
        assert first.router.where(record, record.name) is HERE
        await served(first, TOPIC)
        await (await served(first, TOPIC)).reliable.publish(batch_of("more")).confirmed

    Brokers().play(story)


def test_a_lookup_sends_clients_to_the_owner() -> None:
    async def story(brokers: Brokers) -> None:
        doors = {name: await brokers.start(name) for name in "ab"}
        await filled(doors["a"])
        for name, door in doors.items():
            door.process = Process(BrokerAddress("1", f"danubes://{name}:6650", f"{name}:6650"), None)  # type: ignore[arg-type]
            found = await caller(door).carry_out(LookUpTopic(TOPIC))
            assert (found.url, found.address, found.topic) == ("danubes://a:6650", "a:6650", TOPIC)
            call, request = SimpleNamespace(session=caller(door)), SimpleNamespace(topic=TOPIC, request_id=5)
            answer = await DiscoveryService(f"https://{name}:6650").topic_lookup(call, request)  # type: ignore[arg-type]
            assert (answer.response_type, answer.connect_url) == (int(name == "a"), "https://a:6650")

    Brokers().play(story)


def test_background_work_leaves_the_topics_of_others_alone() -> None:
    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        await filled(first)
        await caller(second).carry_out(CreateTopic("/default/mine"))
        second.reopen()
        assert second._reopening is not None
        await second._reopening
        assert [str(each.name) for each in second.topics.opened()] == ["/default/mine"]
        before = brokers.store.revision
        second.topics.follow_namespace(
            "default", second.directory.policies("default").changed({"namespace_bytes_max": 9})
        )
        await second.topics.counted("default")
        await second.leftovers.find(second.directory)
        assert (len(second.leftovers), brokers.store.revision) == (0, before)
        assert not (await served(first, TOPIC)).topic.lost

    Brokers().play(story)


def test_a_new_topic_belongs_to_the_broker_that_creates_it_and_is_assigned_in_that_transaction() -> None:
    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        await caller(second).carry_out(CreateTopic("/default/other"))  # reserves numbers
        before = brokers.store.revision
        record = await second.directory.create_topic(parse_topic(TOPIC), partitions=3)
        assert brokers.store.revision == before + 1
        owners = [brokers.assignments.get(record.stream(number)) for number in range(3)]
        assert owners == [(second.router.me, before + 1)] * 3
        with pytest.raises(NotOwner):
            await served(first, f"{TOPIC}-part-1")
        opened = await served(second, f"{TOPIC}-part-1")
        assert opened.reliable.epoch == before + 1
        await caller(second).carry_out(DeleteTopic(TOPIC))
        assert brokers.assignments.topics() == [second.directory.get(parse_topic("/default/other")).stream(None)]

    Brokers().play(story)


def test_a_topic_with_more_partitions_than_fit_one_transaction_is_assigned_as_it_is_used() -> None:
    async def story(brokers: Brokers) -> None:
        door = await brokers.start("a")
        record = await door.directory.create_topic(parse_topic(TOPIC), partitions=300)
        assert 100 < len(brokers.assignments.topics()) < METADATA_OPERATIONS_MAX
        assert (await served(door, f"{TOPIC}-part-299")).reliable.epoch == brokers.store.get(
            f"assignments/{record.stream(299)}"
        ).version  # type: ignore[union-attr]
        await caller(door).carry_out(DeleteTopic(TOPIC))
        assert brokers.assignments.topics() == []

    Brokers().play(story)


def test_deleted_topics_leave_neither_assignments_nor_memory() -> None:
    """Topics that store nothing have no streams that would be removed later, but partitions beyond those that fit the
    deleting transaction."""

    async def story(brokers: Brokers) -> None:
        door = await brokers.start("a")
        for reliable in (True, False):
            record = await door.directory.create_topic(parse_topic(TOPIC), partitions=300, reliable=reliable)
            for partition in (0, 298, 299):
                await served(door, f"{TOPIC}-part-{partition}")
            await caller(door).carry_out(DeleteTopic(TOPIC))
            with pytest.raises(TopicNotFound):  # one that was on its way
                await door.router.tenure(record, record.partition_names()[299])
            assert brokers.assignments.topics() == []
            assert door.router._openings == {}

    Brokers().play(story)


@pytest.mark.parametrize("topics", [1, 300])
def test_users_of_a_topic_that_another_broker_gets_are_told_at_once(topics: int) -> None:
    """Nothing is written meanwhile: the old owner watches the assignments."""

    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        await filled(first)
        told: list[DanubeError] = []
        await caller(first).open_producer(TOPIC, lambda error, *_: told.append(error))
        host = host_of(first, TOPIC, "s")
        assert host is not None
        stream = first.directory.get(parse_topic(TOPIC)).stream(None)
        others = [f"x{number}" for number in range(topics - 1)]
        before = brokers.store.revision
        count = await brokers.assignments.assign_all([stream, *others], second.router.me)
        assert count == brokers.store.revision - before == -(-topics // METADATA_OPERATIONS_MAX)
        await asyncio.sleep(0.001)
        assert first.topics.opened() == []
        assert [type(error) for error in told] == [TopicClosed]
        with pytest.raises(NotOwner, match="b:6650"):
            await served(first, TOPIC)
        topic = (await served(second, TOPIC)).reliable
        assert before < topic.epoch <= before + count
        assert topic.bounds == (0, 3)
        await topic.publish(batch_of("m3")).confirmed

    Brokers().play(story)


def test_a_topic_that_is_moved_while_it_is_opened_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        record = await first.directory.create_topic(parse_topic(TOPIC))
        opening = Topic.open

        async def moved(tenure: Tenure, *arguments: Any) -> Topic:
            topic = await opening(tenure, *arguments)
            await brokers.assignments.assign_all([tenure.topic], second.router.me)
            await asyncio.sleep(1)
            return topic

        monkeypatch.setattr(Topic, "open", moved)
        with pytest.raises(NotOwner, match="b:6650"):
            await served(first, TOPIC)
        assert first.topics.opened() == []
        monkeypatch.setattr(Topic, "open", opening)
        assert (await served(second, TOPIC)).record == record

    Brokers().play(story)


def test_a_broker_that_missed_changes_of_assignments_looks_at_all_of_them() -> None:
    async def story(brokers: Brokers) -> None:
        first, second = await brokers.start("a"), await brokers.start("b")
        await filled(first)
        stream = first.directory.get(parse_topic(TOPIC)).stream(None)
        many = [f"x{number}" for number in range(WATCH_CHANGES_MAX)]
        change = brokers.assignments.change
        await brokers.store.transact((), [change(stream, second.router.me)])
        for at in range(0, len(many), METADATA_OPERATIONS_MAX):
            part = many[at : at + METADATA_OPERATIONS_MAX]
            brokers.store._replay(
                brokers.store.revision + 1,
                brokers.store._state.decide((), [change(each, second.router.me) for each in part]),
            )
        await asyncio.sleep(1)
        assert first.topics.opened() == []

    Brokers().play(story)


def test_each_opening_in_one_life_has_an_assignment_of_its_own() -> None:
    async def story(brokers: Brokers) -> None:
        door = await brokers.start("a")
        await filled(door)
        earlier = await served(door, TOPIC)
        await door.topics.let_go(earlier)
        later = await served(door, TOPIC)
        assert later.reliable.epoch > earlier.reliable.epoch
        assert later.reliable.bounds == (0, 3)
        with pytest.raises(DanubeError):
            await earlier.reliable.ledger.stream.tenure.confirm()

    Brokers().play(story)


def test_a_restart_takes_all_topics_128_in_a_transaction() -> None:
    async def story(brokers: Brokers) -> None:
        door = await brokers.start("a")
        for number in range(300):
            await door.directory.create_topic(parse_topic(f"/default/t{number}"))
        elsewhere = door.directory.get(parse_topic("/default/t0")).stream(None)
        await brokers.assignments.assign_all([elsewhere], Assignment("b", "1"))
        again, before = await brokers.start("a"), brokers.store.revision
        await again.router.begin()
        assert brokers.store.revision - before == 3
        owners = [brokers.assignments.get(topic)[0] for topic in brokers.assignments.topics()]
        assert owners.count(again.router.me) == 299
        assert (await served(again, "/default/t1")).reliable.epoch in range(before + 1, before + 4)

    Brokers().play(story)


def test_a_topic_that_is_deleted_while_it_is_opened_is_not_found() -> None:
    async def story(brokers: Brokers) -> None:
        door = await brokers.start("a")
        record = await door.directory.create_topic(parse_topic(TOPIC))
        await door.directory.delete_topic(record.name)
        with pytest.raises(TopicNotFound):
            await door.router.tenure(record, record.name)
        assert brokers.assignments.topics() == []

    Brokers().play(story)


OPENS = re.compile(r"topics\.open(_all|_undamaged)?\(|catalog\.load\(|[^_]remove_stream\(|Topic\.open\(")


def test_every_module_that_opens_topics_says_what_it_does_with_those_of_others() -> None:
    found = {
        str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if OPENS.search(path.read_text(encoding="utf-8"))
    }
    assert found == set(ELSEWHERE)
