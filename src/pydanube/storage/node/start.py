"""A start, once `node_file` has identified the directories: scan, close what was open, create one new file.

A node also starts over this way after a failure. This module deletes only files that never got their name. It reports a
damaged middle and marks its ledgers. What was written but perhaps never synced is written again into the new file
before anyone can read it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from pydanube.base.errors import DiskFull, NodeDirectoryInvalid
from pydanube.base.ids import NO_OFFSET, LedgerId
from pydanube.base.limits import BLOCK_BYTES, OFFSET_MAX, RESERVE_OFFSETS
from pydanube.journal.group import EntryKind, messages_max, names_of
from pydanube.journal.index import FileIndex
from pydanube.journal.ledger_table import BUFFERED, SEALED, LedgerTable
from pydanube.journal.scan import Damage, Group, Scan, add_to_index
from pydanube.ports.disk import Disk
from pydanube.ports.randomness import Randomness
from pydanube.storage.node.files import (
    StoredFile,
    file_name,
    generations,
    index_name,
    load_index,
    read_header,
    run_scan,
    store_index,
    try_remove,
)
from pydanube.storage.node.journal import ActiveFile
from pydanube.storage.node.new_file import write_new_file
from pydanube.storage.node.node_file import JOURNAL, Belongings, NodeFile, refuse_if_incomplete, remove_temporary
from pydanube.storage.node.settings import NodeSettings

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    """What a start found, ready to serve."""

    table: LedgerTable
    files: dict[int, StoredFile]
    active: ActiveFile
    damage: list[Damage]
    spare: str | None = None


@dataclass(slots=True)
class _Found:
    """What one recovery has found so far."""

    table: LedgerTable = field(default_factory=LedgerTable)
    files: dict[int, StoredFile] = field(default_factory=dict)
    scans: dict[int, Scan] = field(default_factory=dict)
    indexes: dict[int, FileIndex] = field(default_factory=dict)
    newest: int = 0  # generation of the newest journal file
    ends: dict[int, int] = field(default_factory=dict)  # of each file, as the next file records it
    damage: list[Damage] = field(default_factory=list)
    concerned: list[tuple[LedgerId, Damage]] = field(default_factory=list)
    sources: set[int] = field(default_factory=set)  # generations of all files that exist
    unfinished: list[StoredFile] = field(default_factory=list)  # copies that do not count
    superseded: set[int] = field(default_factory=set)  # generations of files that copies have replaced
    replayed: set[int] = field(default_factory=set)  # generations of the checkpoint's file and those after it


async def recover(
    disk: Disk,
    data: dict[int, Disk],
    node: Belongings,
    settings: NodeSettings,
    randomness: Randomness,
    cut: tuple[int, int] | None = None,
) -> Recovered:
    """Rebuilds a node from its directories. `cut` is the generation and end of a file whose later writes failed."""
    found = _Found()
    try:
        await refuse_if_incomplete(node.node, disk, data)
        await remove_temporary(disk)
        journals = sorted(generations(await disk.list(), "journal"))
        await _read_headers(disk, node.node, found, journals, cut)
        names = [name for each in dict.fromkeys([disk, *data.values()]) for name in await each.list()]
        found.sources = set(generations(names))
        for kept_disk in data.values():
            await _read_kept_headers(kept_disk, node.node, found)
        await _load_table(found, journals)
        for slot, kept_disk in data.items():
            await _load_kept(kept_disk, slot, found)
        _account(found, data)
        found.table.close_all()
        newest = found.scans[journals[-1]] if journals else None
        _mark_damaged(found, [] if newest is None else newest.uncovered)
        next_file = _next(found, node)
        try:
            active = await write_new_file(disk, node.node, settings, randomness, found.table, next_file, newest)
        except DiskFull:
            await _make_room(disk, found, node)
            active = await write_new_file(disk, node.node, settings, randomness, found.table, next_file, newest)
        await _settle(found, active, data, node)
        if newest is not None and not newest.damage:  # it is closed now, and an index saves the next start a scan
            await store_index(found.files[newest.generation], newest.index, newest.covered)
    finally:
        for file in found.files.values():  # reopened when read: there may be more than a process can have open
            if file.handle is not None:
                file.handle.close()
                file.handle = None
    found.files[active.file.generation] = active.file
    return Recovered(found.table, found.files, active, found.damage)


async def _make_room(disk: Disk, found: _Found, node: Belongings) -> None:
    """On a full disk, removes what the keeper would remove later, except files whose control records were replayed."""
    here = [file for file in found.files.values() if file.disk is disk and file.generation not in found.replayed]
    gone = [file for file in here if not file.needed(found.table)]
    await node.change(drop=[file.generation for file in gone])
    for file in gone:
        log.warning("removed %s to make room for a new journal file", file.name)
        if file.handle is not None:
            await file.handle.close()
        await try_remove(disk, index_name(file.generation))
        await disk.remove(file.name)
        del found.files[file.generation]
    await try_remove(disk, f"{file_name(_next(found, node))}.tmp")
    await disk.sync_directory()


def _next(found: _Found, node: Belongings) -> int:
    """The next generation, above that of every file that ever existed: a removed file may be left over or come back."""
    return max([node.node.generations, *found.files, *found.sources]) + 1


async def _read_headers(
    disk: Disk, node: NodeFile, found: _Found, journals: list[int], cut: tuple[int, int] | None
) -> None:
    for generation in journals:
        found.newest = generation
        file = found.files[generation] = StoredFile(disk, generation, 0, file_name(generation))
        header = await read_header(file, node.identity)
        if header is not None and header.previous in found.files:
            found.ends[header.previous] = header.previous_end
    if cut is not None:
        found.ends[cut[0]] = cut[1]


async def _read_kept_headers(disk: Disk, node: NodeFile, found: _Found) -> None:
    """Reads the headers of copied-out files. A listed copy counts, and its sources stop counting once they are off the
    list.

    A copy that is not listed may be unfinished. If all its sources still exist, they are enough and it is removed. If
    some are gone, both count: the remaining sources may or may not have been copied to another file.
    """
    await remove_temporary(disk)
    for generation in generations(await disk.list(), "kept"):
        name = file_name(generation, kept=True)
        if generation in found.files:
            raise NodeDirectoryInvalid(f"{name} and {found.files[generation].name} have the same number")
        file = found.files[generation] = StoredFile(disk, generation, 0, name, kept=True)
        header = await read_header(file, node.identity)
        sources = header.sources if header is not None else ()
        if generation in node.files:
            found.superseded.update(source for source in sources if source not in node.files)
        elif sources and all(source in found.sources for source in sources):
            assert file.handle is not None
            await file.handle.close()
            found.unfinished.append(found.files.pop(generation))


async def _load_table(found: _Found, journals: list[int]) -> None:
    """Loads the newest intact checkpoint and every control record after it, then the indexes of older files."""
    since = await _find_checkpoint(found, journals)
    found.replayed = set(journals[since:])
    for generation in journals[since:]:
        scan = found.scans[generation]
        found.table.forgetful |= scan.header is None or scan.header.forgetful  # without it, absence proves nothing
        for record in scan.controls:
            found.table.replay(record)
        open_then = {ledger.id for ledger in found.table if ledger.state != SEALED}
        _note_damage(found, scan, open_then, after_checkpoint=True)
    for at, generation in enumerate(journals[:since]):
        if generation in found.superseded:
            continue
        file = found.files[generation]
        loaded = await load_index(file, found.ends.get(generation))
        if loaded is not None:
            found.indexes[generation], file.length = loaded
            continue
        scan = await _scan(found, generation)
        _note_damage(found, scan, await _open_in(found, scan, journals[at + 1]), after_checkpoint=False)
        if not scan.damage:
            await store_index(file, scan.index, scan.end)


async def _find_checkpoint(found: _Found, journals: list[int]) -> int:
    """Loads the newest checkpoint from which every later record can be replayed; returns the position of its file."""
    for at in range(len(journals) - 1, -1, -1):
        scan = await _scan(found, journals[at])
        if scan.checkpoint is not None:
            found.table.load_checkpoint(scan.checkpoint)
            return at
        if scan.header is None or at == 0 or scan.header.previous != journals[at - 1]:
            break  # the records in between are lost, so older checkpoints are of no use
    if journals:
        newest = found.files[journals[-1]]
        raise NodeDirectoryInvalid(
            f"{newest.disk.name}/{newest.name}: no checkpoint of the journal can be read; restore the directory from a "
            "backup"
        )
    return 0


async def _open_in(found: _Found, scan: Scan, after: int) -> set[LedgerId]:
    """Ledgers that may have been appended to in an older file, for damage whose ledgers are unknown.

    They were not sealed when the file began, or were created in it; the next file knows the latter.
    """
    if all(damage.ledgers is not None for damage in scan.damage):
        return set()
    later = found.scans.get(after) or await _scan(found, after)
    if scan.checkpoint is None or later.checkpoint is None:
        return {ledger.id for ledger in found.table}
    before, behind = LedgerTable(), LedgerTable()
    before.load_checkpoint(scan.checkpoint)
    behind.load_checkpoint(later.checkpoint)
    open_before = {ledger.id for ledger in before if ledger.state != SEALED}
    return open_before | {ledger.id for ledger in behind if before.find(ledger.id) is None}


async def _scan(found: _Found, generation: int) -> Scan:
    file = found.files[generation]
    assert file.handle is not None
    scan = await run_scan(file, found.ends.get(generation))
    if generation != found.newest:  # an older file whose end is not recorded: everything intact in it counts
        for group in scan.uncovered:
            add_to_index(scan.index, group.entries, group.position)
        scan.covered, scan.uncovered = scan.end, []
    found.scans[generation] = scan
    found.indexes[generation] = scan.index
    file.length, file.damage = scan.covered, scan.damage
    return scan


async def _load_kept(disk: Disk, slot: int, found: _Found) -> None:
    """Loads where the entries of copied-out files are."""
    for file in found.files.values():
        if not file.kept or file.disk is not disk or file.generation in found.superseded:
            continue
        loaded = await load_index(file, None)
        if loaded is not None:
            found.indexes[file.generation], file.length = loaded
            continue
        assert file.handle is not None
        scan = await run_scan(file, None, sealed=True)
        found.indexes[file.generation], file.length, file.damage = scan.index, scan.end, scan.damage
        housed = {ledger.id for ledger in found.table if ledger.homes >> slot & 1}
        _note_damage(found, scan, housed, after_checkpoint=False)


def _note_damage(found: _Found, scan: Scan, suspects: set[LedgerId], *, after_checkpoint: bool) -> None:
    """Notes the affected ledgers; if they are unknown, the suspects and every ledger that the file names elsewhere."""
    for damage in scan.damage:
        log.error("%s", damage)
        found.damage.append(damage)
        if damage.names is not None:
            found.concerned += [(ledger, damage) for ledger in damage.names]
            continue
        named = {ledger for ledger in scan.names | suspects if scan.made.get(ledger, 0) <= damage.position}
        found.concerned += [(ledger, damage) for ledger in sorted(named)]
        found.table.unknown += messages_max(damage.length)
        found.table.forgetful |= after_checkpoint


def _account(found: _Found, data: dict[int, Disk]) -> None:
    """Sets where the entries of each ledger are, and how many bytes of each file are still needed."""
    for generation, file in sorted(found.files.items()):
        file.closed = True
        if generation in found.superseded:
            file.damage = []
            continue  # it is no longer needed: the keeper continues to remove it
        for summary in found.indexes[generation].summaries():
            file.total += summary.bytes
            ledger = found.table.find(summary.ledger)
            if ledger is None:
                continue
            file.live += summary.bytes
            ledger.add_extent(generation, summary.first, summary.last, summary.bytes)
            ledger.confirmed = max(ledger.confirmed, summary.confirmed)
    present = sum(1 << slot for slot in data)
    for ledger in found.table:
        ledger.away = bool(ledger.homes & ~present)


def _mark_damaged(found: _Found, uncovered: list[Group]) -> None:
    """Sets how far each ledger may have lost something; `uncovered` is what will be written again.

    Entries of a ledger are written in the order of their offsets, so those after the damage bound what was lost.
    """
    again = names_of([entry for group in uncovered for entry in group.entries])
    for number, damage in found.concerned:
        ledger = found.table.find(number)
        if ledger is None:
            continue
        highest = max(ledger.held, again.get(number, NO_OFFSET))
        if damage.names is not None:
            highest = max(highest, damage.names[number])
            ledger.lose(highest)
        else:
            goes_on = number in _behind(uncovered, damage) or _goes_on(found, number, damage)
            ledger.lose(highest if goes_on else OFFSET_MAX)
        if ledger.state != SEALED and (ledger.durability == BUFFERED or not ledger.epoch):
            ledger.reserved = max(ledger.reserved, highest + 1 + RESERVE_OFFSETS)  # the record of it may be lost


def _behind(uncovered: list[Group], damage: Damage) -> set[LedgerId]:
    """Ledgers with entries after the damage that will be written again; these are in the newest file."""
    later = [group for group in uncovered if group.position > damage.position]
    return {entry.ledger for group in later for entry in group.entries if entry.kind == EntryKind.APPEND}


def _goes_on(found: _Found, ledger: LedgerId, damage: Damage) -> bool:
    """Whether entries of the ledger were written after the damage."""
    for generation, index in found.indexes.items():
        runs = index.ledgers.get(ledger)
        if runs is None or found.files[generation].kept:
            continue
        if generation > damage.generation:
            return True
        if generation == damage.generation and max(runs.blocks) * BLOCK_BYTES > damage.position:
            return True
    return False


async def _settle(found: _Found, active: ActiveFile, data: dict[int, Disk], node: Belongings) -> None:
    """Lists the files that count from now on, and then removes unfinished copies."""
    slots = {disk: slot for slot, disk in data.items()}
    counting = [file for file in found.files.values() if file.generation not in found.superseded]
    listed = {file.generation: slots[file.disk] if file.kept else JOURNAL for file in counting}
    listed[active.file.generation] = JOURNAL
    await node.change(add=listed, drop=[file.generation for file in found.unfinished])
    for file in found.unfinished:
        await try_remove(file.disk, index_name(file.generation))
        await try_remove(file.disk, file.name)
        await file.disk.sync_directory()
