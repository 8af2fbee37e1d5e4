"""The paths of Confluent's schema registry, which clients and tools of Kafka know. It translates, and decides nothing.

Ids are those of definitions, and modes are in upper case. What these clients send and the registry does not have, such
as rules and metadata of schemas, is refused; hints such as `normalize` are ignored.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from pydanube.api.http.answer import JSON, Answer
from pydanube.api.http.errors import headers_of
from pydanube.api.http.face import Caller
from pydanube.api.http.router import Route
from pydanube.api.listening.failures import error_of
from pydanube.base.errors import RequestInvalid, SchemaNotFound
from pydanube.operations.operation import Done, Request
from pydanube.operations.schemas import (
    CheckSchema,
    DeleteSchema,
    FindSchema,
    GetSchema,
    GetSchemaMode,
    ListSchemaVersions,
    RegisterSchema,
    Schema,
    SchemaReference,
    SetSchemaMode,
)
from pydanube.schema.kinds import SchemaType

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
_ACCEPTED = (JSON, CONTENT_TYPE, "application/vnd.schemaregistry+json")
_NAMES = {SchemaType.AVRO: "AVRO", SchemaType.JSON_SCHEMA: "JSON", SchemaType.PROTOBUF: "PROTOBUF"}
_LATEST = ("latest", "-1")
_NO_VERSION = 40402  # where a path names a version; elsewhere a definition is not found
_HINTS = (
    "normalize", "verbose", "deleted", "deletedOnly", "deleted_only", "permanent", "format", "reference_format",
    "fetchMaxId",    "defaultToGlobal", "subject", "subjectPrefix", "force", "offset", "limit", "latestOnly",
)  # fmt: skip


class KafkaRequest(Request[Done]):
    """Everything that may be in a path, a query or a body."""

    subject: str = ""
    version: str = "latest"
    id: str = ""
    schema: str = ""
    schemaType: str | None = None  # of a new definition; Avro by default
    references: list[SchemaReference] | None = None
    metadata: Any = None
    ruleSet: Any = None
    compatibility: str | None = None
    normalize: str = ""
    verbose: str = ""
    deleted: str = ""
    deletedOnly: str = ""
    deleted_only: str = ""
    permanent: str = ""
    format: str = ""
    reference_format: str = ""
    fetchMaxId: str = ""
    defaultToGlobal: str = ""
    subjectPrefix: str = ""
    force: str = ""
    offset: str = ""
    limit: str = ""
    latestOnly: str = ""

    @property
    def type(self) -> str:
        return self.schemaType or "AVRO"

    @property
    def referred(self) -> list[SchemaReference]:
        if self.metadata or self.ruleSet:
            raise RequestInvalid("metadata and rules of schemas are not supported")
        return self.references or []

    @property
    def number(self) -> int | None:
        """The version; None for the latest."""
        return None if self.version in _LATEST else _whole(self.version, "version")


Handler = Callable[[Caller, KafkaRequest], Awaitable[Any]]


def _whole(text: str, name: str, least: int = 1) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 10 or not least <= int(text) < 1 << 31:
        raise RequestInvalid(f"{name} must be a whole number, {least} or greater, got {text[:50]!r}")
    return int(text)


def _part(found: list[Any], request: KafkaRequest) -> list[Any]:
    """The items of the page that was asked for; a negative limit means all."""
    first = _whole(request.offset, "offset", 0) if request.offset else 0
    unlimited = request.limit.startswith("-") or not request.limit
    return found[first:] if unlimited else found[first : first + _whole(request.limit, "limit", 0)]


async def _subjects(caller: Caller, request: KafkaRequest) -> Sequence[str]:
    return _part(caller.session.schemas.names(request.subjectPrefix), request)


async def _register(caller: Caller, request: KafkaRequest) -> object:
    asked = RegisterSchema(request.subject, request.type, request.schema, request.referred)
    return {"id": (await caller.session.carry_out(asked)).definition_id}


async def _find(caller: Caller, request: KafkaRequest) -> object:
    asked = FindSchema(request.subject, request.type, request.schema, request.referred)
    return _described(await caller.session.carry_out(asked))


async def _versions(caller: Caller, request: KafkaRequest) -> object:
    found: list[int] = []
    more = True
    while more:
        asked = ListSchemaVersions(request.subject, found[-1] if found else 0)
        page = await caller.session.carry_out(asked)
        found += [each.version for each in page.versions]
        more = page.more
    return _part(found, request)


async def _version(caller: Caller, request: KafkaRequest) -> object:
    return _described(await caller.session.carry_out(GetSchema(request.subject, request.number)))


async def _version_text(caller: Caller, request: KafkaRequest) -> object:
    return _text(await caller.session.carry_out(GetSchema(request.subject, request.number)))


async def _referring(caller: Caller, request: KafkaRequest) -> object:
    found = await caller.session.carry_out(GetSchema(request.subject, request.number))
    return caller.session.schemas.referring(request.subject, found.version)


async def _delete_version(caller: Caller, request: KafkaRequest) -> object:
    found = await caller.session.carry_out(GetSchema(request.subject, request.number))
    [deleted] = (await caller.session.carry_out(DeleteSchema(request.subject, found.version))).versions or [
        found.version
    ]
    return deleted


async def _delete_subject(caller: Caller, request: KafkaRequest) -> object:
    return (await caller.session.carry_out(DeleteSchema(request.subject))).versions


async def _by_id(caller: Caller, request: KafkaRequest) -> Schema:
    place = caller.session.schemas.place_of(_whole(request.id, "id"))
    return await caller.session.carry_out(GetSchema(*place))


async def _definition(caller: Caller, request: KafkaRequest) -> object:
    found = _described(await _by_id(caller, request))
    return {name: found[name] for name in ("schema", "schemaType", "references")}


async def _definition_text(caller: Caller, request: KafkaRequest) -> object:
    return _text(await _by_id(caller, request))


async def _subjects_of_id(caller: Caller, request: KafkaRequest) -> object:
    return [(await _by_id(caller, request)).subject]


async def _versions_of_id(caller: Caller, request: KafkaRequest) -> object:
    found = await _by_id(caller, request)
    return [{"subject": found.subject, "version": found.version}]


async def _types(caller: Caller, request: KafkaRequest) -> object:
    caller.session.schemas.names()
    return list(_NAMES.values())


async def _check(caller: Caller, request: KafkaRequest) -> object:
    return await _checked(
        caller, request, (await caller.session.carry_out(GetSchema(request.subject, request.number))).version
    )


async def _check_all(caller: Caller, request: KafkaRequest) -> object:
    return await _checked(caller, request, None)


async def _checked(caller: Caller, request: KafkaRequest, version: int | None) -> object:
    asked = CheckSchema(request.subject, request.type, request.schema, request.referred, version=version)
    found = await caller.session.carry_out(asked)
    sentences = [f"{each.path}: {each.reason}" if each.path else each.reason for each in found.breaks]
    return {"is_compatible": found.compatible, **({"messages": sentences} if request.verbose.lower() == "true" else {})}


async def _mode(caller: Caller, request: KafkaRequest) -> object:
    found = await caller.session.carry_out(GetSchemaMode(request.subject or None))
    return {"compatibilityLevel": found.mode.upper()}


async def _set_mode(caller: Caller, request: KafkaRequest) -> object:
    if request.compatibility is None:
        raise RequestInvalid("compatibility is missing")
    found = await caller.session.carry_out(SetSchemaMode(request.subject or None, request.compatibility))
    return {"compatibility": found.mode.upper()}


async def _remove_mode(caller: Caller, request: KafkaRequest) -> object:
    found = await caller.session.carry_out(SetSchemaMode(request.subject or None))
    return {"compatibilityLevel": found.mode.upper()}


async def _access(caller: Caller, request: KafkaRequest) -> object:
    """Every subject can always be read and written."""
    await caller.session.carry_out(GetSchemaMode(request.subject or None))
    return {"mode": "READWRITE"}


def _described(found: Schema) -> dict[str, Any]:
    return {
        "subject": found.subject,
        "id": found.definition_id,
        "version": found.version,
        "schemaType": _NAMES.get(SchemaType(found.type), found.type.upper()),
        "schema": found.definition,
        "references": found.references,
    }


def _text(found: Schema) -> msgspec.Raw:
    """The definition itself, which for a Protobuf file is not JSON."""
    return msgspec.Raw(found.definition.encode())


def _route(method: str, template: str, name: str, handler: Handler) -> Route:
    no_version = _NO_VERSION if "{version}" in template else None

    async def answer(caller: Caller, request: KafkaRequest) -> Answer:
        try:
            return Answer(200, msgspec.json.encode(await handler(caller, request)), CONTENT_TYPE)
        except Exception as problem:
            error = error_of(problem)
            number = error.kafka_code or error.http_status
            if isinstance(error, SchemaNotFound) and no_version is not None:
                number = no_version
            status = error.http_status
            document = {"error_code": number, "message": str(error), "status": status, "code": error.code}
            return Answer(status, msgspec.json.encode(document), CONTENT_TYPE, headers_of(error))

    in_path = [each[1:-1] for each in template.split("/") if each.startswith("{")]
    query = [each for each in _HINTS if each not in in_path]
    return Route(
        method, template, f"kafka.{name}", "", answer, KafkaRequest, query=query, accepts=_ACCEPTED,
        content_type=CONTENT_TYPE, described=False,
    )  # fmt: skip


_SUBJECT, _VERSION = "/subjects/{subject}", "/subjects/{subject}/versions/{version}"
_COMPATIBILITY = "/compatibility/subjects/{subject}/versions"
KAFKA_ROUTES = [
    _route("GET", "/subjects", "subjects", _subjects),
    _route("POST", _SUBJECT, "find", _find),
    _route("DELETE", _SUBJECT, "delete_subject", _delete_subject),
    _route("GET", f"{_SUBJECT}/versions", "versions", _versions),
    _route("POST", f"{_SUBJECT}/versions", "register", _register),
    _route("GET", _VERSION, "version", _version),
    _route("DELETE", _VERSION, "delete_version", _delete_version),
    _route("GET", f"{_VERSION}/schema", "version_text", _version_text),
    _route("GET", f"{_VERSION}/referencedby", "referring", _referring),
    _route("GET", "/schemas/types", "types", _types),
    _route("GET", "/schemas/ids/{id}", "definition", _definition),
    _route("GET", "/schemas/ids/{id}/schema", "definition_text", _definition_text),
    _route("GET", "/schemas/ids/{id}/subjects", "subjects_of_id", _subjects_of_id),
    _route("GET", "/schemas/ids/{id}/versions", "versions_of_id", _versions_of_id),
    _route("POST", _COMPATIBILITY, "check_all", _check_all),
    _route("POST", f"{_COMPATIBILITY}/{{version}}", "check", _check),
    _route("GET", "/config", "default_mode", _mode),
    _route("PUT", "/config", "set_default_mode", _set_mode),
    _route("DELETE", "/config", "remove_default_mode", _remove_mode),
    _route("GET", "/config/{subject}", "mode", _mode),
    _route("PUT", "/config/{subject}", "set_mode", _set_mode),
    _route("DELETE", "/config/{subject}", "remove_mode", _remove_mode),
    _route("GET", "/mode", "default_access", _access),
    _route("GET", "/mode/{subject}", "access", _access),
]
