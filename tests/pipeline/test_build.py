"""Flows as queries of a real Spark: SQL, windows, updates, dead letters, Python, files and a generator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf

import pydanube.pipeline
from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.query.build import batch, explain, query
from pydanube.pipeline.query.progress import Progress
from pydanube.pipeline.spec.flow import Flow
from pydanube.spark.launch import STATE, STATE_OF_SPARK, STATE_SETTINGS
from pydanube.sync import Client

DDL = "id BIGINT, customer STRING, amount DOUBLE"
NOON = 1_769_860_800_000_000  # 2026-01-31T12:00Z
MINUTE = 60_000_000
Make = Callable[..., Flow]


@pytest.fixture
def make(topic: str, tmp_path: Path) -> Make:
    """A flow from the test's topic to a Delta table, and what a test says otherwise."""

    def made(source: Mapping[str, Any] | None = None, **others: Any) -> Flow:
        found = {"topic": topic, "format": "json", "schema": DDL, **(source or {})}
        if source is not None and ({"files", "rate"} & set(source)):
            found = dict(source)
        plain = {"name": "flow", "source": found, "sink": {"delta": "out"}, "checkpoint": "points"}
        return Flow.of(plain | others, tmp_path)

    return made


def publish(client: Client, topic: str, orders: Iterable[tuple[int, str, float, int | None]]) -> None:
    """Each with its id, customer and amount, and the seconds after noon at which it happened."""
    with client.producer(topic) as producer:
        for id, customer, amount, seconds in orders:
            value = json.dumps({"id": id, "customer": customer, "amount": amount}).encode()
            producer.send(value, key=customer, event_time=None if seconds is None else NOON + seconds * 1_000_000)
        producer.flush()


def run(spark: SparkSession, flow: Flow, url: str) -> Progress:
    """Until all that there is now is done."""
    running = query(spark, flow, url=url, available_now=True)
    try:
        assert running.awaitTermination(120)
    finally:
        running.stop()
    progress = Progress()
    for each in running.recentProgress:
        progress.take(json.loads(each.json))
    return progress


def table(place: Path, *columns: str) -> list[tuple[Any, ...]]:
    found = DeltaTable(str(place)).to_pyarrow_table()
    return sorted(tuple(each[name] for name in columns or found.column_names) for each in found.to_pylist())


