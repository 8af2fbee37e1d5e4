"""Rows behind the watermark: kept as dead letters or counted, and never gone without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from pydanube.base.errors import FlowInvalid, OptionInvalid
from pydanube.pipeline.run.runner import Outcome, Runner
from pydanube.pipeline.spec.fields import Duration
from pydanube.pipeline.spec.flow import Flow, warnings
from pydanube.pipeline.spec.late import Rule, may_drop, rule_of
from pydanube.pipeline.spec.steps import parse_steps
from pydanube.spark.watermark import late_watermark
from pydanube.sync import Client

NOON = 1_769_860_800_000_000  # 2026-01-31T12:00Z
MINUTE = 60_000_000
WATERMARK = {"watermark": {"delay": "10 minutes"}}
HOUR = Duration(3_600_000_000)
HOURLY = {"aggregate": {"window": "1 hour", "values": {"rows": "count(*)"}}}
BY_TIME = {"aggregate": {"by": ["event_time"], "values": {"n": "count(*)"}}}
Make = Callable[..., Flow]


@pytest.fixture
def make(topic: str, tmp_path: Path) -> Make:
    def made(*steps: dict[str, Any], **keys: Any) -> Flow:
        source = {"topic": topic, "format": "json", "schema": "id BIGINT", "max_records": 10, "subscription": False}
        plain = {"name": topic.split("/")[-1], "source": source, "sink": {"delta": "out"}, "checkpoint": "points"}
        return Flow.of(plain | {"transforms": list(steps)} | keys, tmp_path)

    return made


def publish(client: Client, topic: str, minutes: list[int]) -> None:
    """A row for each, with its place as id, that happened so many minutes after noon."""
    with client.producer(topic) as producer:
        for number, minute in enumerate(minutes):
            producer.send(b'{"id": %d, "more": "kept"}' % number, key=str(number), event_time=NOON + minute * MINUTE)
        producer.flush()


def run(flow: Flow, url: str) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    return Runner(flow, url=url, available_now=True, tell=said.append).run(), said


def rows(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(str(place)).to_pyarrow_table().to_pylist()
    return found


def with_late() -> list[int]:
    """Batches of ten: three go forward by hours, the fourth has what is two hours old, and what just fits."""
    forward = [minute for hour in range(3) for minute in range(hour * 60, hour * 60 + 10)]
    return [*forward, 5, 6, 118, 119, 7, 125, 126, 127, 128, 129, *range(400, 410)]


def test_late_rows_become_dead_letters_with_their_payload_and_reason(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, with_late())
    flow = make(WATERMARK, {"deduplicate": ["id"]}, dead_letters={"delta": "dead"})
    outcome, said = run(flow, url)
    # three batches in, the watermark that counts is that of the batch before: 69 minutes less the delay
    letters = sorted(rows(tmp_path / "dead"), key=lambda each: each["offset"])
    assert [each["offset"] for each in letters] == [30, 31, 34]
    assert letters[0]["value"] == b'{"id": 30, "more": "kept"}'
    assert letters[0]["key"] == b"30"
    assert {each["rule"] for each in letters} == {"transforms[1].deduplicate"}
    assert letters[0]["error"] == (
        "late: event_time 2026-01-31T12:05:00.000Z is not after the watermark 2026-01-31T12:59:00.000Z"
    )
    kept = sorted(each["id"] for each in rows(tmp_path / "out"))
    assert kept == [number for number in range(50) if number not in (30, 31, 34)], "each row is somewhere, once"
    progress = outcome.progress
    assert (progress.late_rows, progress.late_dropped, progress.dead_rows) == (3, 0, 3)
    assert said[-1] == "finished: 50 rows in 6 batches; 3 late rows are dead letters"
    assert list((tmp_path / "points").rglob("*.changelog")), "state is in RocksDB, and written as what changed"


def test_late_rows_without_dead_letters_are_counted_and_told(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, [*with_late(), 900])
    outcome, said = run(make(WATERMARK, {"deduplicate": ["id"]}, HOURLY), url)
    assert outcome.progress.late_rows == 3
    assert sum(each["rows"] for each in rows(tmp_path / "out")) == 47, "and the last one is in a window that is open"
    assert any("rows behind the watermark are dropped and counted as late_rows" in line for line in said)
    assert said[-1].endswith("; 3 late rows were dropped")


def test_a_row_is_late_for_a_window_when_that_has_ended(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    """Spark counts what it drops after it has put rows of a window together; here each row is counted."""
    publish(client, topic, [*range(30), *range(200, 220), *([10, 20, 30, 40, 189, 190, 59, 60, 180, 250]), 900])
    flow = make(WATERMARK, HOURLY, dead_letters={"delta": "dead"}, late="dead_letters")
    outcome, _ = run(flow, url)
    letters = sorted(rows(tmp_path / "dead"), key=lambda each: each["offset"])
    assert [each["offset"] for each in letters] == [50, 51, 52, 53, 56, 57]
    assert "belongs to a window that ended before the watermark 2026-01-31T15:19:00.000Z" in letters[0]["error"]
    assert {each["rule"] for each in letters} == {"transforms[1].aggregate"}
    assert outcome.progress.late_rows == 6
    found = {each["window_start"].hour: each["rows"] for each in rows(tmp_path / "out")}
    assert found == {12: 30, 15: 23, 16: 1}


def test_behind_sql_late_rows_are_counted_as_spark_counts_them(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, with_late())
    flow = make(WATERMARK, {"sql": "SELECT id, event_time FROM input"}, {"deduplicate": ["id"]}, late="drop")
    outcome, said = run(flow, url)
    assert outcome.progress.late_rows == 3
    assert len(rows(tmp_path / "out")) == 47
    assert said[-1] == "finished: 50 rows in 6 batches; 3 late rows were dropped"
    assert not any(line.startswith("note: late") for line in said), "it is asked for"


def test_late_drop_beside_dead_letters_keeps_the_others(
    spark: SparkSession, client: Client, make: Make, url: str, topic: str, tmp_path: Path
) -> None:
    publish(client, topic, with_late())
    source = {"topic": topic, "format": "json", "schema": "id BIGINT", "max_records": 10, "expect": ["id <> 31"]}
    flow = make(WATERMARK, {"deduplicate": ["id"]}, source=source, dead_letters={"delta": "dead"}, late="drop")
    outcome, _ = run(flow, url)
    [letter] = rows(tmp_path / "dead")
    assert (letter["offset"], letter["error"]) == (31, "expected id <> 31")
    assert letter["value"] == b'{"id": 31, "more": "kept"}', "as it came, not what was decoded of it"
    assert (outcome.progress.late_rows, outcome.progress.late_dropped) == (2, 2)
    assert len(rows(tmp_path / "out")) == 47


@pytest.mark.parametrize(
    ("steps", "mode", "rule", "drops"),
    [
        ([WATERMARK, {"deduplicate": ["id"]}], "append", Rule("event_time", step="transforms[1].deduplicate"), True),
        ([WATERMARK, HOURLY], "update", Rule("event_time", HOUR, HOUR, "transforms[1].aggregate"), True),
        ([WATERMARK, HOURLY], "complete", None, False),
        ([WATERMARK, {"aggregate": {"by": ["id"], "values": {"n": "count(*)"}}}], "update", None, True),
        ([WATERMARK, BY_TIME], "append", Rule("event_time", step="transforms[1].aggregate"), True),
        ([{"sql": "SELECT 1"}, WATERMARK, {"deduplicate": ["id"]}], "append", None, True),
        ([WATERMARK, {"sql": "SELECT 1"}], "append", None, True),
        ([WATERMARK], "append", None, False),
    ],
)  # fmt: skip
def test_the_rule_is_that_of_the_first_step_that_remembers(
    steps: list[dict[str, Any]], mode: str, rule: Rule | None, drops: bool
) -> None:
    parsed = parse_steps(steps, "/")
    assert rule_of(parsed, mode) == rule
    assert may_drop(parsed, mode) == drops


def test_what_is_said_of_late_rows_is_checked(make: Make) -> None:
    with pytest.raises(FlowInvalid, match="late: needs a watermark in transforms"):
        make(late="drop")
    with pytest.raises(FlowInvalid, match="late: late rows need dead_letters"):
        make(WATERMARK, {"deduplicate": ["id"]}, late="dead_letters")
    steps = (WATERMARK, {"sql": "SELECT * FROM input"}, {"deduplicate": ["id"]})
    with pytest.raises(FlowInvalid, match="late: dead_letters is not possible here"):
        make(*steps, dead_letters={"delta": "dead"}, late="dead_letters")
    with pytest.raises(FlowInvalid, match=r"late: must be .*, got 'dop'; did you mean drop\?"):
        make(WATERMARK, late="dop")
    remote = make(WATERMARK, HOURLY, dead_letters={"delta": "dead"}, checkpoint="hdfs://host/points")
    assert any("the source cannot read hdfs://host/points" in line for line in warnings(remote, "local[1]"))


def test_the_watermark_of_a_batch_is_what_the_batch_before_noted(tmp_path: Path) -> None:
    folder = tmp_path / "offsets"
    with pytest.raises(OptionInvalid, match="has no readable checkpoint"):
        late_watermark(str(tmp_path), {})
    folder.mkdir()
    ends = [{"/default/t": {"id": 1, "0": number}} for number in range(3)]
    for number, end in enumerate(ends):
        noted = json.dumps({"batchWatermarkMs": number * 1000 + 5})
        (folder / str(number)).write_text(f"v1\n{noted}\n{json.dumps(end)}\n")
        (folder / f".{number}.crc").write_bytes(b"crc")
    assert [late_watermark(str(tmp_path), end) for end in ends] == [0, 5_000, 1_005_000]
    with pytest.raises(OptionInvalid, match="is not the checkpoint of this query"):
        late_watermark(f"file://{tmp_path}", {"/default/t": {"id": 1, "0": 9}})
    (folder / "1").write_text("v1\n")
    with pytest.raises(OptionInvalid, match="cannot be read"):
        late_watermark(str(tmp_path), ends[2])
