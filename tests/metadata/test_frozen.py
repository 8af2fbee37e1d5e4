"""A frozen state against a copy: whatever changes meanwhile, it reads what was there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.metadata.records import Changes, KeyChange, SessionEnded
from pydanube.metadata.snapshot import Row
from pydanube.metadata.state import MetadataState

keys = st.sampled_from([f"{name}{number}" for name in "abcé" for number in range(4)])
Wanted = list[tuple[str, bytes | None]]
changes = st.lists(st.tuples(keys, st.none() | st.binary(max_size=2)), max_size=4, unique_by=lambda change: change[0])


def apply(state: MetadataState, wanted: Wanted, session: int = 0) -> None:
    found = tuple(KeyChange(key, value, 0 if value is None else session) for key, value in wanted)
    state.replay(state.revision + 1, Changes(found))


@given(
    st.lists(changes, max_size=6), st.lists(changes | st.just("read") | st.just("end"), max_size=20), st.integers(1, 5)
)
def test_it_reads_what_was_there(before: list[Wanted], meanwhile: list[Wanted | str], count: int) -> None:
    state = MetadataState()
    state.replay(1, state.decide_session(1.0))
    for number, wanted in enumerate(before):
        apply(state, wanted, number % 2)
    expected: list[Row] = [state.row(key) for key, _ in state.scan("")]
    frozen, found = state.freeze(), list[Row]()
    for step in meanwhile:
        if step == "read":
            found += frozen.read(count)
        elif step == "end":
            state.replay(state.revision + 1, SessionEnded(1))
        elif not isinstance(step, str):
            apply(state, step)
    while rows := frozen.read(count):
        found += rows
    assert found == expected
    assert (frozen.keys, frozen.bytes) == (len(found), sum(len(key.encode()) + len(e.value) for key, e, _ in found))
    assert frozen._kept == {}
    frozen.end()
    apply(state, [("a0", b"later")])
    assert frozen._kept == {}