def test_a_windowed_aggregate_with_late_data_gives_what_the_batch_gives(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    """One batch a trigger of three: rows come out of order, but none later than the watermark lets them."""
    orders = [(n, "ab"[n % 2], float(n), (n * 37) % 240) for n in range(24)]
    orders.sort(key=lambda each: each[3] // 60)  # within a minute they are mixed
    orders[7], orders[9] = orders[9], orders[7]
    orders += [orders[3], (99, "a", 1.0, 200), (100, "end", 0.0, 3600)]  # one twice, one a minute late, one far ahead
    flow = make(
        {"max_records": 6},
        transforms=[
            {"watermark": {"column": "event_time", "delay": "4 minutes"}},
            {"deduplicate": ["id"]},
            {
                "aggregate": {
                    "window": "1 minute",
                    "slide": "30 s",
                    "by": ["customer"],
                    "values": {"total": "sum(amount)"},
                }
            },
        ],
    )
    publish(client, topic, orders)
    run(spark, flow, url)
    wanted = [tuple(row) for row in batch(spark, flow, url).collect() if row.customer != "end"]
    columns = ("window_start", "window_end", "customer", "total")
    found = [
        (a.replace(tzinfo=None), b.replace(tzinfo=None), *rest) for a, b, *rest in table(tmp_path / "out", *columns)
    ]
    assert found == sorted((a.replace(tzinfo=None), b.replace(tzinfo=None), *rest) for a, b, *rest in wanted)
    assert sum(each[3] for each in found) == 2 * (sum(range(24)) + 1)  # each row is in two windows


def test_updates_go_over_the_rows_with_the_same_keys(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    flow = make(
        transforms=[{"aggregate": {"by": ["customer"], "values": {"orders": "count(*)", "total": "sum(amount)"}}}],
        output_mode="update",
        sink={"delta": "out", "upsert": {"keys": ["customer"]}},
    )
    publish(client, topic, [(1, "ann", 5.0, 0), (2, "bob", 1.0, 0)])
    run(spark, flow, url)
    assert table(tmp_path / "out") == [("ann", 1, 5.0), ("bob", 1, 1.0)]
    publish(client, topic, [(3, "ann", 2.0, 0), (4, "cy", 9.0, 0)])
    run(spark, flow, url)
    assert table(tmp_path / "out") == [("ann", 2, 7.0), ("bob", 1, 1.0), ("cy", 1, 9.0)]


def test_rows_that_do_not_fit_go_past_all_steps_to_the_dead_letters(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    """With steps, rows are read by two ways, and without any by one: in the end there is no difference."""
    publish(client, topic, [(1, "ann", 5.0, 0), (2, "bob", -1.0, None), (3, "cy", 2.0, None)])
    with client.producer(topic) as producer:
        producer.send(b"nonsense", key="k", attributes={"trace": "7"}, event_time=NOON).result()
    letters = [
        (0, 1, "expected amount >= 0", b'{"id": 2, "customer": "bob", "amount": -1.0}'),
        (0, 3, None, b"nonsense"),
    ]
    for place, steps in (("plain", []), ("steps", [{"sql": "SELECT id, event_time, message FROM input WHERE id < 9"}])):
        flow = make(
            {"expect": ["amount >= 0", "customer IS NOT NULL"]},
            name=place,
            transforms=steps,
            sink={"delta": f"{place}/out"},
            dead_letters={"delta": f"{place}/dead"},
            checkpoint=f"{place}/points",
        )
        progress = run(spark, flow, url)
        assert (progress.rows, progress.dead_rows) == (4, 2)
        good = DeltaTable(str(tmp_path / place / "out")).to_pyarrow_table().to_pylist()
        assert sorted((each["id"], each["message"]["offset"]) for each in good) == [(1, 0), (3, 2)]
        by_id = {each["id"]: each for each in good}
        assert by_id[1]["event_time"].timestamp() * 1_000_000 == NOON
        assert by_id[3]["event_time"] == by_id[3]["message"]["timestamp"]  # for it has none of its own
        dead = DeltaTable(str(tmp_path / place / "dead")).to_pyarrow_table().to_pylist()
        assert [each["topic"] for each in dead] == [topic, topic]
        assert {each["pipeline"] for each in dead} == {place}
        found = sorted((each["partition"], each["offset"], each["error"], each["value"]) for each in dead)
        assert found[0] == letters[0]
        assert found[1][:2] == letters[1][:2]
        assert found[1][3] == b"nonsense"
        assert "JSON" in found[1][2]
        first, second = sorted(dead, key=lambda each: int(each["offset"]))
        assert (first["rule"], second["rule"]) == ("source.expect[0]", "source.schema")
        assert (first["attributes"], dict(second["attributes"])) == (None, {"trace": "7"})
        assert (first["event_time"], second["event_time"].timestamp() * 1_000_000) == (None, NOON)


@pytest.mark.parametrize("letters", [False, True], ids=["failfast", "permissive"])
def test_tombstones_are_rows_of_nulls_or_left_out_as_the_source_says(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path, letters: bool
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0)])
    with client.producer(topic) as producer:
        producer.send(None, key="ann").result()
        if letters:
            producer.send(b"no json").result()
    others: dict[str, Any] = {"dead_letters": {"delta": "dead"}} if letters else {}
    run(spark, make({"tombstones": "skip"}, **others), url)
    assert table(tmp_path / "out", "id") == [(1,)]
    if letters:
        assert table(tmp_path / "dead", "value") == [(b"no json",)]
        return
    kept = batch(spark, make(), url).select("id").collect()
    assert [row.id for row in kept] == [1, None]


def test_a_row_that_is_not_as_expected_ends_a_pipeline_without_dead_letters(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0), (2, "bob", -1.0, 0)])
    running = query(spark, make({"expect": ["amount >= 0"]}), url=url, available_now=True)
    with pytest.raises(Exception, match="row_invalid: expected amount >= 0"):
        running.awaitTermination(120)
    assert table(tmp_path / "out") == []


