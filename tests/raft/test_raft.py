"""The core of consensus keeps its promises whatever the network and the disks do, and goes on when they are well."""

from __future__ import annotations

import contextlib
from random import Random

import msgspec
import pytest

from pydanube.base.errors import LogDiverged, MembershipRefused, MetadataBusy, NotLeader
from pydanube.raft.entries import Entry, EntryKind, Member, Members, Point, next_entry
from pydanube.raft.log import Log
from pydanube.raft.messages import Append, Appended, Heartbeat
from pydanube.raft.node import Raft
from pydanube.raft.state import Hard, Role
from raft.world import SETTINGS, World

SEEDS = 60
FAULTS = ("kill", "isolate", "one_way", "loss", "slow", "failing", "transfer", "nothing")


def storm(world: World, rounds: int) -> None:
    for _ in range(rounds):
        strike(world)
        for _ in range(6):
            leaders = [each for each in world.nodes.values() if each.alive and each.raft.role is Role.LEADER]
            for leader in leaders:  # an outdated one may be among them
                world.propose(leader, world.random.randint(1, 5))
                world.read(leader)
            world.run(world.random.uniform(0.01, 0.2))
        if world.random.random() < 0.3:
            world.heal()


def strike(world: World) -> None:
    name = world.random.choice(sorted(world.nodes))
    node = world.nodes[name]
    match world.random.choice(FAULTS):
        case "kill":
            node.kill()
            world.at(world.random.uniform(0.1, 3), lambda: world.restart(name))
        case "isolate":
            world.isolate(name)
        case "one_way":
            world.cut.add((name, world.random.choice(sorted(world.nodes))))
        case "loss":
            world.loss, world.repeat, world.delay = 0.2, 0.2, 0.15
        case "slow":
            node.slow = True
        case "failing":
            node.failing = True
        case "transfer":
            others = sorted(node.raft.members.voters - {name})
            world.random.shuffle(others)
            if others and node.alive and node.raft.role is Role.LEADER:
                with contextlib.suppress(NotLeader):  # it is handing over already
                    node.raft.transfer(world.now, others[0])
                    node.drain()


def run_storm(seed: int, voters: int) -> None:
    world = World(seed * 10 + voters, voters, learners=seed % 2)
    storm(world, 12)
    world.heal()
    world.run(15)
    leader = world.leader()
    assert leader is not None, "nobody is elected although everything healed"
    before = len(leader.values)
    assert world.propose(leader, 3)
    world.run(3)
    assert len(leader.values) == before + 3
    world.check_equal()
    world.check_majority_has()


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("voters", [1, 2, 3, 5])
def test_promises_hold_in_any_storm(seed: int, voters: int) -> None:
    run_storm(seed, voters)


def run_members(seed: int, voters: int = 1) -> None:
    world = World(seed, voters)
    world.run(1)
    for _ in range(12):
        change(world)
        storm(world, 1)
        if world.random.random() < 0.5:
            world.heal()
            world.run(3)
    world.heal()
    world.run(15)
    leader = world.leader()
    assert leader is not None, "nobody is elected although everything healed"
    assert world.propose(leader)
    world.run(3)
    world.check_equal()
    world.check_majority_has()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_members_come_and_go_in_any_storm(seed: int) -> None:
    run_members(seed)


def change(world: World) -> None:
    leader = world.leader()
    if leader is None:
        return
    now = list(leader.raft.members)
    match world.random.choice(("join", "promote", "demote", "leave")):
        case "join":
            name = f"n{len(world.nodes)}"
            if len(world.nodes) < 7:
                world.add(name)
                now.append(Member(name, "", voter=False))
        case "promote":
            learners = [each for each in now if not each.voter]
            if learners:
                now.remove(learners[0])
                now.append(Member(learners[0].identity))
        case "demote":
            at = world.random.randrange(len(now))
            now[at] = Member(now[at].identity, "", voter=False)
        case "leave":
            del now[world.random.randrange(len(now))]
    try:
        leader.raft.change(world.now, Members.of(now))
    except (MembershipRefused, NotLeader):
        return
    leader.drain()


