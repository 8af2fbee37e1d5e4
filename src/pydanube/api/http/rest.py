"""The table of routes: what each path means as a verb of `api/verbs.py`, or as one of the few things only HTTP has.

Translates, never decides. The description at /api/v1/openapi.json is made from this table.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydanube.api.http.answer import TEXT, Answer, answer_of
from pydanube.api.http.door import Door
from pydanube.api.http.messages import peek, publish
from pydanube.api.http.openapi import describe
from pydanube.api.http.problem import ERRORS_PATH, errors_html
from pydanube.api.http.receiving import ack, extend, nack, receive
from pydanube.api.http.router import Field, Route, Router
from pydanube.api.pipeline_verbs import NATIVE_VERBS
from pydanube.api.storage_verbs import VERBS
from pydanube.base.limits import HTTP_JSON_BYTES_MAX
from pydanube.wire.objects import Object

HTML = "text/html; charset=utf-8"
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
API = "/api/v1"
NAMESPACE = f"{API}/namespaces/{{namespace}}"
TOPIC = f"{API}/topics/{{namespace}}/{{topic}}"
SUBSCRIPTION = f"{TOPIC}/subscriptions/{{subscription}}"
PIPELINE = f"{API}/pipelines/{{pipeline}}"
Handler = Callable[[Door, Object], Awaitable[Answer]]

_LIMIT = {"limit": Field("number", "how many at most, 1 to 500")}
_PAGE = {"after": Field("text", "names behind this one"), **_LIMIT}
_POLICIES = Field("object", "policies by name; null takes one back")
_OPTIONS = Field("object", "`failure` and `dispatch`, as in the documentation of subscriptions")
_DRY_RUN = {"dry_run": Field("flag", "only check that it can be done, and change nothing")}
_PLACE = "`earliest`, `latest`, an offset, or {time: microseconds since 1970}"


def _verb(name: str, status: int = 200) -> Handler:
    """As a verb: its fields are those of the request, and a topic has its whole name."""

    async def answer(door: Door, fields: Object) -> Answer:
        found = await VERBS[name](door, fields)
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
    """Of a verb that has the operation's name."""
    handler = _verb(operation, status)
    return Route(method, template, operation, summary, handler, status, query=query or {}, body=body or {})


async def _namespace(door: Door, fields: Object) -> Answer:
    found = await VERBS["namespace.policies"](door, {"namespace": fields["namespace"]})
    return answer_of(200, {"namespace": fields["namespace"], **found})


async def _lookup(door: Door, fields: Object) -> Answer:
    found = await VERBS["topic"](door, fields)
    return answer_of(200, {"topic": found["topic"], "partitions": found["partitions"], **door.describe()})


async def _broker(door: Door, fields: Object) -> Answer:
    return answer_of(200, door.describe())


async def _config(door: Door, fields: Object) -> Answer:
    return answer_of(200, door.config())


async def _metrics(door: Door, fields: Object) -> Answer:
    return Answer(200, await door.metrics(), PROMETHEUS)


async def _errors(door: Door, fields: Object) -> Answer:
    return Answer(200, errors_html().encode(), HTML)


def _says(text: str) -> Handler:
    async def answer(door: Door, fields: Object) -> Answer:
        return Answer(200, text.encode(), TEXT)

    return answer


async def _ready(door: Door, fields: Object) -> Answer:
    """Also when the disk is nearly full: those who acknowledge must find the broker, for they make room."""
    refused = "; nothing is published until there is room on the disk again" if door.service.room.short else ""
    return Answer(200, f"ready{refused}\n".encode(), TEXT)


_OF_THE_BROKER = [
    Route("GET", "/healthz", "healthz", "Whether the process lives", _says("ok\n"), content_type=TEXT, probe=True),
    Route("GET", "/readyz", "readyz", "Whether the broker serves", _ready, content_type=TEXT, probe=True),
    Route(
        "GET", "/metrics", "metrics", "What it counts, for Prometheus", _metrics, content_type=PROMETHEUS, probe=True
    ),
    Route("GET", ERRORS_PATH, "errors", "Every error there is, by its code", _errors, content_type=HTML),
    Route("GET", f"{API}/broker", "broker", "Version and address of the broker", _broker),
    _route(
        "GET", f"{API}/blocked", "subscription.blocked", "Subscriptions that a message which failed too often stops"
    ),
    _route("GET", f"{API}/abandoned", "subscription.abandoned", "Subscriptions that nobody has read for days"),
    _route("GET", f"{API}/status", "status", "The broker as a whole: uptime, topics, counters, disk"),
    _route(
        "GET",
        f"{API}/connections",
        "connection.list",
        "Open connections in the order of connecting",
        query={"after": Field("number", "those behind the one with this number"), **_LIMIT},
    ),
    Route("GET", f"{API}/config", "config", "The settings in force", _config),
    Route("GET", f"{API}/lookup/{{namespace}}/{{topic}}", "lookup", "Which broker serves a topic", _lookup),
]

