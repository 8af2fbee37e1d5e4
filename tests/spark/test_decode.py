"""Decoded payloads as columns of the source: options, modes, narrower schemas, segments, and real Spark."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import IntegerType, LongType, StringType, StructType, TimestampType

import pydanube.spark
import pydanube.sync
from pydanube.base.errors import ColumnInvalid, OptionInvalid, RowInvalid
from pydanube.spark import sealed
from pydanube.spark.options import OFF, Options
from pydanube.spark.source import BatchReader, DanubeSource
from spark.test_decode_protobuf import full, shop
from spark.tiered import Asked, Broker, tiered_broker
from spark.world import fill, singly

pa = pytest.importorskip("pyarrow")
fastavro = pytest.importorskip("fastavro")

Client = pydanube.sync.Client
JSON = {"value.format": "json", "value.schema": "id BIGINT, at TIMESTAMP"}
FAILFAST = JSON | {"value.mode": "failfast"}
ORDERS = [b'{"id": 1, "at": "2026-01-31T12:00:00Z"}', b'{"id": "x"}', b'{"id": 3}']
TAGS = {"name": "tags", "type": {"type": "array", "items": "string"}}
AVRO = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}, TAGS]}
ONE = StructType().add("id", LongType())
VALUE = StructType().add("id", LongType()).add("at", TimestampType())


def source(url: str, topic: str, **given: str) -> DanubeSource:
    return DanubeSource({"url": url, "topic": topic} | given)


def reader(url: str, topic: str, names: tuple[str, ...], **given: str) -> BatchReader:
    return BatchReader(Options.of({"url": url, "topic": topic} | given, streaming=False), names)


def everything(reader: BatchReader) -> pa.Table:
    return pa.Table.from_batches([batch for partition in reader.partitions() for batch in reader.read(partition)])


# -- options and schemas ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"value.format": "xml"}, "value.format must be raw, json, avro or protobuf, got 'xml'"),
        ({"value.schema": "a INT"}, "value.schema needs value.format"),
        ({"value.format": "raw", "value.mode": "FAILFAST"}, "value.mode needs value.format"),
        ({"value.format": "json"}, "value.format json needs value.schema: DDL"),
        ({"value.format": "avro", "value.schema": " "}, "needs value.schema: the Avro schema"),
        ({"value.format": "protobuf", "value.schema": "AAAA"}, "value.message names the Protobuf message"),
        (JSON | {"value.message": "a"}, "value.message names the Protobuf message"),
        (JSON | {"value.mode": "DROPMALFORMED"}, "value.mode must be permissive or failfast, got 'dropmalformed'"),
        (JSON | {"value.schema": "id NUMBER"}, "expected one of the types"),
        ({"valueformat": "json"}, "did you mean value.format?"),
    ],
)
def test_what_is_wrong_is_named_when_the_schema_is_asked_for(given: dict[str, str], said: str) -> None:
    with pytest.raises(OptionInvalid) as raised:
        source("danube://127.0.0.1:1", "t", **given).schema()
    assert said in str(raised.value)


def test_the_columns_of_each_mode() -> None:
    known = "`key` binary, `value` struct<`id`:bigint,`at`:timestamp>"
    assert (
        source("danube://127.0.0.1:1", "t", **JSON)
        .schema()
        .endswith(f"{known}, `value_error` string, `value_raw` binary")
    )
    assert source("danube://127.0.0.1:1", "t", **FAILFAST).schema().endswith(known)
    assert "`value` binary" in source("danube://127.0.0.1:1", "t", **{"value.format": "RAW"}).schema()


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        (StructType().add("value", StringType()), JSON, "value must be struct<id:bigint,at:timestamp>, not STRING"),
        (StructType().add("value", ONE), JSON, "value must be struct<id:bigint,at:timestamp>, not struct<id:bigint>"),
        (StructType().add("value_error", StringType()), FAILFAST, "no column 'value_error'"),
        (StructType().add("value_error", StringType()), {}, "no column 'value_error'"),
        (StructType().add("offset", IntegerType()), JSON, "offset must be BIGINT, not INT"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(schema: StructType, given: dict[str, str], said: str) -> None:
    with pytest.raises(ColumnInvalid) as raised:
        source("danube://127.0.0.1:1", "t", **given).reader(schema)
    assert said in str(raised.value)


# -- what readers hand out -------------------------------------------------------------------------------------------


def test_rows_that_fit_and_one_that_does_not(client: Client, url: str, topic: str) -> None:
    fill(client, topic, ORDERS)
    with client.producer(topic) as producer:
        producer.send(None, key="gone").result()
    names = ("value_raw", "offset", "value", "value_error")
    found = everything(reader(url, topic, names, **JSON))
    assert found.schema.names == list(names)
    assert found.to_pylist() == [
        {
            "value_raw": None,
            "offset": 0,
            "value": {"id": 1, "at": datetime(2026, 1, 31, 12, tzinfo=UTC)},
            "value_error": None,
        },
        {
            "value_raw": ORDERS[1],
            "offset": 1,
            "value": None,
            "value_error": "field id: expected a whole number, got the string 'x'",
        },
        {"value_raw": None, "offset": 2, "value": {"id": 3, "at": None}, "value_error": None},
        {"value_raw": None, "offset": 3, "value": None, "value_error": None},
    ]
    shown = StructType().add("value", VALUE).add("offset", LongType())
    assert to_arrow_schema(shown, timezone="UTC").equals(
        everything(reader(url, topic, ("value", "offset"), **JSON)).schema
    )


def test_the_first_that_does_not_fit_ends_it(client: Client, url: str, topic: str) -> None:
    client.admin.create_topic(topic, partitions=1)
    fill(client, topic, ORDERS)
    with pytest.raises(RowInvalid) as raised:
        everything(reader(url, topic, ("value",), **FAILFAST))
    assert str(raised.value) == f"{topic}, partition 0, offset 1: field id: expected a whole number, got the string 'x'"
    begin = json.dumps({topic: {"0": 2}})
    assert everything(reader(url, topic, ("value",), startingOffsets=begin, **FAILFAST)).to_pylist() == [
        {"value": {"id": 3, "at": None}}
    ]


def test_without_the_value_nothing_is_decoded(client: Client, url: str, topic: str) -> None:
    fill(client, topic, ORDERS)
    assert everything(reader(url, topic, ("offset",), **FAILFAST)).to_pylist() == [
        {"offset": 0},
        {"offset": 1},
        {"offset": 2},
    ]
    errors = everything(reader(url, topic, ("value_error",), **JSON)).column("value_error")
    assert errors.null_count == 2


def test_small_batches_are_decoded_together(
    client: Client, url: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydanube.spark.decode_json import JsonDecoder

    calls: list[int] = []
    plain = JsonDecoder.decode

    def counted(self: JsonDecoder, values: Any) -> Any:
        calls.append(len(values))
        return plain(self, values)

    monkeypatch.setattr(JsonDecoder, "decode", counted)
    client.admin.create_topic(topic)
    singly(client, topic, [b'{"id": %d}' % number for number in range(20)])
    found = everything(reader(url, topic, ("value",), **JSON))
    assert [each["id"] for each in found.column("value").to_pylist()] == list(range(20))
    assert calls == [20]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("objects")
    place = f"file://{folder}"
    data = tmp_path_factory.mktemp("data")
    with (
        tiered_broker(data, place, local_seconds=0.0, lag_seconds=3600.0) as url,
        pydanube.sync.connect(url) as client,
    ):
        yield Broker(url, folder, client)


def test_segments_are_decoded_the_same(broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "RANGE_BYTES_MIN", 0)
    asked = Asked(monkeypatch)
    fill(broker.client, topic, ORDERS * 100)
    broker.upload(topic)
    names = ("topic", "partition", "offset", "value", "value_error", "value_raw")
    found = everything(reader(broker.url, topic, names, **JSON))
    assert asked.places == []
    assert found.num_rows == 300
    assert found.column("value_error").null_count == 200
    assert found.equals(everything(reader(broker.url, topic, names, **JSON, **{"objects.url": OFF})))
    with pytest.raises(RowInvalid, match="offset 1: field id"):
        everything(reader(broker.url, topic, ("value",), **FAILFAST))


# -- real Spark ------------------------------------------------------------------------------------------------------


def avro(value: dict[str, Any]) -> bytes:
    out = BytesIO()
    fastavro.schemaless_writer(out, AVRO, value)
    return out.getvalue()


NUMBERS = {"json": 7, "avro": 7, "protobuf": 2**64 - 1}
KINDS: dict[str, tuple[dict[str, str], bytes, bytes]] = {
    "json": (
        {"value.format": "json", "value.schema": "id BIGINT, tags ARRAY<STRING>, place MAP<STRING, DATE>"},
        b'{"id": 7, "tags": ["a", null]}',
        b"{",
    ),
    "avro": ({"value.format": "avro", "value.schema": json.dumps(AVRO)}, avro({"id": 7, "tags": ["a", "b"]}), b"\x0e"),
    "protobuf": (
        {
            "value.format": "protobuf",
            "value.schema": b64encode(shop().SerializeToString()).decode(),
            "value.message": "shop.Order",
        },
        full().SerializeToString(),
        b"\xff",
    ),
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_batch_and_a_stream_in_spark(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path, kind: str
) -> None:
    given, good, bad = KINDS[kind]
    fill(client, topic, [good, bad])
    options = {"url": url, "topic": topic} | given
    batch = spark.read.format("danube").options(**options).load()
    stream = spark.readStream.format("danube").options(startingOffsets="earliest", **options).load()
    writer = stream.writeStream.format("parquet").option("path", str(tmp_path / "out"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(60)
    finally:
        query.stop()
    for frame in (batch, spark.read.parquet(str(tmp_path / "out"))):
        first, second = frame.orderBy("offset").select("value", "value_error", "value_raw").collect()
        number = first.value["u64"] if kind == "protobuf" else first.value["id"]
        assert (int(number), first.value_error, first.value_raw) == (NUMBERS[kind], None, None)
        assert (second.value, second.value_raw) == (None, bad)
        assert second.value_error


def test_fail_fast_says_in_spark_which_row(spark: SparkSession, client: Client, url: str, topic: str) -> None:
    fill(client, topic, ORDERS)
    frame = spark.read.format("danube").options(url=url, topic=topic, **FAILFAST).load()
    with pytest.raises(PySparkException, match="offset 1: field id: expected a whole number"):
        frame.collect()


def test_history_decodes_by_the_source(spark: SparkSession, client: Client, url: str, topic: str) -> None:
    fill(client, topic, ORDERS)
    frame: DataFrame = pydanube.spark.history(spark, topic, url=url, **JSON)
    assert [row.id for row in frame.orderBy("offset").select("value.id").collect()] == [1, None, 3]
    narrow = pydanube.spark.history(spark, topic, schema="value_error STRING", url=url, **JSON)
    assert narrow.where("value_error is not null").count() == 1
    with pytest.raises(OptionInvalid, match="native=True"):
        pydanube.spark.history(spark, topic, native=True, url=url, **JSON)
