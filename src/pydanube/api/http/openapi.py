"""The OpenAPI 3.1 description of the REST interface, built from the routes themselves, so that it cannot differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.json import schema_components

from pydanube import __version__
from pydanube.api.http.answer import JSON, RAW
from pydanube.api.http.errors import PROBLEM, Problem
from pydanube.api.http.router import Route
from pydanube.wire.objects import Object

_REF = "#/components/schemas/{name}"
_NULL = {"type": "null"}
_BYTES = {"type": "string", "format": "binary"}


def describe(routes: Sequence[Route]) -> Object:
    routes = [route for route in routes if route.described]
    requests = {route.request: None for route in routes if route.request is not None}
    answers = {request.answer: None for request in requests}
    schemas = _schemas([*requests, *answers, Problem])
    fields = {request: schemas.pop(request.__name__) for request in requests}
    paths: dict[str, Object] = {}
    for route in routes:
        known = fields[route.request] if route.request is not None else {}
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Danube", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _schemas(types: Sequence[type[Struct]]) -> dict[str, Object]:
    """The schemas of these types, and of all that they refer to, by name."""
    _, schemas = schema_components(types, ref_template=_REF)
    shared = [name for name in schemas if "_" in name]  # msgspec then puts their modules before them
    if shared:
        raise ValueError(f"types of the interface must differ by name alone; these do not: {', '.join(shared)}")
    return schemas


def _operation(route: Route, known: Object) -> Object:
    failed = {"description": "An error", "content": {PROBLEM: {"schema": _reference(Problem)}}}
    operation: Object = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": [*_in_path(route), *_in_query(route, known)],
        "responses": {**_answers(route), "default": failed},
    }
    if route.body:
        operation["requestBody"] = _body(route, known)
    return operation


def _answers(route: Route) -> dict[str, Object]:
    """What is answered if all goes well, by status."""
    fine: Object = {"description": "Done"}
    answers = {str(route.status): fine}
    if route.status != 204:
        fine["content"] = {route.content_type: {"schema": _answer(route)}}
    if (other := route.other) is not None:
        fine["content"][other.content_type] = {"schema": _BYTES if other.content_type == RAW else {"type": "string"}}
        if other.headers:
            fine["headers"] = {
                name: {"description": f"Of an answer in bytes: {what}", "schema": {"type": "string"}}
                for name, what in other.headers.items()
            }
        if other.nothing:
            answers["204"] = {"description": other.nothing}
    return answers


def _answer(route: Route) -> Object:
    if route.request is not None:
        return _reference(route.request.answer)
    return {"type": "object" if route.content_type == JSON else "string"}


def _reference(kind: type[Struct]) -> Object:
    return {"$ref": _REF.format(name=kind.__name__)}


def _in_path(route: Route) -> Iterable[Object]:
    names = [segment[1:-1] for segment in route.segments if segment.startswith("{")]
    return ({"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names)


def _in_query(route: Route, known: Object) -> Iterable[Object]:
    for name in route.query:
        schema, description = _given(known["properties"][name])
        described = {"description": description} if description else {}
        yield {"name": name, "in": "query", "required": name in known["required"], **described, "schema": schema}


def _given(schema: Object) -> tuple[Object, str]:
    """The schema of a value that is given, and so not null, and its description."""
    schema, description = dict(schema), schema.get("description", "")
    schema.pop("description", None)
    kinds = [each for each in schema.get("anyOf", ()) if each != _NULL]
    if not kinds:
        return schema, description
    if schema.get("default", ...) is None:
        del schema["default"]
    if len(kinds) > 1:
        return schema | {"anyOf": kinds}, description
    [only], _ = kinds, schema.pop("anyOf")
    inner, inner_description = _given(only)
    return schema | inner, description or inner_description


def _body(route: Route, known: Object) -> Object:
    required = [name for name in route.body if name in known["required"] or name in route.instead_of_bytes]
    schema: Object = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: known["properties"][name] for name in route.body},
    }
    content: Object = {JSON: {"schema": schema | ({"required": required} if required else {})}}
    if route.raw:
        content[RAW] = {"schema": _BYTES}
    return {"required": bool(required), "content": content}
