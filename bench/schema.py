"""How many payloads of 200 bytes one core validates, and what a registration compares. Run by `make bench-schema`.

Figures are of processor time, the best of several runs: validation does nothing but compute.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time
from typing import Any

import fastavro

from figures import Figures
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.adapters.threads import ThreadOffload
from pydanube.broker.schemas.registry import Registry
from pydanube.metadata import tables
from pydanube.metadata.tables import SCHEMAS, SUBJECT_NAMES, id_key
from pydanube.ports.metadata import MetadataStore
from pydanube.schema.definition import Source
from pydanube.schema.kinds import SchemaType
from pydanube.schema.parsing import parse
from pydanube.schema.records import SchemaRecord, SubjectRecord
from pydanube.schema.schema import Schema
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.metadata.table import Table

BATCH = 10_000
SUBJECTS, VERSIONS = 10_000, 10
SETTLING, SETTLING_SECONDS = 300, 0.02
RUNS = 7
PAYLOAD_BYTES = 200
ORDER: dict[str, Any] = {
    "id": 812_345_678, "customer": "c-00042-93817", "state": "paid", "total": 129.95, "paid": True,
    "note": "please leave it with the neighbours, third floor, on the left",
    "lines": [{"sku": "sku-000117", "count": 2}, {"sku": "sku-004711", "count": 1}],
}  # fmt: skip
LINE_FIELDS = [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["new", "paid", "sent"]}},
        {"name": "total", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "note", "type": ["null", "string"]},
        {
            "name": "lines",
            "type": {"type": "array", "items": {"type": "record", "name": "Line", "fields": LINE_FIELDS}},
        },
    ],
}
JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["id", "customer", "state"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "integer", "minimum": 0},
        "customer": {"type": "string", "pattern": "^c-[0-9]{5}-"},
        "state": {"enum": ["new", "paid", "sent"]},
        "total": {"type": "number", "minimum": 0},
        "paid": {"type": "boolean"},
        "note": {"type": ["null", "string"], "maxLength": 200},
        "lines": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["sku"],
                "properties": {"sku": {"type": "string"}, "count": {"type": "integer", "minimum": 1}},
            },
        },
    },
}
PROTOBUF = """
syntax = "proto3";
message Order {
  int64 id = 1; string customer = 2; State state = 3; double total = 4; bool paid = 5; optional string note = 6;
  repeated Line lines = 7;
  message Line { string sku = 1; int32 count = 2; }
  enum State { NEW = 0; PAID = 1; SENT = 2; }
}
"""


def main() -> None:
    figures = Figures()
    for kind, definition, payload, goal in (
        (SchemaType.JSON_SCHEMA, json.dumps(JSON_SCHEMA), json_payload(), 150_000),
        (SchemaType.AVRO, json.dumps(AVRO), avro_payload(), 150_000),
        (SchemaType.PROTOBUF, PROTOBUF, protobuf_payload(), 200_000),
    ):
        schema = parse(Source(kind, definition))
        figures.report(f"{kind}: payloads of {len(payload)} bytes validated", per_second(schema, payload), "1/s", goal)
        figures.report(f"  {kind}: the same, each with a fault at its end", per_second(schema, payload[:-1]), "1/s")
        figures.report(
            f"  {kind}: parsing a definition", best(lambda k=kind, d=definition: parse(Source(k, d))) * 1e6, "µs"
        )
        newer = parse(Source(kind, definition))
        figures.report(
            f"  {kind}: comparing two versions", best(lambda n=newer, s=schema: n.breaks_reading(s)) * 1e6, "µs"
        )
    asyncio.run(registry(figures))
    figures.table()


async def registry(figures: Figures) -> None:
    """10,000 subjects with 10 versions each: how long a lookup takes, and how much longer the broker's metadata."""
    with TemporaryDirectory() as directory:
        empty = await seconds_to_open(Path(directory) / "empty", None)
        full = await seconds_to_open(Path(directory) / "full", fill)
        figures.report(
            "opening the metadata with 10,000 subjects × 10 versions, processor time",
            full - empty,
            "s",
            1.0,
            at_least=False,
        )
        disk = PosixDisk(Path(directory) / "full")
        store = await RaftMetadata.open(disk, SystemRandomness())
        known = Registry(store, SystemClock(), ThreadOffload(1))
        names = [f"subject-{number:05}" for number in range(0, SUBJECTS, 10)]
        seconds = best(lambda: [known.find(name, 5) for name in names]) / len(names)
        figures.report("looking up a version", seconds * 1e6, "µs", 50, at_least=False)
        seconds = best(lambda: [known.find(name) for name in names]) / len(names)
        figures.report("looking up the latest version", seconds * 1e6, "µs", 50, at_least=False)
        await store.close()
        disk.close()


