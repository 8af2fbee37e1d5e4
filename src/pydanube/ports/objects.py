"""Object storage: whole objects under keys, made once and never changed. Keys are relative to the place configured.

Errors are `ObjectMissing`, `ObjectExists`, `ObjectsRefused` (nothing helps but an operator) and `ObjectsFailed` (try
again later). After a `create` or `delete` that failed otherwise, it may or may not have happened.
"""

from __future__ import annotations

from typing import Protocol


class Objects(Protocol):
    async def create(self, key: str, data: bytes) -> None:
        """Makes the object, atomically: whole, or not at all. `ObjectExists` if there is one, whatever is in it."""
        ...

    async def read(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """That range of it, shorter only at its end; all from `start` on without `length`. `ObjectMissing`."""
        ...

    async def size(self, key: str) -> int:
        """`ObjectMissing` if there is none."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Keys that start with `prefix`, which ends with a slash, sorted; may lag behind what was made or deleted."""
        ...

    async def delete(self, key: str) -> None:
        """Done also if there is none."""
        ...

    async def close(self) -> None: ...
