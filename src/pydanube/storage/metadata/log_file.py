"""The directory of a node's metadata log: one live file of snapshot and entries, a new file when it is full.

A damaged directory is refused before anything in it is changed. After a failed write the file is abandoned, and the
next write begins a new one. A file is deleted only when a newer, listed file has replaced it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from pydanube.base.errors import DanubeError, DiskFull, MetadataDamaged, PeerClusterDiffers
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES, METADATA_SNAPSHOT_KEYS
from pydanube.base.units import shown_bytes
from pydanube.metadata.frozen import FrozenState
from pydanube.metadata.log import Group, LogContent, LogHeader, blocks, decode_file, group_length
from pydanube.metadata.snapshot import ROW_BYTES, SnapshotHead, encode_rows
from pydanube.ports.disk import Disk, DiskFile
from pydanube.ports.randomness import Randomness
from pydanube.raft.entries import HASH_BYTES, Entry, Point
from pydanube.raft.state import Hard
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
NEW_CLUSTER = b""
EARLY_FREE_FILES = 4  # how often the next file must fit the free space, to be begun before it is needed
OWNER = "metadata store"  # named in the lock file


def log_name(generation: int) -> str:
    return f"metadata-{generation:016x}.log"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one point of the log."""

    point: Point
    head: SnapshotHead
    state: FrozenState


@dataclass(frozen=True, slots=True)
class Successor:
    """A new file that has a snapshot, and neither a header nor a name that counts."""

    generation: int
    handle: DiskFile
    capacity: int
    point: Point
    keys: int
    snapshot_bytes: int
    digest: bytes

    def has_room(self, entries: Sequence[Entry]) -> bool:
        return blocks(BLOCK_BYTES + self.snapshot_bytes) + group_length(entries) + BLOCK_BYTES <= self.capacity


@dataclass(frozen=True, slots=True)
class Write:
    """What the next group says besides its entries."""

    hard: Hard
    committed: int
    cut: int | None = None
    entries: Sequence[Entry] = ()


@dataclass(slots=True)
class _Active:
    """The file being written."""

    header: LogHeader
    handle: DiskFile
    position: int
    groups: int = 0
    covered: bool = True  # the last group is a mark, or there is none

    def has_room(self, length: int) -> bool:
        """Whether a group of that length fits; the last block is kept for a mark."""
        return self.position + length + BLOCK_BYTES <= self.header.capacity

    @property
    def half_full(self) -> bool:
        return 2 * (self.position - self.header.log_start) >= self.header.capacity - self.header.log_start


