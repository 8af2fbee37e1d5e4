"""What can be allowed, on what, and the function that is called before anything is done.

A partition has no rights of its own: rights to a topic apply to all its partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from pydanube.access.principals import Principal
from pydanube.base.errors import RequestInvalid
from pydanube.base.fields import shown
from pydanube.base.names import TopicName, check_namespace, full_name, parse_topic


class Action(StrEnum):
    """What can be allowed. Each comment names the kind of resource that the action applies to."""

    HEALTH = "health"  # broker: whether it is alive and ready
    STATUS = "status"  # broker: version, address, counters, what needs attention
    METRICS = "metrics"  # broker
    CONFIG = "config"  # broker: the settings in force
    REFLECTION = "reflection"  # broker: its services, routes and errors
    CONNECTION_LIST = "connection.list"  # broker
    BACKUP = "backup"  # broker

    NAMESPACE_LIST = "namespace.list"  # broker
    NAMESPACE_CREATE = "namespace.create"  # namespace
    NAMESPACE_DESCRIBE = "namespace.describe"  # namespace
    NAMESPACE_ALTER = "namespace.alter"  # namespace
    NAMESPACE_DELETE = "namespace.delete"  # namespace

    TOPIC_LIST = "topic.list"  # namespace, or broker for all of them; also to watch for topics that change
    TOPIC_LOOKUP = "topic.lookup"  # topic: whether it exists, its kind and partitions
    TOPIC_CREATE = "topic.create"  # topic, also where the first use creates it
    TOPIC_DESCRIBE = "topic.describe"  # topic
    TOPIC_ALTER = "topic.alter"  # topic
    TOPIC_DELETE = "topic.delete"  # topic
    TOPIC_TRUNCATE = "topic.truncate"  # topic
    TOPIC_PUBLISH = "topic.publish"  # topic, also one that is named as the target of dead letters
    TOPIC_READ = "topic.read"  # topic: its messages without a subscription, also directly from segments
    TOPIC_SERVE = "topic.serve"  # topic: the broker itself opens it, to maintain it, finish a change, or count bytes
    TOPIC_REDRIVE = "topic.redrive"  # topic of dead letters; each target also needs TOPIC_PUBLISH

    SUBSCRIPTION_LIST = "subscription.list"  # topic, or broker for those that need attention
    SUBSCRIPTION_CREATE = "subscription.create"  # subscription
    SUBSCRIPTION_DESCRIBE = "subscription.describe"  # subscription, also to explain it
    SUBSCRIPTION_ALTER = "subscription.alter"  # subscription
    SUBSCRIPTION_DELETE = "subscription.delete"  # subscription
    SUBSCRIPTION_CONSUME = "subscription.consume"  # subscription: receive and acknowledge, creating it if it is new
    SUBSCRIPTION_PAUSE = "subscription.pause"  # subscription: also to resume it
    SUBSCRIPTION_SEEK = "subscription.seek"  # subscription
    SUBSCRIPTION_SKIP = "subscription.skip"  # subscription

    STORAGE_STATUS = "storage.status"  # broker: object storage, damage
    STORAGE_LOCATE = "storage.locate"  # broker: where its segments are, for those who read them directly
    STORAGE_DESCRIBE = "storage.describe"  # topic: what it stores where; namespace: the same for its topics
    STORAGE_VERIFY = "storage.verify"  # topic
    STORAGE_UPLOAD = "storage.upload"  # topic
    STORAGE_SALVAGE = "storage.salvage"  # topic

    SINK_LIST = "sink.list"  # broker
    SINK_WRITE = "sink.write"  # sink; each target also needs TOPIC_PUBLISH
    SINK_FORGET = "sink.forget"  # sink

    PIPELINE_LIST = "pipeline.list"  # broker
    PIPELINE_DESCRIBE = "pipeline.describe"  # pipeline, also its log
    PIPELINE_REPORT = "pipeline.report"  # pipeline: what its runner reports and remembers
    PIPELINE_ORDER = "pipeline.order"  # pipeline: to stop or restart it
    PIPELINE_FORGET = "pipeline.forget"  # pipeline

    SCHEMA_LIST = "schema.list"  # broker: its subjects
    SCHEMA_DESCRIBE = "schema.describe"  # subject; broker: the mode of subjects without their own, and unknown ids
    SCHEMA_REGISTER = "schema.register"  # subject, also to check a definition; referred subjects need SCHEMA_DESCRIBE
    SCHEMA_ALTER = "schema.alter"  # subject, or broker: the compatibility mode
    SCHEMA_DELETE = "schema.delete"  # subject

    SECURITY_SHOW = "security.show"  # broker: roles and bindings, and what others may do
    SECURITY_CHANGE = "security.change"  # broker: roles and bindings
    SECURITY_SELF = "security.self"  # broker: who the caller is, and what it may do


class ResourceKind(StrEnum):
    BROKER = "broker"
    NAMESPACE = "namespace"
    TOPIC = "topic"
    SUBSCRIPTION = "subscription"
    SINK = "sink"
    PIPELINE = "pipeline"
    SUBJECT = "subject"


class Resource(NamedTuple):
    kind: ResourceKind
    name: str = ""
    topic: str = ""  # the topic of a subscription

    def __str__(self) -> str:
        named = f"{self.kind} {self.name}" if self.name else f"the {self.kind}"
        return f"{named} of {self.topic}" if self.topic else named


BROKER = Resource(ResourceKind.BROKER)


def namespace_resource(name: str) -> Resource:
    return Resource(ResourceKind.NAMESPACE, name)


def topic_resource(name: TopicName) -> Resource:
    return Resource(ResourceKind.TOPIC, str(name.whole))


def subscription_resource(topic: TopicName, name: str) -> Resource:
    return Resource(ResourceKind.SUBSCRIPTION, name, str(topic.whole))


def sink_resource(target: str) -> Resource:
    """A job that writes exactly once, identified by its target."""
    return Resource(ResourceKind.SINK, target)


def pipeline_resource(name: str) -> Resource:
    return Resource(ResourceKind.PIPELINE, name)


def subject_resource(name: str) -> Resource:
    """A subject of the schema registry."""
    return Resource(ResourceKind.SUBJECT, name)


def resource_named(kind: ResourceKind, name: str) -> Resource:
    """The resource of that kind with this name. A subscription is named by its topic, on which its rights depend."""
    if kind is ResourceKind.BROKER:
        if name not in ("", "cluster"):
            raise RequestInvalid(f"this is about the whole cluster and has no resource, got {shown(name)}")
        return BROKER
    if not name:
        raise RequestInvalid(
            f"this needs the name of a {ResourceKind.TOPIC if kind is ResourceKind.SUBSCRIPTION else kind}"
        )
    if kind is ResourceKind.NAMESPACE:
        return namespace_resource(check_namespace(name))
    if kind is ResourceKind.TOPIC:
        return topic_resource(parse_topic(full_name(name)))
    if kind is ResourceKind.SUBSCRIPTION:
        return subscription_resource(parse_topic(full_name(name)), "")
    return Resource(kind, name)


Authorise: TypeAlias = Callable[[Principal, Action, Resource], None]


def authorise(principal: Principal, action: Action, resource: Resource) -> None:
    """Returns, because a broker without authentication allows everything. With authentication, a function of
    `broker/security/security.py` is in its place, and raises `NotAllowed` unless the principal may do this."""
