"""Which write it is, where its input ends, and what its decision names. Without Spark and without a broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from pydanube.spark.committing import identify, merged, source_end
from pydanube.spark.sink_options import SinkOptions
from pydanube.spark.staging import Refs, add_ref

RUN = "68115abc-4b34-4ffb-af51-58da7cda7004"
STREAMING = {
    "sql.streaming.queryId": "q",
    "streaming.sql.batchId": "7",
    "spark.jobGroup.id": RUN,
    "spark.app.id": "app",
}


def options(**more: str) -> SinkOptions:
    return SinkOptions.of({"topic": "out", **more})


def test_a_batch_of_a_query_is_known_by_query_target_and_name() -> None:
    write = identify(options(writeName="second"), "/default/out", STREAMING.get, "own")
    assert (*write.writer, write.once, write.run, write.batch) == ("q", "/default/out", "second", "stream", RUN, 7)


def test_a_plain_write_is_like_no_other() -> None:
    one, other = (identify(options(), "*", {}.get, own) for own in ("a", "b"))
    assert one.once == other.once == "plain"
    assert one.writer != other.writer


def test_a_version_of_an_application_is_known_by_it_within_a_query_too() -> None:
    given = options(txnAppId="q", txnVersion="3")
    write = identify(given, "*", STREAMING.get, "own")
    assert (write.once, write.batch, write.run) == ("version", 3, "")
    assert write.writer.query != "q", "an application that is named like a query is not that query"


def test_where_the_group_of_jobs_was_changed_the_application_stands_for_the_run() -> None:
    changed = {**STREAMING, "spark.jobGroup.id": "my jobs"}
    assert identify(options(), "*", changed.get, "own").run == "app"


def test_refs_that_go_on_are_one_and_tasks_keep_their_order() -> None:
    refs: Refs = []
    for first, last in ((5, 9), (10, 12), (20, 20), (13, 14)):
        add_ref(refs, first, last)
    assert refs == [(5, 12), (20, 20), (13, 14)]
    assert merged([{"a": [(5, 6)]}, {"b": [(0, 1)]}, {"a": [(2, 3), (4, 4)]}]) == {"a": [(5, 6), (2, 4)], "b": [(0, 1)]}


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_the_end_of_the_input_is_read_from_a_local_checkpoint(tmp_path: Path, prefix: str) -> None:
    folder = tmp_path / "a b" / "offsets"
    folder.mkdir(parents=True)
    (folder / "3").write_text('v1\n{"batchWatermarkMs":0}\n{"t": {"1": 5, "0": 4}}\n-\nplain', encoding="utf-8")
    shown = str(tmp_path / "a b") if not prefix else str(tmp_path / "a%20b")
    assert source_end(prefix + shown, 3) == '[{"t":{"0":4,"1":5}},"-","plain"]'


def test_an_end_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    assert source_end(None, 0) == ""
    assert source_end("s3://bucket/checkpoint", 0) == ""
    assert source_end(str(tmp_path), 0) == ""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_bytes(b"v1\n{}\n\xff")
    (tmp_path / "offsets" / "1").write_bytes(b"v1\n{}")
    assert source_end(str(tmp_path), 0) == source_end(str(tmp_path), 1) == ""


def test_a_long_end_is_known_by_its_digest_whatever_spark_notes_beside_it(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    for batch, note, last in ((0, b"{}", b"7"), (1, b'{"batchTimestampMs": 5}', b"7"), (2, b"{}", b"8")):
        data = b"v1\n" + note + b'\n{"t": ' + b" " * 3_000_000 + last + b"}"
        (tmp_path / "offsets" / str(batch)).write_bytes(data)
    one, same, other = (source_end(str(tmp_path), batch) for batch in range(3))
    assert one == same != other
    assert one.startswith("sha256:")
    assert len(one) < 100
