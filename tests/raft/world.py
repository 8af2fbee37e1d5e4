"""A cluster of consensus cores on virtual time: disks that forget what was not synced, and a network that loses,
repeats, delays and reorders messages. It checks the promises of consensus after every event.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydanube.base.errors import DanubeError
from pydanube.raft.entries import ENTRY_BYTES, Entry, EntryKind, Member, Members, Point
from pydanube.raft.log import Log
from pydanube.raft.messages import Appended, AskVote, Message, Vote
from pydanube.raft.node import Raft, Work
from pydanube.raft.settings import RaftSettings
from pydanube.raft.state import Hard, Role

SETTINGS = RaftSettings(append_bytes=16 * ENTRY_BYTES, in_flight_max=4, kept_bytes=10 * ENTRY_BYTES)
FORGET_AFTER = 30  # entries, until a node makes a snapshot


@dataclass
class Disk:
    """What is durable."""

    hard: Hard = field(default_factory=Hard)
    start: Point = field(default_factory=Point)
    members: Members = field(default_factory=Members)
    values: list[bytes] = field(default_factory=list)  # the content of the snapshot
    entries: list[Entry] = field(default_factory=list)

    def write(self, work: Work, count: int | None = None) -> None:
        """Writes the work, or only the beginning of it, with so many entries."""
        self.hard = work.hard
        if work.cut is not None:
            self.entries = [each for each in self.entries if each.index <= work.cut]
        last = self.entries[-1].index if self.entries else self.start.index
        for entry in work.entries[:count]:
            assert entry.index == last + 1, "a hole in the log on disk"
            last = entry.index
            self.entries.append(entry)

    @property
    def last(self) -> Point:
        return self.entries[-1].point if self.entries else self.start


class Node:
    def __init__(self, world: World, name: str, disk: Disk) -> None:
        self.world, self.name, self.disk = world, name, disk
        self.alive = False
        self.incarnation = 0
        self.slow = self.failing = False
        self.writing: Work | None = None

    def start(self) -> None:
        world, disk = self.world, self.disk
        self.alive, self.writing = True, None
        self.incarnation += 1
        self.values = list(disk.values)
        log = Log(disk.start, list(disk.entries))
        self.raft = Raft(self.name, disk.hard, log, disk.members, SETTINGS, world.random.randrange, world.now)
        self.reads: dict[int, int] = {}
        self.drain()

    def kill(self) -> None:
        self.alive = False
        self.write_partly()

    def write_partly(self) -> None:
        """Any part of a write that does not succeed may be on disk."""
        if self.writing is not None and (count := self.world.random.randint(-1, len(self.writing.entries))) >= 0:
            self.disk.write(self.writing, count)

    def later(self, delay: float, action: Callable[[], None]) -> None:
        incarnation = self.incarnation

        def act() -> None:
            if self.alive and self.incarnation == incarnation:
                action()
                self.drain()

        self.world.at(delay, act)

    # -- what a host does

    def drain(self) -> None:
        raft, world = self.raft, self.world
        for to, message in raft.outbox:
            assert not _promises(message), f"{message} was sent before it was durable"
            world.send(self.name, to, message)
        raft.outbox.clear()
        for member in raft.snapshots:
            self.send_snapshot(member)
        raft.snapshots.clear()
        if self.writing is None and (work := raft.take()) is not None:
            self.writing = work
            self.later(
                world.random.uniform(1.0, 3.0) if self.slow else world.random.uniform(0.0005, 0.005),
                lambda: self.wrote(work),
            )
        for entry in raft.log.after(raft.log.applied, last=raft.appliable) if raft.appliable > raft.log.applied else ():
            self.apply(entry)
        for ticket, index in raft.ready_reads:
            assert isinstance(ticket, int)
            if index is not None:
                assert index >= self.reads[ticket], "a read would miss what was committed before it"
                world.reads += 1
        raft.ready_reads.clear()
        if raft.log.applied - self.disk.start.index > FORGET_AFTER:
            self.snapshot()
        world.check(self)

    def wrote(self, work: Work) -> None:
        if self.failing:
            self.write_partly()
            self.writing = None
            self.raft.not_written(self.world.now)
            return
        self.writing = None
        self.disk.write(work)
        for to, message in work.send:
            self.check_promise(to, message)
            self.world.send(self.name, to, message)
        self.raft.written(self.world.now)

    def check_promise(self, to: str, message: Message) -> None:
        match message:
            case Appended():
                assert message.index <= self.disk.last.index, f"{message}, but the disk ends at {self.disk.last.index}"
            case Vote():
                assert self.disk.hard == (message.term, to), f"{message} for {to}, but the disk has {self.disk.hard}"
            case AskVote():
                assert self.disk.hard == (message.term, self.name), f"{message}, but the disk has {self.disk.hard}"

    def apply(self, entry: Entry) -> None:
        assert entry.index == self.raft.log.applied + 1
        self.raft.log.applied = entry.index
        if entry.kind == EntryKind.DATA:
            self.values.append(entry.data)
        self.world.applied(self, entry)

    def snapshot(self) -> None:
        """Durable at once: how a snapshot gets to the disk is not tested here."""
        log, disk = self.raft.log, self.disk
        point = log.point(log.applied)
        assert point is not None
        disk.members, disk.values = self.raft.members_at(point.index), list(self.values)
        disk.entries = [each for each in disk.entries if each.index > point.index]
        disk.start = point
        self.raft.forget(point.index)

    def send_snapshot(self, member: str) -> None:
        disk, term, raft = self.disk, self.raft.hard.term, self.raft
        found = (disk.start, disk.members, list(disk.values))
        self.world.send(self.name, member, (term, found))
        self.later(0.3, lambda: raft.snapshot_failed(self.world.now, member))  # unless it has answered by then

    def receive(self, sender: str, message: Any) -> None:
        now = self.world.now
        if not isinstance(message, tuple):
            self.raft.receive(now, sender, message)
        elif self.writing is None:
            term, (point, members, values) = message
            if self.raft.needs(term, point):
                self.disk.start, self.disk.members, self.disk.values = point, members, list(values)
                self.disk.entries = []
                self.values = list(values)
            self.raft.install(now, sender, term, point, members)
        self.drain()


class World:
    """`check` raises as soon as a promise is broken."""

    def __init__(self, seed: int, voters: int, learners: int = 0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.loss = self.repeat = 0.0
        self.delay = 0.005
        self.cut: set[tuple[str, str]] = set()
        self.leaders: dict[int, str] = {}  # by term
        self.history: dict[int, Entry] = {}  # entries applied anywhere
        self.committed = 0
        self.promised: dict[int, bytes] = {}  # proposals that a client was told of, by index
        self.proposed = self.reads = self.elections = 0
        names = [f"n{number}" for number in range(voters + learners)]
        members = Members.of(Member(name, "", number < voters) for number, name in enumerate(names))
        self.nodes = {name: Node(self, name, Disk(members=members)) for name in names}
        for node in self.nodes.values():
            node.start()
            self._tick(node, node.incarnation)

    def add(self, name: str) -> None:
        node = self.nodes[name] = Node(self, name, Disk())
        self.restart(name)
        node.raft.elapse(self.now)

    # -- time and network

    def at(self, delay: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay, self._count, action))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        self.now = end

    def _tick(self, node: Node, incarnation: int) -> None:
        """Each node has its own timer, which may be late."""
        if not node.alive or node.incarnation != incarnation:
            return
        if self.now >= node.raft.deadline:
            node.raft.elapse(self.now)
            node.drain()
        wait = max(0.001, node.raft.deadline - self.now) + self.random.choice((0, 0, 0, 0.02))
        self.at(min(wait, 0.05), lambda: self._tick(node, incarnation))

    def send(self, sender: str, to: str, message: Message | tuple[Any, ...]) -> None:
        for _ in range(2 if self.random.random() < self.repeat else 1):
            if self.random.random() < self.loss or (sender, to) in self.cut or to not in self.nodes:
                continue
            self.at(self.random.uniform(0.0002, self.delay), lambda: self._deliver(sender, to, message))

    def _deliver(self, sender: str, to: str, message: Message | tuple[Any, ...]) -> None:
        node = self.nodes[to]
        if node.alive and (sender, to) not in self.cut:
            node.receive(sender, message)

    # -- faults

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        if not node.alive:
            node.start()
            self._tick(node, node.incarnation)

    def isolate(self, name: str) -> None:
        self.cut |= {(name, other) for other in self.nodes} | {(other, name) for other in self.nodes}

    def heal(self) -> None:
        self.loss = self.repeat = 0.0
        self.delay = 0.005
        self.cut.clear()
        for name, node in self.nodes.items():
            node.slow = node.failing = False
            self.restart(name)

    # -- clients

    def leader(self) -> Node | None:
        found = [each for each in self.nodes.values() if each.alive and each.raft.role is Role.LEADER]
        return max(found, key=lambda each: each.raft.hard.term, default=None)

    def propose(self, node: Node, count: int = 1) -> bool:
        values = [b"%d" % (self.proposed + each) for each in range(count)]
        try:
            node.raft.propose(self.now, values)
        except DanubeError:
            return False
        self.proposed += count
        node.drain()
        return True

    def read(self, node: Node) -> None:
        ticket = self.random.getrandbits(60)
        node.reads[ticket] = self.committed
        try:
            node.raft.read(self.now, ticket)
        except DanubeError:
            return
        node.drain()

    # -- promises

    def applied(self, node: Node, entry: Entry) -> None:
        known = self.history.setdefault(entry.index, entry)
        assert known == entry, f"{node.name} applies another entry {entry.index}"
        self.committed = max(self.committed, entry.index)

    def check(self, node: Node) -> None:
        raft = node.raft
        if raft.role is Role.LEADER:
            if raft.hard.term not in self.leaders:
                self.leaders[raft.hard.term] = node.name
                self.check_complete(raft.log)
            assert self.leaders[raft.hard.term] == node.name, f"two leaders in term {raft.hard.term}"
        log = raft.log
        assert log.applied <= log.committed
        assert log.durable <= log.handed <= log.last.index
        disk = node.disk
        assert log.durable <= disk.last.index, "something was called durable that is not"
        if log.durable > disk.start.index:
            on_disk = disk.entries[log.durable - disk.start.index - 1]
            assert on_disk.point == log.point(log.durable), "the log on disk is another one"

    def check_complete(self, log: Log) -> None:
        """A new leader has everything that was applied anywhere."""
        for index, entry in self.history.items():
            if index > log.start.index:
                assert log.point(index) == entry.point, f"a leader lacks entry {index}, which was applied"

    def check_majority_has(self) -> None:
        """Everything that was applied anywhere is on the disks of a majority of the voters."""
        newest = max(self.nodes.values(), key=lambda each: each.raft.log.applied)
        voters = newest.raft.members.voters
        for index, entry in self.history.items():
            has = [name for name in voters if _has(self.nodes[name].disk, entry)]
            assert 2 * len(has) > len(voters), f"entry {index} is only on {has}"

    def check_equal(self) -> None:
        """After everything healed, all members have the same."""
        leader = self.leader()
        assert leader is not None
        assert {self.nodes[each.identity].raft.members for each in leader.raft.members} == {leader.raft.members}
        assert {tuple(self.nodes[each.identity].values) for each in leader.raft.members} == {tuple(leader.values)}


def _promises(message: Message) -> bool:
    match message:
        case Appended():
            return message.accepted
        case Vote():
            return message.granted and not message.trial
        case AskVote():
            return not message.trial
    return False


def _has(disk: Disk, entry: Entry) -> bool:
    return entry.index <= disk.start.index or entry in disk.entries
