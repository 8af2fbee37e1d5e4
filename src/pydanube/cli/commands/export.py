"""`danube export`: writes the messages that a topic stores now to a file, batch by batch."""

from __future__ import annotations

import base64
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
from pydanube.cli.messages.stored import count_messages, find_topic, stored_batches, stored_ranges
from pydanube.cli.messages.text import json_line, to_json
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.output import Output, Throughput, prints, progress, require_package, throughput
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import POSITION_HELP, many, shown_time
from pydanube.client import Client, Message, MessageBatch

FORMATS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
ROW_GROUP_ROWS = 100_000
ROW_GROUP_BYTES = 32 << 20  # whichever limit comes first; rows are held in memory until then
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


class FileTransfer(Throughput):
    """What was moved between a topic and a file."""

    topic: str
    file: str


@click.command(epilog="Example: danube export orders orders.parquet --from 2026-01-31")
@click.argument("topic", type=values.topic)
@click.argument("file")
@format_option
@click.option("--from", "start", type=values.position, default="earliest", show_default=True, help=POSITION_HELP)
@click.option(
    "--to", "end", type=values.position, default="latest", show_default=True, help="Stop before this position."
)
@click.option("--partition", type=values.Integer(min=0), help="Only this partition.")
@click.option("--force", is_flag=True, help="Overwrite FILE if it exists.")
@prints(FileTransfer)
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
    devices are written directly, symbolic links are refused, and `-` is stdout. JSON lines have the fields of REST. In
    CSV, binary data is Base64, marked by payload_encoding and key_encoding.
    """
    kind = format_of(file, given)
    _check_target(file, force=force)
    await find_topic(client, topic, partition, start, end)
    ranges = await stored_ranges(client, topic, start, partition, end)
    schema = None
    if kind == "parquet":
        require_package("pyarrow.parquet", "Parquet")
        schema = (await client.read_arrow(topic, "latest", partition=partition)).schema
    written, began = 0, perf_counter()
    with _target(file) as target, progress(f"exporting {topic}", count_messages(ranges)) as advance:
        sink = SINKS[kind](target, schema, len(ranges) > 1)
        async for batch in stored_batches(client, ranges):
            sink.write(batch)
            written += len(batch)
            advance(len(batch))
        sink.close()
    done = FileTransfer(topic=topic, file=file, **throughput(written, perf_counter() - began))
    output.summary(f"{many(written)} of {topic} exported", done, beside=file == "-")


def _check_target(file: str, *, force: bool) -> None:
    """Refuses to overwrite an existing file without --force, and refuses symbolic links."""
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
    if Path(file).exists() and not Path(file).is_file():  # replacing a pipe would cut off its reader
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
    """CSV. The encoding column is empty for an absent value, which tells it apart from an empty one."""

    def __init__(self, target: IO[bytes], schema: Any, partitioned: bool) -> None:
        self._target = target
        self._text = io.StringIO()
        self._rows = csv.writer(self._text)
        self._rows.writerow(CSV_COLUMNS)

    def write(self, batch: MessageBatch) -> None:
        self._rows.writerows(map(_csv_row, batch))
        self._flush()

    def _flush(self) -> None:
        self._target.write(self._text.getvalue().encode("utf-8", "surrogatepass"))
        self._text.seek(0)
        self._text.truncate()

    def close(self) -> None:
        self._flush()


def _csv_row(message: Message) -> list[Any]:
    times = (message.publish_time, message.append_time, message.event_time, message.delivery_time)
    return [
        message.partition,
        message.offset,
        *map(shown_time, times),
        *_text_and_encoding(message.key_bytes),
        *_text_and_encoding(message.payload),
        to_json(dict(message.attributes)),
        message.producer,
        message.sequence,
    ]


def _text_and_encoding(data: bytes | None) -> tuple[str | None, str | None]:
    if data is None:
        return None, None
    try:
        return data.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


class Parquet:
    """The columns that Arrow and Spark use, and the partition if there are several."""

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
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._held:
            self._writer.write_table(pa.Table.from_batches(self._held, schema=self._schema))
        self._held, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        self._flush()
        self._writer.close()


SINKS: dict[str, Callable[[IO[bytes], Any, bool], Sink]] = {"parquet": Parquet, "jsonl": JsonLines, "csv": Csv}
