"""A lake of a test's own: a catalog in SQLite, a warehouse in a folder, and pipelines that write batches there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.table import Table

from pydanube.pipeline.sinks.iceberg import IcebergSink
from pydanube.pipeline.targets.iceberg.files import StagedFile
from pydanube.pipeline.targets.iceberg.target import IcebergTarget
from pydanube.pipeline.targets.mark import Mark, Verdict


def rows(*numbers: int, name: str = "id") -> pa.Table:
    return pa.table({name: pa.array(numbers, pa.int64())})


@dataclass
class Lake:
    root: Path
    name: str = "lake.orders"

    def spec(self, **more: Any) -> dict[str, Any]:
        place = {"uri": f"sqlite:///{self.root}/catalog.db", "warehouse": f"file://{self.root}/ware house"}
        return {"kind": "iceberg", "table": self.name, "type": "sql", **place, **more}

    def target(self, **more: Any) -> IcebergTarget:
        return IcebergSink.target(self.spec(**more))

    def table(self) -> Table:
        return self.target().address.load()

    def content(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.table().scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: [str(value) for value in row.values()])

    def ids(self) -> list[int]:
        return [row["id"] for row in self.content()]


def mark(batch: int, *, run: str = "run-1", query: str = "query-a", pipeline: str = "orders") -> Mark:
    return Mark(pipeline, query, run, batch, f'["end of {batch}"]')


def staged(target: IcebergTarget, now: Mark, *tasks: pa.Table) -> list[list[StagedFile]]:
    """What the tasks of a batch hand to the driver, under names that nobody had before."""
    parts = []
    for number, table in enumerate(tasks):
        stager = target.open(now, table.schema, f"{now.batch}-{number}-{uuid4().hex}")
        for each in table.to_batches():
            stager.add(each)
        part = stager.finish()
        if part is not None:
            parts.append(part)
    return parts


def written(target: IcebergTarget, now: Mark, *tasks: pa.Table, replace: bool = False) -> Verdict:
    """A batch as a pipeline writes it, from the start of a query to the end of the commit."""
    schema = tasks[0].schema
    target.prepare(schema)
    return target.commit(now, schema, staged(target, now, *tasks), replace=replace)
