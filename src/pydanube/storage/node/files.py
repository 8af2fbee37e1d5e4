"""Closed journal files and kept copies of them: their indexes, loaded when needed, and reading entries back."""

from __future__ import annotations

import logging
import re
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydanube.base.errors import (
    BatchDamaged,
    BatchInvalid,
    BatchTooLarge,
    DanubeError,
    DiskFailed,
    FileMissing,
    LedgerDamaged,
    NodeDirectoryInvalid,
)
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.base.limits import BATCHES_READ_AT_ONCE, BLOCK_BYTES, GROUP_BYTES_MAX, KIB, READ_AHEAD_BYTES
from pydanube.journal.group import (
    FILE_START_BYTES,
    GROUP_HEADER_BYTES,
    Entry,
    EntryKind,
    FileHeader,
    GroupHead,
    decode_directory,
    decode_file_header,
    decode_file_start,
    decode_group_head,
)
from pydanube.journal.index import FileIndex, decode_index
from pydanube.journal.ledger_table import LedgerTable
from pydanube.journal.scan import Damage, Scan, scan_file
from pydanube.ports.disk import Disk, DiskFile
from pydanube.storage.node.bad_blocks import AroundBadBlocks
from pydanube.wire.batch import Batch
from pydanube.wire.intact import is_intact

log = logging.getLogger(__name__)
CHUNK_BYTES = 256 * KIB  # one read gets many small groups, or the directory of a large one


@dataclass(slots=True)
class StoredFile:
    """One file on one disk. The newest one, which is being written, always keeps its index in memory."""

    disk: Disk
    generation: int
    salt: int
    name: str
    kept: bool = False
    live: int = 0  # bytes of entries whose ledgers still exist
    total: int = 0
    length: int = 0  # of the valid part
    capacity: int = 0  # bytes reserved for it, if this process created it
    handle: DiskFile | None = None
    index: FileIndex | None = None
    index_bytes: int = 0
    readers: int = 0
    closed: bool = False  # it is no longer written to, and its ledgers know which entries it has
    gone: bool = False
    damage: list[Damage] = field(default_factory=list)  # as far as known: a file with an index is not scanned

    def needed(self, table: LedgerTable) -> bool:
        """Whether a ledger that still exists has entries in this file, or may have some in a damaged part of it."""
        if self.live > 0:
            return True
        for damage in self.damage:
            if damage.ledgers is None or any(table.find(ledger) is not None for ledger in damage.ledgers):
                return True  # if it is unknown which ledgers are affected, the file is kept
        return False

    def may_have_lost(self, ledger: LedgerId) -> bool:
        return any(damage.ledgers is None or ledger in damage.ledgers for damage in self.damage)


def file_name(generation: int, *, kept: bool = False) -> str:
    return f"{'kept' if kept else 'journal'}-{generation:016x}.log"


def index_name(generation: int) -> str:
    return f"index-{generation:016x}.idx"


def generations(names: Iterable[str], kind: str = "[a-z]+") -> list[int]:
    """The generations of all files, or of one kind. Names that only look similar are ignored: they are not ours."""
    form = re.compile(rf"{kind}-([0-9a-f]{{16}})\.log")
    return [int(found[1], 16) for name in names if (found := form.fullmatch(name)) is not None]


async def read_header(file: StoredFile, identity: NodeIdentity) -> FileHeader | None:
    """Opens the file and learns its salt. None if the header is damaged; that of another file or node is refused."""
    handle = file.handle = await file.disk.open(file.name)
    start = await AroundBadBlocks(file.disk, handle).read(0, FILE_START_BYTES)
    claimed = decode_file_header(start[:BLOCK_BYTES])
    if claimed is not None and claimed.identity != identity:
        raise NodeDirectoryInvalid(f"{file.name} was written by node {claimed.identity}")
    if claimed is not None and claimed.generation != file.generation:
        own = file_name(claimed.generation, kept=bool(claimed.sources))
        raise NodeDirectoryInvalid(f"{file.name} is {own} under another name; give each file its own name again")
    header, file.salt = decode_file_start(start, file.generation)
    return header


