"""Avro payloads as typed columns: types, both encodings, and payloads that are wrong or hostile."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import OptionInvalid
from pydanube.spark.decode_avro import AvroDecoder
from pydanube.spark.decode_types import spelled

pa = pytest.importorskip("pyarrow")
fastavro = pytest.importorskip("fastavro")

AT = datetime(2026, 1, 31, 12, 0, 0, 123_000, tzinfo=UTC)
TYPES: list[tuple[Any, str, Any, Any]] = [  # Avro, Spark, written, read
    ("boolean", "boolean", True, True),
    ("int", "int", -5, -5),
    ("long", "bigint", 2**62, 2**62),
    ("float", "float", 0.5, 0.5),
    ("double", "double", 0.1, 0.1),
    ("string", "string", "ä", "ä"),
    ("bytes", "binary", b"\0\1", b"\0\1"),
    ({"type": "fixed", "name": "F", "size": 2}, "binary", b"ab", b"ab"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "string", "B", "B"),
    ({"type": "long", "logicalType": "timestamp-millis"}, "timestamp", AT, AT),
    ({"type": "long", "logicalType": "timestamp-micros"}, "timestamp", AT, AT),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, "timestamp_ntz", AT.replace(tzinfo=None), None),
    ({"type": "int", "logicalType": "date"}, "date", date(2026, 1, 31), date(2026, 1, 31)),
    ({"type": "int", "logicalType": "time-millis"}, "int", 5, 5),
    ({"type": "string", "logicalType": "uuid"}, "string", "no uuid", "no uuid"),
    (
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "decimal(6,2)",
        Decimal("-12.34"),
        Decimal("-12.34"),
    ),
    (["null", "string"], "string", None, None),
    (["string", "null"], "string", "x", "x"),
    (["int", "null", "long"], "bigint", 2**40, 2**40),
    ({"type": "array", "items": ["null", "int"]}, "array<int>", [1, None], [1, None]),
    ({"type": "map", "values": "double"}, "map<string,double>", {"a": 1.5}, [("a", 1.5)]),
    (
        ["null", {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}],
        "struct<x:int>",
        {"x": 1},
        {"x": 1},
    ),
]


def record(*fields: Any, **more: Any) -> dict[str, Any]:
    listed = [{"name": f"f{at}", "type": each} for at, each in enumerate(fields)]
    return {"type": "record", "name": "Order", "fields": listed, **more}


def written(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def decoded(schema: Any, *payloads: bytes | None) -> tuple[list[Any], list[str | None]]:
    decoder = AvroDecoder(json.dumps(schema))
    found = decoder.decode(pa.array(payloads, pa.binary()))
    found.values.validate(full=True)
    assert found.values.type.equals(decoder.kind)
    errors = [None] * len(payloads) if found.errors is None else found.errors.to_pylist()
    return found.values.to_pylist(), errors


@pytest.mark.parametrize(("avro", "spark", "value", "read"), TYPES)
def test_every_type(avro: Any, spark: str, value: Any, read: Any) -> None:
    schema = record(avro)
    assert spelled(AvroDecoder(json.dumps(schema)).kind, quoted=False) == f"struct<f0:{spark}>"
    [found], errors = decoded(schema, written(fastavro.parse_schema(_unchecked(schema)), {"f0": value}))
    assert errors == [None]
    assert found["f0"] == (value if spark == "timestamp_ntz" else read)


def _unchecked(schema: Any) -> Any:
    return json.loads(json.dumps(schema).replace('"uuid"', '"none"').replace('"time-millis"', '"none"'))


def test_no_payload_is_null_and_an_empty_one_is_an_error() -> None:
    schema = record("long", "string")
    good = written(schema, {"f0": 1, "f1": "a"})
    values, errors = decoded(schema, good, None, b"", good)
    assert values == [{"f0": 1, "f1": "a"}, None, None, {"f0": 1, "f1": "a"}]
    assert [error is None for error in errors] == [True, True, False, True]
    assert "ends too early" in str(errors[2])


def test_the_single_object_encoding_of_the_same_schema() -> None:
    schema = record("long", namespace="shop", doc="left out of the fingerprint")
    canonical = '{"name":"shop.Order","type":"record","fields":[{"name":"f0","type":"long"}]}'
    head = b"\xc3\x01" + rabin(canonical.encode()).to_bytes(8, "little")
    values, errors = decoded(schema, head + written(schema, {"f0": 5}), b"\xc3\x01" + b"x" * 8 + b"\x0a")
    assert values == [{"f0": 5}, None]
    assert "it has another schema" in str(errors[1])


def rabin(data: bytes) -> int:
    """CRC-64-AVRO as the specification has it."""
    empty = 0xC15D213AA4D7A795
    found = empty
    for byte in data:
        found ^= byte
        for _ in range(8):
            found = (found >> 1) ^ (empty if found & 1 else 0)
    return found


def test_a_bare_datum_may_begin_like_the_other_encoding() -> None:
    schema = record("long", "int")
    payload = b"\xc3\x01\x04"
    values, errors = decoded(schema, payload)
    assert (values, errors) == ([{"f0": -98, "f1": 2}], [None])


@pytest.mark.parametrize(
    ("avro", "payload", "said"),
    [
        ("long", b"\x02\x02", "1 extra bytes"),
        ("long", b"\xff" * 20, "not a datum"),
        ("int", b"\xfe\xff\xff\xff\xff\x01", "not a value of its type"),
        ("string", b"\x04a", "not a datum"),
        ("string", b"\x02\xff", "not a datum"),
        ("string", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "not a datum"),
        ("bytes", b"\x01", "not a datum"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x04", "not a datum"),
        (["null", "int"], b"\x08", "not a datum"),
        ({"type": "array", "items": "boolean"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\x01", "not a datum"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 2}, b"\x06\x7f\x7f\x7f", "not a value of its type"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            "not a value",
        ),
    ],
)
def test_a_row_that_does_not_fit_has_a_reason_and_costs_no_other(avro: Any, payload: bytes, said: str) -> None:
    schema = record(["null", avro] if not isinstance(avro, list) else avro)
    good = written(schema, {"f0": None})
    before = b"" if isinstance(avro, list) else b"\x02"
    values, errors = decoded(schema, good, before + payload, good)
    assert values == [{"f0": None}, None, {"f0": None}]
    assert errors[0] is errors[2] is None
    assert said in str(errors[1])
    assert len(str(errors[1])) <= 200


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "is not a valid Avro schema"),
        ("[]", "must be an Avro record"),
        ('"string"', "must be an Avro record"),
        ('{"type": "record", "name": "R"}', "is not a valid Avro schema"),
        (record("nothing"), "is not a valid Avro schema"),
        (record(), "must have 1 to 10000 fields"),
        (record(["int", "string"]), "value.f0 is a union of several types"),
        (record("null"), "which no Spark column supports"),
        (record({"type": "map", "values": "null"}), "which no Spark column supports"),
        (record(["null", "Order"]), "Order contains itself"),
        (record({"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}), "take no bytes"),
        (record({"type": "bytes", "logicalType": "decimal", "precision": 39}), "1 to 38 digits"),
        ({"type": "record", "name": "R", "fields": [{"name": n, "type": "int"} for n in "aA"]}, "'A' twice"),
        ("[" * 100_000, "is not a valid Avro schema"),
    ],
)
def test_a_schema_that_cannot_be_used_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(OptionInvalid) as raised:
        AvroDecoder(schema if isinstance(schema, str) else json.dumps(schema))
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400


def test_what_could_have_too_many_items_is_not_looked_into() -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "boolean"}]}
    many = b"\x80\x80\x80\x06" + b"\x01" * (6 * 1024 * 1024) + b"\0"
    values, errors = decoded(record({"type": "array", "items": inner}), b"\x02\x01\0", many)
    assert values == [{"f0": [{"x": True}]}, None]
    assert "it may have more than 4194304 items" in str(errors[1])
    [plain], errors = decoded(record({"type": "array", "items": "boolean"}), many)
    assert (len(plain["f0"]), errors) == (6 * 1024 * 1024, [None])


def test_a_type_may_be_used_twice_by_its_name() -> None:
    schema = record(
        {"type": "record", "name": "P", "namespace": "geo", "fields": [{"name": "x", "type": "int"}]}, "geo.P"
    )
    assert decoded(schema, b"\x02\x04") == ([{"f0": {"x": 1}, "f1": {"x": 2}}], [None])


@settings(max_examples=200, deadline=None)
@given(payload=st.binary(max_size=40))
def test_any_bytes_are_a_row_or_an_error(payload: bytes) -> None:
    schema = record(*(avro for avro, *_ in TYPES))
    values, errors = decoded(schema, payload)
    assert (values[0] is None) == (errors[0] is not None)


ORDER = record("long", "string", ["null", "double"], {"type": "array", "items": "int"})
orders = st.builds(
    lambda *values: written(ORDER, {f"f{at}": value for at, value in enumerate(values)}),
    st.integers(-(2**63), 2**63 - 1),
    st.text(max_size=3),
    st.none() | st.floats(allow_nan=False),
    st.lists(st.integers(-100, 100), max_size=3),
)


@settings(max_examples=150, deadline=None)
@given(payloads=st.lists(st.one_of(orders, orders, st.none(), st.binary(max_size=8)), max_size=20))
def test_neighbours_make_no_difference(payloads: list[bytes | None]) -> None:
    values, errors = decoded(ORDER, *payloads)
    for payload, value, error in zip(payloads, values, errors, strict=True):
        assert decoded(ORDER, payload) == ([value], [error])


def test_payloads_that_make_sense_only_together_are_refused_each() -> None:
    """The first is two, the others are one, and the lengths add up."""
    values, errors = decoded(record("string"), b"\x02a\x02b", b"\x04", b"cd")
    assert values == [None] * 3
    assert all(errors)
