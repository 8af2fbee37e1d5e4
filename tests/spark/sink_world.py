"""Writers of the data source driven as Spark drives them: copied to tasks, and made again for every commit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

import pydanube.sync
from pydanube.spark.sink import BatchWriter, Staged, StreamWriter
from pydanube.spark.sink_options import SinkOptions

TYPES = {
    "value": pa.binary(),
    "key": pa.string(),
    "attributes": pa.map_(pa.string(), pa.string()),
    "event_time": pa.timestamp("us", tz="UTC"),
    "topic": pa.string(),
}


def rows(**columns: Sequence[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: pa.array(values, TYPES[name]) for name, values in columns.items()})


def values(*found: bytes) -> pa.RecordBatch:
    return rows(value=found)


class Run:
    """One run of a query; the next one of the same query has another id."""

    def __init__(self, url: str, topic: str, query: str | None = None, **options: str) -> None:
        self.query = query or str(uuid4())
        self.id = str(uuid4())
        self._url = url
        self._topic = topic
        self._more = options

    def again(self, **options: str) -> Run:
        return Run(self._url, self._topic, self.query, **{**self._more, **options})

    def _writer(self, columns: Sequence[str]) -> StreamWriter:
        return StreamWriter(SinkOptions.of({"url": self._url, "topic": self._topic, **self._more}), columns)

    def stage(self, batch: int, *tasks: Iterable[pa.RecordBatch] | pa.RecordBatch) -> list[Staged]:
        """What each task hands to the driver."""
        properties = {
            "sql.streaming.queryId": self.query,
            "streaming.sql.batchId": str(batch),
            "spark.jobGroup.id": self.id,
        }
        found = []
        for number, task in enumerate(tasks):
            batches = [task] if isinstance(task, pa.RecordBatch) else list(task)
            columns = batches[0].schema.names if batches else ["value"]
            writer = pickle.loads(pickle.dumps(self._writer(columns)))
            found.append(pickle.loads(pickle.dumps(writer.stage(iter(batches), properties.get, number))))
        return found

    def commit(self, batch: int, staged: Sequence[Staged | None]) -> None:
        self._writer(["value"]).commit(list(staged), batch)

    def write(self, batch: int, *tasks: Iterable[pa.RecordBatch] | pa.RecordBatch) -> None:
        self.commit(batch, self.stage(batch, *tasks))


def write_once(url: str, topic: str, *tasks: pa.RecordBatch, **options: str) -> None:
    """A batch write outside of any query."""
    writer = BatchWriter(SinkOptions.of({"url": url, "topic": topic, **options}), tasks[0].schema.names)
    staged = [
        pickle.loads(pickle.dumps(writer)).stage(iter([task]), {}.get, number) for number, task in enumerate(tasks)
    ]
    pickle.loads(pickle.dumps(writer)).commit(staged)


def payloads(client: pydanube.sync.Client, place: str) -> list[bytes | None]:
    """What is there, in its order."""
    table = client.read_arrow(place)
    found: list[bytes | None] = table.column("payload").to_pylist()
    return found
