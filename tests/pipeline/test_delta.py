"""Delta tables as targets: each batch once, whatever is cut short, repeated or done by two; and what is refused."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("deltalake")

from deltalake import DeltaTable, write_deltalake

from pipeline.tables_world import FIRST, SCHEMA, batch, by_id, rows, stage, write
from pydanube.base.errors import RowInvalid, SchemaMismatch, SinkConflict, TableUnsupported, TargetFailed, TargetRefused
from pydanube.pipeline.targets.delta.target import DeltaTarget, number_of
from pydanube.pipeline.targets.maintenance import BATCHES, Maintenance
from pydanube.pipeline.targets.mark import Verdict


@pytest.fixture
def target(tmp_path: Path) -> DeltaTarget:
    made = DeltaTarget(str(tmp_path / "orders"))
    made.prepare(SCHEMA)
    return made


def content(target: DeltaTarget) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DeltaTable(target.uri).to_pyarrow_table().to_pylist()
    return found


def version(target: DeltaTarget) -> int:
    return DeltaTable(target.uri).version()


# -- once --------------------------------------------------------------------------------------------------------------


def test_batches_are_appended_and_remembered(target: DeltaTarget) -> None:
    assert write(target, FIRST, rows([1, 2]), rows([3])) is Verdict.NEW
    assert write(target, batch(1), rows([4])) is Verdict.NEW
    assert by_id(content(target)) == [1, 2, 3, 4]
    table = DeltaTable(target.uri)
    assert table.transaction_version("danube/orders") == 1
    assert table.transaction_version("danube/orders/query") == number_of("query-1")
    [told] = table.history(1)
    assert told["danube"] == {"pipeline": "orders", "query": "query-1", "run": "run-1", "batch": 1, "source": "[2]"}


def test_the_same_batch_again_changes_nothing(target: DeltaTarget) -> None:
    write(target, FIRST, rows([1, 2]), rows([3]))
    before = version(target)
    assert write(target, FIRST, rows([1]), rows([2, 3])) is Verdict.DONE  # divided among tasks in another way
    assert by_id(content(target)) == [1, 2, 3]
    assert version(target) == before


def test_the_same_parts_again_change_nothing(target: DeltaTarget) -> None:
    parts = stage(target, FIRST, [[rows([1])], [rows([2])]])
    assert target.commit(FIRST, SCHEMA, parts, replace=False) is Verdict.NEW
    assert target.commit(FIRST, SCHEMA, parts, replace=False) is Verdict.DONE
    assert by_id(content(target)) == [1, 2]


def test_a_batch_that_was_staged_and_not_committed_comes_again(target: DeltaTarget) -> None:
    stage(target, FIRST, [[rows([1, 2])]])
    assert content(target) == []
    assert write(target, FIRST, rows([1, 2])) is Verdict.NEW
    assert by_id(content(target)) == [1, 2]


def test_an_empty_batch_makes_no_version(target: DeltaTarget) -> None:
    write(target, FIRST, rows([1]))
    before = version(target)
    assert write(target, batch(1)) is Verdict.NEW
    assert version(target) == before
    assert write(target, batch(2), rows([2])) is Verdict.NEW
    assert by_id(content(target)) == [1, 2]


def test_two_attempts_at_one_batch_leave_one(target: DeltaTarget) -> None:
    mine, others = (stage(target, FIRST, [[rows([1, 2])]]) for _ in range(2))
    assert target.commit(FIRST, SCHEMA, mine, replace=False) is Verdict.NEW
    assert target.commit(batch(0, run="run-2"), SCHEMA, others, replace=False) is Verdict.DONE
    assert by_id(content(target)) == [1, 2]


def test_one_that_was_overtaken_between_looking_and_committing_looks_again(
    target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another attempt commits the batch just after this one has judged that it is new."""
    mine, others = (stage(target, FIRST, [[rows([1, 2])]]) for _ in range(2))
    judged = DeltaTarget._commit
    late: list[Verdict] = []

    def overtaken(self: DeltaTarget, *given: Any, **named: Any) -> Any:
        if not late:
            late.append(Verdict.NEW)
            late.append(target.commit(FIRST, SCHEMA, others, replace=False))
        return judged(self, *given, **named)

    monkeypatch.setattr(DeltaTarget, "_commit", overtaken)
    assert target.commit(batch(0, run="run-2"), SCHEMA, mine, replace=False) is Verdict.DONE
    assert late[1] is Verdict.NEW
    assert by_id(content(target)) == [1, 2]


