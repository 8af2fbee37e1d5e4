"""A consistent cut through a broker's storage while it serves: what a power cut at one moment would leave.

Metadata and journal belong to one loop, and both only grow at their ends. So one turn of the loop notes how far each is
written, and the bytes up to there stay as they are: the metadata's file is held open, the node's files are held back
from removal. Copying them takes as long as it takes, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from pydanube.base.errors import FileMissing, NodeBusy
from pydanube.ports.disk import Disk, DiskFile
from pydanube.storage.metadata.file import LocalMetadata, log_name
from pydanube.storage.node.bad_blocks import NODE_FILE
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.node_file import node_file_content

METADATA, NODE = "metadata", "node"  # folders, as in a data directory
CUT_SECONDS_MAX = 60.0  # for a copy that is under way to be finished, or a disk that failed to be back
_LOOK_SECONDS = 0.01  # between two looks whether files are being changed


@dataclass(eq=False, slots=True)
class CutFile:
    """The first `length` bytes of a file, or its `content`; a restored one has `size` bytes, with zeros at its end."""

    name: str
    length: int
    size: int
    content: bytes | None = None
    handle: DiskFile | None = None  # open since the cut, as it may be removed
    disk: Disk | None = None
    generation: int | None = None  # held for this

    async def open(self) -> DiskFile:
        if self.handle is None:
            assert self.disk is not None
            self.handle = await self.disk.open(self.name.rpartition("/")[2])
        return self.handle

    async def measure(self) -> None:
        """Room that was set aside in it counts: a journal file that is shorter than it says of itself was cut."""
        if self.content is None and self.disk is not None:
            self.size = await (await self.open()).size()
            self.close()

    def close(self) -> None:
        if self.handle is not None:
            self.handle.close()
            self.handle = None


@dataclass(frozen=True, slots=True)
class Cut:
    files: list[CutFile]  # the metadata last
    revision: int  # of the metadata
    release: Callable[[CutFile], None]  # its bytes are no longer needed

    def close(self) -> None:
        for file in self.files:
            self.release(file)


async def take_cut(metadata: LocalMetadata, node: DiskNode) -> Cut:
    """Everything that was acknowledged before this was called is in it. `close` it, or release its files one by one."""
    try:
        async with asyncio.timeout(CUT_SECONDS_MAX), node.holds.changing:
            while (cut := await _try(metadata, node)) is None:  # noqa: ASYNC110 - whoever changes files tells nobody
                await asyncio.sleep(_LOOK_SECONDS)
    except TimeoutError:
        raise NodeBusy(f"storage files kept changing for {CUT_SECONDS_MAX:.0f} s") from None
    try:
        for file in cut.files:
            await file.measure()
    except BaseException:
        cut.close()
        raise
    return cut


async def _try(metadata: LocalMetadata, node: DiskNode) -> Cut | None:
    before = metadata.written()
    if before is None:
        return None
    name = log_name(before[1].generation)
    try:
        handle = await metadata.disk.open(name)
    except FileMissing:  # replaced just now
        return None
    # From here to the end nothing waits: both are of one moment.
    known, found = metadata.written(), node.written()
    if known is None or known[1] is not before[1] or found is None:
        handle.close()
        return None
    of_metadata, header, position = known
    of_node, stored = found
    files = [_whole(f"{NODE}/{NODE_FILE}", node_file_content(of_node)[1])]
    for file, length in stored:
        files.append(CutFile(f"{NODE}/{file.name}", length, length, disk=file.disk, generation=file.generation))
        node.holds.generations[file.generation] = None
    files.append(_whole(f"{METADATA}/{NODE_FILE}", node_file_content(of_metadata)[1]))
    files.append(CutFile(f"{METADATA}/{name}", position, header.capacity, handle=handle))

    def release(file: CutFile) -> None:
        file.close()
        if file.generation is not None:
            node.let_go([file.generation])

    return Cut(files, metadata.revision, release)


def _whole(name: str, content: bytes) -> CutFile:
    return CutFile(name, len(content), len(content), content)
