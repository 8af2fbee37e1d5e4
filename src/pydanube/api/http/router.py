"""Finds the route of a request and its fields: path, query and body become one object, as verbs expect it.

A path is first split at its slashes and then decoded once, segment by segment, so an encoded slash never separates
segments. A route names every field that a request may have; unknown fields are refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar
from urllib.parse import unquote_to_bytes

from pydanube.api.http.answer import JSON, Answer
from pydanube.base.errors import ContentTypeUnknown, HttpRequestInvalid, MethodNotAllowed, RequestInvalid, RouteNotFound
from pydanube.base.limits import CONTROL_BYTES_MAX, HTTP_JSON_VALUES_MAX, HTTP_QUERY_FIELDS_MAX
from pydanube.wire.http1 import HttpRequest
from pydanube.wire.objects import MalformedBody, Object, read_object

RAW = "application/octet-stream"
_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"-?[0-9]{1,18}")
Kind = Literal["text", "number", "flag", "object", "list", "texts", "place"]


class Field(NamedTuple):
    """A field that a request may have."""

    kind: Kind
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """`answer` takes the caller and the fields. `operation` is its name in the description."""

    method: str
    template: str  # /api/v1/topics/{namespace}/{topic}
    operation: str
    summary: str
    answer: Callable[..., Awaitable[Answer]]
    status: int = 200  # of a successful answer
    query: Mapping[str, Field] = field(default_factory=dict)
    body: Mapping[str, Field] = field(default_factory=dict)
    raw: bool = False  # the body may be bytes, which become the field `raw`
    raw_answer: bool = False  # the answer may be bytes: if `Accept` asks for them, the field `raw_answer` is true
    html: bool = False  # the answer may be a page: if `Accept` has HTML, as browsers send it, the field `html` is true
    body_bytes_max: int = CONTROL_BYTES_MAX
    content_type: str = JSON
    probe: bool = False  # it is answered however busy the broker is, and costs next to nothing

    @property
    def segments(self) -> list[str]:
        return self.template.split("/")


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._probes = frozenset(route.template for route in routes if route.probe)
        self.probes = tuple(f"{method} {path} ".encode() for path in self._probes for method in ("GET", "HEAD"))
        self._by_length: dict[int, list[tuple[list[str], Route]]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.segments), []).append((route.segments, route))

    def is_probe(self, request: HttpRequest) -> bool:
        return request.target in self._probes

    def find(self, request: HttpRequest) -> tuple[Route, Object]:
        """The route, and the fields of path, query and body."""
        path, _, query = _ABSOLUTE.sub("", request.target, count=1).partition("?")
        segments = [decoded(segment) for segment in path.split("/")]
        method = "GET" if request.method == "HEAD" else request.method
        others: list[str] = []
        for template, route in self._by_length.get(len(segments), ()):
            named = _matched(template, segments)
            if named is None:
                continue
            if route.method == method:
                fields = {**_query_of(route, query), **_body_of(route, request)}
                if route.raw_answer and request.headers.get("accept", "").partition(";")[0].strip().lower() == RAW:
                    fields["raw_answer"] = True
                if route.html and "text/html" in request.headers.get("accept", "").lower():
                    fields["html"] = True
                return route, {**fields, **named}
            others.append(route.method)
        if others:
            refused = MethodNotAllowed(f"{request.method} is not allowed here; use {' or '.join(others)}")
            refused.allow = ", ".join(others)
            raise refused
        raise RouteNotFound(f"nothing exists at {path[:100]}")


def decoded(text: str) -> str:
    """Decodes percent-escapes once; refuses what is not UTF-8 afterwards."""
    if _ESCAPE.search(text):
        raise HttpRequestInvalid(f"{text[:50]!r} has a % that is not an escape")
    try:
        return unquote_to_bytes(text).decode("utf-8")
    except UnicodeDecodeError:
        raise HttpRequestInvalid(f"{text[:50]!r} is not UTF-8") from None


def _matched(template: list[str], segments: list[str]) -> Object | None:
    """The fields in the path, if it matches the template."""
    named: Object = {}
    for expected, segment in zip(template, segments, strict=True):
        if expected.startswith("{"):
            named[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return named


def _query_of(route: Route, query: str) -> Object:
    found: Object = {}
    parts = query.split("&") if query else []
    if len(parts) > HTTP_QUERY_FIELDS_MAX:
        raise RequestInvalid(f"a query can have at most {HTTP_QUERY_FIELDS_MAX} fields, got {len(parts)}")
    for part in parts:
        name, _, text = (decoded(each.replace("+", " ")) for each in part.partition("="))
        known = _known(route.query, name, "query")
        if name in found:
            raise RequestInvalid(f"{name} is given twice")
        found[name] = _value(known, name, text)
    _check_all(route.query, found)
    return found


def _value(known: Field, name: str, text: str) -> object:
    if known.kind == "text":
        return text
    if known.kind == "flag" and text in ("true", "false"):
        return text == "true"
    if known.kind in ("number", "place") and _NUMBER.fullmatch(text):
        return int(text)
    if known.kind == "place":
        return text
    raise RequestInvalid(f"{name} must be a {known.kind}, got {text[:50]!r}")


def _body_of(route: Route, request: HttpRequest) -> Object:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == RAW and route.raw:
        return {"raw": request.body}
    if content_type not in ("", JSON) or (request.body and not content_type):
        raise ContentTypeUnknown(f"unsupported content type {content_type[:50]!r}")
    if not request.body:
        _check_all(route.body, {})
        return {}
    try:
        found = read_object(request.body, route.body_bytes_max, HTTP_JSON_VALUES_MAX)
    except MalformedBody as error:
        raise RequestInvalid(f"the body: {error}") from None
    for name in found:
        _known(route.body, name, "body")
    _check_all(route.body, found)
    return found


_Known = TypeVar("_Known")


def _known(fields: Mapping[str, _Known], name: str, where: str) -> _Known:
    if name not in fields:
        raise RequestInvalid(f"unknown field {name[:50]!r} in the {where}; known fields: {', '.join(fields) or 'none'}")
    return fields[name]


def _check_all(fields: Mapping[str, Field], found: Object) -> None:
    for name, known in fields.items():
        if known.required and name not in found:
            raise RequestInvalid(f"{name} is missing")
