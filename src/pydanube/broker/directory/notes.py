"""Small values that must survive a restart, stored by name with the metadata.

Each belongs to the part of the broker that writes it, such as the gRPC face or redrive; no other part reads it.
"""

from __future__ import annotations

from pydanube.base.errors import LimitReached, MetadataConflict
from pydanube.base.limits import METADATA_OPERATIONS_MAX, NOTE_BYTES_MAX
from pydanube.ports.metadata import MetadataStore

_PREFIX = "notes/"


class Notes:
    """The notes in one metadata store. The part that writes them must limit their number."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, name: str) -> bytes | None:
        entry = self._store.get(_PREFIX + name)
        return None if entry is None else entry.value

    def all(self, prefix: str) -> dict[str, bytes]:
        """The notes whose names begin with `prefix`, ordered by name."""
        return {key.removeprefix(_PREFIX): entry.value for key, entry in self._store.scan(_PREFIX + prefix)}

    async def put(self, name: str, value: bytes | None) -> None:
        """Writes a note durably; None deletes it."""
        key = _PREFIX + name
        while (entry := self._store.get(key)) is not None or value is not None:
            if await self._write(key, 0 if entry is None else entry.version, value):
                return

    async def swap(self, name: str, before: bytes | None, value: bytes) -> bool:
        """Writes a note if its value is still `before` (None: if there is none). Returns whether it was written."""
        key = _PREFIX + name
        while self.get(name) == before:
            entry = self._store.get(key)
            if await self._write(key, 0 if entry is None else entry.version, value):
                return True
        return False

    async def _write(self, key: str, version: int, value: bytes | None) -> bool:
        """Returns whether the note was still at this version."""
        if value is not None and len(value) > NOTE_BYTES_MAX:
            raise LimitReached(f"the note has {len(value)} bytes; the maximum is {NOTE_BYTES_MAX}")
        try:
            await self._store.transact([(key, version)], [(key, value)])
        except MetadataConflict:
            await self._store.transact((), ())  # waits until the change that won the race can be read
            return False
        return True

    async def dropped_with(self, prefix: str) -> list[tuple[str, None]]:
        """Changes that delete the notes whose names begin with `prefix`, for the caller's transaction.

        They fill at most half of it; notes beyond that are deleted here and now.
        """
        deletions = [(key, None) for key, _ in self._store.scan(_PREFIX + prefix)]
        half = METADATA_OPERATIONS_MAX // 2
        for at in range(half, len(deletions), half):
            await self._store.transact((), deletions[at : at + half])
        return deletions[:half]
