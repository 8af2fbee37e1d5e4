"""The changes that one watcher has not taken yet, up to a limit. The host wakes the watcher."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pydanube.base.errors import WatchLagged
from pydanube.base.limits import WATCH_CHANGES_MAX
from pydanube.metadata.state import Changed


class WatchQueue:
    """Every change of the keys that start with `prefix`, in order, from the moment the watch begins."""

    __slots__ = ("_changes", "_lagged", "_most", "prefix")

    def __init__(self, prefix: str, most: int = WATCH_CHANGES_MAX) -> None:
        self.prefix = prefix
        self._most = most
        self._changes: deque[Changed] = deque()
        self._lagged = False

    def __len__(self) -> int:
        return len(self._changes)

    def offer(self, changed: Sequence[Changed]) -> bool:
        """Whether there is something new to take. A queue that overflows drops everything and takes no more."""
        if self._lagged:
            return False
        mine = [change for change in changed if change.key.startswith(self.prefix)]
        if len(self._changes) + len(mine) > self._most:
            self._lagged = True
            self._changes.clear()
            return True
        self._changes.extend(mine)
        return bool(mine)

    def take(self) -> Changed | None:
        """The oldest change, or None if there is none yet. Once it has overflowed, always raises `WatchLagged`."""
        if self._lagged:
            raise WatchLagged(f"more than {self._most} changes of {self.prefix!r} are waiting")
        return self._changes.popleft() if self._changes else None
