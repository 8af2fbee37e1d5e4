"""What a face must know again after a restart: small texts by name, kept with the metadata. Nobody else reads them."""

from __future__ import annotations

from pydanube.base.errors import LimitReached, MetadataConflict
from pydanube.base.limits import METADATA_OPERATIONS_MAX, NOTE_BYTES_MAX
from pydanube.ports.metadata import MetadataStore

_PREFIX = "notes/"


class Notes:
    """Whoever writes them bounds their number."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    def get(self, name: str) -> bytes | None:
        entry = self._store.get(_PREFIX + name)
        return None if entry is None else entry.value

    def all(self, prefix: str) -> dict[str, bytes]:
        """Those whose name begins so, in the order of names."""
        return {key.removeprefix(_PREFIX): entry.value for key, entry in self._store.scan(_PREFIX + prefix)}

    async def put(self, name: str, value: bytes | None) -> None:
        """Durable when it returns; None takes it away."""
        key = _PREFIX + name
        while (entry := self._store.get(key)) is not None or value is not None:
            if await self._written(key, 0 if entry is None else entry.version, value):
                return

    async def swap(self, name: str, before: bytes | None, value: bytes) -> bool:
        """Puts it only if the note still is `before`, None if there was none. Returns whether it was."""
        key = _PREFIX + name
        while self.get(name) == before:
            entry = self._store.get(key)
            if await self._written(key, 0 if entry is None else entry.version, value):
                return True
        return False

    async def _written(self, key: str, version: int, value: bytes | None) -> bool:
        if value is not None and len(value) > NOTE_BYTES_MAX:
            raise LimitReached(f"the note has {len(value)} bytes; the maximum is {NOTE_BYTES_MAX}")
        try:
            await self._store.transact([(key, version)], [(key, value)])
        except MetadataConflict:
            await self._store.transact((), ())  # behind whoever was quicker, reads show what it did
            return False
        return True

    async def dropped_with(self, prefix: str) -> list[tuple[str, None]]:
        """Changes that take away those whose name begins so, for half a transaction; the others go now."""
        gone = [(key, None) for key, _ in self._store.scan(_PREFIX + prefix)]
        half = METADATA_OPERATIONS_MAX // 2
        for at in range(half, len(gone), half):
            await self._store.transact((), gone[at : at + half])
        return gone[:half]
