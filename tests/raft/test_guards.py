"""Each mistake that the storms are there to find is planted, and found."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pydanube.base.errors import DanubeError
from pydanube.raft.election import Elections
from pydanube.raft.entries import Point
from pydanube.raft.log import Log
from pydanube.raft.membership import Membership
from pydanube.raft.messages import AskVote, Message
from pydanube.raft.node import Raft
from pydanube.raft.replication import Leadership
from pydanube.raft.state import NodeState
from raft.test_raft import run_members, run_storm

SEEDS = 60
Patch = pytest.MonkeyPatch


def answers_before_it_is_durable(patch: Patch) -> None:
    def send(self: NodeState, to: str, message: Message) -> None:
        self.send(to, message)

    patch.setattr(NodeState, "send_when_durable", send)


def reads_without_a_round(patch: Patch) -> None:
    def ready(self: Leadership) -> list[tuple[object, int]]:
        found = [(ticket, self._state.log.committed) for ticket in self._asked]
        self._asked.clear()
        return found

    patch.setattr(Leadership, "begin_reads", lambda self: None)
    patch.setattr(Leadership, "ready_reads", ready)


def votes_twice(patch: Patch) -> None:
    original = Elections.answer

    def answer(self: Elections, now: float, candidate: str, asked: AskVote) -> None:
        self._state.hard = self._state.hard._replace(vote="")
        original(self, now, candidate, asked)

    patch.setattr(Elections, "answer", answer)


def votes_for_whoever_asks(patch: Patch) -> None:
    def last(self: Log) -> Point:
        return Point()

    original = Elections.answer

    def answer(self: Elections, now: float, candidate: str, asked: AskVote) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Log, "last", property(last))
            original(self, now, candidate, asked)

    patch.setattr(Elections, "answer", answer)


def a_voter_that_leaves_never_stands(patch: Patch) -> None:
    patch.setattr(Membership, "may_stand", lambda self, identity, committed: identity in self.voters)


def trusts_what_a_failed_write_left(patch: Patch) -> None:
    original = Raft.not_written

    def not_written(self: Raft, now: float) -> None:
        cut = self._state.cut
        original(self, now)
        self._state.cut = cut

    patch.setattr(Raft, "not_written", not_written)


def does_not_wait_for_an_entry_of_its_own_term(patch: Patch) -> None:
    original = Leadership.__init__

    def init(self: Leadership, state: NodeState, now: float) -> None:
        original(self, state, now)
        self.begun = 0

    patch.setattr(Leadership, "__init__", init)


MISTAKES: list[tuple[Callable[[Patch], None], Callable[[int, int], None]]] = [
    (answers_before_it_is_durable, run_storm),
    (votes_twice, run_storm),
    (reads_without_a_round, run_storm),
    (votes_for_whoever_asks, run_storm),
    (a_voter_that_leaves_never_stands, run_members),
    (trusts_what_a_failed_write_left, run_storm),
    (does_not_wait_for_an_entry_of_its_own_term, run_storm),
]


@pytest.mark.slow
@pytest.mark.parametrize(("mistake", "run"), MISTAKES, ids=[each[0].__name__ for each in MISTAKES])
def test_a_planted_mistake_is_found(
    mistake: Callable[[Patch], None], run: Callable[[int, int], None], monkeypatch: Patch
) -> None:
    mistake(monkeypatch)
    for seed in range(SEEDS):
        try:
            run(seed, 3)
        except (AssertionError, DanubeError):
            return
    pytest.fail(f"not found in {SEEDS} seeds")
