"""Reads a journal file back: accepts what is intact, cuts a torn tail, and names the ledgers of a damaged middle.

Sans-IO: `scan_file` is a generator that yields (position, length) and is sent the bytes. Damage at or below a later
group's `synced_through`, or before the end that the next file recorded, was durable once: that is a damaged middle.
Anything else whose checksum is wrong is a torn tail, which was never acknowledged.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

from pydanube.base.checksum import crc32c
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES, MIB
from pydanube.journal.group import (
    CHECKPOINTS,
    FILE_START_BYTES,
    GROUP_HEADER_BYTES,
    NOBODY,
    Entry,
    EntryKind,
    FileHeader,
    GroupHead,
    GroupKind,
    Names,
    Trailer,
    decode_directory,
    decode_file_start,
    decode_group_head,
    decode_trailer,
    names_of,
)
from pydanube.journal.index import FileIndex
from pydanube.journal.ledger_table import Control, checkpoint_ok
from pydanube.wire.intact import is_intact

CHUNK_BYTES = 4 * MIB
TRAILER_BYTES_READ = 17 * BLOCK_BYTES  # the most names that a group may have, and those of the previous group
KEPT_BYTES_MAX = 8192 * MIB  # assumed length of a kept file whose end is missing, because nothing records it
Reads = Generator[tuple[int, int], bytes, "Scan"]


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of a file that was durable and can no longer be read.

    `names` has the affected ledgers, each with its highest lost offset, or NO_OFFSET if only records about it were
    lost. It is None if it is unknown which ledgers are affected.
    """

    generation: int
    position: int
    length: int
    names: Names | None

    @property
    def ledgers(self) -> tuple[LedgerId, ...] | None:
        return None if self.names is None else tuple(sorted(self.names))

    def __str__(self) -> str:
        whose = "every ledger open in it" if self.ledgers is None else f"ledgers {list(self.ledgers)}"
        return f"journal file {self.generation}: {self.length} bytes at {self.position} are damaged, in {whose}"


@dataclass(slots=True)
class Group:
    """One group with an intact directory, and those of its entries that are intact."""

    position: int
    head: GroupHead
    entries: list[Entry]
    whole: bool  # everything that it names is intact


@dataclass(slots=True)
class Scan:
    """Everything that a scan found out about one file."""

    generation: int
    sealed: bool = False
    header: FileHeader | None = None
    checkpoint: bytes | None = None  # None if it is damaged
    controls: list[Control] = field(default_factory=list)  # in order, after the checkpoint; see `_revived`
    made: dict[LedgerId, int] = field(default_factory=dict)  # the ledgers created in this file, and where
    index: FileIndex = field(default_factory=FileIndex)
    damage: list[Damage] = field(default_factory=list)
    end: int = BLOCK_BYTES  # where the valid part ends
    covered: int = BLOCK_BYTES  # up to here it is known to have been durable; the rest must be written again
    uncovered: list[Group] = field(default_factory=list)  # whole groups between `covered` and `end`

    @property
    def closed_at(self) -> int:
        """The end of this file, as the next file will record it. It includes damage after the last intact group: the
        next start would otherwise take that for a torn tail, and its entries for never written."""
        return max([self.covered, *(damage.position + damage.length for damage in self.damage)])

    @property
    def names(self) -> set[LedgerId]:
        """The ledgers that this file mentions."""
        return {record.ledger for record in self.controls} | self.index.ledgers.keys()


