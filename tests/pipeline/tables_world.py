"""Rows, marks and targets driven as the sink drives them: opened by tasks, committed by a driver, on copies."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from pydanube.pipeline.targets.mark import Mark, Verdict
from pydanube.pipeline.targets.target import Target

SCHEMA = pa.schema([("id", pa.int64()), ("day", pa.string()), ("amount", pa.float64())])
FIRST = Mark("orders", "query-1", "run-1", 0, "[1]")


def rows(numbers: Iterable[int], day: str | None = "monday") -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [{"id": number, "day": day, "amount": number / 2} for number in numbers], schema=SCHEMA
    )


def batch(number: int, **changes: Any) -> Mark:
    return dataclasses.replace(FIRST, batch=number, source=f"[{number + 1}]", **changes)


def stage(target: Target, mark: Mark, tasks: Sequence[Sequence[pa.RecordBatch]]) -> list[Any]:
    """The parts of a batch: of each task those that it hands over, if any."""
    parts: list[Any] = []
    for number, batches in enumerate(tasks):
        schema = next((each.schema for each in batches), SCHEMA)
        stager = pickle.loads(pickle.dumps(target)).open(mark, schema, f"{mark.batch}-{number}-{uuid4().hex}")
        for each in batches:
            stager.add(each)
        part = stager.finish()
        if part is not None:
            parts.append(pickle.loads(pickle.dumps(part)))
    return parts


def write(
    target: Target,
    mark: Mark,
    *tasks: pa.RecordBatch,
    schema: pa.Schema | None = None,
    replace: bool = False,
    replaces: tuple[str, ...] = (),
) -> Verdict:
    """One batch: staged by as many tasks as there are lots of rows, then committed."""
    parts = stage(target, mark, [[each] for each in tasks])
    found = schema or (tasks[0].schema if tasks else SCHEMA)
    return pickle.loads(pickle.dumps(target)).commit(mark, found, parts, replace=replace, replaces=replaces)


def by_id(found: Iterable[Mapping[str, Any]]) -> list[int]:
    return sorted(each["id"] for each in found)
