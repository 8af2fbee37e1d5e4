"""The simulated network does everything to messages that it may do, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from pydanube.ports.network import Network
from pydanube.sim.machine.loop import PROCESS, Process, SimLoop
from pydanube.sim.machine.network import Link, SimNetwork
from pydanube.storage.node.messages import NODE_MESSAGES
from pydanube.storage.node.remote import NodeRequest
from pydanube.wire.batch import build
from pydanube.wire.peer.messages import MessageTable

Message = tuple[str, str, object]  # from, to, what


class World:
    """A few processes that record what they receive."""

    def __init__(self, seed: int = 0, link: Link | None = None, table: MessageTable | None = None) -> None:
        self.loop = SimLoop(seed)
        self.network = SimNetwork(self.loop, self.loop.fork_random("network"), link, table)
        self.received: list[Message] = []
        self.processes: dict[str, Process] = {}
        self.ports: dict[str, Network] = {}
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> None:
        process = self.processes[name] = self.loop.process(name)
        port: Network = self.network.endpoint(name, process)
        port.listen(lambda sender, message: self.received.append((sender, repr(PROCESS.get()), message)))
        self.ports[name] = port

    def pass_time(self, seconds: float = 1.0) -> list[Message]:
        """The messages that arrived since the last call."""
        self.loop.run_until_complete(asyncio.sleep(seconds))
        found = list(self.received)
        self.received.clear()
        return found

    def pairs(self) -> set[str]:
        """Which pairs can reach each other now."""
        for sender in "abc":
            for receiver in "abc":
                self.ports[sender].send(receiver, None)
        return {f"{sender}{receiver[0]}" for sender, receiver, _ in self.pass_time()}

    def end(self) -> None:
        failures = self.loop.failures
        self.loop.shutdown()
        assert failures == []


EVERY_PAIR = {a + b for a in "abc" for b in "abc"}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.end()


def test_a_message_arrives_later_in_the_receiver(world: World) -> None:
    message = object()
    world.ports["a"].send("b", message)
    assert world.received == []
    assert world.pass_time() == [("a", "b#1", message)]
    assert world.network.counters == {"sent": 1, "delivered": 1}


def test_messages_overtake_each_other_by_their_delays(world: World) -> None:
    for number in range(100):
        world.ports["a"].send("b", number)
    arrived = [message for _, _, message in world.pass_time()]
    assert arrived != sorted(arrived)  # type: ignore[type-var]
    assert sorted(arrived) == list(range(100))  # type: ignore[type-var]


def test_loss_and_duplication_happen_about_as_often_as_asked() -> None:
    world = World(link=Link(loss=0.2, duplication=0.1))
    for number in range(5_000):
        world.ports["a"].send("b", number)
    arrived = len(world.pass_time())
    counters = world.network.counters
    assert arrived == counters["delivered"] == 5_000 - counters["lost"] + counters["duplicated"]
    assert 800 < counters["lost"] < 1_200
    assert 300 < counters["duplicated"] < 500
    world.end()


def test_a_few_messages_arrive_very_late_and_meet_the_next_life() -> None:
    world = World(link=Link(late=0.02, late_max=100))
    for number in range(500):
        world.ports["a"].send("b", number)
    soon = world.pass_time(0.01)
    world.loop.kill(world.processes["b"])
    world.start("b")
    late = world.pass_time(200)
    assert len(soon) + len(late) == 500
    assert 0 < len(late) < 30
    assert {receiver for _, receiver, _ in late} == {"b#2"}
    world.end()


def test_one_link_can_be_worse_than_the_others(world: World) -> None:
    world.network.set_link("a", "b", Link(loss=1.0))
    assert world.pairs() == EVERY_PAIR - {"ab"}
    world.network.set_link("a", "b", None)
    assert world.pairs() == EVERY_PAIR


def test_a_link_is_cut_both_ways_or_one_way_until_healed(world: World) -> None:
    network = world.network
    network.cut("a", "b")
    network.cut("b", "c", one_way=True)
    assert world.pairs() == EVERY_PAIR - {"ab", "ba", "bc"}
    network.heal("a", "b")
    assert world.pairs() == EVERY_PAIR - {"bc"}
    network.heal()
    assert world.pairs() == EVERY_PAIR


def test_an_isolated_process_reaches_only_itself(world: World) -> None:
    world.network.isolate("a")
    assert world.pairs() == {"aa", "bb", "bc", "cb", "cc"}
    world.network.heal("b")
    assert world.pairs() == {"aa", "bb", "bc", "cb", "cc"}
    world.network.heal("a")
    assert world.pairs() == EVERY_PAIR


def test_groups_are_separated_except_for_their_bridge(world: World) -> None:
    world.network.partition(["a", "bc"])
    assert world.pairs() == EVERY_PAIR - {"ab", "ba", "ac", "ca"}
    world.network.heal("c")
    assert world.pairs() == EVERY_PAIR - {"ab", "ba"}
    world.network.heal()
    world.network.partition(["ab", "bc"])
    assert world.pairs() == EVERY_PAIR - {"ac", "ca"}


def test_a_cut_also_loses_messages_in_transit(world: World) -> None:
    world.ports["a"].send("b", 1)
    world.network.cut("a", "b")
    assert world.pass_time() == []
    assert world.network.counters["cut"] == 1


def test_the_dead_neither_send_nor_receive(world: World) -> None:
    world.ports["a"].send("b", 1)
    world.loop.kill(world.processes["b"])
    world.ports["b"].send("a", 2)
    world.ports["a"].send("nobody", 3)
    assert world.pass_time() == []
    assert world.network.counters == {"sent": 2, "unheard": 2}


def test_a_paused_process_receives_when_it_continues(world: World) -> None:
    world.ports["a"].send("b", 1)
    world.loop.pause(world.processes["b"])
    assert world.pass_time() == []
    world.loop.resume(world.processes["b"])
    assert world.pass_time() == [("a", "b#1", 1)]


def test_an_error_of_the_receiver_is_its_own() -> None:
    world = World()

    def refuse(sender: str, message: object) -> None:
        raise KeyError(message)

    world.ports["b"].listen(refuse)
    world.ports["a"].send("b", 1)
    world.pass_time()
    (failure,) = world.loop.failures
    assert failure.process == "b#1"
    assert isinstance(failure.error, KeyError)
    world.loop.shutdown()


def test_equal_seeds_give_equal_traces() -> None:
    def digest(seed: int) -> str:
        world = World(seed, Link(loss=0.1, duplication=0.1, late=0.1))
        for number in range(100):
            world.ports["a"].send("b", number)
        world.pass_time(100)
        found = world.loop.trace_digest()
        world.end()
        return found

    digests = [digest(seed) for seed in range(5)]
    assert digests == [digest(seed) for seed in range(5)]
    assert len(set(digests)) == 5


def test_with_a_table_messages_are_frames_on_their_way_in_parts_if_they_are_long() -> None:
    world = World(link=Link(duplication=1.0), table=NODE_MESSAGES)
    long = build([bytes(200_000)], publish_time=1).stamped(5, 2, 1)
    sent = [NodeRequest("0" * 16, 1, "append", (9, 2, long, 4)), NodeRequest("0" * 16, 2, "delete", (9,))]
    for message in sent:
        world.ports["a"].send("b", message)
    arrived = [message for _, _, message in world.pass_time()]
    assert sorted(arrived, key=lambda each: each.number) == [sent[0], sent[0], sent[1], sent[1]]
    assert not any(message is sent[0] for message in arrived)
    with pytest.raises(KeyError):
        world.ports["a"].send("b", "not in the table")
    world.end()
