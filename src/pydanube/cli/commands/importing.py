"""`danube import`: publishes the rows of a file, such as `danube export` writes, in pieces."""

from __future__ import annotations

import csv
import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any

import click

from pydanube.base.errors import DanubeError, MessageTooLarge
from pydanube.base.limits import BATCH_BYTES_MAX, KIB
from pydanube.cli.commands.export import FileTransfer, format_of, format_option
from pydanube.cli.messages.sources import in_thread, open_source
from pydanube.cli.messages.text import Draft, draft_of, draft_of_line
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.output import Output, prints, progress, require_package, throughput
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many
from pydanube.client import Client

READ_ROWS = 1000
LINE_BYTES_MAX = 6 * BATCH_BYTES_MAX + 64 * KIB  # a control character takes six bytes in JSON
TIMES = ("event_time", "delivery_time")
READ = ("key", "payload", "value", "attributes", *TIMES)  # columns, besides the encodings


@click.command("import", epilog="Example: danube import orders orders.parquet")
@click.argument("topic", type=values.topic)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@format_option
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@prints(FileTransfer)
@connected
async def import_(client: Client, output: Output, topic: str, file: str, given: str | None, compression: str) -> None:
    """Publish the rows of a file: Parquet, JSON lines or CSV.

    The columns payload (or value), key, attributes, event_time and delivery_time of each row are published; other
    columns are ignored. Every row must have a payload; null publishes a message without one. A payload or key is
    decoded if payload_encoding, value_encoding or key_encoding is base64; any other name that ends in _encoding is
    refused. JSON lines may also have the fields of REST: value_base64 and key_base64. `-` is stdin, for JSON lines and
    CSV.
    """
    kind = format_of(file, given)
    if kind == "parquet":
        require_package("pyarrow.parquet", "Parquet")
    sent = lost = 0
    began = perf_counter()

    def lose(error: DanubeError, count: int) -> None:
        nonlocal lost
        lost += count

    try:
        with progress(f"importing {file}", None) as advance:
            pieces = in_thread(lambda: _some(_drafts(file, kind)))
            first = await _first(pieces)  # a file of another format must not create the topic
            async with client.producer(topic, compression=compression, on_error=lose) as producer:
                async for drafts in _chained(first, pieces):
                    for draft in drafts:
                        if producer.busy:
                            await producer.ready()
                        try:
                            producer.send(draft.payload, **draft.options)
                        except MessageTooLarge as error:
                            raise type(error)(f"row {sent + 1}: {error}") from None
                        sent += 1
                    advance(len(drafts))
    finally:
        done = FileTransfer(topic=topic, file=file, **throughput(sent - lost, perf_counter() - began))
        output.summary(f"{many(sent - lost)} imported to {topic}", done)


async def _first(pieces: AsyncIterator[list[Draft]]) -> list[Draft]:
    """The first rows, if any. Raises if the header or the first row is wrong."""
    async for piece in pieces:
        if piece:
            return piece
    return []


async def _chained(first: list[Draft], pieces: AsyncIterator[list[Draft]]) -> AsyncIterator[list[Draft]]:
    yield first
    async for piece in pieces:
        yield piece


def _some(drafts: Iterator[Draft]) -> Iterator[list[Draft]]:
    """Yields rows in lists. Before it fails at an invalid row, it yields the rows before it."""
    held: list[Draft] = []
    try:
        for draft in drafts:
            held.append(draft)
            if len(held) == READ_ROWS:
                yield held
                held = []
    except Failure:
        yield held
        raise
    yield held


def _drafts(file: str, kind: str) -> Iterator[Draft]:
    """Yields each row; adds the number of the row to errors."""
    number = 1
    try:
        for draft in _READERS[kind](file):
            yield draft
            number += 1
    except (click.UsageError, csv.Error, UnicodeDecodeError) as error:
        sentence = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise Failure(f"{file}, row {number}: {sentence}", "The rows before it were published.") from None


def _json_lines(file: str) -> Iterator[Draft]:
    with open_source(file) as source:
        while line := source.readline(LINE_BYTES_MAX):
            if not line.endswith(b"\n") and len(line) >= LINE_BYTES_MAX:
                raise click.UsageError("a line is longer than the maximum message size")
            if line.strip():
                yield draft_of_line(line)


def _csv(file: str) -> Iterator[Draft]:
    csv.field_size_limit(BATCH_BYTES_MAX * 2)
    with open_source(file) as source:
        rows = csv.DictReader(line.decode("utf-8", "surrogatepass") for line in source)
        if rows.fieldnames:
            _check_names(rows.fieldnames)
        for row in rows:
            yield draft_of(_of_csv(row))


def _check_names(names: Sequence[str]) -> None:
    if "payload" not in names and "value" not in names:
        sentence = f"the column payload (or value) is missing; the columns are {', '.join(names)[:200]}"
        raise Failure(sentence, "Rename a column; nothing was published.")


def _of_csv(row: dict[str | Any, Any]) -> dict[str, Any]:
    """The row as fields of a message.

    An empty key without an encoding is absent. An empty payload is absent if its encoding is empty.
    """
    found: dict[str, Any] = {name: text for name, text in row.items() if name is not None and text is not None}
    if found.get("key") == "" and not found.get("key_encoding"):
        del found["key"]
    for name in ("payload", "value"):
        if found.get(name) == "" and found.get(f"{name}_encoding") == "":
            found[name] = None
    if attributes := found.get("attributes"):
        try:
            found["attributes"] = json.loads(attributes)
        except ValueError:
            raise click.UsageError("attributes must be a JSON object") from None
    else:
        found.pop("attributes", None)
    return found


def _parquet(file: str) -> Iterator[Draft]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pq.ParquetFile(file)
    except pa.ArrowInvalid as error:
        raise click.UsageError(str(error)) from None
    with source:
        columns = source.schema_arrow.names
        _check_names(columns)
        known = [name for name in columns if name in READ or name.endswith("_encoding")]
        for batch in source.iter_batches(READ_ROWS, columns=known):
            yield from map(_of_arrow, _columns(batch))


def _columns(batch: Any) -> Iterable[dict[str, Any]]:
    import pyarrow as pa

    for at, name in enumerate(batch.schema.names):
        times = batch.column(at)
        if name in TIMES and pa.types.is_timestamp(times.type):
            try:
                times = times.cast(pa.timestamp("us", tz=times.type.tz)).cast(pa.int64())
            except pa.ArrowInvalid as error:
                raise click.UsageError(f"{name} does not fit into microseconds: {error}") from None
            batch = batch.set_column(at, name, times)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _of_arrow(row: dict[str, Any]) -> Draft:
    if isinstance(row.get("attributes"), list):  # Arrow returns a map as pairs
        row["attributes"] = dict(row["attributes"])
    return draft_of(row)


_READERS = {"parquet": _parquet, "jsonl": _json_lines, "csv": _csv}
