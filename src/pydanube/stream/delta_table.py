"""A topic as a table: which files of a partition it should list, how it must change for that, and what is merged.

Pure. The table is derived from the stream's record, never the other way round: the next comparison undoes whatever
others did to it. Files of others that have our rows are removed from the table, but not deleted.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pydanube.base.ids import NO_OFFSET, Epoch
from pydanube.stream.cold import Cold, Entry, SegmentIndex
from pydanube.stream.segments import Segment, folder_of, segment_key

TABLE_LOG = "_delta_log/"  # below a topic's folder
MERGED_AT_ONCE = 8  # segments that become one
SMALL_RUN_MAX = 64  # small segments in a row; if there are more, they are merged even if that saves little
TABLE_FILES_MAX = 50_000  # of a partition, when all are compared one by one: a message of about 8 MB
DOOMED_MAX = 1024  # objects waiting to be deleted; beyond it nothing is merged
_LAST = (1 << 63) - 1
_OWN = re.compile(r"_segments/partition=\d+/(\d{20})-(\d{20})-\d+\.parquet")


class TableFile(NamedTuple):
    """A segment, as a table needs to know it."""

    path: str  # below the topic's folder
    first: int  # of its rows; there may be a gap before it
    last: int
    rows: int
    size: int
    oldest: int  # append times, in microseconds
    newest: int


class Folded(NamedTuple):
    """A range whose segments are listed in an index: if the table has all its rows in our files, nothing changes."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class TableListing:
    """What a table should contain of one partition."""

    stream: str
    epoch: Epoch  # of the owner of the stream
    now: int  # wall time, in microseconds
    grows: bool  # if not, only files that the table has had before stay in it
    files: tuple[TableFile, ...]
    folded: tuple[Folded, ...] = ()

    @property
    def first(self) -> int:
        """The first offset in a file or folded range; above all others if there is none."""
        return min([_LAST, *(file.first for file in self.files), *(each.first for each in self.folded)])

    @property
    def last(self) -> int:
        """The last offset in a file or folded range."""
        return max([NO_OFFSET, *(file.last for file in self.files), *(each.last for each in self.folded)])


class Listed(NamedTuple):
    """A file that a table has in our partition, ours or another writer's. Without statistics it may have any offset."""

    path: str
    size: int
    rows: int
    first: int = 0
    last: int = _LAST


class FileChange(NamedTuple):
    file: TableFile | Listed
    changes_data: bool  # False if the same rows were in other files before, or if retention removed them


@dataclass(frozen=True, slots=True)
class Changes:
    adds: tuple[FileChange, ...] = ()
    removes: tuple[FileChange, ...] = ()
    unfold: tuple[Folded, ...] = ()  # these must be listed file by file first; then there are no adds and removes

    def __bool__(self) -> bool:
        return bool(self.adds or self.removes)


def table_file(stream: str, segment: Segment) -> TableFile:
    path = segment_key(stream, segment.plan).removeprefix(folder_of(stream))
    times = (segment.oldest, segment.newest)
    return TableFile(path, segment.groups[0], segment.last, segment.rows, segment.size, *times)


def listing_of(stream: str, epoch: Epoch, entries: Iterable[Entry], *, now: int, grows: bool) -> TableListing:
    files: list[TableFile] = []
    folded: list[Folded] = []
    for entry in entries:
        if isinstance(entry, Segment):
            files.append(table_file(stream, entry))
        else:
            folded.append(Folded(entry.first, entry.last, entry.rows))
    return TableListing(stream, epoch, now, grows, tuple(files), tuple(folded))


def table_changes(listing: TableListing, table: Sequence[Listed], followed: int) -> Changes:
    """The changes that turn `table` into `listing`. `followed` is the last offset that the table ever had of it."""
    wanted = {file.path: file for file in listing.files if listing.grows or file.last <= followed}
    folded = [each for each in listing.folded if listing.grows or each.last <= followed]
    rows = dict.fromkeys(folded, 0)
    kept: set[str] = set()
    for file in table:
        found = _OWN.fullmatch(file.path)
        if file.path in wanted:
            kept.add(file.path)
        elif found is not None and (stretch := _holding(folded, int(found[1]), int(found[2]))) is not None:
            rows[stretch] += file.rows
            kept.add(file.path)
    unfold = tuple(stretch for stretch in folded if rows[stretch] != stretch.rows)
    if unfold:
        return Changes(unfold=unfold)
    adds = [file for path, file in wanted.items() if path not in kept]
    removes = [file for file in table if file.path not in kept]
    same = _same_rows(adds, removes)
    return Changes(
        tuple(FileChange(file, file.path not in same) for file in adds),
        tuple(FileChange(file, not (file.path in same or _ended(file, listing))) for file in removes),
    )


