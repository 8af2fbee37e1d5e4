"""Whatever is in a JSON Schema that the library accepts, comparing it ends with an answer or a typed error."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import DanubeError
from schema.making import json_schema

KEYWORDS = [
    *(
        "$ref",
        "type",
        "enum",
        "const",
        "multipleOf",
        "maximum",
        "exclusiveMaximum",
        "minimum",
        "maxLength",
        "minLength",
    ),
    *(
        "pattern",
        "items",
        "prefixItems",
        "additionalItems",
        "maxItems",
        "minItems",
        "uniqueItems",
        "contains",
        "format",
    ),
    *("maxProperties", "minProperties", "required", "properties", "patternProperties", "additionalProperties", "x"),
    *("propertyNames", "dependentRequired", "dependentSchemas", "dependencies", "allOf", "anyOf", "oneOf", "not", "if"),
    *("then", "else", "$anchor", "$id", "unevaluatedProperties", "$dynamicRef"),
]
_REFERENCES = st.sampled_from(["#", "#/x", "#/properties/a", "#/x/0", "#a", "other.json", "other.json#/x", "#/allOf/0"])
_plain = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 3), st.just(0.5), _REFERENCES,
    st.sampled_from(["string", "object", "array", "integer", "^a", "a"]),
)  # fmt: skip
values = st.recursive(
    _plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, *"abc"]), inner, max_size=4)
    ),
    max_leaves=12,
)
schemas = st.dictionaries(st.sampled_from(KEYWORDS), values, max_size=4)


def parsed(value: Any, other: Any) -> Any:
    try:
        return json_schema(value, {"other.json": other})
    except DanubeError:
        return None


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(schemas, schemas, schemas)
def test_comparing_odd_schemas_ends(old: Any, new: Any, other: Any) -> None:
    made = [each for each in (parsed(old, other), parsed(new, other), parsed({"x": new, "$ref": "#/x"}, other)) if each]
    for one in made:
        for another in made:
            with suppress(DanubeError):
                assert isinstance(one.breaks_reading(another), list)
        assert len(one.faults([b"1", b"{}", b"[]", b'{"a": [1]}', b'"a"'])) <= 5
