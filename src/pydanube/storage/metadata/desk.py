"""Where an operation is carried out: on the leader, which a follower asks; and the requests of other nodes, if this one
leads.

Nothing is carried out twice: a request names the term whose leader may do it, and that leader knows the requests of
each node by their numbers. When an answer is lost, only what may be repeated is asked again.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import Callable
from typing import NamedTuple, Protocol

from pydanube.base.errors import (
    DanubeError,
    MembershipRefused,
    MetadataBusy,
    MetadataUnavailable,
    NotLeader,
    error_table,
)
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import (
    METADATA_ANSWER_SECONDS_MAX,
    METADATA_REQUESTS_BYTES_MAX,
    METADATA_REQUESTS_KNOWN,
    METADATA_REQUESTS_MAX,
)
from pydanube.metadata.operations import Operation, Transact, may_repeat
from pydanube.metadata.records import check_transaction
from pydanube.raft.node import Raft
from pydanube.storage.futures import cancel_all
from pydanube.wire.peer.messages import UnknownRequest
from pydanube.wire.peer.metadata import MetadataAnswer, MetadataRequest

GRACE_SECONDS = 1.0  # in which a leader that was replaced can still say what became of a request
PAUSE_SECONDS = 0.05  # before a node is asked again that has said it is not the leader
SMALL_BYTES = 200  # about what an operation needs besides keys and values


class DeskHost(Protocol):
    """The store that the desk belongs to."""

    async def leads(self) -> None:
        """Returns once decisions can be made here; raises `NotLeader` if that will not be in this term."""

    async def decide(self, operation: Operation, holder: str) -> int:
        """Carries it out here; returns its revision when reads show that."""

    async def reach(self, revision: int) -> int:
        """Returns when reads show the revision."""


class _Asked(NamedTuple):
    leader: NodeIdentity
    may_repeat: bool
    size: int
    answer: Future[int]


class _Unsure(Exception):
    """The answer is lost."""


class _Known:
    """The numbers of one node's requests that this leader has seen."""

    def __init__(self) -> None:
        self._numbers: dict[int, None] = {}
        self._floor = 0

    def add(self, number: int) -> bool:
        """Whether it is a new one. What is older than all that are remembered is not."""
        if number <= self._floor or number in self._numbers:
            return False
        self._numbers[number] = None
        if len(self._numbers) > METADATA_REQUESTS_KNOWN:
            oldest = next(iter(self._numbers))
            del self._numbers[oldest]
            self._floor = max(self._floor, oldest)
        return True


