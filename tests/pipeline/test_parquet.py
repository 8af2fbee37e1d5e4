"""Folders of Parquet as targets: decided once, carried out by whoever comes next, seen by readers as a whole."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from pipeline.tables_world import FIRST, SCHEMA, batch, by_id, rows, stage, write
from pydanube.base.errors import SchemaMismatch, SinkConflict, TargetFailed, TargetRefused
from pydanube.pipeline.targets.files import parquet
from pydanube.pipeline.targets.files.folders import LocalFolder, ObjectFolder, location_of
from pydanube.pipeline.targets.files.parquet import DECISIONS_KEPT, ParquetTarget
from pydanube.pipeline.targets.mark import Verdict


class CutShort(BaseException):
    """The process died here."""


@pytest.fixture
def target(tmp_path: Path) -> ParquetTarget:
    made = ParquetTarget(str(tmp_path / "orders"))
    made.prepare(SCHEMA)
    return made


def content(target: ParquetTarget) -> list[int]:
    """What readers see: they skip names that begin with _ or a dot."""
    return by_id(ds.dataset(target.uri, format="parquet", partitioning="hive").to_table().to_pylist())


def staged(target: ParquetTarget) -> list[Path]:
    return list(Path(target.uri).glob("_danube/*/staged/**/*.parquet"))


def test_batches_are_there_once_under_names_of_their_own(target: ParquetTarget) -> None:
    assert write(target, FIRST, rows([1, 2]), rows([3])) is Verdict.NEW
    assert write(target, FIRST, rows([1]), rows([2, 3])) is Verdict.DONE
    assert write(target, batch(1), rows([4])) is Verdict.NEW
    assert content(target) == [1, 2, 3, 4]
    assert staged(target) == []
    assert sorted(path.name for path in Path(target.uri).glob("*.parquet")) == [
        "orders-0000000000-00000.snappy.parquet",
        "orders-0000000000-00001.snappy.parquet",
        "orders-0000000001-00000.snappy.parquet",
    ]


STEPS = ["put_new", "move", "put_new done"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("again", ["commit", "prepare"])
def test_wherever_a_commit_is_cut_short_the_next_completes_it(
    target: ParquetTarget, monkeypatch: pytest.MonkeyPatch, step: str, after: bool, again: str
) -> None:
    write(target, FIRST, rows([0]))
    name, _, which = step.partition(" ")
    real = getattr(LocalFolder, name)

    def cut(self: LocalFolder, path: str, *given: Any) -> Any:
        hit = not which or path.endswith(which)
        if hit and not after:
            raise CutShort
        found = real(self, path, *given)
        if hit:
            raise CutShort
        return found

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, name, cut)
        with pytest.raises(CutShort):
            write(target, batch(1), rows([1]), rows([2]))
    if again == "prepare":
        target.prepare(SCHEMA)
        assert content(target) == ([0] if step == "put_new" and not after else [0, 1, 2])
    write(target, batch(1), rows([1, 2]))
    write(target, batch(2), rows([3]))
    assert content(target) == [0, 1, 2, 3]


def test_two_attempts_at_one_batch_leave_one(target: ParquetTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one decides between this one's looking and deciding."""
    mine, others = (stage(target, FIRST, [[rows([1, 2])]]) for _ in range(2))
    real = parquet._Decisions.decide
    seen: list[Verdict] = []

    def overtaken(self: Any, decision: Any) -> bool:
        if not seen:
            seen.append(Verdict.DONE)
            seen.append(target.commit(FIRST, SCHEMA, others, replace=False))
        return real(self, decision)

    monkeypatch.setattr(parquet._Decisions, "decide", overtaken)
    assert target.commit(batch(0, run="run-2"), SCHEMA, mine, replace=False) is Verdict.DONE
    assert seen[1] is Verdict.NEW
    assert content(target) == [1, 2]
    assert staged(target) == []


def test_a_zombie_and_a_wiped_checkpoint_are_noticed(target: ParquetTarget) -> None:
    zombie = stage(target, FIRST, [[rows([1])]])
    write(target, batch(0, run="run-2"), rows([1]))
    write(target, batch(1, run="run-2"), rows([2]))
    with pytest.raises(SinkConflict, match="run-2 has already written batch 1"):
        target.commit(FIRST, SCHEMA, zombie, replace=False)
    again = batch(0, query="query-2")
    with pytest.raises(SinkConflict, match="wiped"):
        write(target, again, rows([3]))
    assert write(target, again, rows([3]), replaces=("query-1",)) is Verdict.NEW
    assert write(target, again, rows([3]), replaces=("query-1",)) is Verdict.DONE
    assert content(target) == [1, 2, 3]


