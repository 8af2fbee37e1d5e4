"""A storage node across the network, as its caller and its server see it: numbered requests, replies, and a time limit.

A request may be lost, duplicated or late. Every operation of a node can be repeated, and a node refuses stale ones, so
this module need not know what happened. A node that replies under another identity was wiped: its reply is ignored.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, TimerHandle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    DanubeError,
    NodeBusy,
    NodeReplaced,
    NodeUnreachable,
    PeerMessageTooLarge,
    error_kind,
)
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import CALL_SECONDS, CALLS_WAITING_MAX
from pydanube.ports.network import Network
from pydanube.ports.storage import LedgerStatus, StorageNode
from pydanube.storage.futures import refused
from pydanube.wire.batch import Batch

Batches = list[Batch]
Statuses = list[LedgerStatus]
OPERATIONS = frozenset({"create", "append", "read", "find_next", "find_intact", "fence", "seal", "delete", "list"})


@dataclass(frozen=True, slots=True)
class NodeRequest:
    session: str  # of the caller: replies to its previous process are ignored
    number: int
    operation: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NodeReply:
    session: str
    number: int
    identity: NodeIdentity
    error: str  # a code of the error table, empty if it went well
    value: Any  # the result, or the error's message
    operation: str  # that was requested, because it says what the value is


class RemoteCaller:
    """The calling side: all calls of one process that wait for replies."""

    def __init__(self, network: Network, session: str, *, seconds: float = CALL_SECONDS) -> None:
        self._network = network
        self._session = session
        self._seconds = seconds
        self._number = 0
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, tuple[Future[Any], TimerHandle, NodeIdentity]] = {}

    def node(self, address: str, identity: NodeIdentity) -> RemoteNode:
        return RemoteNode(self, address, identity)

    def call(self, address: str, identity: NodeIdentity, operation: str, *arguments: object) -> Future[Any]:
        if len(self._waiting) >= CALLS_WAITING_MAX:
            return refused(NodeBusy(f"{len(self._waiting)} calls are waiting for answers"))
        answer: Future[Any] = self._loop.create_future()
        self._number += 1
        timer = self._loop.call_later(self._seconds, self._too_late, self._number, address)
        self._waiting[self._number] = (answer, timer, identity)
        self._network.send(address, NodeRequest(self._session, self._number, operation, arguments))
        return answer

    def receive(self, sender: str, message: object) -> None:
        """Takes a reply; ignores anything else, and replies that no call waits for."""
        if not isinstance(message, NodeReply) or message.session != self._session:
            return
        waiting = self._waiting.pop(message.number, None)
        if waiting is None:
            return
        answer, timer, identity = waiting
        timer.cancel()
        if answer.done():
            return
        if message.identity != identity:
            answer.set_exception(NodeReplaced(f"{sender} is node {message.identity} now, not {identity}"))
        elif message.error:
            answer.set_exception((error_kind(message.error) or DanubeError)(message.value))
        else:
            answer.set_result(message.value)

    def _too_late(self, number: int, address: str) -> None:
        answer, _, _ = self._waiting.pop(number)
        if not answer.done():
            answer.set_exception(NodeUnreachable(f"{address} did not answer within {self._seconds} s"))


class RemoteNode:
    """A `StorageNode` in another process."""

    in_order = False  # on the network, one answer may overtake another

    def __init__(self, caller: RemoteCaller, address: str, identity: NodeIdentity) -> None:
        self._caller = caller
        self._address = address
        self.identity = identity

    def create(self, ledger: LedgerId, epoch: Epoch, durability: Durability) -> Future[None]:
        return self._call("create", ledger, epoch, durability)

    def append(self, ledger: LedgerId, epoch: Epoch, batch: Batch, confirmed: int) -> Future[None]:
        return self._call("append", ledger, epoch, batch, confirmed)

    def read(self, ledger: LedgerId, offset: int, bytes_max: int) -> Future[Batches]:
        return self._call("read", ledger, offset, bytes_max)

    def find_next(self, ledger: LedgerId, offset: int) -> Future[int]:
        return self._call("find_next", ledger, offset)

    def find_intact(self, ledger: LedgerId, offset: int) -> Future[int]:
        return self._call("find_intact", ledger, offset)

    def fence(self, ledger: LedgerId, epoch: Epoch) -> Future[LedgerStatus]:
        return self._call("fence", ledger, epoch)

    def seal(self, ledger: LedgerId, epoch: Epoch, last: int) -> Future[None]:
        return self._call("seal", ledger, epoch, last)

    def delete(self, ledger: LedgerId) -> Future[None]:
        return self._call("delete", ledger)

    def list(self) -> Future[Statuses]:
        return self._call("list")

    def _call(self, operation: str, *arguments: object) -> Future[Any]:
        return self._caller.call(self._address, self.identity, operation, *arguments)


class NodeServer:
    """Serves one node's operations to callers on the network."""

    def __init__(self, node: StorageNode, network: Network) -> None:
        self._node = node
        self._network = network

    def receive(self, sender: str, message: object) -> None:
        if not isinstance(message, NodeRequest) or message.operation not in OPERATIONS:
            return
        answer: Future[Any] = getattr(self._node, message.operation)(*message.arguments)
        answer.add_done_callback(self._reply_to(sender, message))

    def _reply_to(self, sender: str, request: NodeRequest) -> Callable[[Future[Any]], None]:
        def reply(answer: Future[Any]) -> None:
            if answer.cancelled():
                return
            error = answer.exception()
            if error is not None and not isinstance(error, DanubeError):
                raise error
            code, value = (error.code, str(error)) if isinstance(error, DanubeError) else ("", answer.result())
            try:
                self._network.send(sender, self._reply(request, code, value))
            except PeerMessageTooLarge as too_large:
                self._network.send(sender, self._reply(request, too_large.code, str(too_large)))

        return reply

    def _reply(self, request: NodeRequest, code: str, value: Any) -> NodeReply:
        return NodeReply(request.session, request.number, self._node.identity, code, value, request.operation)
