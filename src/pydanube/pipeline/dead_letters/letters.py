"""Dead letters as they lie in their table or topic, read without Spark: a slice at a time, beside the loop."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pydanube
from pydanube.client import Client
from pydanube.client.reader import partition_positions
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.late import REASON
from pydanube.pipeline.spec.sinks import IcebergSink, TopicSink

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "event_time",
    "key",
    "attributes",
    "value",
    "error",
    "pipeline",
)
SLICE_ROWS = 100  # that become Python objects at a time: with the largest payloads they are some hundred MiB
_OVERHEAD_BYTES = 1_000  # of a letter in memory, about, besides what is in it
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_BEYOND = re.compile(r"out.of.range:.(-?[0-9]+)>")  # how Arrow writes a time that it has no date for
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Letter(NamedTuple):
    """What a dead letter has of its message."""

    topic: str
    partition: int
    offset: int
    time: int | None  # when the broker took the message
    event_time: int | None
    key: bytes | None
    attributes: Mapping[str, str]
    value: bytes | None
    late: bool

    @property
    def size(self) -> int:
        """Bytes in memory, about."""
        texts = sum(len(name) + len(text) for name, text in self.attributes.items())
        return _OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + texts


async def letters_of(client: Client, flow: Flow, url: str) -> AsyncIterator[list[Letter | None]]:
    """All of the pipeline, in no order and in slices; None for one that came from no topic."""
    sink = flow.dead_letters
    assert sink is not None
    if isinstance(sink, TopicSink):
        elsewhere = sink.url is not None and sink.url != (flow.url or url)
        async with (
            pydanube.connect(sink.url, ca_file=sink.ca) if elsewhere and sink.url else nullcontext(client) as reading
        ):
            async for payloads in _payloads(reading, sink.topic):
                yield await asyncio.to_thread(_letters, map(_of_json, payloads), flow.name)
        return
    batches = _batches(sink, sink.spec(url))
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        for at in range(0, len(batch), SLICE_ROWS):
            rows = await asyncio.to_thread(_rows, batch.slice(at, SLICE_ROWS))
            yield _letters(rows, flow.name)


async def _payloads(client: Client, topic: str) -> AsyncIterator[list[bytes | None]]:
    """What the topic has now, batch by batch."""
    for place in await partition_positions(client, topic, "earliest", None, end="latest"):
        while not place.at_end and (batches := await place.read(client, place.end)):
            for batch in batches:
                payloads = await asyncio.to_thread(getattr, batch, "payloads")  # which unpacks it
                for at in range(0, len(payloads), SLICE_ROWS):
                    yield payloads[at : at + SLICE_ROWS]


def _rows(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Times as microseconds: Python has none after the year 9999."""
    import pyarrow as pa

    for at, each in enumerate(batch.schema):
        if pa.types.is_timestamp(each.type):
            micros = batch.column(at).cast(pa.timestamp("us", each.type.tz), safe=False).cast(pa.int64())
            batch = batch.set_column(at, each.name, micros)
    return list(batch.to_pylist())


def _letters(rows: Iterable[dict[str, Any]], pipeline: str) -> list[Letter | None]:
    return [_letter(row) for row in rows if row.get("pipeline") == pipeline]


def _letter(row: dict[str, Any]) -> Letter | None:
    if row.get("topic") is None or row.get("offset") is None:
        return None
    return Letter(
        str(row["topic"]),
        int(row["partition"]),
        int(row["offset"]),
        _micros(row.get("timestamp")),
        _micros(row.get("event_time")),
        row.get("key"),
        dict(row.get("attributes") or {}),
        row.get("value"),
        str(row.get("error") or "").startswith(REASON),
    )


def _micros(time: int | str | None) -> int | None:
    """From a text too, as topics and names of folders have it, also after the year 9999."""
    if not isinstance(time, str):
        return time
    try:
        read = datetime.fromisoformat(time)
    except ValueError:
        beyond = _BEYOND.search(time)
        return None if beyond is None else int(beyond[1])
    return ((read if read.tzinfo else read.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND


def _of_json(payload: bytes | None) -> dict[str, Any]:
    """As a topic has rows: bytes are base64, and times texts."""
    found = json.loads(payload or b"{}")
    row = dict(found) if isinstance(found, dict) else {}
    for name in ("key", "value"):
        if isinstance(row.get(name), str):
            row[name] = base64.b64decode(row[name])
    return row


def _batches(sink: Any, spec: dict[str, Any]) -> Iterator[pa.RecordBatch]:
    if isinstance(sink, IcebergSink):
        from pydanube.pipeline.targets.iceberg.target import IcebergTarget

        place = IcebergTarget.of(spec).place
        with place.told():
            table = place.load()
            yield from table.scan(selected_fields=_known(table.schema().column_names)).to_arrow_batch_reader()
    elif sink.kind == "delta":
        from deltalake import DeltaTable

        from pydanube.pipeline.targets.files.target import delta_place

        uri, options = delta_place(sink.uri)
        rows = DeltaTable(uri, storage_options=dict(options)).to_pyarrow_dataset()
        yield from rows.to_batches(
            columns=list(_known(rows.schema.names)), batch_size=SLICE_ROWS, batch_readahead=1, fragment_readahead=1
        )
    else:
        import pyarrow.parquet as pq

        from pydanube.pipeline.targets.files.target import folder_at

        folder = folder_at(sink.uri)
        for path, _ in folder.list(""):
            if path.endswith(".parquet") and not path.startswith("_"):
                file = pq.ParquetFile(io.BytesIO(folder.read(path) or b""))
                for batch in file.iter_batches(SLICE_ROWS, columns=list(_known(file.schema_arrow.names))):
                    yield _with_folders(batch, path)


def _known(columns: Iterable[str]) -> tuple[str, ...]:
    """Those of a letter that the table has: an older one has not all of them."""
    there = set(columns)
    return tuple(each for each in COLUMNS if each in there)


def _with_folders(batch: pa.RecordBatch, path: str) -> pa.RecordBatch:
    """With the columns by which the table is partitioned: they are in the names of its folders only."""
    import pyarrow as pa

    for step in path.split("/")[:-1]:
        name, _, value = step.partition("=")
        if name in COLUMNS and name not in batch.schema.names:
            text = None if value == _HIVE_NULL else unquote(value)
            batch = batch.append_column(name, pa.array([text] * len(batch), pa.string()))
    return batch
