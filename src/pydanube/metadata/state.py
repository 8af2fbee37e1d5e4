"""All keys with their versions: deciding only reads, `replay` is the only writer of what readers see (§2).

Decisions that are not durable yet are kept apart: the next decision takes them into account, readers do not see them.
The owner replays a transaction once it is durable, or forgets all that are waiting if the log failed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydanube.base.errors import MetadataConflict, MetadataFull
from pydanube.base.limits import (
    METADATA_BYTES_MAX,
    METADATA_KEYS_MAX,
    METADATA_LONGER_BYTES,
    METADATA_RESERVE_BYTES,
    METADATA_RESERVE_KEYS,
)
from pydanube.metadata.records import (
    NO_SESSION,
    Check,
    Entry,
    KeyChange,
    RequestedChange,
    Transaction,
    check_transaction,
    encode_changes,
)


class Changed(NamedTuple):
    """What a transaction did to one key; None as an entry means that the key was deleted."""

    revision: int
    key: str
    entry: Entry | None


class _Coming(NamedTuple):
    """A change of a key that is decided and not durable yet."""

    revision: int
    version: int  # the version that the key will have
    size: int  # of key and value; 0 if the key will be deleted


class MetadataState:
    """The newest durable state, and the versions that keys will have after the transactions decided since."""

    def __init__(self) -> None:
        self.revision = 0  # of the last transaction replayed
        self.bytes = 0  # of all keys and values
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; code points sort as their UTF-8 does
        self._session_of: dict[str, int] = {}
        self._bound: dict[int, dict[str, None]] = {}  # keys by session
        self._decided = 0  # revision of the last transaction decided
        self._coming: dict[str, _Coming] = {}  # the last decided change of a key
        self._coming_bytes = self._coming_keys = 0  # by how much all of them grow the store; negative if they shrink it

    # -- reading -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._keys)

    def get(self, key: str) -> Entry | None:
        return self._entries.get(key)

    def scan(self, prefix: str, *, after: str = "", limit: int | None = None) -> list[tuple[str, Entry]]:
        """Every key that starts with `prefix`, in order; only those after `after`, and at most `limit` of them."""
        keys, entries = self._keys, self._entries
        start = max(bisect_left(keys, prefix), bisect_right(keys, after))
        end = self._end(prefix, start)
        end = end if limit is None else min(end, start + limit)
        return [(key, entries[key]) for key in keys[start:end]]

    def count(self, prefix: str) -> int:
        """How many keys start with `prefix`; takes the same time however many there are."""
        start = bisect_left(self._keys, prefix)
        return self._end(prefix, start) - start

    def _end(self, prefix: str, start: int) -> int:
        """The index after the last key that starts with `prefix`."""
        size = len(prefix)
        return bisect_right(self._keys, prefix, start, key=lambda key: key[:size])

    def bound(self, session: int) -> list[str]:
        """The keys that are deleted when the session ends."""
        return list(self._bound.get(session, ()))

    def sessions(self) -> list[int]:
        """The sessions that keys are bound to."""
        return list(self._bound)

    def rows(self) -> Iterator[tuple[str, Entry, int]]:
        """Key, entry and session of everything, in order: a snapshot."""
        for key in self._keys:
            yield key, self._entries[key], self._session_of.get(key, NO_SESSION)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def decide(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        session: int = NO_SESSION,
        *,
        reserve: bool = False,
        empty: str = "",
    ) -> Transaction:
        """The transaction to log, if every key has the version given in `checks` once all earlier decisions count.

        With `empty`, it also requires that no key starts with that prefix. A change that shrinks the store, or only
        makes the numbers in it longer, is never refused for lack of space.
        """
        check_transaction(checks, changes)
        for key, version in checks:
            current = self._version(key)
            if current != version:
                raise MetadataConflict(f"{key!r} has version {current}, not {version}")
        if empty and self._some(empty):
            raise MetadataConflict(f"keys that start with {empty!r} already exist")
        wanted = tuple(KeyChange(key, value, NO_SESSION if value is None else session) for key, value in changes)
        payload = encode_changes(wanted)
        self._check_room(wanted, reserve)
        return Transaction(self._decided + 1, wanted, payload)

    def _check_room(self, changes: Sequence[KeyChange], reserve: bool) -> None:
        more_bytes, more_keys = self._growth(changes)
        longer = METADATA_LONGER_BYTES * len(changes) if more_keys <= 0 else 0
        total = self.bytes + self._coming_bytes
        if more_bytes > longer and total + more_bytes > METADATA_BYTES_MAX + reserve * METADATA_RESERVE_BYTES:
            raise MetadataFull(f"the metadata has {total} bytes; the maximum is {METADATA_BYTES_MAX}")
        total = len(self._keys) + self._coming_keys
        if more_keys > 0 and total + more_keys > METADATA_KEYS_MAX + reserve * METADATA_RESERVE_KEYS:
            raise MetadataFull(f"the metadata has {total} keys; the maximum is {METADATA_KEYS_MAX}")

    def _growth(self, changes: Sequence[KeyChange]) -> tuple[int, int]:
        """By how many bytes and keys the store grows, once all earlier decisions count."""
        more_bytes = more_keys = 0
        for key, value, _ in changes:
            coming, entry = self._coming.get(key), self._entries.get(key)
            before = coming.size if coming is not None else _size(key, None if entry is None else entry.value)
            after = _size(key, value)
            more_bytes += after - before
            more_keys += bool(after) - bool(before)
        return more_bytes, more_keys

    def expect(self, transaction: Transaction) -> None:
        """The transaction is about to be logged: later decisions build on it."""
        more_bytes, more_keys = self._growth(transaction.changes)
        self._coming_bytes += more_bytes
        self._coming_keys += more_keys
        revision = self._decided = transaction.revision
        for key, value, _ in transaction.changes:
            self._coming[key] = _Coming(revision, 0 if value is None else revision, _size(key, value))

    def forget_expected(self) -> None:
        """The log failed: transactions that were decided and not replayed have not taken effect."""
        self._coming.clear()
        self._coming_bytes = self._coming_keys = 0
        self._decided = self.revision

    def _some(self, prefix: str) -> bool:
        """Whether any key starts with `prefix`, once all earlier decisions count."""
        coming = [(key, each.version) for key, each in self._coming.items() if key.startswith(prefix)]
        gone = sum(not version and key in self._entries for key, version in coming)
        return any(version for _, version in coming) or self.count(prefix) > gone

    def _version(self, key: str) -> int:
        coming = self._coming.get(key)
        if coming is not None:
            return coming.version
        entry = self._entries.get(key)
        return 0 if entry is None else entry.version

    # -- replaying -----------------------------------------------------------------------------------------------------

    def replay(self, revision: int, changes: Sequence[KeyChange]) -> list[Changed]:
        """The transaction is durable; returns what it changed."""
        changed = []
        bytes_before, keys_before = self.bytes, len(self._keys)
        for key, value, session in changes:
            if value is not None:
                entry = Entry(value, revision)
                self._put(key, entry, session)
                changed.append(Changed(revision, key, entry))
            elif self._drop(key):
                changed.append(Changed(revision, key, None))
            coming = self._coming.get(key)
            if coming is not None and coming.revision == revision:
                del self._coming[key]
        self.revision = revision
        self._coming_bytes -= self.bytes - bytes_before
        self._coming_keys -= len(self._keys) - keys_before
        if revision >= self._decided:
            self._decided = revision
            self._coming_bytes = self._coming_keys = 0
        return changed

    def load(self, revision: int, rows: Sequence[tuple[str, Entry, int]]) -> None:
        """Replaces the state by a snapshot, whose rows are in order."""
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


def _size(key: str, value: bytes | None) -> int:
    """The bytes that a key and its value count; 0 if there is no value."""
    return 0 if value is None else len(key.encode()) + len(value)