async def run_scan(file: StoredFile, end: int | None, *, sealed: bool = False) -> Scan:
    """Drives the scanner over an open file, real or simulated."""
    assert file.handle is not None
    size, content = await file.handle.size(), AroundBadBlocks(file.disk, file.handle)
    scan = scan_file(file.generation, size, end, sealed=sealed)
    request = next(scan)
    try:
        while True:
            request = scan.send(await content.read(*request))
    except StopIteration as done:
        result: Scan = done.value
    if end is None and not sealed and any(position >= result.end for position in content.bad):
        # The newest entries may be in there, and may have been synced: without proof it is not a torn tail.
        result.damage.append(Damage(file.generation, result.end, size - result.end, None))
    return result


async def load_index(file: StoredFile, end: int | None) -> tuple[FileIndex, int] | None:
    """The stored index of an open file, and the end of the file's valid part, which is `end` if that is known.

    None if no index can be trusted: it is missing or damaged, belongs to another file, or covers more or less than the
    file holds.
    """
    try:
        handle = await file.disk.open(index_name(file.generation))
    except FileMissing:
        return None
    try:
        data = await handle.read(0, await handle.size())
    except DiskFailed as error:
        log.warning("rebuilding %s: %s", handle.name, error)
        return None
    finally:
        await handle.close()
    loaded = decode_index(data, file.generation, file.salt)
    if loaded is None or end not in (None, loaded[1]):
        return None
    assert file.handle is not None
    return loaded if loaded[1] <= await file.handle.size() else None


async def store_index(file: StoredFile, index: FileIndex, end: int) -> None:
    """Stores the index, which saves the next start a scan. It is not synced and never fails: an index that is missing
    or damaged is rebuilt."""
    disk, name = file.disk, index_name(file.generation)
    try:
        await try_remove(disk, name + ".tmp")
        handle = await disk.create(name + ".tmp")
        try:
            await handle.write(0, [index.encode(file.generation, file.salt, end)], sync=False)
        finally:
            await handle.close()
        await disk.rename(name + ".tmp", name)
    except DanubeError as error:
        log.warning("%s was not stored: %s", name, error)
        await try_remove(disk, name + ".tmp")


@dataclass(slots=True)
class FileCache:
    """Open files, bounded by the bytes of their indexes and by their number; the least recently used one goes first."""

    bytes_max: int
    files_max: int = 256
    _opened: OrderedDict[int, StoredFile] = field(default_factory=OrderedDict)
    _bytes: int = 0

    async def open(self, file: StoredFile) -> tuple[DiskFile, FileIndex]:
        """Opens a file for one reader, which calls `done` afterwards. Until then it is neither closed nor reused."""
        file.readers += 1
        try:
            handle, index = await self._load(file)
        except BaseException:
            self.done(file)
            raise
        if file.generation not in self._opened:
            self._opened[file.generation] = file
            self._bytes += file.index_bytes
        self._opened.move_to_end(file.generation)
        self._evict()
        return handle, index

    async def _load(self, file: StoredFile) -> tuple[DiskFile, FileIndex]:
        handle = file.handle
        if handle is None:
            opened = await file.disk.open(file.name)
            handle = file.handle = file.handle or opened
            if handle is not opened:
                opened.close()  # two readers opened it at once
        if file.index is None:
            loaded = await load_index(file, file.length)
            if loaded is None:
                scan = await run_scan(file, file.length, sealed=True)
                file.index, file.damage = scan.index, scan.damage
            else:
                file.index = loaded[0]
            file.index_bytes = file.index.size
        return handle, file.index

    def adopt(self, file: StoredFile) -> None:
        """Adds a file that was just written and is already open."""
        if file.index is not None and file.generation not in self._opened:
            file.index_bytes = file.index.size
            self._opened[file.generation] = file
            self._bytes += file.index_bytes
            self._evict()

    def done(self, file: StoredFile) -> None:
        file.readers -= 1
        if file.gone and file.readers == 0:
            self.forget(file)

    def forget(self, file: StoredFile) -> None:
        if self._opened.pop(file.generation, None) is not None:
            self._bytes -= file.index_bytes
        if file.handle is not None and file.readers == 0:
            file.handle.close()
            file.handle = file.index = None

    def _evict(self) -> None:
        while self._bytes > self.bytes_max or len(self._opened) > self.files_max:
            victim = next((file for file in self._opened.values() if file.readers == 0), None)
            if victim is None:
                return
            self.forget(victim)


