"""The table of routes: each path is an operation, or one of the few things that only HTTP has.

It translates and never decides. The description at /api/v1/openapi.json is built from this table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydanube.access.rights import Action
from pydanube.api.http.answer import HTML, TEXT, Answer, answer_of
from pydanube.api.http.consumers import AS_BYTES, ack, extend, nack, receive
from pydanube.api.http.errors import ERRORS_PATH, errors_html
from pydanube.api.http.face import Caller
from pydanube.api.http.front_page import front_page
from pydanube.api.http.kafka_schemas import KAFKA_ROUTES
from pydanube.api.http.messages import peek
from pydanube.api.http.openapi import describe
from pydanube.api.http.producers import publish
from pydanube.api.http.router import OtherAnswer, Route, Router
from pydanube.base.limits import HTTP_JSON_BYTES_MAX
from pydanube.operations.broker import DescribeBroker, GetSettings, GetStatus, ListConnections, LookUpTopic
from pydanube.operations.messages import AckLeases, ExtendLeases, NackLeases, Peek, Publish, Receive
from pydanube.operations.namespaces import (
    AlterNamespace,
    CreateNamespace,
    DeleteNamespace,
    DescribeNamespace,
    ListNamespaces,
)
from pydanube.operations.operation import Request
from pydanube.operations.pipelines import (
    DescribePipeline,
    ForgetPipeline,
    ListPipelines,
    OrderPipeline,
    ReadPipelineLogs,
)
from pydanube.operations.schemas import (
    CheckSchema,
    DeleteSchema,
    FindSchema,
    GetSchema,
    GetSchemaById,
    GetSchemaMode,
    ListSchemaVersions,
    ListSubjects,
    RegisterSchema,
    SetSchemaMode,
)
from pydanube.operations.security import (
    CanI,
    DeleteBinding,
    DeleteRole,
    DescribeBinding,
    DescribeRole,
    ListBindings,
    ListRoles,
    PutBinding,
    PutRole,
    WhoAmI,
)
from pydanube.operations.storage import (
    DescribeTable,
    GetObjectStorage,
    GetUsage,
    ListDamage,
    ListSegments,
    ListUsage,
    SalvageTopic,
    UploadTopic,
    VerifySegment,
)
from pydanube.operations.subscriptions import (
    AlterSubscription,
    CreateSubscription,
    DeleteSubscription,
    DescribeSubscription,
    Explain,
    ListAbandoned,
    ListBlocked,
    ListConsumers,
    ListSubscriptions,
    SeekSubscription,
    SkipMessages,
)
from pydanube.operations.topics import (
    AlterTopic,
    CreateTopic,
    DeleteTopic,
    DescribeTopic,
    FindOffset,
    GetBounds,
    ListAllTopics,
    ListTopics,
    Redrive,
    TruncateTopic,
)

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
API = "/api/v1"
NAMESPACE = f"{API}/namespaces/{{namespace}}"
TOPIC = f"{API}/topics/{{namespace}}/{{topic}}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
PIPELINE = f"{API}/pipelines/{{pipeline}}"
SUBJECT = f"{API}/schemas/{{subject}}"


async def _carry_out(caller: Caller, request: Request[Any]) -> Answer:
    return answer_of(200, await caller.session.carry_out(request))


async def _create(caller: Caller, request: Request[Any]) -> Answer:
    return answer_of(201, await caller.session.carry_out(request))


async def _delete(caller: Caller, request: Request[Any]) -> Answer:
    await caller.session.carry_out(request)
    return Answer(204, b"")


def _route(method: str, template: str, request: type[Request[Any]], query: Sequence[str] | None = None) -> Route:
    """The route of an operation. What is read or deleted has its fields in the query, anything else in the body."""
    answer, status = {"PUT": (_create, 201), "DELETE": (_delete, 204)}.get(method, (_carry_out, 200))
    route = Route(method, template, request.operation, request.summary, answer, request, status)
    query = route.body if query is None and method in ("GET", "DELETE") else query or ()
    return Route(method, template, request.operation, request.summary, answer, request, status, query)


async def _metrics(caller: Caller, request: None) -> Answer:
    return Answer(200, await caller.session.broker.metrics(), PROMETHEUS)


async def _errors(caller: Caller, request: None) -> Answer:
    caller.session.ask(Action.REFLECTION)
    return Answer(200, errors_html().encode(), HTML)


async def _alive(caller: Caller, request: None) -> Answer:
    caller.session.ask(Action.HEALTH)
    return Answer(200, b"ok\n", TEXT)


async def _ready(caller: Caller, request: None) -> Answer:
    """Ready even if the disk is nearly full: consumers must reach the broker, because their acks free room."""
    full = caller.session.broker.publishing_refused()
    refused = "; publishing is refused until the disk has room again" if full else ""
    return Answer(200, f"ready{refused}\n".encode(), TEXT)


_PAGES = [
    Route(
        "GET",
        "/",
        "front_page",
        "Where things are, and what needs attention",
        front_page,
        content_type=TEXT,
        other=OtherAnswer(HTML),
    ),
    Route(
        "GET", "/healthz", "healthz", "Liveness: whether the process is running", _alive, content_type=TEXT, probe=True
    ),
    Route(
        "GET",
        "/readyz",
        "readyz",
        "Readiness: whether the broker accepts requests",
        _ready,
        content_type=TEXT,
        probe=True,
    ),
    Route("GET", "/metrics", "metrics", "Metrics for Prometheus", _metrics, content_type=PROMETHEUS, probe=True),
    Route("GET", ERRORS_PATH, "errors", "All errors, by code", _errors, content_type=HTML),
]

_OF_THE_BROKER = [
    _route("GET", f"{API}/broker", DescribeBroker),
    _route("GET", f"{API}/blocked", ListBlocked),
    _route("GET", f"{API}/abandoned", ListAbandoned),
    _route("GET", f"{API}/status", GetStatus),
    _route("GET", f"{API}/connections", ListConnections),
    _route("GET", f"{API}/config", GetSettings),
    _route("GET", f"{API}/lookup/{{namespace}}/{{topic}}", LookUpTopic),
]

_OF_NAMESPACES = [
    _route("GET", f"{API}/namespaces", ListNamespaces),
    _route("PUT", NAMESPACE, CreateNamespace),
    _route("GET", NAMESPACE, DescribeNamespace),
    _route("PATCH", NAMESPACE, AlterNamespace),
    _route("DELETE", NAMESPACE, DeleteNamespace),
]

_OF_TOPICS = [
    _route("GET", f"{API}/topics", ListAllTopics),
    _route("GET", f"{API}/topics/{{namespace}}", ListTopics),
    _route("PUT", TOPIC, CreateTopic),
    _route("GET", TOPIC, DescribeTopic),
    _route("PATCH", TOPIC, AlterTopic),
    _route("DELETE", TOPIC, DeleteTopic),
    _route("POST", f"{TOPIC}/truncate", TruncateTopic),
    _route("POST", f"{TOPIC}/redrive", Redrive),
    _route("GET", f"{TOPIC}/bounds", GetBounds),
    _route("GET", f"{TOPIC}/offset", FindOffset),
    Route(
        "POST",
        f"{TOPIC}/messages",
        "publish",
        Publish.summary,
        publish,
        Publish,
        query=("key",),
        raw=True,
        instead_of_bytes=("messages",),
        body_bytes_max=HTTP_JSON_BYTES_MAX,
    ),
    Route("GET", f"{TOPIC}/messages", "peek", Peek.summary, peek, Peek, query=("offset", "limit", "wait")),
]

_OF_SUBSCRIPTIONS = [
    _route("GET", f"{TOPIC}/subscriptions", ListSubscriptions),
    _route("PUT", SUBSCRIPTION, CreateSubscription),
    _route("GET", SUBSCRIPTION, DescribeSubscription),
    _route("PATCH", SUBSCRIPTION, AlterSubscription),
    _route("DELETE", SUBSCRIPTION, DeleteSubscription),
    _route("POST", f"{SUBSCRIPTION}/seek", SeekSubscription),
    _route("POST", f"{SUBSCRIPTION}/skip", SkipMessages),
    _route("GET", f"{SUBSCRIPTION}/consumers", ListConsumers),
    _route("GET", f"{SUBSCRIPTION}/explain", Explain),
]

_OF_LEASES = [
    Route(
        "POST",
        f"{SUBSCRIPTION}/receive",
        "receive",
        Receive.summary,
        receive,
        Receive,
        query=("limit", "wait", "lease_seconds", "consumer"),
        other=AS_BYTES,
    ),
    Route("POST", f"{SUBSCRIPTION}/ack", "ack", AckLeases.summary, ack, AckLeases, query=("lease",)),
    Route("POST", f"{SUBSCRIPTION}/nack", "nack", NackLeases.summary, nack, NackLeases, query=("lease",)),
    Route(
        "POST",
        f"{SUBSCRIPTION}/extend",
        "extend",
        ExtendLeases.summary,
        extend,
        ExtendLeases,
        query=("lease", "lease_seconds"),
    ),
]

_OF_STORAGE = [
    _route("GET", f"{API}/storage", GetObjectStorage),
    _route("GET", f"{API}/storage/{{namespace}}", ListUsage),
    _route("GET", f"{TOPIC}/storage", GetUsage),
    _route("GET", f"{TOPIC}/storage/segments", ListSegments),
    _route("GET", f"{TOPIC}/storage/table", DescribeTable),
    _route("POST", f"{TOPIC}/storage/verify", VerifySegment),
    _route("GET", f"{API}/damage", ListDamage),
    _route("POST", f"{TOPIC}/storage/salvage", SalvageTopic),
    _route("POST", f"{TOPIC}/storage/upload", UploadTopic),
]


_OF_SCHEMAS = [
    _route("GET", f"{API}/schemas", ListSubjects),
    _route("GET", SUBJECT, GetSchema),
    _route("DELETE", SUBJECT, DeleteSchema),
    _route("POST", f"{SUBJECT}/versions", RegisterSchema),
    _route("GET", f"{SUBJECT}/versions", ListSchemaVersions),
    _route("POST", f"{SUBJECT}/check", CheckSchema),
    _route("POST", f"{SUBJECT}/find", FindSchema),
    _route("GET", f"{API}/schema-by-id", GetSchemaById),
    _route("GET", f"{API}/schema-mode", GetSchemaMode),
    _route("PATCH", f"{API}/schema-mode", SetSchemaMode),
]


def _order(order: str, summary: str) -> Route:
    template, name, fixed = f"{PIPELINE}/{order}", f"pipeline.{order}", {"order": order}
    return Route("POST", template, name, summary, _carry_out, OrderPipeline, fixed=fixed)


_OF_PIPELINES = [
    _route("GET", f"{API}/pipelines", ListPipelines),
    _route("GET", PIPELINE, DescribePipeline),
    _route("GET", f"{PIPELINE}/logs", ReadPipelineLogs),
    _order("stop", "Stop a pipeline after its current batch"),
    _order("restart", "Restart a pipeline"),
    _route("DELETE", PIPELINE, ForgetPipeline),
]


SECURITY = f"{API}/security"
_OF_SECURITY = [
    _route("GET", f"{SECURITY}/roles", ListRoles),
    _route("PUT", f"{SECURITY}/roles/{{role}}", PutRole),
    _route("GET", f"{SECURITY}/roles/{{role}}", DescribeRole),
    _route("DELETE", f"{SECURITY}/roles/{{role}}", DeleteRole),
    _route("GET", f"{SECURITY}/bindings", ListBindings),
    _route("PUT", f"{SECURITY}/bindings/{{binding}}", PutBinding),
    _route("GET", f"{SECURITY}/bindings/{{binding}}", DescribeBinding),
    _route("DELETE", f"{SECURITY}/bindings/{{binding}}", DeleteBinding),
    _route("GET", f"{SECURITY}/whoami", WhoAmI),
    _route("GET", f"{SECURITY}/can-i", CanI),
]


def make_router() -> Router:
    routes = [*_PAGES, *_OF_THE_BROKER, *_OF_NAMESPACES, *_OF_TOPICS, *_OF_SUBSCRIPTIONS, *_OF_LEASES, *_OF_STORAGE]
    routes += [*_OF_SCHEMAS, *_OF_PIPELINES, *_OF_SECURITY]

    async def openapi(caller: Caller, request: None) -> Answer:
        caller.session.ask(Action.REFLECTION)
        return description

    routes.append(Route("GET", f"{API}/openapi.json", "openapi", "This description", openapi))
    description = answer_of(200, describe(routes))
    return Router([*routes, *KAFKA_ROUTES])
