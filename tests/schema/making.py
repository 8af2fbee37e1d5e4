"""Schemas for tests, from Python values or text."""

from __future__ import annotations

import json
from typing import Any

from pydanube.schema.definition import Source
from pydanube.schema.kinds import SchemaType
from pydanube.schema.parsing import parse
from pydanube.schema.schema import Break, Schema


def avro(value: Any, **references: Any) -> Schema:
    return _made(SchemaType.AVRO, value, references)


def json_schema(value: Any, references: dict[str, Any] | None = None) -> Schema:
    return _made(SchemaType.JSON_SCHEMA, value, references or {})


def protobuf(text: str, references: dict[str, str] | None = None) -> Schema:
    sources = {name: Source(SchemaType.PROTOBUF, each) for name, each in (references or {}).items()}
    return parse(Source(SchemaType.PROTOBUF, text, sources))


def message(body: str, syntax: str = "proto3") -> Schema:
    return protobuf(f'syntax = "{syntax}"; message Order {{ {body} }}')


def record(*fields: dict[str, Any], name: str = "Order") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def _made(kind: SchemaType, value: Any, references: dict[str, Any]) -> Schema:
    sources = {name: Source(kind, json.dumps(each)) for name, each in references.items()}
    return parse(Source(kind, json.dumps(value), sources))


def said(breaks: list[Break]) -> list[str]:
    return [str(each) for each in breaks]
