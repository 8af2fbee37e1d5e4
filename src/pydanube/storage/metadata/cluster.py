"""What a node has to do with the others: messages in their order, time, snapshots, and where everyone is.

A node that is the only member has none of it, and needs no timer.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from collections.abc import Iterable
from typing import Protocol

from pydanube.base.addresses import HostPort
from pydanube.base.errors import DanubeError
from pydanube.base.ids import NodeIdentity
from pydanube.ports.peers import Peers
from pydanube.raft.entries import Members
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, TakeLead, Vote
from pydanube.raft.node import Raft
from pydanube.raft.state import Envelope
from pydanube.storage.metadata.desk import Desk, DeskHost
from pydanube.storage.metadata.log_file import Snapshot
from pydanube.storage.metadata.snapshots import SnapshotReceiver, SnapshotSender
from pydanube.storage.metadata.writer import LogWriter
from pydanube.wire.peer.messages import CONSENSUS, MessageTable, UnknownRequest
from pydanube.wire.peer.metadata import (
    METADATA,
    MemberAddresses,
    MetadataAnswer,
    MetadataRequest,
    SnapshotPart,
    SnapshotTaken,
)

URGENT = (AskVote, Vote, Heartbeat, Alive, TakeLead)  # small, and a late one costs an election
SLOW_SECONDS = 1.0  # after which a write means that the disk is too slow to lead
NUMBERS_BITS = 32  # of requests in one life of a node: an answer that comes late belongs to no other request
TICK_SECONDS_MIN = 0.001  # between two looks at the time
MESSAGES = MessageTable([*CONSENSUS, *METADATA])  # what a node of the metadata understands


class ClusterHost(DeskHost, Protocol):
    """The store."""

    def carry_on(self) -> None: ...

    def halt(self, error: DanubeError) -> None: ...

    def snapshot(self) -> Snapshot: ...


class Cluster:
    """Owned by one store. Does nothing before `attach`."""

    def __init__(self, raft: Raft, host: ClusterHost, writer: LogWriter, identity: NodeIdentity) -> None:
        self.desk = Desk(raft, host, self.post, identity)
        self._raft = raft
        self._host = host
        self._writer = writer
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._peers: Peers | None = None
        self._timer: TimerHandle | None = None
        self._linked: Members | None = None  # the members that there are links to
        self._links: dict[str, str] = {}  # address by identity
        self._slow: float | None = None  # when the write began because of which this node has stepped aside
        self._sender = SnapshotSender(self.post, self._snapshot_ended)
        self._receiver = SnapshotReceiver(self.post, writer.install)

    def attach(self, peers: Peers, boot: int) -> None:
        self._peers = peers
        self.desk.number = self._sender.transfer = boot << NUMBERS_BITS

    async def stop(self, error: DanubeError) -> None:
        """Leaves the lead to another node, if there is one."""
        if not self._raft.is_only_member:
            self._raft.step_aside(self._loop.time())
            self.send()
        self._end(error)
        await self.desk.stop()

    def halt(self, error: DanubeError) -> None:
        """Says nothing more to anyone."""
        for identity in list(self._links):
            self._unlink(identity)
        self._end(error)

    def _end(self, error: DanubeError) -> None:
        self.desk.refuse_all(error)
        self._sender.stop()
        self._receiver.stop()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._peers = None

    # -- messages ------------------------------------------------------------------------------------------------------

    def post(self, to: NodeIdentity, message: object) -> None:
        if self._peers is not None:
            self._peers.send(to, message, urgent=isinstance(message, URGENT))

    def post_all(self, envelopes: Iterable[Envelope]) -> None:
        for to, message in envelopes:
            self.post(NodeIdentity(to), message)

    def send(self) -> None:
        """Sends what promises nothing. A member that has not answered yet may not know where the others are."""
        raft = self._raft
        if not raft.outbox:
            return
        for to, message in raft.outbox:
            if isinstance(message, Heartbeat) and raft.leading is not None and not raft.leading.match(to):
                self.post(NodeIdentity(to), MemberAddresses(raft.members.all))
            self.post(NodeIdentity(to), message)
        raft.outbox.clear()

    def on_message(self, sender: NodeIdentity, message: object) -> None:
        match message:
            case AskVote() | Vote() | Append() | Appended() | Heartbeat() | Alive() | TakeLead():
                if not self._writer.is_installing:
                    self._hear(sender, message)
            case MetadataRequest():
                self.desk.on_request(sender, message)
            case MetadataAnswer() | UnknownRequest():
                self.desk.on_answer(sender, message)
            case SnapshotPart():
                self._take_part(sender, message)
            case SnapshotTaken():
                self._sender.on_taken(message)
            case MemberAddresses(members):
                self._link(Members(members))  # also one that an entry here has removed, which may never count

    def _hear(
        self, sender: NodeIdentity, message: AskVote | Vote | Append | Appended | Heartbeat | Alive | TakeLead
    ) -> None:
        self.desk.on_heard(sender)
        try:
            self._raft.receive(self._loop.time(), sender, message)
        except DanubeError as error:
            self._host.halt(error)
        else:
            self._host.carry_on()

    def on_lost(self, peer: NodeIdentity) -> None:
        self.desk.on_lost(peer)
        self._raft.unreachable(peer)

    # -- after each event ----------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Notices another leader, other members, those that need a snapshot, and what the time is."""
        raft = self._raft
        self.desk.look()
        if self._peers is None:
            return
        if raft.members is not self._linked:
            self._linked = raft.members
            if raft.members.all:
                for gone in [identity for identity in self._links if raft.members.get(identity) is None]:
                    self._unlink(gone)
                self._link(raft.members)
        if raft.leading is None:
            self._sender.stop()
        for member in raft.snapshots:
            self._sender.start(member, raft.hard.term, self._host.snapshot())
        raft.snapshots.clear()
        if not raft.is_only_member and (self._timer is None or raft.deadline < self._timer.when()):
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when = max(self._raft.deadline, self._loop.time() + TICK_SECONDS_MIN)
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now, raft, began = self._loop.time(), self._raft, self._writer.began
        if began is not None and began != self._slow and now - began > SLOW_SECONDS:
            self._slow = began
            raft.step_aside(now)
        if now >= raft.deadline and not self._writer.is_installing:
            raft.elapse(now)
        self._host.carry_on()

    def _link(self, members: Members) -> None:
        wanted = {each.identity: each.address for each in members if each.identity != self._identity and each.address}
        for identity, address in wanted.items():
            if self._peers is not None and self._links.get(identity) != address:
                self._links[identity] = address
                self._peers.connect(NodeIdentity(identity), HostPort.parse(address))

    def _unlink(self, identity: str) -> None:
        del self._links[identity]
        if self._peers is not None:
            self._peers.disconnect(NodeIdentity(identity))

    # -- snapshots -----------------------------------------------------------------------------------------------------

    def _snapshot_ended(self, member: str) -> None:
        self._raft.snapshot_failed(self._loop.time(), member)
        self._host.carry_on()

    def _take_part(self, sender: NodeIdentity, part: SnapshotPart) -> None:
        raft = self._raft
        if self._writer.is_installing or part.term < raft.hard.term:
            return
        if raft.needs(part.term, part.point):
            self._receiver.on_part(sender, part)
            return
        try:
            raft.install(self._loop.time(), sender, part.term, part.point, Members())
        except DanubeError as error:
            self._host.halt(error)
        else:
            self._host.carry_on()
