"""Pipelines made in Python are those of a file: the same keys, the same checks. No Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline import Flow, files, rate, topic

SCHEMA = "id BIGINT, customer STRING, amount DOUBLE"
FILE = """
name: orders
source: {topic: orders, format: json, schema: "id BIGINT, customer STRING, amount DOUBLE", expect: [amount > 0]}
transforms:
  - watermark: {column: event_time, delay: 10 minutes}
  - deduplicate: [id]
  - sql: SELECT * FROM input
  - aggregate: {window: 1 minute, by: [customer], values: {total: sum(amount)}}
sink:
  - {delta: /lake/orders, partition_by: [customer], merge_schema: true, upsert: {keys: [customer], sequence_by: total}}
  - {iceberg: {table: shop.orders, catalog: home, type: sql, uri: "sqlite:////catalog.db", warehouse: "file:///w"}}
  - {parquet: /lake/files, partition_by: [customer]}
  - {topic: totals, key: customer}
dead_letters: {delta: /lake/dead}
checkpoint: /points
trigger: 1 second
"""


def test_a_pipeline_in_python_is_the_one_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.yaml").write_text(FILE)
    pipeline = (
        topic("orders", schema=SCHEMA, expect=["amount > 0"])
        .watermark("10 minutes")
        .deduplicate("id")
        .sql("SELECT * FROM input")
        .aggregate("1 minute", by=["customer"], total="sum(amount)")
        .to_delta(
            "/lake/orders", partition_by=["customer"], merge_schema=True, upsert=["customer"], sequence_by="total"
        )
        .to_iceberg("shop.orders", catalog="home", type="sql", uri="sqlite:////catalog.db", warehouse="file:///w")
        .to_parquet("/lake/files", partition_by="customer")
        .to_topic("totals", key="customer")
        .dead_letters(delta="/lake/dead")
    )
    assert pipeline.flow("orders", checkpoint="/points", trigger="1 second") == Flow.load(tmp_path / "flow.yaml")


def test_no_call_changes_what_it_was_called_on() -> None:
    begin = topic("orders")
    one, other = begin.sql("SELECT 1 AS a FROM input").to_console(), begin.to_console(5)
    assert begin.steps == begin.sinks == ()
    assert len(one.flow("p").transforms) == 1
    assert other.flow("p").transforms == ()
    assert other.output_mode("update").flow("p").output_mode == "update"
    assert other.flow("p").output_mode == "append"


def test_other_sources() -> None:
    assert files("in", "csv", SCHEMA, options={"header": True}).to_console().flow("p").source.label.startswith("csv")
    assert rate(5).to_console().flow("p").source.label.startswith("5 rows")
    assert topic("a", "b").to_console().flow("p").source.label == "topic /default/a, /default/b"
    assert topic(pattern="a*").to_console().flow("p").source.label == "topics /default/a*"


def test_a_function_is_a_step() -> None:
    [step] = topic("a").python(len).to_console().flow("p").transforms
    assert step.label == "Python: len"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: topic("a", frmat="json").to_console().flow("p"),
            r"source\.frmat: unknown key; did you mean format",
        ),
        (lambda: topic("a").flow("p"), "sink: is missing"),
        (lambda: topic().to_console().flow("p"), "source: must have one of topic"),
        (
            lambda: topic("a").to_console().flow("p", chekpoint="x"),
            "chekpoint: unknown key; did you mean checkpoint",
        ),
        (
            lambda: topic("a").deduplicate("id").to_console().flow("p"),
            r"transforms\[0\]\.deduplicate: needs a watermark",
        ),
        (lambda: topic("a").to_delta("x", sequence_by="at").flow("p"), r"sink\.upsert\.keys: is missing"),
        (lambda: topic("a").to_console().run("p", trigger="soon"), "trigger: must be a duration"),
    ],
)
def test_the_checks_are_those_of_a_file(make: object, said: str) -> None:
    assert callable(make)
    with pytest.raises(FlowInvalid, match=said):
        make()