def test_an_expectation_that_raises_is_not_met(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    """Two that share what raises, with a step that has it too, and one that fails to cast."""
    publish(client, topic, [(4, "2026-01-01", 2.0, 0), (5, "2026-01-02", 0.0, 0), (6, "nobody", 1.0, 0)])
    rules = ["id % amount >= 0", "id % amount < 9", "cast(customer AS date) > date'2020-01-01'"]
    steps = [{"sql": "SELECT id, id % amount AS rest FROM input"}]
    progress = run(spark, make({"expect": rules}, transforms=steps, dead_letters={"delta": "dead"}), url)
    assert (progress.rows, progress.dead_rows) == (3, 2)
    assert table(tmp_path / "out") == [(4, 0.0)]
    found = table(tmp_path / "dead", "offset", "error", "rule")
    assert found == [
        (1, f"expected {rules[0]}", "source.expect[0]"),
        (2, f"expected {rules[2]}", "source.expect[2]"),
    ]
    strict = make({"expect": rules}, sink={"delta": "strict"}, checkpoint="strict-points")
    with pytest.raises(Exception, match="row_invalid: expected id % amount >= 0"):
        query(spark, strict, url=url, available_now=True).awaitTermination(120)


@pytest.mark.parametrize("zone", ["America/Los_Angeles", "Pacific/Kiritimati"])
def test_the_date_column_is_utc_in_a_session_of_any_zone(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path, zone: str
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0)])
    other = spark.newSession()
    other.conf.set("spark.sql.session.timeZone", zone)
    run(other, make({"message": "columns"}, transforms=[{"sql": "SELECT _timestamp, _date FROM input"}]), url)
    [(time, day)] = table(tmp_path / "out", "_timestamp", "_date")
    assert day == time.astimezone(UTC).date()


FUNCTIONS = """
from dataclasses import dataclass
from pyspark.sql.functions import udf
import words

@dataclass
class Greeting:
    text: str

@udf("string")
def greet(name):
    return Greeting(words.greeting(name)).text

def clean(frame):
    return frame.select("value", greet(frame.key.cast("string")).alias("said"))

def nothing(frame):
    return 7

def broken(frame):
    return frame.absent
"""


def test_python_of_a_file_beside_the_flow_works_in_the_workers(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "words.py").write_text("def greeting(name):\n    return f'hello {name}'\n")
    raw = {"format": "raw", "schema": None}
    publish(client, topic, [(1, "ann", 5.0, 0)])
    run(spark, make(raw, transforms=[{"python": "functions.py:clean"}]), url)
    assert table(tmp_path / "out", "said") == [("hello ann",)]
    for name, said in (
        ("nothing", "nothing must return a DataFrame, not int"),
        ("broken", "broken failed: "),
        ("absent", "functions.py has no function absent"),
    ):
        with pytest.raises(FlowInvalid, match=said) as caught:
            batch(spark, make(raw, transforms=[{"python": f"functions.py:{name}"}]), url)
        assert str(caught.value).startswith("transforms[0].python: ")
    (tmp_path / "functions.py").write_text("def clean(:")
    with pytest.raises(FlowInvalid, match="cannot be loaded: SyntaxError"):
        batch(spark, make(raw, transforms=[{"python": "functions.py:clean"}]), url)


