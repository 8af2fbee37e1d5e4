"""Object storage: whole objects under keys, created once and never changed. Keys are relative to the location.

Errors are `ObjectMissing`, `ObjectExists`, `ObjectsRefused` (only an operator can help) and `ObjectsFailed` (try again
later). A `create` or `delete` that failed in any other way may or may not have happened.
"""

from __future__ import annotations

from typing import Protocol


class Objects(Protocol):
    async def create(self, key: str, data: bytes) -> None:
        """Creates the object atomically. `ObjectExists` if the key is taken, whatever its object contains."""

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """A range of the object, shorter only at its end; without `length`, all of it from `start`. `ObjectMissing`."""

    async def size(self, key: str) -> int:
        """Bytes of the object; `ObjectMissing` if it does not exist."""

    async def list(self, prefix: str) -> list[str]:
        """The keys that start with `prefix`, which ends with a slash, sorted; recent changes may not show yet."""

    async def delete(self, key: str) -> None:
        """Deletes the object; succeeds even if it does not exist."""

    async def close(self) -> None: ...