async def seconds_to_open(directory: Path, work: Callable[[MetadataStore], Coroutine[Any, Any, None]] | None) -> float:
    directory.mkdir()  # noqa: ASYNC240 - nothing else runs
    for writes in (True, False):
        disk = PosixDisk(directory)
        start = process_time()
        store = await RaftMetadata.open(disk, SystemRandomness())
        seconds = process_time() - start
        if writes and work is not None:
            await work(store)
        await store.close()
        disk.close()
    return seconds


async def fill(store: MetadataStore) -> None:
    """As the registry stores them, without judging each. Some are stored once more, in their own time, so that the
    next start finds a snapshot of all: a log that was written at full speed is longer than usual."""
    subjects, names, schemas = Table(store, tables.SUBJECTS), Table(store, SUBJECT_NAMES), Table(store, SCHEMAS)
    text = json.dumps(AVRO)
    for first in range(1, SUBJECTS + 1, 5):
        changes = []
        for number in range(first, first + 5):
            name = f"subject-{number - 1:05}"
            versions = [(version, number * VERSIONS + version) for version in range(1, VERSIONS + 1)]
            changes += [subjects.put(name, SubjectRecord(number, VERSIONS, versions)), names.put(id_key(number), name)]
            for version, identity in versions:
                record = SchemaRecord(name, version, identity, SchemaType.AVRO, text, f"sha256:{identity:064}", 1)
                changes.append(schemas.put(id_key(identity), record))
        await store.transact((), changes)
    for _ in range(SETTLING):
        await store.transact((), changes)
        await asyncio.sleep(SETTLING_SECONDS)


def per_second(schema: Schema, payload: bytes) -> float:
    payloads = [payload] * BATCH
    return BATCH / best(lambda: schema.faults(payloads))


def best(work: Callable[[], object]) -> float:
    """Seconds of processor time."""
    found: list[float] = []
    for _ in range(RUNS):
        start = process_time()
        work()
        found.append(process_time() - start)
    return min(found)


def filled(order: Callable[[str], bytes]) -> bytes:
    """The order with a note that makes it as long as it should be."""
    note: str = ORDER["note"]
    size = len(order(note))
    return order((note + " and ring twice" * 20)[: len(note) + PAYLOAD_BYTES - size])


def json_payload() -> bytes:
    return filled(lambda note: json.dumps({**ORDER, "note": note}, separators=(",", ":")).encode())


def avro_payload() -> bytes:
    schema = fastavro.parse_schema(AVRO)

    def written(note: str) -> bytes:
        into = BytesIO()
        fastavro.schemaless_writer(into, schema, {**ORDER, "note": note})
        return into.getvalue()

    return filled(written)


def protobuf_payload() -> bytes:
    schema: Any = parse(Source(SchemaType.PROTOBUF, PROTOBUF))
    make = schema._class

    def written(note: str) -> bytes:
        message = make(**{**ORDER, "note": note, "state": 1})
        serialized: bytes = message.SerializeToString()
        return serialized

    return filled(written)


if __name__ == "__main__":
    main()