_OF_NAMESPACES = [
    _route("GET", f"{API}/namespaces", "namespace.list", "Namespaces in the order of their names", query=_PAGE),
    _route("PUT", NAMESPACE, "namespace.create", "Make a namespace", status=201, body={"policies": _POLICIES}),
    Route("GET", NAMESPACE, "namespace.describe", "Policies of a namespace", _namespace),
    _route(
        "PATCH",
        NAMESPACE,
        "namespace.policies",
        "Change policies of a namespace",
        body={"policies": _POLICIES._replace(required=True)},
    ),
    _route("DELETE", NAMESPACE, "namespace.delete", "Delete a namespace without topics", status=204, query=_DRY_RUN),
]

_OF_TOPICS = [
    _route(
        "GET", f"{API}/topics", "topic.list_all", "Topics of all namespaces in the order of their names", query=_PAGE
    ),
    _route("GET", f"{API}/topics/{{namespace}}", "topic.list", "Topics in the order of their names", query=_PAGE),
    _route(
        "PUT",
        TOPIC,
        "topic.create",
        "Make a topic",
        status=201,
        body={
            "reliable": Field("flag", "whether messages are kept until they are acknowledged; true unless said"),
            "partitions": Field("number", "how many; 0, unless said, for a topic without"),
            "durability": Field("text", "`fsynced`, which is meant unless said, or `buffered`"),
            "policies": _POLICIES,
        },
    ),
    _route("GET", TOPIC, "topic.describe", "A topic, and how it stands"),
    _route(
        "PATCH",
        TOPIC,
        "topic.alter",
        "Add partitions, change policies",
        body={"partitions": Field("number", "how many there shall be"), "policies": _POLICIES},
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
        "Delete all messages there are, or those below an offset",
        body={"before": Field("number", "the first offset to keep"), **_DRY_RUN},
    ),
    _route(
        "POST",
        f"{TOPIC}/redrive",
        "dlq.redrive",
        "Publish dead letters of this topic to where they come from, once more",
        body={
            "limit": Field("number", "how many at most, 1 to 500; a dry run without it counts all"),
            "to": Field("text", "a topic, /namespace/name, instead of where each comes from"),
            "filter": Field("object", "only letters with this: topic, subscription, reason, key, or an attribute"),
            **_DRY_RUN,
        },
    ),
    _route("GET", f"{TOPIC}/bounds", "bounds", "The first offset, and the one behind the last"),
    _route(
        "GET",
        f"{TOPIC}/offset",
        "offset_of_time",
        "The first offset that was appended at a time or later",
        query={"time": Field("number", "microseconds since 1970", required=True)},
    ),
    Route(
        "POST",
        f"{TOPIC}/messages",
        "publish",
        "Publish messages, and wait until they are safe",
        publish,
        query={"key": Field("text", "of the one message, where the body is its bytes")},
        body={"messages": Field("list", "objects with key, value or value_base64, attributes, event_time", True)},
        raw=True,
        body_bytes_max=HTTP_JSON_BYTES_MAX,
    ),
    Route(
        "GET",
        f"{TOPIC}/messages",
        "peek",
        "Look at messages; no subscription takes part",
        peek,
        query={
            "offset": Field("place", "`earliest`, which is meant unless said, `latest`, or an offset"),
            "limit": Field("number", "how many at most, 1 to 1000; 10 unless said"),
            "wait": Field("number", "seconds to wait for the first of them, 0 to 20"),
        },
    ),
]

_OF_SUBSCRIPTIONS = [
    _route(
        "GET", f"{TOPIC}/subscriptions", "subscription.list", "Subscriptions in the order of their names", query=_PAGE
    ),
    _route(
        "PUT",
        SUBSCRIPTION,
        "subscription.create",
        "Make a subscription, without a consumer",
        status=201,
        body={
            "type": Field("text", "exclusive, shared, failover or key_shared; exclusive unless said"),
            "start": Field("place", _PLACE),
            "options": _OPTIONS,
        },
    ),
    _route("GET", SUBSCRIPTION, "subscription.describe", "A subscription, and how far it is"),
    _route(
        "PATCH",
        SUBSCRIPTION,
        "subscription.alter",
        "Change options of a subscription",
        body={"options": _OPTIONS._replace(required=True)},
    ),
    _route("DELETE", SUBSCRIPTION, "subscription.delete", "Delete a subscription", status=204, query=_DRY_RUN),
    _route(
        "POST",
        f"{SUBSCRIPTION}/seek",
        "subscription.seek",
        "Let its consumers go on from elsewhere",
        body={"to": Field("place", _PLACE, required=True), **_DRY_RUN},
    ),
    _route(
        "POST",
        f"{SUBSCRIPTION}/skip",
        "subscription.skip",
        "Give up the next messages, or all below an offset",
        body={
            "count": Field("number", "how many messages"),
            "offset": Field("number", "the first to keep"),
            **_DRY_RUN,
        },
    ),
    _route(
        "GET",
        f"{SUBSCRIPTION}/consumers",
        "subscription.consumers",
        "Its consumers, with their addresses and partitions",
        query={"after": Field("number", "how many were listed before"), **_LIMIT},
    ),
    _route(
        "GET",
        f"{SUBSCRIPTION}/explain",
        "explain",
        "Why a message is not delivered, or a consumer gets nothing",
        query={
            "offset": Field("number", "of the message; unless given, the first that is not done"),
            "consumer": Field("number", "its number"),
        },
    ),
]