def follower(last: int, committed: int) -> Raft:
    """Node b of three, with entries 1 to `last` of its leader a."""
    members = Members.of(Member(name) for name in "abc")
    raft = Raft("b", Hard(1, "a"), Log(Point(), ENTRIES[:last]), members, SETTINGS, Random(1).randrange, 0.0)
    raft.receive(0.0, "a", Heartbeat(1, 1, committed))
    raft.outbox.clear()
    return raft


def entries_of(term: int, count: int) -> list[Entry]:
    found = [next_entry(Point(), term, EntryKind.DATA, b"0")]
    while len(found) < count:
        found.append(next_entry(found[-1].point, term, EntryKind.DATA, b"%d" % len(found)))
    return found


ENTRIES = entries_of(1, 9)


def test_a_snapshot_replaces_nothing_that_was_acknowledged() -> None:
    raft = follower(last=5, committed=2)
    assert not raft.needs(1, ENTRIES[2].point)
    raft.install(0.1, "a", 1, ENTRIES[2].point, raft.members)
    assert (raft.log.last.index, raft.log.committed) == (5, 3)


def test_a_snapshot_beyond_the_log_replaces_it() -> None:
    raft = follower(last=5, committed=2)
    assert raft.needs(1, ENTRIES[7].point)
    raft.install(0.1, "a", 1, ENTRIES[7].point, raft.members)
    assert (raft.log.last.index, raft.log.committed, raft.log.applied) == (8, 8, 8)


@pytest.mark.parametrize("at", [2, 7])
def test_each_snapshot_is_answered_even_if_it_is_not_needed(at: int) -> None:
    raft = follower(last=9, committed=5)
    raft.install(0.1, "a", 1, ENTRIES[at].point, raft.members)
    work = raft.take()
    assert work is not None
    assert work.send == (("a", Appended(1, True, max(5, at + 1))),)


def test_an_entry_that_is_not_what_the_leader_wrote_stops_the_node() -> None:
    raft = follower(last=3, committed=0)
    wrong = msgspec.structs.replace(ENTRIES[3], data=b"changed on the way")
    with pytest.raises(LogDiverged):
        raft.receive(0.1, "a", Append(1, ENTRIES[2].point, (wrong,), 3))


def test_a_log_that_differs_in_what_both_have_stops_the_node() -> None:
    raft = follower(last=3, committed=0)
    other = next_entry(Point(chain=b"x" * 16), 1, EntryKind.DATA, b"0")
    with pytest.raises(LogDiverged):
        raft.receive(0.1, "a", Append(1, other.point, (), 1))


def test_proposals_beyond_the_bound_are_refused() -> None:
    world = World(1, 3)
    world.run(3)
    leader = world.leader()
    assert leader is not None
    world.isolate(leader.name)
    value = bytes(SETTINGS.uncommitted_bytes_max)
    leader.raft.propose(world.now, [value])
    with pytest.raises(MetadataBusy):
        leader.raft.propose(world.now, [b"1"])


def test_a_leader_whose_disk_fails_hands_over_at_once() -> None:
    world = World(2, 3)
    world.run(3)
    leader = world.leader()
    assert leader is not None
    leader.failing = True
    world.propose(leader)
    world.run(0.3)  # less than an election timeout
    successor = world.leader()
    assert successor is not None
    assert successor is not leader


def test_a_node_that_was_cut_off_does_not_disturb_the_others() -> None:
    world = World(3, 3)
    world.run(3)
    leader = world.leader()
    assert leader is not None
    other = next(each for each in world.nodes.values() if each is not leader)
    world.isolate(other.name)
    world.run(10)
    term = leader.raft.hard.term
    world.heal()
    world.run(3)
    assert world.leader() is leader
    assert {each.raft.hard.term for each in world.nodes.values()} == {term}
