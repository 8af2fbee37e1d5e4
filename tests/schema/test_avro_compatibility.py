"""Cases from the section "Schema Resolution" of the Avro specification, and what is said about each of them."""

from __future__ import annotations

from typing import Any

import pytest

from schema.making import avro, field, record, said

COLOUR = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"]}
FIXED = {"type": "fixed", "name": "Digest", "size": 16}
PAIRS = [
    (a, b)
    for a in ("int", "long", "float", "double", "string", "bytes", "boolean", "null")
    for b in ("int", "long", "float", "double", "string", "bytes", "boolean", "null")
]
PROMOTED = {
    ("long", "int"), ("float", "int"), ("double", "int"), ("float", "long"), ("double", "long"), ("double", "float"),
    ("bytes", "string"), ("string", "bytes"),
}  # fmt: skip


@pytest.mark.parametrize(("reader", "writer"), PAIRS)
def test_primitive_types_are_promoted_as_the_specification_says(reader: str, writer: str) -> None:
    found = avro(reader).breaks_reading(avro(writer))
    assert (found == []) == (reader == writer or (reader, writer) in PROMOTED)


def tree(leaf: Any) -> dict[str, Any]:
    """A record that contains itself."""
    return record(field("value", leaf), field("left", ["null", "Tree"]), name="Tree")


READABLE: list[tuple[str, Any, Any]] = [
    ("a new field has a default", record(field("a", "int"), field("b", "int", default=1)), record(field("a", "int"))),
    ("a field was removed", record(), record(field("a", "int"))),
    (
        "fields change their order",
        record(field("a", "int"), field("b", "int")),
        record(field("b", "int"), field("a", "int")),
    ),
    ("a field was renamed with an alias", record(field("b", "int", aliases=["a"])), record(field("a", "int"))),
    ("a record was renamed with an alias", {**record(name="New"), "aliases": ["Order"]}, record()),
    ("a record moved to another namespace", {**record(), "namespace": "shop"}, record()),
    ("an enum has more symbols", {**COLOUR, "symbols": ["RED", "GREEN", "BLUE"]}, COLOUR),
    ("an enum lacks a symbol, but has a default", {**COLOUR, "symbols": ["RED"], "default": "RED"}, COLOUR),
    ("a field becomes nullable", record(field("a", ["null", "int"])), record(field("a", "int"))),
    ("a union has another branch", ["null", "int", "string"], ["null", "int"]),
    ("a union reads its only branch", "long", ["int"]),
    ("a branch is promoted", ["null", "double"], "int"),
    ("items are promoted", {"type": "array", "items": "long"}, {"type": "array", "items": "int"}),
    ("values are promoted", {"type": "map", "values": "long"}, {"type": "map", "values": "int"}),
    ("fixed types are the same", FIXED, FIXED),
    ("a record inside itself is promoted", tree("long"), tree("int")),
    ("only the reader knows the logical type", {"type": "long", "logicalType": "timestamp-millis"}, "long"),
]


@pytest.mark.parametrize(("reader", "writer"), [each[1:] for each in READABLE], ids=[each[0] for each in READABLE])
def test_a_reader_that_resolves_has_no_breaks(reader: Any, writer: Any) -> None:
    assert avro(reader).breaks_reading(avro(writer)) == []


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


UNREADABLE: list[tuple[Any, Any, list[str]]] = [
    (
        record(field("a", "int"), field("b", "int")),
        record(field("a", "string")),
        ["a: the reader expects int, and string was written", "b: the field has no default, and was not written"],
    ),
    (record(name="New"), record(), ["the reader expects the record New, and Order was written"]),
    (
        {**COLOUR, "symbols": ["RED"]},
        {**COLOUR, "symbols": ["RED", "GREEN", "BLUE"]},
        [
            "the reader's enum has no default and lacks the symbol GREEN",
            "the reader's enum has no default and lacks the symbol BLUE",
        ],
    ),
    ({**COLOUR, "name": "Hue"}, COLOUR, ["the reader expects the enum Hue, and Colour was written"]),
    ({**FIXED, "size": 8}, FIXED, ["the reader expects 8 bytes, and 16 were written"]),
    ({**FIXED, "name": "Other"}, FIXED, ["the reader expects the fixed type Other, and Digest was written"]),
    ("int", ["null", "int"], ["the reader expects int, and null was written"]),
    (["null", "string"], ["null", "int"], ["the reader's union of null, string cannot hold int"]),
    (
        record(field("lines", {"type": "array", "items": record(field("price", "int"), name="Line")})),
        record(field("lines", {"type": "array", "items": record(field("price", "double"), name="Line")})),
        ["lines[].price: the reader expects int, and double was written"],
    ),
    (
        record(field("counts", {"type": "map", "values": ["null", record(field("n", "int"), name="Count")]})),
        record(field("counts", {"type": "map", "values": ["null", record(field("n", "long"), name="Count")]})),
        ["counts{}.n: the reader expects int, and long was written"],
    ),
    (tree("int"), tree("long"), ["value: the reader expects int, and long was written"]),
    (decimal(9, 2), decimal(9, 3), ["the reader expects decimal(9, 2), and decimal(9, 3) was written"]),
    ("int", {"type": "array", "items": "int"}, ["the reader expects int, and array was written"]),
]


@pytest.mark.parametrize(("reader", "writer", "expected"), UNREADABLE)
def test_each_place_that_breaks_is_named(reader: Any, writer: Any, expected: list[str]) -> None:
    assert said(avro(reader).breaks_reading(avro(writer))) == expected


def test_what_fails_deep_inside_a_record_that_contains_itself_counts_everywhere() -> None:
    """The branch of the union looks right while it is being compared, and is not."""
    reader = record(field("next", ["null", "Order"]), field("price", "int"))
    writer = record(field("next", ["null", "Order"]), field("price", "string"))
    found = said(avro(reader).breaks_reading(avro(writer)))
    assert "price: the reader expects int, and string was written" in found