class Desk:
    """Owned by one store."""

    def __init__(
        self, raft: Raft, host: DeskHost, post: Callable[[NodeIdentity, object], None], identity: NodeIdentity
    ) -> None:
        self.number = 0  # of the last request
        self._raft = raft
        self._host = host
        self._post = post
        self._identity = identity
        self._loop = asyncio.get_running_loop()
        self._first_term = raft.hard.term  # an earlier life of this node may have led it, and carried out anything
        self._asked: dict[int, _Asked] = {}
        self._asked_bytes = 0
        self._known: dict[NodeIdentity, _Known] = {}
        self._serving: dict[Task[None], None] = {}
        self._leader: tuple[int, str | None] = (0, None)
        self._news: Future[None] = self._loop.create_future()  # done when there is another leader, or the same again
        self._unheard: NodeIdentity | None = None  # its link was lost, and it has said nothing since

    # -- asking --------------------------------------------------------------------------------------------------------

    async def ask(self, operation: Operation) -> int:
        """Has it carried out by the leader, whichever node that is; returns its revision when reads here show it."""
        repeatable = may_repeat(operation)
        try:
            async with asyncio.timeout(METADATA_ANSWER_SECONDS_MAX):
                while True:
                    leader = self._raft.leader
                    try:
                        if leader == self._identity:
                            await self._host.leads()
                            return await self._host.decide(operation, self._identity)
                        if leader not in (None, self._unheard):
                            return await self._host.reach(await self._forward(NodeIdentity(leader), operation))
                        await asyncio.wait([self._news])
                    except NotLeader:  # which has changed nothing
                        await asyncio.wait([self._news], timeout=PAUSE_SECONDS)
                    except _Unsure:
                        if not repeatable:
                            raise MetadataUnavailable("the leader was lost before it answered") from None
        except TimeoutError:
            raise MetadataUnavailable(f"no leader has answered for {METADATA_ANSWER_SECONDS_MAX:g} s") from None

    async def _forward(self, leader: NodeIdentity, operation: Operation) -> int:
        if isinstance(operation, Transact):
            check_transaction(operation.checks, operation.changes)
        size = _size(operation)
        if len(self._asked) >= METADATA_REQUESTS_MAX or self._asked_bytes + size > METADATA_REQUESTS_BYTES_MAX:
            raise MetadataBusy(f"{len(self._asked)} requests wait for the leader's answers")
        self.number += 1
        number = self.number
        answer: Future[int] = self._loop.create_future()
        self._asked[number] = _Asked(leader, may_repeat(operation), size, answer)
        self._asked_bytes += size
        try:
            self._post(leader, MetadataRequest(number, self._raft.hard.term, operation))
            return await answer
        finally:
            del self._asked[number]
            self._asked_bytes -= size

    def on_answer(self, sender: NodeIdentity, message: MetadataAnswer | UnknownRequest) -> None:
        number = message.number if isinstance(message, MetadataAnswer) else message.request
        asked = self._asked.get(number)
        if asked is None or asked.leader != sender or asked.answer.done():
            return
        if isinstance(message, UnknownRequest):
            asked.answer.set_exception(MetadataUnavailable("the leader's version does not know this request"))
        elif message.code:
            kind = error_table().get(message.code, DanubeError)
            asked.answer.set_exception(_Unsure() if kind is MetadataUnavailable else kind(message.text))
        else:
            asked.answer.set_result(message.revision)

    def on_lost(self, peer: NodeIdentity) -> None:
        """Requests to this node, or its answers, may be lost. It is not asked again before it has said something."""
        self._unheard = peer
        for asked in self._asked.values():
            if asked.leader == peer:
                _give_up(asked)

    def on_heard(self, peer: NodeIdentity) -> None:
        if peer == self._unheard:
            self._unheard = None
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, self._loop.create_future()
        news.set_result(None)

    def look(self) -> None:
        """Called after each event of consensus: notices another leader."""
        leader = (self._raft.hard.term, self._raft.leader)
        if leader == self._leader:
            return
        self._leader = leader
        for asked in self._asked.values():
            if asked.may_repeat:
                _give_up(asked)
            else:
                self._loop.call_later(GRACE_SECONDS, _give_up, asked)
        if leader[1] is not None:
            self._tell()

    # -- being asked ---------------------------------------------------------------------------------------------------

    def on_request(self, sender: NodeIdentity, request: MetadataRequest) -> None:
        raft = self._raft
        if raft.members.get(sender) is None:
            return self._refuse(sender, request, MembershipRefused("this node is not a member of the cluster"))
        if not self._known.setdefault(sender, _Known()).add(request.number):
            return None
        if request.term <= self._first_term:
            return self._refuse(sender, request, MetadataUnavailable("the leader has been started again"))
        if request.term != raft.hard.term or raft.leader != self._identity:
            return self._refuse(sender, request, NotLeader("the leader of this term is another node"))
        if len(self._serving) >= METADATA_REQUESTS_MAX:
            return self._refuse(sender, request, MetadataBusy(f"{len(self._serving)} requests are being carried out"))
        task = self._loop.create_task(self._serve(sender, request))
        self._serving[task] = None
        task.add_done_callback(self._serving.pop)
        return None

    def _refuse(self, sender: NodeIdentity, request: MetadataRequest, error: DanubeError) -> None:
        self._post(sender, MetadataAnswer(request.number, code=error.code, text=str(error)))

    async def _serve(self, sender: NodeIdentity, request: MetadataRequest) -> None:
        try:
            async with asyncio.timeout(METADATA_ANSWER_SECONDS_MAX):
                await self._host.leads()
                if self._raft.hard.term != request.term:
                    raise NotLeader("the term of this request is over")
                revision = await self._host.decide(request.operation, sender)
        except TimeoutError:
            return  # the other node has given up too
        except DanubeError as error:
            self._refuse(sender, request, error)
        else:
            self._post(sender, MetadataAnswer(request.number, revision))

    def refuse_all(self, error: DanubeError) -> None:
        """Nothing is asked any more."""
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_exception(error)

    async def stop(self) -> None:
        await cancel_all(list(self._serving))


def _give_up(asked: _Asked) -> None:
    if not asked.answer.done():
        asked.answer.set_exception(_Unsure())


def _size(operation: Operation) -> int:
    if not isinstance(operation, Transact):
        return SMALL_BYTES
    changes = sum([len(key) + len(value or b"") for key, value in operation.changes])
    return SMALL_BYTES + changes + sum([len(key) for key, _ in operation.checks])
