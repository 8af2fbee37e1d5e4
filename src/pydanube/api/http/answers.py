"""Schemas of the successful answers of each REST operation, for the OpenAPI description. Nothing checks them here."""

from __future__ import annotations

from pydanube.wire.objects import Object

TEXT: Object = {"type": "string"}
TEXT_OR_NULL: Object = {"type": ["string", "null"]}
NUMBER: Object = {"type": "integer"}
NUMBER_OR_NULL: Object = {"type": ["integer", "null"]}
SECONDS: Object = {"type": "number"}
SECONDS_OR_NULL: Object = {"type": ["number", "null"]}
FLAG: Object = {"type": "boolean"}
BY_NAME: Object = {"type": "object"}


def _list(of: Object) -> Object:
    return {"type": "array", "items": of}


def _object(fields: Object) -> Object:
    return {"type": "object", "properties": fields}


_BROKER: Object = {"version": TEXT, "url": TEXT, "address": TEXT}
_TOPIC: Object = {
    "topic": TEXT,
    "id": NUMBER,
    "reliable": FLAG,
    "partitions": NUMBER,
    "durability": {"enum": ["fsynced", "buffered", "none"]},
    "key_hash": {"enum": ["fnv1a64", "crc32c"]},
    "policies": BY_NAME,
    "dead_letters": FLAG,
}
_USAGE: Object = {
    "bytes": NUMBER,
    "local_bytes": NUMBER,
    "object_bytes": NUMBER,
    "segments": NUMBER,
    "waiting_bytes": NUMBER,
    "doomed_objects": NUMBER,
    "lag_seconds": SECONDS,
    "troubles": {"type": "array", "items": TEXT},
}
_SEGMENT: Object = {
    "topic": TEXT,
    "segment": TEXT,
    "where": {"enum": ["local", "both", "objects", "unreadable"]},
    "first": NUMBER,
    "last": NUMBER,
    "bytes": NUMBER,
    "object_bytes": NUMBER,
    "newest": NUMBER,
}
_SUBSCRIPTION: Object = {
    "subscription": TEXT,
    "type": {"enum": ["exclusive", "shared", "failover", "key_shared"]},
    "floor": NUMBER_OR_NULL,
    "end": NUMBER_OR_NULL,
    "generation": NUMBER_OR_NULL,
    "backlog": NUMBER,
    "backlog_seconds": SECONDS_OR_NULL,
    "in_flight": NUMBER,
    "consumers": NUMBER,
    "paused": FLAG,
    "blocked": TEXT_OR_NULL,
    "unreadable": TEXT_OR_NULL,
    "delayed": NUMBER,
    "delayed_until": NUMBER_OR_NULL,
    "stopped": NUMBER,
}
_MEMBER: Object = {
    "name": TEXT,
    "address": TEXT,
    "consumers": _list(NUMBER),
    "partitions": _list(NUMBER),
    "active": FLAG,
    "active_partitions": _list(NUMBER),
    "in_flight": NUMBER,
}
_CONNECTION: Object = {
    "number": NUMBER,
    "address": TEXT,
    "protocol": TEXT_OR_NULL,
    "client": TEXT,
    "since": NUMBER,
    "producers": NUMBER_OR_NULL,
    "consumers": NUMBER_OR_NULL,
}
_STATUS: Object = {
    **dict.fromkeys(("started", "now", "topics", "connections", "producers", "consumers", "subscriptions"), NUMBER),
    **dict.fromkeys(("messages_in", "messages_out", "stored_bytes", "backlog"), NUMBER),
    "disk_free_bytes": NUMBER_OR_NULL,
    "disk_reserve_bytes": NUMBER_OR_NULL,
    "publishing_refused": FLAG,
    "ledgers": NUMBER,
    "ledgers_max": NUMBER,
}
_EXPLANATION: Object = {
    "partition": NUMBER_OR_NULL,
    "offset": NUMBER_OR_NULL,
    "code": TEXT_OR_NULL,
    "until": NUMBER_OR_NULL,
    "sentence": TEXT,
    "backlog": NUMBER,
    "total": NUMBER,
}
_IN_FULL: Object = {
    **_SUBSCRIPTION,
    "floors": _list(NUMBER_OR_NULL),
    "ends": _list(NUMBER_OR_NULL),
    "blocked_at": _list(NUMBER_OR_NULL),
    "counts": BY_NAME,
    "options": BY_NAME,
}
_STATES: Object = {"enum": ["starting", "running", "retrying", "stopping", "stopped", "failed", "lost"]}
_PIPELINE: Object = {
    "pipeline": TEXT,
    "run": TEXT,
    "state": _STATES,
    "cause": TEXT_OR_NULL,
    "reported": NUMBER,
    "order": {"enum": ["none", "stop", "restart"]},
    "info": BY_NAME,
    "progress": BY_NAME,
}
_MESSAGE: Object = {
    "offset": NUMBER,
    "key": TEXT_OR_NULL,
    "key_base64": TEXT,
    "value": TEXT_OR_NULL,
    "value_base64": TEXT,
    "value_cut_from_bytes": NUMBER,
    "attributes": BY_NAME,
    "publish_time": NUMBER,
    "append_time": NUMBER,
    "event_time": NUMBER_OR_NULL,
    "delivery_time": NUMBER_OR_NULL,
    "producer": NUMBER,
    "sequence": NUMBER,
}

