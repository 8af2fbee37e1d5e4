"""Who the members are. A change takes effect when its entry is in the log, and ends if that is cut off.

Only one voter joins or leaves at a time, so the majorities before and after a change always have a node in common.
"""

from __future__ import annotations

from pydanube.base.errors import MembershipRefused
from pydanube.raft.entries import Members


class Membership:
    """The members by the index of the entry that named them; the oldest are those of the snapshot."""

    def __init__(self, index: int, members: Members) -> None:
        self._history = [(index, members)]
        self._set(members)

    def _set(self, members: Members) -> None:
        self.now = members
        self.voters = members.voters

    @property
    def index(self) -> int:
        """The index of the entry that named the present members."""
        return self._history[-1][0]

    def may_stand(self, identity: str, committed: int) -> bool:
        """Whether a node can be elected. One that leaves can, until that is committed: perhaps only it has the entry
        that says so, and then no one else can be elected."""
        if identity in self.voters:
            return True
        before = self._history[-2:-1]
        return self.index > committed and any(identity in members.voters for _, members in before)

    def at(self, index: int) -> Members:
        """The members as a snapshot at `index` has them."""
        return next(members for named, members in reversed(self._history) if named <= index)

    def add(self, index: int, members: Members) -> None:
        assert index > self.index
        self._history.append((index, members))
        self._set(members)

    def cut(self, last: int) -> None:
        while self._history[-1][0] > last:
            self._history.pop()
        self._set(self._history[-1][1])

    def forget(self, index: int) -> None:
        """A snapshot at `index` has the members."""
        while len(self._history) > 1 and self._history[1][0] <= index:
            self._history.pop(0)

    def restart(self, index: int, members: Members) -> None:
        self._history = [(index, members)]
        self._set(members)

    def check(self, wanted: Members) -> None:
        """Raises `MembershipRefused` if these cannot be the next members."""
        if len(self.voters ^ wanted.voters) > 1:
            raise MembershipRefused("only one voter can join or leave at a time")
        if not wanted.voters:
            raise MembershipRefused("there must be at least one voter")
        if len({each.identity for each in wanted}) < len(wanted.all):
            raise MembershipRefused("a node can be a member only once")
        newcomers = wanted.voters - {each.identity for each in self.now}
        if newcomers:
            raise MembershipRefused(f"{min(newcomers)} must be a learner first, so that it can catch up")

    def is_majority(self, granted: frozenset[str] | set[str]) -> bool:
        return 2 * len(self.voters & granted) > len(self.voters)


def majority_of(values: dict[str, int], voters: frozenset[str]) -> int:
    """The largest value that a majority of the voters has reached."""
    found = sorted((values.get(voter, 0) for voter in voters), reverse=True)
    return found[len(found) // 2]
