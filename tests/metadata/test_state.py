"""Decide, expect, replay: against a model that keeps every state as a plain dictionary."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pydanube.base.errors import MetadataBusy, MetadataConflict, MetadataFull, MetadataInvalid, SessionExpired
from pydanube.base.limits import METADATA_KEYS_MAX, METADATA_LONGER_BYTES
from pydanube.metadata import state as state_module
from pydanube.metadata.records import NO_SESSION, Changes, Entry, KeyChange, Repeat, SessionEnded
from pydanube.metadata.state import MetadataState

Model = dict[str, tuple[bytes, int, int]]  # value, version, session
keys = st.sampled_from(["a", "a/1", "a/2", "b", "é", "z"])
values = st.none() | st.binary(max_size=3)
sessions = st.integers(0, 2)


class Deciding(RuleBasedStateMachine):
    """What readers see, and what decisions see, with any number of transactions on their way."""

    def __init__(self) -> None:
        super().__init__()
        self.state = MetadataState()
        self.durable: Model = {}
        self.coming: Model = {}
        self.queue: deque[tuple[int, Changes, Model]] = deque()
        self.revision = 2  # of the last one decided
        for session in (1, 2):
            self.state.replay(session, self.state.decide_session(1.0))

    @rule(
        wanted=st.dictionaries(keys, values, max_size=3),
        checked=st.lists(keys, max_size=2),
        session=sessions,
        stale=st.booleans(),
    )
    def decide(self, wanted: dict[str, bytes | None], checked: list[str], session: int, stale: bool) -> None:
        checks = [(key, self.coming.get(key, (b"", 0, 0))[1] + stale) for key in checked]
        if stale and checks:
            with pytest.raises(MetadataConflict):
                self.state.decide(checks, list(wanted.items()), session)
            return
        transaction = self.state.decide(checks, list(wanted.items()), session)
        self.revision += 1
        self.state.expect(transaction, self.revision)
        self.coming = dict(self.coming)
        for key, value in wanted.items():
            self.coming.pop(key, None)
            if value is not None:
                self.coming[key] = (value, self.revision, session)
        self.queue.append((self.revision, transaction, self.coming))

    @precondition(lambda self: self.queue)
    @rule()
    def replay(self) -> None:
        at, transaction, after = self.queue.popleft()
        changed = self.state.replay(at, transaction)
        seen = dict.fromkeys(self.durable, (b"", 0))
        for revision, key, entry in changed:
            assert revision == at
            assert (entry is not None) or key in seen
        wanted = {change.key for change in transaction.changes}
        assert {change.key for change in changed} == {key for key in wanted if key in self.durable or key in after}
        self.durable = after

    @rule()
    def fail(self) -> None:
        self.state.forget_expected()
        self.queue.clear()
        self.coming = self.durable
        self.revision = self.state.revision

    @precondition(lambda self: not self.queue)
    @rule()
    def restart(self) -> None:
        rows = self.state.freeze().read(1000)
        loaded = MetadataState()
        loaded.load(self.state.revision, rows, self.state.session_rows())
        assert (loaded.bytes, len(loaded)) == (self.state.bytes, len(self.state))
        self.state = loaded

    @invariant()
    def readers_see_what_is_durable(self) -> None:
        for prefix in ("", "a", "a/", "q"):
            expected = [(key, Entry(*self.durable[key][:2])) for key in sorted(self.durable) if key.startswith(prefix)]
            assert self.state.scan(prefix) == expected
        assert self.state.bytes == sum(len(key.encode()) + len(value[0]) for key, value in self.durable.items())
        for session in range(1, 3):
            bound = sorted(key for key, value in self.durable.items() if value[2] == session)
            assert sorted(self.state._sessions[session].keys) == bound
        assert self.state.sessions() == [1, 2]

    @invariant()
    def nothing_is_kept_of_what_is_over(self) -> None:
        if not self.queue:
            assert self.state._coming == {}
            assert self.state._coming_bytes == 0


Deciding.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestDeciding = Deciding.TestCase


def test_deciding_changes_nothing() -> None:
    state = MetadataState()
    first = state.decide([("a", 0)], [("a", b"1")])
    assert state.decide([("a", 0)], [("a", b"1")]) == first
    assert state.get("a") is None


def expect(state: MetadataState, *changes: tuple[str, bytes | None]) -> tuple[int, Changes]:
    """Decides and expects a transaction without checks, as the next one."""
    decided, revision = state.decide((), changes), state.expected + 1
    state.expect(decided, revision)
    return revision, decided


def test_a_deletion_on_its_way_is_seen_through_later_ones() -> None:
    """Deleted, made, deleted again, all on their way: when the first is committed, the last still counts."""
    state = MetadataState()
    decided = [expect(state, ("a", value)) for value in (b"1", None, b"3", None)]
    for revision, transaction in decided:
        state.decide([("a", 0)], ())
        state.replay(revision, transaction)
    state.decide([("a", 0)], ())


def test_the_number_of_keys_and_bytes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert METADATA_KEYS_MAX > 3
    monkeypatch.setattr(state_module, "METADATA_KEYS_MAX", 3)
    monkeypatch.setattr(state_module, "METADATA_BYTES_MAX", 200)
    state = MetadataState()
    expect(state, ("a", b""), ("b", b""))
    with pytest.raises(MetadataFull):
        state.decide((), [("c", b""), ("d", b"")])
    with pytest.raises(MetadataFull):
        state.decide((), [("c", bytes(200))])
    state.decide((), [("a", None), ("b", None)])


@pytest.mark.parametrize("prefix", ["", "a", "a/", "b", "é", "zz"])
@pytest.mark.parametrize("after", ["", "a/", "a/1", "a/15", "b", "zzz"])
@pytest.mark.parametrize("limit", [None, 0, 1, 3, 100])
def test_a_scan_begins_behind_a_key_and_ends_at_its_limit(prefix: str, after: str, limit: int | None) -> None:
    state = MetadataState()
    names = ["a", "a/1", "a/2", "a/3", "ab", "b", "b/1", "z", "é", "é1"]
    state.load(1, [(name, Entry(name.encode(), 1), NO_SESSION) for name in names])
    every = [name for name in names if name.startswith(prefix)]
    expected = [name for name in every if not after or name > after][:limit]
    assert [key for key, _ in state.scan(prefix, after=after, limit=limit)] == expected
    assert state.count(prefix) == len(every)


def test_what_makes_the_store_smaller_is_never_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    state = MetadataState()
    expect(state, ("a", bytes(300)), ("b", bytes(300)), ("c", b""))
    monkeypatch.setattr(state_module, "METADATA_KEYS_MAX", 3)
    monkeypatch.setattr(state_module, "METADATA_BYTES_MAX", 500)
    monkeypatch.setattr(state_module, "METADATA_RESERVE_BYTES", 100)
    monkeypatch.setattr(state_module, "METADATA_RESERVE_KEYS", 0)
    for smaller in (
        [("a", bytes(299))],  # a value that replaces a larger one
        [("a", None), ("z", bytes(299))],  # under another name
        [("a", bytes(600)), ("b", None)],  # one grows, more goes; the total does not
        [("c", bytes(METADATA_LONGER_BYTES))],  # as long as a few numbers
    ):
        state.decide((), smaller)
    for larger in ([("a", bytes(301 + METADATA_LONGER_BYTES))], [("d", b"")], [("d", b""), ("a", None), ("e", b"")]):
        for reserve in (False, True):
            with pytest.raises(MetadataFull):
                state.decide((), larger, reserve=reserve)
    expect(state, ("b", None))
    state.decide((), [("b", bytes(100))])
    with pytest.raises(MetadataFull):
        state.decide((), [("b", bytes(250))])
    state.decide((), [("b", bytes(250))], reserve=True)


def test_what_is_decided_and_not_durable_counts_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "METADATA_BYTES_MAX", 500)
    state = MetadataState()
    decided = []
    for _ in range(20):  # the same key repeatedly is one key
        decided.append(expect(state, ("a", bytes(400))))
    for revision, transaction in decided:
        state.replay(revision, transaction)
        state.decide((), [("b", bytes(90))])
        with pytest.raises(MetadataFull):
            state.decide((), [("b", bytes(110))])


def test_a_prefix_is_empty_after_all_that_was_decided() -> None:
    state = MetadataState()

    def decided(*changes: tuple[str, bytes | None]) -> None:
        expect(state, *changes)

    def empty() -> bool:
        try:
            state.decide((), (), empty="a/")
        except MetadataConflict:
            return False
        return True

    decided(("a", b""), ("b/x", b""))
    assert empty()
    decided(("a/x", b"on its way"))
    assert not empty()
    decided(("a/x", None), ("a/never", None))
    assert empty()
    state = MetadataState()
    state.replay(1, Changes((KeyChange("a/x", b""), KeyChange("a/y", b""))))
    decided(("a/x", None))
    assert not empty()
    decided(("a/y", None))
    assert empty()


# -- sessions ----------------------------------------------------------------------------------------------------------


def with_session(**keys: bytes) -> MetadataState:
    """A state with session 1, and keys that are bound to it."""
    state = MetadataState()
    state.replay(1, state.decide_session(5.0, "node"))
    state.replay(2, state.decide((), list(keys.items()), 1))
    return state


def end(state: MetadataState) -> tuple[int, SessionEnded]:
    ended, revision = state.decide_end(1), state.expected + 1
    assert ended is not None
    state.expect(ended, revision)
    return revision, ended


def test_the_end_of_a_session_deletes_its_keys_in_one_step() -> None:
    state = with_session(a=b"1", b=b"2")
    revision, ended = end(state)
    assert state.get("a") is not None
    state.decide([("a", 0), ("b", 0)], ())  # decisions see it already
    assert [(change.key, change.entry) for change in state.replay(revision, ended)] == [("a", None), ("b", None)]
    assert len(state) == state.bytes == 0
    assert state.sessions() == []


def test_a_session_whose_end_is_decided_accepts_nothing() -> None:
    state = with_session()
    end(state)
    assert state.decide_end(1) is None
    with pytest.raises(SessionExpired):
        state.decide((), [("a", b"")], 1)
    with pytest.raises(SessionExpired):
        state.decide((), [("a", b"")], repeat=Repeat(1, 1))


def test_the_end_takes_keys_that_are_on_their_way_and_leaves_those_that_left() -> None:
    state = with_session(mine=b"", left=b"", gone=b"")
    waiting = []
    for key, value, session in (("new", b"", 1), ("left", b"", NO_SESSION), ("gone", None, NO_SESSION)):
        decided, revision = state.decide((), [(key, value)], session), state.expected + 1
        state.expect(decided, revision)
        waiting.append((revision, decided))
    last = end(state)
    state.decide([("new", 0), ("mine", 0), ("gone", 0), ("left", 4)], ())
    for revision, decided in waiting:
        state.replay(revision, decided)
    state.replay(*last)
    assert [key for key, _ in state.scan("")] == ["left"]
    state.decide([("new", 0), ("mine", 0), ("left", 4)], ())


def test_the_end_of_a_session_that_failed_to_be_logged_is_decided_again() -> None:
    state = with_session(a=b"")
    end(state)
    state.forget_expected()
    state.decide([("a", 2)], [("b", b"")], 1)
    state.replay(*end(state))
    assert len(state) == 0


def test_a_repeated_transaction_has_the_first_answer() -> None:
    state = with_session()
    first = Repeat(1, 1)
    decided = state.decide([("a", 0)], [("a", b"1")], repeat=first)
    assert state.answer(first) is None
    state.expect(decided, 3)
    assert state.answer(first) == 3
    state.replay(3, decided)
    assert state.answer(first) == 3
    loaded = MetadataState()
    loaded.load(3, state.freeze().read(1000), state.session_rows())
    assert loaded.answer(first) == 3
    loaded.replay(4, loaded.decide((), (), repeat=Repeat(1, 2, answered=1)))
    assert (loaded.answer(first), loaded.answer(Repeat(1, 2))) == (None, 4)
    with pytest.raises(MetadataInvalid, match="was answered"):
        loaded.decide([("a", 0)], [("a", b"1")], repeat=first)


def test_the_answers_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "SESSION_ANSWERS_MAX", 3)
    state = with_session()
    for number in range(1, 4):
        state.replay(2 + number, state.decide((), (), repeat=Repeat(1, number)))
    with pytest.raises(MetadataBusy):
        state.decide((), (), repeat=Repeat(1, 4))
    assert state.answer(Repeat(1, 1)) == 3


def test_the_number_of_sessions_is_bounded_with_those_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_module, "SESSIONS_MAX", 2)
    state = with_session()
    state.expect(state.decide_session(1.0), 3)
    with pytest.raises(MetadataFull):
        state.decide_session(1.0)
    state.forget_expected()
    state.decide_session(1.0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(MetadataInvalid):
            state.decide_session(seconds)
