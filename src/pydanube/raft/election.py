"""Elections: a node without a leader asks whether it would be elected before it disturbs the others.

A node that has heard from a leader lately gives no vote, so one that was cut off cannot bring down a leader that the
others follow. A vote is durable before it is given, also the one for itself.
"""

from __future__ import annotations

from pydanube.raft.messages import AskVote, Vote
from pydanube.raft.state import NodeState, Role


class Elections:
    """The deadline after which a node stands for election, and the votes of the one that it stands for."""

    def __init__(self, state: NodeState, now: float) -> None:
        self._state = state
        self._heard: float | None = None  # when a leader of this term was last heard of
        self._granted: set[str] = set()
        self._trial = False
        self.abstains_until = now
        self.deadline = now + state.random_timeout()

    def heard(self, now: float) -> None:
        """A leader is there, or this node has just given its vote: others must have their time."""
        self._heard = now
        self.postpone(now)

    def postpone(self, now: float) -> None:
        self.deadline = now + self._state.random_timeout()

    def lost_leader(self) -> None:
        """The leader has stepped down, so this node is free to vote."""
        self._heard = None

    # -- standing ------------------------------------------------------------------------------------------------------

    def due(self, now: float) -> None:
        """The deadline has passed."""
        state = self._state
        self.postpone(now)
        if not state.may_stand or now < self.abstains_until:
            return
        state.leader = None
        state.role = Role.CANDIDATE
        self._trial = True
        self._begin(AskVote(state.term + 1, state.log.last, trial=True))

    def stand(self, now: float, *, transfer: bool = False) -> None:
        """Stands for election in a new term, with a vote of its own that counts once it is durable."""
        state = self._state
        state.role, state.leader = Role.CANDIDATE, None
        state.set_hard(state.term + 1, state.identity)
        self.postpone(now)
        self._trial = False
        self._begin(AskVote(state.term, state.log.last, transfer=transfer))

    def _begin(self, question: AskVote) -> None:
        at_once = question.trial or self._state.is_only_member  # its vote is durable with its first entry
        self._granted = {self._state.identity} if at_once else set()
        for voter in sorted(self._state.membership.voters - {self._state.identity}):
            if question.trial:
                self._state.send(voter, question)
            else:
                self._state.send_when_durable(voter, question)

    def won(self, *, trial: bool) -> bool:
        """Whether this node is elected, or would be."""
        state = self._state
        return state.role is Role.CANDIDATE and self._trial is trial and state.membership.is_majority(self._granted)

    def own_vote_is_durable(self) -> None:
        state = self._state
        if state.role is Role.CANDIDATE and not self._trial and state.hard.vote == state.identity:
            self._granted.add(state.identity)

    def count(self, voter: str, vote: Vote) -> None:
        state = self._state
        expected = state.term + 1 if vote.trial else state.term
        if vote.granted and vote.trial is self._trial and vote.term == expected:
            self._granted.add(voter)

    # -- voting --------------------------------------------------------------------------------------------------------

    def is_loyal(self, now: float) -> bool:
        """Whether a leader was heard of within the shortest election timeout."""
        return self._heard is not None and now < self._heard + self._state.settings.election_seconds

    def answer(self, now: float, candidate: str, asked: AskVote) -> None:
        """Answers a question of the present term, or a trial."""
        state = self._state
        last = state.log.last
        current = (asked.last.term, asked.last.index) >= (last.term, last.index)
        if asked.trial:
            granted = asked.term > state.term and current and not self.is_loyal(now)
            state.send(candidate, Vote(asked.term if granted else state.term, granted, trial=True))
            return
        free = state.hard.vote in ("", candidate) and state.role is not Role.LEADER
        if asked.term == state.term and free and current:
            state.set_hard(state.term, candidate)
            self.postpone(now)
            state.send_when_durable(candidate, Vote(state.term, granted=True))
        else:
            state.send(candidate, Vote(state.term, granted=False))
