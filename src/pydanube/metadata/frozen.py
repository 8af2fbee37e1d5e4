"""The keys as they were at one moment, read in parts while they continue to change.

Nothing is copied in advance: before a key is changed, its old value is kept here, unless it has been read already.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from pydanube.metadata.records import Entry
from pydanube.metadata.snapshot import Row

if TYPE_CHECKING:
    from pydanube.metadata.state import MetadataState


class FrozenState:
    """Made by `MetadataState.freeze`. Call `end` when it is no longer needed."""

    def __init__(self, state: MetadataState) -> None:
        self.revision, self.keys, self.bytes = state.revision, len(state), state.bytes
        self.sessions = state.session_rows()
        self._state = state
        self._kept: dict[str, Row | None] = {}  # old values; None for a key that did not exist
        self._deleted: list[str] = []  # keys of `_kept` that were deleted since, in order
        self._read = ""  # the last key that was read

    def before_change(self, key: str, entry: Entry | None, session: int) -> None:
        """Called before a key is set, with its present value."""
        if key > self._read and key not in self._kept:
            self._kept[key] = None if entry is None else (key, entry, session)

    def before_deletion(self, key: str, entry: Entry, session: int) -> None:
        self.before_change(key, entry, session)
        if self._kept.get(key) is not None:
            at = bisect_left(self._deleted, key)
            if self._deleted[at : at + 1] != [key]:  # otherwise it was deleted before, and created again
                insort(self._deleted, key)

    def read(self, count: int) -> list[Row]:
        """The next rows in the order of their keys; none at the end. It looks at `count` keys, and at those deleted."""
        rows: list[Row] = []
        while not rows:
            present = self._state.scan("", after=self._read, limit=count)
            last = present[-1][0] if len(present) == count else None  # None: there is nothing after these
            until = len(self._deleted) if last is None else bisect_right(self._deleted, last)
            deleted, self._deleted = self._deleted[:until], self._deleted[until:]
            names = [key for key, _ in present]
            if deleted:
                names = sorted({*names, *deleted})
            for key in names:
                row = self._kept.pop(key) if key in self._kept else self._state.row(key)
                if row is not None:
                    rows.append(row)
            if last is None:
                self._read = names[-1] if names else self._read
                self._kept.clear()
                return rows
            self._read = last
        return rows

    def end(self) -> None:
        """It no longer follows changes."""
        self._state.thaw(self)
