"""The durable local metadata store: one live file of snapshot and log, group commit, a new file when it is full.

After a failed write the file is abandoned: transactions that waited are refused, and the next one begins a new file
with a snapshot of what is durable. A damaged store refuses to start; a file is deleted only when a newer, listed file
has replaced it.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future, Task, TimerHandle
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from hashlib import blake2b

from pydanube.base.errors import DanubeError, DiskFull, MetadataBusy, MetadataDamaged
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import (
    BLOCK_BYTES,
    GROUP_BYTES_TARGET,
    MARK_IDLE_SECONDS,
    METADATA_GROUP_TRANSACTIONS_MAX,
    METADATA_LOG_BYTES,
    METADATA_WAITING_BYTES_MAX,
)
from pydanube.base.units import shown_bytes
from pydanube.metadata.log import (
    HASH_BYTES,
    ROW_BYTES,
    LogContent,
    LogHeader,
    LogPoint,
    blocks,
    decode_file,
    encode_group,
    encode_record,
    encode_snapshot,
    group_length,
    record_length,
)
from pydanube.metadata.records import Transaction
from pydanube.ports.disk import Disk, DiskFile
from pydanube.ports.randomness import Randomness
from pydanube.storage.metadata.store import LocalStore
from pydanube.storage.node.files import generations, try_remove
from pydanube.storage.node.node_file import (
    JOURNAL,
    Belongings,
    NodeFile,
    lock_if_there,
    names_in,
    read_node_file,
    settle_directory,
)

log = logging.getLogger(__name__)
FAILURES_TOLD_SECONDS = 5.0  # between two log lines while a disk keeps failing
NEW_CLUSTER = b""
OWNER = "metadata store"  # named in the lock file


def log_name(generation: int) -> str:
    return f"metadata-{generation:016x}.log"


@dataclass(slots=True)
class _Active:
    """The file being written."""

    header: LogHeader
    handle: DiskFile
    position: int
    covered: bool = True  # the last group is a mark, or there is none

    def fits(self, length: int) -> bool:
        """Whether a group of that length fits; the last block is kept for a mark."""
        return self.position + length + BLOCK_BYTES <= self.header.capacity


@dataclass(slots=True)
class _Waiting:
    transaction: Transaction
    durable: Future[None]


Approval = Callable[["LocalMetadata"], Awaitable[None]]


async def _approved(_: LocalMetadata) -> None:
    """Approves any content."""


class LocalMetadata(LocalStore):
    """A `MetadataStore` in a directory of its own. Call `open` first."""

    def __init__(
        self, disk: Disk, belongings: Belongings, randomness: Randomness, log_bytes: int, mark_idle_seconds: float
    ) -> None:
        super().__init__()
        self._disk = disk
        self._belongings = belongings
        self._randomness = randomness
        self._log_bytes = log_bytes
        self._mark_idle_seconds = mark_idle_seconds
        self._loop = asyncio.get_running_loop()
        self._cluster = NEW_CLUSTER
        self._point = LogPoint()  # after the last durable record
        self._generation = 0  # the highest that any file has had
        self._active: _Active | None = None  # None: a new file must be created before anything is written
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._writer: Task[None] | None = None
        self._mark_timer: TimerHandle | None = None
        self._mark_due = False
        self._quiet_until = 0.0  # until then no failure is logged

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
    ) -> LocalMetadata:
        """Locks the directory, or creates it; `MetadataDamaged` or `NodeDirectoryInvalid` if it cannot be trusted.

        `approve` sees the content before anything is created or written, and raises if the start must not continue.
        """
        locked = await lock_if_there(disk, OWNER)
        try:
            node = await read_node_file(disk) or NodeFile(NodeIdentity(randomness.bytes(16).hex()))
            store = cls(disk, Belongings(disk, node), randomness, log_bytes, mark_idle_seconds)
            await store._start(approve or _approved, locked=locked)
        except BaseException:
            await disk.unlock()
            raise
        return store

    @property
    def cluster(self) -> str:
        """32 hexadecimal digits that never change."""
        return self._cluster.hex()

    @property
    def identity(self) -> NodeIdentity:
        return self._belongings.node.identity

    @property
    def term(self) -> int:
        """Rises with every start, and after every failure of the log."""
        return self._belongings.node.boots

    def _term(self) -> int:
        return self.term

    async def close(self) -> None:
        """Accepts no new work; when this returns, everything that was accepted is durable or refused."""
        if self._closed:
            return
        self._stop_serving()
        if self._mark_timer is not None:
            self._mark_timer.cancel()
        await self._drain()
        if self._active is not None and not self._active.covered:
            self._mark()
            await self._drain()
        if self._active is not None:
            await self._active.handle.close()
        await self._disk.unlock()

    async def _drain(self) -> None:
        while self._writer is not None:
            await asyncio.wait([self._writer])

    async def _start(self, approve: Approval, *, locked: bool) -> None:
        listed = self._belongings.node.files
        names = [name for name in await names_in(self._disk) if name.startswith("metadata-")]
        there = generations(names, "metadata")
        missing = [log_name(generation) for generation in listed if generation not in there]
        if missing:
            raise MetadataDamaged(f"files of the metadata log are missing: {', '.join(missing)}")
        self._generation = max([0, *there, *listed])
        live = max(listed, default=None)
        unlisted = [generation for generation in there if generation != live]
        for generation in unlisted:
            if live is None or generation > live:
                await self._refuse_if_used(generation)
        found = None if live is None else await self._read(live)
        try:
            if found is not None:
                self._load(found[1])
            await approve(self)
            await settle_directory(self._disk, OWNER, locked=locked)
            if found is None:
                await self._renew(0)
            else:
                await self._take_over(*found)
        except BaseException:
            if found is not None:
                found[0].close()
            raise
        for generation in unlisted:
            await try_remove(self._disk, log_name(generation))
        for name in names:
            if name.endswith(".tmp"):
                await try_remove(self._disk, name)
        for session in self._state.sessions():  # they ended with the process that had opened them
            try:
                await self._delete_bound(session)
            except DanubeError:
                self._expire(session)
        self._idle()

    async def _refuse_if_used(self, generation: int) -> None:
        """Refuses a file that is newer than those listed and was already written to: it shows that the list is old."""
        handle, content = await self._read(generation)
        handle.close()
        if content.records:
            raise MetadataDamaged(
                f"{log_name(generation)} is newer than the `node` file; restore the newest `node` file"
            )

    async def _read(self, generation: int) -> tuple[DiskFile, LogContent]:
        handle = await self._disk.open(log_name(generation))
        try:
            content = decode_file(await handle.read(0, await handle.size()), generation)
            if content.header.node != self.identity:
                raise MetadataDamaged(f"it was written by node {content.header.node}")
        except MetadataDamaged as error:
            handle.close()
            raise MetadataDamaged(f"{self._disk.name}/{log_name(generation)}: {error}") from error
        except BaseException:
            handle.close()
            raise
        return handle, content

    def _load(self, found: LogContent) -> None:
        self._cluster, self._point = found.header.cluster, found.point
        self._state.load(found.header.start.revision, found.rows)
        for revision, changes in found.records:
            self._state.replay(revision, changes)

    async def _take_over(self, handle: DiskFile, found: LogContent) -> None:
        """Continues to write in the file that was replayed."""
        await self._belongings.boot(1)
        await self._settle(handle, found)
        self._active = _Active(found.header, handle, found.end, found.covered)

    async def _settle(self, handle: DiskFile, found: LogContent) -> None:
        """Overwrites a torn write with zeros, and writes again what may never have been synced."""
        if found.torn > found.end:
            log.warning("%s: cut a torn write of %d bytes", handle.name, found.torn - found.end)
            await handle.write(found.end, [bytes(blocks(found.torn) - found.end)], sync=True)
        if found.last < found.end:
            await handle.write(found.last, [await handle.read(found.last, found.end - found.last)], sync=True)

    # -- transactions --------------------------------------------------------------------------------------------------

    async def _log(self, transaction: Transaction) -> None:
        if self._queued_bytes + len(transaction.payload) > METADATA_WAITING_BYTES_MAX:
            raise MetadataBusy(f"{self._queued_bytes} bytes of transactions are waiting")
        self._state.expect(transaction)
        durable = self._loop.create_future()
        self._queue.append(_Waiting(transaction, durable))
        self._queued_bytes += record_length(transaction.payload)
        self._wake()
        await durable

    def _wake(self) -> None:
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all())

    async def _write_all(self) -> None:
        """Writes groups until nothing waits, each after the previous one is durable."""
        try:
            while self._queue or self._mark_due:
                group = self._take_group()
                await self._write(group)
                for waiting in group:
                    self._happened(waiting.transaction)
                    if not waiting.durable.done():
                        waiting.durable.set_result(None)
        except Exception as error:
            self._fail(group, error if isinstance(error, DanubeError) else DanubeError(repr(error)))
        finally:
            self._writer = None
        self._idle()

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._queue and size < GROUP_BYTES_TARGET and len(group) < METADATA_GROUP_TRANSACTIONS_MAX:
            waiting = self._queue.popleft()
            group.append(waiting)
            size += record_length(waiting.transaction.payload)
        self._queued_bytes -= size
        return group

    async def _write(self, group: list[_Waiting]) -> None:
        """Writes a group; without transactions, a mark."""
        self._mark_due = False
        length = group_length(sum(record_length(waiting.transaction.payload) for waiting in group))
        if self._active is None or (group and not self._active.fits(length)):
            await self._renew(length)
        active = self._active
        assert active is not None
        point, records = self._point, []
        for waiting in group:
            record, point = encode_record(active.header, self.term, point, waiting.transaction.payload)
            records.append(record)
        await active.handle.write(
            active.position, [encode_group(active.header, self._point.revision, records)], sync=True
        )
        active.position += length
        active.covered = not group
        self._point = point

    def _fail(self, group: list[_Waiting], error: DanubeError) -> None:
        """Refuses everything that waits, because it builds on what failed."""
        if self._loop.time() >= self._quiet_until:  # every retry fails the same way
            log.error("the metadata log failed and continues in a new file: %s", error)
            self._quiet_until = self._loop.time() + FAILURES_TOLD_SECONDS
        if self._active is not None:
            self._active.handle.close()
            self._active = None
        self._state.forget_expected()
        for waiting in (*group, *self._queue):
            if not waiting.durable.done():
                waiting.durable.set_exception(error)
        self._queue.clear()
        self._queued_bytes = 0

    def _idle(self) -> None:
        """Writes a mark after a while, which covers the last group, so that its loss would be noticed."""
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if self._active is not None and not self._active.covered and not self._closed:
            self._mark_timer = self._loop.call_later(self._mark_idle_seconds, self._mark)

    def _mark(self) -> None:
        self._mark_due = True
        self._wake()

    # -- copying from outside ------------------------------------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        return self._disk

    def written(self) -> tuple[NodeFile, LogHeader, int] | None:
        """The live file and how far it is durable; None while one file replaces another."""
        active, node = self._active, self._belongings.node
        if active is None or list(node.files) != [active.header.generation]:
            return None
        return node, active.header, active.position

    # -- a new file ----------------------------------------------------------------------------------------------------

    async def _renew(self, room: int) -> None:
        """Starts a new live file, with a snapshot of everything durable and room for at least `room` bytes of log.

        It counts from the moment it is listed, and the old one no longer does. If listing fails, it is unknown which
        of them counts, so neither is written to again.
        """
        old, self._active = self._active, None
        if old is None:
            await self._belongings.boot(1)
        if self._cluster == NEW_CLUSTER:
            self._cluster = self._randomness.bytes(16)
        generation = self._generation = self._generation + 1
        if old is not None:
            old.handle.close()
        header, handle = await self._write_file(generation, room)
        gone = [listed for listed in self._belongings.node.files if listed != generation]
        try:
            await self._belongings.change(add={generation: JOURNAL}, drop=gone)
        except BaseException:
            handle.close()
            raise
        self._active = _Active(header, handle, header.log_start)
        for listed in gone:
            await try_remove(self._disk, log_name(listed))

    async def _write_file(self, generation: int, room: int) -> tuple[LogHeader, DiskFile]:
        snapshot_bytes = self._state.bytes + ROW_BYTES * len(self._state)
        log_room = blocks(max(self._log_bytes, snapshot_bytes)) + room + BLOCK_BYTES
        capacity = blocks(BLOCK_BYTES + snapshot_bytes) + log_room
        temporary = log_name(generation) + ".tmp"
        await try_remove(self._disk, temporary)
        try:
            handle = await self._disk.create(temporary, reserve=capacity)
        except DiskFull as error:
            lacking = f"{self._disk.name} has no room for a new metadata file; free {shown_bytes(capacity)} on its disk"
            raise DiskFull(f"{lacking}: {error}") from error
        try:
            digest = blake2b(digest_size=HASH_BYTES)
            position = BLOCK_BYTES
            for chunk in encode_snapshot(self._state.rows()):
                digest.update(chunk)
                await handle.write(position, [chunk], sync=False)
                position += len(chunk)
            assert position == BLOCK_BYTES + snapshot_bytes
            salt = int.from_bytes(self._randomness.bytes(8), "little")
            header = LogHeader(
                generation, salt, self._cluster, self.identity, capacity, self._point, len(self._state),
                snapshot_bytes, digest.digest(),
            )  # fmt: skip
            await handle.write(0, [header.encode()], sync=True)
            await self._disk.rename(temporary, log_name(generation))
            await self._disk.sync_directory()
        except DanubeError:
            await handle.close()
            await try_remove(self._disk, temporary)
            raise
        return header, handle
