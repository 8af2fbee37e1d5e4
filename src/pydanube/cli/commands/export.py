"""`danube export`: what a topic holds now, as a file. Read and written piece by piece, never as a whole."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import IO, Any, Protocol

import click

from pydanube.adapters.replacing import replacing
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import PLACES, many
from pydanube.cli.text.messages import described, json_line, to_json
from pydanube.cli.text.output import Output, need, pace, printed, progress
from pydanube.cli.text.reading import bounded_places, how_many, place_in, stored
from pydanube.client import Client, MessageBatch

FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 32 << 20  # whichever comes first: what is held before it is written
CSV_COLUMNS = (
    "partition",
    "offset",
    "publish_time",
    "append_time",
    "event_time",
    "delivery_time",
    "key",
    "key_encoding",
    "payload",
    "payload_encoding",
    "attributes",
    "producer",
    "sequence",
)


class Sink(Protocol):
    def write(self, batch: MessageBatch) -> None: ...

    def close(self) -> None: ...


def format_of(file: str, given: str | None) -> str:
    found = given or FORMATS.get(Path(file).suffix.lower())
    if found is None:
        raise click.UsageError(f"{file} has no known file extension; pass --format")
    return found


format_option = click.option(
    "--format",
    "given",
    type=click.Choice(["parquet", "jsonl", "csv"]),
    help="File format, if the file name has no known extension.",
)


@click.command(epilog="Example: danube export orders orders.parquet --from 2026-01-31")
@click.argument("topic", type=values.topic)
@click.argument("file")
@format_option
@click.option("--from", "start", type=values.place, default="earliest", show_default=True, help=PLACES)
@click.option("--to", "end", type=values.place, default="latest", show_default=True, help="Stop before this position.")
@click.option("--partition", type=values.Whole(min=0), help="Only this partition.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@printed
@connected
async def export(
    client: Client,
    output: Output,
    topic: str,
    file: str,
    given: str | None,
    start: Any,
    end: Any,
    partition: int | None,
    force: bool,
) -> None:
    """Write a topic to a file: Parquet, JSON lines or CSV.

    Exports the messages stored now. FILE is written under a temporary name and renamed when it is complete; pipes and
    devices are written directly, symbolic links are refused, and `-` is stdout. In JSON lines and CSV, binary data is
    Base64, marked by payload_encoding and key_encoding.
    """
    kind = format_of(file, given)
    _check_target(file, force=force)
    await place_in(client, topic, partition, start, end)
    places = await bounded_places(client, topic, start, partition, end)
    schema = None
    if kind == "parquet":
        need("pyarrow.parquet", "Parquet")
        schema = (await client.read_arrow(topic, "latest", partition=partition)).schema
    written, began = 0, perf_counter()
    with _target(file) as target, progress(f"exporting {topic}", how_many(places)) as advance:
        sink = SINKS[kind](target, schema, len(places) > 1)
        async for batch in stored(client, places):
            sink.write(batch)
            written += len(batch)
            advance(len(batch))
        sink.close()
    fields = {"topic": topic, "file": file, **pace(written, perf_counter() - began)}
    output.summary(f"{many(written)} of {topic} exported", beside=file == "-", **fields)


def _check_target(file: str, *, force: bool) -> None:
    """What is behind a link was not named: it is neither written nor replaced, and neither is the link."""
    if file == "-":
        return
    path = Path(file)
    if path.is_symlink() and (path.is_file() or not path.exists()):
        raise Failure(f"{file} is a symbolic link", "Use the path of the file itself, or delete the link first.")
    if path.is_file() and not force:
        raise Failure(f"{file} already exists", "Choose another name, or pass --force.")


@contextmanager
def _target(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if Path(file).exists() and not Path(file).is_file():  # whoever reads a pipe has it open by its name
        with Path(file).open("wb") as target:
            yield target
        return
    with replacing(Path(file)) as target:
        yield target
        target.flush()
        os.fsync(target.fileno())


class JsonLines:
    def __init__(self, target: IO[bytes], schema: Any, partitioned: bool) -> None:
        self._target = target

    def write(self, batch: MessageBatch) -> None:
        self._target.writelines(map(json_line, batch))

    def close(self) -> None: ...


class Csv:
    """Empty and absent are told apart by the column of the encoding, which is empty for what is absent."""

    def __init__(self, target: IO[bytes], schema: Any, partitioned: bool) -> None:
        self._target = target
        self._text = io.StringIO()
        self._rows = csv.writer(self._text)
        self._rows.writerow(CSV_COLUMNS)

    def write(self, batch: MessageBatch) -> None:
        self._rows.writerows(map(self._row, map(described, batch)))
        self._hand_over()

    def _row(self, found: dict[str, Any]) -> list[Any]:
        for name in ("key", "payload"):
            if found[name] is not None:
                found.setdefault(f"{name}_encoding", "text")
        found["attributes"] = to_json(found["attributes"])
        return [found.get(name) for name in CSV_COLUMNS]

    def _hand_over(self) -> None:
        self._target.write(self._text.getvalue().encode("utf-8", "surrogatepass"))
        self._text.seek(0)
        self._text.truncate()

    def close(self) -> None:
        self._hand_over()


class Parquet:
    """The columns that Arrow and Spark see; of a topic with partitions also which one."""

    def __init__(self, target: IO[bytes], schema: Any, partitioned: bool) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = schema.insert(0, pa.field("partition", pa.int32())) if partitioned else schema
        self._partitioned = partitioned
        self._writer = pq.ParquetWriter(target, self._schema, compression="zstd")
        self._held: list[Any] = []
        self._rows = self._bytes = 0

    def write(self, batch: MessageBatch) -> None:
        import pyarrow as pa

        found = batch.to_arrow()
        if self._partitioned:
            number = pa.repeat(pa.scalar(batch.partition, pa.int32()), len(batch))
            found = pa.RecordBatch.from_arrays([number, *found.columns], schema=self._schema)
        self._held.append(found)
        self._rows += len(batch)
        self._bytes += batch.content.size
        if self._rows >= ROW_GROUP_ROWS or self._bytes >= ROW_GROUP_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, schema=self._schema))
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._hand_over()
        self._writer.close()


SINKS: dict[str, Callable[[IO[bytes], Any, bool], Sink]] = {"parquet": Parquet, "jsonl": JsonLines, "csv": Csv}