def test_complete_mode_replaces_what_readers_see(target: ParquetTarget) -> None:
    write(target, FIRST, rows([1, 2]), replace=True)
    write(target, batch(1), rows([3]), replace=True)
    assert write(target, batch(1), rows([3]), replace=True) is Verdict.DONE
    assert content(target) == [3]
    write(target, batch(2), replace=True)
    assert list(Path(target.uri).glob("*.parquet")) == []


def test_an_empty_batch_decides_nothing(target: ParquetTarget) -> None:
    assert write(target, FIRST) is Verdict.NEW
    assert write(target, batch(1), replace=True) is Verdict.NEW
    assert list(Path(target.uri).rglob("*.json")) == []


def test_old_decisions_and_old_leftovers_go(target: ParquetTarget) -> None:
    stage(target, FIRST, [[rows([99])]])
    [left] = staged(target)
    for number in range(DECISIONS_KEPT + 3):
        write(target, batch(number), rows([number]))
    assert left.exists()
    os.utime(left, (1, 1))
    write(target, batch(DECISIONS_KEPT + 3), rows([DECISIONS_KEPT + 3]))
    assert staged(target) == []
    assert len(list(Path(target.uri).rglob("batch-*.json"))) == DECISIONS_KEPT
    assert content(target) == list(range(DECISIONS_KEPT + 4))


def test_partitions_and_pipelines(tmp_path: Path) -> None:
    target = ParquetTarget(str(tmp_path / "t"), ("day",))
    target.prepare(SCHEMA)
    write(target, FIRST, rows([1], "a b"), rows([2], None))
    write(target, batch(0, pipeline="other / name", query="query-7"), rows([3], "a b"))
    assert content(target) == [1, 2, 3]
    assert len(list((tmp_path / "t" / "day=a b").glob("*.parquet"))) == 2
    assert (tmp_path / "t" / "day=__HIVE_DEFAULT_PARTITION__").is_dir()
    with pytest.raises(SchemaMismatch, match="partitioned by day so far"):
        write(ParquetTarget(target.uri), batch(1), rows([4]))


def test_a_column_keeps_its_type(target: ParquetTarget) -> None:
    write(target, FIRST, rows([1]))
    other = pa.RecordBatch.from_pydict({"id": ["text"], "new": [1]})
    with pytest.raises(SchemaMismatch, match="the column id is string, but was int64 so far"):
        write(target, batch(1), other)
    assert write(target, batch(1), pa.RecordBatch.from_pydict({"id": [2], "new": [1]})) is Verdict.NEW


def test_what_cannot_be_written_or_read(target: ParquetTarget, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TargetRefused):
        ParquetTarget(str(tmp_path / "file" / "t")).prepare(SCHEMA)
    write(target, FIRST, rows([1]))
    [decision] = Path(target.uri).rglob("batch-*.json")
    decision.write_text("{")
    with pytest.raises(TargetFailed, match="cannot be read"):
        write(target, batch(1), rows([2]))


def test_a_file_that_was_moved_and_then_taken_away_holds_up_no_batch(
    target: ParquetTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Cut short before the decision was marked as done, and whoever loads the folder was faster than the next batch."""
    real = LocalFolder.put_new

    def cut(self: LocalFolder, path: str, data: bytes) -> bool:
        if path.endswith(".done"):
            raise CutShort
        return real(self, path, data)

    with monkeypatch.context() as patched:
        patched.setattr(LocalFolder, "put_new", cut)
        with pytest.raises(CutShort):
            write(target, FIRST, rows([1]), rows([2]))
    loaded = Path(target.uri, "orders-0000000000-00001.snappy.parquet")
    loaded.unlink()
    target.prepare(SCHEMA)
    assert [loaded.name in each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [True]
    assert write(target, FIRST, rows([1]), rows([2])) is Verdict.DONE
    assert write(target, batch(1), rows([3])) is Verdict.NEW
    assert content(target) == [1, 3]


@pytest.mark.parametrize("kind", [LocalFolder, ObjectFolder])
def test_a_folder_says_whether_what_it_moved_is_there(tmp_path: Path, kind: type) -> None:
    folder = LocalFolder(tmp_path) if kind is LocalFolder else ObjectFolder(location_of(str(tmp_path)))
    (tmp_path / "source").write_bytes(b"rows")
    assert [folder.move("source", "to/target") for _ in range(2)] == [True, True]
    (tmp_path / "to" / "target").unlink()
    assert folder.move("source", "to/target") is False
