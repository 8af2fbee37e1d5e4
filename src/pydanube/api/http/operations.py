"""The table of routes: each path is a verb of `api/operations`, or one of the few things that only HTTP has.

It translates and never decides. The description at /api/v1/openapi.json is built from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydanube.access.rights import Action
from pydanube.api.http.answer import HTML, TEXT, Answer, answer_of
from pydanube.api.http.consumers import ack, extend, nack, receive
from pydanube.api.http.errors import ERRORS_PATH, errors_html
from pydanube.api.http.face import Caller
from pydanube.api.http.front_page import front_page
from pydanube.api.http.messages import peek
from pydanube.api.http.openapi import describe
from pydanube.api.http.producers import publish
from pydanube.api.http.router import Field, Route, Router
from pydanube.api.operations.pipelines import NATIVE_VERBS
from pydanube.api.operations.storage import VERBS
from pydanube.base.limits import HTTP_JSON_BYTES_MAX
from pydanube.wire.objects import Object

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
API = "/api/v1"
NAMESPACE = f"{API}/namespaces/{{namespace}}"
TOPIC = f"{API}/topics/{{namespace}}/{{topic}}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
PIPELINE = f"{API}/pipelines/{{pipeline}}"
Handler = Callable[[Caller, Object], Awaitable[Answer]]

_LIMIT = {"limit": Field("number", "maximum number, 1 to 500")}
_PAGE = {"after": Field("text", "only names after this one"), **_LIMIT}
_POLICIES = Field("object", "policies by name; null removes one")
_OPTIONS = Field("object", "`failure` and `dispatch`, as in the documentation of subscriptions")
_DRY_RUN = {"dry_run": Field("flag", "only check whether it can be done, without changing anything")}
_PLACE = "`earliest`, `latest`, an offset, or {time: microseconds since 1970}"


def _verb(name: str, status: int = 200) -> Handler:
    """A handler that calls a verb with the fields of the request; a topic is passed with its full name."""

    async def answer(caller: Caller, fields: Object) -> Answer:
        found = await VERBS[name](caller.session, fields)
        return Answer(status, b"") if status == 204 else answer_of(status, found)

    return answer


def _route(
    method: str,
    template: str,
    operation: str,
    summary: str,
    *,
    status: int = 200,
    query: dict[str, Field] | None = None,
    body: dict[str, Field] | None = None,
) -> Route:
    """The route of a verb with the name of the operation."""
    handler = _verb(operation, status)
    return Route(method, template, operation, summary, handler, status, query=query or {}, body=body or {})


async def _namespace(caller: Caller, fields: Object) -> Answer:
    found = await VERBS["namespace.policies"](caller.session, {"namespace": fields["namespace"]})
    return answer_of(200, {"namespace": fields["namespace"], **found})


async def _lookup(caller: Caller, fields: Object) -> Answer:
    found = await VERBS["topic"](caller.session, fields)
    return answer_of(200, {"topic": found["topic"], "partitions": found["partitions"], **caller.face.describe()})


async def _broker(caller: Caller, fields: Object) -> Answer:
    caller.session.ask(Action.STATUS)
    return answer_of(200, caller.face.describe())


async def _config(caller: Caller, fields: Object) -> Answer:
    caller.session.ask(Action.CONFIG)
    return answer_of(200, caller.face.config())


async def _metrics(caller: Caller, fields: Object) -> Answer:
    caller.session.ask(Action.METRICS)
    return Answer(200, await caller.face.metrics(), PROMETHEUS)


async def _errors(caller: Caller, fields: Object) -> Answer:
    caller.session.ask(Action.REFLECTION)
    return Answer(200, errors_html().encode(), HTML)


async def _alive(caller: Caller, fields: Object) -> Answer:
    caller.session.ask(Action.HEALTH)
    return Answer(200, b"ok\n", TEXT)


async def _ready(caller: Caller, fields: Object) -> Answer:
    """Ready even if the disk is nearly full: consumers must reach the broker, because their acks free room."""
    refused = "; publishing is refused until the disk has room again" if caller.session.publishing_refused() else ""
    return Answer(200, f"ready{refused}\n".encode(), TEXT)


_OF_THE_BROKER = [
    Route(
        "GET", "/", "front_page", "Where things are, and what needs attention", front_page, content_type=TEXT, html=True
    ),
    Route(
        "GET",
        "/healthz",
        "healthz",
        "Liveness: whether the process is running",
        _alive,
        content_type=TEXT,
        probe=True,
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
    Route("GET", f"{API}/broker", "broker", "Version and address of the broker", _broker),
    _route("GET", f"{API}/blocked", "subscription.blocked", "Subscriptions blocked by a message that failed too often"),
    _route("GET", f"{API}/abandoned", "subscription.abandoned", "Subscriptions that no consumer has used for days"),
    _route("GET", f"{API}/status", "status", "State of the broker: uptime, topics, counters, disk"),
    _route(
        "GET",
        f"{API}/connections",
        "connection.list",
        "List open connections, oldest first",
        query={"after": Field("number", "only connections after the one with this number"), **_LIMIT},
    ),
    Route("GET", f"{API}/config", "config", "The settings in force", _config),
    Route("GET", f"{API}/lookup/{{namespace}}/{{topic}}", "lookup", "Which broker serves a topic", _lookup),
]

_OF_NAMESPACES = [
    _route("GET", f"{API}/namespaces", "namespace.list", "List namespaces by name", query=_PAGE),
    _route("PUT", NAMESPACE, "namespace.create", "Create a namespace", status=201, body={"policies": _POLICIES}),
    Route("GET", NAMESPACE, "namespace.describe", "Get the policies of a namespace", _namespace),
    _route(
        "PATCH",
        NAMESPACE,
        "namespace.policies",
        "Change policies of a namespace",
        body={"policies": _POLICIES._replace(required=True)},
    ),
    _route("DELETE", NAMESPACE, "namespace.delete", "Delete an empty namespace", status=204, query=_DRY_RUN),
]

_OF_TOPICS = [
    _route("GET", f"{API}/topics", "topic.list_all", "List the topics of all namespaces by name", query=_PAGE),
    _route("GET", f"{API}/topics/{{namespace}}", "topic.list", "List topics by name", query=_PAGE),
    _route(
        "PUT",
        TOPIC,
        "topic.create",
        "Create a topic",
        status=201,
        body={
            "reliable": Field("flag", "whether messages are stored until they are acknowledged; default true"),
            "partitions": Field("number", "number of partitions; default 0, for an unpartitioned topic"),
            "durability": Field("text", "`fsynced` (the default) or `buffered`"),
            "policies": _POLICIES,
        },
    ),
    _route("GET", TOPIC, "topic.describe", "Describe a topic"),
    _route(
        "PATCH",
        TOPIC,
        "topic.alter",
        "Add partitions or change policies",
        body={"partitions": Field("number", "the new number of partitions"), "policies": _POLICIES},
    ),
    _route(
        "DELETE",
        TOPIC,
        "topic.delete",
        "Delete a topic with all its messages and subscriptions",
        status=204,
        query=_DRY_RUN,
    ),
    _route(
        "POST",
        f"{TOPIC}/truncate",
        "topic.truncate",
        "Delete all messages, or those before an offset",
        body={"before": Field("number", "the first offset to keep"), **_DRY_RUN},
    ),
    _route(
        "POST",
        f"{TOPIC}/redrive",
        "dlq.redrive",
        "Publish the dead letters of this topic to their original topics again",
        body={
            "limit": Field("number", "maximum number, 1 to 500; without it, a dry run counts all"),
            "to": Field("text", "target topic, /namespace/name, instead of the original ones"),
            "filter": Field(
                "object", "only dead letters that match: topic, subscription, reason, key, or an attribute"
            ),
            "start": Field("number", "only dead letters from this offset on; `next` in the previous response"),
            "end": Field("number", "only dead letters before this offset"),
            **_DRY_RUN,
        },
    ),
    _route("GET", f"{TOPIC}/bounds", "bounds", "Get the first offset and the end offset"),
    _route(
        "GET",
        f"{TOPIC}/offset",
        "offset_of_time",
        "Find the first offset appended at or after a time",
        query={"time": Field("number", "microseconds since 1970", required=True)},
    ),
    Route(
        "POST",
        f"{TOPIC}/messages",
        "publish",
        "Publish messages and wait until they are durable",
        publish,
        query={"key": Field("text", "key of the message, if the body is its raw bytes")},
        body={"messages": Field("list", "objects with key, value or value_base64, attributes, event_time", True)},
        raw=True,
        body_bytes_max=HTTP_JSON_BYTES_MAX,
    ),
    Route(
        "GET",
        f"{TOPIC}/messages",
        "peek",
        "Read messages without a subscription",
        peek,
        query={
            "offset": Field("place", "`earliest` (the default), `latest`, or an offset"),
            "limit": Field("number", "maximum number, 1 to 1000; default 10"),
            "wait": Field("number", "seconds to wait for the first message, 0 to 20"),
        },
    ),
]

_OF_SUBSCRIPTIONS = [
    _route("GET", f"{TOPIC}/subscriptions", "subscription.list", "List subscriptions by name", query=_PAGE),
    _route(
        "PUT",
        SUBSCRIPTION,
        "subscription.create",
        "Create a subscription",
        status=201,
        body={
            "type": Field("text", "exclusive (the default), shared, failover or key_shared"),
            "start": Field("place", _PLACE),
            "options": _OPTIONS,
        },
    ),
    _route("GET", SUBSCRIPTION, "subscription.describe", "Describe a subscription and its progress"),
    _route(
        "PATCH",
        SUBSCRIPTION,
        "subscription.alter",
        "Change the options of a subscription",
        body={"options": _OPTIONS._replace(required=True)},
    ),
    _route("DELETE", SUBSCRIPTION, "subscription.delete", "Delete a subscription", status=204, query=_DRY_RUN),
    _route(
        "POST",
        f"{SUBSCRIPTION}/seek",
        "subscription.seek",
        "Move a subscription to another position",
        body={"to": Field("place", _PLACE, required=True), **_DRY_RUN},
    ),
    _route(
        "POST",
        f"{SUBSCRIPTION}/skip",
        "subscription.skip",
        "Skip the next messages, or all before an offset",
        body={
            "count": Field("number", "number of messages to skip"),
            "offset": Field("number", "the first offset to keep"),
            **_DRY_RUN,
        },
    ),
    _route(
        "GET",
        f"{SUBSCRIPTION}/consumers",
        "subscription.consumers",
        "List the consumers of a subscription, with addresses and partitions",
        query={"after": Field("number", "number of consumers already listed"), **_LIMIT},
    ),
    _route(
        "GET",
        f"{SUBSCRIPTION}/explain",
        "explain",
        "Explain why a message is not delivered, or why a consumer gets nothing",
        query={
            "offset": Field("number", "offset of the message; by default, the first unacknowledged one"),
            "consumer": Field("number", "explain why the consumer with this number gets nothing"),
        },
    ),
]

_LEASE = {"lease": Field("text", "lease of one message")}
_LEASES = {"leases": Field("texts", "leases of 1 to 1000 messages, instead of `lease` in the query")}
_LEASE_SECONDS = Field("number", "duration of the lease, 1 to 43200 seconds; default: the ack timeout")
_OF_LEASES = [
    Route(
        "POST",
        f"{SUBSCRIPTION}/receive",
        "receive",
        "Receive messages under a lease",
        receive,
        query={
            "limit": Field("number", "maximum number, 1 to 1000; default 10, and 1 as bytes"),
            "wait": Field("number", "seconds to wait for the first message, 0 to 20"),
            "lease_seconds": _LEASE_SECONDS,
            "consumer": Field("text", "name of the consumer; requests with the same name count as one"),
        },
        raw_answer=True,
    ),
    Route(
        "POST", f"{SUBSCRIPTION}/ack", "ack", "Acknowledge messages by their leases", ack, query=_LEASE, body=_LEASES
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/nack",
        "nack",
        "Negatively acknowledge messages, to be delivered again",
        nack,
        query=_LEASE,
        body={
            **_LEASES,
            "delay_seconds": Field("number", "minimum delay before redelivery, 0 to 43200 seconds"),
            "reason": Field("text", "why they failed; recorded in the dead letter"),
        },
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/extend",
        "extend",
        "Extend leases",
        extend,
        query={
            **_LEASE,
            "lease_seconds": _LEASE_SECONDS._replace(
                doc="new duration of the leases, from now: 1 to 43200 seconds", required=True
            ),
        },
        body=_LEASES,
    ),
]

_TICKET = {"ticket": Field("number", "ticket in the previous response, to keep waiting for the running job")}
_OF_STORAGE = [
    _route("GET", f"{API}/storage", "storage.status", "Check object storage"),
    _route(
        "GET",
        f"{API}/storage/{{namespace}}",
        "storage.list",
        "Show what topics store in each tier, by name",
        query=_PAGE,
    ),
    _route("GET", f"{TOPIC}/storage", "storage.usage", "Show what a topic or partition stores in each tier"),
    _route(
        "GET",
        f"{TOPIC}/storage/segments",
        "storage.segments",
        "List the segments of a topic or partition, oldest first",
        query={
            "start": Field("number", "segments that contain this offset or later ones"),
            "limit": Field("number", "maximum number, 1 to 500"),
        },
    ),
    _route("GET", f"{TOPIC}/storage/table", "storage.table", "Describe the table of a topic"),
    _route(
        "POST",
        f"{TOPIC}/storage/verify",
        "storage.verify",
        "Read a segment and verify it",
        body={"first": Field("number", "the first offset of the segment", required=True), **_TICKET},
    ),
    _route("GET", f"{API}/damage", "storage.damage", "List topics with known or possible damage"),
    _route(
        "POST",
        f"{TOPIC}/storage/salvage",
        "storage.salvage",
        "List the damage of a topic or partition, or accept the loss",
        body={"accept": Field("flag", "accept the loss for good; without it, damage is only listed"), **_TICKET},
    ),
    _route(
        "POST",
        f"{TOPIC}/storage/upload",
        "storage.upload",
        "Upload a topic or partition now",
        body=_TICKET,
    ),
]


def _ordered(order: str) -> Handler:
    async def answer(caller: Caller, fields: Object) -> Answer:
        return answer_of(200, await NATIVE_VERBS["pipeline.order"](caller.session, {**fields, "order": order}))

    return answer


_OF_PIPELINES = [
    _route("GET", f"{API}/pipelines", "pipeline.list", "List pipelines by name", query=_PAGE),
    _route("GET", PIPELINE, "pipeline.status", "Describe a pipeline and its progress"),
    _route(
        "GET",
        f"{PIPELINE}/logs",
        "pipeline.logs",
        "Get the last log lines of a pipeline",
        query={
            "after": Field("number", "lines after the one with this sequence number"),
            "limit": Field("number", "maximum number, 1 to 500"),
        },
    ),
    Route("POST", f"{PIPELINE}/stop", "pipeline.stop", "Stop a pipeline after its current batch", _ordered("stop")),
    Route("POST", f"{PIPELINE}/restart", "pipeline.restart", "Restart a pipeline", _ordered("restart")),
    _route(
        "DELETE",
        PIPELINE,
        "pipeline.forget",
        "Forget a pipeline that is not running",
        status=204,
        query={"records": Field("flag", "also delete what the broker stores about its checkpoint and dead letters")},
    ),
]


def make_router() -> Router:
    routes = [*_OF_THE_BROKER, *_OF_NAMESPACES, *_OF_TOPICS, *_OF_SUBSCRIPTIONS, *_OF_LEASES, *_OF_STORAGE]
    routes += _OF_PIPELINES

    async def openapi(caller: Caller, fields: Object) -> Answer:
        caller.session.ask(Action.REFLECTION)
        return description

    routes.append(Route("GET", f"{API}/openapi.json", "openapi", "This description", openapi))
    description = answer_of(200, describe(routes))
    return Router(routes)
