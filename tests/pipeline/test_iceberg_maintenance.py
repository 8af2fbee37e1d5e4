"""Small files of an Iceberg table are merged, beside other writers, and every row stays there once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.table.snapshots import Operation

from module_clock import set_clock
from pipeline.iceberg_world import Lake, mark, rows, staged, written
from pydanube.pipeline.targets.iceberg import maintenance as iceberg_maintenance
from pydanube.pipeline.targets.iceberg import target as iceberg
from pydanube.pipeline.targets.iceberg.table import close_catalog
from pydanube.pipeline.targets.maintenance import BATCHES, Maintenance
from pydanube.pipeline.targets.mark import Verdict

COMPACT = {"maintain": {"compact": True}}
CLOCKED = [iceberg, iceberg_maintenance]
WANTED = Maintenance(compact=True)


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    yield found
    close_catalog(found.target().address)


def filled(lake: Lake, first: int = 0, turn: int = 1, **options: Any) -> None:
    """A file for each row, and maintenance has its turn, if the target has any."""
    tasks = [rows(number) for number in range(first, first + BATCHES)]
    assert written(lake.target(**options), mark(turn * BATCHES - 1), *tasks) is Verdict.NEW


def data_files(lake: Lake) -> list[str]:
    return [task.file.file_path for task in lake.table().scan().plan_files()]


def test_small_files_become_one_in_a_snapshot_that_changes_no_row(lake: Lake) -> None:
    filled(lake, **COMPACT)
    assert len(data_files(lake)) == 1
    assert sorted(lake.ids()) == list(range(BATCHES))
    last = lake.table().current_snapshot()
    assert last is not None
    assert last.summary is not None
    assert last.summary.operation is Operation.REPLACE
    assert last.summary["total-records"] == str(BATCHES)
    assert last.summary["total-data-files"] == "1"
    again = lake.target(**COMPACT)
    parts = staged(again, mark(BATCHES - 1), rows(999))
    assert again.commit(mark(BATCHES - 1), rows(999).schema, parts, replace=False) is Verdict.DONE
    filled(lake, BATCHES, 2, **COMPACT)
    assert sorted(lake.ids()) == list(range(2 * BATCHES))


def test_partitions_and_later_columns_are_kept(lake: Lake) -> None:
    options = {"partition_by": ["day"], "merge_schema": True, **COMPACT}
    days = [pa.array([day], pa.string()) for day in ("mon", None)]
    first = [pa.table({"id": [number], "day": days[number % 2]}) for number in range(2 * BATCHES)]
    written(lake.target(**options), mark(0), *first)
    wider = [pa.table({"id": [number], "day": ["mon"], "note": ["new"]}) for number in range(100, 103)]
    written(lake.target(**options), mark(BATCHES - 1), *wider)
    assert len(data_files(lake)) == 2
    found = lake.table().scan().to_arrow().sort_by("id").to_pylist()
    assert [(each["id"], each["day"], each["note"]) for each in found] == [
        *((number, None if number % 2 else "mon", None) for number in range(2 * BATCHES)),
        *((number, "mon", "new") for number in range(100, 103)),
    ]


@pytest.mark.parametrize("other", ["merge", "append", "upsert"])
def test_a_writer_that_commits_meanwhile_is_not_undone(lake: Lake, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    filled(lake)
    commit = iceberg_maintenance._commit

    def late(*given: Any) -> None:
        monkeypatch.setattr(iceberg_maintenance, "_commit", commit)
        if other == "merge":
            iceberg_maintenance.maintain(lake.target().address, WANTED)
        else:
            options = {"upsert": {"keys": ["id"]}} if other == "upsert" else {}
            written(lake.target(**options), mark(0, pipeline="other"), rows(3 if other == "upsert" else 77))
        commit(*given)

    monkeypatch.setattr(iceberg_maintenance, "_commit", late)
    iceberg_maintenance.maintain(lake.target().address, WANTED)
    assert sorted(lake.ids()) == [*range(BATCHES), *([77] if other == "append" else [])]
    folder = lake.root / "ware house/lake/orders/data"
    assert len(list(folder.glob("merged-*"))) == (1 if other == "merge" else 0)


def test_files_that_another_writer_took_away_are_not_merged_back(lake: Lake) -> None:
    filled(lake)
    target, files = lake.target(), list(iceberg_maintenance.all_files(lake.table()))
    lake.table().delete("id < 4")
    assert not iceberg_maintenance._merge(lake.table(), files, target.address.label, WANTED)
    assert sorted(lake.ids()) == list(range(4, BATCHES))


@pytest.mark.parametrize("step", ["_rewritten", "_commit", "clean"])
def test_a_merge_that_is_cut_short_loses_nothing_and_the_next_one_does_it(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(iceberg_maintenance, step, killed)
        with pytest.raises(Killed):
            filled(lake, **COMPACT)
    assert sorted(lake.ids()) == list(range(BATCHES))
    filled(lake, BATCHES, 2, **COMPACT)
    assert sorted(lake.ids()) == list(range(2 * BATCHES))
    assert len(data_files(lake)) <= 2


def test_files_that_were_merged_go_when_their_snapshot_ends(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"maintain": {"compact": True, "expire_seconds": 3_600}}
    lake.target().prepare(rows(1).schema)
    with lake.table().transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": "3600000"})
    with monkeypatch.context() as patched:
        earlier = time.time_ns() - 2 * 3_600 * 10**9
        set_clock(patched, CLOCKED, lambda: earlier)
        filled(lake, **options)
    folder = lake.root / "ware house/lake/orders/data"
    assert len(list(folder.iterdir())) == BATCHES + 1
    with lake.table().transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "1"})
    for number in range(3):
        with monkeypatch.context() as patched:
            later = time.time_ns() + (number + 2) * 3_600 * 10**9
            set_clock(patched, CLOCKED, lambda later=later: later)
            written(lake.target(**options), mark(BATCHES + number), rows(100 + number))
    assert len(list(folder.iterdir())) == 1 + 3
    assert sorted(lake.ids()) == [*range(BATCHES), 100, 101, 102]


def test_snapshots_of_a_table_that_says_nothing_end_if_the_pipeline_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pydanube.pipeline.targets.iceberg import table as iceberg_table

    monkeypatch.setattr(iceberg_table, "_PROPERTIES", {})
    for number in range(3):
        written(lake.target(), mark(number), rows(number))
    assert len(lake.table().snapshots()) == 3
    later = time.time_ns() + 2 * 3_600 * 10**9
    set_clock(monkeypatch, CLOCKED, lambda: later)
    written(lake.target(), mark(3), rows(3))
    assert len(lake.table().snapshots()) == 4
    written(lake.target(maintain={"expire_seconds": 3_600}), mark(4), rows(4))
    assert len(lake.table().snapshots()) < 4
    assert sorted(lake.ids()) == [0, 1, 2, 3, 4]
