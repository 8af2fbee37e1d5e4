"""Definitions are what anyone may send: they are refused with a sentence, quickly, and never fetch or run anything."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import DanubeError, SchemaInvalid, SchemaTooComplex
from pydanube.base.limits import SCHEMA_BYTES_MAX, SCHEMA_PAYLOAD_DEPTH_MAX, SCHEMA_STEPS_MAX
from pydanube.schema.compatibility import incompatibilities
from pydanube.schema.definition import Reference, Source, canonical, check_references, fingerprint
from pydanube.schema.kinds import CompatibilityMode, SchemaType, type_named
from pydanube.schema.parsing import parse
from pydanube.schema.protobuf.schema import ProtobufSchema
from pydanube.schema.texts import read_json, text_of
from schema.making import avro, field, json_schema, record


def laughs(levels: int) -> dict[str, Any]:
    """Each schema applies the next one twice to the same value."""
    parts: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}, {"$ref": f"#/$defs/a{n + 1}"}]} for n in range(levels)
    }
    return {"$ref": "#/$defs/a0", "$defs": {**parts, f"a{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (laughs(40), "schemas apply to one value"),
        ({"allOf": [{"$ref": "#"}]}, "refers to itself for the same value"),
        ({"$ref": "http://example.com/schema.json"}, "Retrieval is disabled"),
        ({"$ref": "file:///etc/passwd"}, "Retrieval is disabled"),
        ({"$ref": "#/$defs/missing"}, "does not exist"),
        ({"$id": "http://[", "$ref": "other"}, "Invalid URI"),
        ({"$ref": "#/prefixItems/" + "9" * 5_000, "prefixItems": [{}]}, "array index"),
        ({"pattern": "(?=a)b"}, "regex"),
        ({"pattern": "(a{1000}){1000}"}, "regex"),
        ({"pattern": "("}, "regex"),
        ({"type": "strin"}, "type: "),
        ({"properties": {"a": {"minLength": -1}}}, "properties.a.minLength: "),
        ({"$schema": "http://json-schema.org/draft-04/schema#"}, "$schema must be"),
        ([], "is an object, true or false"),
        ("text", "is an object, true or false"),
    ],
    ids=str,
)
def test_hostile_json_schemas_are_refused(definition: Any, reason: str) -> None:
    with pytest.raises((SchemaInvalid, SchemaTooComplex)) as refused:
        json_schema(definition)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        ("Order", "unknown type 'Order'"),
        ({"type": "record", "name": "A"}, "fields is missing"),
        (record(field("a", "int"), field("a", "int")), "the field a is given twice"),
        (record(field("a", "int", default="x")), "a: the default 'x' is not of the type int"),
        (record(field("a", ["null", "int"], default=1)), "not of the first type of the union, null"),
        (record(field("a", "int", default=1 << 31)), "not of the type int"),
        (record(field("1a", "int")), "is not a valid name of a field"),
        (record(name="a b"), "is not a valid name of a type"),
        (record(name="int"), "is the name of a primitive type"),
        (["null", "null"], "the union has null twice"),
        (["null", ["int"]], "cannot directly contain another union"),
        ([], "needs at least one type"),
        ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "a symbol is given twice"),
        ({"type": "enum", "name": "E", "symbols": []}, "symbols must be a list"),
        ({"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}, "is not one of the symbols"),
        ({"type": "fixed", "name": "F", "size": -1}, "size must be a whole number"),
        ({"type": "array"}, "items is missing"),
        (record(field("a", record(field("b", {"type": "map"}), name="B"))), "a.b: values is missing"),
        (record(field("a", record(name="Order"))), "the type Order is defined twice"),
        (7, "a type must be a name, a list or an object, got 7"),
        (record(field("a", "int", aliases="b")), "aliases must be a list of names"),
        (record(field("a", "int", order="up")), "order must be one of"),
    ],
    ids=str,
)
def test_wrong_avro_schemas_are_refused(definition: Any, reason: str) -> None:
    with pytest.raises(SchemaInvalid) as refused:
        avro(definition)
    assert reason in str(refused.value)


def test_depth_and_size_are_bounded() -> None:
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    with pytest.raises(SchemaTooComplex, match="nested more than"):
        avro(deep)
    with pytest.raises(SchemaTooComplex, match="nested more than"):
        read_json("[" * 20_000 + "]" * 20_000)
    with pytest.raises(SchemaTooComplex, match="the maximum is"):
        text_of(b" " * (SCHEMA_BYTES_MAX + 1))
    nested = 'syntax = "proto3";' + "message A {" * 200 + "}" * 200
    with pytest.raises(SchemaTooComplex, match="nested more than"):
        parse(Source(SchemaType.PROTOBUF, nested))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "a": 2}', "gives a name twice"),
        ("{", "is not valid JSON"),
        ("NaN", "is not valid JSON: NaN"),
        ("1e999", "too large"),
        ("1" * 100, "100 digits"),
        ('"\\ud800"', "half a surrogate pair"),
    ],
)
def test_what_is_not_plain_json_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SchemaInvalid, match=reason):
        read_json(text)


@pytest.mark.parametrize("number", ["0x" + "f" * 20_000, "9" * 20_000])
def test_numbers_of_protobuf_are_bounded(number: str) -> None:
    with pytest.raises(SchemaInvalid, match="is not a valid number"):
        parse(Source(SchemaType.PROTOBUF, f"message A {{ optional int32 a = {number}; }}"))


def test_half_a_surrogate_pair_in_a_protobuf_string_is_left_out() -> None:
    found = parse(Source(SchemaType.PROTOBUF, r'message A { optional string a = 1 [default = "b\ud800c"]; }'))
    assert isinstance(found, ProtobufSchema)
    assert found.file.message_type[0].field[0].default_value == "bc"


def test_text_is_utf_8_without_control_characters() -> None:
    with pytest.raises(SchemaInvalid, match="byte 1 of the definition is not UTF-8"):
        text_of(b"a\xff")
    with pytest.raises(SchemaInvalid, match="character 1 of the definition is a control character"):
        text_of(b"a\0")


def test_a_comparison_that_takes_too_long_ends() -> None:
    records = [record(field("x", "null"), name="R0")]
    records += [record(field("x", [f"R{m}" for m in range(n)] + ["null"]), name=f"R{n}") for n in range(1, 60)]
    old, new = avro(records), avro([{**each, "aliases": [f"R{n}" for n in range(60)]} for each in records])
    with pytest.raises(SchemaTooComplex, match="steps"):
        new.breaks_reading(old)


def test_a_break_in_a_type_that_is_used_again_and_again_is_not_listed_without_end() -> None:
    """Each level uses the one below twice, so one changed type breaks 2^40 places."""

    def records(leaf: str) -> Any:
        levels = [record(field("x", leaf), name="R0")]
        levels += [record(field("a", f"R{n - 1}"), field("b", f"R{n - 1}"), name=f"R{n}") for n in range(1, 41)]
        return avro(record(*(field(f"l{n}", each) for n, each in enumerate(levels))))

    def objects(leaf: str) -> Any:
        levels: dict[str, Any] = {
            f"r{n}": {"properties": {name: {"$ref": f"#/$defs/r{n - 1}"} for name in "ab"}} for n in range(1, 41)
        }
        return json_schema({"$ref": "#/$defs/r40", "$defs": {"r0": {"type": leaf}, **levels}})

    def messages(leaf: str) -> Any:
        levels = "".join(f"message M{n} {{ M{n - 1} a = 1; M{n - 1} b = 2; }}" for n in range(1, 41))
        text = f'syntax = "proto3"; message W {{ M40 m = 1; }} message M0 {{ {leaf} x = 1; }} {levels}'
        return parse(Source(SchemaType.PROTOBUF, text))

    pairs = [(records("long"), records("string")), (objects("integer"), objects("string"))]
    for new, old in [*pairs, (messages("int32"), messages("string"))]:
        with suppress(SchemaTooComplex):
            assert 0 < len(new.breaks_reading(old)) <= SCHEMA_STEPS_MAX


def test_long_lists_are_compared_in_little_time() -> None:
    """Each of these took minutes when every item was compared with every other one."""
    values = list(range(5_000))
    assert json_schema({"enum": values}).breaks_reading(json_schema({"enum": values[::-1]})) == []
    both = json_schema({"allOf": [{"enum": values}, {"enum": values[::-1]}]})
    assert json_schema({"enum": values}).breaks_reading(both) == []
    names = {f"p{n}": {} for n in range(900)}
    patterns = json_schema({"properties": names, "patternProperties": {f"a{n}*": {} for n in range(900)}})
    with pytest.raises(SchemaTooComplex, match="steps"):
        patterns.breaks_reading(patterns)
    itself = json_schema({"properties": {f"p{n}": {"$ref": "#"} for n in range(1_200)}})
    assert len(list(itself.root.referred(set()))) == 1  # each is validated, which took a second
    reserved = ",".join(f"{100_000 + 2 * n}" for n in range(1_500))
    fields = "".join(f"int32 f{n} = {n};" for n in range(1, 900))
    held = parse(Source(SchemaType.PROTOBUF, f'syntax = "proto3"; message W {{ reserved {reserved}; {fields} }}'))
    assert held.breaks_replacing(held) == []


def test_types_too_deep_inside_each_other_are_refused_and_not_a_failure() -> None:
    levels: dict[str, Any] = {"r0": {"type": "string"}}
    for n in range(1, 200):
        inner = {"properties": {"a": {"$ref": f"#/$defs/r{n - 1}"}}}
        levels[f"r{n}"] = {**inner, "allOf": [inner, inner]}
    schema = json_schema({"$ref": "#/$defs/r199", "$defs": levels})
    with pytest.raises(SchemaTooComplex, match="too deep to be compared"):
        incompatibilities(CompatibilityMode.BACKWARD, schema, [(1, schema)])


def test_payloads_cannot_exhaust_the_stack_or_the_memory() -> None:
    listed = avro(record(field("next", ["null", "Order"])))
    assert listed.faults([b"\x02" * SCHEMA_PAYLOAD_DEPTH_MAX + b"\x00"]) == []
    [fault] = listed.faults([b"\x02" * 1_000_000])
    assert "a record is inside itself more than" in fault.reason
    nothing = avro({"type": "array", "items": record(field("a", "null"), field("b", "null"))})
    assert nothing.faults([b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"]) == []  # 2^62 items without a byte
    [fault] = avro({"type": "array", "items": "int"}).faults([b"\xfe\xff\xff\xff\x0f\x00"])
    assert "items are announced" in fault.reason
    twice: Any = "null"
    for n in range(20):
        twice = record(field("a", twice), field("b", twice if isinstance(twice, str) else twice["name"]), name=f"R{n}")
    assert avro(twice).faults([b""]) == []


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(SchemaType)),
    st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: raw.decode("latin-1")),
)
def test_whatever_the_text_it_parses_or_is_refused(kind: SchemaType, text: str) -> None:
    try:
        parse(Source(kind, text))
        fingerprint(kind, text)
    except DanubeError:
        pass


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40))
def test_whatever_the_payload_it_fits_or_has_a_fault(payload: bytes) -> None:
    for schema in SCHEMAS:
        assert len(schema.faults([payload, payload])) in (0, 2)


SCHEMAS = [
    avro(record(field("a", "string"), field("b", ["null", "Order", {"type": "map", "values": "long"}]))),
    json_schema({"type": "object", "properties": {"a": {"items": {"$ref": "#"}}}}),
    parse(Source(SchemaType.PROTOBUF, 'syntax = "proto3"; message A { A a = 1; string b = 2; map<string, A> c = 3; }')),
    parse(Source(SchemaType.STRING, "")),
    parse(Source(SchemaType.NUMBER, "")),
]


def test_blanks_and_the_order_of_names_do_not_make_another_definition() -> None:
    one, other = '{"type": "object",\n "title": "é"}', '{"title":"é","type":"object"}'
    assert canonical(SchemaType.JSON_SCHEMA, one) == other
    assert fingerprint(SchemaType.JSON_SCHEMA, one) == fingerprint(SchemaType.JSON_SCHEMA, other)
    assert fingerprint(SchemaType.JSON_SCHEMA, one).startswith("sha256:")
    assert fingerprint(SchemaType.BYTES, "anything") == "bytes"
    referring = [Reference("a", "subject", 1)]
    assert fingerprint(SchemaType.AVRO, '"int"') != fingerprint(SchemaType.AVRO, '"int"', referring)


def test_references_are_bounded_and_have_names_of_their_own() -> None:
    with pytest.raises(SchemaInvalid, match="cannot have references"):
        check_references(SchemaType.STRING, [Reference("a", "s", 1)])
    with pytest.raises(SchemaInvalid, match="the same name"):
        check_references(SchemaType.AVRO, [Reference("a", "s", 1), Reference("a", "t", 1)])
    with pytest.raises(SchemaTooComplex, match="the maximum is"):
        check_references(SchemaType.AVRO, [Reference(f"a{n}", "s", 1) for n in range(100)])
    line = Source(SchemaType.AVRO, json.dumps(record(name="Line")))
    other = Source(SchemaType.AVRO, json.dumps(record(field("a", "int"), name="Line")))
    inner = Source(SchemaType.AVRO, json.dumps(record(field("l", "Line"), name="Box")), {"Line": other})
    with pytest.raises(SchemaInvalid, match="two different definitions"):
        parse(Source(SchemaType.AVRO, '"Line"', {"Line": line, "Box": inner}))
    outer = Source(SchemaType.JSON_SCHEMA, '{"type": "integer"}', {"x": Source(SchemaType.JSON_SCHEMA, "{}")})
    with pytest.raises(SchemaInvalid, match="two different definitions"):
        parse(Source(SchemaType.JSON_SCHEMA, "true", {"x": outer}))
    with pytest.raises(SchemaInvalid, match="has the type avro"):
        parse(Source(SchemaType.JSON_SCHEMA, "{}", {"Line": line}))
    parse(Source(SchemaType.AVRO, json.dumps(record(field("b", "Box"))), {"Box": inner}))


@pytest.mark.parametrize(("text", "kind"), [("JSON", "json_schema"), ("Proto", "protobuf"), ("INT64", "number")])
def test_types_have_other_names(text: str, kind: str) -> None:
    assert type_named(text) == kind


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(SchemaInvalid, match="unknown schema type 'xml'"):
        type_named("xml")
