"""Finds the route of a request and its fields: path, query and body become one object, as operations expect it.

A path is first split at its slashes and then decoded once, segment by segment, so an encoded slash never separates
segments. The fields are those of the operation's request; unknown ones are refused.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from msgspec import inspect

from pydanube.api.http.answer import JSON, RAW, Answer
from pydanube.base.errors import ContentTypeUnknown, HttpRequestInvalid, MethodNotAllowed, RequestInvalid, RouteNotFound
from pydanube.base.limits import CONTROL_BYTES_MAX, HTTP_JSON_VALUES_MAX, HTTP_QUERY_FIELDS_MAX
from pydanube.operations.operation import Request
from pydanube.operations.sentences import fields_of, parts
from pydanube.wire.http1 import HttpRequest
from pydanube.wire.objects import MalformedBody, Object, read_object, whole_number

_ABSOLUTE = re.compile(r"https?://[^/?#]*", re.IGNORECASE)
_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_NUMBER = re.compile(r"-?[0-9]+")
_FLAGS = {"true": True, "false": False}


class OtherAnswer(NamedTuple):
    """An answer of another type, for callers whose `Accept` asks for it."""

    content_type: str
    headers: Mapping[str, str] = MappingProxyType({})  # what each of them says
    nothing: str = ""  # when it is 204 instead; empty for never


@dataclass(frozen=True, slots=True)
class Route:
    """`answer` takes the caller and the operation's request, or None if the route is not an operation."""

    method: str
    template: str  # /api/v1/topics/{namespace}/{topic}
    operation: str  # its name in the description
    summary: str
    answer: Callable[..., Awaitable[Answer]]
    request: type[Request[Any]] | None = None
    status: int = 200  # of a successful answer
    query: Sequence[str] = ()  # the fields in the query; the others are in the body
    fixed: Mapping[str, str] = field(default_factory=dict)  # fields that follow from the path
    raw: bool = False  # the body may be bytes
    instead_of_bytes: Sequence[str] = ()  # fields that the body must have if it is JSON
    other: OtherAnswer | None = None
    body_bytes_max: int = CONTROL_BYTES_MAX
    content_type: str = JSON
    accepts: Sequence[str] = (JSON,)  # content types of a body
    described: bool = True  # in the description of the interface; not if others have described it
    probe: bool = False  # it is answered however busy the broker is, and costs next to nothing

    @property
    def segments(self) -> list[str]:
        return self.template.split("/")

    @property
    def body(self) -> list[str]:
        """The fields in the body, in which no other is allowed."""
        if self.request is None:
            return []
        elsewhere = {*self.query, *self.fixed, *(each[1:-1] for each in self.segments if each.startswith("{"))}
        return [name for name in self.request.__struct_fields__ if name not in elsewhere]


class Router:
    def __init__(self, routes: Sequence[Route]) -> None:
        self.routes = list(routes)
        self._probes = frozenset(route.template for route in routes if route.probe)
        self.probes = tuple(f"{method} {path} ".encode() for path in self._probes for method in ("GET", "HEAD"))
        self._by_length: dict[int, list[tuple[list[str], Route]]] = {}
        for route in routes:
            self._by_length.setdefault(len(route.segments), []).append((route.segments, route))

    @property
    def described(self) -> list[Route]:
        """The routes that are in the description of the interface."""
        return [route for route in self.routes if route.described]

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
                return route, {**_query_of(route, query), **_body_of(route, request), **route.fixed, **named}
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
        _check_known(route.query, name, "query")
        if name in found:
            raise RequestInvalid(f"{name} is given twice")
        found[name] = _value(route, name, text)
    return found


def _value(route: Route, name: str, text: str) -> object:
    """The text as the type that the field has. If it is something else, reading the request says so."""
    types = _types(route.request)[name] if route.request is not None else ()
    if inspect.BoolType in types:
        return _FLAGS.get(text, text)
    if inspect.IntType not in types or not _NUMBER.fullmatch(text):
        return text
    try:
        return whole_number(text)
    except MalformedBody as error:
        raise RequestInvalid(f"{name}: {error}") from None


@cache
def _types(request: type[Request[Any]]) -> dict[str, list[type[inspect.Type]]]:
    """The types that each field of a request may have."""
    return {each.name: [type(one) for one in parts(each.type)] for each in fields_of(request)}


def media_type(request: HttpRequest, header: str) -> str:
    return request.headers.get(header, "").partition(";")[0].strip().lower()


def _body_of(route: Route, request: HttpRequest) -> Object:
    content_type = media_type(request, "content-type")
    if content_type == RAW and route.raw:
        return {}
    if content_type not in ("", *route.accepts) or (request.body and not content_type):
        raise ContentTypeUnknown(f"unsupported content type {content_type[:50]!r}")
    if not request.body:
        return {}
    try:
        found = read_object(request.body, route.body_bytes_max, HTTP_JSON_VALUES_MAX)
    except MalformedBody as error:
        raise RequestInvalid(f"the body: {error}") from None
    known = route.body
    for name in found:
        _check_known(known, name, "body")
    return found


def _check_known(known: Collection[str], name: str, where: str) -> None:
    if name not in known:
        raise RequestInvalid(f"unknown field {name[:50]!r} in the {where}; known fields: {', '.join(known) or 'none'}")
