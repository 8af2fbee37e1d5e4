"""The simulator finds the mistakes that nodes with metadata must not make: each guard is turned off, and seeds fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pydanube.metadata.log import Group
from pydanube.raft.entries import EntryKind, Members, Point
from pydanube.raft.membership import Membership
from pydanube.raft.messages import Append, AskVote, Message, Vote
from pydanube.raft.node import Raft
from pydanube.raft.replication import Leadership
from pydanube.raft.state import NodeState
from pydanube.sim.plan import Fault, Plan, plan_for
from pydanube.sim.run import run_plan
from pydanube.storage.metadata.log_file import LogFile, Write
from pydanube.storage.metadata.store import StateStore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # exhaustive: minutes on a busy machine

SEEDS = 200
Patch = pytest.MonkeyPatch


def votes_before_it_is_durable(patch: Patch) -> None:
    original = NodeState.send_when_durable

    def send(self: NodeState, to: str, message: Message) -> None:
        (NodeState.send if isinstance(message, AskVote | Vote) else original)(self, to, message)

    patch.setattr(NodeState, "send_when_durable", send)


def counts_what_is_not_synced(patch: Patch) -> None:
    async def append(self: LogFile, write: Write, *, mark: bool = False) -> None:
        active = self._active
        assert active is not None
        group = Group(active.groups, write.hard, write.committed, write.cut, write.entries)
        content = group.encode(active.header.salt)
        await active.handle.write(active.position, [content], sync=False)
        active.position += len(content)
        active.groups += 1
        active.covered = mark

    patch.setattr(LogFile, "append", append)


def reads_without_a_round(patch: Patch) -> None:
    def ready(self: Leadership) -> list[tuple[object, int]]:
        found = [(ticket, self._state.log.committed) for ticket in self._asked]
        self._asked.clear()
        return found

    patch.setattr(Leadership, "begin_reads", lambda self: None)
    patch.setattr(Leadership, "ready_reads", ready)


def obeys_a_leader_of_an_older_term(patch: Patch) -> None:
    original = Raft.receive

    def receive(self: Raft, now: float, sender: str, message: Message) -> None:
        if isinstance(message, Append) and message.term < self.hard.term:
            message = replace(message, term=self.hard.term)
        original(self, now, sender, message)

    patch.setattr(Raft, "receive", receive)


def commits_entries_of_older_terms(patch: Patch) -> None:
    original = Leadership.__init__

    def init(self: Leadership, state: NodeState, now: float) -> None:
        original(self, state, now)
        self.begun = 0

    patch.setattr(Leadership, "__init__", init)


def changes_many_members_at_once(patch: Patch) -> None:
    def check(self: Membership, wanted: Members) -> None:
        """Nothing."""

    def change(self: Raft, now: float, wanted: Members) -> Point:
        self._check_leads()
        point = self._append(EntryKind.MEMBERS, [wanted.encode()])
        self._flush()
        return point

    patch.setattr(Membership, "check", check)
    patch.setattr(Raft, "change", change)


def renews_without_a_round(patch: Patch) -> None:
    async def keep_alive(self: StateStore, session: int) -> int:
        seconds = self._check_session(session)
        if self._timers is not None:
            self._timers.renew(session, seconds)
        return 0

    patch.setattr(StateStore, "_keep_alive", keep_alive)


MISTAKES: list[tuple[Callable[[Patch], None], str]] = [
    (votes_before_it_is_durable, "voting"),
    (counts_what_is_not_synced, "power_all"),
    (reads_without_a_round, "frozen"),
    (obeys_a_leader_of_an_older_term, "deposed"),
    (commits_entries_of_older_terms, "deposed"),
    (changes_many_members_at_once, "greedy"),
    (renews_without_a_round, "frozen"),
]


def aimed(seed: int, kind: str) -> Plan:
    """A plan of the profile `elections` with only one kind of fault."""
    faults = [Fault(1.5 + 4.0 * number, kind, 7 * seed + 13 * number, 0.8, 0.5) for number in range(4)]
    return replace(plan_for(seed, "elections"), faults=tuple(faults), seconds=17.0)


@pytest.mark.parametrize(("mistake", "kind"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES])
def test_a_guard_that_is_turned_off_is_found(mistake: Callable[[Patch], None], kind: str, monkeypatch: Patch) -> None:
    mistake(monkeypatch)
    for seed in range(SEEDS):
        if run_plan(aimed(seed, kind)).violations:
            return
    pytest.fail(f"not found in {SEEDS} seeds")


@pytest.mark.parametrize("kind", sorted({kind for _, kind in MISTAKES}))
def test_with_all_guards_the_same_faults_break_nothing(kind: str) -> None:
    for seed in range(12):
        assert run_plan(aimed(seed, kind)).violations == (), f"seed {seed}"