def _ended(file: Listed, listing: TableListing) -> bool:
    """Whether retention or truncation removed the rows. That does not count as a change of data: a stream that reads
    the table would fail at it."""
    return _OWN.fullmatch(file.path) is not None and file.last < listing.first


def _holding(folded: Sequence[Folded], first: int, last: int) -> Folded | None:
    for stretch in folded:
        if stretch.first <= first and last <= stretch.last:
            return stretch
    return None


def _same_rows(adds: Sequence[TableFile], removes: Sequence[Listed]) -> set[str]:
    """Files whose rows only move: where added and removed files overlap, and have equally many rows."""
    marked = [(each.first, each.last, each.rows, each.path) for each in adds]
    marked += [(each.first, each.last, -each.rows, each.path) for each in removes]
    same: set[str] = set()
    together: list[tuple[int, int, int, str]] = []
    end = NO_OFFSET
    for each in [*sorted(marked), (_LAST + 1, _LAST + 1, 0, "")]:
        if each[0] > end:
            rows = [count for _, _, count, _ in together]
            if all(rows) and not sum(rows):  # a file without statistics has 0 rows
                same |= {path for _, _, _, path in together}
            together = []
        together.append(each)
        end = max(end, each[1])
    return same


# -- merging -----------------------------------------------------------------------------------------------------------


class _Run(NamedTuple):
    """Small segments that follow each other directly, and all have local copies, or none has."""

    segments: list[Segment]
    closed: bool  # no other segment will ever follow them

    def window(self, start: int, segment_bytes: int) -> list[Segment]:
        """The segments from `start` on that make one; none if it has room for more, which may still come."""
        found: list[Segment] = []
        for segment in self.segments[start : start + MERGED_AT_ONCE]:
            if _bytes([*found, segment]) > segment_bytes:
                return found
            found.append(segment)
        return found if len(found) == MERGED_AT_ONCE or (self.closed and len(found) > 1) else []

    def is_worth_it(self, window: Sequence[Segment]) -> bool:
        """Avoids writing a large segment repeatedly to merge it with a few small ones."""
        largest = max(segment.bytes for segment in window)
        return self.closed or 4 * largest <= _bytes(window) or len(self.segments) > SMALL_RUN_MAX


def next_merge(stream: str, cold: Cold, segment_bytes: int, spoilt: Container[str] = ()) -> list[Segment]:
    """The small segments to merge next, if any. `spoilt` are the keys of those that cannot be read."""
    if cold.merging is not None or len(cold.doomed) + MERGED_AT_ONCE > DOOMED_MAX:
        return []
    best: list[Segment] = []
    for run in _small_runs(stream, cold, segment_bytes, spoilt):
        for start in range(len(run.segments)):
            window = run.window(start, segment_bytes)
            if window and run.is_worth_it(window) and (-len(window), _bytes(window)) < (-len(best), _bytes(best)):
                best = window  # the most files, and then the fewest bytes
    return best


def _small_runs(stream: str, cold: Cold, segment_bytes: int, spoilt: Container[str]) -> list[_Run]:
    runs: list[_Run] = []
    run: list[Segment] = []
    for entry in cold.entries:
        if (
            isinstance(entry, SegmentIndex)
            or 2 * entry.bytes >= segment_bytes
            or segment_key(stream, entry.plan) in spoilt
        ):
            runs.append(_Run(run, closed=True))
            run = []
            continue
        if run and (run[-1].first < cold.local_from) != (entry.first < cold.local_from):
            runs.append(_Run(run, closed=False))
            run = []
        run.append(entry)
    return [*runs, _Run(run, closed=False)]


def _bytes(segments: Iterable[Segment]) -> int:
    return sum(segment.bytes for segment in segments)
