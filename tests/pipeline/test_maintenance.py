"""Small files of tables are merged and what was replaced goes, beside other writers, and every row stays there once."""

from __future__ import annotations

import json
import os
import random
import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError

from module_clock import set_clock
from pipeline.tables_world import SCHEMA, batch, by_id, rows, write
from pydanube.base.errors import OptionInvalid
from pydanube.base.limits import TABLE_FILE_BYTES
from pydanube.pipeline.targets.delta import maintenance as delta_maintenance
from pydanube.pipeline.targets.delta import target as delta_target
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.maintenance import BATCHES, FILES_MIN, FULL_BYTES, Maintenance, groups, is_due, smallest
from pydanube.pipeline.targets.mark import Verdict

COMPACT = Maintenance(compact=True)
EXPIRE = Maintenance(compact=True, expire_seconds=3_600)


class Killed(BaseException):
    """The process ends here."""


# -- which files -------------------------------------------------------------------------------------------------------


def test_few_files_and_full_files_stay_as_they_are() -> None:
    assert smallest([1] * (FILES_MIN - 1)) == []
    assert groups([FULL_BYTES] * 100, lambda _: 0, lambda size: size) == []


def test_a_file_is_rewritten_only_when_it_at_least_doubles() -> None:
    assert smallest([1000, *[1] * 100]) == list(range(1, 101))
    assert smallest([100, *[1] * 100]) == list(range(101))


def test_a_table_that_gets_small_files_for_long_has_few_and_each_byte_is_written_a_few_times() -> None:
    sizes: list[int] = []
    written = 0
    for _ in range(20_000):
        sizes.append(random.randint(5_000, 15_000))
        if len(sizes) % BATCHES == 0:
            chosen = set(smallest([each for each in sizes if each < FULL_BYTES]))
            small = [each for each in sizes if each < FULL_BYTES]
            merged = sum(size for at, size in enumerate(small) if at in chosen)
            written += merged
            sizes = [each for each in sizes if each >= FULL_BYTES]
            sizes += [size for at, size in enumerate(small) if at not in chosen] + ([merged] if chosen else [])
            assert merged <= TABLE_FILE_BYTES
    assert len(sizes) < BATCHES + 20
    assert written < 20 * sum(sizes)


def test_what_maintenance_is_told_is_checked() -> None:
    assert Maintenance.of(None) == Maintenance()
    assert not Maintenance.of({})
    assert Maintenance.of({"compact": True, "expire_seconds": 3_600}) == EXPIRE
    for wrong in (True, {"compact": 1}, {"expire_seconds": 1}, {"expire_seconds": 7 * 86_400}, {"vacuum": True}):
        with pytest.raises(OptionInvalid):
            Maintenance.of(wrong)


def test_a_turn_comes_though_batches_with_rows_never_have_its_number() -> None:
    """With a watermark, Spark follows each batch with rows by one without, and only the former are written."""
    for numbers in (range(0, 320, 2), range(320), range(5, 320, 32), range(31, 320, 32)):
        turns = sum(is_due(last, batch) for last, batch in pairwise([None, *numbers]))
        assert turns in (9, 10)
    assert not is_due(500, 0), "after a reset"


# -- Delta -------------------------------------------------------------------------------------------------------------


def delta(tmp_path: Path, maintenance: Maintenance = COMPACT, **options: Any) -> DeltaTarget:
    made = DeltaTarget(str(tmp_path / "orders"), maintenance=maintenance, **options)
    made.prepare(SCHEMA)
    return made


def filled(target: DeltaTarget, first: int = 0, turn: int = 1) -> None:
    """A file for each row, and maintenance has its turn, if the target has any."""
    tasks = [rows([number]) for number in range(first, first + BATCHES)]
    assert write(target, batch(turn * BATCHES - 1), *tasks) is Verdict.NEW


def content(target: DeltaTarget) -> list[int]:
    return by_id(DeltaTable(target.uri).to_pyarrow_table().to_pylist())


def last_commit(target: DeltaTarget) -> list[dict[str, Any]]:
    table = DeltaTable(target.uri)
    log = Path(target.uri) / "_delta_log" / f"{table.version():020d}.json"
    return [json.loads(line) for line in log.read_text().splitlines()]


def test_small_files_become_one_without_a_change_of_data_and_batches_are_still_known(tmp_path: Path) -> None:
    target = delta(tmp_path)
    filled(target)
    table = DeltaTable(target.uri)
    assert len(table.file_uris()) == 1
    assert content(target) == list(range(BATCHES))
    changes = [each[kind]["dataChange"] for each in last_commit(target) for kind in ("add", "remove") if kind in each]
    assert len(changes) == BATCHES + 1
    assert not any(changes)
    assert table.transaction_version("danube/orders") == BATCHES - 1
    assert write(target, batch(BATCHES - 1), rows([999])) is Verdict.DONE
    assert content(target) == list(range(BATCHES))


def test_partitions_stay_apart_and_keep_their_values(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("place", pa.string())])
    target = DeltaTarget(str(tmp_path / "odd"), partition_by=("at", "place"), maintenance=COMPACT)
    target.prepare(schema)
    times = [datetime(2026, 1, 1, 12, tzinfo=UTC), None]
    found = [{"id": number, "at": times[number % 2], "place": "a/b c=%d"} for number in range(BATCHES)]
    write(target, batch(BATCHES - 1), *[pa.RecordBatch.from_pylist([row], schema=schema) for row in found])
    table = DeltaTable(target.uri)
    assert len(table.file_uris()) == 2
    found = table.to_pyarrow_table().sort_by("id").to_pylist()
    assert [(each["id"], each["at"], each["place"]) for each in found] == [
        (number, times[number % 2], "a/b c=%d") for number in range(BATCHES)
    ]
    values = {each["add"]["partitionValues"]["at"] for each in last_commit(target) if "add" in each}
    assert values <= {"2026-01-01T12:00:00.000000Z", None, ""}


