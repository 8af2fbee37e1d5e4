"""Creates the next journal file: a header, the checkpoint twice, and the entries that must be written again."""

from __future__ import annotations

from pydanube.base.errors import DiskFull, LedgerDamaged
from pydanube.base.limits import BLOCK_BYTES, GROUP_ENTRIES_MAX
from pydanube.journal.group import (
    CHECKPOINTS,
    NO_PREVIOUS,
    NOBODY,
    Entry,
    EntryKind,
    FileHeader,
    GroupKind,
    blocks,
    encode_file_header,
    encode_group,
    group_length,
    names_of,
    pack_entry,
)
from pydanube.journal.index import FileIndex
from pydanube.journal.ledger_table import LedgerTable
from pydanube.journal.scan import Scan, add_to_index
from pydanube.ports.disk import Disk, DiskFile
from pydanube.ports.randomness import Randomness
from pydanube.storage.node.bad_blocks import Readable
from pydanube.storage.node.files import StoredFile, file_name
from pydanube.storage.node.journal import ActiveFile
from pydanube.storage.node.node_file import NodeFile
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.intact import is_intact

CONTROL_BYTES = 8 * BLOCK_BYTES  # room for control records in a file that is created on a full disk


def bytes_needed(table: LedgerTable, room: int) -> int:
    """The size of a new file: its header, the checkpoints, groups of `room` bytes, and a mark at the end."""
    checkpoints = CHECKPOINTS * group_length(0, 0, table.checkpoint_bytes)
    return BLOCK_BYTES + checkpoints + room + 2 * BLOCK_BYTES


async def write_new_file(
    disk: Disk,
    node: NodeFile,
    settings: NodeSettings,
    randomness: Randomness,
    table: LedgerTable,
    generation: int,
    newest: Scan | None,
    *,
    spare: tuple[DiskFile, int] | None = None,
    previous: tuple[int, int] | None = None,
    room: int = 0,
) -> ActiveFile:
    """Writes the header, the checkpoint twice and what must be written again, and syncs before the file gets its name.

    `spare` is a file set aside for this purpose and its size, which is enough for a group of `room` bytes.
    """
    if newest is not None:
        previous = (newest.generation, newest.closed_at)
    salt = int.from_bytes(randomness.bytes(8), "little")
    body = table.checkpoint()
    groups = [
        encode_group(salt, number, 0, [], [body], len(body), NOBODY, GroupKind.CHECKPOINT)
        for number in range(1, CHECKPOINTS + 1)
    ]
    rest = newest.uncovered if newest is not None else []
    if spare is None:
        temporary = f"{file_name(generation)}.tmp"
        needed = bytes_needed(table, room + sum(blocks(group.head.length) + BLOCK_BYTES for group in rest))
        handle, capacity = await _create(disk, temporary, max(settings.file_bytes, needed), needed + CONTROL_BYTES)
    else:
        (handle, capacity), temporary = spare, spare[0].name
    header = FileHeader(
        generation, salt, node.identity, *(previous or (NO_PREVIOUS, 0)), table.forgetful, (), capacity, node.boots
    )
    index = FileIndex()
    name = file_name(generation)
    stored = StoredFile(disk, generation, salt, name, capacity=capacity, handle=handle, index=index)
    end = BLOCK_BYTES + sum(length for _, length in groups)
    active = ActiveFile(stored, handle, index, end, capacity, CHECKPOINTS, CHECKPOINTS, end, covered=True)
    try:
        parts = [part for group, _ in groups for part in group]
        await handle.write(0, [encode_file_header(header), *parts], sync=not rest)
        if newest is not None and rest:
            await _write_again(active, disk, table, newest)
        await disk.rename(temporary, stored.name)
        await disk.sync_directory()
    except BaseException:
        await handle.close()
        raise
    return active


async def _create(disk: Disk, name: str, capacity: int, least: int) -> tuple[DiskFile, int]:
    """A file and its capacity. On a full disk it is too small for appends, but has room for deletions."""
    try:
        return await disk.create(name, reserve=capacity), capacity
    except DiskFull:
        if least >= capacity:
            raise
        return await disk.create(name, reserve=least), least


async def _write_again(active: ActiveFile, disk: Disk, table: LedgerTable, newest: Scan) -> None:
    """Writes again the entries that were intact but perhaps never synced, so that they are certainly on disk."""
    source = await disk.open(file_name(newest.generation))
    try:
        for group in newest.uncovered:
            entries = [entry for entry in group.entries if entry.kind == EntryKind.APPEND and table.find(entry.ledger)]
            for at in range(0, len(entries), GROUP_ENTRIES_MAX):
                await copy_group(source, active, entries[at : at + GROUP_ENTRIES_MAX], table)
    finally:
        source.close()
    await active.handle.sync()
    active.synced_number, active.synced_end = active.number, active.position


async def copy_group(source: Readable, active: ActiveFile, entries: list[Entry], table: LedgerTable) -> int:
    """Writes the batches of `entries` as one more group of `active`, without a sync; returns its length."""
    body = []
    for entry in entries:
        data = await source.read(entry.position, entry.length)
        if not is_intact(data, 0, entry.length, entry.crc, entry.a, entry.messages):
            raise LedgerDamaged(f"ledger {entry.ledger}: the batch at offset {entry.a} is damaged")
        body.append(data)
    directory = [
        pack_entry(entry.ledger, entry.a, entry.b, entry.length, entry.messages, entry.crc, EntryKind.APPEND)
        for entry in entries
    ]
    size = sum(entry.length for entry in entries)
    number, names = active.number + 1, names_of(entries)
    parts, length = encode_group(
        active.file.salt, number, active.synced_number, directory, body, size, names, prior=active.prior
    )
    await active.handle.write(active.position, parts, sync=False)
    add_to_index(active.index, entries, active.position)
    active.file.live += size
    active.file.total += size
    for entry in entries:
        ledger = table.find(entry.ledger)
        if ledger is not None:
            ledger.queued = max(ledger.queued, entry.a + entry.messages - 1)
            ledger.held = max(ledger.held, entry.a + entry.messages - 1)
            ledger.confirmed = max(ledger.confirmed, entry.b)
    active.wrote(number, length, names)
    active.covered = False
    return length
