"""Arrow batches of the columns that are wanted, with the types that Spark expects."""

from __future__ import annotations

from typing import Any

import pytest

from pydanube.base.errors import ColumnInvalid
from pydanube.spark.columns import ALL, Columns, check_schema, ddl
from pydanube.wire.batch import Batch, Codec, build

pa = pytest.importorskip("pyarrow")

FULL: dict[str, Any] = {
    "keys": [b"a", None, b"c", b""],
    "publish_times": [1, 2, 3, 4],
    "event_times": [10, None, 30, 40],
    "attributes": [{"x": "1"}, None, {}, {"y": "2", "z": "3"}],
    "schema_ids": [5, 5, None, 6],
    "schema_versions": [1, 1, None, 2],
}


def made(codec: Codec = Codec.NONE, **columns: Any) -> Batch:
    payloads = [b"zero", None, b"", b"three"]
    return build(payloads, publish_time=1, producer_id=9, first_sequence=50, codec=codec, **columns).stamped(100, 1, 77)


def rows(names: tuple[str, ...], batch: Batch, first: int = 100, last: int = 103) -> list[dict[str, Any]]:
    found = Columns(names).batch(batch, "/default/t", 3, first, last)
    found.validate(full=True)
    times = [name for name, kind in ALL.items() if kind == "timestamp" and name in names]
    for name in times:
        at = names.index(name)
        found = found.set_column(at, name, found.column(at).cast(pa.int64()))
    return list(found.to_pylist())


@pytest.mark.parametrize("codec", list(Codec))
def test_every_column_of_a_full_batch(codec: Codec) -> None:
    found = rows(tuple(ALL), made(codec, **FULL))
    assert found[0] == {
        "topic": "/default/t",
        "partition": 3,
        "offset": 100,
        "timestamp": 77,
        "event_time": 10,
        "key": b"a",
        "value": b"zero",
        "attributes": [("x", "1")],
        "producer": 9,
        "sequence": 50,
        "schema_id": 5,
        "schema_version": 1,
        "publish_time": 1,
    }
    assert [each["offset"] for each in found] == [100, 101, 102, 103]
    assert [each["sequence"] for each in found] == [50, 51, 52, 53]
    assert [each["value"] for each in found] == [b"zero", None, b"", b"three"]
    assert [each["key"] for each in found] == [b"a", None, b"c", b""]
    assert [each["publish_time"] for each in found] == [1, 2, 3, 4]
    assert [each["schema_id"] for each in found] == [5, 5, None, 6]


def test_what_a_batch_does_not_have_is_null() -> None:
    found = rows(tuple(ALL), made())
    assert [each["key"] for each in found] == [None] * 4
    assert [each["event_time"] for each in found] == [None] * 4
    assert [each["attributes"] for each in found] == [None] * 4
    assert [each["schema_id"] for each in found] == [None] * 4
    assert [each["publish_time"] for each in found] == [1] * 4


def test_what_all_messages_have_in_common_is_repeated() -> None:
    found = rows(
        ("schema_id", "schema_version", "event_time"), made(schema_ids=8, schema_versions=2, event_times=[6] * 4)
    )
    assert found == [{"schema_id": 8, "schema_version": 2, "event_time": 6}] * 4


def test_a_part_of_a_batch_has_the_rows_of_its_offsets() -> None:
    found = rows(("offset", "sequence", "key", "value", "attributes"), made(**FULL), 102, 103)
    assert found == [
        {"offset": 102, "sequence": 52, "key": b"c", "value": b"", "attributes": []},
        {"offset": 103, "sequence": 53, "key": b"", "value": b"three", "attributes": [("y", "2"), ("z", "3")]},
    ]


def test_one_maker_serves_batch_after_batch() -> None:
    columns = Columns(("topic", "partition", "offset", "timestamp"))
    first = columns.batch(made(), "/default/t", 0, 100, 103).to_pylist()
    large = build([b""] * 10_000, publish_time=1).stamped(500, 1, 88)
    second = columns.batch(large, "/default/u", 1, 500, 10_499).to_pylist()
    assert [each["offset"] for each in first] == [100, 101, 102, 103]
    assert {(each["topic"], each["partition"]) for each in second} == {("/default/u", 1)}
    assert [each["offset"] for each in second] == list(range(500, 10_500))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("ofset", "bigint")], "no column 'ofset'; did you mean offset?"),
        ([("payload", "binary")], "no column 'payload'"),
        ([("offset", "int")], "the column offset must be BIGINT, not INT"),
        ([("offset", "bigint"), ("offset", "bigint")], "given twice"),
        ([], "at least one column"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ColumnInvalid) as raised:
        check_schema(fields)
    assert said in str(raised.value)


def test_the_schema_without_a_choice() -> None:
    assert ddl(attributes=False, meta=False).count(",") == 6
    assert "`attributes` map<string,string>" in ddl(attributes=True, meta=False)
    assert "`publish_time` timestamp" in ddl(attributes=False, meta=True)


def test_spark_has_the_same_types() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import (
        BinaryType,
        IntegerType,
        LongType,
        MapType,
        StringType,
        StructType,
        TimestampType,
    )

    kinds = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "timestamp": TimestampType(),
        "binary": BinaryType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    schema = StructType()
    for name, kind in ALL.items():
        schema.add(name, kinds[kind])
        assert kinds[kind].simpleString() == kind
    assert to_arrow_schema(schema, timezone="UTC").equals(Columns(tuple(ALL)).schema)
