"""The durable metadata store of a node: it drives consensus, and replays what that has committed.

The order is that of the core: a group of entries is on disk before it counts, and it is replayed, and answered, once it
is committed. A node that is the only voter commits what is on its own disk, and asks no one. A write that fails there
is void: transactions that waited for it are refused, and the next one begins a new file with a snapshot of what is
committed. With other nodes, the leader decides, the others ask it, and all of them replay.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Awaitable, Callable

from pydanube.base.errors import DanubeError, MetadataClosed, MetadataDamaged, NotLeader
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import MARK_IDLE_SECONDS, METADATA_LOG_BYTES, METADATA_WAITING_BYTES_MAX
from pydanube.metadata.differences import differences
from pydanube.metadata.log import LogContent, LogHeader
from pydanube.metadata.operations import (
    AddMember,
    EndSession,
    MemberOperation,
    Operation,
    PromoteMember,
    RemoveMember,
    TransferLead,
)
from pydanube.metadata.records import Record, decode, encode
from pydanube.metadata.snapshot import SnapshotHead
from pydanube.ports.disk import Disk
from pydanube.ports.peers import Peers
from pydanube.ports.randomness import Randomness
from pydanube.raft.entries import Entry, EntryKind, Member, Members, Point
from pydanube.raft.log import Log
from pydanube.raft.node import Raft, Work
from pydanube.raft.replication import Leadership
from pydanube.raft.settings import RaftSettings
from pydanube.raft.state import Hard
from pydanube.storage.metadata.cluster import Cluster
from pydanube.storage.metadata.log_file import LogFile, Snapshot, Write
from pydanube.storage.metadata.members import next_members
from pydanube.storage.metadata.store import RETRY_SECONDS, StateStore
from pydanube.storage.metadata.waiting import Waiting
from pydanube.storage.metadata.writer import LogWriter, ReceivedSnapshot
from pydanube.storage.node.node_file import NodeFile
from pydanube.wire.peer.hello import Node

log = logging.getLogger(__name__)
SETTINGS = RaftSettings(uncommitted_bytes_max=METADATA_WAITING_BYTES_MAX)
Approval = Callable[["RaftMetadata"], Awaitable[None]]


async def _approved(_: RaftMetadata) -> None:
    """Approves any content."""


class RaftMetadata(StateStore):
    """A `MetadataStore` in a directory of its own. Call `open` first, and `attach` if there are to be other nodes."""

    def __init__(
        self,
        file: LogFile,
        found: LogContent | None,
        randomness: Randomness,
        mark_idle_seconds: float,
        founds: bool,
        settings: RaftSettings,
    ) -> None:
        super().__init__(holder=file.identity)
        self._file = file
        self._loop = asyncio.get_running_loop()
        self._waiting = Waiting()
        self._candidates: list[Future[None]] = []  # callers that wait until this node leads
        self._serving: Leadership | None = None  # while decisions are made here
        self._pushing = False  # what was proposed in this turn goes to the others at its end
        hard, entries, start = Hard(), [], Point()
        members = Members.of([Member(file.identity)] if founds else [])
        if found is not None:
            hard, entries, start, members = found.hard, found.entries, found.header.start, found.snapshot.head.members
            self._state.load(start.index, found.snapshot.rows, found.snapshot.head.sessions)
        now = self._loop.time()
        self._raft = raft = Raft(file.identity, hard, Log(start, entries), members, settings, randomness.below, now)
        if found is not None:
            raft.log.commit(found.committed)
        self._writer = LogWriter(file, raft, self, self.snapshot, mark_idle_seconds)
        self._cluster = Cluster(raft, self, self._writer, file.identity)
        self._replay_committed()
        self._former = self._state.sessions(self._holder)  # that an earlier life of this node had
        self._ending: Task[None] | None = None
        self._halted: DanubeError | None = None

    # -- opening and closing -------------------------------------------------------------------------------------------

    @classmethod
    async def open(
        cls,
        disk: Disk,
        randomness: Randomness,
        *,
        log_bytes: int = METADATA_LOG_BYTES,
        mark_idle_seconds: float = MARK_IDLE_SECONDS,
        approve: Approval | None = None,
        joins: Node | None = None,
        settings: RaftSettings = SETTINGS,
    ) -> RaftMetadata:
        """Locks the directory, or creates it; `MetadataDamaged` or `NodeDirectoryInvalid` if it cannot be trusted.

        `approve` sees the content before anything is created or written, and raises if the start must not continue. An
        empty directory becomes that of a new cluster, or of a node that waits until the cluster of `joins` adds it.
        """
        file, found = await LogFile.open(disk, randomness, log_bytes)
        try:
            if joins is not None:
                file.join(bytes.fromhex(joins.cluster), joins.incarnation)
            store = cls(file, found, randomness, mark_idle_seconds, joins is None, settings)
            await (approve or _approved)(store)
            await file.begin()
            if found is None:
                await file.succeed(await file.prepare(store.snapshot()), Write(store._raft.hard, 0))
        except BaseException:
            await file.release()
            raise
        await store._begin()
        return store

    async def _begin(self) -> None:
        """If no one else has to be asked: takes the lead, and ends the sessions that this node had when it ended. A
        full disk prevents neither reading nor trying again later."""
        if not self._raft.is_alone:
            return
        try:
            await self._ready()
            for session in list(self._former):
                await self._ask(EndSession(session))
                self._former.remove(session)
        except DanubeError as error:
            log.warning("the metadata log cannot be written to yet: %s", error)
            self._ending = self._loop.create_task(self._end_former())

    async def _end_former(self) -> None:
        """Ends the sessions that an earlier life of this node had, and that it therefore cannot keep alive."""
        while self._former and not self._closed:
            try:
                await self._ask(EndSession(self._former[-1]))
                self._former.pop()
            except DanubeError as error:
                log.warning("could not end session %d of an earlier start yet: %s", self._former[-1], error)
                await asyncio.sleep(RETRY_SECONDS)

    def attach(self, peers: Peers) -> None:
        """From now on this node speaks to the others, which are its cluster's members. It must be their `PeerHost`."""
        self._cluster.attach(peers, self._file.boots)
        if self._former:
            self._ending = self._loop.create_task(self._end_former())
        self.carry_on()

    @property
    def disk(self) -> Disk:
        return self._file.disk

    @property
    def cluster(self) -> str:
        """32 hexadecimal digits that never change."""
        return self._file.cluster.hex()

    @property
    def identity(self) -> NodeIdentity:
        return self._file.identity

    @property
    def node(self) -> Node:
        """What it says about itself to other nodes."""
        return Node(self.identity, self.cluster, self._file.incarnation, self._file.boots)

    @property
    def term(self) -> int:
        """Rises with every start of a broker alone, with every election, and after every failure of the log."""
        return self._raft.hard.term

    @property
    def leader(self) -> str | None:
        """The node that decides in this term, if it is known."""
        return self._raft.leader

    @property
    def is_leader(self) -> bool:
        """Whether decisions are made here."""
        return self._serving is not None

    @property
    def members(self) -> Members:
        return self._raft.members

    @property
    def chain(self) -> Point:
        """How far the log is replayed, with the hash of everything up to there."""
        point = self._raft.log.point(self._raft.log.applied)
        assert point is not None
        return point

    def written(self) -> tuple[NodeFile, LogHeader, int] | None:
        """The live file and how far it is durable; None while another file replaces it."""
        return self._file.written()

    async def close(self) -> None:
        """Accepts no new work; when this returns, everything that was accepted is durable or refused."""
        if self._closed:
            return
        self._stop_serving()
        closed = MetadataClosed("the metadata store is closed")
        if self._ending is not None:
            self._ending.cancel()
        self._answer_candidates(closed)
        await self._cluster.stop(closed)
        await self._writer.close()
        self._waiting.fail_all(closed)

    def halt(self, error: DanubeError) -> None:
        """This node must stop: it may not have what the others have."""
        log.critical("the metadata store of this node has stopped: %s. %s", error, error.help)
        self._halted = error
        self._stop_serving()
        self._answer_candidates(error)
        self._waiting.fail_all(error)
        self._cluster.halt(error)

    def _check_open(self) -> None:
        if self._halted is not None:
            raise self._halted
        super()._check_open()

    # -- the port ------------------------------------------------------------------------------------------------------

    async def _ask(self, operation: Operation) -> int:
        self._check_open()
        if not self._raft.is_alone:
            return await self._cluster.desk.ask(operation)
        await self._ready()
        return await self.decide(operation, self._holder)

    async def reach(self, revision: int) -> int:
        if self._state.revision < revision:
            await self._waiting.until(revision)
        return revision

    async def change_members(self, operation: MemberOperation) -> None:
        """Adds, promotes or removes a node, or hands the lead over. Returns when it is durable on most nodes."""
        await self._ask(operation)

    # -- deciding ------------------------------------------------------------------------------------------------------

    async def _ready(self) -> None:
        """Returns once this node leads, which it does as soon as it asks for it, because it is the only voter."""
        while not self._raft.is_serving:
            elected = self._loop.create_future()
            self._candidates.append(elected)
            self._raft.campaign(self._loop.time())
            self.carry_on(at_once=True)
            await elected

    async def leads(self) -> None:
        """Returns once decisions can be made here; raises `NotLeader` if that will not be in this term."""
        while not self._raft.is_serving:
            if self._raft.leading is None:
                raise NotLeader("this node does not lead")
            elected = self._loop.create_future()
            self._candidates.append(elected)
            await elected

    async def decide(self, operation: Operation, holder: str) -> int:
        """Carries it out as the leader."""
        if not isinstance(operation, AddMember | PromoteMember | RemoveMember | TransferLead):
            return await self._carry_out(operation, holder)
        raft, now = self._raft, self._loop.time()
        if isinstance(operation, TransferLead):
            raft.transfer(now, operation.identity)
            self.carry_on()
            return self._state.revision
        wanted = next_members(raft, operation)
        if wanted == raft.members:
            return await self._behind_barrier()
        point = raft.change(now, wanted)
        changed = self._waiting.add(point.index, point.term, None)
        self.carry_on()
        return await asyncio.shield(changed)

    def _log(self, record: Record) -> Future[int]:
        alone = self._raft.is_only_member
        point = self._raft.propose(self._loop.time(), [encode(record)], push=alone)
        self._state.expect(record, point.index)
        if alone:
            self._writer.wake()
        elif not self._pushing:
            self._pushing = True
            self._loop.call_soon(self._push)
        return self._waiting.add(point.index, point.term, record)

    def _push(self) -> None:
        self._pushing = False
        self._raft.push()
        self.carry_on()

    async def _reached(self, revision: int) -> int:
        return await self._waiting.logged(revision)

    async def _confirm(self) -> int:
        confirmed: Future[int] = self._loop.create_future()
        self._raft.read(self._loop.time(), confirmed)
        self.carry_on()
        return await self.reach(await confirmed)

    # -- events --------------------------------------------------------------------------------------------------------

    def on_message(self, sender: NodeIdentity, message: object) -> None:
        if not self._closed:
            self._cluster.on_message(sender, message)

    def on_lost(self, peer: NodeIdentity, reset: bool) -> None:
        if not self._closed:
            self._cluster.on_lost(peer)

    def on_written(self, work: Work) -> None:
        self._cluster.post_all(work.send)
        self._raft.written(self._loop.time())
        self.carry_on()

    def on_failed(self, work: Work, error: DanubeError) -> None:
        """Refuses what builds on that write, unless others may have it: then it is replayed or replaced one day."""
        self._raft.not_written(self._loop.time())
        self._waiting.fail_cut(self._raft.log, error)
        self.carry_on()
        self._answer_candidates(error)

    def on_installed(self, received: ReceivedSnapshot) -> None:
        raft, point, head = self._raft, received.point, received.head
        raft.install(self._loop.time(), received.sender, received.term, point, head.members)
        changed = differences(self._state, point.index, received.rows)
        self._state.load(point.index, received.rows, head.sessions)
        self._show(changed)
        self._waiting.jumped(point.index)
        self.carry_on()

    def carry_on(self, *, at_once: bool = False) -> None:
        """Carries out what consensus asks for after an event, in its order."""
        raft = self._raft
        self._cluster.send()
        if raft.appliable > raft.log.applied:
            try:
                self._replay_committed()
            except DanubeError as error:
                return self.halt(error)
        serving = raft.leading if raft.is_serving else None
        if serving is not self._serving:
            self._serve(serving)
        self._answer_reads()
        if raft.has_work:
            self._writer.wake(at_once=at_once)
        self._cluster.look()
        if self._candidates and (raft.is_serving or (raft.leading is None and not raft.is_alone)):
            self._answer_candidates(None if raft.is_serving else NotLeader("another node leads"))
        return None

    def _serve(self, serving: Leadership | None) -> None:
        """Decisions are made here from now on, or no longer, or by a new leadership of this node."""
        self._serving = serving
        self._stop_timers()
        self._state.forget_expected()
        if serving is not None and not self._closed:
            self._start_timers()

    def _answer_reads(self) -> None:
        reads = self._raft.ready_reads
        if not reads:
            return
        for ticket, index in reads:
            assert isinstance(ticket, Future)
            if ticket.done():
                continue
            if index is None:
                ticket.set_exception(NotLeader("another node has taken the lead meanwhile"))
            else:
                ticket.set_result(index)
        reads.clear()

    def _answer_candidates(self, error: DanubeError | None) -> None:
        candidates, self._candidates = self._candidates, []
        for elected in candidates:
            if not elected.done():
                elected.set_result(None) if error is None else elected.set_exception(error)

    def _replay_committed(self) -> None:
        """Replays what is committed, and answers those who wait for it."""
        raft = self._raft
        for entry in raft.log.after(raft.log.applied, last=raft.appliable):
            record = self._waiting.record(entry.index, entry.term)
            self._replay(entry.index, _record(entry) if record is None else record)
            raft.log.applied = entry.index
            self._waiting.replayed(entry.index, entry.term)
        raft.forget(raft.log.applied if self._writer.needed_from is None else self._writer.needed_from)

    def snapshot(self) -> Snapshot:
        """What is replayed. The caller ends its state."""
        state = self._state.freeze()
        return Snapshot(self.chain, SnapshotHead(self._raft.members_at(state.revision), state.sessions), state)


def _record(entry: Entry) -> Record | None:
    """Raises `MetadataDamaged` for what this version does not know: it would replay something else than others do."""
    if entry.kind == EntryKind.DATA:
        return decode(entry.data)
    if entry.kind not in (EntryKind.NOTHING, EntryKind.MEMBERS):
        raise MetadataDamaged(f"this version does not know entries of kind {entry.kind}")
    return None
