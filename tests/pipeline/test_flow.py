"""Declarations of pipelines: what a good one means, and the one line that each wrong one gets. No Spark."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.sinks.console import ConsoleSink
from pydanube.pipeline.sinks.delta import DeltaSink
from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.sinks.topic import TopicSink
from pydanube.pipeline.sources.files import FileSource
from pydanube.pipeline.sources.rate import RateSource
from pydanube.pipeline.sources.topic import TopicSource
from pydanube.pipeline.spec.fields import FILE_BYTES_MAX, Duration, parse_duration
from pydanube.pipeline.spec.flow import KEYS, TABLE_TRIGGER, Flow, check_master, is_local, warnings
from pydanube.pipeline.spec.sinks import parse_dead_letters
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Python, Sql, Watermark

DDL = "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
WHOLE = """
name: orders-by-minute
source:
  topic: orders
  url: danube://broker:6650
  start: 2026-01-31T12:00:00Z
  subscription: true
  max_records: 5000
  max_bytes: 64 MiB
  format: json
  schema: "id BIGINT, customer STRING, amount DOUBLE, at TIMESTAMP"
  mode: permissive
  expect: ["amount >= 0"]
  attributes: true
transforms:
  - watermark: {column: event_time, delay: 10 minutes}
  - deduplicate: [id]
  - sql: SELECT * FROM input WHERE amount < 1000;
  - python: clean.py:clean
  - aggregate: {window: 1 minute, slide: 30 seconds, on: event_time, by: [customer], values: {orders: count(*)}}
output_mode: append
sink:
  - delta: lake/orders
    partition_by: [customer]
    merge_schema: true
    upsert: {keys: [customer], sequence_by: window_end}
  - iceberg: {table: shop.orders, catalog: home, type: sql, uri: "sqlite:///catalog.db", warehouse: ./warehouse}
  - topic: totals
    key: customer
    create_partitions: 4
