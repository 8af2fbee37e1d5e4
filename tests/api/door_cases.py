"""One call of each verb of each face, and what its caller has to be allowed: nothing more and nothing less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from api.door_rig import JOB, LETTERS, ORDERS, SECOND, Right, World
from pydanube.access.rights import (
    BROKER,
    Action,
    Resource,
    namespace_resource,
    pipeline_resource,
    sink_resource,
    subject_resource,
    subscription_resource,
    topic_resource,
)
from pydanube.api.grpc.ids import consumer_id, producer_id
from pydanube.base.names import parse_topic

Fields = dict[str, Any] | Callable[[World], dict[str, Any]]


class Case(NamedTuple):
    asks: set[Right] | Callable[[World], set[Right]]
    fields: Fields = {}  # noqa: RUF012 - nobody changes it
    fails: str | None = None  # how it is answered when it is allowed, if not well
    by_id: bool = False  # then whoever is refused is asked about the broker too, as for an id that does not exist

    def rights(self, world: World) -> set[Right]:
        return self.asks if isinstance(self.asks, set) else self.asks(world)

    def rights_if_refused(self, world: World) -> set[Right]:
        rights = self.rights(world)
        return rights | {(action, BROKER) for action, _ in rights} if self.by_id else rights

    def given(self, world: World) -> dict[str, Any]:
        return self.fields if isinstance(self.fields, dict) else self.fields(world)


def of_topic(name: str = ORDERS) -> Resource:
    return topic_resource(parse_topic(name))


def of(name: str, on: str = ORDERS) -> Resource:
    return subscription_resource(parse_topic(on), name)


def every_topic(world: World) -> list[Resource]:
    return [topic_resource(record.name) for record in world.door.directory.topics("default")]


def channel(world: World) -> int:
    """A new one."""
    world.memory["channel"] += 1
    number: int = world.memory["channel"]
    return number


DEFAULT, SHOP, FLOW = namespace_resource("default"), namespace_resource("shop"), pipeline_resource("flow")
BILLING, NEW = of("billing"), of("new")
_ORDERS = {"topic": ORDERS}
_BILLING = {"topic": ORDERS, "subscription": "billing"}
_JOB = {"query": JOB.query, "target": JOB.target}
_LETTERS_TO_SECOND = {"failure": {"poison": "dead_letter", "dead_letter_topic": SECOND}}
_REPORT = {"pipeline": "flow", "run": "r1", "state": "running", "info": {"host": "here"}}
_BINDING = {
    "binding": "b1",
    "principal_type": "user",
    "principal_name": "alice",
    "roles": ["loader"],
    "scope": "namespace",
    "resource": "shop",
}

NATIVE: dict[str, Case] = {
    "broker": Case({(Action.STATUS, BROKER)}),
    "config": Case({(Action.CONFIG, BROKER)}),
    "lookup": Case({(Action.TOPIC_LOOKUP, of_topic())}, _ORDERS),
    "status": Case({(Action.STATUS, BROKER)}),
    "connection.list": Case({(Action.CONNECTION_LIST, BROKER)}),
    "namespace.create": Case({(Action.NAMESPACE_CREATE, SHOP)}, {"namespace": "shop"}),
    "namespace.list": Case({(Action.NAMESPACE_LIST, BROKER)}),
    "namespace.describe": Case({(Action.NAMESPACE_DESCRIBE, DEFAULT)}, {"namespace": "default"}),
    "namespace.policies": Case(
        {(Action.NAMESPACE_ALTER, SHOP)}, {"namespace": "shop", "policies": {"topics_max": 100}}
    ),
    "namespace.delete": Case({(Action.NAMESPACE_DELETE, SHOP)}, {"namespace": "shop"}),
    "topic": Case(
        {(Action.TOPIC_LOOKUP, of_topic("/default/used")), (Action.TOPIC_CREATE, of_topic("/default/used"))},
        {"topic": "/default/used", "create": True},
    ),
    "topic.create": Case({(Action.TOPIC_CREATE, of_topic("/default/made"))}, {"topic": "/default/made"}),
    "topic.list": Case({(Action.TOPIC_LIST, DEFAULT)}),
    "topic.list_all": Case({(Action.TOPIC_LIST, BROKER)}),
    "topic.watch": Case({(Action.TOPIC_LIST, DEFAULT)}, {"namespaces": ["default"]}),
    "topic.alter": Case({(Action.TOPIC_ALTER, of_topic())}, {**_ORDERS, "policies": {"producers_max": 100}}),
    "topic.delete": Case({(Action.TOPIC_DELETE, of_topic("/default/made"))}, {"topic": "/default/made"}),
    "topic.describe": Case({(Action.TOPIC_DESCRIBE, of_topic())}, _ORDERS),
    "open_producer": Case(
        {(Action.TOPIC_PUBLISH, of_topic("/default/new")), (Action.TOPIC_CREATE, of_topic("/default/new"))},
        lambda world: {"channel": channel(world), "topic": "/default/new"},
    ),
    "open_consumer": Case(
        {(Action.SUBSCRIPTION_CONSUME, NEW), (Action.TOPIC_PUBLISH, of_topic(SECOND))},
        lambda world: {
            "channel": channel(world),
            "topic": ORDERS,
            "subscription": "new",
            "type": "shared",
            "options": _LETTERS_TO_SECOND,
        },
    ),
    "seek": Case({(Action.SUBSCRIPTION_SEEK, BILLING)}, {"channel": 2, "offset": 0}),
    "pause": Case({(Action.SUBSCRIPTION_PAUSE, BILLING)}, {"channel": 2}),
    "resume": Case({(Action.SUBSCRIPTION_PAUSE, BILLING)}, {"channel": 2}),
    "read": Case({(Action.TOPIC_READ, of_topic())}, {**_ORDERS, "offset": 0}),
    "sizes": Case({(Action.TOPIC_READ, of_topic())}, {**_ORDERS, "offset": 0}),
    "bounds": Case({(Action.TOPIC_READ, of_topic())}, _ORDERS),
    "offset_of_time": Case({(Action.TOPIC_READ, of_topic())}, {**_ORDERS, "time": 0}),
    "news": Case(
        {(Action.TOPIC_READ, of_topic()), (Action.TOPIC_READ, of_topic(SECOND))},
        {"offsets": {ORDERS: 0, SECOND: 0}, "milliseconds": 10},
    ),
    "subscription.create": Case(
        {(Action.SUBSCRIPTION_CREATE, of("made")), (Action.TOPIC_PUBLISH, of_topic(SECOND))},
        {"topic": ORDERS, "subscription": "made", "type": "shared", "options": _LETTERS_TO_SECOND},
    ),
    "subscription.list": Case({(Action.SUBSCRIPTION_LIST, of_topic())}, _ORDERS),
    "subscription.describe": Case({(Action.SUBSCRIPTION_DESCRIBE, BILLING)}, _BILLING),
    "subscription.consumers": Case({(Action.SUBSCRIPTION_DESCRIBE, BILLING)}, _BILLING),
    "explain": Case({(Action.SUBSCRIPTION_DESCRIBE, BILLING)}, _BILLING),
    "subscription.alter": Case(
        {(Action.SUBSCRIPTION_ALTER, BILLING), (Action.TOPIC_PUBLISH, of_topic(SECOND))},
        {**_BILLING, "options": _LETTERS_TO_SECOND},
    ),
    "subscription.seek": Case({(Action.SUBSCRIPTION_SEEK, BILLING)}, {**_BILLING, "to": "earliest"}),
    "subscription.skip": Case({(Action.SUBSCRIPTION_SKIP, BILLING)}, {**_BILLING, "count": 1}),
    "subscription.delete": Case({(Action.SUBSCRIPTION_DELETE, of("made"))}, {"topic": ORDERS, "subscription": "made"}),
    "subscription.blocked": Case({(Action.SUBSCRIPTION_LIST, BROKER)}),
    "subscription.abandoned": Case({(Action.SUBSCRIPTION_LIST, BROKER)}),
    "dlq.redrive": Case(
        {(Action.TOPIC_REDRIVE, of_topic(LETTERS)), (Action.TOPIC_PUBLISH, of_topic(SECOND))}, {"topic": LETTERS}
    ),
    "sink.begin": Case({(Action.SINK_WRITE, sink_resource(JOB.target))}, _JOB),
    "sink.commit": Case(
        {
            (Action.SINK_WRITE, sink_resource(JOB.target)),
            (Action.TOPIC_PUBLISH, of_topic()),
            (Action.TOPIC_PUBLISH, of_topic(SECOND)),
        },
        lambda world: {**_JOB, "run": "r1", "batch": 0, "decision": world.memory["decision"]},
    ),
    "sink.list": Case({(Action.SINK_LIST, BROKER)}),
    "sink.forget": Case({(Action.SINK_FORGET, sink_resource(JOB.target))}, _JOB),
    "storage.status": Case({(Action.STORAGE_STATUS, BROKER)}),
    "storage.locate": Case({(Action.STORAGE_LOCATE, BROKER)}),
    "storage.damage": Case({(Action.STORAGE_STATUS, BROKER)}),
    "storage.usage": Case({(Action.STORAGE_DESCRIBE, of_topic())}, _ORDERS),
    "storage.list": Case(lambda world: {(Action.STORAGE_DESCRIBE, each) for each in (DEFAULT, *every_topic(world))}),
    "storage.segments": Case({(Action.STORAGE_DESCRIBE, of_topic())}, _ORDERS),
    "storage.sealed": Case({(Action.TOPIC_READ, of_topic())}, {**_ORDERS, "end": 1}),
    "storage.table": Case({(Action.STORAGE_DESCRIBE, of_topic())}, _ORDERS, fails="objects_refused"),
    "storage.verify": Case({(Action.STORAGE_VERIFY, of_topic())}, {**_ORDERS, "first": 0}, fails="objects_refused"),
    "storage.upload": Case({(Action.STORAGE_UPLOAD, of_topic())}, _ORDERS, fails="objects_refused"),
    "storage.salvage": Case({(Action.STORAGE_SALVAGE, of_topic())}, {**_ORDERS, "accept": True}),
    "backup.begin": Case({(Action.BACKUP, BROKER)}),
    "backup.files": Case({(Action.BACKUP, BROKER)}, {"backup": 1}),
    "backup.read": Case(
        {(Action.BACKUP, BROKER)}, {"backup": 1, "name": "no file", "offset": 0, "length": 1}, fails="request_invalid"
    ),
    "backup.end": Case({(Action.BACKUP, BROKER)}, {"backup": 1}),
    "pipeline.report": Case({(Action.PIPELINE_REPORT, FLOW)}, _REPORT),
    "pipeline.record": Case({(Action.PIPELINE_REPORT, FLOW)}, {"pipeline": "flow", "record": "something"}),
    "pipeline.list": Case({(Action.PIPELINE_LIST, BROKER)}),
    "pipeline.status": Case({(Action.PIPELINE_DESCRIBE, FLOW)}, {"pipeline": "flow"}),
    "pipeline.logs": Case({(Action.PIPELINE_DESCRIBE, FLOW)}, {"pipeline": "flow"}),
    "pipeline.order": Case({(Action.PIPELINE_ORDER, FLOW)}, {"pipeline": "flow", "order": "stop"}),
    "pipeline.forget": Case(
        {(Action.PIPELINE_FORGET, FLOW)}, {"pipeline": "flow", "records": True}, fails="pipeline_running"
    ),
    "role.put": Case({(Action.SECURITY_CHANGE, BROKER)}, {"role": "loader", "permissions": ["Produce"]}),
    "role.list": Case({(Action.SECURITY_SHOW, BROKER)}),
    "role.describe": Case({(Action.SECURITY_SHOW, BROKER)}, {"role": "loader"}),
    "binding.put": Case({(Action.SECURITY_CHANGE, BROKER)}, _BINDING),
    "binding.list": Case({(Action.SECURITY_SHOW, BROKER)}),
    "binding.describe": Case({(Action.SECURITY_SHOW, BROKER)}, {"binding": "b1"}),
    "binding.delete": Case({(Action.SECURITY_CHANGE, BROKER)}, {"binding": "b1"}),
    "role.delete": Case({(Action.SECURITY_CHANGE, BROKER)}, {"role": "loader"}),
    "whoami": Case({(Action.SECURITY_SELF, BROKER)}),
    "can_i": Case({(Action.SECURITY_SELF, BROKER)}, {"action": "topic.publish", "resource": ORDERS}),
    "topic.truncate": Case({(Action.TOPIC_TRUNCATE, of_topic())}, _ORDERS),
}
NATIVE_FREE = {"close"}  # whoever has a producer or consumer may give it up

# Routes of REST that are not verbs of the native protocol under the same name; by the names of their operations. `body`
# is the body, `query` what is behind the path.
_LEASE = {(Action.SUBSCRIPTION_CONSUME, BILLING)}
PAYMENTS = subject_resource("payments")
_AVRO = {"subject": "payments", "type": "avro", "definition": '"long"'}
_OF_SCHEMAS: dict[str, Case] = {  # in this order: each needs what those before it leave
    "schema.register": Case({(Action.SCHEMA_REGISTER, PAYMENTS)}, _AVRO),
    "schema.get": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "schema.get_by_id": Case(
        {(Action.SCHEMA_DESCRIBE, PAYMENTS)}, lambda world: {"schema_id": schema_id(world)}, by_id=True
    ),
    "schema.list": Case({(Action.SCHEMA_LIST, BROKER)}),
    "schema.versions": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "schema.check": Case({(Action.SCHEMA_REGISTER, PAYMENTS)}, _AVRO),
    "schema.find": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, _AVRO),
    "schema.mode": Case({(Action.SCHEMA_DESCRIBE, BROKER)}),
    "schema.set_mode": Case({(Action.SCHEMA_ALTER, PAYMENTS)}, {"subject": "payments", "mode": "full"}),
    "schema.delete": Case({(Action.SCHEMA_DELETE, PAYMENTS)}, {"subject": "payments"}),
}
NATIVE |= _OF_SCHEMAS


def schema_id(world: World) -> int:
    return world.door.schemas.find("payments").subject.id


def definition_id(world: World) -> dict[str, Any]:
    return {"id": world.door.schemas.find("payments").schema.definition_id}


_KAFKA = {"subject": "payments", "body": {"schema": '"long"'}}
_OF_KAFKA: dict[str, Case] = {
    "kafka.register": Case({(Action.SCHEMA_REGISTER, PAYMENTS)}, _KAFKA),
    "kafka.subjects": Case({(Action.SCHEMA_LIST, BROKER)}),
    "kafka.find": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, _KAFKA),
    "kafka.versions": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "kafka.version": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments", "version": "1"}),
    "kafka.version_text": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments", "version": "1"}),
    "kafka.referring": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments", "version": "1"}),
    "kafka.types": Case({(Action.SCHEMA_LIST, BROKER)}),
    "kafka.definition": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, definition_id, by_id=True),
    "kafka.definition_text": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, definition_id, by_id=True),
    "kafka.subjects_of_id": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, definition_id, by_id=True),
    "kafka.versions_of_id": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, definition_id, by_id=True),
    "kafka.check_all": Case({(Action.SCHEMA_REGISTER, PAYMENTS)}, _KAFKA),
    "kafka.check": Case(
        {(Action.SCHEMA_REGISTER, PAYMENTS), (Action.SCHEMA_DESCRIBE, PAYMENTS)}, {**_KAFKA, "version": "latest"}
    ),
    "kafka.default_mode": Case({(Action.SCHEMA_DESCRIBE, BROKER)}),
    "kafka.set_default_mode": Case({(Action.SCHEMA_ALTER, BROKER)}, {"body": {"compatibility": "FULL"}}),
    "kafka.remove_default_mode": Case({(Action.SCHEMA_ALTER, BROKER)}),
    "kafka.mode": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "kafka.set_mode": Case(
        {(Action.SCHEMA_ALTER, PAYMENTS)}, {"subject": "payments", "body": {"compatibility": "FULL"}}
    ),
    "kafka.remove_mode": Case({(Action.SCHEMA_ALTER, PAYMENTS)}, {"subject": "payments"}),
    "kafka.default_access": Case({(Action.SCHEMA_DESCRIBE, BROKER)}),
    "kafka.access": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "kafka.delete_version": Case(
        {(Action.SCHEMA_DELETE, PAYMENTS), (Action.SCHEMA_DESCRIBE, PAYMENTS)},
        {"subject": "payments", "version": "latest"},
    ),
    "kafka.delete_subject": Case({(Action.SCHEMA_DELETE, PAYMENTS)}, {"subject": "payments"}, "subject_not_found"),
}

HTTP: dict[str, Case] = {
    **_OF_KAFKA,
    "front_page": Case({(Action.STATUS, BROKER), (Action.SUBSCRIPTION_LIST, BROKER)}),
    "healthz": Case({(Action.HEALTH, BROKER)}),
    "readyz": Case({(Action.HEALTH, BROKER)}),
    "metrics": Case({(Action.METRICS, BROKER)}),
    "errors": Case({(Action.REFLECTION, BROKER)}),
    "openapi": Case({(Action.REFLECTION, BROKER)}),
    "publish": Case(
        {(Action.TOPIC_PUBLISH, of_topic("/default/new")), (Action.TOPIC_CREATE, of_topic("/default/new"))},
        {"topic": "/default/new", "body": {"messages": [{"value": "order"}]}},
    ),
    "peek": Case({(Action.TOPIC_READ, of_topic())}, _ORDERS),
    "receive": Case(_LEASE, {**_BILLING, "query": "limit=3"}),
    "extend": Case(_LEASE, lambda world: {**_leased(world, 0), "query": "lease_seconds=60"}),
    "nack": Case(_LEASE, lambda world: _leased(world, 1)),
    "ack": Case(_LEASE, lambda world: _leased(world, 2)),
    "pipeline.stop": Case({(Action.PIPELINE_ORDER, FLOW)}, {"pipeline": "flow"}),
    "pipeline.restart": Case({(Action.PIPELINE_ORDER, FLOW)}, {"pipeline": "flow"}),
}


def _leased(world: World, number: int) -> dict[str, Any]:
    return {**_BILLING, "body": {"leases": [world.memory["leases"][number]]}}


_MESSAGE = {"msg_id": {"topic_name": ORDERS, "topic_offset": 0}, "subscription_name": "billing"}
_NAMED = {"topic": ORDERS, "subscription": "billing"}
GRPC: dict[str, Case] = {
    "danube.ProducerService/CreateProducer": Case(
        {(Action.TOPIC_PUBLISH, of_topic("/default/new")), (Action.TOPIC_CREATE, of_topic("/default/new"))},
        {"topic_name": "/default/new", "producer_name": "p", "dispatch_strategy": 1},
    ),
    "danube.ProducerService/SendMessage": Case(
        {(Action.TOPIC_PUBLISH, of_topic())},
        {
            "producer_name": "q",
            "payload": b"order",
            "msg_id": {"topic_name": ORDERS, "producer_id": producer_id(ORDERS, "q", reliable=True)},
        },
    ),
    "danube_schema.SchemaRegistry/RegisterSchema": Case(
        {(Action.SCHEMA_REGISTER, PAYMENTS)},
        {"subject": "payments", "schema_type": "avro", "schema_definition": b'"long"'},
    ),
    "danube_schema.SchemaRegistry/GetSchema": Case(
        {(Action.SCHEMA_DESCRIBE, PAYMENTS)}, lambda world: {"schema_id": schema_id(world)}, by_id=True
    ),
    "danube_schema.SchemaRegistry/GetLatestSchema": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "danube_schema.SchemaRegistry/ListVersions": Case({(Action.SCHEMA_DESCRIBE, PAYMENTS)}, {"subject": "payments"}),
    "danube_schema.SchemaRegistry/CheckCompatibility": Case(
        {(Action.SCHEMA_REGISTER, PAYMENTS)},
        {"subject": "payments", "schema_type": "avro", "new_schema_definition": b'"int"'},
    ),
    "danube_schema.SchemaRegistry/SetCompatibilityMode": Case(
        {(Action.SCHEMA_ALTER, PAYMENTS)}, {"subject": "payments", "compatibility_mode": "none"}
    ),
    "danube_schema.SchemaRegistry/ListSubjects": Case({(Action.SCHEMA_LIST, BROKER)}),
    "danube_schema.SchemaRegistry/DeleteSchemaVersion": Case(
        {(Action.SCHEMA_DELETE, PAYMENTS)}, {"subject": "payments", "version": 1}
    ),
    "danube.ConsumerService/Subscribe": Case(
        {(Action.SUBSCRIPTION_CONSUME, BILLING)},
        {"topic_name": ORDERS, "subscription": "billing", "consumer_name": "c", "subscription_type": 1},
    ),
    "danube.ConsumerService/ReceiveMessages": Case(
        {(Action.SUBSCRIPTION_CONSUME, BILLING)}, {"consumer_id": consumer_id(ORDERS, "billing", "c")}
    ),
    "danube.ConsumerService/Ack": Case({(Action.SUBSCRIPTION_CONSUME, BILLING)}, _MESSAGE),
    "danube.ConsumerService/Nack": Case({(Action.SUBSCRIPTION_CONSUME, BILLING)}, _MESSAGE),
    "danube.Discovery/TopicLookup": Case({(Action.TOPIC_LOOKUP, of_topic())}, _ORDERS),
    "danube.Discovery/TopicPartitions": Case({(Action.TOPIC_LOOKUP, of_topic())}, _ORDERS),
    "danube.HealthCheck/HealthCheck": Case({(Action.HEALTH, BROKER)}),
    "danube.StorageService/ListSegmentDescriptors": Case({(Action.STORAGE_DESCRIBE, of_topic())}, _ORDERS),
    "danube_admin.BrokerAdmin/ListBrokers": Case({(Action.STATUS, BROKER)}),
    "danube_admin.BrokerAdmin/GetLeaderBroker": Case({(Action.STATUS, BROKER)}),
    "danube_admin.BrokerAdmin/ListNamespaces": Case({(Action.NAMESPACE_LIST, BROKER)}),
    "danube_admin.BrokerAdmin/ActivateBroker": Case({(Action.STATUS, BROKER)}, {"broker_id": "1"}),
    "danube_admin.NamespaceAdmin/GetNamespaceTopics": Case({(Action.TOPIC_LIST, DEFAULT)}, {"name": "default"}),
    "danube_admin.NamespaceAdmin/GetNamespacePolicies": Case(
        {(Action.NAMESPACE_DESCRIBE, DEFAULT)}, {"name": "default"}
    ),
    "danube_admin.NamespaceAdmin/CreateNamespace": Case({(Action.NAMESPACE_CREATE, SHOP)}, {"name": "shop"}),
    "danube_admin.NamespaceAdmin/DeleteNamespace": Case({(Action.NAMESPACE_DELETE, SHOP)}, {"name": "shop"}),
    "danube_admin.TopicAdmin/ListNamespaceTopics": Case({(Action.TOPIC_LIST, DEFAULT)}, {"name": "default"}),
    "danube_admin.TopicAdmin/ListBrokerTopics": Case({(Action.TOPIC_LIST, BROKER)}, {"broker_id": "2"}),
    "danube_admin.TopicAdmin/CreateTopic": Case(
        {(Action.TOPIC_CREATE, of_topic("/default/made"))}, {"name": "/default/made"}
    ),
    "danube_admin.TopicAdmin/CreatePartitionedTopic": Case(
        {(Action.TOPIC_CREATE, of_topic("/default/wide"))}, {"base_name": "/default/wide", "partitions": 2}
    ),
    "danube_admin.TopicAdmin/DeleteTopic": Case(
        {(Action.TOPIC_DELETE, of_topic("/default/made"))}, {"name": "/default/made"}
    ),
    "danube_admin.TopicAdmin/ListSubscriptions": Case({(Action.SUBSCRIPTION_LIST, of_topic())}, {"name": ORDERS}),
    "danube_admin.TopicAdmin/DescribeTopic": Case(
        {(Action.TOPIC_DESCRIBE, of_topic()), (Action.SUBSCRIPTION_LIST, of_topic())}, {"name": ORDERS}
    ),
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": Case(
        {(Action.SUBSCRIPTION_ALTER, BILLING), (Action.TOPIC_PUBLISH, of_topic(SECOND))},
        {**_NAMED, "failure_policy": {"max_redelivery_count": 3, "dead_letter_topic": SECOND}},
    ),
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": Case({(Action.SUBSCRIPTION_DESCRIBE, BILLING)}, _NAMED),
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": Case(
        {(Action.SUBSCRIPTION_ALTER, BILLING)}, {**_NAMED, "dispatch_config": {"max_unacked_messages": 7}}
    ),
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": Case({(Action.SUBSCRIPTION_DESCRIBE, BILLING)}, _NAMED),
    "danube_admin.TopicAdmin/Unsubscribe": Case(
        {(Action.SUBSCRIPTION_DELETE, of("idle"))}, {"topic": ORDERS, "subscription": "idle"}
    ),
    "danube_admin.SecurityAdmin/CreateRole": Case(
        {(Action.SECURITY_CHANGE, BROKER)}, {"role": {"name": "reader", "permissions": ["Consume"]}}
    ),
    "danube_admin.SecurityAdmin/GetRole": Case({(Action.SECURITY_SHOW, BROKER)}, {"name": "reader"}),
    "danube_admin.SecurityAdmin/ListRoles": Case({(Action.SECURITY_SHOW, BROKER)}),
    "danube_admin.SecurityAdmin/CreateBinding": Case(
        {(Action.SECURITY_CHANGE, BROKER)},
        {
            "binding": {
                "id": "b2",
                "principal_type": "user",
                "principal_name": "alice",
                "role_names": ["reader"],
                "scope": "topic",
                "resource_name": ORDERS,
            }
        },
    ),
    "danube_admin.SecurityAdmin/GetBinding": Case({(Action.SECURITY_SHOW, BROKER)}, {"binding_id": "b2"}),
    "danube_admin.SecurityAdmin/ListBindings": Case({(Action.SECURITY_SHOW, BROKER)}, {"scope": "topic"}),
    "danube_admin.SecurityAdmin/ListAllBindings": Case({(Action.SECURITY_SHOW, BROKER)}),
    "danube_admin.SecurityAdmin/DeleteBinding": Case(
        {(Action.SECURITY_SHOW, BROKER), (Action.SECURITY_CHANGE, BROKER)}, {"binding_id": "b2"}
    ),
    "danube_admin.SecurityAdmin/DeleteRole": Case({(Action.SECURITY_CHANGE, BROKER)}, {"name": "reader"}),
    "grpc.health.v1.Health/Check": Case({(Action.HEALTH, BROKER)}),
    "grpc.health.v1.Health/Watch": Case({(Action.HEALTH, BROKER)}),
    "grpc.reflection.v1.ServerReflection/ServerReflectionInfo": Case(
        {(Action.REFLECTION, BROKER)}, {"list_services": ""}
    ),
    "grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Case(
        {(Action.REFLECTION, BROKER)}, {"list_services": ""}
    ),
}
