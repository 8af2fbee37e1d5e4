"""All keys with their versions: deciding only reads, `replay` is the only writer of what readers see (§2).

What is decided and not durable yet is noted apart, so that the next decision sees it and readers do not. The owner
replays a transaction once it is durable, or forgets all that wait if the log failed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydanube.base.errors import MetadataConflict, MetadataFull
from pydanube.base.limits import METADATA_BYTES_MAX, METADATA_KEYS_MAX
from pydanube.metadata.records import (
    NO_SESSION,
    Change,
    ChangeAsked,
    Check,
    Entry,
    Transaction,
    check_transaction,
    encode_changes,
)


class Changed(NamedTuple):
    """What a transaction did to one key; no entry means that the key is gone."""

    revision: int
    key: str
    entry: Entry | None


class MetadataState:
    """The newest durable state, and above it the versions that keys will have."""

    def __init__(self) -> None:
        self.revision = 0  # of the last transaction replayed
        self.bytes = 0  # of all keys and values
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; code points sort as their UTF-8 does
        self._session_of: dict[str, int] = {}
        self._bound: dict[int, dict[str, None]] = {}  # keys by session
        self._decided = 0  # revision of the last transaction decided
        self._coming: dict[str, tuple[int, int]] = {}  # revision and version of the last decided change of a key
        self._coming_bytes = 0  # at most, and as `_coming` only since it was empty last

    # -- reading -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        """Every key that starts so, in order; those behind `after`, at most `limit` of them."""
        keys, entries = self._keys, self._entries
        start = max(bisect_left(keys, prefix), bisect_right(keys, after))
        end = self._end(prefix, start)
        end = end if limit is None else min(end, start + limit)
        return [(key, entries[key]) for key in keys[start:end]]

    def count(self, prefix: str) -> int:
        """How many keys start so; costs nothing, however many they are."""
        start = bisect_left(self._keys, prefix)
        return self._end(prefix, start) - start

    def _end(self, prefix: str, start: int) -> int:
        """The place behind the last key that starts so."""
        size = len(prefix)
        return bisect_right(self._keys, prefix, start, key=lambda key: key[:size])

    def bound(self, session: int) -> list[str]:
        """The keys that go with the session."""
        return list(self._bound.get(session, ()))

    def sessions(self) -> list[int]:
        """Those that keys are bound to."""
        return list(self._bound)

    def rows(self) -> Iterator[tuple[str, Entry, int]]:
        """Key, entry and session of everything, in order: a snapshot."""
        for key in self._keys:
            yield key, self._entries[key], self._session_of.get(key, NO_SESSION)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def decide(self, checks: Sequence[Check], changes: Sequence[ChangeAsked], session: int = NO_SESSION) -> Transaction:
        """The transaction to log, if every key has its version after all that was decided before."""
        check_transaction(checks, changes)
        for key, version in checks:
            current = self._version(key)
            if current != version:
                raise MetadataConflict(f"{key!r} has version {current}, not {version}")
        wanted = tuple(Change(key, value, NO_SESSION if value is None else session) for key, value in changes)
        payload = encode_changes(wanted)
        grows = any(change.value is not None for change in wanted)
        if grows and self.bytes + self._coming_bytes + len(payload) > METADATA_BYTES_MAX:
            raise MetadataFull(f"{self.bytes} bytes of metadata; {METADATA_BYTES_MAX} at most")
        if grows and len(self._keys) + len(self._coming) + len(wanted) > METADATA_KEYS_MAX:
            raise MetadataFull(f"{len(self._keys)} keys of metadata; {METADATA_KEYS_MAX} at most")
        return Transaction(self._decided + 1, wanted, payload)

    def expect(self, transaction: Transaction) -> None:
        """It is on its way to the log: later decisions build on it."""
        revision = self._decided = transaction.revision
        for key, value, _ in transaction.changes:
            self._coming[key] = (revision, 0 if value is None else revision)
        self._coming_bytes += len(transaction.payload)

    def forget_expected(self) -> None:
        """The log failed: nothing that was decided and not replayed happened."""
        self._coming.clear()
        self._coming_bytes = 0
        self._decided = self.revision

    def _version(self, key: str) -> int:
        coming = self._coming.get(key)
        if coming is not None:
            return coming[1]
        entry = self._entries.get(key)
        return 0 if entry is None else entry.version

    # -- replaying -----------------------------------------------------------------------------------------------------

    def replay(self, revision: int, changes: Sequence[Change]) -> list[Changed]:
        """The transaction is durable; returns what it changed."""
        changed = []
        for key, value, session in changes:
            if value is not None:
                entry = Entry(value, revision)
                self._put(key, entry, session)
                changed.append(Changed(revision, key, entry))
            elif self._drop(key):
                changed.append(Changed(revision, key, None))
            coming = self._coming.get(key)
            if coming is not None and coming[0] == revision:
                del self._coming[key]
        self.revision = revision
        if revision >= self._decided:
            self._decided = revision
            self._coming_bytes = 0
        return changed

    def load(self, revision: int, rows: Sequence[tuple[str, Entry, int]]) -> None:
        """Becomes a snapshot, whose rows are in order."""
        self._entries = {key: entry for key, entry, _ in rows}
        self._keys = list(self._entries)
        self.bytes = sum([len(key.encode()) + len(entry.value) for key, entry, _ in rows])
        for key, _, session in rows:
            if session != NO_SESSION:
                self._bind(key, session)
        self.revision = self._decided = revision

    def _put(self, key: str, entry: Entry, session: int) -> None:
        before = self._entries.get(key)
        if before is None:
            insort(self._keys, key)
            self.bytes += len(key.encode())
        else:
            self.bytes -= len(before.value)
            self._unbind(key)
        self._entries[key] = entry
        self.bytes += len(entry.value)
        if session != NO_SESSION:
            self._bind(key, session)

    def _drop(self, key: str) -> bool:
        before = self._entries.pop(key, None)
        if before is None:
            return False
        del self._keys[bisect_left(self._keys, key)]
        self.bytes -= len(key.encode()) + len(before.value)
        self._unbind(key)
        return True

    def _bind(self, key: str, session: int) -> None:
        self._session_of[key] = session
        self._bound.setdefault(session, {})[key] = None

    def _unbind(self, key: str) -> None:
        session = self._session_of.pop(key, NO_SESSION)
        if session == NO_SESSION:
            return
        keys = self._bound[session]
        del keys[key]
        if not keys:
            del self._bound[session]
