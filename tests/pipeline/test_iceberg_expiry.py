"""Snapshots of an Iceberg table end with later commits: commits stay cheap, and no file is missing or left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest

pytest.importorskip("pyiceberg")

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestEntryStatus

from module_clock import set_clock
from pipeline.iceberg_world import Lake, mark, rows, staged, written
from pydanube.pipeline.targets.iceberg import expiry as iceberg_expiry
from pydanube.pipeline.targets.iceberg import target as iceberg
from pydanube.pipeline.targets.iceberg.expiry import AGE_MAX_MS, EXPIRED_MAX, KEPT_MIN, SNAPSHOTS_MAX
from pydanube.pipeline.targets.iceberg.table import close_catalog
from pydanube.pipeline.targets.mark import Verdict

SCHEMA = rows(1).schema
UPSERT: dict[str, Any] = {"upsert": {"keys": ["id"]}}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    found = Lake(tmp_path)
    yield found
    close_catalog(found.target().address)


def told(lake: Lake, **properties: object) -> None:
    with lake.table().transaction() as change:
        change.set_properties({name: str(value) for name, value in properties.items()})


def small(lake: Lake, most: int = 5, fewest: int = 1, **options: Any) -> Any:
    """A target whose table keeps few snapshots, and whose readers are quick."""
    target = lake.target(**options)
    target.prepare(SCHEMA)
    told(lake, **{SNAPSHOTS_MAX: most, KEPT_MIN: fewest})
    return target


def files(lake: Lake, folder: str) -> set[str]:
    return {each.name for each in (lake.root / "ware house/lake/orders" / folder).iterdir()}


def needed(lake: Lake) -> tuple[set[str], set[str]]:
    """Names of metadata and data files that the table's snapshots refer to, also those that they took out."""
    table, data = lake.table(), set[str]()
    log = [each.metadata_file for each in table.metadata.metadata_log]
    metadata = {table.metadata_location, *log}
    for each in table.snapshots():
        metadata.add(each.manifest_list)
        for manifest in each.manifests(table.io):
            metadata.add(manifest.manifest_path)
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            data |= {
                entry.data_file.file_path
                for entry in entries
                if entry.status != ManifestEntryStatus.DELETED or entry.snapshot_id == each.snapshot_id
            }
    return {path.rpartition("/")[2] for path in metadata}, {path.rpartition("/")[2] for path in data}


def test_commits_to_a_table_that_a_pipeline_made_cost_what_their_change_costs(lake: Lake) -> None:
    lake.target().prepare(SCHEMA)
    assert lake.table().properties[SNAPSHOTS_MAX] == "100"
    target, took = small(lake, most=20), []
    for number in range(140):
        parts = staged(target, mark(number), rows(number))
        began = time.process_time()
        assert target.commit(mark(number), SCHEMA, parts, replace=False) is Verdict.NEW
        took.append(time.process_time() - began)
    assert median(took[-40:]) < 2 * median(took[20:60])
    assert len(lake.table().snapshots()) <= 20
    assert lake.ids() == sorted(range(140), key=str)
    metadata, data = needed(lake)
    assert files(lake, "metadata") == metadata  # also without what was merged before it was ever listed
    assert files(lake, "data") == data
    assert written(target, mark(139, run="run-2"), rows(139)) is Verdict.DONE


