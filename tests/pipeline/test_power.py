"""Tables on a disk that loses its power: whenever that is, they can be read, and have each batch that was answered."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

from deltalake import DeltaTable

from pipeline.iceberg_world import Lake
from pipeline.power_world import Disk
from pipeline.tables_world import batch
from pydanube.base.errors import TargetFailed
from pydanube.pipeline.targets import maintenance
from pydanube.pipeline.targets.delta import durable as delta_durable
from pydanube.pipeline.targets.delta.durable import sync_commit
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.files.parquet import ParquetTarget
from pydanube.pipeline.targets.iceberg.table import close_catalog, open_catalog
from pydanube.pipeline.targets.maintenance import Maintenance
from pydanube.pipeline.targets.mark import Verdict
from pydanube.pipeline.targets.target import CHANGE, Target, with_change

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())])
WIDER = pa.schema([*SCHEMA, pa.field("note", pa.string())])
Rows = dict[int, str | None]  # names by id; None deletes


@dataclass
class Table:
    target: Target
    read: Callable[[], list[dict[str, Any]]]
    restart: Callable[[], None]
    disk: Disk
    batches: int = 0
    cuts_max: int = 9  # that are looked at, of one batch

    def write(self, rows: Rows, schema: pa.Schema = SCHEMA, *, replace: bool = False) -> None:
        """A batch, answered; wherever the power goes meanwhile, what was answered before is there."""
        before, number = self.content(), self.batches
        answered = ({} if replace or not self.target.takes_changes else before) | rows
        with self.disk.during() as cuts:
            self.target.prepare(schema)
            assert self.commit(number, rows, schema, replace=replace) is Verdict.NEW
        self.batches += 1
        after = self.content()
        if self.target.takes_changes:
            assert after == {id: name for id, name in answered.items() if name is not None}
        step = -(-len(cuts) // self.cuts_max) | 1  # odd: of both kinds
        for cut in cuts[-1::-step]:
            is_answered = cut in cuts[-2:]
            with self.disk.after(cut):
                self.restart()
                self.target.prepare(schema)
                found = self.content()
                assert found == after if is_answered else found in (before, after), f"{cut.name} of {len(cuts)}"
                if is_answered or cut.name[3] in "05":
                    again = self.commit(number, rows, schema, replace=replace)
                    assert again is Verdict.DONE or not is_answered
                    assert self.content() == after
        self.restart()

    def commit(self, number: int, rows: Rows, schema: pa.Schema, *, replace: bool = False) -> Verdict:
        mark, staged = batch(number), with_change(schema) if self.target.takes_changes else schema
        plain: list[dict[str, Any]] = [
            {"id": id, "name": name, "at": number, CHANGE: {"deleted": name is None, "offset": id}}
            for id, name in rows.items()
        ]
        stager = self.target.open(mark, staged, f"{number}-0-{time.time_ns()}")
        stager.add(pa.RecordBatch.from_pylist(plain, schema=staged))
        return self.target.commit(mark, schema, [stager.finish()], replace=replace)

    def content(self) -> dict[int, str]:
        return {each["id"]: each["name"] for each in self.read()}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    root = tmp_path / "disk"
    root.mkdir()
    found = Disk(root, tmp_path / "copies")
    found.install(monkeypatch)
    monkeypatch.setattr(delta_durable, "_booted", lambda: time.time() + 60)
    yield found
    found.close()


def delta(disk: Disk, **more: Any) -> Table:
    path = str(disk.root / "t")

    def restart() -> None:
        delta_durable._repaired.clear()
        delta_durable._synced.clear()

    def read() -> list[dict[str, Any]]:
        return DeltaTable(path).to_pyarrow_table().to_pylist() if os.path.exists(f"{path}/_delta_log") else []

    restart()
    return Table(DeltaTarget(path, **more), read, restart, disk)


def iceberg(disk: Disk, **more: Any) -> Table:
    lake = Lake(disk.root)
    target = lake.target(**more)

    def restart() -> None:
        close_catalog(target.address)
        close_catalog(lake.target().address)

    def read() -> list[dict[str, Any]]:
        try:
            return lake.content()
        finally:
            restart()

    target.prepare(SCHEMA)
    return Table(target, read, restart, disk)


def parquet(disk: Disk) -> Table:
    path = disk.root / "t"

    def read() -> list[dict[str, Any]]:
        files = [str(each) for each in path.glob("*.parquet")]
        return ds.dataset(files, SCHEMA).to_table().to_pylist() if files else []

    return Table(ParquetTarget(str(path)), read, lambda: None, disk)


@pytest.fixture(params=["delta", "iceberg"])
def upserting(request: pytest.FixtureRequest, disk: Disk) -> Iterator[Table]:
    if request.param == "delta":
        found = delta(disk, keys=("id",), sequence_by="at", merge_schema=True)
    else:
        found = iceberg(disk, upsert={"keys": ["id"], "sequence_by": "at"}, merge_schema=True)
    yield found
    found.restart()


@pytest.fixture(params=["delta", "iceberg", "parquet"])
def appending(request: pytest.FixtureRequest, disk: Disk) -> Iterator[Table]:
    found = {"delta": delta, "iceberg": iceberg, "parquet": parquet}[request.param](disk)
    yield found
    found.restart()


def test_appended_and_replaced_rows_outlive_a_power_cut(appending: Table) -> None:
    appending.write({1: "ann"})
    appending.write({2: "bob", 3: "cid"})
    assert appending.content() == {1: "ann", 2: "bob", 3: "cid"}
    appending.write({4: "dan"}, replace=True)
    assert appending.content() == {4: "dan"}


def test_upserts_and_deletes_and_new_columns_outlive_a_power_cut(upserting: Table) -> None:
    upserting.write({1: "ann", 2: "bob", 3: "cid"})
    upserting.write({1: None, 2: "bobby"})
    upserting.write({8: None})  # changes no row, but what is remembered
    upserting.write({2: None, 4: "dan"}, WIDER)
    assert upserting.content() == {3: "cid", 4: "dan"}


@pytest.mark.parametrize("kind", [delta, iceberg])
def test_merged_files_and_what_is_let_go_outlive_a_power_cut(
    disk: Disk, kind: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "FILES_MIN", 2)
    maintained: Any = Maintenance(compact=True, expire_seconds=3_600)
    table = kind(disk)
    table.target = dataclasses.replace(table.target, maintenance=maintained)  # type: ignore[type-var]
    table.write({1: "ann"})
    table.write({2: "bob"})
    monkeypatch.setattr(maintenance, "BATCHES", 1)
    files = len(list(disk.root.rglob("*.parquet")))
    table.write({3: "cid"})
    assert len(list(disk.root.rglob("*.parquet"))) > files + 1, "beside the batch's, the one of all"
    table.write({4: "dan"})
    table.restart()


def test_a_file_of_a_commit_that_is_gone_is_an_error(disk: Disk) -> None:
    table = delta(disk)
    table.write({1: "ann"})
    root = disk.root / "t"
    with pytest.raises(TargetFailed, match="log entry of version 7, which was just committed, is gone"):
        sync_commit(root, "its id", 7)
    [file] = root.glob("*.parquet")
    file.unlink()
    with pytest.raises(TargetFailed, match="a file that was just committed is gone: part-"):
        sync_commit(root, "its id", 1)


def test_checkpoints_that_deltalake_makes_are_synced_and_torn_ones_removed(disk: Disk) -> None:
    table = delta(disk)
    table.target.prepare(SCHEMA)
    DeltaTable(str(disk.root / "t")).alter.set_table_properties({"delta.checkpointInterval": "3"})
    table.write({1: "ann"})
    table.write({2: "bob"})
    assert list(disk.root.rglob("*.checkpoint.parquet"))
    assert table.content() == {1: "ann", 2: "bob"}


@pytest.mark.parametrize("keys", [(), ("id",)])
def test_expired_entries_go_after_the_checkpoint_that_stands_for_them_is_on_disk(
    disk: Disk, keys: tuple[str, ...]
) -> None:
    table = delta(disk, keys=keys, merge_schema=True)
    table.target.prepare(SCHEMA)
    logs = disk.root / "t" / "_delta_log"
    expiring = {"delta.checkpointInterval": "3", "delta.logRetentionDuration": "interval 0 seconds"}
    DeltaTable(str(disk.root / "t")).alter.set_table_properties(expiring)
    table.write({1: "ann"})
    assert _versions(logs) == [2]
    table.write({2: "bob"})
    table.write({3: "cid"}, WIDER)  # the batch is behind a commit that adds the column
    assert _versions(logs) == [5]
    DeltaTable(str(disk.root / "t")).alter.set_table_properties({"delta.enableExpiredLogCleanup": "false"})
    table.write({4: "dan"}, WIDER)
    table.write({5: "eve"}, WIDER)
    assert _versions(logs) == [5, 6, 7, 8]
    assert table.content() == {1: "ann", 2: "bob", 3: "cid", 4: "dan", 5: "eve"}


def _versions(logs: Path) -> list[int]:
    return sorted(int(each.stem) for each in logs.glob("*.json"))


def test_entries_of_others_since_the_machine_started_are_never_set_aside(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = delta(disk)
    table.write({1: "ann"})
    monkeypatch.setattr(delta_durable, "_booted", lambda: 0.0)
    entry = disk.root / "t" / "_delta_log" / f"{2:020d}.json"
    entry.write_bytes(b"")
    table.restart()
    table.target.check(SCHEMA)
    assert entry.exists()


def test_sqlite_syncs_the_end_of_its_commits(tmp_path: Path) -> None:
    place = Lake(tmp_path).target().address
    engine: Any = open_catalog(place).engine  # type: ignore[attr-defined]
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3, "EXTRA"
    close_catalog(place)
