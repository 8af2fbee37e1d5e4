"""Orders with five fields as JSON (about a hundred bytes), Avro and Protobuf, with their schemas."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor_pb2 import FieldDescriptorProto as Field

COUNT = 10_000  # per lot
SIZE = 100
BAD_EVERY = 100
FIRST_ID = 1_000_000_000
DDL = "id BIGINT, customer STRING, amount DOUBLE, paid BOOLEAN, at TIMESTAMP"
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "customer", "type": "string"},
        {"name": "amount", "type": "double"},
        {"name": "paid", "type": "boolean"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
_KINDS = {
    "id": Field.TYPE_INT64,
    "customer": Field.TYPE_STRING,
    "amount": Field.TYPE_DOUBLE,
    "paid": Field.TYPE_BOOL,
    "at": Field.TYPE_INT64,
}


def orders() -> list[dict[str, Any]]:
    random, noon = Random(7), datetime(2026, 1, 31, 12, tzinfo=UTC)
    return [
        {
            "id": FIRST_ID + number,
            "customer": f"customer-{random.randrange(10_000):05d}",
            "amount": random.randrange(1_000_000) / 100,
            "paid": random.random() < 0.5,
            "at": noon + timedelta(microseconds=random.randrange(86_400_000_000)),
        }
        for number in range(COUNT)
    ]


def noise() -> Iterator[list[bytes]]:
    """Lots of distinct payloads, because a sink that looks for repetitions would be faster otherwise."""
    while True:
        data = os.urandom(COUNT * SIZE)
        yield [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def as_json() -> Iterator[list[bytes]]:
    """Lots of orders, each with its own id."""
    found = [{**each, "at": each["at"].isoformat().replace("+00:00", "Z")} for each in orders()]
    ends = [json.dumps(each, separators=(",", ":")).encode().partition(b",")[2] for each in found]
    for first in count(FIRST_ID, COUNT):
        yield [b'{"id":%d,%b' % each for each in enumerate(ends, first)]


def with_bad(payloads: list[bytes]) -> list[bytes]:
    """The same orders, one in a hundred of them truncated."""
    return [each if number % BAD_EVERY else each[:-9] for number, each in enumerate(payloads)]


def as_avro() -> list[bytes]:
    schema, found = fastavro.parse_schema(AVRO), []
    for each in orders():
        file = io.BytesIO()
        fastavro.schemaless_writer(file, schema, each)
        found.append(file.getvalue())
    return found


def as_protobuf(descriptor: Path) -> list[bytes]:
    """The same orders as Protobuf; also writes the descriptor."""
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="bench", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(_KINDS.items(), 1):
        order.field.add(name=name, number=number, type=kind, label=Field.LABEL_OPTIONAL)
    descriptor.write_bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.Order"))
    return [made(**{**each, "at": int(each["at"].timestamp() * 1_000_000)}).SerializeToString() for each in orders()]
