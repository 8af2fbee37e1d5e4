"""The paths of Confluent's registry with the client that people use, unchanged."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from urllib.error import HTTPError

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from danube.proto.DanubeApi_pb2 import MsgID

from pydanube.testing.broker import broker_thread

ORDER = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
WIDER = ORDER.replace("]}", ', {"name": "note", "type": "string", "default": ""}]}')
BROKEN = ORDER.replace("long", "string")
JSON_ORDER = json.dumps({"type": "object", "title": "Order", "properties": {"id": {"type": "integer"}}})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with broker_thread() as address:
        yield address.replace("danube://", "http://")


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as made:
        yield made


def code_of(error: pytest.ExceptionInfo[SchemaRegistryError]) -> tuple[int, int]:
    return error.value.http_status_code, error.value.error_code


def test_schemas_are_registered_and_found(client: SchemaRegistryClient) -> None:
    first = client.register_schema("found-value", Schema(ORDER, "AVRO"))
    second = client.register_schema("found-value", Schema(WIDER, "AVRO"))
    assert first != second
    client.clear_caches()
    assert client.register_schema("found-value", Schema(ORDER, "AVRO")) == first
    assert client.get_schema(first).schema_str == ORDER
    assert client.get_versions("found-value") == [1, 2]
    latest = client.get_latest_version("found-value")
    assert (latest.version, latest.schema_id, latest.schema.schema_str) == (2, second, WIDER)
    assert client.get_version("found-value", 1).schema_id == first
    found = client.lookup_schema("found-value", Schema(ORDER, "AVRO"))
    assert (found.version, found.schema_id) == (1, first)
    assert "found-value" in client.get_subjects()
    assert client.get_subjects(subject_prefix="found") == ["found-value"]
    assert client.get_versions("found-value", offset=1, limit=1) == [2]
    assert client.get_subjects_by_schema_id(first) == ["found-value"]
    [place] = client.get_schema_versions(first)
    assert (place.subject, place.version) == ("found-value", 1)
    assert client.get_schema_types() == ["AVRO", "JSON", "PROTOBUF"]


def test_compatibility_is_tested_and_set(client: SchemaRegistryClient) -> None:
    client.register_schema("tested/value", Schema(ORDER, "AVRO"))  # a slash in a name is escaped
    assert client.test_compatibility("tested/value", Schema(WIDER, "AVRO"))
    assert not client.test_compatibility("tested/value", Schema(BROKEN, "AVRO"), version=1)
    assert not client.test_compatibility_all_versions("tested/value", Schema(BROKEN, "AVRO"), verbose=True)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("tested/value", Schema(BROKEN, "AVRO"))
    assert code_of(refused) == (409, 409)
    assert "id: the reader expects string, and long was written" in str(refused.value)
    assert client.get_compatibility() == "BACKWARD"
    client.set_compatibility("tested/value", "FULL_TRANSITIVE")
    assert client.get_compatibility("tested/value") == "FULL_TRANSITIVE"
    assert client.get_config("tested/value").compatibility_level == "FULL_TRANSITIVE"
    with pytest.raises(SchemaRegistryError) as refused:
        client.set_compatibility("tested/value", "SIDEWAYS")
    assert code_of(refused) == (422, 42203)
    client.delete_config("tested/value")
    assert client.get_compatibility("tested/value") == "BACKWARD"
    assert client.get_mode("tested/value") == client.get_global_mode() == "READWRITE"


def test_versions_and_subjects_are_deleted(client: SchemaRegistryClient) -> None:
    gone = client.register_schema("deleted", Schema(ORDER, "AVRO"))
    client.register_schema("deleted", Schema(WIDER, "AVRO"))
    assert client.delete_version("deleted", 1) == 1
    assert client.get_versions("deleted") == [2]
    assert client.delete_subject("deleted") == [2]
    client.clear_caches()
    for call, code in (
        (lambda: client.get_versions("deleted"), 40401),
        (lambda: client.get_schema(gone), 40403),
        (lambda: client.lookup_schema("deleted", Schema(ORDER, "AVRO")), 40401),
    ):
        with pytest.raises(SchemaRegistryError) as refused:
            call()
        assert code_of(refused) == (404, code)


def test_references_are_registered_and_keep_what_they_name(client: SchemaRegistryClient) -> None:
    line = json.dumps({"type": "record", "name": "Line", "fields": []})
    order = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "line", "type": "Line"}]})
    client.register_schema("line", Schema(line, "AVRO"))
    number = client.register_schema("order", Schema(order, "AVRO", [SchemaReference("Line", "line", 1)]))
    client.clear_caches()
    [reference] = client.get_schema(number).references
    assert (reference.name, reference.subject, reference.version) == ("Line", "line", 1)
    assert client.get_referenced_by("line", 1) == [number]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_version("line", 1)
    assert code_of(refused) == (422, 42206)


def test_wrong_requests_have_a_number_and_a_sentence(client: SchemaRegistryClient, url: str) -> None:
    for schema, code in ((Schema("{", "AVRO"), 42201), (Schema(ORDER, "XML"), 42201)):
        with pytest.raises(SchemaRegistryError) as refused:
            client.register_schema("wrong", schema)
        assert code_of(refused) == (422, code)
    client.register_schema("right", Schema(ORDER, "AVRO"))
    with pytest.raises(SchemaRegistryError) as refused:
        client.get_version("right", 9)
    assert code_of(refused) == (404, 40402)
    for path in ("/subjects/right/versions/x", "/schemas/ids/x"):
        with pytest.raises(HTTPError) as failed:
            urllib.request.urlopen(url + path)
        assert json.load(failed.value)["error_code"] == 400
        failed.value.close()
    with urllib.request.urlopen(f"{url}/subjects/right/versions/latest/schema") as answer:
        assert answer.read().decode() == ORDER


def test_the_serializers_of_kafka_clients_work(client: SchemaRegistryClient) -> None:
    context = SerializationContext("payments", MessageField.VALUE)
    order = {"id": 7, "note": "x"}
    payload = AvroSerializer(client, WIDER)(order, context)
    assert payload is not None
    assert payload[0] == 0
    assert AvroDeserializer(client)(payload, context) == order
    assert client.get_versions("payments-value") == [1]
    context = SerializationContext("json-payments", MessageField.VALUE)
    payload = JSONSerializer(JSON_ORDER, client)({"id": 8}, context)
    assert JSONDeserializer(JSON_ORDER, schema_registry_client=client)(payload, context) == {"id": 8}


def test_the_protobuf_serializer_sends_a_descriptor(client: SchemaRegistryClient) -> None:
    pytest.importorskip("google.type", reason="the serializer needs googleapis-common-protos, which comes with Spark")
    from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer

    context, options = SerializationContext("places", MessageField.VALUE), {"use.deprecated.format": False}
    payload = ProtobufSerializer(MsgID, client, options)(MsgID(topic_name="x"), context)
    assert ProtobufDeserializer(MsgID, options, client)(payload, context) == MsgID(topic_name="x")
    assert client.get_latest_version("places-value").schema.schema_type == "PROTOBUF"
