"""The metadata store: versioned keys, transactions, watches, sessions. Nothing the cluster agrees on bypasses it (§25).

Logging and replay are inside an implementation. Reads are local and show only what is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydanube.metadata.records import NO_SESSION, Check, Entry, RequestedChange
from pydanube.metadata.state import Changed


class Watch(Protocol):
    """Changes one by one, in order, without gaps; ends when it or the store is closed."""

    def __aiter__(self) -> Watch: ...

    async def __anext__(self) -> Changed:
        """`WatchLagged` if changes were missed: watch again, then scan."""
        ...

    def close(self) -> None: ...


class MetadataStore(Protocol):
    @property
    def revision(self) -> int:
        """Of the newest transaction that reads show."""
        ...

    def get(self, key: str) -> Entry | None: ...

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        """Every key that starts with `prefix`, sorted; those behind `after`, at most `limit` of them."""
        ...

    def count(self, prefix: str) -> int:
        """How many keys start with `prefix`."""
        ...

    async def transact(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        *,
        session: int = NO_SESSION,
        reserve: bool = False,
        empty: str = "",
    ) -> int:
        """If every key still has its version (0: absent), and no key starts with `empty` (unless that is nothing),
        makes all changes durably (None deletes) and returns the new revision, which is also the version of every key
        written. Keys written with a session go when it ends. `reserve` is for what is needed to make room: it may use
        the last of it, and what makes the store smaller always may.

        Raises `MetadataConflict` if that is not so, and nothing happened. After `MetadataInvalid`, `MetadataFull`,
        `MetadataBusy`, `MetadataClosed` or `SessionExpired` nothing happened either; after any other error it may or
        may not have.
        """
        ...

    def watch(self, prefix: str) -> Watch:
        """Every change after `revision` as it is now."""
        ...

    async def open_session(self, seconds: float) -> int:
        """A session that ends unless it is kept alive within every `seconds`."""
        ...

    async def keep_alive(self, session: int) -> None:
        """Raises `SessionExpired` if it is too late."""
        ...

    async def close_session(self, session: int) -> None:
        """Ends it now; its keys are gone when this returns."""
        ...

    async def close(self) -> None: ...
