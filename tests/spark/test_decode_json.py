"""JSON payloads as typed columns: what fits, what does not and why, and that both ways of decoding agree."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.spark import decode_json
from pydanube.spark.decode_json import SMALL_ROWS, JsonDecoder
from pydanube.spark.decode_json_rows import DEPTH_MAX

pa = pytest.importorskip("pyarrow")

ORDER = "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, at TIMESTAMP"
WIDE = """small TINYINT, id BIGINT, ratio FLOAT, amount DOUBLE, price DECIMAL(6,2), large DECIMAL(38,4), name STRING,
    data BINARY, paid BOOLEAN, day DATE, at TIMESTAMP, tags ARRAY<STRING>, times ARRAY<TIMESTAMP>,
    place STRUCT<x: DOUBLE, days: ARRAY<STRUCT<day: DATE>>>"""


def decoded(schema: str, *payloads: bytes | None) -> tuple[list[Any], list[str | None]]:
    decoder = JsonDecoder(schema)
    found = decoder.decode(pa.array(payloads, pa.binary()))
    found.values.validate(full=True)
    assert found.values.type.equals(decoder.kind)
    errors = [None] * len(payloads) if found.errors is None else found.errors.to_pylist()
    return found.values.to_pylist(), errors


def field(kind: str, text: str) -> Any:
    """A field of this type, or why it does not fit."""
    [value], [error] = decoded(f"f {kind}", b'{"f":%s}' % text.encode())
    return value["f"] if error is None else error


def test_an_order() -> None:
    payload = (
        b'{"id": 7, "customer": "\xc3\xa4", "amount": 1.5, "paid": true, "at": "2026-01-31T12:00:00Z", "more": [1]}'
    )
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert decoded(ORDER, payload) == ([{"id": 7, "customer": "ä", "amount": 1.5, "paid": True, "at": at}], [None])


def test_what_is_missing_or_null_is_null_and_so_is_no_payload() -> None:
    nothing = dict.fromkeys(("id", "customer", "amount", "paid", "at"))
    assert decoded(ORDER, b"{}", b'{"id": null}', None) == ([nothing, nothing, None], [None] * 3)
    assert decoded(ORDER) == ([], [])
    assert decoded(ORDER, None, None) == ([None, None], [None, None])


@pytest.mark.parametrize(
    "payload", [b' {"id":1}', b'{"id":1}\n', b'\t{\n  "id":\n 1\r\n}\r\n', b'{"\\u0069d":1}', b'{"x":{"id":5},"id":1}']
)
def test_an_object_may_be_written_in_many_ways(payload: bytes) -> None:
    assert decoded("id BIGINT", payload, payload) == ([{"id": 1}] * 2, [None] * 2)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"", "the payload is empty"),
        (b" \n", "the payload is empty"),
        (b"{", "not JSON: Expecting property name"),
        (b"}{", "not JSON"),
        (b'{"id":1}{"id":2}', "not JSON: Extra data"),
        (b'{"id":1},', "not JSON: Extra data"),
        (b'{"id":1,}', "not JSON"),
        (b'{"id":01}', "not JSON"),
        (b"{'id':1}", "not JSON"),
        (b'{"name":"a\nb"}', "not JSON: Invalid control character"),
        (b'{"name":"\xff"}', "not UTF-8 at byte 9"),
        (b'{"x":"\xff"}', "not UTF-8 at byte 6"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"\xff\xfe{\0}\0", "not UTF-8 at byte 0"),
        (b"[]", "expected an object, got an array"),
        (b"null", "expected an object, got null"),
        (b"12", "expected an object, got 12"),
        (b'"{}"', "expected an object, got the string '{}'"),
        (b'{"id":1,"id":1}', "field id: is given twice"),
        (b'{"id":"1"}', "field id: expected a whole number, got the string '1'"),
        (b'{"id":1.5}', "field id: expected a whole number, got 1.5"),
        (b'{"id":1e3}', "field id: expected a whole number, got 1e3"),
        (b'{"id":9223372036854775808}', "field id: 9223372036854775808 does not fit into 64 bits"),
        (b'{"id":' + b"9" * 5000 + b"}", "field id: expected a whole number, got 9999"),
        (b'{"id":true}', "field id: expected a whole number, got true"),
        (b'{"id":{}}', "field id: expected a whole number, got an object"),
        (b'{"small":128}', "field small: 128 does not fit into 8 bits"),
        (b'{"name":5}', "field name: expected a string, got 5"),
        (b'{"name":"\\ud800"}', "field name: half a surrogate pair"),
        (b'{"data":"a"}', "field data: expected base64"),
        (b'{"paid":1}', "field paid: expected true or false, got 1"),
        (b'{"amount":"NaN"}', "field amount: expected a number, got the string 'NaN'"),
        (b'{"price":1.234}', "field price: 1.234 does not fit into DECIMAL(6,2)"),
        (b'{"price":10000}', "field price: 10000 does not fit into DECIMAL(6,2)"),
        (b'{"price":NaN}', "field price: expected a number, got NaN"),
        (b'{"price":1e99999}', "does not fit into DECIMAL(6,2)"),
        (b'{"large":' + b"9" * 36 + b"}", "does not fit into DECIMAL(38,4)"),
        (b'{"day":"2026-02-29"}', "field day: expected a date like 2026-01-31"),
        (b'{"day":"0000-01-01"}', "field day: expected a date like"),
        (b'{"day":20000}', "field day: expected a date like"),
        (b'{"at":1700000000}', "field at: expected a time like 2026-01-31T12:00:00Z, got 1700000000"),
        (b'{"at":"0000-01-01"}', "field at: expected a time like"),
        (b'{"at":"0001-01-01T00:00+01:00"}', "field at: expected a time in the years 1 to 9999"),
        (b'{"at":"2026-01-01T24:00:00"}', "field at: expected a time like"),
        (b'{"at":"2026-01-01T10:00:00+24:00"}', "field at: expected a time zone like"),
        (b'{"tags":"a"}', "field tags: expected an array"),
        (b'{"tags":["a",1]}', "field tags: expected a string, got 1"),
        (b'{"place":[]}', "field place: expected an object, got an array"),
        (b'{"place":{"days":[{"day":"x"}]}}', "field place.days.day: expected a date like"),
        (b'{"place":{"x":1,"x":1}}', "field place.x: is given twice"),
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", f"nested more than {DEPTH_MAX} levels deep"),
        (b'{"x":' + b'{"a":' * 100_000, f"nested more than {DEPTH_MAX} levels deep"),
        (b'{"x":"' + b'\\"[' * 300_000, "not JSON: Unterminated string"),
    ],
)
def test_a_row_that_does_not_fit_has_a_reason_and_costs_no_other(payload: bytes, said: str) -> None:
    values, errors = decoded(WIDE, b'{"id":1}', payload, b'{"id":2}')
    assert [each and each["id"] for each in values] == [1, None, 2]
    assert errors[0] is errors[2] is None
    assert said in str(errors[1])
    assert len(str(errors[1])) <= 200


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("TINYINT", "-128", -128),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("BIGINT", "-0", 0),
        ("DOUBLE", "1", 1.0),
        ("DOUBLE", "1e999", float("inf")),
        ("DOUBLE", "-Infinity", float("-inf")),
        ("DOUBLE", "9" * 5000, float("inf")),
        ("FLOAT", "16777217", 16777216.0),
        ("FLOAT", "1e300", float("inf")),
        ("DECIMAL(6,2)", "1.50000", Decimal("1.50")),
        ("DECIMAL(6,2)", '"-9999.99"', Decimal("-9999.99")),
        ("DECIMAL(6,2)", "12e2", Decimal("1200.00")),
        ("DECIMAL(6,2)", "0e-30", Decimal("0.00")),
        ("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
        ("STRING", '"\\ud83d\\ude00\\u0000"', "😀\0"),
        ("BINARY", '"AAE="', b"\0\1"),
        ("DATE", '"2024-02-29"', date(2024, 2, 29)),
        ("TIMESTAMP", '"2026-01-31"', datetime(2026, 1, 31, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-01-31 12:00"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-01-31T12:00:00.5+01:30"', datetime(2026, 1, 31, 10, 30, 0, 500_000, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-01-31T12:00:00.123456789Z"', datetime(2026, 1, 31, 12, 0, 0, 123_456, tzinfo=UTC)),
        ("TIMESTAMP", '"9999-12-31T23:59:59.999999"', datetime.max.replace(tzinfo=UTC)),
        ("ARRAY<BIGINT>", "[1, null, 2]", [1, None, 2]),
        ("ARRAY<ARRAY<DATE>>", '[[], null, ["2026-01-31"]]', [[], None, [date(2026, 1, 31)]]),
        ("STRUCT<a: DATE, b: STRUCT<c: INT>>", '{"b": {}}', {"a": None, "b": {"c": None}}),
        ("MAP<STRING, DATE>", '{"a": "2026-01-31", "b": null}', [("a", date(2026, 1, 31)), ("b", None)]),
        ("MAP<STRING, STRING>", '{"a": 1}', "field f: expected a string, got 1"),
        ("MAP<STRING, STRING>", '{"a": "1", "a": "1"}', "field f: the key 'a' is given twice"),
        ("MAP<STRING, STRING>", "[]", "field f: expected an object, got an array"),
    ],
)
def test_values(kind: str, text: str, value: Any) -> None:
    assert field(kind, text) == value


def test_times_with_and_without_a_zone_may_be_mixed() -> None:
    values, errors = decoded("at TIMESTAMP", b'{"at":"2026-01-31T12:00Z"}', b'{"at":"2026-01-31T12:00"}')
    assert values[0] == values[1]
    assert errors == [None, None]


def test_payloads_that_make_sense_only_together_are_refused_each() -> None:
    """As many objects as payloads, for a parser that does not care where one ends."""
    values, errors = decoded("a STRING", b'{"a":"1"}{"a":"2"}', b'{"a":"}', b'{","b":"x"}')
    assert values == [None] * 3
    assert all(errors)
    values, errors = decoded("a STRING", b'{"a":"1"}{"a":"2"}', b'{"a":', b'{"x":1}}')
    assert values == [None] * 3


def test_many_rows_keep_their_order_with_bad_ones_between() -> None:
    count = 5_000
    payloads: list[bytes | None] = [b'{"id":%d}' % number for number in range(count)]
    payloads[0], payloads[777], payloads[778], payloads[2048], payloads[4999] = b"x", b'{"id":"x"}', None, b"", b"{"
    values, errors = decoded("id BIGINT", *payloads)
    bad = {0, 777, 2048, 4999}
    assert {at for at, error in enumerate(errors) if error is not None} == bad
    assert [each and each["id"] for each in values] == [None if at in bad | {778} else at for at in range(count)]


def test_one_bad_row_costs_only_those_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    slow: list[int] = []
    plain = decode_json.JsonRows.decode

    def counted(self: Any, values: Any) -> Any:
        slow.append(len(values))
        return plain(self, values)

    monkeypatch.setattr(decode_json.JsonRows, "decode", counted)
    payloads = [b'{"id":%d}' % number for number in range(10_000)]
    decoded("id BIGINT", *payloads)
    assert slow == []
    payloads[5_000] = b'{"id":"x"}'
    decoded("id BIGINT", *payloads)
    assert len(slow) == 1
    assert slow[0] <= SMALL_ROWS


def test_a_large_payload_is_a_piece_of_its_own() -> None:
    large = json.dumps({"name": "x" * 9_000_000}).encode()
    values, errors = decoded("name STRING", large, b'{"name":"a"}', large)
    assert [len(each["name"]) for each in values] == [9_000_000, 1, 9_000_000]
    assert errors == [None] * 3


# -- both ways agree -------------------------------------------------------------------------------------------------

texts = st.one_of(
    st.text(max_size=5),
    st.sampled_from(
        ["AAE=", "2026-01-31", "2026-01-31T12:00:00Z", "1.5", "+1.5", ".5", "5.", "1_0", "NaN", "", "x\\y"]
    ),
    st.from_regex(
        r"[0-9]{4}-[01][0-9]-[0-3][0-9]([T ][0-2][0-9](:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,9})?)?)?)?"
        r"(Z|[+-][0-2][0-9](:?[0-6][0-9])?)?",
        fullmatch=True,
    ),
)
numbers = st.one_of(
    st.integers().map(str),
    st.integers(-200, 200).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(-(10**5), 10**5, places=3).map(str),
    st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(
        ["NaN", "Infinity", "-Infinity", "Inf", "-Inf", "1e308", "10e308", "1e309", "0e999", "-0.0", "9" * 400]
    ),
)
names = [*(part.name for part in JsonDecoder(WIDE).kind), "x", "days", "other", "i\\u0064"]


def written(text: str) -> str:
    return json.dumps(text, ensure_ascii=len(text) % 2 == 0)


leaves = st.one_of(numbers, texts.map(written), st.sampled_from(["null", "true", "false", '"\\ud800"', '"\\n"', "nul"]))
jsons = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda each: f"[{', '.join(each)}]"),
        st.lists(st.tuples(st.sampled_from(names), inner), max_size=4).map(
            lambda each: "{" + ",".join(f'"{name}":{value}' for name, value in each) + "}"
        ),
    ),
    max_leaves=8,
)
fitting = {
    "small": st.integers(-130, 130).map(str),
    "id": numbers,
    "ratio": numbers,
    "amount": numbers,
    "price": st.one_of(numbers, texts.map(written)),
    "large": st.one_of(numbers, texts.map(written)),
    "name": texts.map(written),
    "data": texts.map(written),
    "paid": st.sampled_from(["true", "false"]),
    "day": texts.map(written),
    "at": texts.map(written),
    "times": st.lists(texts.map(written), max_size=2).map(lambda each: f"[{','.join(each)}]"),
    "other": jsons,
}
likely = st.lists(st.sampled_from(sorted(fitting)), max_size=3, unique=True).flatmap(
    lambda chosen: st.tuples(*(fitting[name] for name in chosen)).map(
        lambda values: "{" + ",".join(f'"{name}": {value}' for name, value in zip(chosen, values, strict=True)) + "}"
    )
)
payloads_of_all_kinds = st.one_of(
    likely.map(str.encode),
    jsons.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.tuples(likely, st.sampled_from(["\n", " ", "{}", ",", "\0", "}"])).map(lambda each: "".join(each).encode()),
    st.binary(max_size=6),
    st.none(),
)
WAYS = JsonDecoder(WIDE)


@settings(max_examples=400, deadline=None)
@given(payload=payloads_of_all_kinds.filter(lambda each: each is not None))
def test_what_arrow_takes_is_taken_one_by_one_with_the_same_value(payload: bytes) -> None:
    values, shaped = decode_json._shaped(pa.array([payload], pa.binary()))
    quick = WAYS._fast(values) if shaped.all() else None
    if quick is None:
        return
    found = WAYS._rows.decode(values)
    assert found.errors is None
    assert same(quick, found.values)


@settings(max_examples=100, deadline=None)
@given(payloads=st.lists(payloads_of_all_kinds, max_size=30))
def test_neighbours_make_no_difference(payloads: list[bytes | None]) -> None:
    together = WAYS.decode(pa.array(payloads, pa.binary()))
    for at, payload in enumerate(payloads):
        alone = WAYS.decode(pa.array([payload], pa.binary()))
        assert same(together.values.slice(at, 1), alone.values)
        reason = None if alone.errors is None else alone.errors[0].as_py()
        assert reason == (None if together.errors is None else together.errors[at].as_py())


def same(one: Any, other: Any) -> bool:
    """NaN is the same as NaN, 0.0 as -0.0."""
    return str(one.to_pylist()).replace("-0.0", "0.0") == str(other.to_pylist()).replace("-0.0", "0.0")
