"""One node: events go in, and what to write, to send and to apply comes out.

A host hands in messages, proposals and the time. After each event it sends what is in `outbox`, and applies entries up
to `log.committed` that are durable here. While it is not writing, it calls `take`, writes that work durably, then sends
its messages and calls `written`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pydanube.base.errors import LogDiverged, MembershipRefused, MetadataBusy, NotLeader
from pydanube.raft.election import Elections
from pydanube.raft.entries import ENTRY_BYTES, Entry, EntryKind, Members, Point, next_entry
from pydanube.raft.following import Following
from pydanube.raft.log import Log
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, Message, TakeLead, Vote
from pydanube.raft.replication import Leadership
from pydanube.raft.settings import RaftSettings
from pydanube.raft.state import Envelope, Hard, NodeState, Role


@dataclass(frozen=True, slots=True)
class Work:
    """One write and one sync: the log on disk is void after `cut`, then come the entries."""

    hard: Hard
    cut: int | None
    entries: tuple[Entry, ...]
    send: tuple[Envelope, ...]  # once everything else is durable


class Raft:
    """Owned by one task. Every event comes with the time."""

    def __init__(
        self,
        identity: str,
        hard: Hard,
        log: Log,
        members: Members,
        settings: RaftSettings,
        below: Callable[[int], int],
        now: float,
    ) -> None:
        """`members` are those of the snapshot at `log.start`. `below` returns a random number below its argument."""
        state = self._state = NodeState(identity, hard, log, members, settings, below)
        self.log, self.outbox = log, state.outbox
        self.ready_reads: list[tuple[object, int | None]] = []  # with the index to apply first; None: not the leader
        self.snapshots: list[str] = []  # members that need one; call `snapshot_failed` if one does not arrive
        self._elections = Elections(state, now)
        self._following = Following(state)
        self._leading: Leadership | None = None
        self._work: Work | None = None
        if state.is_alone:
            log.commit(log.durable)  # its disk is the majority

    # -- what is known -------------------------------------------------------------------------------------------------

    @property
    def hard(self) -> Hard:
        return self._state.hard

    @property
    def role(self) -> Role:
        return self._state.role

    @property
    def leader(self) -> str | None:
        """The leader of this term, if it is known."""
        return self._state.leader

    @property
    def members(self) -> Members:
        return self._state.membership.now

    @property
    def leading(self) -> Leadership | None:
        return self._leading

    @property
    def is_serving(self) -> bool:
        """Whether it leads, and has applied everything of earlier terms: decisions can be made here."""
        return self._leading is not None and self.log.applied >= self._leading.begun

    @property
    def is_alone(self) -> bool:
        """Whether it is the only voter, so that it need not ask anyone."""
        return self._state.is_alone

    @property
    def is_only_member(self) -> bool:
        return self._state.is_only_member

    @property
    def has_work(self) -> bool:
        """Whether `take` would return something, or will once the present work is written."""
        state = self._state
        return bool(self.log.handed < self.log.last.index or state.hard_changed or state.cut is not None or state.held)

    @property
    def appliable(self) -> int:
        """Entries up to here may be applied."""
        return min(self.log.committed, self.log.durable)

    @property
    def deadline(self) -> float:
        """When `elapse` must be called at the latest."""
        if self._leading is None:
            return self._elections.deadline
        return min(self._leading.next_heartbeat, self._leading.next_check)

    # -- time ----------------------------------------------------------------------------------------------------------

    def elapse(self, now: float) -> None:
        leading = self._leading
        if leading is None:
            if now >= self._elections.deadline:
                self._elections.due(now)
                self._maybe_elected(now)
        else:
            if now >= leading.next_check:
                leading.next_check = now + self._state.settings.election_seconds
                if not leading.has_majority():
                    return self._step_down(now)
            if leading.successor is not None and now >= leading.successor_until:
                leading.hand_over(None)
            if now >= leading.next_heartbeat:
                leading.heartbeat(now)
        self._flush()

    def campaign(self, now: float) -> None:
        """Stands for election without waiting for the deadline: the only voter has no one to wait for."""
        if self._state.role is Role.FOLLOWER:
            self._elections.due(now)
            self._maybe_elected(now)
            self._flush()

    # -- messages ------------------------------------------------------------------------------------------------------

    def receive(self, now: float, sender: str, message: Message) -> None:
        if self._is_disturbance(now, message):
            return
        if message.term > self._state.term and not _is_trial(message):
            self._follow(now, message.term)
        if message.term < self._state.term:
            self._answer_old(sender, message)
        else:
            self._handle(now, sender, message)
        self._flush()

    def _is_disturbance(self, now: float, message: Message) -> bool:
        """Whether this asks for an election although the leader lives."""
        if not isinstance(message, AskVote) or message.transfer or message.term <= self._state.term:
            return False
        return self._leading is not None or self._elections.is_loyal(now)

    def _answer_old(self, sender: str, message: Message) -> None:
        """Tells an outdated leader, or a candidate of an old term, that there is a newer term."""
        term = self._state.term
        if isinstance(message, AskVote):
            self._state.send(sender, Vote(term, granted=False, trial=message.trial))
        elif isinstance(message, Append | Heartbeat):
            self._state.send(sender, Appended(term, accepted=False, index=0))

    def _handle(self, now: float, sender: str, message: Message) -> None:
        leading = self._leading
        match message:
            case AskVote():
                self._elections.answer(now, sender, message)
            case Vote():
                self._elections.count(sender, message)
                self._maybe_elected(now)
            case Append() | Heartbeat():
                self._obey(now, sender)
                if isinstance(message, Append):
                    self._following.append(sender, message)
                else:
                    self._following.heartbeat(sender, message)
            case Appended():
                if leading is not None:
                    leading.appended(sender, message)
                    self._after_commit(now)
            case Alive():
                if leading is not None:
                    leading.alive(sender, message)
            case TakeLead():
                if leading is None and self._state.may_stand:
                    self._elections.stand(now, transfer=True)

    # -- roles ---------------------------------------------------------------------------------------------------------

    def _obey(self, now: float, leader: str) -> None:
        if self._leading is not None:
            raise LogDiverged(f"{leader} leads term {self._state.term}, and so does this node")
        self._state.role, self._state.leader = Role.FOLLOWER, leader
        self._elections.heard(now)

    def _follow(self, now: float, term: int) -> None:
        """There is a newer term, whose leader is not known yet."""
        if self._leading is not None:
            self._step_down(now)
        self._state.role, self._state.leader = Role.FOLLOWER, None
        self._state.set_hard(term)

    def _step_down(self, now: float) -> None:
        leading, self._leading = self._leading, None
        assert leading is not None
        self.ready_reads += [(ticket, None) for ticket in leading.unanswered()]
        self.snapshots.clear()
        self._state.role, self._state.leader = Role.FOLLOWER, None
        self._elections.lost_leader()
        self._elections.postpone(now)

    def _maybe_elected(self, now: float) -> None:
        if self._elections.won(trial=True):
            self._elections.stand(now)
        if self._elections.won(trial=False):
            state = self._state
            state.role, state.leader = Role.LEADER, state.identity
            self._leading = Leadership(state, now)
            self._append(EntryKind.NOTHING, [b""])
            self._leading.heartbeat(now)

    def _after_commit(self, now: float) -> None:
        """A leader that is no voter any more leaves once that is committed."""
        membership = self._state.membership
        if self._leading is not None and not self._state.is_voter and self.log.committed >= membership.index:
            self._step_down(now)

    def step_aside(self, now: float) -> None:
        """This node's disk is slow or fails: others must lead, as long as there are any."""
        self._elections.abstains_until = now + self._state.settings.abstain_seconds
        if self._leading is not None and len(self._state.membership.voters) > 1:
            self._leading.abandon()
            self._step_down(now)

    # -- proposals -----------------------------------------------------------------------------------------------------

    def propose(self, now: float, data: Sequence[bytes], *, push: bool = True) -> Point:
        """Appends entries; returns the point of the last one, which is committed once the log has it committed.

        Raises `NotLeader`, which changes nothing. Without `push`, the caller calls that itself when it has proposed
        everything of one turn, so that all of it goes to the followers in one message.
        """
        self._check_leads()
        waiting = self.log.uncommitted_bytes
        size = sum(map(len, data)) + ENTRY_BYTES * len(data)
        if waiting and waiting + size > self._state.settings.uncommitted_bytes_max:
            raise MetadataBusy(f"{waiting} bytes of transactions wait for a majority of the nodes")
        point = self._append(EntryKind.DATA, data)
        if push:
            self._flush()
        return point

    def push(self) -> None:
        """Sends what was proposed."""
        self._flush()

    def change(self, now: float, wanted: Members) -> Point:
        """Proposes the next members. Raises `NotLeader`, `MembershipRefused`."""
        leading, membership = self._check_leads(), self._state.membership
        if not leading.is_settled:
            raise MembershipRefused("the leader is new and does not know yet what is committed")
        if membership.index > self.log.committed:
            raise MembershipRefused("the last change of members is not committed yet")
        membership.check(wanted)
        point = self._append(EntryKind.MEMBERS, [wanted.encode()])
        self._flush()
        return point

    def _check_leads(self) -> Leadership:
        if self._leading is None or self._leading.successor is not None:
            raise NotLeader("this node is not the leader")
        return self._leading

    def _append(self, kind: EntryKind, data: Sequence[bytes]) -> Point:
        entries: list[Entry] = []
        last = self.log.last
        for each in data:
            entries.append(next_entry(last, self._state.term, kind, each))
            last = entries[-1].point
        self._state.append(entries)
        return last

    def read(self, now: float, ticket: object) -> None:
        """Puts the ticket into `ready_reads` once everything that was committed before this call can be known."""
        self._check_leads().ask(ticket)
        self._flush()

    def transfer(self, now: float, successor: str) -> None:
        """Hands the lead over to another voter, after it has everything. Meanwhile, nothing can be proposed."""
        leading = self._check_leads()
        if successor not in self._state.membership.voters - {self._state.identity}:
            raise MembershipRefused(f"{successor} is not another voter")
        leading.hand_over(successor, now + self._state.settings.election_seconds)
        self._flush()

    # -- the disk ------------------------------------------------------------------------------------------------------

    def take(self) -> Work | None:
        """What to make durable now, if anything is, and if nothing is being written."""
        state, log = self._state, self.log
        if self._work is not None or not self.has_work:
            return None
        entries = tuple(log.after(log.handed, state.settings.write_bytes)) if log.handed < log.last.index else ()
        if entries:
            log.handed = entries[-1].index
        send: tuple[Envelope, ...] = ()
        if log.handed == log.last.index:  # otherwise some of them promise what a later write has
            send = tuple(state.held)
            state.held.clear()
        self._work = Work(state.hard, state.cut, entries, send)
        state.hard_changed, state.cut = False, None
        return self._work

    def written(self, now: float) -> None:
        """The work is durable; its messages may go."""
        work, self._work = self._work, None
        assert work is not None
        if work.entries:
            self.log.wrote(work.entries[-1].point)
        if work.hard == self._state.hard:
            self._elections.own_vote_is_durable()
            self._maybe_elected(now)
        if self._leading is not None:
            self._leading.commit()
            self._after_commit(now)
        self._flush()

    def not_written(self, now: float) -> None:
        """The work failed, and nothing of it counts: all of it is in the next one, but for the messages.

        A node that is the only voter forgets what it could not write, as if it had ended and started again: no one else
        can have committed it, so the caller that proposed it need not wait until the disk is well.
        """
        assert self._work is not None
        self._work = None
        state = self._state
        self.log.handed = self.log.durable
        state.hard_changed = True
        state.cut = self.log.durable  # a part of the work may be on disk
        alone = state.is_alone and state.is_alone_without(self.log.durable)
        if alone and self.log.committed <= self.log.durable:
            if self._leading is not None:
                self._step_down(now)
            state.cut_after(self.log.durable)
            self._elections.stand(now)
            self._maybe_elected(now)
        else:
            self.step_aside(now)

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def forget(self, index: int) -> None:
        """There is a snapshot at `index`, so the log need not have what is before it."""
        self.log.forget(index, 0 if self._state.is_only_member else self._state.settings.kept_bytes)
        self._state.membership.forget(self.log.start.index)

    def members_at(self, index: int) -> Members:
        return self._state.membership.at(index)

    def needs(self, term: int, point: Point) -> bool:
        """Whether a snapshot at this point, from the leader of this term, has what this node lacks.

        One that does not reach beyond the log is of no use, and replacing the log would lose what comes after it: the
        leader may count on that.
        """
        return term >= self._state.term and point.index > self.log.committed and not self.log.has(point)

    def install(self, now: float, sender: str, term: int, point: Point, members: Members) -> None:
        """A snapshot that this node needs is durable here, in place of the whole log. The host calls it while it writes
        nothing. It also answers one that this node does not need.
        """
        if term < self._state.term:
            return
        if term > self._state.term:
            self._follow(now, term)
        self._obey(now, sender)
        known = self.log.point(point.index)
        if self.needs(term, point):
            self._state.restart_from(point, members)
        elif known is not None:
            self._following.check_equal(point, known)
        self.log.commit(point.index)
        self._state.send_when_durable(sender, Appended(term, True, self.log.committed))

    def snapshot_failed(self, now: float, member: str) -> None:
        """A snapshot did not reach the member, or its answer is lost: it is asked what it has, or gets another."""
        if self._leading is not None:
            self._leading.snapshot_failed(member)
            self._flush()

    def unreachable(self, member: str) -> None:
        if self._leading is not None:
            self._leading.unreachable(member)

    # -- after each event ----------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        leading = self._leading
        if leading is not None:
            leading.begin_reads()
            self.ready_reads += leading.ready_reads()
            self.snapshots += leading.replicate()
            leading.tell_successor()


def _is_trial(message: Message) -> bool:
    """Whether its term is only asked about."""
    return (
        message.trial
        if isinstance(message, AskVote)
        else isinstance(message, Vote) and message.trial and message.granted
    )
