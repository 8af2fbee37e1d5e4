"""Drivers that die between any two steps of a commit, and others that come too late: each row is there once."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.faults_world import Attempt, Died, Pipeline
from pydanube.base.errors import SinkConflict
from pydanube.pipeline.query import writer as sink
from pydanube.pipeline.targets.files.folders import LocalFolder

STEPS = st.one_of(
    st.just(("commit", 0)),
    st.tuples(st.just("die"), st.integers(0, 4)),  # after so many steps
    st.just(("hang", 0)),  # with a batch staged
    st.tuples(st.just("wake"), st.integers(0, 4)),  # the one that hangs the longest, for so many steps
)


def test_a_commit_that_is_cut_short_twice_is_completed_whatever_the_places(url: str, tmp_path: Path) -> None:
    """Each batch has a driver that dies after so many steps, another one, and one that lives."""
    with_topic = Pipeline(tmp_path, ("delta", "iceberg", "parquet", "topic"), url)
    places = range(with_topic.steps + 1)
    for batch, (first, second) in enumerate((first, second) for first in places for second in places):
        with_topic.die(with_topic.attempt(batch), first)
        with_topic.die(with_topic.attempt(batch), second)
        with_topic.commit(with_topic.attempt(batch))
    with_topic.check()


@pytest.mark.parametrize("operation", ["put_new", "move"])
def test_a_folder_is_completed_wherever_a_commit_to_it_was_cut_short(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the next driver, or by its next batch."""
    pipeline = Pipeline(tmp_path, ("parquet",))
    real = getattr(LocalFolder, operation)
    for batch in range(14):
        left, lost = [batch // 2], bool(batch % 2)

        def dying(self: LocalFolder, *given: object, left: list[int] = left, lost: bool = lost) -> object:
            if not left[0]:
                raise Died
            left[0] -= 1
            found = real(self, *given)
            if not left[0] and lost:  # what it called for is done, and it never learns that
                raise Died
            return found

        monkeypatch.setattr(LocalFolder, operation, dying)
        pipeline.die(pipeline.attempt(batch), pipeline.steps)
        monkeypatch.setattr(LocalFolder, operation, real)
        monkeypatch.setattr(sink, "_prepared", {})  # the next driver is another process
        pipeline.driver().prepare()
        pipeline.check()
        pipeline.commit(pipeline.attempt(batch))
        pipeline.check()


@settings(max_examples=15)
@given(seed=st.integers(0, 1 << 16), steps=st.lists(STEPS, min_size=2, max_size=10))
def test_tables_and_folders_keep_to_it_in_any_order_of_events(seed: int, steps: list[tuple[str, int]]) -> None:
    _played(("delta", "parquet"), seed, steps)


@settings(max_examples=8)
@given(seed=st.integers(0, 1 << 16), steps=st.lists(STEPS, min_size=2, max_size=8))
def test_iceberg_keeps_to_it_in_any_order_of_events(seed: int, steps: list[tuple[str, int]]) -> None:
    _played(("iceberg",), seed, steps)


def _played(kinds: tuple[str, ...], seed: int, steps: list[tuple[str, int]]) -> None:
    hanging: list[Attempt] = []
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder), kinds, random=Random(seed))
        for what, number in steps:
            if what == "commit":
                pipeline.commit(pipeline.attempt(pipeline.logged + 1))
            elif what == "die":
                pipeline.die(pipeline.attempt(pipeline.logged + 1), number)
            elif what == "hang":
                hanging.append(pipeline.attempt(pipeline.logged + 1))
            elif hanging:
                with suppress(SinkConflict):  # it is told so, or has nothing to do
                    pipeline.die(hanging.pop(0), number)
            pipeline.check()
        pipeline.commit(pipeline.attempt(pipeline.logged + 1))
        pipeline.check()
        assert {sum(ids.values()) > 0 for _, ids in pipeline.found()} == {True}
