"""The leader's side of replication: what each member has, what may be sent to it, and what is committed.

A follower whose log is unknown is probed with one message at a time; one that follows gets a stream of them, bounded in
number and bytes; one that lacks what only a snapshot has gets that, and nothing else meanwhile.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from pydanube.base.errors import MetadataBusy
from pydanube.raft.entries import Members, Point
from pydanube.raft.membership import majority_of
from pydanube.raft.messages import Alive, Append, Appended, Heartbeat, TakeLead
from pydanube.raft.state import NodeState


class Mode(Enum):
    PROBE = "probe"
    STREAM = "stream"
    SNAPSHOT = "snapshot"


class Progress:
    """What the leader knows of one other member."""

    __slots__ = (
        "_stuck_at",
        "active",
        "flights",
        "in_flight_bytes",
        "match",
        "mode",
        "next",
        "probed",
        "round",
        "told",
    )

    def __init__(self, next: int) -> None:
        self.mode = Mode.PROBE
        self.match = 0
        self.next = next  # index of the next entry to send
        self.probed = False  # a probe is on its way
        self.flights: deque[tuple[int, int]] = deque()  # last index and bytes of messages that are not answered
        self.in_flight_bytes = 0
        self.round = 0  # of the last heartbeat that it answered
        self.told = 0  # the last committed index that it was told
        self.active = True  # has answered since this was last checked
        self._stuck_at: int | None = None  # what it had at the last heartbeat, if more was on its way

    def probe(self, next: int) -> None:
        self.mode, self.next, self.probed = Mode.PROBE, next, False
        self.flights.clear()
        self.in_flight_bytes = 0

    def look_for_losses(self) -> None:
        """Called with each timed heartbeat: if nothing arrives for two of them, it may be lost, and goes again."""
        self.probed = False
        if self.mode is Mode.STREAM and self._stuck_at == self.match:
            self.probe(self.match + 1)
        self._stuck_at = self.match if self.flights else None

    def landed(self, index: int) -> None:
        self.match = max(self.match, index)
        self.next = max(self.next, self.match + 1)
        while self.flights and self.flights[0][0] <= index:
            self.in_flight_bytes -= self.flights.popleft()[1]


class Leadership:
    """The lead in one term. It begins with an entry of this term, because only those can be counted (Raft, 5.4.2)."""

    def __init__(self, state: NodeState, now: float) -> None:
        self._state = state
        self.begun = state.log.last.index + 1  # index of the first entry of this term
        self._progress: dict[str, Progress] = {}
        self._members: Members | None = None  # those that `_progress` has
        self._round = 0
        self._reads: deque[tuple[int, int, object]] = deque()  # round, index and ticket
        self._asked: list[object] = []  # tickets that need a round of heartbeats
        self.next_heartbeat = now
        self.next_check = now + state.settings.election_seconds
        self.successor: str | None = None
        self.successor_until = 0.0
        self._told_successor = False

    @property
    def is_settled(self) -> bool:
        """Whether everything of earlier terms is committed and known to be."""
        return self._state.log.committed >= self.begun

    def match(self, member: str) -> int:
        """The last index that the member is known to have."""
        found = self._progress.get(member)
        return 0 if found is None else found.match

    def progress(self) -> dict[str, Progress]:
        self._follow_members()
        return self._progress

    def _follow_members(self) -> None:
        state = self._state
        if state.membership.now is self._members:
            return
        self._members = state.membership.now
        others = {each.identity for each in self._members} - {state.identity}
        for gone in self._progress.keys() - others:
            del self._progress[gone]
        for member in sorted(others - self._progress.keys()):
            self._progress[member] = Progress(state.log.last.index + 1)

    # -- sending -------------------------------------------------------------------------------------------------------

    def replicate(self) -> list[str]:
        """Sends all that may be sent; returns the members that need a snapshot."""
        return [member for member, found in self.progress().items() if not self._send_to(member, found)]

    def _send_to(self, member: str, found: Progress) -> bool:
        log, settings = self._state.log, self._state.settings
        while True:
            before = log.point(found.next - 1)
            if found.mode is Mode.SNAPSHOT:
                return True
            if before is None:
                found.mode = Mode.SNAPSHOT
                return False
            if found.mode is Mode.PROBE and found.probed:
                return True
            full = len(found.flights) >= settings.in_flight_max or found.in_flight_bytes >= settings.in_flight_bytes_max
            if found.mode is Mode.STREAM and (full or found.next > log.last.index):
                if found.told < min(found.match, log.committed):
                    self._tell_committed(member, found)
                return True
            self._send_entries(member, found, before)

    def _send_entries(self, member: str, found: Progress, before: Point) -> None:
        state = self._state
        entries = tuple(state.log.after(before.index, state.settings.append_bytes))
        state.send(member, Append(state.term, before, entries, state.log.committed))
        if found.mode is Mode.PROBE:
            found.probed = True
            return
        size = sum([entry.size for entry in entries])
        found.next = entries[-1].index + 1
        found.flights.append((entries[-1].index, size))
        found.in_flight_bytes += size

    def heartbeat(self, now: float) -> None:
        self.next_heartbeat = now + self._state.settings.heartbeat_seconds
        for found in self.progress().values():
            found.look_for_losses()
        self._begin_round()

    def _begin_round(self) -> None:
        self._round += 1
        for member, found in self.progress().items():
            self._tell_committed(member, found)

    def _tell_committed(self, member: str, found: Progress) -> None:
        state = self._state
        found.told = min(found.match, state.log.committed)
        state.send(member, Heartbeat(state.term, self._round, found.told))

    # -- handing over --------------------------------------------------------------------------------------------------

    def hand_over(self, successor: str | None, until: float = 0.0) -> None:
        self.successor, self.successor_until, self._told_successor = successor, until, False

    def tell_successor(self) -> None:
        """Once it has everything."""
        successor, state = self.successor, self._state
        if successor is not None and not self._told_successor and self.match(successor) == state.log.last.index:
            self._told_successor = True
            state.send(successor, TakeLead(state.term))

    def abandon(self) -> None:
        """Asks the voter that has most to take over at once, as this node cannot continue."""
        others = {each: found for each, found in self.progress().items() if each in self._state.membership.voters}
        if others:
            best = max(others, key=lambda each: (others[each].match, others[each].round))  # a dead one has an old round
            self._state.send(best, TakeLead(self._state.term))

    # -- reads ---------------------------------------------------------------------------------------------------------

    def ask(self, ticket: object) -> None:
        """The ticket is ready once this node was certainly still the leader after this call."""
        if len(self._asked) >= self._state.settings.reads_waiting_max:
            raise MetadataBusy(f"{len(self._asked)} reads wait for an answer of most of the nodes")
        self._asked.append(ticket)

    def begin_reads(self) -> None:
        """Starts a round for all tickets that wait, unless one is under way. Rounds may follow each other quickly, so
        nothing is concluded from what has not been answered since the last one."""
        if self._asked and not self._reads and self.is_settled:
            self._begin_round()
            self._reads.extend((self._round, self._state.log.committed, ticket) for ticket in self._asked)
            self._asked.clear()

    def ready_reads(self) -> list[tuple[object, int]]:
        """Tickets that are ready, each with the index that must be applied first."""
        if not self._reads:
            return []
        rounds = {member: found.round for member, found in self.progress().items()}
        rounds[self._state.identity] = self._round
        proven = majority_of(rounds, self._state.membership.voters)
        ready = []
        while self._reads and self._reads[0][0] <= proven:
            _, index, ticket = self._reads.popleft()
            ready.append((ticket, index))
        return ready

    def unanswered(self) -> list[object]:
        """The tickets that will never be ready, because this node leads no more."""
        return [*(ticket for _, _, ticket in self._reads), *self._asked]

    # -- answers -------------------------------------------------------------------------------------------------------

    def alive(self, member: str, answer: Alive) -> None:
        found = self.progress().get(member)
        if found is not None:
            found.active = True
            found.round = max(found.round, answer.round)

    def has_majority(self) -> bool:
        """Whether a majority has answered since this was last asked."""
        active = {self._state.identity}
        for member, found in self.progress().items():
            if found.active:
                active.add(member)
            found.active = False
        return self._state.membership.is_majority(active)

    def unreachable(self, member: str) -> None:
        """What was sent to it lately may be lost."""
        found = self.progress().get(member)
        if found is not None and found.mode is not Mode.SNAPSHOT:
            found.probe(found.match + 1)

    def snapshot_failed(self, member: str) -> None:
        found = self.progress().get(member)
        if found is not None and found.mode is Mode.SNAPSHOT:
            found.probe(found.match + 1)

    def appended(self, member: str, answer: Appended) -> None:
        found = self.progress().get(member)
        if found is None:
            return
        found.active = True
        if answer.accepted:
            more = answer.index > found.match
            found.landed(answer.index)
            if found.mode is Mode.PROBE or (found.mode is Mode.SNAPSHOT and more):
                found.probe(found.match + 1)
                found.mode = Mode.STREAM  # if the log begins after that by now, the member gets another snapshot
            self.commit()
        elif found.mode is not Mode.SNAPSHOT and answer.index < found.next:
            index, _ = self._state.log.nearest(answer.index, answer.entry_term)
            found.probe(max(found.match, min(index, answer.index, found.next - 2)) + 1)

    def commit(self) -> None:
        """Counts who has what. This node's own copy counts once it is durable."""
        state = self._state
        matches = {member: found.match for member, found in self.progress().items()}
        matches[state.identity] = state.log.durable
        index = majority_of(matches, state.membership.voters)
        if index > state.log.committed and index >= self.begun:
            state.log.commit(index)
