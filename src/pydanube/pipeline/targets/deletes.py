"""What a table remembers of deleted rows, if a column says which change of a key is newer. Pure.

Otherwise a row that arrives late would restore a row that a newer change deleted, because there is nothing left to
compare it with. A table remembers its last deletes with their sequence, and forgets one when a newer row has its key.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pydanube.base.errors import RowInvalid, TargetFailed
from pydanube.base.limits import DELETES_REMEMBERED_MAX
from pydanube.pipeline.targets.upsert import deletes_of, matched

log = logging.getLogger(__name__)


def remember(
    known: pa.Table | None, rows: pa.Table, keys: Sequence[str], sequence_by: str, label: str
) -> tuple[pa.Table, pa.Table | None]:
    """Returns the rows of a batch, one for each key, that are not older than a delete, and the deletes to remember from
    now on, with their keys and sequence; None if these are the `known` ones. Deletes that are known by other columns,
    because the upsert has changed, cannot be compared and are forgotten.

    Raises `RowInvalid` for a delete without a sequence.
    """
    columns = [*keys, sequence_by]
    deleted = deletes_of(rows)
    deletes = rows.filter(deleted).select(columns)
    if deletes.column(sequence_by).null_count:
        raise RowInvalid(
            f"{label}: a message without a payload deletes a row but has no {sequence_by}, so it is not known "
            "whether it is the newest: use event_time in sequence_by, or give the column a value in a SQL step"
        )
    if known is None:
        return rows, _last(deletes, keys, sequence_by) if len(deletes) else None
    comparable = _as_now(known, deletes.schema)
    if comparable is None:
        before, now = ", ".join(known.column_names), ", ".join(columns)
        log.warning(
            "%s: forgetting earlier deletes: they are recorded by %s, but the upsert now uses %s", label, before, now
        )
        return rows, _last(deletes, keys, sequence_by)
    known = comparable
    passed, older = matched(known, rows, keys, sequence_by)
    stays = np.ones(len(rows), bool)
    stays[older] = False
    rows = rows.filter(pa.array(stays))
    if not len(passed) and not len(deletes):
        return rows, None
    left = np.ones(len(known), bool)
    left[passed] = False
    again = rows.filter(deletes_of(rows)).select(columns)
    return rows, _last(pa.concat_tables([known.filter(pa.array(left)), again]), keys, sequence_by)


def _as_now(known: pa.Table, schema: pa.Schema) -> pa.Table | None:
    """The deletes in the present columns, in any order; None if columns differ, or if types do not fit."""
    (*keys, sequence), (*keys_now, sequence_now) = known.column_names, schema.names
    if sequence != sequence_now or sorted(keys) != sorted(keys_now):
        return None
    try:
        return known.select(schema.names).cast(schema)
    except (pa.ArrowException, ValueError):
        return None


def _last(deletes: pa.Table, keys: Sequence[str], sequence_by: str) -> pa.Table:
    """The newest deletes, as many as a table remembers."""
    order = pc.sort_indices(deletes, sort_keys=[(sequence_by, "descending"), *((name, "ascending") for name in keys)])
    return deletes.take(order[:DELETES_REMEMBERED_MAX]).combine_chunks()


def packed(deletes: pa.Table) -> bytes:
    output = pa.BufferOutputStream()
    with pa.ipc.new_stream(output, deletes.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as stream:
        stream.write_table(deletes)
    found: bytes = output.getvalue().to_pybytes()
    return found


def unpacked(data: bytes | None, label: str) -> pa.Table:
    """Raises `TargetFailed`."""
    try:
        return pa.ipc.open_stream(data or b"").read_all()
    except pa.ArrowException:
        raise TargetFailed(f"{label}: its record of deleted rows is missing or cannot be read") from None