dead_letters: {parquet: s3://bucket/dead}
checkpoint: points
trigger: 1 second
restart: {attempts: 3, backoff: 500 ms}
spark: {spark.executor.memory: 2g, spark.sql.adaptive.enabled: false}
"""


def minimal(**others: Any) -> dict[str, Any]:
    return {"name": "p", "source": {"topic": "orders"}, "sink": {"delta": "out"}} | others


def decoded(**others: Any) -> dict[str, Any]:
    return {"topic": "orders", "format": "json", "schema": DDL} | others


# -- good ones ---------------------------------------------------------------------------------------------------------


def test_a_file_with_everything_in_it(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("def clean(frame): return frame\n")
    (tmp_path / "flow.yaml").write_text(WHOLE)
    flow = Flow.load(tmp_path / "flow.yaml")
    source = flow.source
    assert isinstance(source, TopicSource)
    assert (source.topics, source.format, source.mode) == (("/default/orders",), "json", "permissive")
    assert (source.max_records, source.max_bytes, source.subscription) == (5000, 64 << 20, "orders-by-minute")
    assert source.starting() == {"startingTimestamp": "2026-01-31T12:00:00Z"}
    assert source.starting("latest") == {"startingOffsets": "latest"}
    assert flow.transforms == (
        Watermark("event_time", Duration(600_000_000)),
        Deduplicate(("id",)),
        Sql("SELECT * FROM input WHERE amount < 1000"),
        Python(str(tmp_path / "clean.py"), "clean"),
        Aggregate(Duration(60_000_000), Duration(30_000_000), "event_time", ("customer",), {"orders": "count(*)"}),
    )
    delta, iceberg, topic = flow.sinks
    assert isinstance(delta, DeltaSink)
    assert isinstance(iceberg, IcebergSink)
    assert isinstance(topic, TopicSink)
    assert topic.create_partitions == 4
    assert delta.location == str(tmp_path / "lake" / "orders")
    assert iceberg.uri == f"sqlite:///{tmp_path}/catalog.db"
    assert iceberg.warehouse == f"file://{tmp_path}/warehouse"
    assert flow.checkpoint == str(tmp_path / "points")
    assert (flow.trigger, flow.available_now) == (Duration(1_000_000), False)
    assert (flow.restart.attempts, flow.restart.backoff.seconds) == (3, 0.5)
    assert flow.spark == {"spark.executor.memory": "2g", "spark.sql.adaptive.enabled": "false"}


def test_the_plan_is_json_and_says_what_targets_need(tmp_path: Path) -> None:
    (tmp_path / "clean.py").write_text("")
    (tmp_path / "flow.yaml").write_text(WHOLE)
    plan = json.loads(Flow.load(tmp_path / "flow.yaml").plan("danube://other:1", ("query-1",)).to_json())
    assert (plan["pipeline"], plan["replaces"]) == ("orders-by-minute", ["query-1"])
    assert plan["targets"] == [
        {
            "kind": "delta",
            "uri": str(tmp_path / "lake" / "orders"),
            "partition_by": ["customer"],
            "merge_schema": True,
            "upsert": {"keys": ["customer"], "sequence_by": "window_end"},
            "maintain": {"compact": False, "expire_seconds": None},
        },
        {
            "kind": "iceberg",
            "table": "shop.orders",
            "catalog": "home",
            "type": "sql",
            "uri": f"sqlite:///{tmp_path}/catalog.db",
            "warehouse": f"file://{tmp_path}/warehouse",
            "properties": {},
            "partition_by": [],
            "merge_schema": False,
            "upsert": None,
            "maintain": {"compact": False, "expire_seconds": None},
        },
        {
            "kind": "topic",
            "topic": "/default/totals",
            "url": "danube://broker:6650",
            "ca": None,
            "key": "customer",
            "value": None,
            "partitions": 4,
        },
    ]
    assert plan["dead_letters"] == {"kind": "parquet", "uri": "s3://bucket/dead", "partition_by": []}


def test_what_is_not_said_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/ann")
    monkeypatch.setenv("DANUBE_URL", "nonsense://")  # which is not read here
    flow = Flow.of(minimal(), "/data")
    assert isinstance(flow.source, TopicSource)
    assert (flow.source.start, flow.source.subscription, flow.source.mode) == ("earliest", "p", "failfast")
    assert flow.source.max_records == 1_000_000
    assert flow.checkpoint == "/people/ann/.danube/pipelines/p"
    assert (flow.output_mode, flow.trigger, flow.available_now) == ("append", Duration(10_000_000), False)
    assert flow.plan("danube://here:1").targets[0]["uri"] == "/data/out"


def test_tables_are_not_written_as_fast_as_possible_unless_it_is_said() -> None:
    table = {"iceberg": {"table": "shop.orders", "catalog": "home"}}
    for sinks in ({"parquet": "x"}, table, [{"topic": "y"}, {"delta": "x"}]):
        assert Flow.of(minimal(sink=sinks)).trigger == TABLE_TRIGGER
    for sinks in ({"topic": "y"}, {"console": True}):
        assert Flow.of(minimal(sink=sinks)).trigger is None
    quick = Flow.of(minimal(trigger="0 seconds"))
    assert (quick.trigger, quick.available_now) == (None, False)
    assert "runs as fast as possible" in quick.words()[-1]


@pytest.mark.parametrize(
    ("given", "compact", "expire_seconds"),
    [
        (True, True, 3 * 86_400),
        (False, False, None),
        ({}, True, 3 * 86_400),
        ({"compact": False, "expire": "2 hours"}, False, 7_200),
        ({"expire": False}, True, None),
    ],
)
def test_maintenance_is_asked_for_as_a_whole_or_in_parts(given: Any, compact: bool, expire_seconds: int | None) -> None:
    [sink] = Flow.of(minimal(sink={"delta": "x", "maintain": given})).plan("danube://here:1").targets
    assert sink["maintain"] == {"compact": compact, "expire_seconds": expire_seconds}


def test_keys_that_yaml_takes_for_truth_stay_keys(tmp_path: Path) -> None:
    """`on` is true to YAML 1.1, and 2026-01-31 a date, and 1:30 is ninety."""
    (tmp_path / "flow.yaml").write_text(
        "name: p\nsource: {rate: {rows_per_second: 5}}\ntransforms:\n  - watermark: {column: timestamp, delay: 0 s}\n"
        "  - aggregate:\n      window: 1 minute\n      on: timestamp\n      values: {yes: count(*)}\n"
        "sink: {console: }\n"
    )
    flow = Flow.load(tmp_path / "flow.yaml")
    assert isinstance(flow.source, RateSource)
    assert isinstance(step := flow.transforms[1], Aggregate)
    assert (step.on, step.values) == ("timestamp", {"yes": "count(*)"})
    assert flow.sinks == (ConsoleSink(rows=20),)


def test_dead_letters_make_permissive_the_default() -> None:
    flow = Flow.of(minimal(source=decoded(), dead_letters={"delta": "dead"}))
    assert flow.source.mode == "permissive"
    assert Flow.of(minimal(source=decoded())).source.mode == "failfast"


def test_files_and_other_ways_to_name_topics() -> None:
    files = {"files": "in/*.csv", "format": "csv", "schema": DDL, "options": {"header": True, "sep": ";"}}
    source = Flow.of(minimal(source=files), "/data").source
    assert isinstance(source, FileSource)
    assert (source.path, source.options) == ("/data/in/*.csv", {"header": "true", "sep": ";"})
    several = Flow.of(minimal(source={"topics": ["b", "/x/a"]})).source
    assert isinstance(several, TopicSource)
    assert several.topics == ("/default/b", "/x/a")
    matching = Flow.of(minimal(source={"pattern": "orders-*", "subscription": False})).source
    assert isinstance(matching, TopicSource)
    assert (matching.pattern, matching.subscription) == ("/default/orders-*", None)


def test_positions() -> None:
    for start, option in (
        ("LATEST", {"startingOffsets": "latest"}),
        ({"orders": {"0": 5}}, {"startingOffsets": '{"orders": {"0": 5}}'}),
        (datetime(2026, 1, 31, tzinfo=UTC), {"startingTimestamp": "2026-01-31T00:00:00+00:00"}),
        ("1769817600000", {"startingTimestamp": "1769817600000"}),
    ):
        source = Flow.of(minimal(source={"topic": "orders", "start": start})).source
        assert isinstance(source, TopicSource)
        assert source.starting() == option


def test_schemas_of_avro_and_protobuf_are_files_beside_the_declaration(tmp_path: Path) -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}'
    (tmp_path / "order.avsc").write_text(text)
    for schema in ("order.avsc", text, json.loads(text)):
        source = Flow.of(minimal(source={"topic": "o", "format": "avro", "schema": schema}), tmp_path).source
        assert isinstance(source, TopicSource)
        assert source.schema is not None
        assert json.loads(source.schema.text) == json.loads(text)
    (tmp_path / "time.desc").write_bytes(descriptor_set(timestamp_pb2.DESCRIPTOR))
    declared = {"descriptor": "time.desc", "message": "google.protobuf.Timestamp"}
    source = Flow.of(minimal(source={"topic": "o", "format": "protobuf", "schema": declared}), tmp_path).source
    assert isinstance(source, TopicSource)
    assert source.schema is not None
    assert base64.b64decode(source.schema.text) == (tmp_path / "time.desc").read_bytes()
    assert source.schema.message == "google.protobuf.Timestamp"


def descriptor_set(file: Any) -> bytes:
    found = descriptor_pb2.FileDescriptorSet()
    file.CopyToProto(found.file.add())
    return found.SerializeToString()


@pytest.mark.parametrize(
    ("text", "spark"),
    [
        ("10 minutes", "600 seconds"),
        ("1 hour 30 minutes", "5400 seconds"),
        ("250ms", "250 milliseconds"),
        ("1.5 s", "1500 milliseconds"),
        ("0 seconds", "0 seconds"),
        ("3 microseconds", "3 microseconds"),
        ("2 weeks", "1209600 seconds"),
    ],
)
def test_durations_are_told_to_spark_in_its_words(text: str, spark: str) -> None:
    assert str(parse_duration("trigger", text)) == spark


def test_the_digest_is_of_what_a_checkpoint_depends_on() -> None:
    flow = Flow.of(minimal())
    assert flow.digest == Flow.of(minimal(sink={"parquet": "x"}, trigger="1 s", checkpoint="c")).digest
    assert flow.digest != Flow.of(minimal(source={"topic": "others"})).digest
    assert flow.digest != Flow.of(minimal(transforms=[{"sql": "SELECT 1 AS a FROM input"}])).digest
    changed = Flow.of(minimal(output_mode="update")).essentials()
    assert [key for key, value in flow.essentials().items() if changed[key] != value] == ["output_mode"]


def test_a_flow_in_words() -> None:
    steps = [{"watermark": {"delay": "1 m"}}, {"aggregate": {"window": "1 m", "values": {"n": "count(*)"}}}]
    assert Flow.of(minimal(transforms=steps, checkpoint="c", source=decoded()), "/data").words() == [
        "pipeline p",
        "from topic /default/orders, json",
        "  rows may be late by 60 seconds after event_time",
        "  count(*) as n per 60 seconds of event_time",
        "to delta:/data/out (append)",
        "runs every 10 seconds, checkpoint /data/c",
    ]


def test_reading_a_declaration_needs_no_spark() -> None:
    """Nor do the connectors of this project, which are loaded with the first declaration."""
    code = (
        "import sys; from pydanube.pipeline.spec.flow import Flow;"
        "Flow.of({'name': 'p', 'source': {'topic': 'a'}, 'sink': {'delta': 'x'}});"
        "assert 'pydanube.pipeline.sinks.iceberg' in sys.modules and 'pydanube.pipeline.sources.files' in sys.modules;"
        "sys.exit(bool({'pyspark', 'pyarrow', 'deltalake', 'pyiceberg'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


# -- masters -----------------------------------------------------------------------------------------------------------


def test_folders_of_one_machine_are_refused_on_a_cluster() -> None:
    far = {"sink": {"delta": "s3://lake/orders"}, "checkpoint": "s3a://lake/points"}
    for master in ("local", "local[*]", "sc://localhost:15002", "sc://127.0.0.1"):
        check_master(Flow.of(minimal()), master)
    check_master(Flow.of(minimal(**far)), "spark://head:7077")
    for other, begin in (
        ({"sink": {"delta": "/lake"}}, "sink: /lake is a separate folder"),
        ({"sink": [{"parquet": "s3://a/b"}, {"delta": "file:///lake"}]}, "sink[1]: file:///lake"),
        ({"sink": {"iceberg": {"table": "a.b", "warehouse": "file:///lake"}}}, "sink: file:///lake"),
        ({"checkpoint": "points"}, "checkpoint: "),
        ({"source": decoded(), "dead_letters": {"delta": "dead"}}, "dead_letters: "),
        ({"source": {"files": "in", "format": "json", "schema": DDL}}, "source.files: "),
    ):
        flow = Flow.of(minimal(**{**far, **other}))
        with pytest.raises(FlowInvalid, match="spark://head:7077 has several") as caught:
            check_master(flow, "spark://head:7077")
        assert str(caught.value).startswith(begin)
    shared = minimal(sink={"delta": "/mnt/lake/orders"}, checkpoint="/mnt/lake/points", shared=["/mnt/lake"])
    check_master(Flow.of(shared), "k8s://https://head")
    assert not is_local("local-cluster[2,1,1024]")


def test_what_cannot_be_known_is_said() -> None:
    assert warnings(Flow.of(minimal(checkpoint="/c")), "local[*]") == []
    said = warnings(Flow.of(minimal(checkpoint="s3://bucket/c")), "spark://head:7077")
    assert len(said) == 1
    assert "s3a:// with hadoop-aws" in said[0]
    assert "shared path" in said[0]
    assert (
        "messages may be deleted"
        in warnings(Flow.of(minimal(source={"topic": "a", "subscription": False})), "local")[0]
    )
    steps = [{"aggregate": {"by": ["a"], "values": {"n": "count(*)"}}}]
    assert "upsert" in warnings(Flow.of(minimal(transforms=steps, output_mode="update")), "local")[0]


# -- files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"name: [p,\n  x: {", "line 2, column 7: expected the node content"),
        (b"name: p\nsource: {topic: a}\nname: q\n", "line 3, column 1: name is given twice"),
        (b"a: &x 1\nb: *x\n", "line 2, column 4: aliases are not allowed"),
        (b"name: !!python/object:os.system x\n", "line 1, column 7: could not determine a constructor"),
        (b"name: p\n\tsource: x\n", "line 2, column 1: found character '\\t' that cannot start any token"),
        (b"name: \xff\n", "the file is not UTF-8: byte 6"),
        (b"name: \x01\n", "the file has a character that YAML does not allow"),
        (b"", "the declaration: must be a mapping"),
        (b"a: 1\n---\nb: 2\n", "line 2, column 1: but found another document"),
        (b"[" * 5000, "the file is nested too deeply"),
        (b"#" * (FILE_BYTES_MAX + 1), f"the file has more than {FILE_BYTES_MAX} bytes"),
        (b"? {a: 1}\n: 2\n", "line 1, column 3: found unhashable key"),
        (b"sink:\n  delta: 1\n  <<: {a: b}\n", "line 3, column 3: `<<` is not allowed"),
    ],
)
def test_a_file_that_is_no_yaml_gets_one_line_with_its_place(tmp_path: Path, data: bytes, said: str) -> None:
    file = tmp_path / "flow.yaml"
    file.write_bytes(data)
    with pytest.raises(FlowInvalid) as caught:
        Flow.load(file)
    assert str(caught.value).startswith(f"{file}: {said}")
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(FlowInvalid, match=r"gone\.yaml cannot be read: No such file"):
        Flow.load("gone.yaml")


# -- anything ----------------------------------------------------------------------------------------------------------

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        ["json", "orders", "10 minutes", "x/y", "s3://b/c", "a >= 1", "earliest", "available_now", "{}", "~x"]
    ),
)
NESTED = (
    *("topic", "topics", "pattern", "files", "rate", "url", "start", "subscription", "max_records", "max_bytes"),
    *("format", "schema", "mode", "expect", "options", "watermark", "deduplicate", "sql", "aggregate", "python"),
    *(
        "delta",
        "parquet",
        "iceberg",
        "console",
        "partition_by",
        "upsert",
        "keys",
        "table",
        "warehouse",
        "uri",
        "values",
    ),
    *("column", "delay", "window", "by", "rows_per_second", "attempts", "backoff"),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.sampled_from(NESTED), st.text(max_size=5), st.integers()), inner, max_size=3),
    ),
    max_leaves=10,
)
TOP = st.one_of(
    VALUES,
    st.dictionaries(st.sampled_from(KEYS), VALUES),
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["p", "q-1"]),
            "source": st.dictionaries(st.sampled_from(NESTED[:15]), VALUES, max_size=4),
            "sink": st.dictionaries(st.sampled_from(NESTED[20:]), VALUES, max_size=3),
        },
        optional={key: VALUES for key in KEYS if key not in ("name", "source", "sink")},
    ),
    st.builds(lambda key, value: minimal(**{key: value}), st.sampled_from(KEYS), VALUES),
)


def flow_or_line(mapping: Any) -> tuple[Flow | None, str]:
    try:
        return Flow.of(mapping, "/data"), ""
    except FlowInvalid as error:
        return None, str(error)


@given(TOP)
def test_anything_is_a_flow_or_one_line(mapping: Any) -> None:
    flow, said = flow_or_line(mapping)
    assert (flow is None) == bool(said)
    assert "\n" not in said
    assert len(said) < 2_000
    if flow is None:
        return
    assert flow.plan("danube://x:1").to_json()
    assert flow.words()
    assert flow.digest
    warnings(flow, "spark://x:1")


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "ignore"))))
def test_any_bytes_are_a_flow_or_one_line(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "any.yaml"
    file.write_bytes(data)
    with pytest.raises(FlowInvalid) as caught:
        Flow.load(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("said", "merges"), [({}, True), ({"merge_schema": False}, False)])
def test_a_table_of_dead_letters_gets_the_columns_that_it_lacks(said: dict[str, bool], merges: bool) -> None:
    found = parse_dead_letters({"delta": "/tables/dead", **said}, "/")
    assert found is not None
    assert found.spec("danube://broker")["merge_schema"] is merges
