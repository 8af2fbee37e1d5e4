"""`danube_schema.SchemaRegistry` with the public Python client and with raw calls: ids, envelopes and status codes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import pytest
from danube.proto import SchemaRegistry_pb2 as api
from danube.proto import SchemaRegistry_pb2_grpc as stubs
from danube.schema import CompatibilityMode, SchemaType
from danube.schema_registry_client import SchemaRegistryClient

from grpc_face.rig import SECONDS, Broker, channel, connect
from pydanube.api.grpc.messages import message_class

AVRO = b'{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
WIDER = AVRO.replace(b"]}", b', {"name": "note", "type": "string", "default": ""}]}')
BROKEN = AVRO.replace(b'"long"', b'"string"')
Story = Callable[[Any], Coroutine[Any, Any, None]]


def told(broker: Broker, story: Story, *, admin: bool = False) -> None:
    async def run() -> None:
        async with channel(broker.admin_target if admin else broker.target) as opened:
            await story(stubs.SchemaRegistryStub(opened))

    asyncio.run(run())


async def status_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    code: grpc.StatusCode = refused.value.code()
    return code


def register(subject: str, kind: str = "avro", definition: bytes = AVRO, **more: Any) -> api.RegisterSchemaRequest:
    return api.RegisterSchemaRequest(subject=subject, schema_type=kind, schema_definition=definition, **more)


@pytest.mark.parametrize("admin", [False, True], ids=["data", "admin"])
def test_versions_fingerprints_and_times(broker: Broker, topic: str, admin: bool) -> None:
    async def story(registry: Any) -> None:
        details = {"description": "orders", "created_by": "ada", "tags": ["core"]}
        first = await registry.RegisterSchema(register(topic, **details), timeout=SECONDS)
        second = await registry.RegisterSchema(register(topic, "AVRO", WIDER))
        again = await registry.RegisterSchema(register(topic, definition=b" " + AVRO))
        assert (first.version, first.is_new_version, second.version) == (1, True, 2)
        assert (again.version, again.is_new_version, again.fingerprint) == (1, False, first.fingerprint)
        assert first.schema_id == second.schema_id > 0
        assert first.fingerprint.startswith("sha256:")
        found = await registry.GetSchema(api.GetSchemaRequest(schema_id=first.schema_id, version=1))
        assert (found.subject, found.schema_type, found.compatibility_mode) == (topic, "avro", "backward")
        assert (found.description, found.created_by, list(found.tags)) == ("orders", "ada", ["core"])
        assert 1_700_000_000 < found.created_at < 5_000_000_000
        latest = await registry.GetLatestSchema(api.GetLatestSchemaRequest(subject=topic))
        assert latest.version == 2
        assert (await registry.GetSchema(api.GetSchemaRequest(schema_id=first.schema_id))).version == 2
        versions = (await registry.ListVersions(api.ListVersionsRequest(subject=topic))).versions
        assert [(each.version, each.schema_id) for each in versions] == [(1, first.schema_id), (2, first.schema_id)]

    told(broker, story, admin=admin)


@pytest.mark.parametrize(
    ("kind", "definition", "envelope"),
    [
        ("avro", AVRO, {"Avro": {"raw_schema": AVRO.decode()}}),
        ("json", b'{"type": "object"}', {"JsonSchema": {"raw_schema": '{"type": "object"}'}}),
        ("proto", b"message A {}", {"Protobuf": {"raw_proto": "message A {}", "message_name": "DefaultMessage"}}),
        ("bytes", b"\xff", "Bytes"),
        ("string", b"", "String"),
        ("double", b"", "Number"),
    ],
)
def test_definitions_come_in_an_envelope(
    broker: Broker, topic: str, kind: str, definition: bytes, envelope: Any
) -> None:
    async def story(registry: Any) -> None:
        made = await registry.RegisterSchema(register(topic, kind, definition))
        found = await registry.GetLatestSchema(api.GetLatestSchemaRequest(subject=topic))
        opened = json.loads(found.schema_definition)
        if isinstance(opened, dict):
            [inner] = opened.values()
            assert inner.pop("fingerprint") == found.fingerprint == made.fingerprint
        assert opened == envelope

    told(broker, story)


def test_errors_have_the_status_that_clients_expect(broker: Broker, topic: str) -> None:
    async def story(registry: Any) -> None:
        assert await status_of(registry.RegisterSchema(register(topic, "xml"))) is grpc.StatusCode.INTERNAL
        assert await status_of(registry.RegisterSchema(register(topic, definition=b"{"))) is grpc.StatusCode.INTERNAL
        for call in (
            registry.GetSchema(api.GetSchemaRequest(schema_id=1 << 40)),
            registry.GetLatestSchema(api.GetLatestSchemaRequest(subject=topic)),
            registry.ListVersions(api.ListVersionsRequest(subject=topic)),
        ):
            assert await status_of(call) is grpc.StatusCode.NOT_FOUND
        check = api.CheckCompatibilityRequest(subject=topic, schema_type="avro", new_schema_definition=AVRO)
        assert await status_of(registry.CheckCompatibility(check)) is grpc.StatusCode.INTERNAL
        unknown = api.SetCompatibilityModeRequest(subject=topic, compatibility_mode="full")
        assert await status_of(registry.SetCompatibilityMode(unknown)) is grpc.StatusCode.INTERNAL
        await registry.RegisterSchema(register(topic))
        assert await status_of(registry.RegisterSchema(register(topic, definition=BROKEN))) is grpc.StatusCode.INTERNAL
        wrong = api.SetCompatibilityModeRequest(subject=topic, compatibility_mode="sideways")
        assert await status_of(registry.SetCompatibilityMode(wrong)) is grpc.StatusCode.INVALID_ARGUMENT
        mode = api.SetCompatibilityModeRequest(subject=topic, compatibility_mode="FULL")
        assert (await registry.SetCompatibilityMode(mode)).success

    told(broker, story)


def test_subjects_are_listed_with_their_modes(broker: Broker, topic: str) -> None:
    """With our own messages, because the client of PyPI does not know this method."""

    async def run() -> None:
        async with channel(broker.target) as opened:
            registry = stubs.SchemaRegistryStub(opened)
            made = await registry.RegisterSchema(register(topic, tags=["core"]))
            await registry.SetCompatibilityMode(
                api.SetCompatibilityModeRequest(subject=topic, compatibility_mode="FULL")
            )
            request, answer = (message_class(f"danube_schema.ListSubjects{each}") for each in ("Request", "Response"))
            ask = opened.unary_unary(
                "/danube_schema.SchemaRegistry/ListSubjects", lambda each: each.SerializeToString(), answer.FromString
            )
            [found] = [each for each in (await ask(request())).subjects if each.subject == topic]
        assert (found.schema_type, found.latest_version, found.compatibility_mode) == ("avro", 1, "full")
        assert (found.schema_id, list(found.tags)) == (made.schema_id, ["core"])

    asyncio.run(run())


def test_what_breaks_is_listed_and_a_deletion_always_succeeds(broker: Broker, topic: str) -> None:
    async def story(registry: Any) -> None:
        await registry.RegisterSchema(register(topic))
        check = api.CheckCompatibilityRequest(subject=topic, schema_type="avro", new_schema_definition=BROKEN)
        found = await registry.CheckCompatibility(check)
        assert (found.is_compatible, list(found.errors)) == (
            False,
            ["id: the reader expects string, and long was written"],
        )
        check.compatibility_mode = "None"
        assert (await registry.CheckCompatibility(check)).is_compatible
        check.compatibility_mode = "sideways"  # is ignored
        assert not (await registry.CheckCompatibility(check)).is_compatible
        for version in (7, 1, 1):
            gone = await registry.DeleteSchemaVersion(api.DeleteSchemaVersionRequest(subject=topic, version=version))
            assert gone.success

    told(broker, story)


def test_the_public_python_client_registers_and_checks(broker: Broker, topic: str) -> None:
    async def run() -> None:
        client = await connect(broker.url)
        registry: SchemaRegistryClient = client.schema()
        schema_id = await registry.register_schema(topic).with_type(SchemaType.AVRO).with_schema_data(AVRO).execute()
        assert (await registry.get_latest_schema(topic)).schema_id == schema_id
        checked = await registry.check_compatibility(topic, WIDER, SchemaType.AVRO, CompatibilityMode.FULL)
        assert checked == (True, [])
        assert await registry.list_versions(topic) == [1]
        assert (await registry.set_compatibility_mode(topic, CompatibilityMode.NONE))[0]
        assert (await registry.delete_schema_version(topic, 1))[0]

    asyncio.run(run())