def test_files_of_every_kind_and_those_that_do_not_fit(
    spark: SparkSession, make: Make, url: str, tmp_path: Path
) -> None:
    contents = {
        "csv": "id,name\n1,ann\nx,bob\n",
        "json": '{"id": 1, "name": "ann"}\n{"id": "x"}\n',
    }
    for kind, content in contents.items():
        (tmp_path / kind).mkdir()
        (tmp_path / kind / f"a.{kind}").write_text(content)
        source = {"files": kind, "format": kind, "schema": "id INT, name STRING", "expect": ["id > 0"]}
        if kind == "csv":
            source["options"] = {"header": True}
        places = {"sink": {"parquet": f"{kind}-out"}, "dead_letters": {"delta": f"{kind}-dead"}}
        run(spark, make(source, name=kind, checkpoint=f"{kind}-points", **places), url)
        assert pq.read_table(tmp_path / f"{kind}-out").to_pylist() == [{"id": 1, "name": "ann"}]
        [letter] = table(tmp_path / f"{kind}-dead", "error", "rule", "value", "topic", "attributes")
        record = content.split("\n")[-2].encode()
        assert letter == ("the record does not fit the schema", "source.schema", record, None, None)
    (tmp_path / "parquet").mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32())}), tmp_path / "parquet" / "a.parquet")
    source = {"files": "parquet", "format": "parquet", "schema": "id INT"}
    run(spark, make(source, transforms=[{"sql": "SELECT id * 2 AS twice FROM input"}]), url)
    assert table(tmp_path / "out") == [(2,), (4,)]


def test_a_generator_and_a_table_that_is_replaced(spark: SparkSession, make: Make, url: str, tmp_path: Path) -> None:
    flow = make(
        {"rate": {"rows_per_second": 100}},
        transforms=[{"sql": "SELECT count(*) AS rows FROM input"}],
        output_mode="complete",
        trigger="100 ms",
    )
    running = query(spark, flow, url=url)
    try:
        while running.exception() is None and not any(each.numInputRows for each in running.recentProgress):
            running.awaitTermination(1)
    finally:
        running.stop()
    [(rows,)] = table(tmp_path / "out")
    assert rows % 100 == 0
    with pytest.raises(FlowInvalid, match=r"source\.rate: generates rows as time passes"):
        batch(spark, flow, url)


def test_two_flows_in_one_session_each_see_their_own_input(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0)])
    steps = [
        {"sql": "WITH both AS (SELECT a.id FROM input a JOIN input b USING (id)) SELECT id, '{}' AS x FROM both -- end"}
    ]
    one = batch(spark, make(transforms=steps), url)
    two = batch(
        spark, make({"format": "raw", "schema": None}, transforms=[{"sql": "SELECT input.offset FROM input"}]), url
    )
    assert [tuple(each) for each in one.collect()] == [(1, "{}")]
    assert [tuple(each) for each in two.collect()] == [(0,)]
    assert spark.sql("SHOW VIEWS").collect() == []


def test_what_spark_says_of_a_step_is_one_line_with_its_key(spark: SparkSession, make: Make, url: str) -> None:
    assert "to delta:" in (said := explain(spark, make(), url))
    assert "  amount double" in said
    assert "Physical Plan" in said
    late = {"watermark": {"delay": "1 s"}}
    for steps, others, begin in (
        ([{"sql": "SELECT amnt FROM input"}], {}, "transforms[0].sql: A column, variable, or function parameter with"),
        ([{"sql": "SELEC 1"}], {}, "transforms[0].sql: Syntax error"),
        ([{"sql": "DROP TABLE x"}], {}, "transforms[0].sql: Syntax error"),
        ([late, {"deduplicate": ["absent"]}], {}, 'transforms[1].deduplicate: Cannot resolve column name "absent"'),
        ([{"sql": "SELECT NULL AS n FROM input"}], {}, "sink: the column n has the type void"),
        (
            [{"sql": "SELECT struct(INTERVAL 1 DAY) AS n FROM input"}],
            {},
            "sink: the column n has the type interval day",
        ),
        ([{"sql": "SELECT id, ID FROM input"}], {}, "sink: the column ID is given twice"),
        (
            [],
            {"sink": {"delta": "o", "partition_by": ["custmer"]}},
            "sink.partition_by: the column 'custmer' does not exist; did you mean ",
        ),
        (
            [],
            {"sink": {"delta": "o", "upsert": {"keys": ["x"]}}},
            "sink.upsert.keys: the column 'x' does not exist; the columns are",
        ),
        ([], {"sink": {"topic": "o", "key": "x"}}, "sink.key: the column 'x' does not exist"),
    ):
        with pytest.raises(FlowInvalid) as caught:
            explain(spark, make(transforms=steps, **others), url)
        assert str(caught.value).startswith(begin)
        assert "\n" not in str(caught.value)
    for wrong, says in (("amnt > 1", "A column, variable, or"), ("amount >", "Syntax error")):
        with pytest.raises(FlowInvalid) as caught:
            explain(spark, make({"expect": ["amount > 1", wrong]}), url)
        assert str(caught.value).startswith(f"source.expect[1]: {wrong}: {says}")
        assert "\n" not in str(caught.value)


