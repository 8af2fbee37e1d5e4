"""What a reader with one JSON Schema accepts of what was written with another, keyword by keyword."""

from __future__ import annotations

from typing import Any

import pytest

from schema.making import json_schema, said

NODE = {"type": "object", "properties": {"value": {"type": "integer"}, "next": {"$ref": "#"}}}


def obj(properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, **more}


A, N = {"type": "string"}, {"type": "integer"}
ACCEPTED: list[tuple[str, Any, Any]] = [
    ("the same", obj({"a": A}), obj({"a": A})),
    ("anything", True, obj({"a": A})),
    ("nothing was written", {"type": "string"}, False),
    ("a new optional property", obj({"a": A, "b": N}), obj({"a": A})),
    ("a property was removed", obj({}), obj({"a": A})),
    ("a required property becomes optional", obj({"a": A}), obj({"a": A}, required=["a"])),
    ("integers become numbers", obj({"a": {"type": "number"}}), obj({"a": N})),
    ("a type becomes nullable", {"type": ["string", "null"]}, A),
    ("a closed object opens", obj({"a": A}), obj({"a": A}, additionalProperties=False)),
    (
        "a closed object gets a property",
        obj({"a": A, "b": N}, additionalProperties=False),
        obj({"a": A}, additionalProperties=False),
    ),
    (
        "other properties are promoted",
        {"additionalProperties": {"type": "number"}},
        {"type": "object", "additionalProperties": N},
    ),
    ("a wider range", {"minimum": 0, "maximum": 10}, {"type": "integer", "minimum": 1, "maximum": 9}),
    ("an excluded bound", {"exclusiveMinimum": 0}, {"type": "number", "minimum": 0.5}),
    ("a coarser step", {"multipleOf": 2}, {"type": "integer", "multipleOf": 4}),
    ("whole numbers", {"multipleOf": 1}, N),
    ("longer strings", {"maxLength": 20, "minLength": 1}, {"type": "string", "maxLength": 10, "minLength": 2}),
    ("more values", {"enum": ["a", "b", "c"]}, {"enum": ["a", "b"]}),
    ("a listed value fits", {"type": "string", "maxLength": 3}, {"const": "abc"}),
    ("listed numbers fit", {"type": "integer", "minimum": 2}, {"enum": [2, 3]}),
    ("another alternative", {"anyOf": [A, N]}, {"anyOf": [A]}),
    ("any of the alternatives", {"type": ["string", "integer"]}, {"oneOf": [A, N]}),
    ("a wider alternative", {"anyOf": [A, {"type": "number"}]}, N),
    ("all parts at once", {"allOf": [{"minimum": 0}, {"maximum": 9}]}, {"type": "integer", "minimum": 1, "maximum": 2}),
    (
        "parts of the writer count together",
        {"minimum": 1, "maximum": 2},
        {"allOf": [N, {"minimum": 1}, {"maximum": 2}]},
    ),
    ("an alternative beside a range", {"minimum": 0}, {"minimum": 1, "anyOf": [N, {"type": "number"}]}),
    (
        "more items",
        {"type": "array", "items": {"type": "number"}, "maxItems": 9},
        {"type": "array", "items": N, "maxItems": 3},
    ),
    ("a tuple", {"prefixItems": [A, {"type": "number"}]}, {"type": "array", "prefixItems": [A, N]}),
    ("the same pattern", {"pattern": "^a"}, {"type": "string", "pattern": "^a"}),
    ("the same condition", {"if": A, "then": {"minLength": 1}}, {"if": A, "then": {"minLength": 1}}),
    ("references", obj({"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"type": "number"}}}), obj({"a": N})),
    ("a schema inside itself", NODE, NODE),
    ("less is refused", {"not": {"type": "string", "minLength": 5}}, {"not": A}),
    ("dependencies that always hold", {"dependentRequired": {"a": ["b"]}}, obj({"a": A, "b": A}, required=["b"])),
    (
        "a pattern of names",
        {"patternProperties": {"^x-": {"type": "number"}}},
        {"type": "object", "patternProperties": {"^x-": N}},
    ),
]


@pytest.mark.parametrize(("reader", "writer"), [each[1:] for each in ACCEPTED], ids=[each[0] for each in ACCEPTED])
def test_what_is_accepted_has_no_breaks(reader: Any, writer: Any) -> None:
    assert said(json_schema(reader).breaks_reading(json_schema(writer))) == []


OPEN = "the reader accepts no properties that it does not list, and others may have been written"
REFUSED: list[tuple[Any, Any, list[str]]] = [
    (obj({"a": A}, required=["a"]), obj({"a": A}), ["a: the property is required, and was not always written"]),
    (obj({"a": N}), obj({"a": A}), ["a: the reader does not accept the type string"]),
    (obj({"a": N}), obj({"a": {"type": "number"}}), ["a: the reader does not accept the type number"]),
    (obj({"a": A}, additionalProperties=False), obj({"a": A}), ["{}: " + OPEN]),
    (
        obj({}, additionalProperties=False),
        obj({"a": A}, additionalProperties=False),
        ["a: the reader does not accept the property"],
    ),
    (obj({"a": A, "b": N}), obj({"a": A}, additionalProperties=A), ["b: the reader does not accept the type string"]),
    (
        {"additionalProperties": N},
        {"type": "object", "additionalProperties": A},
        ["{}: the reader does not accept the type string"],
    ),
    (
        obj({"lines": {"type": "array", "items": obj({"price": {"type": "number", "minimum": 1}})}}),
        obj({"lines": {"type": "array", "items": obj({"price": {"type": "number", "minimum": 0}})}}),
        ["lines[].price: the reader accepts nothing below 1"],
    ),
    ({"maximum": 5}, {"type": "integer", "maximum": 6}, ["the reader accepts nothing above 5"]),
    ({"exclusiveMaximum": 5}, {"type": "integer", "maximum": 5}, ["the reader accepts nothing 5 or above"]),
    ({"minimum": 5}, N, ["the reader accepts nothing below 5"]),
    ({"multipleOf": 4}, {"type": "integer", "multipleOf": 2}, ["the reader accepts only multiples of 4"]),
    ({"minLength": 2}, A, ["the reader accepts no fewer than 2 characters"]),
    ({"maxLength": 2}, {"const": "abc"}, ["the reader accepts no more than 2 characters"]),
    ({"enum": ["a"]}, {"enum": ["a", "b"]}, ["the reader's list of values lacks 'b'"]),
    ({"enum": ["a"]}, A, ["the reader accepts only listed values, and others may have been written"]),
    ({"const": True}, {"const": 1}, ["the reader's list of values lacks 1"]),
    ({"pattern": "^a"}, {"type": "string", "pattern": "^b"}, ["the reader accepts only strings that match ^a"]),
    ({"anyOf": [A, N]}, {"type": ["string", "null"]}, ["what was written fits none of the reader's alternatives"]),
    (A, {"anyOf": [A, N]}, ["the reader does not accept the type integer"]),
    ({"minItems": 1}, {"type": "array"}, ["the reader accepts no fewer than 1 items"]),
    ({"uniqueItems": True}, {"type": "array"}, ["the reader accepts only items that differ"]),
    (
        {"prefixItems": [A, N]},
        {"type": "array", "prefixItems": [A, A]},
        ["[1]: the reader does not accept the type string"],
    ),
    ({"not": A}, {"type": ["string", "null"]}, ["the reader refuses with `not` what may have been written"]),
    (
        {"if": A, "then": {"minLength": 1}},
        A,
        [
            "if differs, so what was written may not be accepted",
            "then differs, so what was written may not be accepted",
        ],
    ),
    (False, N, ["the reader accepts nothing here"]),
    ({"propertyNames": {"pattern": "^a"}}, {"type": "object"}, ["the reader does not accept all names of properties"]),
    (
        {"dependentRequired": {"a": ["b"]}},
        obj({"a": A, "b": A}),
        ["a: dependentRequired differs, so what was written may not be accepted"],
    ),
    (obj({"value": A, "next": {"$ref": "#"}}), NODE, ["value: the reader does not accept the type integer"]),
    (
        {"patternProperties": {"^x-": N}},
        {"type": "object", "patternProperties": {"^x-": A}},
        ["{/^x-/}: the reader does not accept the type string"],
    ),
    ({"patternProperties": {"^x-": N}}, obj({"x-a": A}), ["x-a: the reader does not accept the type string"]),
]


@pytest.mark.parametrize(("reader", "writer", "expected"), REFUSED)
def test_each_place_that_breaks_is_named(reader: Any, writer: Any, expected: list[str]) -> None:
    assert said(json_schema(reader).breaks_reading(json_schema(writer))) == expected


def test_draft_7_ignores_what_is_beside_a_reference() -> None:
    draft = {"$schema": "http://json-schema.org/draft-07/schema#", "definitions": {"a": A}}
    reader = json_schema({**draft, "$ref": "#/definitions/a", "maxLength": 1})
    assert reader.breaks_reading(json_schema({**draft, "$ref": "#/definitions/a"})) == []


def test_references_to_other_documents_are_followed() -> None:
    order = {"type": "object", "properties": {"buyer": {"$ref": "person.json"}}}
    old = json_schema(order, {"person.json": obj({"age": N})})
    new = json_schema(order, {"person.json": obj({"age": A})})
    assert said(new.breaks_reading(old)) == ["buyer.age: the reader does not accept the type integer"]
    assert said(old.breaks_reading(old)) == []


KIND_A = obj({"kind": {"const": "a"}, "x": N}, required=["kind"])
KIND_B = obj({"kind": {"const": "b"}, "y": N}, required=["kind"])
WIDER_A = obj({"kind": {"const": "a"}, "x": {"type": "number"}}, required=["kind"])


def test_of_one_of_exactly_one_must_fit() -> None:
    def breaks(reader: Any, writer: Any) -> list[str]:
        return said(json_schema(reader).breaks_reading(json_schema(writer)))

    assert breaks({"oneOf": [WIDER_A, KIND_B]}, {"oneOf": [KIND_A, KIND_B]}) == []  # told apart by a property
    assert breaks({"oneOf": [A, N]}, {"oneOf": [A]}) == []  # told apart by their types
    overlap = {"oneOf": [N, {"type": "number"}]}
    assert breaks(overlap, overlap) == []  # a number that was written fits one of them, then as now
    assert breaks(overlap, N) == ["what was written may fit more than one of the reader's alternatives"]


def test_a_keyword_that_stays_the_same_may_refer_to_something_else() -> None:
    def refers(to: Any, keyword: str = "if") -> Any:
        return {keyword: {"$ref": "#/$defs/a"}, "then": {"minLength": 1}, "$defs": {"a": to}}

    assert said(json_schema(refers(A)).breaks_reading(json_schema(refers(A)))) == []
    assert said(json_schema(refers(A)).breaks_reading(json_schema(refers(N)))) == [
        "if differs, so what was written may not be accepted"
    ]


def test_lists_of_objects_and_overlapping_patterns_are_compared_by_their_parts() -> None:
    def breaks(reader: Any, writer: Any) -> list[str]:
        return said(json_schema(reader).breaks_reading(json_schema(writer)))

    listed = {"enum": [{"a": 1}, {"a": 2}, [1], "x"]}
    assert breaks({"properties": {"a": N}}, listed) == []
    assert breaks({"properties": {"a": {"maximum": 1}}, "maxItems": 0}, listed) == [
        "a: the reader accepts nothing above 1",
        "the reader accepts no more than 0 items",
    ]
    patterns = {"type": "object", "patternProperties": {"^x": A}}
    assert breaks({"patternProperties": {"^x-": N}}, patterns) == [
        "{/^x-/}: the reader does not accept the type string"
    ]
    both = {"properties": {"x": {}}, "patternProperties": {"^x": N}}
    assert breaks(both, obj({"x": A})) == ["x: the reader does not accept the type string"]
    assert breaks(obj({"a": A}, unevaluatedProperties=False), obj({"a": A}))[0].startswith("what the reader leaves")
    assert breaks({"not": {"type": "object"}}, {"not": obj({"a": A})}) != []
