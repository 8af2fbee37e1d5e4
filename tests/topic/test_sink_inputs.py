"""Whether a new query reads again what another one has read, by what engines say about the ends of their inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from pydanube.base.limits import SINK_SOURCE_BYTES_MAX
from pydanube.topic.sink_inputs import bounded, reads_again, same


def end(*next: int, began: Sequence[int] | None = None, id: int = 7, topic: str = "/default/in") -> dict[str, Any]:
    found: dict[str, Any] = {"id": id, **{str(number): offset for number, offset in enumerate(next)}}
    return {topic: found if began is None else found | {"began": list(began)}}


def text(*ends: Any) -> str:
    return json.dumps(ends)


@pytest.mark.parametrize(
    ("new", "old", "again"),
    [
        ([end(110, began=[0])], [end(100, began=[0])], True),  # a wiped checkpoint, and more has come since
        ([end(5, began=[0])], [end(100, began=[0])], True),
        ([end(110, began=[99])], [end(100, began=[0])], True),
        ([end(110, began=[100])], [end(100, began=[0])], False),  # from latest: continues after it
        ([end(100, began=[100])], [end(100, began=[0])], False),
        ([end(110, 20, began=[0, 0])], [end(100, began=[0])], True),  # it has a partition more
        ([end(110, 20, began=[100, 0])], [end(100, began=[0])], False),
        ([end(110, began=[0])], [end(100, 20, began=[0, 0])], True),  # one less
        ([end(110, 120, began=[100, 99])], [end(100, 100, began=[0, 0])], True),
        ([end(110, began=[0], id=8)], [end(100, began=[0])], False),  # another topic
        ([end(110, began=[0], topic="/default/renamed")], [end(100, began=[0])], True),  # the id counts
        ([end(110, began=[0])], [end(100)], True),  # the other is of an older version
        ([end(90)], [end(100, began=[0])], True),  # this one is: only ends are known
        ([end(110)], [end(100, began=[0])], False),
        ([end(9, id=1, began=[0]), end(110, began=[0])], [end(100, began=[0])], True),  # one source more
        ([end(110, began=[100])], [end(100, began=[0]), end(120, began=[0])], True),  # it was read twice
        ([end(110, began=[0])], [{"logOffset": 3}], False),
        ([{"logOffset": 0}], [{"logOffset": 0}], True),
        ([{"logOffset": 1}], [{"logOffset": 0}], False),
        ([{"logOffset": 0}], [{"other": 0}], False),
        ([end(110, began=[100]), {"logOffset": 0}], [end(100, began=[0]), {"logOffset": 0}], True),
        (["-"], ["-"], False),  # nothing was read
        ([{}], [{}], False),
        (["-", end(110, began=[100])], ["-", end(100, began=[0])], False),
        (["somewhere"], ["somewhere"], True),
    ],
)
def test_what_was_read_before_is_not_read_again_unnoticed(new: list[Any], old: list[Any], again: bool) -> None:
    assert reads_again(text(*new), text(*old)) is again


@pytest.mark.parametrize(
    "odd", ["", "no json", "[", '{"/t": {"id": "x"}}', "[" * 100_000, '{"/t": {"id": 8, "0": 1, "began": [0, 0]}}']
)
def test_what_cannot_be_told_is_no_repetition(odd: str) -> None:
    assert not reads_again(odd, text(end(100, began=[0])))
    assert not reads_again(text(end(110, began=[0])), odd)


def test_one_that_is_too_long_can_still_be_told_from_another() -> None:
    one, other = (text(end(*range(start, start + 20_000))) for start in (0, 1))
    assert len(bounded(one)) < 100 < SINK_SOURCE_BYTES_MAX
    assert same(bounded(one), bounded(one))
    assert not same(bounded(one), bounded(other))
    assert bounded(text(end(1))) == text(end(1))
