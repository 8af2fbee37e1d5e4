"""How many payloads of 200 bytes one core validates, and what a registration compares. Run by `make bench-schema`.

Figures are of processor time, the best of several runs: validation does nothing but compute.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from time import process_time
from typing import Any

import fastavro

from figures import Figures
from pydanube.schema.definition import Source
from pydanube.schema.kinds import SchemaType
from pydanube.schema.parsing import parse
from pydanube.schema.schema import Schema

BATCH = 10_000
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
    figures.table()


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
