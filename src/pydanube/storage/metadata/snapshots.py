"""Snapshots between nodes: in parts of bounded size, one on its way at a time, while the log continues.

A follower gets one when the leader's log does not reach back to what it has. The bytes are those of a snapshot in a
file of the metadata log. Parts may be lost, come twice or late: each is asked for until it has arrived.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice

from pydanube.base.errors import MetadataDamaged
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import METADATA_SNAPSHOT_KEYS, METADATA_SNAPSHOT_PART_BYTES
from pydanube.metadata.snapshot import ROW_BYTES, Row, decode_head, decode_rows, encode_rows
from pydanube.storage.metadata.log_file import Snapshot
from pydanube.storage.metadata.writer import ReceivedSnapshot
from pydanube.wire.peer.metadata import SnapshotPart, SnapshotTaken

log = logging.getLogger(__name__)
PART_SECONDS = 1.0  # until a part that was not answered is sent again
PART_ATTEMPTS = 5
INSTALL_SECONDS = 5.0  # after the last part; then the follower is asked what it has

Send = Callable[[NodeIdentity, object], None]


class SnapshotSender:
    """The leader's side: at most one snapshot to each member at a time."""

    def __init__(self, send: Send, ended: Callable[[str], None]) -> None:
        """`ended` is called with a member that must have its snapshot by now, or will not get it."""
        self._send = send
        self._ended = ended
        self.transfer = 0  # the number of the last one
        self._tasks: dict[str, Task[None]] = {}
        self._answers: dict[int, tuple[int, Future[None]]] = {}  # what must have arrived, by transfer

    def start(self, member: str, term: int, snapshot: Snapshot) -> None:
        self.transfer += 1
        before = self._tasks.get(member)
        if before is not None:
            before.cancel()
        task = asyncio.get_running_loop().create_task(self._run(member, self.transfer, term, snapshot))
        self._tasks[member] = task
        task.add_done_callback(lambda done: self._forget(member, done))

    def _forget(self, member: str, done: Task[None]) -> None:
        if self._tasks.get(member) is done:
            del self._tasks[member]
        if not done.cancelled():
            self._ended(member)

    def stop(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def on_taken(self, message: SnapshotTaken) -> None:
        awaited = self._answers.get(message.transfer)
        if awaited is not None and message.received >= awaited[0] and not awaited[1].done():
            awaited[1].set_result(None)

    async def _run(self, member: str, transfer: int, term: int, snapshot: Snapshot) -> None:
        state, head = snapshot.state, snapshot.head.encode()
        total = len(head) + state.bytes + ROW_BYTES * state.keys
        unsent, position = bytearray(head), 0
        try:
            while position < total:
                while len(unsent) < METADATA_SNAPSHOT_PART_BYTES and (rows := state.read(METADATA_SNAPSHOT_KEYS)):
                    unsent += encode_rows(rows)
                    await asyncio.sleep(0)
                data = bytes(unsent[:METADATA_SNAPSHOT_PART_BYTES])
                del unsent[: len(data)]
                part = SnapshotPart(transfer, term, snapshot.point, total, position, data)
                position += len(data)
                if not await self._sent(member, part, position):
                    log.warning("node %s does not take a snapshot of the metadata", member)
                    return
        finally:
            state.end()
            self._answers.pop(transfer, None)
        await asyncio.sleep(INSTALL_SECONDS)

    async def _sent(self, member: str, part: SnapshotPart, end: int) -> bool:
        for _ in range(PART_ATTEMPTS):
            arrived: Future[None] = asyncio.get_running_loop().create_future()
            self._answers[part.transfer] = (end, arrived)
            self._send(NodeIdentity(member), part)
            if (await asyncio.wait([arrived], timeout=PART_SECONDS))[0]:
                return True
        return False


@dataclass(slots=True)
class _Incoming:
    sender: NodeIdentity
    part: SnapshotPart  # the first one
    data: bytearray = field(default_factory=bytearray)


class SnapshotReceiver:
    """The follower's side: keeps the parts of the newest snapshot only."""

    def __init__(self, send: Send, install: Callable[[ReceivedSnapshot], None]) -> None:
        self._send = send
        self._install = install
        self._incoming: _Incoming | None = None
        self._reading: Task[None] | None = None

    def on_part(self, sender: NodeIdentity, part: SnapshotPart) -> None:
        found = self._incoming
        if found is None or (part.term, part.transfer) > (found.part.term, found.part.transfer):
            if part.position:
                return  # of one whose beginning went elsewhere
            found = self._incoming = _Incoming(sender, part)
            self.stop()
        if (part.term, part.transfer, part.total) != (found.part.term, found.part.transfer, found.part.total):
            return
        if part.position == len(found.data) < part.total:
            found.data += part.data
            if len(found.data) == part.total:
                self._reading = asyncio.get_running_loop().create_task(self._read(found, found.data))
        self._send(sender, SnapshotTaken(part.transfer, len(found.data)))

    def stop(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, found: _Incoming, data: bytearray) -> None:
        """A few rows in each turn of the loop."""
        try:
            head, position = decode_head(data)
            rows: list[Row] = []
            remaining = decode_rows(data, position)
            while part := list(islice(remaining, METADATA_SNAPSHOT_KEYS)):
                rows += part
                await asyncio.sleep(0)
        except MetadataDamaged as error:
            log.error("a snapshot from node %s is damaged: %s", found.sender, error)
            return
        self._install(ReceivedSnapshot(found.sender, found.part.term, found.part.point, head, rows))
