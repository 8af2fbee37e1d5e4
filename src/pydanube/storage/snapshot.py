"""A consistent snapshot of a broker's storage while it serves: the files that a power cut at that moment would leave.

Metadata and journal belong to one loop, and both only grow at their ends. So one turn of the loop notes how far each is
written, and the bytes up to there stay as they are: the metadata's file is kept open, and the node's files are pinned.
Copying them may take any time, and nothing waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pydanube.base.errors import FileMissing, NodeBusy
from pydanube.ports.disk import Disk, DiskFile
from pydanube.storage.metadata.log_file import log_name
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.node.bad_blocks import NODE_FILE
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.node_file import node_file_content

METADATA, NODE = "metadata", "node"  # folders, as in a data directory
SNAPSHOT_SECONDS_MAX = 60.0  # waits no longer for a copy in progress to end, or for a failed disk to come back
_POLL_SECONDS = 0.01  # between two checks whether files are being changed


@dataclass(eq=False, slots=True)
class SnapshotFile:
    """The first `length` bytes of a file, or its `content`. A restored file has `size` bytes, padded with zeros."""

    name: str
    length: int
    size: int
    content: bytes | None = None
    handle: DiskFile | None = None  # opened for the snapshot, because the file may be removed
    disk: Disk | None = None
    generation: int | None = None  # of a pinned file

    async def open(self) -> DiskFile:
        if self.handle is None:
            assert self.disk is not None
            self.handle = await self.disk.open(self.name.rpartition("/")[2])
        return self.handle

    async def measure(self) -> None:
        """Space reserved in the file counts: a journal file shorter than its header says would look truncated."""
        if self.content is None and self.disk is not None:
            self.size = await (await self.open()).size()
            self.close()

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
            self.handle = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    files: list[SnapshotFile]  # the metadata last
    revision: int  # of the metadata
    release: Callable[[SnapshotFile], None]  # called when a file was copied

    def close(self) -> None:
        for file in self.files:
            self.release(file)


async def take_snapshot(metadata: RaftMetadata, node: DiskNode) -> Snapshot:
    """Contains everything acknowledged before this call. The caller closes it, or releases its files one by one."""
    try:
        async with asyncio.timeout(SNAPSHOT_SECONDS_MAX), node.pinned.changing:
            while (snapshot := await _try(metadata, node)) is None:  # noqa: ASYNC110 - nothing signals the end of a change
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise NodeBusy(f"storage files kept changing for {SNAPSHOT_SECONDS_MAX:.0f} s") from None
    try:
        for file in snapshot.files:
            await file.measure()
    except BaseException:
        snapshot.close()
        raise
    return snapshot


async def _try(metadata: RaftMetadata, node: DiskNode) -> Snapshot | None:
    before = metadata.written()
    if before is None:
        return None
    name = log_name(before[1].generation)
    try:
        handle = await metadata.disk.open(name)
    except FileMissing:  # replaced just now
        return None
    # There is no await from here on, so both are read at the same moment.
    known, found = metadata.written(), node.written()
    if known is None or known[1] is not before[1] or found is None:
        handle.close()
        return None
    of_metadata, header, position = known
    of_node, stored = found
    files = [_whole(f"{NODE}/{NODE_FILE}", node_file_content(of_node)[1])]
    for file, length in stored:
        files.append(SnapshotFile(f"{NODE}/{file.name}", length, length, disk=file.disk, generation=file.generation))
        node.pinned.generations[file.generation] = None
    files.append(_whole(f"{METADATA}/{NODE_FILE}", node_file_content(of_metadata)[1]))
    files.append(SnapshotFile(f"{METADATA}/{name}", position, header.capacity, handle=handle))

    def release(file: SnapshotFile) -> None:
        file.close()
        if file.generation is not None:
            node.unpin([file.generation])

    return Snapshot(files, metadata.revision, release)


def _whole(name: str, content: bytes) -> SnapshotFile:
    return SnapshotFile(name, len(content), len(content), content)