_LEASE = {"lease": Field("text", "the one that is meant")}
_LEASES = {"leases": Field("texts", "those that are meant, instead of the one in the query; 1 to 1000")}
_LEASE_SECONDS = Field("number", "how long each message is yours, 1 to 43200; unless said, the ack timeout")
_OF_LEASES = [
    Route(
        "POST",
        f"{SUBSCRIPTION}/receive",
        "receive",
        "Receive messages, each under a lease until which it is yours",
        receive,
        query={
            "limit": Field("number", "how many at most, 1 to 1000; 10 unless said, and 1 as bytes"),
            "wait": Field("number", "seconds to wait for the first of them, 0 to 20"),
            "lease_seconds": _LEASE_SECONDS,
            "consumer": Field("text", "who receives; requests that say the same are one consumer"),
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
        "Give messages back as failed, to be delivered again",
        nack,
        query=_LEASE,
        body={
            **_LEASES,
            "delay_seconds": Field("number", "how long to wait at least, 0 to 43200"),
            "reason": Field("text", "why they failed; a dead letter says it"),
        },
    ),
    Route(
        "POST",
        f"{SUBSCRIPTION}/extend",
        "extend",
        "Let leases end later",
        extend,
        query={**_LEASE, "lease_seconds": _LEASE_SECONDS._replace(doc="from now on, 1 to 43200", required=True)},
        body=_LEASES,
    ),
]

_TICKET = {"ticket": Field("number", "as the last answer said, to wait on for what goes on")}
_OF_STORAGE = [
    _route("GET", f"{API}/storage", "storage.status", "How object storage stands, with a look at the place"),
    _route(
        "GET",
        f"{API}/storage/{{namespace}}",
        "storage.list",
        "What topics have in which tier, in the order of their names",
        query=_PAGE,
    ),
    _route("GET", f"{TOPIC}/storage", "storage.usage", "What a topic, or a partition, has in which tier"),
    _route(
        "GET",
        f"{TOPIC}/storage/segments",
        "storage.segments",
        "Segments of a topic or of one partition, oldest first",
        query={
            "start": Field("number", "those that hold this offset or later ones"),
            "limit": Field("number", "how many at most, 1 to 500"),
        },
    ),
    _route("GET", f"{TOPIC}/storage/table", "storage.table", "The table that a topic is, and whether there is one yet"),
    _route(
        "POST",
        f"{TOPIC}/storage/verify",
        "storage.verify",
        "Read a segment again, and check it",
        body={"first": Field("number", "the offset that it starts at", required=True), **_TICKET},
    ),
    _route("GET", f"{API}/damage", "storage.damage", "Topics of which something is known to be damaged, or may be"),
    _route(
        "POST",
        f"{TOPIC}/storage/salvage",
        "storage.salvage",
        "What is damaged of a topic or partition, and accepting that it is lost",
        body={"accept": Field("flag", "give it up for good; else it is only listed"), **_TICKET},
    ),
    _route(
        "POST",
        f"{TOPIC}/storage/upload",
        "storage.upload",
        "Upload all that a topic, or one partition, has now",
        body=_TICKET,
    ),
]


def _ordered(order: str) -> Handler:
    async def answer(door: Door, fields: Object) -> Answer:
        return answer_of(200, await NATIVE_VERBS["pipeline.order"](door, {**fields, "order": order}))

    return answer


_OF_PIPELINES = [
    _route("GET", f"{API}/pipelines", "pipeline.list", "Pipelines in the order of their names", query=_PAGE),
    _route("GET", PIPELINE, "pipeline.status", "A pipeline, and how far it is"),
    _route(
        "GET",
        f"{PIPELINE}/logs",
        "pipeline.logs",
        "The last lines that a pipeline logged",
        query={
            "after": Field("number", "those behind the one with this sequence number"),
            "limit": Field("number", "how many at most, 1 to 500"),
        },
    ),
    Route("POST", f"{PIPELINE}/stop", "pipeline.stop", "Let a pipeline stop after its batch", _ordered("stop")),
    Route("POST", f"{PIPELINE}/restart", "pipeline.restart", "Let a pipeline start over", _ordered("restart")),
    _route(
        "DELETE",
        PIPELINE,
        "pipeline.forget",
        "Forget a pipeline that does not run",
        status=204,
        query={"records": Field("flag", "what the broker keeps of its checkpoint and its dead letters goes too")},
    ),
]


def make_router() -> Router:
    routes = [*_OF_THE_BROKER, *_OF_NAMESPACES, *_OF_TOPICS, *_OF_SUBSCRIPTIONS, *_OF_LEASES, *_OF_STORAGE]
    routes += _OF_PIPELINES

    async def openapi(door: Door, fields: Object) -> Answer:
        return description

    routes.append(Route("GET", f"{API}/openapi.json", "openapi", "This description", openapi))
    description = answer_of(200, describe(routes))
    return Router(routes)