class _Window:
    """The part of the file that was read last, so that not every group needs a read of its own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.start = 0
        self.data = b""

    def take(self, position: int, length: int) -> Generator[tuple[int, int], bytes, bytes]:
        offset = position - self.start
        if offset < 0 or offset + length > len(self.data):
            self.data = yield position, min(max(length, CHUNK_BYTES), max(self.size - position, 0))
            self.start, offset = position, 0
        return self.data[offset : offset + length]


def scan_file(generation: int, size: int, end: int | None, *, sealed: bool = False) -> Reads:
    """Scans one file. `end` is its end as the next file's header records it; None if there is no next file.

    `sealed` is for files that were complete and synced before they got their name, and that end with a mark: nothing in
    them is a torn tail. In other files, this is true of the checkpoints and of the size.
    """
    window = _Window(size)
    found = Scan(generation, sealed)
    found.header, salt = decode_file_start((yield from window.take(0, FILE_START_BYTES)), generation)
    if found.header is None:
        found.damage.append(Damage(generation, 0, BLOCK_BYTES, NOBODY if size > BLOCK_BYTES else None))
    position, number, synced = BLOCK_BYTES, 1, 0
    groups: list[Group] = []
    limit = size if end is None else end
    while position < limit:
        group = yield from _read_group(window, position, salt, number, limit)
        if group is not None and group.whole:
            groups.append(group)
            position, number = position + group.head.length, number + 1
            continue
        known = end is not None or sealed or number <= CHECKPOINTS
        if not (known or (yield from _synced_later(window, position, salt, number))):
            break
        synced = number
        position, number = yield from _step_over(window, found, groups, group, position, salt, number, limit)
    found.end = position
    if end is None and _is_cut(found, groups, size, sealed):
        capacity = KEPT_BYTES_MAX if sealed else 0 if found.header is None else found.header.capacity
        found.damage.append(Damage(generation, position, max(size, capacity) - position, None))
    yield from _collect(window, found, groups, synced, end is not None or sealed)
    return found


def _is_cut(found: Scan, groups: list[Group], size: int, sealed: bool) -> bool:
    """Whether the file used to be longer, so that it is unknown what is missing at its end."""
    if sealed:
        return not groups or groups[-1].head.kind is not GroupKind.MARK
    return found.header is not None and size < found.header.capacity


def _read_group(
    window: _Window, position: int, salt: int, number: int, limit: int
) -> Generator[tuple[int, int], bytes, Group | None]:
    head = decode_group_head((yield from window.take(position, GROUP_HEADER_BYTES)), salt)
    if head is None or head.number != number or position + head.length > limit:
        return None
    data = yield from window.take(position, head.length)
    if len(data) < head.length:
        return None
    entries = decode_directory(head, position, data[GROUP_HEADER_BYTES : head.body_start])
    if entries is None:
        return None
    if head.kind is GroupKind.CHECKPOINT:
        body = data[head.body_start : head.body_start + head.body_bytes]
        return Group(position, head, [], crc32c(body) == head.body_crc and checkpoint_ok(body))
    intact = [entry for entry in entries if entry.kind != EntryKind.APPEND or _batch_is_intact(data, entry, position)]
    trailer = decode_trailer(data, salt)
    whole = len(intact) == len(entries) and trailer is not None and trailer.number == number
    return Group(position, head, intact, whole)


def _batch_is_intact(data: bytes, entry: Entry, position: int) -> bool:
    return is_intact(data, entry.position - position, entry.length, entry.crc, entry.a, entry.messages)


def _synced_later(window: _Window, position: int, salt: int, number: int) -> Generator[tuple[int, int], bytes, bool]:
    """Whether a later group of the file says that group `number` had been synced."""
    at = position + BLOCK_BYTES
    while at < window.size:
        head = decode_group_head((yield from window.take(at, GROUP_HEADER_BYTES)), salt)
        if head is not None and head.synced_through >= number:
            return True
        at += BLOCK_BYTES
    return False


def _step_over(
    window: _Window,
    found: Scan,
    groups: list[Group],
    group: Group | None,
    position: int,
    salt: int,
    number: int,
    limit: int,
) -> Generator[tuple[int, int], bytes, tuple[int, int]]:
    """Passes a damaged middle: notes the affected ledgers; returns where to continue, and the next group's number."""
    generation = found.generation
    if group is not None:  # the directory is intact: only entries with a wrong checksum are lost
        data = yield from window.take(position, group.head.length)
        entries = decode_directory(group.head, position, data[GROUP_HEADER_BYTES : group.head.body_start]) or []
        kept = set(group.entries)
        lost = names_of([entry for entry in entries if entry not in kept])
        found.damage.append(Damage(generation, position, group.head.length, lost))
        groups.append(group)
        return position + group.head.length, number + 1
    after, next_number = limit, number + 1
    at = position + BLOCK_BYTES
    while at < limit:
        head = decode_group_head((yield from window.take(at, GROUP_HEADER_BYTES)), salt)
        if head is not None and head.number > number:
            after, next_number = at, head.number
            break
        at += BLOCK_BYTES
    if after < limit and not found.sealed and next_number <= CHECKPOINTS + 1:
        names: Names | None = NOBODY  # checkpoints have no entries
    else:
        names = yield from _named_by_trailers(window, position, after, salt, range(number, next_number))
    found.damage.append(Damage(generation, position, after - position, names))
    return after, next_number