ANSWERS: dict[str, Object] = {
    "broker": _BROKER,
    "config": {
        "data_dir": TEXT,
        "listen": TEXT,
        "admin_listen": TEXT_OR_NULL,
        "advertise": TEXT_OR_NULL,
        "auto_create": FLAG,
        "keepalive_seconds": NUMBER,
        "tls": BY_NAME,
        "limits": BY_NAME,
        "journal": BY_NAME,
        "storage": BY_NAME,
        "ready_file": TEXT_OR_NULL,
        "allow_unprotected_network": FLAG,
        "log_level": TEXT,
        "origins": BY_NAME,
    },
    "lookup": {"topic": TEXT, "partitions": NUMBER, **_BROKER},
    "namespace.list": {"namespaces": _list(TEXT), "more": FLAG},
    "namespace.create": {},
    "namespace.describe": {"namespace": TEXT, "policies": BY_NAME},
    "namespace.policies": {"policies": BY_NAME},
    "topic.list": {"topics": _list(_object(_TOPIC)), "more": FLAG},
    "topic.list_all": {"topics": _list(_object(_TOPIC)), "more": FLAG},
    "topic.create": _TOPIC,
    "topic.describe": {
        **_TOPIC,
        "first": NUMBER_OR_NULL,
        "end": NUMBER_OR_NULL,
        "firsts": _list(NUMBER),
        "ends": _list(NUMBER),
        "bytes": NUMBER,
        "producers": NUMBER,
        "consumers": NUMBER,
        "subscriptions": NUMBER,
        "tiers": {"type": ["object", "null"], "properties": _USAGE},
        "lost_messages": NUMBER,
        "lost_unknown": NUMBER,
        "damaged": _list(_object({"partition": NUMBER_OR_NULL, "first": NUMBER, "last": NUMBER})),
    },
    "topic.alter": _TOPIC,
    "topic.truncate": {"messages": NUMBER},
    "dlq.redrive": {
        "redriven": NUMBER,
        "targets": BY_NAME,
        "left": NUMBER,
        "refused": NUMBER,
        "refusals": _list(_object({"offset": NUMBER, "topic": TEXT, "error": TEXT})),
        "next": NUMBER_OR_NULL,
    },
    "bounds": {"first": NUMBER, "end": NUMBER},
    "offset_of_time": {"offset": NUMBER},
    "publish": {"messages": _list(_object({"topic": TEXT, "offset": NUMBER_OR_NULL})), "durability": TEXT},
    "peek": {"messages": _list(_object(_MESSAGE)), "next": NUMBER, "first": NUMBER, "end": NUMBER},
    "receive": {"messages": _list(_object({"lease": TEXT, "topic": TEXT, "attempt": NUMBER, **_MESSAGE}))},
    "ack": {"acked": NUMBER, "ended": _list(TEXT)},
    "nack": {"nacked": NUMBER, "ended": _list(TEXT)},
    "extend": {"extended": NUMBER, "ended": _list(TEXT)},
    "subscription.list": {"subscriptions": _list(_object(_SUBSCRIPTION)), "more": FLAG},
    "subscription.blocked": {"blocked": _list(_object({"topic": TEXT, "subscription": TEXT, "offset": NUMBER}))},
    "subscription.abandoned": {
        "abandoned": _list(_object({"topic": TEXT, "subscription": TEXT, "backlog_seconds": SECONDS}))
    },
    "subscription.consumers": {"consumers": _list(_object(_MEMBER)), "more": FLAG},
    "connection.list": {"connections": _list(_object(_CONNECTION)), "more": FLAG},
    "status": _STATUS,
    "subscription.create": {},
    "subscription.describe": _IN_FULL,
    "subscription.alter": _IN_FULL,
    "subscription.seek": _IN_FULL,
    "subscription.skip": {"skipped": NUMBER},
    "explain": {"sentence": TEXT, "explanations": _list(_object(_EXPLANATION))},
    "storage.status": {
        "objects": TEXT_OR_NULL,
        "claimed": FLAG,
        "trouble": TEXT_OR_NULL,
        "troubles": _list(TEXT),
        "troubled_topics": NUMBER,
        "uploads": NUMBER,
        "uploaded_bytes": NUMBER,
        "failures": BY_NAME,
    },
    "storage.list": {"topics": _list(_object({"topic": TEXT, **_USAGE})), "more": FLAG},
    "storage.usage": {"topic": TEXT, **_USAGE},
    "storage.segments": {"segments": _list(_object(_SEGMENT)), "more": FLAG},
    "storage.table": {
        "topic": TEXT,
        "format": {"enum": ["delta"]},
        "uri": TEXT,
        "made": FLAG,
        "grows": FLAG,
        "troubles": _list(TEXT),
    },
    "storage.verify": {
        "topic": TEXT,
        "first": NUMBER,
        "done": FLAG,
        "ticket": NUMBER,
        "segment": TEXT_OR_NULL,
        "result": {"enum": ["sound", "lost", "damaged", "gone"]},
        "object_bytes": NUMBER,
        "what": TEXT_OR_NULL,
    },
    "storage.damage": {"topics": _list(TEXT)},
    "storage.salvage": {
        "topic": TEXT,
        "done": FLAG,
        "ticket": NUMBER,
        "accepted": FLAG,
        "damage": _list(
            _object(
                {
                    "topic": TEXT,
                    "what": {"enum": ["messages", "state"]},
                    "ledger": NUMBER,
                    "first": NUMBER,
                    "last": NUMBER,
                    "messages": NUMBER_OR_NULL,
                }
            )
        ),
        "state_left": _list(
            _object(
                {
                    "topic": TEXT,
                    "subscriptions": _list(_object({"subscription": TEXT, "floor": NUMBER})),
                    "subscriptions_lost": NUMBER,
                }
            )
        ),
    },
    "storage.upload": {
        "topic": TEXT,
        "done": FLAG,
        "ticket": NUMBER,
        "segments": NUMBER,
        "messages": NUMBER,
        "bytes": NUMBER,
        "object_bytes": NUMBER,
    },
    "pipeline.list": {"pipelines": _list(_object(_PIPELINE)), "more": FLAG},
    "pipeline.status": _PIPELINE,
    "pipeline.logs": {
        "pipeline": TEXT,
        "state": _STATES,
        "lines": _list(_object({"sequence": NUMBER, "time": NUMBER, "text": TEXT})),
        "more": FLAG,
    },
    "pipeline.stop": _PIPELINE,
    "pipeline.restart": _PIPELINE,
    "openapi": {"openapi": TEXT, "info": BY_NAME, "paths": BY_NAME, "components": BY_NAME},
}
