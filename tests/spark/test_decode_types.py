"""DDL of payloads: every type that there is, and errors that say where it is wrong."""

from __future__ import annotations

import pytest

from pydanube.base.errors import OptionInvalid
from pydanube.spark.decode_types import DEPTH_MAX, parse_ddl, spelled

pa = pytest.importorskip("pyarrow")

EVERYTHING = """
    text STRING, data binary, flag Boolean, a TINYINT, b SMALLINT, c INT, d BIGINT, e FLOAT, f DOUBLE, g DECIMAL(12, 2),
    h DECIMAL, day DATE, at TIMESTAMP, tags ARRAY<STRING>,
    place STRUCT<x: DOUBLE, `y z`: DOUBLE, in: ARRAY<STRUCT<n INT>>>,
    counts MAP<STRING, ARRAY<BIGINT>>
"""


def test_every_type_is_what_spark_expects_of_arrow() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_type

    place = types.StructType().add("x", types.DoubleType()).add("y z", types.DoubleType())
    place.add("in", types.ArrayType(types.StructType().add("n", types.IntegerType())))
    expected = {
        "text": types.StringType(),
        "data": types.BinaryType(),
        "flag": types.BooleanType(),
        "a": types.ByteType(),
        "b": types.ShortType(),
        "c": types.IntegerType(),
        "d": types.LongType(),
        "e": types.FloatType(),
        "f": types.DoubleType(),
        "g": types.DecimalType(12, 2),
        "h": types.DecimalType(10, 0),
        "day": types.DateType(),
        "at": types.TimestampType(),
        "tags": types.ArrayType(types.StringType()),
        "place": place,
        "counts": types.MapType(types.StringType(), types.ArrayType(types.LongType())),
    }
    whole = types.StructType([types.StructField(name, kind) for name, kind in expected.items()])
    found = parse_ddl(EVERYTHING)
    assert to_arrow_type(whole, timezone="UTC").equals(found)
    assert spelled(found, quoted=False) == whole.simpleString()


def test_what_is_spelled_is_read_as_the_same() -> None:
    found = parse_ddl(EVERYTHING)
    assert parse_ddl(spelled(found)[len("struct<") : -1]).equals(found)
    assert spelled(parse_ddl("`a``b` INT")) == "struct<`a``b`:int>"


@pytest.mark.parametrize(
    ("text", "names"), [("id: LONG", ["id"]), ("1st INT, größe INTEGER", ["1st", "größe"]), ("date DATE", ["date"])]
)
def test_names(text: str, names: list[str]) -> None:
    assert [field.name for field in parse_ddl(text)] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the name of a field, not its end"),
        ("id", "expected one of the types STRING"),
        ("id BIGINT name STRING", "expected a comma or the end, not 'name STRING'"),
        ("id BIGINT,", "expected the name of a field, not its end"),
        ("id VARCHAR(10)", "not 'VARCHAR(10)'"),
        ("at TIMESTAMP_NTZ", "not 'TIMESTAMP_NTZ'"),
        ("id BIGINT NOT NULL", "and may be null"),
        ("id BIGINT COMMENT 'x'", "a field has only a name and a type"),
        ("tags ARRAY<STRING", "expected '>', not its end"),
        ("tags ARRAY", "expected '<'"),
        ("tags MAP<INT, STRING>", "keys of maps are strings"),
        ("place STRUCT<>", "expected the name of a field"),
        ("a INT, A INT", "the field 'A' twice"),
        ("a DECIMAL(39,0)", "DECIMAL(39,0) must have 1 to 38 digits"),
        ("a DECIMAL(5,6)", "DECIMAL(5,6) must have 1 to 38 digits"),
        ("a DECIMAL(x)", "expected a number of digits"),
        ("a DECIMAL(٣)", "expected a number of digits"),
        ("`a INT", "expected the name of a field"),
        ("``` INT", "expected the name of a field"),
        ("a-b INT", "expected one of the types"),
        ("a INT; DROP", "expected a comma or the end, not '; DROP'"),
        ("a " + "ARRAY<" * (DEPTH_MAX + 1) + "INT" + ">" * (DEPTH_MAX + 1), "more than 32 levels deep"),
        ("a " + "ARRAY<" * 100_000, "more than 32 levels deep"),
        ("a INT" + " " * 1024 * 1024, "at most 1048576 characters"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(OptionInvalid) as raised:
        parse_ddl(text)
    assert said in str(raised.value)
    assert len(str(raised.value)) < 400