def _named_by_trailers(
    window: _Window, start: int, end: int, salt: int, numbers: range
) -> Generator[tuple[int, int], bytes, Names | None]:
    """The ledgers of the groups between two positions, read backwards from trailer to trailer; None if that fails.

    If a group of one block has lost its trailer, the next group still names its ledgers, even if that group is torn.
    """
    named: dict[LedgerId, int] = {}
    at = end
    behind = yield from _trailer_of(window, end, salt, numbers.stop)
    for number in reversed(numbers):
        begin = max(start, at - TRAILER_BYTES_READ)
        data = yield from window.take(begin, at - begin)
        trailer = decode_trailer(data, salt)
        if trailer is not None and trailer.number == number and trailer.length <= at - start:
            names, length = trailer.ledgers, trailer.length
        elif behind is not None and behind.prior is not None:
            names, length = behind.prior, BLOCK_BYTES
        else:
            return None
        for ledger, last in names.items():
            named[ledger] = max(last, named.get(ledger, last))
        behind = trailer
        at -= length
    return named if at == start else None


def _trailer_of(
    window: _Window, position: int, salt: int, number: int
) -> Generator[tuple[int, int], bytes, Trailer | None]:
    """The trailer of the group at that position, if it is the one with that number and the trailer is intact."""
    head = decode_group_head((yield from window.take(position, GROUP_HEADER_BYTES)), salt)
    if head is None or head.number != number:
        return None
    end = position + head.length
    begin = max(position, end - TRAILER_BYTES_READ)
    trailer = decode_trailer((yield from window.take(begin, end - begin)), salt)
    return trailer if trailer is not None and trailer.number == number else None


def _collect(
    window: _Window, found: Scan, groups: list[Group], synced: int, closed: bool
) -> Generator[tuple[int, int], bytes, None]:
    """Turns the groups into a checkpoint, control records and an index, and finds out how far they were durable.

    A group that may itself be torn says that they were durable up to number `synced`.
    """
    through = max([synced, *(group.head.synced_through for group in groups)])
    lost = sorted(found.damage, key=lambda damage: damage.position)
    for at, group in enumerate(groups):
        while lost and lost[0].position < group.position:
            found.controls += _revived(lost.pop(0), groups[at:], found.names)
        if group.head.kind is GroupKind.CHECKPOINT and group.whole:
            data = yield from window.take(group.position, group.head.length)
            found.checkpoint = data[group.head.body_start : group.head.body_start + group.head.body_bytes]
            found.controls.clear()
        found.controls += [
            Control(EntryKind(entry.kind), entry.ledger, entry.a, entry.b)
            for entry in group.entries
            if entry.kind != EntryKind.APPEND
        ]
        found.made |= {entry.ledger: group.position for entry in group.entries if entry.kind == EntryKind.CREATE}
        if closed or group.head.number <= through:
            found.covered = group.position + group.head.length
            add_to_index(found.index, group.entries, group.position)
        else:
            found.uncovered.append(group)
    for damage in lost:
        found.controls += _revived(damage, [], found.names)


def _revived(damage: Damage, after: list[Group], known: set[LedgerId]) -> list[Control]:
    """Records that create again the ledgers which a damaged part may have created: those that it names, and those that
    appear later without a creation.

    Each is replayed as a creation by no epoch, which changes nothing if the ledger is already known.
    """
    if damage.names is not None:
        return [Control(EntryKind.CREATE, ledger) for ledger in sorted(damage.names)]
    first: dict[LedgerId, int] = {}
    for group in after:
        for entry in group.entries:
            first.setdefault(entry.ledger, entry.kind)
    return [
        Control(EntryKind.CREATE, ledger)
        for ledger in sorted(first.keys() - known)
        if first[ledger] != EntryKind.CREATE
    ]


def add_to_index(index: FileIndex, entries: list[Entry], position: int) -> None:
    """Adds a group's batches to an index, in as few runs as their offsets allow."""
    block = position // BLOCK_BYTES
    runs: dict[LedgerId, list[int]] = {}  # first, last, confirmed, bytes
    for ledger, kind, a, b, length, count, _, _ in entries:
        if kind != EntryKind.APPEND:
            continue
        run = runs.get(ledger)
        if run is not None and a == run[1] + 1:
            run[1] = a + count - 1
            run[3] += length
            if b > run[2]:
                run[2] = b
            continue
        if run is not None:
            index.add(ledger, run[0], run[1], block, run[2], run[3])
        runs[ledger] = [a, a + count - 1, b, length]
    for ledger, (first, last, confirmed, size) in runs.items():
        index.add(ledger, first, last, block, confirmed, size)
