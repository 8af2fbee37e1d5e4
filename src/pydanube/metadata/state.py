"""All keys with their versions, and sessions. Deciding only reads; `replay` alone writes what readers see (§2).

Decisions that are not committed yet are kept apart: the next decision takes them into account, readers do not see them.
The owner replays a record once it is committed, or forgets all that are waiting if they may never be.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydanube.base.errors import MetadataBusy, MetadataConflict, MetadataFull, MetadataInvalid, SessionExpired
from pydanube.base.limits import (
    METADATA_BYTES_MAX,
    METADATA_KEYS_MAX,
    METADATA_LONGER_BYTES,
    METADATA_RESERVE_BYTES,
    METADATA_RESERVE_KEYS,
    SESSION_ANSWERS_MAX,
    SESSION_SECONDS_MAX,
    SESSIONS_MAX,
)
from pydanube.metadata.frozen import FrozenState
from pydanube.metadata.records import (
    NO_SESSION,
    Changes,
    Check,
    Entry,
    KeyChange,
    Record,
    Repeat,
    RequestedChange,
    SessionEnded,
    SessionOpened,
    check_transaction,
)
from pydanube.metadata.snapshot import Row, SessionRow


class Changed(NamedTuple):
    """What a transaction did to one key; None as an entry means that the key was deleted."""

    revision: int
    key: str
    entry: Entry | None


@dataclass(slots=True)
class _Session:
    """An open session: its keys are deleted when it ends, and its transactions are made once."""

    seconds: float
    holder: str
    answered: int = 0  # numbers up to this one are not asked for again
    answers: dict[int, int] = field(default_factory=dict)  # revision by number
    keys: dict[str, None] = field(default_factory=dict)

    def remember(self, repeat: Repeat, revision: int) -> None:
        self.answers[repeat.number] = revision
        self.answered = max(self.answered, repeat.answered)
        while (first := next(iter(self.answers), None)) is not None and first <= self.answered:
            del self.answers[first]


class _Coming(NamedTuple):
    """A change of a key that is decided and not committed yet."""

    revision: int
    version: int  # the version that the key will have
    size: int  # of key and value; 0 if the key will be deleted
    session: int


class MetadataState:
    """The newest committed state, and the versions that keys will have after the transactions decided since."""

    def __init__(self) -> None:
        self.revision = 0  # index of the last entry of the log that counts here
        self.bytes = 0  # of all keys and values
        self._entries: dict[str, Entry] = {}
        self._keys: list[str] = []  # sorted; code points sort as their UTF-8 does
        self._session_of: dict[str, int] = {}
        self._sessions: dict[int, _Session] = {}
        self._decided = 0  # revision of the last record expected
        self._coming: dict[str, _Coming] = {}  # the last decided change of a key
        self._coming_bytes = self._coming_keys = 0  # by how much all of them grow the store; negative if they shrink it
        self._coming_answers: dict[tuple[int, int], int] = {}  # revision by session and number
        self._coming_sessions = 0
        self._ending: dict[int, None] = {}  # sessions whose end is decided
        self._frozen: list[FrozenState] = []

    @property
    def expected(self) -> int:
        """The revision of the last record that is decided."""
        return self._decided

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

    def session_seconds(self, session: int) -> float | None:
        """How long the session lasts unless it is kept alive; None if it has ended."""
        found = self._sessions.get(session)
        return None if found is None else found.seconds

    def is_ending(self, session: int) -> bool:
        """Whether its end is decided."""
        return session in self._ending

    def sessions(self, holder: str | None = None) -> list[int]:
        """All open sessions, or those that this node opened."""
        return [each for each, found in self._sessions.items() if holder is None or found.holder == holder]

    def session_rows(self) -> tuple[SessionRow, ...]:
        """All sessions, for a snapshot."""
        return tuple(
            SessionRow(session, found.seconds, found.holder, found.answered, dict(found.answers))
            for session, found in self._sessions.items()
        )

    def row(self, key: str) -> Row:
        """A key that exists, as a snapshot has it."""
        return key, self._entries[key], self._session_of.get(key, NO_SESSION)

    def freeze(self) -> FrozenState:
        """The present state, to be read in parts."""
        self._frozen.append(FrozenState(self))
        return self._frozen[-1]

    def thaw(self, frozen: FrozenState) -> None:
        self._frozen.remove(frozen)

    # -- deciding ------------------------------------------------------------------------------------------------------

    def decide(
        self,
        checks: Sequence[Check],
        changes: Sequence[RequestedChange],
        session: int = NO_SESSION,
        *,
        reserve: bool = False,
        empty: str = "",
        repeat: Repeat | None = None,
    ) -> Changes:
        """The transaction to log, if every key has the version given in `checks` once all earlier decisions count.

        With `empty`, it also requires that no key starts with that prefix. A change that shrinks the store, or only
        makes the numbers in it longer, is never refused for lack of space.
        """
        check_transaction(checks, changes)
        if session != NO_SESSION:
            self._check_session(session)
        if repeat is not None:
            self._check_repeat(repeat)
        for key, version in checks:
            current = self._version(key)
            if current != version:
                raise MetadataConflict(f"{key!r} has version {current}, not {version}")
        if empty and self._some(empty):
            raise MetadataConflict(f"keys that start with {empty!r} already exist")
        wanted = tuple(KeyChange(key, value, NO_SESSION if value is None else session) for key, value in changes)
        self._check_room(wanted, reserve)
        return Changes(wanted, repeat)

    def decide_session(self, seconds: float, holder: str = "") -> SessionOpened:
        if not 0 < seconds <= SESSION_SECONDS_MAX:
            raise MetadataInvalid(f"a session can last up to {SESSION_SECONDS_MAX:.0f} seconds, not {seconds}")
        if len(self._sessions) + self._coming_sessions >= SESSIONS_MAX:
            raise MetadataFull(f"{SESSIONS_MAX} sessions are already open")
        return SessionOpened(seconds, holder)

    def decide_end(self, session: int) -> SessionEnded | None:
        """None if it has ended, or its end is decided."""
        ended = session not in self._sessions or session in self._ending
        return None if ended else SessionEnded(session)

    def _check_session(self, session: int) -> _Session:
        found = self._sessions.get(session)
        if found is None or session in self._ending:
            raise SessionExpired(f"session {session}")
        return found

    def _check_repeat(self, repeat: Repeat) -> None:
        found = self._check_session(repeat.session)
        if repeat.number <= found.answered:
            raise MetadataInvalid(f"transaction {repeat.number} of session {repeat.session} was answered")
        if len(found.answers) >= SESSION_ANSWERS_MAX:
            raise MetadataBusy(f"{len(found.answers)} transactions of session {repeat.session} await their answers")

    def answer(self, repeat: Repeat) -> int | None:
        """The revision that the transaction got when it was asked for earlier, though it may not be committed yet."""
        found = self._sessions.get(repeat.session)
        known = None if found is None else found.answers.get(repeat.number)
        return self._coming_answers.get((repeat.session, repeat.number)) if known is None else known

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
        """The bytes and keys by which the store grows, counting all earlier decisions."""
        more_bytes = more_keys = 0
        for key, value, _ in changes:
            coming, entry = self._coming.get(key), self._entries.get(key)
            before = coming.size if coming is not None else _size(key, None if entry is None else entry.value)
            after = _size(key, value)
            more_bytes += after - before
            more_keys += bool(after) - bool(before)
        return more_bytes, more_keys

    def expect(self, record: Record, revision: int) -> None:
        """Called when the record is in the log, with the index that it has there: later decisions build on it."""
        self._decided = revision
        match record:
            case Changes(changes, repeat):
                self._expect_changes(changes, revision)
                if repeat is not None:
                    self._coming_answers[repeat.session, repeat.number] = revision
            case SessionOpened():
                self._coming_sessions += 1
            case SessionEnded(session):
                self._ending[session] = None
                self._expect_changes(self._bound_changes(session), revision)

    def _expect_changes(self, changes: Sequence[KeyChange], revision: int) -> None:
        more_bytes, more_keys = self._growth(changes)
        self._coming_bytes += more_bytes
        self._coming_keys += more_keys
        for key, value, session in changes:
            self._coming[key] = _Coming(revision, 0 if value is None else revision, _size(key, value), session)

    def forget_expected(self) -> None:
        """Called when nothing that was decided and not replayed counts any more."""
        self._coming.clear()
        self._coming_answers.clear()
        self._ending.clear()
        self._coming_bytes = self._coming_keys = self._coming_sessions = 0
        self._decided = self.revision

    def _bound_changes(self, session: int) -> list[KeyChange]:
        """The deletion of all keys that will be bound to the session once all earlier decisions count."""
        bound = [key for key in self._sessions[session].keys if key not in self._coming]
        bound += [key for key, coming in self._coming.items() if coming.session == session]
        return [KeyChange(key, None) for key in bound]

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

    def replay(self, revision: int, record: Record | None) -> list[Changed]:
        """Applies a committed record, or an entry of the log that changes nothing here; returns what it changed."""
        bytes_before, keys_before = self.bytes, len(self._keys)
        changed: list[Changed] = []
        match record:
            case Changes(changes, repeat):
                changed = self._replay_changes(revision, changes)
                if repeat is not None:
                    self._coming_answers.pop((repeat.session, repeat.number), None)
                    if (found := self._sessions.get(repeat.session)) is not None:
                        found.remember(repeat, revision)
            case SessionOpened(seconds, holder):
                self._coming_sessions = max(0, self._coming_sessions - 1)
                self._sessions[revision] = _Session(seconds, holder)
            case SessionEnded(session):
                self._ending.pop(session, None)
                ended = self._sessions.get(session)
                if ended is not None:
                    changed = self._replay_changes(revision, [KeyChange(key, None) for key in list(ended.keys)])
                    del self._sessions[session]
        self.revision = revision
        self._coming_bytes -= self.bytes - bytes_before
        self._coming_keys -= len(self._keys) - keys_before
        if revision >= self._decided:
            self.forget_expected()
        return changed

    def _replay_changes(self, revision: int, changes: Iterable[KeyChange]) -> list[Changed]:
        changed = []
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
        return changed

    def load(self, revision: int, rows: Sequence[Row], sessions: Sequence[SessionRow] = ()) -> None:
        """Replaces the state by a snapshot, whose rows are in order."""
        self._entries = {key: entry for key, entry, _ in rows}
        self._keys = list(self._entries)
        self.bytes = sum([len(key.encode()) + len(entry.value) for key, entry, _ in rows])
        self._session_of.clear()
        self._sessions = {
            row.identity: _Session(row.seconds, row.holder, row.answered, dict(row.answers)) for row in sessions
        }
        for key, _, session in rows:
            if session != NO_SESSION:
                self._bind(key, session)
        self.revision = revision
        self.forget_expected()

    def _put(self, key: str, entry: Entry, session: int) -> None:
        before = self._entries.get(key)
        for frozen in self._frozen:
            frozen.before_change(key, before, self._session_of.get(key, NO_SESSION))
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
        for frozen in self._frozen:
            frozen.before_deletion(key, before, self._session_of.get(key, NO_SESSION))
        del self._keys[bisect_left(self._keys, key)]
        self.bytes -= len(key.encode()) + len(before.value)
        self._unbind(key)
        return True

    def _bind(self, key: str, session: int) -> None:
        found = self._sessions.get(session)
        if found is not None:
            self._session_of[key] = session
            found.keys[key] = None

    def _unbind(self, key: str) -> None:
        session = self._session_of.pop(key, NO_SESSION)
        if session != NO_SESSION:
            del self._sessions[session].keys[key]


def _size(key: str, value: bytes | None) -> int:
    """The bytes that a key and its value count; 0 if there is no value."""
    return 0 if value is None else len(key.encode()) + len(value)