async def read_entries(
    handle: AroundBadBlocks, salt: int, block: int, end: int, ledger: LedgerId, offset: int, bytes_max: int
) -> list[Batch]:
    """Batches of `ledger` without a gap, from the one that holds `offset` on, in the group at `block` and later ones.

    None if that group is intact and does not hold the offset. Nothing at or after `end` is read, because a torn tail
    may be there. Every checksum is verified: raises `LedgerDamaged` if the first batch is damaged, and returns the
    batches before the damage if a later batch or group is.
    """
    position = start = block * BLOCK_BYTES
    chunk = await handle.read(position, min(CHUNK_BYTES, end - position))
    batches: list[Batch] = []
    wanted, room = offset, bytes_max
    try:
        while position - start + GROUP_HEADER_BYTES <= len(chunk):
            head = decode_group_head(chunk[position - start : position - start + GROUP_HEADER_BYTES], salt)
            if head is None:
                raise LedgerDamaged(f"ledger {ledger}: the group at {position} is damaged")
            entries = await _directory(handle, chunk, start, position, head, ledger)
            mine = (entry for entry in entries if entry.ledger == ledger and entry.kind == EntryKind.APPEND)
            for entry in sorted(mine, key=lambda entry: entry.a):
                if entry.a + entry.messages <= wanted:
                    continue
                if entry.a > wanted or (batches and (entry.length > room or len(batches) == BATCHES_READ_AT_ONCE)):
                    return batches
                if entry.position + entry.length > start + len(chunk):
                    start = entry.position
                    more = max(entry.length, min(room, READ_AHEAD_BYTES, end - start))
                    chunk = await handle.read(start, min(more, GROUP_BYTES_MAX))
                batches.append(_batch(chunk, start, entry))
                wanted = entry.a + entry.messages
                room -= entry.length
            if not batches:
                return batches
            position += head.length
        if not batches:
            raise LedgerDamaged(f"ledger {ledger}: the file ends before the group at {position}")
    except LedgerDamaged:
        if not batches:
            raise
    return batches


async def find_intact(
    handle: AroundBadBlocks, salt: int, block: int, ledger: LedgerId, offset: int
) -> tuple[bool, int]:
    """Whether the group at `block` has an intact batch of `ledger` at or after `offset`, and its base offset.

    If not, the offset after all its batches. `LedgerDamaged` if its directory cannot be read.
    """
    position = block * BLOCK_BYTES
    start = await handle.read(position, GROUP_HEADER_BYTES)
    head = decode_group_head(start, salt)
    if head is None:
        raise LedgerDamaged(f"ledger {ledger}: the group at {position} is damaged")
    entries = await _directory(handle, start, position, position, head, ledger)
    for entry in sorted(entries, key=lambda entry: entry.a):
        if entry.ledger != ledger or entry.kind != EntryKind.APPEND or entry.a + entry.messages <= offset:
            continue
        if entry.a >= offset:
            data = await handle.read(entry.position, entry.length)
            if is_intact(data, 0, entry.length, entry.crc, entry.a, entry.messages):
                return True, entry.a
        offset = entry.a + entry.messages
    return False, offset


async def _directory(
    handle: AroundBadBlocks, chunk: bytes, start: int, position: int, head: GroupHead, ledger: LedgerId
) -> list[Entry]:
    begin = position - start + GROUP_HEADER_BYTES
    packed = chunk[begin : begin + head.directory_bytes]
    if len(packed) < head.directory_bytes:
        packed = await handle.read(position + GROUP_HEADER_BYTES, head.directory_bytes)
    entries = decode_directory(head, position, packed)
    if entries is None:
        raise LedgerDamaged(f"ledger {ledger}: the directory of the group at {position} is damaged")
    return entries


def _batch(chunk: bytes, start: int, entry: Entry) -> Batch:
    begin = entry.position - start
    try:
        batch = Batch.parse(memoryview(chunk)[begin : begin + entry.length])
    except (BatchDamaged, BatchInvalid, BatchTooLarge) as error:
        raise LedgerDamaged(f"ledger {entry.ledger}: the batch at offset {entry.a} is damaged: {error}") from error
    if (batch.base_offset, batch.count, batch.crc) != (entry.a, entry.messages, entry.crc):
        raise LedgerDamaged(f"ledger {entry.ledger}: the batch at offset {entry.a} is another one")
    return batch


async def try_remove(disk: Disk, name: str) -> None:
    """Removes a file that is no longer needed; a failure is ignored."""
    try:
        await disk.remove(name)
    except DanubeError:
        return