def test_a_topic_is_made_with_the_partitions_that_it_is_to_have(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0), (2, "bob", 1.0, 0)])
    flow = make(
        transforms=[{"sql": "SELECT id, customer FROM input"}],
        sink={"topic": f"{topic}-out", "key": "customer", "create_partitions": 3},
    )
    run(spark, flow, url)
    run(spark, flow, url)  # it is there now
    assert client.admin.describe_topic(f"{topic}-out")["partitions"] == 3
    found = spark.read.format("danube").options(url=url, topic=f"{topic}-out").load().collect()
    assert sorted((row.key, json.loads(row.value)["id"]) for row in found) == [(b"ann", 1), (b"bob", 2)]


def test_the_same_in_python_with_a_function_of_the_program(
    spark: SparkSession, client: Client, url: str, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0), (2, "bob", 1.0, 0)])
    monkeypatch.chdir(tmp_path)
    factor = 3

    def tripled(frame: DataFrame) -> DataFrame:
        return frame.select("id", udf(lambda amount: amount * factor, "double")("amount").alias("amount"))

    pipeline = pydanube.pipeline.topic(topic, schema=DDL).python(tripled)
    options = {"url": url, "available_now": True}
    running = pipeline.to_delta("out").start(spark, "one", checkpoint="points-1", **options)
    assert running.awaitTermination(120)
    assert table(tmp_path / "out") == [(1, 15.0), (2, 3.0)]
    windows = pydanube.pipeline.topic(topic, schema=DDL).watermark("1 minute").deduplicate("id").to_delta("out")
    with pytest.raises(FlowInvalid, match=r"transforms: the checkpoint .* was made with another one"):
        windows.start(spark, "one", checkpoint="points-1", **options)
    console = pipeline.to_console(1)
    assert "Python: tripled" in console.explain(spark, url=url)
    running = console.start(spark, "two", checkpoint="points-2", **options)
    assert running.awaitTermination(120)
    [done] = running.recentProgress
    assert (done.numInputRows, "Console" in done.sink.description) == (2, True)


def test_in_a_session_of_spark_s_defaults_state_is_on_disk_too_and_what_a_run_says_is_logged(
    spark: SparkSession,
    client: Client,
    url: str,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    publish(client, topic, [(1, "ann", 5.0, 0), (1, "ann", 5.0, 0)])
    monkeypatch.chdir(tmp_path)
    defaults: Any = spark._jvm.org.apache.spark.sql.internal.SQLConf
    assert defaults.STATE_STORE_PROVIDER_CLASS().defaultValueString() == STATE_OF_SPARK
    before = {name: spark.conf.get(name) for name in STATE_SETTINGS}
    for name in STATE_SETTINGS:
        spark.conf.unset(name)
    spark.conf.set(STATE, STATE_OF_SPARK)
    plain = {name: spark.conf.get(name, None) for name in STATE_SETTINGS}
    pipeline = pydanube.pipeline.topic(topic, schema=DDL).watermark("1 minute").deduplicate("id").to_delta("out")
    try:
        running = pipeline.start(spark, "own", url=url, available_now=True, checkpoint="points")
        assert running.awaitTermination(120)
        assert {name: spark.conf.get(name, None) for name in STATE_SETTINGS} == plain
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    assert list((tmp_path / "points").rglob("*.changelog")), "state is in RocksDB, and written as what changed"
    assert table(tmp_path / "out", "id") == [(1,)]
    assert [each.getMessage() for each in caplog.records if each.name == "pydanube.pipeline.run.runner"] == [
        "own: late: rows behind the watermark are dropped and counted as late_rows, because dead_letters is not set"
    ]