def test_others_who_write_meanwhile_are_no_obstacle(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = stage(target, FIRST, [[rows([1])]])
    judged = DeltaTarget._commit
    others = iter([8, 9])

    def disturbed(self: DeltaTarget, *given: Any, **named: Any) -> Any:
        if (number := next(others, None)) is not None:
            write_deltalake(target.uri, pa.Table.from_batches([rows([number])]), mode="append")
        return judged(self, *given, **named)

    monkeypatch.setattr(DeltaTarget, "_commit", disturbed)
    assert target.commit(FIRST, SCHEMA, parts, replace=False) is Verdict.NEW
    assert by_id(content(target)) == [1, 8, 9]


def test_many_who_commit_at_once_lose_nothing_and_repeat_nothing(target: DeltaTarget) -> None:
    """Two attempts at each batch of three pipelines, all at the same time."""
    expected = [100 * pipeline + number for pipeline in range(3) for number in range(4)]

    def drive(given: tuple[int, str]) -> None:
        pipeline, run = given
        for number in range(4):
            mark = batch(number, pipeline=f"p{pipeline}", run=run)
            try:
                write(target, mark, rows([100 * pipeline + number]))
            except SinkConflict:
                return  # the other attempt is ahead

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(drive, [(pipeline, run) for pipeline in range(3) for run in ("run-1", "run-2")]))
    assert by_id(content(target)) == expected


