"""Offsets have one spelling, since Spark compares them as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import OptionInvalid
from pydanube.spark.offsets import Offsets, TopicOffsets, from_json, to_json

OFFSETS = st.dictionaries(
    st.sampled_from(["/default/a", "/default/b", "/shop/a"]),
    st.builds(
        TopicOffsets,
        st.integers(0, 1 << 40),
        st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=12).map(tuple),
    ),
)


@given(OFFSETS)
def test_what_was_written_is_read_again(offsets: Offsets) -> None:
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@given(OFFSETS)
def test_equal_offsets_are_equal_text(offsets: Offsets) -> None:
    backwards = dict(reversed(offsets.items()))
    assert json.dumps(to_json(offsets)) == json.dumps(to_json(backwards))
    assert json.dumps(to_json(from_json(to_json(backwards)))) == json.dumps(to_json(offsets))


def test_partitions_are_in_the_order_of_their_numbers() -> None:
    text = json.dumps(to_json({"/default/a": TopicOffsets(3, tuple(range(11)))}))
    assert text.startswith('{"/default/a": {"id": 3, "0": 0, "1": 1, "2": 2')
    assert text.endswith('"9": 9, "10": 10}}')


@pytest.mark.parametrize(
    "found",
    [
        [],
        {"/default/a": 1},
        {"/default/a": {"0": 1}},
        {"/default/a": {"id": 1, "1": 1}},
        {"/default/a": {"id": 1, "0": -1}},
        {"/default/a": {"id": 1, "0": "1"}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: object) -> None:
    with pytest.raises(OptionInvalid, match="checkpoint"):
        from_json(found)
