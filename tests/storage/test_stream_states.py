"""The states of a stream: what may follow what, and nothing else."""

from __future__ import annotations

from itertools import product
from typing import Any, cast
from unittest.mock import Mock

import pytest

from pydanube.base.errors import DanubeError
from pydanube.storage.stream.state import NEXT, Beginning, Closed, Idle, Open, Opening, TakenOver
from pydanube.storage.stream.stream import Stream

WITHOUT_WRITER = (Opening, Idle, TakenOver, Closed)


def state(kind: type[Any]) -> Any:
    if kind in WITHOUT_WRITER:
        return kind(DanubeError("why"))
    writer = cast(Any, Mock(failure=None, confirmed=-1))
    return Open(writer, 0.0) if kind is Open else Beginning(writer)


def stream_in(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> Stream:
    monkeypatch.setattr(Stream, "confirmed", -1)
    stream = Stream.__new__(Stream)
    stream._state = state(kind)
    return stream


@pytest.mark.parametrize(("before", "after"), list(product(NEXT, NEXT)), ids=lambda kind: kind.__name__)
def test_only_the_table_says_what_may_follow(
    before: type[Any], after: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, entered = stream_in(before, monkeypatch), state(after)
    if after in NEXT[before]:
        stream._enter(entered)
        assert stream._state is entered
    else:
        with pytest.raises(AssertionError, match="may not become"):
            stream._enter(entered)


@pytest.mark.parametrize("before", [Open, Beginning])
def test_a_writer_that_the_next_state_does_not_need_is_abandoned(
    before: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_in(before, monkeypatch)
    writer = cast(Any, stream._state).writer
    lost = state(TakenOver)
    stream._enter(lost)
    writer.abandon.assert_called_once_with(lost.why)


def test_nothing_leads_back_from_the_end() -> None:
    assert NEXT[Closed] == (Closed,)
    assert set(NEXT[TakenOver]) == {TakenOver, Closed}
    assert all({TakenOver, Closed} <= set(following) for kind, following in NEXT.items() if kind is not Closed)
