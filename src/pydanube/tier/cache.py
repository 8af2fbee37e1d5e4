"""A cache bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class SizedCache(Generic[Key, Value]):
    """Drops the least recently used value first. A value larger than the bound stays until another is added."""

    def __init__(self, bytes_max: int) -> None:
        self._entries: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._bytes_max = bytes_max
        self.bytes = 0

    def get(self, key: Key) -> Value | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: Key, value: Value, size: int) -> None:
        if key in self._entries:
            self.bytes -= self._entries.pop(key)[1]
        self._entries[key] = (value, size)
        self.bytes += size
        while self.bytes > self._bytes_max and len(self._entries) > 1:
            self.bytes -= self._entries.popitem(last=False)[1][1]

    def drop(self, which: Callable[[Key], bool]) -> None:
        for key in [key for key in self._entries if which(key)]:
            self.bytes -= self._entries.pop(key)[1]