def test_what_is_remembered_outlives_the_log(target: DeltaTarget) -> None:
    """A checkpoint of the table stands for the commits before it, and those are cleaned up in time."""
    for number in range(3):
        write(target, batch(number), rows([number]))
    DeltaTable(target.uri).create_checkpoint()
    for commit in sorted((Path(target.uri) / "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    assert write(target, batch(2), rows([2])) is Verdict.DONE
    with pytest.raises(SinkConflict):
        write(target, batch(2, query="query-2"), rows([2]))
    assert write(target, batch(3), rows([3])) is Verdict.NEW
    assert by_id(content(target)) == [0, 1, 2, 3]


def test_a_zombie_is_fenced(target: DeltaTarget) -> None:
    zombie = stage(target, FIRST, [[rows([1])]])
    write(target, batch(0, run="run-2"), rows([1]))
    write(target, batch(1, run="run-2"), rows([2]))
    with pytest.raises(SinkConflict, match="run-2 has already written batch 1"):
        target.commit(FIRST, SCHEMA, zombie, replace=False)
    assert by_id(content(target)) == [1, 2]


def test_a_wiped_checkpoint_is_noticed_and_may_be_meant(target: DeltaTarget) -> None:
    write(target, FIRST, rows([1]))
    again = batch(0, query="query-2")
    with pytest.raises(SinkConflict, match=r"query-1 has already written up to batch 0.*wiped"):
        write(target, again, rows([1]))
    assert write(target, again, rows([2]), replaces=("query-1",)) is Verdict.NEW
    assert write(target, again, rows([2]), replaces=("query-1",)) is Verdict.DONE
    assert by_id(content(target)) == [1, 2]


def test_a_copied_checkpoint_is_noticed(target: DeltaTarget) -> None:
    write(target, batch(5), rows([1]))
    with pytest.raises(SinkConflict, match=r"copy of the checkpoint"):
        write(target, replace(batch(5), run="run-2", source="[77]"), rows([2]))
    assert by_id(content(target)) == [1]


def test_pipelines_share_a_table(target: DeltaTarget) -> None:
    write(target, FIRST, rows([1]))
    assert write(target, batch(0, pipeline="returns", query="query-9"), rows([2])) is Verdict.NEW
    assert by_id(content(target)) == [1, 2]


def test_complete_mode_replaces_everything_once(target: DeltaTarget) -> None:
    write(target, FIRST, rows([1, 2]), replace=True)
    write(target, batch(1), rows([3]), replace=True)
    assert write(target, batch(1), rows([3]), replace=True) is Verdict.DONE
    assert by_id(content(target)) == [3]
    write(target, batch(2), replace=True)
    assert content(target) == []
    before = version(target)
    write(target, batch(3), replace=True)
    assert version(target) == before


def test_what_a_failed_task_wrote_is_dropped(target: DeltaTarget) -> None:
    stager = target.open(FIRST, SCHEMA, "0-0-a")
    stager._held_bytes_max = 1
    stager.add(rows([1]))
    assert list(Path(target.uri).glob("*.parquet"))
    stager.drop()
    assert not list(Path(target.uri).glob("*.parquet"))


# -- the table ---------------------------------------------------------------------------------------------------------


def test_a_table_that_is_there_is_taken_if_it_fits(tmp_path: Path) -> None:
    wide = SCHEMA.append(pa.field("note", pa.string()))
    DeltaTable.create(tmp_path / "t", wide)
    target = DeltaTarget(str(tmp_path / "t"))
    target.prepare(SCHEMA)
    write(target, FIRST, rows([1]))
    assert content(target) == [{"id": 1, "day": "monday", "amount": 0.5, "note": None}]


def test_a_type_that_differs_is_refused(target: DeltaTarget) -> None:
    other = pa.schema([("id", pa.int32()), ("day", pa.string()), ("amount", pa.float64())])
    with pytest.raises(SchemaMismatch, match="the column id is integer in the rows and long in the table"):
        target.prepare(other)


def test_a_new_column_needs_merge_schema(target: DeltaTarget) -> None:
    wide = SCHEMA.append(pa.field("note", pa.string()))
    with pytest.raises(SchemaMismatch, match="does not have the columns note"):
        target.prepare(wide)
    merging = DeltaTarget(target.uri, merge_schema=True)
    write(target, FIRST, rows([1]))
    merging.prepare(wide)
    more = pa.RecordBatch.from_pylist([{"id": 2, "day": None, "amount": None, "note": "new"}], schema=wide)
    write(merging, batch(1), more)
    assert sorted((each["id"], each["note"]) for each in content(target)) == [(1, None), (2, "new")]


def test_a_column_that_only_differs_in_case_is_refused(target: DeltaTarget) -> None:
    other = pa.schema([("ID", pa.int64())])
    with pytest.raises(SchemaMismatch, match="the column ID, but the table id"):
        DeltaTarget(target.uri, merge_schema=True).prepare(other)


def test_a_table_that_is_changed_meanwhile_is_noticed_at_the_commit(target: DeltaTarget) -> None:
    parts = stage(target, FIRST, [[rows([1])]])
    DeltaTable(target.uri).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(TableUnsupported, match="check constraint positive"):
        target.commit(FIRST, SCHEMA, parts, replace=False)
    assert content(target) == []


def test_a_table_that_is_gone_is_an_error(tmp_path: Path) -> None:
    target = DeltaTarget(str(tmp_path / "t"))
    with pytest.raises(TargetFailed, match="the table is gone"):
        target.commit(FIRST, SCHEMA, stage(target, FIRST, [[rows([1])]]), replace=False)


def test_columns_that_are_never_null(tmp_path: Path) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("amount", pa.float64())])
    DeltaTable.create(tmp_path / "t", strict)
    target = DeltaTarget(str(tmp_path / "t"))
    with pytest.raises(SchemaMismatch, match="id is NOT NULL, but the rows do not have it"):
        target.prepare(pa.schema([("day", pa.string())]))
    target.prepare(SCHEMA)
    write(target, FIRST, rows([1]))
    null = pa.RecordBatch.from_pylist([{"id": None, "day": "x", "amount": None}], schema=SCHEMA)
    with pytest.raises(RowInvalid, match="null in id"):
        write(target, batch(1), rows([2]), null)
    assert by_id(content(target)) == [1]


PROPERTIES = [
    ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "setTransactionRetentionDuration"),
]


@pytest.mark.parametrize(("properties", "named"), PROPERTIES)
def test_a_property_that_files_do_not_suit_is_refused_by_name(
    tmp_path: Path, properties: dict[str, str], named: str
) -> None:
    DeltaTable.create(tmp_path / "t", SCHEMA, configuration=properties)
    with pytest.raises(TableUnsupported, match=named):
        DeltaTarget(str(tmp_path / "t")).prepare(SCHEMA)


