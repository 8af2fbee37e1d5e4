"""The OpenAPI 3.1 description of the REST interface, built from the routes themselves, so that it cannot differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydanube import __version__
from pydanube.api.http.answer import JSON
from pydanube.api.http.answers import ANSWERS, TEXT
from pydanube.api.http.errors import PROBLEM
from pydanube.api.http.router import RAW, Field, Route
from pydanube.wire.objects import Object

_SCHEMAS: dict[str, Object] = {
    "text": {"type": "string"},
    "number": {"type": "integer"},
    "flag": {"type": "boolean"},
    "object": {"type": "object"},
    "list": {"type": "array", "items": {"type": "object"}},
    "texts": {"type": "array", "items": {"type": "string"}},
    "place": {"type": ["string", "integer", "object"]},
}
_PROBLEM = {
    "type": "object",
    "description": "RFC 9457. `type` is the path of the error's own paragraph.",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "blame": {"enum": ["caller", "server", "environment"]},
        "retriable": {"type": "boolean"},
        "help": {"type": "string"},
    },
}


def describe(routes: Sequence[Route]) -> Object:
    paths: dict[str, Object] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Danube", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": {"Problem": _PROBLEM}},
    }


def _operation(route: Route) -> Object:
    parameters = [
        {"name": segment[1:-1], "in": "path", "required": True, "schema": {"type": "string"}}
        for segment in route.segments
        if segment.startswith("{")
    ]
    parameters += [
        {"name": name, "in": "query", "required": each.required, "description": each.doc, "schema": _SCHEMAS[each.kind]}
        for name, each in route.query.items()
    ]
    fine: Object = {"description": "Done"}
    if route.status != 204:
        told = {"type": "object", "properties": ANSWERS[route.operation]} if route.content_type == JSON else TEXT
        fine["content"] = {route.content_type: {"schema": told}}
    if route.raw_answer:
        fine["content"][RAW] = {"schema": {"type": "string", "format": "binary"}}
    failed = {"description": "An error", "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}}
    operation: Object = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {str(route.status): fine, "default": failed},
    }
    if route.body:
        operation["requestBody"] = _body(route)
    return operation


def _body(route: Route) -> Object:
    content: Object = {JSON: {"schema": _object(route.body)}}
    if route.raw:
        content[RAW] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": any(each.required for each in route.body.values()), "content": content}


def _object(fields: Mapping[str, Field]) -> Object:
    properties = {name: {**_SCHEMAS[each.kind], "description": each.doc} for name, each in fields.items()}
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
    required = [name for name, each in fields.items() if each.required]
    return schema | ({"required": required} if required else {})
