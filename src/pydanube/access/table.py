"""The one table of rights: which permission each action needs, and on what. `docs/security.md` and the matrix of tests
derive from it; an action without a row fails a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydanube.access.rights import Action, ResourceKind


class Permission(StrEnum):
    """What a role can list. The names are those of other Danube brokers."""

    LOOKUP = "Lookup"
    PRODUCE = "Produce"
    CONSUME = "Consume"
    REPLICATE = "Replicate"  # no action needs it yet
    MANAGE_NAMESPACE = "ManageNamespace"
    MANAGE_TOPIC = "ManageTopic"
    MANAGE_SCHEMA = "ManageSchema"
    MANAGE_BROKER = "ManageBroker"
    MANAGE_CLUSTER = "ManageCluster"


class Open(StrEnum):
    """Who may do what needs no permission."""

    EVERYONE = "everyone, even without a token"
    AUTHENTICATED = "everyone with a valid token"
    SYSTEM = "only the broker itself"


P = Permission
_BROKER, _NAMESPACE, _TOPIC = ResourceKind.BROKER, ResourceKind.NAMESPACE, ResourceKind.TOPIC
_SUBSCRIPTION, _SINK, _PIPELINE = ResourceKind.SUBSCRIPTION, ResourceKind.SINK, ResourceKind.PIPELINE
_SUBJECT = ResourceKind.SUBJECT

TABLE: Mapping[Action, tuple[Permission | Open, ResourceKind]] = {
    Action.HEALTH: (Open.EVERYONE, _BROKER),  # probes have no token
    Action.REFLECTION: (Open.AUTHENTICATED, _BROKER),
    Action.STATUS: (P.LOOKUP, _BROKER),
    Action.METRICS: (P.LOOKUP, _BROKER),  # has the names of topics
    Action.CONFIG: (P.MANAGE_BROKER, _BROKER),
    Action.CONNECTION_LIST: (P.MANAGE_BROKER, _BROKER),
    Action.BACKUP: (P.MANAGE_CLUSTER, _BROKER),  # has everything
    Action.NAMESPACE_LIST: (P.LOOKUP, _BROKER),
    Action.NAMESPACE_CREATE: (P.MANAGE_NAMESPACE, _NAMESPACE),
    Action.NAMESPACE_DESCRIBE: (P.LOOKUP, _NAMESPACE),
    Action.NAMESPACE_ALTER: (P.MANAGE_NAMESPACE, _NAMESPACE),
    Action.NAMESPACE_DELETE: (P.MANAGE_NAMESPACE, _NAMESPACE),
    Action.TOPIC_LIST: (P.LOOKUP, _NAMESPACE),
    Action.TOPIC_LOOKUP: (P.LOOKUP, _TOPIC),
    Action.TOPIC_CREATE: (P.MANAGE_TOPIC, _TOPIC),
    Action.TOPIC_DESCRIBE: (P.LOOKUP, _TOPIC),
    Action.TOPIC_ALTER: (P.MANAGE_TOPIC, _TOPIC),
    Action.TOPIC_DELETE: (P.MANAGE_TOPIC, _TOPIC),
    Action.TOPIC_TRUNCATE: (P.MANAGE_TOPIC, _TOPIC),
    Action.TOPIC_PUBLISH: (P.PRODUCE, _TOPIC),
    Action.TOPIC_READ: (P.CONSUME, _TOPIC),
    Action.TOPIC_SERVE: (Open.SYSTEM, _TOPIC),
    Action.TOPIC_REDRIVE: (P.MANAGE_TOPIC, _TOPIC),
    Action.SUBSCRIPTION_LIST: (P.LOOKUP, _TOPIC),
    Action.SUBSCRIPTION_CREATE: (P.CONSUME, _SUBSCRIPTION),
    Action.SUBSCRIPTION_DESCRIBE: (P.LOOKUP, _SUBSCRIPTION),
    Action.SUBSCRIPTION_ALTER: (P.MANAGE_TOPIC, _SUBSCRIPTION),
    Action.SUBSCRIPTION_DELETE: (P.MANAGE_TOPIC, _SUBSCRIPTION),
    Action.SUBSCRIPTION_CONSUME: (P.CONSUME, _SUBSCRIPTION),
    Action.SUBSCRIPTION_PAUSE: (P.CONSUME, _SUBSCRIPTION),
    Action.SUBSCRIPTION_SEEK: (P.CONSUME, _SUBSCRIPTION),
    Action.SUBSCRIPTION_SKIP: (P.CONSUME, _SUBSCRIPTION),
    Action.STORAGE_STATUS: (P.LOOKUP, _BROKER),
    Action.STORAGE_LOCATE: (P.CONSUME, _BROKER),  # a reader of the location reads every topic
    Action.STORAGE_DESCRIBE: (P.LOOKUP, _TOPIC),
    Action.STORAGE_VERIFY: (P.MANAGE_TOPIC, _TOPIC),
    Action.STORAGE_UPLOAD: (P.MANAGE_TOPIC, _TOPIC),
    Action.STORAGE_SALVAGE: (P.MANAGE_TOPIC, _TOPIC),
    Action.SINK_LIST: (P.LOOKUP, _BROKER),
    Action.SINK_WRITE: (P.PRODUCE, _SINK),
    Action.SINK_FORGET: (P.MANAGE_TOPIC, _SINK),
    Action.PIPELINE_LIST: (P.LOOKUP, _BROKER),
    Action.PIPELINE_DESCRIBE: (P.LOOKUP, _PIPELINE),
    Action.PIPELINE_REPORT: (P.PRODUCE, _PIPELINE),
    Action.PIPELINE_ORDER: (P.MANAGE_TOPIC, _PIPELINE),
    Action.PIPELINE_FORGET: (P.MANAGE_TOPIC, _PIPELINE),
    Action.SCHEMA_LIST: (P.LOOKUP, _BROKER),
    Action.SCHEMA_DESCRIBE: (P.LOOKUP, _SUBJECT),
    Action.SCHEMA_REGISTER: (P.MANAGE_SCHEMA, _SUBJECT),
    Action.SCHEMA_ALTER: (P.MANAGE_SCHEMA, _SUBJECT),
    Action.SCHEMA_DELETE: (P.MANAGE_SCHEMA, _SUBJECT),
    Action.SECURITY_SHOW: (P.MANAGE_CLUSTER, _BROKER),
    Action.SECURITY_CHANGE: (P.MANAGE_CLUSTER, _BROKER),
    Action.SECURITY_SELF: (Open.AUTHENTICATED, _BROKER),
}

SYSTEM_ROLES: Mapping[str, tuple[Permission, ...]] = {
    "admin": tuple(Permission),
    "producer": (P.LOOKUP, P.PRODUCE),
    "consumer": (P.LOOKUP, P.CONSUME),
    "viewer": (P.LOOKUP,),
    "namespace-admin": (P.LOOKUP, P.PRODUCE, P.CONSUME, P.MANAGE_NAMESPACE, P.MANAGE_TOPIC, P.MANAGE_SCHEMA),
}
