"""Dead letters as they lie in their table or topic, read without Spark."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.client import Client
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.late import REASON
from pydanube.pipeline.spec_sinks import IcebergSink, TopicSink

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "error", "pipeline")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Letter(NamedTuple):
    """Ordered by where its message is."""

    topic: str
    partition: int
    offset: int
    time: int | None  # when the broker took the message
    key: bytes | None
    value: bytes | None
    error: str

    @property
    def late(self) -> bool:
        return self.error.startswith(REASON)


async def letters_of(client: Client, flow: Flow, url: str) -> Iterator[Letter | None]:
    """All of the pipeline, in no order; None for one that came from no topic."""
    sink = flow.dead_letters
    assert sink is not None
    if isinstance(sink, TopicSink):
        table = await client.read_arrow(sink.topic)
        rows: Iterator[dict[str, Any]] = map(_of_json, table.column("payload").to_pylist())
    else:
        rows = (row for batch in _batches(sink, sink.spec(url)) for row in batch.to_pylist())
    return (_letter(row) for row in rows if row.get("pipeline") == flow.name)


def _letter(row: dict[str, Any]) -> Letter | None:
    if row.get("topic") is None or row.get("offset") is None:
        return None
    time = row.get("timestamp")
    return Letter(
        str(row["topic"]),
        int(row["partition"]),
        int(row["offset"]),
        None if time is None else (time - _EPOCH) // _MICROSECOND,
        row.get("key"),
        row.get("value"),
        str(row.get("error") or ""),
    )


def _of_json(payload: bytes | None) -> dict[str, Any]:
    """As a topic has rows: bytes are base64, and times texts."""
    found = json.loads(payload or b"{}")
    row = dict(found) if isinstance(found, dict) else {}
    for name in ("key", "value"):
        if isinstance(row.get(name), str):
            row[name] = base64.b64decode(row[name])
    if isinstance(row.get("timestamp"), str):
        row["timestamp"] = datetime.fromisoformat(row["timestamp"])
    return row


def _batches(sink: Any, spec: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    if isinstance(sink, IcebergSink):
        from pydanube.pipeline.targets.iceberg import IcebergTarget

        place = IcebergTarget.of(spec).place
        with place.told():
            yield from place.load().scan(selected_fields=COLUMNS).to_arrow_batch_reader()
    elif sink.kind == "delta":
        from deltalake import DeltaTable

        from pydanube.pipeline.targets.folder import delta_place

        uri, options = delta_place(sink.uri)
        table = DeltaTable(uri, storage_options=dict(options))
        yield from table.to_pyarrow_dataset().to_batches(columns=list(COLUMNS))
    else:
        import pyarrow.parquet as pq

        from pydanube.pipeline.targets.folder import folder_at

        folder = folder_at(sink.uri)
        for path, _ in folder.list(""):
            if path.endswith(".parquet") and not path.startswith("_"):
                yield from pq.ParquetFile(io.BytesIO(folder.read(path) or b"")).iter_batches(columns=list(COLUMNS))
