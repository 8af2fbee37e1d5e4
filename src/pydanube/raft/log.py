"""The newest part of the log in memory, and how far it is written, committed and applied.

Entries before `start` are only in a snapshot. The host writes what `unwritten` has, and says when that is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.raft.entries import Entry, Point


class Log:
    """`durable` ≤ `handed` ≤ last index; `applied` ≤ `committed`. Nothing up to `committed` is ever cut."""

    def __init__(self, start: Point, entries: Sequence[Entry] = ()) -> None:
        """A log as it is on disk: `start` is the point of the newest snapshot, whose content is committed."""
        self.start = start
        self._entries = list(entries)
        self.committed = self.applied = start.index
        self.durable = self.handed = self.last.index
        self.bytes = self.uncommitted_bytes = _bytes_of(self._entries)

    @property
    def last(self) -> Point:
        return self._entries[-1].point if self._entries else self.start

    def point(self, index: int) -> Point | None:
        """The point at `index`, if it is in memory."""
        if index == self.start.index:
            return self.start
        at = index - self.start.index - 1
        return self._entries[at].point if 0 <= at < len(self._entries) else None

    def has(self, point: Point) -> bool:
        """Whether that entry is in memory."""
        found = self.point(point.index)
        return found is not None and found.term == point.term

    def after(self, index: int, bytes_max: int | None = None, last: int | None = None) -> list[Entry]:
        """The entries after `index`, up to `last`, at least one and at most `bytes_max` bytes of them."""
        begin = index - self.start.index
        assert begin >= 0
        end = len(self._entries) if last is None else max(begin, last - self.start.index)
        return self._entries[begin : end if bytes_max is None else self._fitting(begin, end, bytes_max)]

    def _fitting(self, begin: int, end: int, bytes_max: int) -> int:
        """The end of what fits. It copies nothing, because very many entries may follow."""
        size = 0
        for at in range(begin, end):
            size += self._entries[at].size
            if size > bytes_max and at > begin:
                return at
        return end

    def append(self, entries: Sequence[Entry]) -> None:
        assert not entries or entries[0].index == self.last.index + 1
        self._entries += entries
        size = _bytes_of(entries)
        self.bytes += size
        self.uncommitted_bytes += size

    def commit(self, index: int) -> None:
        """Everything up to `index` stays forever; less than that is known already."""
        if index > self.committed:
            self.uncommitted_bytes -= _bytes_of(self.after(self.committed, last=index))
            self.committed = index

    def wrote(self, point: Point) -> None:
        """Everything that was handed out up to `point` is durable, but for what was cut off since."""
        self.durable = max(self.durable, min(point.index, self.handed))

    def cut(self, last: int) -> None:
        """Drops everything after `last`, which another leader never had."""
        assert last >= self.committed, "a committed entry would be cut"
        at = last - self.start.index
        size = _bytes_of(self._entries[at:])
        self.bytes -= size
        self.uncommitted_bytes -= size
        del self._entries[at:]
        self.durable, self.handed = min(self.durable, last), min(self.handed, last)

    def forget(self, index: int, kept_bytes: int) -> None:
        """Drops entries that a snapshot at `index` has, but keeps `kept_bytes` of entries for followers that lag."""
        assert index <= self.applied
        at, end, left = 0, index - self.start.index, self.bytes
        while at < end and left - self._entries[at].size >= kept_bytes:
            left -= self._entries[at].size
            at += 1
        if at:
            self.start, self.bytes = self._entries[at - 1].point, left
            del self._entries[:at]

    def restart(self, point: Point) -> None:
        """Continues after a snapshot that another node sent."""
        self.start = point
        self._entries.clear()
        self.bytes = self.uncommitted_bytes = 0
        self.committed = self.applied = self.durable = self.handed = point.index

    def nearest(self, index: int, term: int) -> tuple[int, int]:
        """The last entry in memory at or below `index` whose term is at most `term`: the logs may be equal up to it."""
        index = min(index, self.last.index)
        while index > self.start.index:
            found = self.point(index)
            assert found is not None
            if found.term <= term:
                return index, found.term
            index -= 1
        return self.start.index, self.start.term


def _bytes_of(entries: Sequence[Entry]) -> int:
    return sum([entry.size for entry in entries])