def hand_made(folder: Path, protocol: dict[str, Any], configuration: dict[str, str], column: dict[str, Any]) -> str:
    """A table as other engines make it."""
    kinds = {"id": "long", "day": "string", "amount": "double"}
    fields: list[dict[str, Any]] = [
        {"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()
    ]
    fields[0]["metadata"] = column
    if "delta.columnMapping.mode" in configuration:
        for number, field in enumerate(fields):
            field["metadata"] = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
    metadata = {
        "id": "5fba94ed-9794-4965-ba6e-6ee3c0d22af9",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": [],
        "configuration": configuration,
        "createdTime": 0,
    }
    (folder / "_delta_log").mkdir(parents=True)
    lines = [json.dumps({"protocol": protocol}), json.dumps({"metaData": metadata})]
    (folder / "_delta_log" / f"{0:020d}.json").write_text("\n".join(lines))
    return str(folder)


def featured(*names: str, reader: tuple[str, ...] = ()) -> dict[str, Any]:
    found: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": list(names)}
    if reader:
        found |= {"minReaderVersion": 3, "readerFeatures": list(reader)}
    return found


OLD = {"minReaderVersion": 1, "minWriterVersion": 6}
HAND_MADE: list[tuple[dict[str, Any], dict[str, str], dict[str, Any], str]] = [
    (OLD, {"delta.constraints.positive": "id > 0"}, {}, "check constraint positive"),
    (OLD, {}, {"delta.generationExpression": "1 + 1"}, "id is a generated column"),
    (OLD, {}, {"delta.identity.start": 1, "delta.identity.step": 1}, "id is an identity column"),
    (OLD, {}, {"delta.invariants": '{"expression":{"expression":"id > 3"}}'}, "id has an invariant"),
    (
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "2"},
        {},
        "column mapping",
    ),
    (featured("inCommitTimestamp"), {}, {}, "inCommitTimestamp"),
    (featured("rowTracking", "domainMetadata"), {}, {}, "domainMetadata"),
]


@pytest.mark.parametrize(("protocol", "configuration", "column", "named"), HAND_MADE)
def test_a_feature_that_files_do_not_have_is_refused_by_name(
    tmp_path: Path, protocol: dict[str, Any], configuration: dict[str, str], column: dict[str, Any], named: str
) -> None:
    uri = hand_made(tmp_path / "t", protocol, configuration, column)
    with pytest.raises(TableUnsupported, match=named):
        DeltaTarget(uri).prepare(SCHEMA)


def test_column_mapping_without_names_is_refused_by_name_too(tmp_path: Path) -> None:
    uri = hand_made(tmp_path / "t", {"minReaderVersion": 2, "minWriterVersion": 5}, {}, {})
    log = tmp_path / "t" / "_delta_log" / f"{0:020d}.json"
    log.write_text(
        log.read_text().replace('"configuration": {}', '"configuration": {"delta.columnMapping.mode": "name"}')
    )
    with pytest.raises(TableUnsupported, match="column mapping"):
        DeltaTarget(uri).prepare(SCHEMA)


@pytest.mark.parametrize(
    "protocol", [{"minReaderVersion": 1, "minWriterVersion": 2}, featured("appendOnly", "invariants")]
)
def test_features_that_are_not_in_use_do_no_harm(tmp_path: Path, protocol: dict[str, Any]) -> None:
    target = DeltaTarget(hand_made(tmp_path / "t", protocol, {"delta.appendOnly": "true"}, {}))
    target.prepare(SCHEMA)
    assert write(target, FIRST, rows([1])) is Verdict.NEW
    with pytest.raises(TableUnsupported, match="append-only"):
        DeltaTarget(target.uri, keys=("id",)).prepare(SCHEMA)
    with pytest.raises(TableUnsupported, match="append-only"):
        write(target, batch(1), rows([2]), replace=True)


VECTORS = featured("deletionVectors", "variantType", reader=("deletionVectors", "variantType"))
FEED = {"delta.enableChangeDataFeed": "true"}


