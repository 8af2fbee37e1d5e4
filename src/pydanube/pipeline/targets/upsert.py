"""Upserts: which rows of a batch count for each key, and how they are merged into a Delta table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties

from pydanube.base.errors import RowInvalid, SchemaMismatch
from pydanube.pipeline.targets.target import CHANGE, CHANGE_FIELDS
from pydanube.spark.decode_types import quoted_name

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
_DELETED = "_danube_deleted"
_KEY_CHARACTERS_SHOWN = 100


def check_upsert(schema: pa.Schema, keys: Sequence[str], sequence_by: str | None) -> None:
    """Raises `SchemaMismatch`."""
    for name in (*keys, *([sequence_by] if sequence_by else [])):
        if name not in schema.names:
            raise SchemaMismatch(f"upsert names {name[:100]}, which is not a column of the rows")
        kind = schema.field(name).type
        if pa.types.is_nested(kind) or (name in keys and pa.types.is_floating(kind)):
            raise SchemaMismatch(f"upsert: {name[:100]} is {kind}, which cannot be compared reliably: cast it")


def newest_rows(rows: pa.Table, keys: Sequence[str], sequence_by: str | None, label: str) -> pa.Table:
    """One row for each key: the one with the greatest `sequence_by`, or the last of those. Without `sequence_by`, it is
    the last one in the topic, if rows have their position.

    Raises `RowInvalid` for a key that is null, and for a second row if nothing tells which is newer.
    """
    for name in keys:
        if rows.column(name).null_count:
            raise RowInvalid(
                f"{label}: a row has no {name}, which is a key of the upsert; a message without a payload "
                "has none: `delete_when: tombstone` deletes by it, and `tombstones: skip` of the source leaves it out"
            )
    positioned = CHANGE in rows.column_names
    if positioned:
        rows = rows.take(_topic_order(rows.column(CHANGE)))
    if sequence_by is not None:
        rows = rows.take(_oldest_first(rows.column(sequence_by)))
    numbered = rows.select(list(keys)).append_column("_number", pa.array(np.arange(len(rows))))
    last = numbered.group_by(list(keys), use_threads=False).aggregate([("_number", "max"), ("_number", "count")])
    if sequence_by is None and not positioned and len(last) < len(rows):
        twice = last.filter(pc.greater(last.column("_number_count"), 1)).select(list(keys))
        [first] = twice.slice(0, 1).to_pylist()
        shown = ", ".join(f"{name}={value!r}" for name, value in first.items())[:_KEY_CHARACTERS_SHOWN]
        raise RowInvalid(
            f"{label}: two rows of a batch have the key {shown}: aggregate or deduplicate them, or set "
            "sequence_by to the column that tells which is newer"
        )
    return rows.take(last.column("_number_max")) if len(last) < len(rows) else rows


def _oldest_first(times: pa.ChunkedArray) -> pa.Array:
    """The rows, oldest first. Nulls are older than anything else. Equal ones keep their order."""
    columns = {"valid": pc.is_valid(times), "time": times, "number": pa.array(np.arange(len(times)))}
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def _topic_order(changes: pa.ChunkedArray) -> pa.Array:
    """The order by append time, then by offset. The rows of one key are in one partition, where both orders agree."""
    columns = {name: pc.struct_field(changes, name) for name in CHANGE_FIELDS[1:]}
    return pc.sort_indices(pa.table(columns), sort_keys=[(name, "ascending") for name in columns])


def matched(old: pa.Table, rows: pa.Table, keys: Sequence[str], sequence_by: str | None) -> tuple[Numbers, Numbers]:
    """The numbers of old rows or deletes that are replaced, and of new rows that are older than those."""
    names = [f"key{number}" for number in range(len(keys))]
    sides = []
    for side, source in (("old", old), ("new", rows)):
        columns = {
            name: source.column(key).cast(rows.schema.field(key).type) for name, key in zip(names, keys, strict=True)
        }
        columns[side] = pa.array(np.arange(len(source)))
        if sequence_by is not None:
            columns[f"{side} time"] = source.column(sequence_by).cast(rows.schema.field(sequence_by).type)
        sides.append(pa.table(columns))
    pairs = sides[0].join(sides[1], names, join_type="inner")
    newer = pa.chunked_array([np.ones(len(pairs), bool)])
    if sequence_by is not None:
        before, after = pairs.column("old time"), pairs.column("new time")
        newer = pc.or_kleene(pc.is_null(before), pc.fill_null(pc.greater_equal(after, before), False))
    gone, lost = pairs.filter(newer).column("old"), pairs.filter(pc.invert(newer)).column("new")
    return gone.to_numpy(), lost.to_numpy()


def split_deleted(rows: pa.Table) -> tuple[pa.Table, pa.ChunkedArray]:
    """The rows as a table has them, and whether each deletes."""
    deleted = deletes_of(rows)
    return rows.drop_columns([CHANGE]) if CHANGE in rows.column_names else rows, deleted


def deletes_of(rows: pa.Table) -> pa.ChunkedArray:
    """Whether each row deletes."""
    if CHANGE not in rows.column_names:
        return pa.chunked_array([np.zeros(len(rows), bool)])
    return pc.fill_null(pc.struct_field(rows.column(CHANGE), CHANGE_FIELDS[0]), False)


def merge(
    table: DeltaTable,
    rows: pa.Table,
    keys: Sequence[str],
    sequence_by: str | None,
    properties: CommitProperties,
    hooks: PostCommitHookProperties | None = None,
) -> None:
    """Merges in one commit, unless nothing changes. A row of the table that is newer by `sequence_by` stays."""
    rows, deleted = split_deleted(rows)
    same = " AND ".join(f"t.{quoted_name(name)} = s.{quoted_name(name)}" for name in keys)
    values = {quoted_name(name): f"s.{quoted_name(name)}" for name in rows.column_names}
    newer = None
    if sequence_by is not None:
        column = quoted_name(sequence_by)
        newer = f"t.{column} IS NULL OR s.{column} >= t.{column}"
    merging = table.merge(
        rows.append_column(_DELETED, deleted),
        same,
        "s",
        "t",
        commit_properties=properties,
        post_commithook_properties=hooks,
    )
    if pc.any(deleted).as_py():
        merging = merging.when_matched_delete(f"s.{_DELETED}" if newer is None else f"s.{_DELETED} AND ({newer})")
    stays = f"NOT s.{_DELETED}"
    merging.when_matched_update(values, stays if newer is None else f"{stays} AND ({newer})").when_not_matched_insert(
        values, stays
    ).execute()
