"""Property: if a reader's JSON Schema is said to be compatible, it accepts every value that the writer's accepts and
that has only properties which that schema mentions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schema.making import json_schema

NAMES = ("a", "b", "c")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.5]) | st.sampled_from(["", "x", "xyz"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
_leaves = st.one_of(
    st.fixed_dictionaries({"type": st.sampled_from(["null", "boolean", "integer", "number", "string"])}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": st.integers(-2, 1), "maximum": st.integers(1, 3)}),
    st.fixed_dictionaries({"exclusiveMinimum": st.integers(-2, 1), "multipleOf": st.sampled_from([1, 2, 0.5])}),
    st.fixed_dictionaries({"type": st.just("string"), "minLength": st.integers(0, 2), "maxLength": st.integers(1, 3)}),
    st.fixed_dictionaries({"enum": st.lists(values, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"const": values}),
    st.booleans(),
)


def _deeper(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": st.dictionaries(st.sampled_from(NAMES), inner, max_size=2)},
            optional={
                "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
                "additionalProperties": inner,
                "patternProperties": st.dictionaries(st.sampled_from(["a", "^b", "[ac]"]), inner, max_size=2),
            },
        ),
        st.fixed_dictionaries({"type": st.just("array"), "items": inner}, optional={"minItems": st.integers(0, 2)}),
        st.fixed_dictionaries({"prefixItems": several}, optional={"items": inner, "uniqueItems": st.booleans()}),
        st.fixed_dictionaries({"anyOf": several}, optional={"type": st.sampled_from(["integer", "string", "object"])}),
        st.fixed_dictionaries({"allOf": several}),
        st.fixed_dictionaries({"oneOf": several}, optional={"minimum": st.integers(0, 2)}),
        st.fixed_dictionaries({"if": inner, "then": inner}),
        st.fixed_dictionaries({"contains": inner}),
        st.fixed_dictionaries({"not": inner}),
    )


schemas = st.recursive(_leaves, _deeper, max_leaves=5)


@st.composite
def changed(draw: st.DrawFn) -> tuple[Any, Any]:
    """A schema and another one, which is mostly the same with one part replaced."""
    old = draw(schemas)
    new = json.loads(json.dumps(old))
    if not isinstance(new, dict) or draw(st.integers(0, 3)) == 0:
        return old, draw(schemas)
    keyword = draw(st.sampled_from(sorted(new)))
    if keyword in ("items", "not", "additionalProperties"):
        new[keyword] = draw(schemas)
    elif keyword == "properties" and new[keyword]:
        new[keyword][draw(st.sampled_from(NAMES))] = draw(schemas)
    elif draw(st.booleans()):
        del new[keyword]
    return old, new


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(changed(), st.lists(values, min_size=5, max_size=10))
def test_what_is_said_to_be_compatible_is_accepted(pair: tuple[Any, Any], candidates: list[Any]) -> None:
    old, new = (
        json_schema(_closed(each)) if closed else json_schema(each) for each, closed in zip(pair, (1, 0), strict=True)
    )
    if new.breaks_reading(json_schema(pair[0])):
        return
    payloads = [json.dumps(each).encode() for each in candidates]
    wrong = {each.payload for each in (*old.faults(payloads), *json_schema(pair[0]).faults(payloads))}
    written = [each for index, each in enumerate(payloads) if index not in wrong]
    assume(written)
    assert new.faults(written) == [], (pair, written)


def _closed(schema: Any) -> Any:
    """The schema without properties that it does not mention, as one comparing schemas supposes."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value if name in ("enum", "const") else _closed(value) for name, value in schema.items()}
    return found | (
        {"additionalProperties": False} if "properties" in schema and "additionalProperties" not in schema else {}
    )