@pytest.mark.parametrize(
    ("protocol", "configuration", "named"),
    [
        (VECTORS, {"delta.enableDeletionVectors": "true"}, "deletion vectors"),
        ({"minReaderVersion": 1, "minWriterVersion": 4}, FEED, "change data feed"),
        (featured("changeDataFeed"), FEED, "change data feed"),
    ],
)
def test_what_only_changes_of_rows_must_heed_does_not_keep_anybody_from_adding(
    tmp_path: Path, protocol: dict[str, Any], configuration: dict[str, str], named: str
) -> None:
    uri = hand_made(tmp_path / "t", protocol, configuration, {})
    target = DeltaTarget(uri, maintenance=Maintenance(compact=True))
    target.prepare(SCHEMA)
    assert write(target, batch(BATCHES - 1), *(rows([number]) for number in range(10))) is Verdict.NEW
    assert write(target, batch(BATCHES - 1), rows([1])) is Verdict.DONE
    table = DeltaTable(uri)
    assert sum(pq.read_metadata(each).num_rows for each in table.file_uris()) == 10
    assert len(table.file_uris()) == (10 if protocol is VECTORS else 1)  # rows that vectors hide would come back
    with pytest.raises(TableUnsupported, match=named):
        DeltaTarget(uri, keys=("id",)).prepare(SCHEMA)
    with pytest.raises(TableUnsupported, match=named):
        write(target, batch(BATCHES), rows([2]), replace=True)


def test_other_partition_columns_are_refused(target: DeltaTarget) -> None:
    with pytest.raises(SchemaMismatch, match="partitioned by nothing, but the pipeline by day"):
        DeltaTarget(target.uri, partition_by=("day",)).prepare(SCHEMA)


@pytest.mark.parametrize(
    ("partition_by", "named"), [(("nope",), "not a column"), (("amount",), "double"), (("id", "day", "amount"), ".")]
)
def test_what_no_table_is_partitioned_by(tmp_path: Path, partition_by: tuple[str, ...], named: str) -> None:
    with pytest.raises(SchemaMismatch, match=named):
        DeltaTarget(str(tmp_path / "t"), partition_by=partition_by).prepare(SCHEMA)
    assert not (tmp_path / "t").exists()


def test_a_type_that_delta_does_not_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match=r"the column took is .*, which Delta tables do not support"):
        DeltaTarget(str(tmp_path / "t")).prepare(pa.schema([("took", pa.duration("us"))]))
    assert not (tmp_path / "t").exists()


def test_a_name_that_parquet_does_not_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaMismatch, match="the column 'count of' has ' ' in its name, which Delta does not allow"):
        DeltaTarget(str(tmp_path / "t")).prepare(pa.schema([("count of", pa.int64())]))


def test_a_list_that_is_never_null_is_refused(tmp_path: Path) -> None:
    kind = pa.list_(pa.field("element", pa.int64()))
    DeltaTable.create(tmp_path / "t", pa.schema([pa.field("list", kind, nullable=False), ("id", pa.int64())]))
    with pytest.raises(TableUnsupported, match="list is NOT NULL, which cannot be checked"):
        DeltaTarget(str(tmp_path / "t")).prepare(pa.schema([("list", kind), ("id", pa.int64())]))


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(TargetRefused):
        DeltaTarget(str(tmp_path / "file" / "t")).prepare(SCHEMA)
    with pytest.raises(TargetRefused):
        DeltaTarget("/sys/kernel/orders").prepare(SCHEMA)


def test_a_log_that_cannot_be_read_is_an_error_of_ours(target: DeltaTarget) -> None:
    (Path(target.uri) / "_delta_log" / f"{1:020d}.json").write_text('{"add": 7}')
    with pytest.raises((TargetFailed, TableUnsupported)):
        target.prepare(SCHEMA)


def test_a_batch_that_is_new_does_not_look_back_through_the_log(
    target: DeltaTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(target, batch(0), rows([1]))
    with monkeypatch.context() as patched:
        patched.delattr(DeltaTable, "history")
        assert write(target, batch(1), rows([2])) is Verdict.NEW
        assert write(target, batch(1), rows([2])) is Verdict.DONE
    last = target.remembered(batch(7))
    assert last is not None
    assert (last.batch, last.source) == (1, "[2]"), "who asks for it is told the source of that batch, not its own"


def test_a_batch_does_not_list_the_log(target: DeltaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a file for each commit of a month: with a hundred thousand of them a list takes a second."""
    write(target, batch(0), rows([1]))
    with monkeypatch.context() as patched:
        patched.delattr(Path, "iterdir")
        patched.delattr(Path, "glob")
        assert write(target, batch(1), rows([2])) is Verdict.NEW
        assert write(target, batch(1), rows([2])) is Verdict.DONE
