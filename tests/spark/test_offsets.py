"""Offsets have one spelling, since Spark compares them as text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import OptionInvalid
from pydanube.spark.offsets import (
    EARLIEST_MARK,
    OTHERS,
    Offsets,
    TopicOffsets,
    as_it_began,
    begun,
    from_json,
    going_on,
    parse_given_offsets,
    to_json,
)

PAIRS = st.lists(st.tuples(*[st.integers(0, (1 << 62) - 1)] * 2), min_size=1, max_size=12)
TOPICS = st.tuples(st.integers(0, 1 << 40), PAIRS, st.booleans()).map(
    lambda each: TopicOffsets(
        each[0], tuple(next for next, _ in each[1]), tuple(began for _, began in each[1]) if each[2] else None
    )
)
OFFSETS = st.dictionaries(st.sampled_from(["/default/a", "/default/b", "/shop/a"]), TOPICS)


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
        {"/default/a": {"id": 1, "0": 1, "began": 1}},
        {"/default/a": {"id": 1, "0": 1, "began": [1, 2]}},
        {"/default/a": {"id": 1, "0": 1, "began": [-1]}},
    ],
)
def test_a_checkpoint_of_something_else_is_refused(found: object) -> None:
    with pytest.raises(OptionInvalid, match="checkpoint"):
        from_json(found)


# -- where a query began -----------------------------------------------------------------------------------------------


def test_where_a_query_began_stays_and_what_is_new_begins_at_its_first() -> None:
    start = begun({"a": TopicOffsets(1, (10, 20))})
    assert to_json(start) == {"a": {"id": 1, "0": 10, "1": 20, "began": [10, 20]}}
    end = {"a": TopicOffsets(1, (15, 25, 7)), "b": TopicOffsets(2, (9,))}
    first = going_on(start, end, {"a": (0, 0, 5), "b": (3,)})
    assert first == {"a": TopicOffsets(1, (15, 25, 7), (10, 20, 5)), "b": TopicOffsets(2, (9,), (3,))}
    assert going_on(first, end, {"a": (12, 12, 12), "b": (9,)}) == first, (
        "offsets that were deleted since change nothing"
    )


def test_a_checkpoint_that_does_not_know_where_it_began_goes_on_without() -> None:
    start = from_json({"a": {"id": 1, "0": 10}})
    end = going_on(start, {"a": TopicOffsets(1, (15, 3))}, {"a": (0, 0)})
    assert to_json(end) == {"a": {"id": 1, "0": 15, "1": 3}}


def test_a_first_batch_that_is_repeated_starts_where_it_did() -> None:
    start = begun({"a": TopicOffsets(1, (10,)), "b": TopicOffsets(2, (0,))})
    end = going_on(start, {"a": TopicOffsets(1, (15, 4))}, {"a": (0, 0)})
    assert as_it_began(start, end) == start
    asked_again = begun({"a": TopicOffsets(1, (40, 40)), "b": TopicOffsets(2, (9,))})
    assert as_it_began(asked_again, end)["a"].next == (10, 0)
    assert as_it_began(end, end) == end
    replaced = begun({"a": TopicOffsets(3, (0,))})
    assert as_it_began(replaced, end)["a"].id == 1, "the topic was made again: that is for others to find out"


def test_a_star_is_for_all_that_is_not_named() -> None:
    wishes = parse_given_offsets('{"a": {"0": 15}, "*": -2}', "startingOffsets", str)
    assert (wishes["a"].next, wishes[OTHERS].others) == ({0: 15}, EARLIEST_MARK)
    for wrong in ("0", "-3", "true", '"latest"', "{}"):
        with pytest.raises(OptionInvalid, match=r"\* must be -1 \(latest\) or -2"):
            parse_given_offsets(f'{{"*": {wrong}}}', "startingOffsets", str)
    with pytest.raises(OptionInvalid):
        from_json({"*": -2})


def test_an_offset_of_a_checkpoint_may_be_given_as_an_option() -> None:
    wishes = parse_given_offsets('{"a": {"id": 1, "0": 15, "began": [10]}}', "startingOffsets", str)
    assert wishes["a"].next == {0: 15}
    with pytest.raises(OptionInvalid, match="began"):
        parse_given_offsets('{"a": {"0": 15, "began": "x"}}', "startingOffsets", str)
