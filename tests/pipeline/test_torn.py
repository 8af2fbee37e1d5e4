"""Delta tables that a power cut tore: what was answered stays, and damage of any other kind is an error."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from pipeline.tables_world import SCHEMA, batch, by_id, rows, write
from pydanube.base.errors import TargetFailed
from pydanube.pipeline.targets.delta import durable as delta_durable
from pydanube.pipeline.targets.delta.durable import TORN
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.mark import Mark, Verdict


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeltaTarget]:
    monkeypatch.setattr(delta_durable, "_booted", lambda: time.time() + 60)
    made = DeltaTarget(str(tmp_path / "orders"))
    made.prepare(SCHEMA)
    yield made
    restart()


def restart() -> None:
    delta_durable._repaired.clear()
    delta_durable._synced.clear()


def other(number: int) -> Mark:
    return Mark("others", "query-2", "run-1", number, f"[{number + 1}]")


def ids(target: DeltaTarget) -> list[Any]:
    return by_id(DeltaTable(target.uri).to_pyarrow_table().to_pylist())


def entry(target: DeltaTarget, version: int) -> Path:
    return Path(target.uri, "_delta_log", f"{version:020d}.json")


def data(target: DeltaTarget, version: int) -> Path:
    """The one file that this commit has added."""
    added = DeltaTable(target.uri, version).file_uris()
    [found] = set(added) - set(DeltaTable(target.uri, version - 1).file_uris())
    return Path(found)


def tear(*files: Path) -> None:
    for file in files:
        os.truncate(file, 0)


def listing(target: DeltaTarget) -> dict[str, bytes]:
    root = Path(target.uri)
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


def test_the_hint_goes_with_the_checkpoint_that_it_names(target: DeltaTarget) -> None:
    DeltaTable(target.uri).alter.set_table_properties({"delta.checkpointInterval": "4"})
    write(target, batch(0), rows([1]))
    write(target, batch(1), rows([2]))
    logs = entry(target, 3).parent
    assert (logs / "_last_checkpoint").exists()
    assert (logs / f"{3:020d}.checkpoint.parquet").exists()
    (logs / f"{3:020d}.crc").write_text("of another writer")
    tear(data(target, 3))
    restart()
    assert write(target, batch(1), rows([2])) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert not (logs / f"{3:020d}.crc").exists(), "it is not of the commit that has the version now"


def test_an_older_commit_with_torn_data_is_set_aside_too(target: DeltaTarget) -> None:
    write(target, batch(0), rows([1]))
    write(target, batch(1), rows([2]))
    write_deltalake(target.uri, rows([3]), mode="append")
    tear(data(target, 2), entry(target, 3))
    restart()
    assert write(target, batch(1), rows([2])) is Verdict.NEW
    assert ids(target) == [1, 2]
    assert len(list(Path(target.uri, TORN).iterdir())) == 2


def test_a_torn_file_that_a_commit_took_out_counts_once_that_is_set_aside(target: DeltaTarget) -> None:
    write(target, batch(0), rows([1]))
    write_deltalake(target.uri, rows([2]), mode="append")
    torn = data(target, 2)
    write_deltalake(target.uri, rows([3]), mode="overwrite")
    tear(torn, entry(target, 3))
    restart()
    assert write(target, batch(0), rows([1])) is Verdict.DONE
    assert ids(target) == [1]


@pytest.mark.parametrize("what", [entry, data])
def test_a_damaged_file_with_answered_batches_behind_it_is_an_error_and_changes_nothing(
    target: DeltaTarget, what: Any
) -> None:
    for number in range(4):
        write(target, batch(number), rows([number]))
    file = what(target, 2)
    whole = file.read_bytes()
    tear(file)
    before = listing(target)
    restart()
    for _ in range(2):
        with pytest.raises(TargetFailed, match=f"{file.name}: .* damaged, but not by a power failure") as caught:
            write(target, batch(4), rows([4]))
        assert "nothing was changed" in str(caught.value)
    assert {name: text for name, text in listing(target).items() if name in before} == before
    assert not Path(target.uri, TORN).exists()
    file.write_bytes(whole)
    assert write(target, batch(4), rows([4])) is Verdict.NEW
    assert ids(target) == [0, 1, 2, 3, 4]


def test_an_entry_that_cannot_be_read_is_taken_for_the_batch_that_is_missing(target: DeltaTarget) -> None:
    for number in range(3):
        write(target, batch(number), rows([number]))
    tear(entry(target, 2))  # of batch 1: batch 2 was written after it was answered
    restart()
    with pytest.raises(TargetFailed, match="not by a power failure"):
        target.check(SCHEMA)


def test_commits_of_two_pipelines_are_set_aside_together_if_neither_has_gone_on(target: DeltaTarget) -> None:
    write(target, batch(0), rows([1]))
    write(target, other(0), rows([2]))
    write(target, batch(1), rows([3]))
    tear(data(target, 2))
    restart()
    assert write(target, other(0), rows([2])) is Verdict.NEW
    assert write(target, batch(1), rows([3])) is Verdict.NEW
    assert ids(target) == [1, 2, 3]


def test_without_a_log_that_reaches_back_nothing_is_set_aside(target: DeltaTarget) -> None:
    DeltaTable(target.uri).alter.set_table_properties({"delta.checkpointInterval": "4"})
    write(target, batch(0), rows([1]))
    write(target, batch(1), rows([2]))
    torn = data(target, 3)
    for version in range(3):  # as another writer does it that tidies up at once
        entry(target, version).unlink()
    tear(torn)
    before = listing(target)
    restart()
    with pytest.raises(TargetFailed, match="the log has no earlier version to return to"):
        target.check(SCHEMA)
    assert listing(target) == before
    tear(entry(target, 3).with_suffix(".checkpoint.parquet"))
    before = listing(target)
    with pytest.raises(TargetFailed):
        target.check(SCHEMA)
    assert listing(target) == before
