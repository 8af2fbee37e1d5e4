"""What all roles of one node share: its term and vote, its log, and the messages that it owes."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from pydanube.raft.entries import Entry, EntryKind, Members, Point
from pydanube.raft.log import Log
from pydanube.raft.membership import Membership
from pydanube.raft.messages import Message
from pydanube.raft.settings import RaftSettings

Envelope = tuple[str, Message]  # to whom


class Role(Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Hard(NamedTuple):
    """What a node may never forget, besides its log."""

    term: int = 0
    vote: str = ""  # empty: none given in this term


class NodeState:
    """Changed only by the roles."""

    def __init__(
        self,
        identity: str,
        hard: Hard,
        log: Log,
        members: Members,
        settings: RaftSettings,
        below: Callable[[int], int],
    ) -> None:
        self.identity = identity
        self.settings = settings
        self.log = log
        self.membership = Membership(log.start.index, members)
        for entry in log.after(log.start.index):
            self.take_members(entry)
        self.hard = hard
        self.role = Role.FOLLOWER
        self.leader: str | None = None  # of this term, as far as this node knows
        self.outbox: list[Envelope] = []  # these promise nothing, and can go at once
        self.held: list[Envelope] = []  # these promise what is not durable yet
        self.hard_changed = False
        self.cut: int | None = None  # the log on disk is void after this index
        self._below = below

    @property
    def term(self) -> int:
        return self.hard.term

    @property
    def is_voter(self) -> bool:
        return self.identity in self.membership.voters

    @property
    def is_alone(self) -> bool:
        """Whether it is the only voter, so that what is on its disk is committed."""
        return self.membership.voters == {self.identity}

    @property
    def is_only_member(self) -> bool:
        """Whether no other node learns of what it does before that is durable."""
        return len(self.membership.now.all) == 1 and self.is_alone

    def is_alone_without(self, last: int) -> bool:
        """The same, if everything after `last` were cut off."""
        return self.membership.at(last).voters == {self.identity}

    @property
    def may_stand(self) -> bool:
        return self.membership.may_stand(self.identity, self.log.committed)

    def set_hard(self, term: int, vote: str = "") -> None:
        assert term >= self.term
        if term > self.term:
            self.held.clear()  # promises of an older term are of no use; its entries may be cut off first
        if (term, vote) != self.hard:
            self.hard, self.hard_changed = Hard(term, vote), True

    def send(self, to: str, message: Message) -> None:
        self.outbox.append((to, message))

    def send_when_durable(self, to: str, message: Message) -> None:
        if self.held[-1:] != [(to, message)]:  # a leader that waits for a slow disk repeats its question
            self.held.append((to, message))

    def random_timeout(self) -> float:
        return self.settings.election_seconds * (1 + self._below(1001) / 1000)

    # -- the log -------------------------------------------------------------------------------------------------------

    def append(self, entries: list[Entry]) -> None:
        self.log.append(entries)
        for entry in entries:
            self.take_members(entry)

    def take_members(self, entry: Entry) -> None:
        if entry.kind == EntryKind.MEMBERS:
            self.membership.add(entry.index, Members.decode(entry.data))

    def cut_after(self, last: int) -> None:
        if last < self.log.handed:
            self.cut = last if self.cut is None else min(self.cut, last)
        self.log.cut(last)
        self.membership.cut(last)

    def restart_from(self, point: Point, members: Members) -> None:
        self.cut = None
        self.log.restart(point)
        self.membership.restart(point.index, members)