class LogFile:
    """Owned by one task. Call `open`, then `begin`; then it can be written to."""

    def __init__(self, disk: Disk, belongings: Belongings, randomness: Randomness, log_bytes: int) -> None:
        self.disk = disk
        self.cluster = NEW_CLUSTER
        self.incarnation = 0
        self._belongings = belongings
        self._randomness = randomness
        self._log_bytes = log_bytes
        self._generation = 0  # the highest that any file has had
        self._active: _Active | None = None  # None: a new file must be created before anything is written
        self._found: tuple[DiskFile, LogContent] | None = None  # until `begin`
        self._left_over: list[str] = []  # to be removed by `begin`
        self._locked = False

    @classmethod
    async def open(cls, disk: Disk, randomness: Randomness, log_bytes: int) -> tuple[LogFile, LogContent | None]:
        """Locks the directory if it exists, and reads it without changing anything. Call `release` if it is not to be
        used. Raises `MetadataDamaged` or `NodeDirectoryInvalid` if it cannot be trusted."""
        locked = await lock_if_there(disk, OWNER)
        try:
            node = await read_node_file(disk) or NodeFile(NodeIdentity(randomness.bytes(16).hex()))
            file = cls(disk, Belongings(disk, node), randomness, log_bytes)
            file._locked = locked
            await file._find()
        except BaseException:
            await disk.unlock()
            raise
        return file, None if file._found is None else file._found[1]

    @property
    def identity(self) -> NodeIdentity:
        return self._belongings.node.identity

    @property
    def boots(self) -> int:
        """The number of this start."""
        return self._belongings.node.boots

    def join(self, cluster: bytes, incarnation: int) -> None:
        """An empty directory becomes that of a node of this cluster. One that has another stays what it is."""
        if self._found is None:
            self.cluster, self.incarnation = cluster, incarnation
        elif self.cluster != cluster:
            raise PeerClusterDiffers(f"{self.disk.name} belongs to the cluster {self.cluster.hex()}")

    @property
    def covered(self) -> bool:
        """Whether the loss of the last group would be noticed, or there is none."""
        return self._active is None or self._active.covered

    async def release(self) -> None:
        """Gives up after a failed start."""
        if self._found is not None:
            self._found[0].close()
            self._found = None
        self.abandon()
        await self.disk.unlock()

    async def close(self) -> None:
        if self._active is not None:
            await self._active.handle.close()
            self._active = None
        await self.disk.unlock()

    async def _find(self) -> None:
        listed = self._belongings.node.files
        names = [name for name in await names_in(self.disk) if name.startswith("metadata-")]
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
        self._left_over = [*map(log_name, unlisted), *(name for name in names if name.endswith(".tmp"))]
        if live is not None:
            self._found = await self._read(live)
            header = self._found[1].header
            self.cluster, self.incarnation = header.cluster, header.incarnation

    async def _refuse_if_used(self, generation: int) -> None:
        """Refuses a file that is newer than those listed and was already written to: it shows that the list is old."""
        handle, content = await self._read(generation)
        handle.close()
        if content.groups > content.header.groups:
            raise MetadataDamaged(
                f"{log_name(generation)} is newer than the `node` file; restore the newest `node` file"
            )

    async def _read(self, generation: int) -> tuple[DiskFile, LogContent]:
        handle = await self.disk.open(log_name(generation))
        try:
            content = decode_file(await handle.read(0, await handle.size()), generation)
            if content.header.node != self.identity:
                raise MetadataDamaged(f"it was written by node {content.header.node}")
        except MetadataDamaged as error:
            handle.close()
            raise MetadataDamaged(f"{self.disk.name}/{log_name(generation)}: {error}") from error
        except BaseException:
            handle.close()
            raise
        return handle, content

    async def begin(self) -> None:
        """Creates the directory if it is missing, counts a start, mends a torn write, and removes what is left over."""
        await settle_directory(self.disk, OWNER, locked=self._locked)
        await self._belongings.boot(1)
        if self._found is not None:
            handle, found = self._found
            await self._settle(handle, found)
            self._active = _Active(found.header, handle, found.end, found.groups, found.covered)
            self._found = None
        for name in self._left_over:
            await try_remove(self.disk, name)

    async def _settle(self, handle: DiskFile, found: LogContent) -> None:
        """Overwrites a torn write with zeros, and writes again what may never have been synced."""
        if found.torn > found.end:
            log.warning("%s: cut a torn write of %d bytes", handle.name, found.torn - found.end)
            await handle.write(found.end, [bytes(blocks(found.torn) - found.end)], sync=True)
        if found.last < found.end:
            await handle.write(found.last, [await handle.read(found.last, found.end - found.last)], sync=True)

    # -- writing -------------------------------------------------------------------------------------------------------

    def has_room(self, entries: Sequence[Entry]) -> bool:
        """Whether `append` is possible; otherwise there must be a new file."""
        return self._active is not None and self._active.has_room(group_length(entries))

    @property
    def needs_successor(self) -> bool:
        """Whether it is time to begin a new file, so that it is complete when this one is full."""
        return self._active is None or self._active.half_full

    async def append(self, write: Write, *, mark: bool = False) -> None:
        """One write and one sync. A mark says nothing new."""
        active = self._active
        assert active is not None
        group = Group(active.groups, write.hard, write.committed, write.cut, write.entries)
        content = group.encode(active.header.salt)
        await active.handle.write(active.position, [content], sync=True)
        active.position += len(content)
        active.groups += 1
        active.covered = mark

    def abandon(self) -> None:
        """A write failed, so nothing is known about the end of the file: it is not written to again."""
        if self._active is not None:
            self._active.handle.close()
            self._active = None

    def written(self) -> tuple[NodeFile, LogHeader, int] | None:
        """The live file and how far it is durable; None while another file replaces it."""
        active, node = self._active, self._belongings.node
        if active is None or list(node.files) != [active.header.generation]:
            return None
        return node, active.header, active.position

    async def prepare(self, snapshot: Snapshot, entries: Sequence[Entry] = (), *, early: bool = False) -> Successor:
        """Writes a snapshot into a new file with room for these entries and more, while the present file is written to.
        It ends the frozen state. `early` needs much free space: the last of it is for what cannot wait."""
        try:
            if self.cluster == NEW_CLUSTER:
                self.cluster = self._randomness.bytes(16)
            generation = self._generation = self._generation + 1
            head, state = snapshot.head.encode(), snapshot.state
            snapshot_bytes = len(head) + state.bytes + ROW_BYTES * state.keys
            log_room = blocks(max(self._log_bytes, snapshot_bytes)) + group_length(entries) + BLOCK_BYTES
            capacity = blocks(BLOCK_BYTES + snapshot_bytes) + log_room
            if early and await self.disk.free_bytes() < EARLY_FREE_FILES * capacity:
                raise DiskFull(f"{self.disk.name} has little room")
            handle = await self._create(log_name(generation) + ".tmp", capacity)
            try:
                digest = await _write_snapshot(handle, head, state, snapshot_bytes)
            except BaseException:
                handle.close()
                raise
        finally:
            snapshot.state.end()
        return Successor(generation, handle, capacity, snapshot.point, state.keys, snapshot_bytes, digest)

    async def _create(self, temporary: str, capacity: int) -> DiskFile:
        await try_remove(self.disk, temporary)
        try:
            return await self.disk.create(temporary, reserve=capacity)
        except DiskFull as error:
            lacking = f"{self.disk.name} has no room for a new metadata file; free {shown_bytes(capacity)} on its disk"
            raise DiskFull(f"{lacking}: {error}") from error

    async def succeed(self, successor: Successor, write: Write) -> None:
        """Makes the new file the live one; `write` has all entries after its snapshot.

        The new file counts from the moment it is listed; the old one no longer does. If listing fails, it is unknown
        which of them counts, so neither is written to again.
        """
        self.abandon()
        active = await self._complete(successor, write)
        generation = successor.generation
        gone = [listed for listed in self._belongings.node.files if listed != generation]
        try:
            await self._belongings.change(add={generation: JOURNAL}, drop=gone)
        except BaseException:
            active.handle.close()
            raise
        self._active = active
        for listed in gone:
            await try_remove(self.disk, log_name(listed))

    async def _complete(self, successor: Successor, write: Write) -> _Active:
        handle, name = successor.handle, log_name(successor.generation)
        try:
            salt = int.from_bytes(self._randomness.bytes(8), "little")
            header = LogHeader(
                successor.generation, salt, self.cluster, self.incarnation, self.identity, successor.capacity,
                successor.point, write.hard, int(bool(write.entries)), successor.keys, successor.snapshot_bytes,
                successor.digest,
            )  # fmt: skip
            active = _Active(header, handle, header.log_start)
            if write.entries:
                group = Group(0, write.hard, write.committed, None, write.entries).encode(salt)
                await handle.write(active.position, [group], sync=False)
                active.position += len(group)
                active.groups, active.covered = 1, False
            await handle.write(0, [header.encode()], sync=True)
            await self.disk.rename(name + ".tmp", name)
            await self.disk.sync_directory()
        except DanubeError:
            await handle.close()
            await try_remove(self.disk, name + ".tmp")
            raise
        return active

    async def discard(self, successor: Successor) -> None:
        """The new file is not needed."""
        await successor.handle.close()
        await try_remove(self.disk, log_name(successor.generation) + ".tmp")


async def _write_snapshot(handle: DiskFile, head: bytes, state: FrozenState, length: int) -> bytes:
    """Returns the digest of what it wrote."""
    digest = blake2b(head, digest_size=HASH_BYTES)
    await handle.write(BLOCK_BYTES, [head], sync=False)
    position = BLOCK_BYTES + len(head)
    while rows := state.read(METADATA_SNAPSHOT_KEYS):
        chunk = encode_rows(rows)
        digest.update(chunk)
        await handle.write(position, [chunk], sync=False)
        position += len(chunk)
    assert position == BLOCK_BYTES + length
    return digest.digest()
