"""Batches in an Iceberg table: there once, whoever repeats, races or dies."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from inspect import getattr_static
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, CommitStateUnknownException
from pyiceberg.io.pyarrow import PyArrowFileIO

from pipeline.iceberg_world import Lake, mark, rows, staged, written
from pydanube.base.errors import SinkConflict, TargetFailed, TargetRefused
from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.targets.iceberg import target as iceberg
from pydanube.pipeline.targets.iceberg.table import close_catalog
from pydanube.pipeline.targets.mark import Verdict
from servers.fixtures import ObjectServer


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    yield found
    close_catalog(found.target().address)


class Killed(BaseException):
    """The process ends here."""


def test_batches_come_one_after_the_other_and_a_repeated_one_is_done(lake: Lake) -> None:
    target = lake.target()
    assert written(target, mark(0), rows(1, 2), rows(3)) is Verdict.NEW
    assert written(target, mark(0, run="run-2"), rows(1), rows(2, 3)) is Verdict.DONE
    assert written(target, mark(1, run="run-2"), rows(4)) is Verdict.NEW
    assert lake.ids() == [1, 2, 3, 4]
    assert lake.table().properties["danube.orders.batch"] == "1"
    assert "commit.retry.num-retries" not in lake.table().properties  # others may retry theirs


def test_a_batch_without_rows_leaves_the_table_alone(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), rows(1))
    before = lake.table().metadata_location
    assert target.commit(mark(1), rows(1).schema, [], replace=False) is Verdict.NEW
    assert lake.table().metadata_location == before
    with pytest.raises(SinkConflict):
        target.commit(mark(2, query="query-b"), rows(1).schema, [], replace=False)


def test_a_wiped_checkpoint_is_refused_unless_it_was_meant(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), rows(1))
    again = mark(0, query="query-b", run="run-2")
    parts = staged(target, again, rows(2))
    with pytest.raises(SinkConflict, match="query-b"):
        target.commit(again, rows(1).schema, parts, replace=False)
    assert target.commit(again, rows(1).schema, parts, replace=False, replaces=("query-a",)) is Verdict.NEW
    assert lake.ids() == [1, 2]


def test_a_copied_checkpoint_is_refused(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), rows(1))
    other = replace(mark(0, run="run-2"), source="elsewhere")
    with pytest.raises(SinkConflict, match="run-2"):
        written(target, other, rows(2))
    written(target, mark(1), rows(3))
    with pytest.raises(SinkConflict, match="batch 0"):
        written(target, mark(0, run="run-2"), rows(2))
    assert lake.ids() == [1, 3]


def test_a_long_source_is_remembered_by_its_hash(lake: Lake) -> None:
    target, long = lake.target(), replace(mark(0), source="x" * 100_000)
    assert written(target, long, rows(1)) is Verdict.NEW
    assert len(lake.table().properties["danube.orders.source"]) < 100
    assert written(target, long, rows(1)) is Verdict.DONE
    with pytest.raises(SinkConflict):
        written(target, replace(long, source="y" * 100_000), rows(1))


def test_complete_mode_leaves_only_the_last_batch_whatever_was_there(lake: Lake) -> None:
    target = lake.target()
    written(target, mark(0), rows(1, 2))
    written(target, mark(1), rows(3))
    assert written(target, mark(2), rows(7, 8), replace=True) is Verdict.NEW
    assert written(target, mark(2), rows(7, 8), replace=True) is Verdict.DONE
    assert lake.ids() == [7, 8]
    assert target.commit(mark(3), rows(1).schema, [], replace=True) is Verdict.NEW
    assert lake.ids() == []


# -- who is faster, and who dies ---------------------------------------------------------------------------------------


def around(patch: pytest.MonkeyPatch, owner: Any, name: str, wrapped: Callable[[Callable[[], Any]], Any]) -> None:
    """From now on calls of a function or method go through `wrapped`, which makes them or does not."""
    real, is_static = getattr(owner, name), isinstance(getattr_static(owner, name), staticmethod)

    def call(*args: Any, **options: Any) -> Any:
        return wrapped(lambda: real(*args, **options))

    patch.setattr(owner, name, staticmethod(call) if is_static else call)


def once(patch: pytest.MonkeyPatch, owner: Any, name: str, meanwhile: Callable[[], object]) -> None:
    """`meanwhile` happens right before the next call, and only then."""
    left = [meanwhile]

    def interrupted(real: Callable[[], Any]) -> Any:
        if left:
            left.pop()()
        return real()

    around(patch, owner, name, interrupted)


@pytest.mark.parametrize(
    "step", [(iceberg, "_commit_once"), (SqlCatalog, "commit_table"), (SqlCatalog, "_write_metadata")]
)
def test_a_zombie_that_judged_before_the_new_run_committed_adds_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: tuple[Any, str]
) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    old, new = mark(0, run="run-1"), mark(0, run="run-2")
    of_old, of_new = staged(target, old, rows(1, 2)), staged(target, new, rows(1), rows(2))
    verdicts: list[Verdict] = []
    once(monkeypatch, *step, lambda: verdicts.append(target.commit(new, rows(1).schema, of_new, replace=False)))
    assert target.commit(old, rows(1).schema, of_old, replace=False) is Verdict.DONE
    assert verdicts == [Verdict.NEW]
    assert lake.ids() == [1, 2]


def test_a_zombie_with_a_batch_that_is_past_is_told_so(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    parts = staged(target, mark(0), rows(1))

    def new_run() -> None:
        written(target, mark(0, run="run-2"), rows(1))
        written(target, mark(1, run="run-2"), rows(2))

    once(monkeypatch, iceberg, "_commit_once", new_run)
    with pytest.raises(SinkConflict, match="run-2"):
        target.commit(mark(0), rows(1).schema, parts, replace=False)
    assert lake.ids() == [1, 2]


@pytest.mark.parametrize("options", [{}, {"upsert": {"keys": ["id"]}}], ids=["append", "upsert"])
def test_two_pipelines_write_one_table_at_the_same_time(lake: Lake, options: dict[str, Any]) -> None:
    names, batches = ("left", "right"), 6
    lake.target(**options).prepare(rows(1).schema)

    def run(number: int) -> list[Verdict]:
        target = lake.target(**options)
        marks = [mark(batch, pipeline=names[number]) for batch in range(batches)]
        return [written(target, each, rows(2 * each.batch + number)) for each in marks]

    with ThreadPoolExecutor(len(names)) as pool:
        assert {verdict for each in pool.map(run, range(len(names))) for verdict in each} == {Verdict.NEW}
    assert sorted(lake.ids()) == list(range(2 * batches))
    assert {lake.table().properties[f"danube.{name}.batch"] for name in names} == {str(batches - 1)}


UNKNOWN = CommitStateUnknownException("lost")


@pytest.mark.parametrize(
    ("error", "landed"),
    [(UNKNOWN, True), (UNKNOWN, False), (OSError("lost"), True), (CommitFailedException("not yours"), False)],
)
def test_a_commit_whose_answer_is_lost_is_looked_up_and_never_made_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, error: Exception, landed: bool
) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    left = [error]

    def lost(real: Callable[[], Any]) -> Any:
        if not left:
            return real()
        if landed:
            real()
        raise left.pop()

    around(monkeypatch, SqlCatalog, "commit_table", lost)
    assert target.commit(mark(0), rows(1).schema, staged(target, mark(0), rows(1)), replace=False) is Verdict.NEW
    assert lake.ids() == [1]
    assert len(lake.table().snapshots()) == 1


def test_a_catalog_that_never_answers_is_an_error_that_may_be_repeated(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    parts = staged(target, mark(0), rows(1))
    with monkeypatch.context() as broken:

        def lost(*_: Any) -> Any:
            raise CommitStateUnknownException("the gateway gave up")

        broken.setattr(SqlCatalog, "commit_table", lost)
        with pytest.raises(TargetFailed, match=r"iceberg:default\.lake\.orders.*the gateway gave up") as told:
            target.commit(mark(0), rows(1).schema, parts, replace=False)
    assert told.value.retriable
    assert target.commit(mark(0), rows(1).schema, parts, replace=False) is Verdict.NEW
    assert lake.ids() == [1]


KINDS: dict[str, tuple[dict[str, Any], bool, list[int]]] = {
    "append": ({}, False, [1, 2, 3, 4]),
    "upsert": ({"upsert": {"keys": ["id"]}}, False, [1, 2, 3, 4]),
    "complete": ({}, True, [3, 4]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_driver_that_dies_at_any_step_has_written_the_batch_once_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, after: bool
) -> None:
    """Steps are all calls to catalog and storage; before each of them, or after it, the driver dies once."""
    options, complete, expected = KINDS[kind]
    deaths = 0
    while True:
        lake = Lake(tmp_path / str(deaths))
        lake.root.mkdir()
        target = lake.target(**options)
        written(target, mark(0), rows(1, 2), replace=complete)
        parts = staged(target, mark(1), rows(3), rows(4))
        if kind == "upsert":
            parts += staged(target, mark(1), rows(2))
        with monkeypatch.context() as dying:
            survived = _dying(dying, deaths, after)
            with suppress(Killed):
                target.commit(mark(1), rows(1).schema, parts, replace=complete)
        again = mark(1, run="run-2")
        new = staged(target, again, rows(3, 4), *([rows(2)] if kind == "upsert" else []))
        target.commit(again, rows(1).schema, new, replace=complete)
        assert lake.ids() == expected, f"after the death at step {deaths}"
        close_catalog(target.address)
        if survived():
            break
        deaths += 1
    assert deaths >= 5


def _dying(patch: pytest.MonkeyPatch, at: int, after: bool) -> Callable[[], bool]:
    """The process ends at that call; says at last whether there were fewer."""
    left = [at]

    def step(real: Callable[[], Any]) -> Any:
        now = left[0]
        left[0] -= 1
        if now == 0 and not after:
            raise Killed
        result = real()
        if now == 0:
            raise Killed
        return result

    for name in ("load_table", "commit_table", "_write_metadata"):
        around(patch, SqlCatalog, name, step)
    for name in ("new_output", "new_input", "delete"):
        around(patch, PyArrowFileIO, name, step)
    return lambda: left[0] >= 0


def test_a_task_that_fails_takes_away_what_it_wrote(lake: Lake) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    stager = target.open(mark(0), rows(1).schema, "0-0-a")
    stager.add(rows(1, 2).to_batches()[0])
    stager.finish()
    data = lake.root / "ware house/lake/orders/data"
    assert [each.name for each in data.iterdir()] == ["0-0-a-0.parquet"]
    stager.drop()
    assert list(data.iterdir()) == []


def test_a_table_that_was_made_anew_while_a_batch_was_written_is_not_given_its_files(lake: Lake) -> None:
    target = lake.target()
    target.prepare(rows(1).schema)
    parts = staged(target, mark(0), rows(1))
    catalog = lake.table().catalog
    catalog.drop_table(("lake", "orders"))
    with pytest.raises(TargetRefused, match="gone"):
        target.commit(mark(0), rows(1).schema, parts, replace=False)
    target.prepare(rows(1).schema)
    with pytest.raises(TargetFailed, match="changed while"):
        target.commit(mark(0), rows(1).schema, parts, replace=False)
    assert written(target, mark(0, run="run-2"), rows(1)) is Verdict.NEW


# -- where it is -------------------------------------------------------------------------------------------------------

BY_NAME = """
import pyarrow as pa
from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.targets.iceberg.target import IcebergTarget
target = IcebergSink.target({"kind": "iceberg", "table": "lake.named", "catalog": "team"})
target.prepare(pa.schema([("id", pa.int64())]))
print(target.address.load().location())
"""


def test_a_catalog_is_found_by_its_name_in_the_environment(tmp_path: Path) -> None:
    place = {
        "PYICEBERG_CATALOG__TEAM__TYPE": "sql",
        "PYICEBERG_CATALOG__TEAM__URI": f"sqlite:///{tmp_path}/team.db",
        "PYICEBERG_CATALOG__TEAM__WAREHOUSE": f"file://{tmp_path}/team",
    }
    command = [sys.executable, "-c", BY_NAME]
    done = subprocess.run(command, env={**os.environ, **place}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == f"file://{tmp_path}/team/lake/named"


def test_a_table_in_s3_with_credentials_of_the_environment_only(
    lake: Lake, moto_server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = moto_server.place()
    monkeypatch.setenv("AWS_ENDPOINT_URL", place.options["endpoint"])
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    for name, value in place.environment.items():
        monkeypatch.setenv(name, value)
    target = IcebergSink.target(lake.spec(warehouse=place.url, upsert={"keys": ["id"]}))
    assert written(target, mark(0), rows(1, 2)) is Verdict.NEW
    assert written(target, mark(1), rows(2, 3)) is Verdict.NEW
    table = target.address.load()
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 2, 3]
    assert all(each.file.file_path.startswith("s3://") for each in table.scan().plan_files())
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    close_catalog(target.address)
    gone = IcebergSink.target(lake.spec(warehouse=place.url, table="lake.other"))
    with pytest.raises(TargetFailed, match=r"iceberg:default\.lake\.other"):
        gone.prepare(rows(1).schema)