def test_columns_that_came_later_are_null_in_merged_files(tmp_path: Path) -> None:
    target = delta(tmp_path, merge_schema=True)
    write(target, batch(0), *[rows([number]) for number in range(BATCHES)])
    wider = pa.RecordBatch.from_pylist([{"id": 99, "day": "friday", "amount": 1.0, "note": "new"}])
    write(target, batch(BATCHES - 1), wider, schema=wider.schema)
    found = DeltaTable(target.uri).to_pyarrow_table().sort_by("id").to_pylist()
    assert len(DeltaTable(target.uri).file_uris()) == 1
    assert [each["note"] for each in found] == [None] * BATCHES + ["new"]


def test_of_two_that_merge_the_same_files_one_gives_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = delta(tmp_path, Maintenance())
    filled(target)
    commit = delta_maintenance._commit

    def late(*given: Any) -> None:
        monkeypatch.setattr(delta_maintenance, "_commit", commit)
        delta_maintenance.maintain(target.uri, target._open, COMPACT, target._sync)
        commit(*given)

    monkeypatch.setattr(delta_maintenance, "_commit", late)
    delta_maintenance.maintain(target.uri, target._open, COMPACT, target._sync)
    assert content(target) == list(range(BATCHES))
    assert len(list(Path(target.uri).glob("*merged*"))) == 1


@pytest.mark.parametrize("upsert", [False, True])
def test_a_writer_that_commits_meanwhile_is_not_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upsert: bool
) -> None:
    target = delta(tmp_path, Maintenance())
    filled(target)
    commit = delta_maintenance._commit

    def late(*given: Any) -> None:
        other = DeltaTarget(target.uri, keys=("id",) if upsert else ())
        write(other, batch(0, pipeline="other"), rows([3 if upsert else 77], day="changed"))
        commit(*given)

    monkeypatch.setattr(delta_maintenance, "_commit", late)
    delta_maintenance.maintain(target.uri, target._open, COMPACT, target._sync)
    assert content(target) == [*range(BATCHES), *([] if upsert else [77])]
    changed = [each for each in DeltaTable(target.uri).to_pyarrow_table().to_pylist() if each["day"] == "changed"]
    assert [each["id"] for each in changed] == [3 if upsert else 77]


@pytest.mark.parametrize("step", ["_copied", "_commit", "_vacuum"])
def test_a_merge_that_is_cut_short_loses_nothing_and_the_next_one_does_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    target = delta(tmp_path, EXPIRE)

    def killed(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(delta_maintenance, step, killed)
        with pytest.raises(Killed):
            filled(target)
    assert content(target) == list(range(BATCHES))
    assert write(target, batch(BATCHES - 1), rows([999])) is Verdict.DONE
    filled(target, BATCHES, 2)
    assert content(target) == list(range(2 * BATCHES))
    assert len(DeltaTable(target.uri).file_uris()) <= 2


def test_a_failure_of_maintenance_is_told_and_the_batch_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target = delta(tmp_path)

    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(delta_maintenance, "_copied", full)
    filled(target)
    assert content(target) == list(range(BATCHES))
    assert "maintenance is postponed to a later batch" in caplog.text


def test_files_that_were_replaced_go_after_their_time_and_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = delta(tmp_path, EXPIRE)
    folder = Path(target.uri)
    with monkeypatch.context() as patched:
        earlier = time.time_ns() - 2 * 3_600 * 10**9
        patched.setattr(delta_maintenance, "_vacuum", lambda *_: None)
        set_clock(patched, [delta_target, delta_maintenance], lambda: earlier)
        filled(target)
    assert len(list(folder.glob("*.parquet"))) == BATCHES + 1  # readers may still be at the old ones
    foreign = folder / "foreign.parquet"
    foreign.write_bytes(b"somebody else's")
    os.utime(foreign, (0, 0))
    filled(target, BATCHES, 2)
    assert len(list(folder.glob("part-*.parquet"))) == BATCHES + 2
    assert foreign.exists()
    assert content(target) == list(range(2 * BATCHES))
    before = DeltaTable(target.uri).transaction_version(delta_maintenance.VACUUMED)
    filled(target, 2 * BATCHES, 3)
    assert before is not None
    assert DeltaTable(target.uri).transaction_version(delta_maintenance.VACUUMED) == before  # once a day


def test_every_version_that_maintenance_makes_is_on_disk_before_the_next_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = delta(tmp_path, EXPIRE)
    synced: set[str] = set()
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.add(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    earlier = time.time_ns() - 2 * 3_600 * 10**9
    with monkeypatch.context() as patched:
        set_clock(patched, [delta_target, delta_maintenance], lambda: earlier)
        filled(target)  # a merge, and what it took out is deleted at once
    assert DeltaTable(target.uri).transaction_version(delta_maintenance.VACUUMED) is not None
    assert target.remembered(batch(0, pipeline="vacuumed")) is None, "a pipeline of that name has no batch there"
    assert synced >= {f"{version:020d}.json" for version in range(1, DeltaTable(target.uri).version() + 1)}


def test_a_commit_for_a_version_that_is_not_the_last_fails_also_if_it_only_removes(tmp_path: Path) -> None:
    """What merging relies on: the library does not rebase it on what others did."""
    target = delta(tmp_path, Maintenance())
    filled(target)
    table = DeltaTable(target.uri)
    write_deltalake(target.uri, pa.table({"id": [99], "day": ["x"], "amount": [1.0]}), mode="append")
    with pytest.raises(CommitFailedError):
        delta_maintenance._commit(target.uri, table, delta_maintenance.listed_files(table)[:2], [], ())