def test_a_table_whose_rows_are_replaced_all_the_time_lists_only_manifests_of_files_that_it_has(lake: Lake) -> None:
    target = lake.target(**UPSERT)
    target.prepare(SCHEMA)
    told(lake, **{"commit.manifest.min-count-to-merge": 4})
    for number in range(12):
        written(target, mark(number), rows(1, 100 + number))
    snapshot = lake.table().current_snapshot()
    assert snapshot is not None
    assert len(snapshot.manifests(lake.table().io)) <= 5
    assert lake.ids() == [1, *range(100, 112)]


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_files_of_snapshots_that_ended_are_gone_and_all_others_are_there(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(iceberg_expiry, "READERS_MS", 0)
    target = small(lake, **options)
    for number in range(14):
        written(target, mark(number), rows(number % 4, 100 + number))
    table = lake.table()
    assert 4 <= len(table.snapshots()) <= 5
    metadata, data = needed(lake)
    assert {each for each in files(lake, "metadata") if not each.endswith(".json")} == {
        each for each in metadata if not each.endswith(".json")
    }
    assert files(lake, "data") == data
    for each in table.snapshots():  # whoever reads one of them finds all of it
        assert table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows > 0


def test_data_that_was_replaced_a_moment_ago_stays_for_those_who_are_reading_it(lake: Lake) -> None:
    target = small(lake, **UPSERT)
    for number in range(9):
        written(target, mark(number), rows(1))
    assert len(lake.table().snapshots()) > 5
    assert files(lake, "data") >= needed(lake)[1]
    assert len(files(lake, "data")) == 9


def test_what_a_tag_names_stays_whole(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_expiry, "READERS_MS", 0)
    target = small(lake, **UPSERT)
    for number in range(3):
        written(target, mark(number), rows(number, 7))
    tagged = lake.table().current_snapshot()
    assert tagged is not None
    lake.table().manage_snapshots().create_tag(tagged.snapshot_id, "audit").commit()
    for number in range(3, 20):
        written(target, mark(number), rows(number, number - 1))
    table = lake.table()
    assert len(table.snapshots()) <= 6
    assert sorted(table.scan(snapshot_id=tagged.snapshot_id).to_arrow().column("id").to_pylist()) == [0, 1, 2, 7]
    assert files(lake, "data") == needed(lake)[1]


def test_a_table_of_others_keeps_its_snapshots(lake: Lake) -> None:
    target = lake.target()
    target.prepare(SCHEMA)
    with lake.table().transaction() as change:
        change.remove_properties(SNAPSHOTS_MAX)
    for number in range(8):
        written(target, mark(number), rows(number))
    told(lake, **{AGE_MAX_MS: 1})
    written(target, mark(8), rows(8))
    assert len(lake.table().snapshots()) == 9


def test_snapshots_end_by_age_too_but_for_the_last_ones(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    target = small(lake, most=1000, fewest=3)
    for number in range(6):
        written(target, mark(number), rows(number))
    assert len(lake.table().snapshots()) == 6
    set_clock(monkeypatch, [iceberg], lambda: time.time_ns() + 2 * iceberg_expiry.DAY_MS * 1_000_000)
    written(target, mark(6), rows(6))
    assert len(lake.table().snapshots()) == 3


def test_one_commit_ends_a_bounded_number(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg_expiry, "EXPIRED_MAX", 4)
    target = small(lake, most=1000)
    for number in range(12):
        written(target, mark(number), rows(number))
    told(lake, **{SNAPSHOTS_MAX: 2})
    counts = []
    for number in range(12, 16):
        written(target, mark(number), rows(number))
        counts.append(len(lake.table().snapshots()))
    assert counts == [9, 6, 3, 2]
    assert EXPIRED_MAX >= 100


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_a_driver_that_dies_while_snapshots_end_has_written_the_batch_once_and_lost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(iceberg_expiry, "READERS_MS", 0)
    deaths, survived = 0, False
    while not survived:
        lake = Lake(tmp_path / str(deaths))
        lake.root.mkdir()
        target = small(lake, most=2, **options)
        for number in range(3):
            written(target, mark(number), rows(1, 10 + number))
        parts = staged(target, mark(3), rows(1, 13))
        with monkeypatch.context() as dying:
            left = _dying(dying, deaths)
            with suppress(Killed):
                target.commit(mark(3), SCHEMA, parts, replace=False)
            survived = left[0] >= 0
        again = mark(3, run="run-2")
        target.commit(again, SCHEMA, staged(target, again, rows(1, 13)), replace=False)
        written(target, mark(4, run="run-2"), rows(14))
        table, expected = lake.table(), ([1] if options else [1, 1, 1, 1]) + [10, 11, 12, 13, 14]
        assert lake.ids() == expected, f"after the death at step {deaths}"
        for each in table.snapshots():
            assert table.scan(snapshot_id=each.snapshot_id).to_arrow().num_rows > 0
        close_catalog(target.address)
        deaths += 1
    assert deaths > 10


def _dying(patch: pytest.MonkeyPatch, at: int) -> list[int]:
    """The process ends after that call; the number is how many were left."""
    left = [at]

    def dying(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def call(*args: Any, **options: Any) -> Any:
            result = real(*args, **options)
            left[0] -= 1
            if left[0] == -1:
                raise Killed
            return result

        patch.setattr(owner, name, call)

    dying(SqlCatalog, "load_table")
    dying(SqlCatalog, "commit_table")
    for name in ("new_output", "new_input", "delete"):
        dying(PyArrowFileIO, name)
    return left
