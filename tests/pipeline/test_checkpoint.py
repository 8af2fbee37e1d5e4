"""The folder of a pipeline: generations, the lock, and what a reset leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pydanube.base.errors import FlowInvalid, PipelineRunning, TargetRefused
from pydanube.pipeline.run.checkpoint import REPLACES_MAX, Record, open_checkpoint, peek, read_record

FIRST, SECOND = "8a06ee86-f454-4d0e-ae58-5de43bffaa7b", "1b06ee86-f454-4d0e-ae58-5de43bffaa7c"


def as_spark_leaves_it(location: str, query: str, *, batches: int = 0) -> None:
    for folder in ("offsets", "commits"):
        (Path(location) / folder).mkdir(parents=True)
        for batch in range(batches):
            (Path(location) / folder / str(batch)).write_text("v1\n{}")
    (Path(location) / "metadata").write_text(json.dumps({"id": query}))


def test_a_new_pipeline_has_generation_nought(tmp_path: Path) -> None:
    place = str(tmp_path / "a" / "b")
    with open_checkpoint(place, "orders") as checkpoint:
        assert checkpoint.location == f"{place}/0"
        assert not checkpoint.begun
        assert checkpoint.begin("d1", {"source": 1}) == []
    found = json.loads((tmp_path / "a/b/pipeline.json").read_text())
    assert found == {
        "name": "orders",
        "generation": 0,
        "start": None,
        "replaces": [],
        "digest": "d1",
        "essentials": {"source": 1},
        "fixed": {},
        "location": "",
    }


def test_what_changed_in_the_file_is_told_once(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.begin("d1", {"source": 1, "transforms": []})
        as_spark_leaves_it(checkpoint.location, FIRST)
        assert checkpoint.begin("d2", {"source": 1, "transforms": ["sql"]}) == ["transforms"]
        assert checkpoint.begin("d2", {"source": 1, "transforms": ["sql"]}) == []


def test_what_is_fixed_may_change_only_before_there_is_anything_to_go_on_from(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.begin("d1", {}, {"output_mode": "append", "transforms": []})
        checkpoint.begin("d2", {}, {"output_mode": "update", "transforms": []})
        as_spark_leaves_it(checkpoint.location, FIRST)
        with pytest.raises(FlowInvalid, match=r"output_mode: the checkpoint .* was made with another one"):
            checkpoint.begin("d1", {}, {"output_mode": "append", "transforms": []})
        assert checkpoint.record.digest == "d2"
        checkpoint.begin("d3", {}, {"output_mode": "update"})  # as of a version that knew less
        checkpoint.reset("earliest")
        checkpoint.begin("d1", {}, {"output_mode": "append", "transforms": []})


def test_a_reset_may_name_queries_whose_checkpoint_is_lost(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        assert checkpoint.reset("earliest", [FIRST]) == (FIRST,)
        assert checkpoint.record.replaces == (FIRST,)


def test_a_reset_begins_anew_in_the_place_of_what_was(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.begin("d", {})
        as_spark_leaves_it(checkpoint.location, FIRST, batches=3)
        assert checkpoint.reset("earliest") == (FIRST,)
        assert checkpoint.location == f"{tmp_path}/1"
        assert not checkpoint.begun
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:  # also for the next who opens it
        assert (checkpoint.record.start, checkpoint.record.replaces) == ("earliest", (FIRST,))
        as_spark_leaves_it(checkpoint.location, SECOND)
        assert checkpoint.reset("latest") == (FIRST, SECOND)
        assert checkpoint.record.generation == 2


def test_a_reset_before_anything_ran_replaces_nobody(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        assert checkpoint.reset("latest") == ()
        assert checkpoint.record.start == "latest"


def test_the_old_generation_stays_until_the_new_one_has_committed(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.begin("d", {})
        as_spark_leaves_it(checkpoint.location, FIRST, batches=3)
        checkpoint.reset("earliest")
        checkpoint.tidy()
        as_spark_leaves_it(checkpoint.location, SECOND)
        checkpoint.tidy()
        assert (tmp_path / "0").exists()
        (tmp_path / "1/commits/0").write_text("v1\n{}")
        checkpoint.tidy()
        assert not (tmp_path / "0").exists()
        assert checkpoint.query == SECOND


def test_no_generation_is_used_again(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.reset("earliest")
        assert checkpoint.record.generation == 2


def test_of_many_resets_the_newest_are_known(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        for number in range(REPLACES_MAX + 5):
            as_spark_leaves_it(checkpoint.location, str(number))
            checkpoint.reset("earliest")
        assert checkpoint.record.replaces == tuple(map(str, range(5, REPLACES_MAX + 5)))


HOLD = """
import sys
from pydanube.pipeline.run.checkpoint import open_checkpoint
held = open_checkpoint(sys.argv[1], "orders", "run-1")
print("held", flush=True)
sys.stdin.read()
"""


def test_one_process_at_a_time_and_one_that_was_killed_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(PipelineRunning, match=f"in use by process {holder.pid}"):
            open_checkpoint(str(tmp_path), "orders")
    finally:
        holder.kill()
        holder.communicate()
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        assert checkpoint.before == "run-1"
        with pytest.raises(PipelineRunning, match=str(os.getpid())):
            open_checkpoint(str(tmp_path), "orders")


def test_a_peek_makes_nothing_and_says_what_a_run_would_find(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    assert peek(str(place), "orders")[1:] == (False, None)
    assert not place.exists()
    with open_checkpoint(str(place), "orders", "run-1") as checkpoint:
        checkpoint.begin("d", {})
        as_spark_leaves_it(checkpoint.location, FIRST)
        with pytest.raises(PipelineRunning):
            peek(str(place), "orders")
    record, begun, gone = peek(str(place), "orders")
    assert (record.digest, begun, gone) == ("d", True, "run-1")
    assert peek("s3a://bucket/x", "orders")[1:] == (False, None)
    with pytest.raises(FlowInvalid, match="belongs to the pipeline orders"):
        peek(str(place), "payments")


def test_a_folder_is_of_one_pipeline(tmp_path: Path) -> None:
    with open_checkpoint(str(tmp_path), "orders") as checkpoint:
        checkpoint.begin("d", {})
    with pytest.raises(FlowInvalid, match="belongs to the pipeline orders; give payments a folder of its own"):
        open_checkpoint(str(tmp_path), "payments")
    with open_checkpoint(str(tmp_path), "orders"):  # the refusal let the lock go
        pass


def test_a_checkpoint_of_spark_alone_is_not_taken_over(tmp_path: Path) -> None:
    as_spark_leaves_it(str(tmp_path), FIRST)
    with pytest.raises(FlowInvalid, match="no pipeline started"):
        open_checkpoint(str(tmp_path), "orders")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"name": 1}', '{"name": "orders", "replaces": [], "generation": -1}'])
def test_a_record_that_cannot_be_read_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "pipeline.json").write_text(text)
    with pytest.raises(FlowInvalid, match=r"pipeline\.json cannot be read"):
        open_checkpoint(str(tmp_path), "orders")


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetRefused, match="cannot be written: Not a directory"):
        open_checkpoint(str(tmp_path / "file" / "below"), "orders")


def test_a_file_url_is_a_folder(tmp_path: Path) -> None:
    with open_checkpoint(f"file://{tmp_path}", "orders") as checkpoint:
        checkpoint.begin("d", {})
        assert checkpoint.location == f"{tmp_path}/0"
    assert read_record(f"file://{tmp_path}", "orders") is not None


def test_what_only_spark_can_write_is_handed_to_it_and_not_reset() -> None:
    with open_checkpoint("s3a://bucket/orders", "orders") as checkpoint:
        assert checkpoint.location == "s3a://bucket/orders"
        assert checkpoint.begin("d", {}) == []
        checkpoint.tidy()
        with pytest.raises(FlowInvalid, match=r"only Spark can read .*, and no broker has a record of it"):
            checkpoint.reset("earliest")
    assert read_record("s3a://bucket/orders", "orders") is None


class Kept:
    """As the broker keeps it."""

    def __init__(self) -> None:
        self.text: str | None = None

    def load(self) -> dict[str, Any] | None:
        return None if self.text is None else dict(json.loads(self.text))

    def save(self, record: Mapping[str, Any]) -> None:
        self.text = json.dumps(record)


def test_of_a_place_that_only_spark_can_write_the_broker_keeps_the_record() -> None:
    place, kept = "s3a://bucket/points", Kept()
    assert peek(place, "orders", kept) == (Record("orders"), False, None)
    with open_checkpoint(place, "orders", store=kept) as checkpoint:
        assert checkpoint.begin("d1", {}, {"transforms": ["1 minute"]}) == []
        assert checkpoint.location == place
    assert peek(place, "orders", kept)[1]
    with open_checkpoint(place, "orders", store=kept) as checkpoint:
        with pytest.raises(FlowInvalid, match="transforms: the checkpoint s3a://bucket/points was made with another"):
            checkpoint.check({"transforms": ["5 minutes"]})
        checkpoint.reset("earliest", [FIRST])
        assert (checkpoint.location, checkpoint.record.replaces) == (f"{place}/1", (FIRST,))
    with open_checkpoint(place, "orders", store=kept) as checkpoint:
        assert (checkpoint.location, checkpoint.record.start) == (f"{place}/1", "earliest")
    kept.text = '{"name": "orders"}'
    with pytest.raises(FlowInvalid, match="the broker's record of orders"):
        open_checkpoint(place, "orders", store=kept)


def test_a_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    found = {"name": "orders", "generation": 3, "start": None, "replaces": [FIRST], "digest": "d1"}
    found |= {"essentials": {"source": 1}, "fixed": {}, "place": ""}
    (tmp_path / "pipeline.json").write_text(json.dumps(found))
    record = read_record(str(tmp_path), "orders")
    assert record == Record("orders", 3, None, (FIRST,), "d1", {"source": 1}, {}, "")


def test_a_record_of_an_earlier_version_still_names_its_checkpoint() -> None:
    store = Kept()
    store.save({"name": "orders", "generation": 1, "replaces": [], "place": "s3a://bucket/first"})
    with pytest.raises(FlowInvalid, match="s3a://bucket/first"):
        peek("s3a://bucket/second", "orders", store)
