"""The `node` file: which node the directory belongs to, how often the node has started, and which files must exist.

It is written in place as two equal copies, one after the other, so that one survives a full disk, a torn write or
damage to the other. A file is listed before anything in it is acknowledged, and taken off the list before it is
removed: a file that is listed but missing was lost.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from asyncio import Task
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydanube.base.checksum import crc32c
from pydanube.base.errors import DiskFailed, DiskFull, FileMissing, NodeDirectoryInvalid
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES, DATA_DIRECTORIES_MAX, NODE_FILES_MAX
from pydanube.journal.group import blocks
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.storage.futures import retrieve
from pydanube.storage.node.bad_blocks import NODE_FILE, read_block_by_block
from pydanube.storage.node.files import StoredFile, file_name, generations, read_header, try_remove

log = logging.getLogger(__name__)
OWNER = "storage node"  # named in the lock file
JOURNAL = 0xFFFFFFFF  # in place of a data directory's number: the file is in the journal's own directory
_MAGIC = b"DND3"
_HEAD = struct.Struct("<4sI16sIIQQQII")  # magic, crc, then `NodeFile`, with the number of files at the end
_FILE = struct.Struct("<QI")
_SPARE_FILES = 64  # room for this many more names when the file is rewritten
_BYTES_MAX = blocks(_HEAD.size + _FILE.size * (NODE_FILES_MAX + _SPARE_FILES))


@dataclass(frozen=True, slots=True)
class NodeFile:
    """The content. In a data directory's own file, only `identity` and `slot` count, and `boots` as of when it got its
    number."""

    identity: NodeIdentity
    slot: int = 0  # number of the data directory; the journal's own is 0
    slots: int = 1  # numbers assigned so far
    boots: int = 0
    version: int = 0  # the copy with the higher one is newer
    generations: int = 0  # the highest of all files ever listed, including those that were removed
    files: Mapping[int, int] = field(default_factory=dict)  # generation -> data directory, or JOURNAL
    copy_bytes: int = 0  # room for one copy in the present file
    second_holds: bool = False  # the first copy is damaged or older than the second, and is overwritten first

    @property
    def bytes_needed(self) -> int:
        return _HEAD.size + _FILE.size * len(self.files)

    def encode(self) -> bytes:
        listed = b"".join(_FILE.pack(generation, slot) for generation, slot in self.files.items())
        numbers = (self.slot, self.slots, self.boots, self.version, self.generations)
        body = _HEAD.pack(_MAGIC, 0, bytes.fromhex(self.identity), *numbers, self.copy_bytes, len(self.files)) + listed
        return body[:4] + crc32c(body[8:]).to_bytes(4, "little") + body[8:]


def _decode(data: bytes, position: int) -> NodeFile | None:
    """The copy at `position`; None if it is damaged."""
    if position + _HEAD.size > len(data):
        return None
    magic, crc, name, *numbers, copy_bytes, count = _HEAD.unpack_from(data, position)
    end = position + _HEAD.size + _FILE.size * count
    if magic != _MAGIC or end > len(data) or crc != crc32c(data[position + 8 : end]):
        return None
    files = dict(_FILE.iter_unpack(data[position + _HEAD.size : end]))
    slot, slots, boots, version, highest = numbers
    return NodeFile(NodeIdentity(name.hex()), slot, slots, boots, version, highest, files, copy_bytes)


def decode_node_file(data: bytes) -> NodeFile | None:
    """The newer of the intact copies; None if both are damaged."""
    first = _decode(data, 0)
    starts = [first.copy_bytes] if first is not None else range(BLOCK_BYTES, len(data), BLOCK_BYTES)
    seconds = (copy for start in starts if (copy := _decode(data, start)) is not None and copy.copy_bytes == start)
    second = next(seconds, None)
    if second is None or (first is not None and first.version >= second.version):
        return first
    return replace(second, second_holds=True)


async def read_node_file(disk: Disk) -> NodeFile | None:
    """The content; None if the directory is new or missing. A damaged file is refused, because everything depends on
    which node it belongs to."""
    try:
        handle = await disk.open(NODE_FILE)
    except FileMissing:
        if generations(await names_in(disk)):
            raise NodeDirectoryInvalid(f"{disk.name} has journal files but no `node` file") from None
        return None
    try:
        data = await handle.read(0, 2 * _BYTES_MAX)
    except DiskFailed:
        data, bad = await read_block_by_block(handle, 0, 2 * _BYTES_MAX)
        if len(bad) * BLOCK_BYTES >= len(data):
            raise  # the whole disk has failed, not just a part of this file
    finally:
        handle.close()
    found = decode_node_file(data)
    if found is None:
        raise NodeDirectoryInvalid(f"the `node` file in {disk.name} is damaged")
    return found


async def names_in(disk: Disk) -> list[str]:
    """The names of its files; empty if the directory does not exist."""
    try:
        return await disk.list()
    except FileMissing:
        return []


async def lock_if_there(disk: Disk, owner: str) -> bool:
    """Locks the directory; false if it does not exist. Nothing is created before it is clear that none is missing."""
    try:
        await disk.lock(owner)
    except FileMissing:
        return False
    return True


async def settle_directory(disk: Disk, owner: str, *, locked: bool) -> None:
    """Makes sure that the directory exists, is durable under its name, and is locked by us. Done at each start: the
    process that created it may have ended before it was durable, and what is acknowledged in it would be lost."""
    await disk.make()
    await disk.sync_parent()
    if not locked:
        await disk.lock(owner)


async def free_set_aside(disk: Disk) -> None:
    """Removes ballast and spare files to free room, as a start does; not if another process has the lock."""
    if await lock_if_there(disk, OWNER):
        try:
            await remove_temporary(disk)
            await disk.sync_directory()
        finally:
            await disk.unlock()


async def remove_temporary(disk: Disk) -> None:
    """Removes temporary files. None of them holds anything that was acknowledged."""
    for name in await disk.list():
        if name.endswith(".tmp"):
            await try_remove(disk, name)


def node_file_content(node: NodeFile) -> tuple[NodeFile, bytes]:
    """The bytes of a new file with room for more names, and the content that they encode."""
    copy_bytes = blocks(node.bytes_needed + _SPARE_FILES * _FILE.size)
    node = replace(node, copy_bytes=copy_bytes, version=node.version + 1)
    return node, node.encode().ljust(copy_bytes, b"\0") * 2


async def write_node_file(disk: Disk, node: NodeFile) -> NodeFile:
    """Writes a new file with room for more names, which gets its name only when it is complete."""
    node, content = node_file_content(node)
    temporary = NODE_FILE + ".tmp"
    await try_remove(disk, temporary)
    handle = await disk.create(temporary, reserve=len(content))
    try:
        await handle.write(0, [content], sync=True)
    finally:
        await handle.close()
    await disk.rename(temporary, NODE_FILE)
    await disk.sync_directory()
    return node


class Belongings:
    """The journal directory's `node` file while the node runs: one change at a time, durable when it returns."""

    def __init__(self, disk: Disk, node: NodeFile) -> None:
        self._disk = disk
        self.node = node
        self._changing = asyncio.Lock()
        self._under_way: dict[Task[None], None] = {}
        self._intact = node.copy_bytes > 0  # False: it is missing, or a write to it failed, so it must be rewritten

    async def boot(self, slots: int) -> None:
        """Counts one more start, with data directories numbered up to `slots`."""
        await self._store(replace(self.node, boots=self.node.boots + 1, slots=slots))

    async def count(self, slots: int) -> None:
        """Records that data directories are numbered up to `slots`."""
        if slots > self.node.slots:
            await self._store(replace(self.node, slots=slots))

    async def change(self, *, add: Mapping[int, int] | None = None, drop: Iterable[int] = ()) -> None:
        """Lists files that must exist from now on, and takes off the list those that are about to be removed.

        Once begun, it is completed even if the caller is cancelled: a write or rename must not happen late.
        """
        await self._to_the_end(self._change(add or {}, list(drop)))

    async def _change(self, add: Mapping[int, int], drop: Sequence[int]) -> None:
        async with self._changing:
            files = {**self.node.files, **add}
            for generation in drop:
                files.pop(generation, None)
            highest = max([self.node.generations, *add, *drop])  # no number is used twice, in case a file is left over
            changed = files != self.node.files or highest != self.node.generations
            if changed or not self._intact:  # a change that failed may or may not have happened
                await self._store(replace(self.node, files=files, generations=highest))

    async def reserve(self) -> None:
        """Makes room in the file for the next names, while the disk has room for it."""
        await self._to_the_end(self._reserve())

    async def settle(self) -> None:
        """Returns when no change is in progress."""
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _to_the_end(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way[task] = None
        task.add_done_callback(self._over)
        await asyncio.shield(task)

    def _over(self, task: Task[None]) -> None:
        del self._under_way[task]
        retrieve(task)

    async def _reserve(self) -> None:
        async with self._changing:
            if len(self.node.files) >= NODE_FILES_MAX:
                raise DiskFull(f"a storage node can have at most {NODE_FILES_MAX} files")
            if self.node.bytes_needed + _SPARE_FILES // 2 * _FILE.size > self.node.copy_bytes:
                await self._store(replace(self.node, copy_bytes=0))

    async def _store(self, node: NodeFile) -> None:
        if not self._intact or node.bytes_needed > node.copy_bytes:
            self.node = await write_node_file(self._disk, node)
            self._intact = True
            return
        positions = (0, node.copy_bytes) if node.second_holds else (node.copy_bytes, 0)
        node = replace(node, version=node.version + 1, second_holds=False)
        copy = node.encode()
        self._intact = False
        handle = await self._disk.open(NODE_FILE)
        try:
            for position in positions:  # the only valid copy is never overwritten first
                await handle.write(position, [copy], sync=True)
        finally:
            await handle.close()
        self.node, self._intact = node, True


async def identify(
    journal: Disk,
    directories: Sequence[Disk],
    randomness: Randomness,
    locked: list[Disk],
    expected: NodeIdentity | None = None,
) -> tuple[Belongings, dict[int, Disk]]:
    """The `node` file of these directories, with one more start counted, and the data directories by number, without
    those that failed.

    It locks them for this process first; `locked` has those that it got, even if it fails. Nothing is written or
    created before all of them are known to belong together, and the journal's own directory comes first. A node that is
    created here gets the `expected` identity; an existing node with another one is refused.
    """
    if await lock_if_there(journal, OWNER):
        locked.append(journal)
    there = await read_node_file(journal)
    found = there or NodeFile(expected or NodeIdentity(randomness.bytes(16).hex()))
    if expected not in (None, found.identity):
        raise NodeDirectoryInvalid(f"{journal.name} belongs to storage node {found.identity}, not to {expected}")
    if found.slot != 0:
        raise NodeDirectoryInvalid(
            f"this is not the journal directory but data directory {found.slot} of {found.identity}"
        )
    data, new = await _sort_out(journal, directories, found, there is None, locked)
    if found.slots + len(new) > DATA_DIRECTORIES_MAX:
        raise NodeDirectoryInvalid(f"a node can use at most {DATA_DIRECTORIES_MAX} data directories in its lifetime")
    await _refuse_if_older(found, journal, data)
    await settle_directory(journal, OWNER, locked=journal in locked)
    if journal not in locked:
        locked.append(journal)
    await remove_temporary(journal)  # makes room for the next two steps, if the disk is full
    belongings = Belongings(journal, found)
    await belongings.boot(found.slots)
    for slot, disk in enumerate(new, found.slots):
        try:
            await settle_directory(disk, OWNER, locked=disk in locked)
            if disk not in locked:
                locked.append(disk)
            await write_node_file(disk, NodeFile(found.identity, slot, boots=belongings.node.boots))
            data[slot] = disk
        except (DiskFailed, DiskFull) as error:
            log.error("ignoring a new data directory: %s", error)
            await _let_go(disk, locked)
    if not data:
        raise NodeDirectoryInvalid("no data directory can be used")
    await belongings.count(max(data) + 1)  # only now: a directory that cannot be written must not use up numbers
    return belongings, data


async def _sort_out(
    journal: Disk, directories: Sequence[Disk], found: NodeFile, fresh: bool, locked: list[Disk]
) -> tuple[dict[int, Disk], list[Disk]]:
    """Data directories by number, and those that have none yet. A missing one counts as new only if the node is new."""
    data: dict[int, Disk] = {}
    new: list[Disk] = []
    for disk in directories:
        if disk is journal:
            data[0] = disk
            continue
        try:
            if await lock_if_there(disk, OWNER):
                locked.append(disk)
            elif not fresh:
                raise FileMissing(f"{disk.name} does not exist")
            theirs = await read_node_file(disk)
        except (DiskFailed, DiskFull, FileMissing) as error:
            log.error("ignoring a data directory; ledgers with entries in it cannot be read completely: %s", error)
            await _let_go(disk, locked)
            continue
        if theirs is not None and fresh:
            raise NodeDirectoryInvalid(
                f"{disk.name} belongs to node {theirs.identity}, and {journal.name}, where its journal should be, is "
                "missing or empty"
            )
        if theirs is None or await _uncounted(disk, theirs, found):
            new.append(disk)
            continue
        if theirs.identity != found.identity or theirs.slot in data:
            raise NodeDirectoryInvalid(f"{disk.name} belongs to node {theirs.identity}, slot {theirs.slot}")
        data[theirs.slot] = disk
    return data, new


async def _let_go(disk: Disk, locked: list[Disk]) -> None:
    if disk in locked:
        locked.remove(disk)
        await disk.unlock()


async def _uncounted(disk: Disk, theirs: NodeFile, found: NodeFile) -> bool:
    """Whether a start gave the directory its number and ended before counting it: then it is as good as new."""
    if theirs.identity != found.identity or theirs.slot < found.slots:
        return False
    if theirs.boots > found.boots or generations(await disk.list()):
        raise NodeDirectoryInvalid(
            f"the `node` file has numbered {found.slots} data directories, but this one has number {theirs.slot}; "
            "restore the newest `node` file"
        )
    return True


async def _refuse_if_older(node: NodeFile, journal: Disk, data: Mapping[int, Disk]) -> None:
    """Refuses a `node` file that is out of date, because it does not know which files must exist. Checked before
    another start is counted in it."""
    directories = [(journal, "journal"), *((disk, "kept") for disk in data.values())]
    for disk, kind in directories:
        for generation in generations(await names_in(disk), kind):
            name = file_name(generation, kept=kind == "kept")
            file = StoredFile(disk, generation, 0, name, kept=kind == "kept")
            try:
                header = await read_header(file, node.identity)
            finally:
                if file.handle is not None:
                    await file.handle.close()
            if header is not None and header.boots > node.boots:
                raise NodeDirectoryInvalid(
                    f"{name} was written in start {header.boots}, but the `node` file knows of {node.boots}; "
                    "restore the newest `node` file"
                )


async def refuse_if_incomplete(node: NodeFile, journal: Disk, data: Mapping[int, Disk]) -> None:
    """Refuses to start without a listed file, because the node would report its entries as absent. Files in a directory
    that was left out are excused."""
    there = {JOURNAL: frozenset(await journal.list())}
    for slot, disk in data.items():
        there[slot] = frozenset(await disk.list())
    listed = [(file_name(generation, kept=slot != JOURNAL), slot) for generation, slot in node.files.items()]
    missing = [name for name, slot in listed if slot in there and name not in there[slot]]
    if missing:
        raise NodeDirectoryInvalid(f"files are missing; restore them from a backup: {', '.join(missing[:10])}")
