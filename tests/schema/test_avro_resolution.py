"""Property: a reader is said to be compatible exactly if the Avro project's own rules of resolution say so, and then
everything that was written is read with it. (The project's own reader in Python does not promote the items of arrays,
so values are read with fastavro.)"""

from __future__ import annotations

import json
from io import BytesIO
from typing import Any

import avro.schema
import fastavro
import pytest
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from hypothesis import given, settings
from hypothesis import strategies as st

from schema.making import avro as our

NAMES = ("Red", "Green", "Blue")
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_VALUES: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False, allow_infinity=False),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "bytes": st.text("abc", max_size=3).map(str.encode),
    "string": st.text("abc", max_size=3),
}
_DEFAULTS: dict[str, Any] = {
    "null": None, "boolean": True, "int": 1, "long": 2, "float": 0.5, "double": 0.25, "bytes": "a", "string": "b",
}  # fmt: skip


@st.composite
def pairs(draw: st.DrawFn, depth: int = 2) -> tuple[Any, Any]:
    """A schema and one that someone might make of it. No name is used in two places."""
    number = [0]

    def name(kind: str) -> str:
        number[0] += 1
        return f"{kind}{number[0]}"

    def both(depth: int) -> tuple[Any, Any]:
        kind = draw(st.sampled_from(["primitive"] * 4 + ["array", "map", "enum", "union", "record", "record", "fixed"]))
        if kind == "primitive" or depth == 0:
            one = draw(st.sampled_from(PRIMITIVES))
            return one, draw(st.sampled_from([one, one, *PRIMITIVES]))
        if kind in ("array", "map"):
            one, other = both(depth - 1)
            step = "items" if kind == "array" else "values"
            return {"type": kind, step: one}, {"type": kind, step: other}
        if kind == "fixed":
            called = name("Fixed")
            return tuple({"type": "fixed", "name": called, "size": draw(st.integers(1, 2))} for _ in range(2))  # type: ignore[return-value]
        if kind == "enum":
            called = name("Enum")
            sets = [draw(st.lists(st.sampled_from(NAMES), min_size=1, unique=True)) for _ in range(2)]
            return tuple({"type": "enum", "name": called, "symbols": each} for each in sets)  # type: ignore[return-value]
        if kind == "union":
            sides = [draw(st.lists(st.sampled_from(PRIMITIVES), min_size=1, max_size=3, unique=True)) for _ in range(2)]
            inner = both(0) if draw(st.booleans()) else None
            return (sides[0], sides[1]) if inner is None else (sides[0], inner[1])
        called, fields = name("Record"), ([], [])  # type: tuple[str, tuple[list[Any], list[Any]]]
        for each in ("a", "b", "c"):
            one, other = both(depth - 1)
            for side, schema in zip(fields, (one, other), strict=True):
                if draw(st.integers(0, 3)):
                    made = {"name": each, "type": schema}
                    if isinstance(schema, str) and draw(st.booleans()):
                        made["default"] = _DEFAULTS[schema]
                    side.append(made)
        return tuple({"type": "record", "name": called, "fields": each} for each in fields)  # type: ignore[return-value]

    return both(depth)


def value_of(draw: st.DrawFn, schema: Any) -> Any:
    if isinstance(schema, str):
        return draw(_VALUES[schema])
    if isinstance(schema, list):
        return value_of(draw, draw(st.sampled_from(schema)))
    kind = schema["type"]
    if kind == "array":
        return [value_of(draw, schema["items"]) for _ in range(draw(st.integers(0, 2)))]
    if kind == "map":
        return {key: value_of(draw, schema["values"]) for key in draw(st.sets(st.sampled_from("xy")))}
    if kind == "fixed":
        return b"z" * schema["size"]
    if kind == "enum":
        return draw(st.sampled_from(schema["symbols"]))
    return {each["name"]: value_of(draw, each["type"]) for each in schema["fields"]}


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(st.data())
def test_what_is_said_to_be_compatible_is_read(data: st.DataObject) -> None:
    writer, reader = data.draw(pairs())
    breaks = our(reader).breaks_reading(our(writer))
    theirs = [avro.schema.parse(json.dumps(each)) for each in (reader, writer)]
    verdict = ReaderWriterCompatibilityChecker().get_compatibility(*theirs).compatibility
    assert (breaks == []) == (verdict is SchemaCompatibilityType.compatible), breaks
    if breaks:
        return
    value = data.draw(st.composite(lambda draw: value_of(draw, writer))())
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(writer), value)
    payload = written.getvalue()
    assert our(writer).faults([payload]) == []
    fastavro.schemaless_reader(BytesIO(payload), fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_payloads_that_are_cut_or_go_on_are_refused(data: st.DataObject) -> None:
    schema, _ = data.draw(pairs())
    value = data.draw(st.composite(lambda draw: value_of(draw, schema))())
    written = BytesIO()
    fastavro.schemaless_writer(written, fastavro.parse_schema(schema), value)
    payload = written.getvalue()
    parsed = our(schema)
    assert parsed.faults([payload]) == []
    assert [each.payload for each in parsed.faults([payload + b"\0", payload])] == [0]
    for end in range(len(payload)):
        assert parsed.faults([payload[:end]]) != []
