"""Upserts into Delta tables: the newest row of each key, once, in one commit with the mark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.tables_world import FIRST, batch, stage, write
from pydanube.base.errors import OptionInvalid, RowInvalid, SchemaMismatch, SinkConflict, TargetRefused
from pydanube.pipeline.spec.plan import target_of
from pydanube.pipeline.targets.delta.target import DeltaTarget
from pydanube.pipeline.targets.mark import Verdict

SCHEMA = pa.schema([("who", pa.string()), ("odd`name", pa.int64()), ("at", pa.int64())])


def rows(*found: tuple[str | None, int, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, each, strict=True)) for each in found], schema=SCHEMA)


def made(folder: Path, **given: Any) -> DeltaTarget:
    target = DeltaTarget(str(folder / "t"), **{"keys": ("who",), **given})
    target.prepare(SCHEMA)
    return target


def content(target: DeltaTarget) -> dict[str, tuple[int, int | None]]:
    found = DeltaTable(target.uri).to_pyarrow_table().to_pylist()
    by_key = {each["who"]: (each["odd`name"], each["at"]) for each in found}
    assert len(by_key) == len(found)
    return by_key


def test_rows_replace_those_with_the_same_key(tmp_path: Path) -> None:
    target = made(tmp_path)
    write(target, FIRST, rows(("a", 1, 0), ("b", 2, 0)))
    write(target, batch(1), rows(("b", 3, 0)), rows(("c", 4, 0)))
    assert content(target) == {"a": (1, 0), "b": (3, 0), "c": (4, 0)}
    table = DeltaTable(target.uri)
    assert table.transaction_version("danube/orders") == 1
    [told] = table.history(1)
    assert told["danube"]["batch"] == 1


def test_a_batch_again_changes_nothing_and_what_was_staged_goes(tmp_path: Path) -> None:
    target = made(tmp_path, partition_by=("who",))
    write(target, FIRST, rows(("a", 1, 0)))
    write(target, batch(1), rows(("a", 2, 0)))
    before = DeltaTable(target.uri).version()
    assert write(target, batch(1), rows(("a", 2, 0))) is Verdict.DONE
    assert DeltaTable(target.uri).version() == before
    assert content(target) == {"a": (2, 0)}
    assert list(Path(target.uri).glob("*.parquet")) == []  # those of the table are below who=a
    with pytest.raises(SinkConflict):
        write(target, FIRST, rows(("a", 1, 0)))


def test_one_that_is_overtaken_judges_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = made(tmp_path)
    mine, others = (stage(target, FIRST, [[rows(("a", 1, 0))]]) for _ in range(2))
    judged = DeltaTarget._commit
    seen: list[Verdict] = []

    def overtaken(self: DeltaTarget, *given: Any, **named: Any) -> Any:
        if not seen:
            seen.append(Verdict.DONE)
            seen.append(target.commit(FIRST, SCHEMA, others, replace=False))
        return judged(self, *given, **named)

    monkeypatch.setattr(DeltaTarget, "_commit", overtaken)
    assert target.commit(FIRST, SCHEMA, mine, replace=False) is Verdict.DONE
    assert seen[1] is Verdict.NEW
    assert content(target) == {"a": (1, 0)}


def test_the_newest_of_a_batch_counts(tmp_path: Path) -> None:
    target = made(tmp_path, sequence_by="at")
    write(target, FIRST, rows(("a", 1, 5), ("a", 2, 9), ("b", 1, None)), rows(("a", 3, 7), ("b", 2, 1)))
    assert content(target) == {"a": (2, 9), "b": (2, 1)}


def test_a_late_row_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    target = made(tmp_path, sequence_by="at")
    write(target, FIRST, rows(("a", 1, 5), ("b", 1, None)))
    write(target, batch(1), rows(("a", 2, 4), ("b", 2, None)))
    assert content(target) == {"a": (1, 5), "b": (2, None)}
    write(target, batch(2), rows(("a", 3, 5)))
    assert content(target)["a"] == (3, 5)


def test_of_equally_new_rows_the_last_counts(tmp_path: Path) -> None:
    target = made(tmp_path, sequence_by="at")
    write(target, FIRST, rows(("a", 1, 5), ("a", 2, 5)))
    assert content(target) == {"a": (2, 5)}


def test_two_rows_of_a_key_without_an_order_are_refused(tmp_path: Path) -> None:
    target = made(tmp_path)
    with pytest.raises(RowInvalid, match=r"two rows of a batch have the key who='a'.*sequence_by"):
        write(target, FIRST, rows(("a", 1, 0), ("b", 1, 0)), rows(("a", 2, 0)))
    assert content(target) == {}


def test_a_key_that_is_null_is_refused(tmp_path: Path) -> None:
    target = made(tmp_path)
    with pytest.raises(RowInvalid, match="no who, which is a key"):
        write(target, FIRST, rows((None, 1, 0)))
    assert content(target) == {}


def test_columns_that_rows_do_not_have_stay(tmp_path: Path) -> None:
    DeltaTable.create(tmp_path / "t", SCHEMA.append(pa.field("note", pa.string())))
    wide = DeltaTarget(str(tmp_path / "t"), keys=("who",))
    noted = rows(("a", 1, 0)).append_column("note", pa.array(["kept"]))
    write(wide, FIRST, noted)
    write(made(tmp_path), batch(1), rows(("a", 2, 0), ("b", 1, 0)))
    found = DeltaTable(wide.uri).to_pyarrow_table().to_pylist()
    assert sorted((each["who"], each["odd`name"], each["note"]) for each in found) == [
        ("a", 2, "kept"),
        ("b", 1, None),
    ]


def test_what_cannot_be_upserted(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="upsert names nope"):
        made(tmp_path, keys=("nope",))
    with pytest.raises(SchemaMismatch, match="cannot be compared"):
        DeltaTarget(str(tmp_path / "t"), keys=("a",)).prepare(pa.schema([("a", pa.float64()), ("b", pa.int64())]))
    with pytest.raises(TargetRefused, match="cannot be combined"):
        write(made(tmp_path), FIRST, rows(("a", 1, 0)), replace=True)
    with pytest.raises(OptionInvalid, match="keys must be one or more"):
        target_of({"kind": "delta", "uri": "x", "upsert": {"keys": []}})
