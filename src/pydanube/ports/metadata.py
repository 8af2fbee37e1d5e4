"""The metadata store: versioned keys, transactions, watches, sessions. All metadata goes through it (§25).

Logging and replaying are the implementation's own business. Reads are local and show only what is durable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydanube.metadata.records import NO_SESSION, Check, Entry, Repeat, RequestedChange
from pydanube.metadata.state import Changed


class Watch(Protocol):
    """Changes one by one, in order, without gaps; ends when it or the store is closed."""

    def __aiter__(self) -> Watch: ...

    async def __anext__(self) -> Changed:
        """The next change; `WatchLagged` if changes were missed: then watch again, and scan."""

    def close(self) -> None: ...


class MetadataStore(Protocol):
    @property
    def revision(self) -> int:
        """The revision of the newest transaction that reads show."""

    def get(self, key: str) -> Entry | None: ...

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        """The keys that start with `prefix` and come after `after`, sorted, at most `limit` of them."""

    def count(self, prefix: str) -> int:
        """How many keys start with `prefix`."""

    async def transact(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        *,
        session: int = NO_SESSION,
        reserve: bool = False,
        empty: str = "",
        repeat: Repeat | None = None,
    ) -> int:
        """Makes all changes durably (None deletes a key), if every key still has its version (0: absent) and no key
        starts with `empty` (unless that is blank). Returns the new revision, which is also the version of every key
        written. Keys written with a session are deleted when it ends. A transaction with `reserve` is needed to make
        room, so it may use the room kept for that; one that makes the store smaller always may. `repeat` names the
        transaction, so that it is made once although it is asked for again; a store of several nodes does so itself.

        Raises `MetadataConflict` if a condition does not hold. After that, and after `MetadataInvalid`,
        `MetadataFull`, `MetadataBusy`, `MetadataClosed` or `SessionExpired`, nothing has changed; after any other
        error, the changes may or may not have been made.
        """

    async def barrier(self) -> int:
        """Returns when everything that was decided before the call, on any node, can be read here. The revision that it
        returns can be asked for elsewhere."""

    async def reach(self, revision: int) -> int:
        """Returns when reads show at least this revision, which another node may have named (§41)."""

    def watch(self, prefix: str) -> Watch:
        """Every change after the present `revision`."""

    async def open_session(self, seconds: float) -> int:
        """A session that ends unless it is kept alive within every `seconds`."""

    async def keep_alive(self, session: int) -> None:
        """Renews the session; `SessionExpired` if it is too late."""

    async def close_session(self, session: int) -> None:
        """Ends the session now; its keys are deleted when this returns."""

    async def close(self) -> None: ...
