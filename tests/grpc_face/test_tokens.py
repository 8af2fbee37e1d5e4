"""The public Python client with its own calls for TLS and tokens, and the statuses of `SecurityAdmin`."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from danube.client import DanubeClientBuilder
from danube.connection_manager import ConnectionManager

from api.door_rig import ORDERS, World
from api.secured import ROOT, WRONG, secured, token
from certificates import Authority
from grpc_face.rig import ask, consumer, producer, refused
from pydanube.operations.security import PutBinding

SHORT = 4  # seconds that a token of the supplier lives


def run(directory: Path, story: Callable[[World, Authority], Awaitable[None]]) -> None:
    async def main() -> None:
        authority = Authority(directory)
        async with secured(directory, certificate=authority.sign()) as world:
            await world.system.carry_out(
                PutBinding("b1", "service_account", "shop", ["producer", "consumer"], "namespace", "default")
            )
            await story(world, authority)
            gc.collect()  # connections of gRPC belong to the process until nothing refers to them
            while world.server._listener.connections:  # noqa: ASYNC110 - it does not tell, it is asked
                await asyncio.sleep(0.001)

    asyncio.run(main())


def builder(world: World, authority: Authority) -> Any:
    host, port = world.server.address
    return DanubeClientBuilder().service_url(f"https://{host}:{port}").with_tls(str(authority.file))


@asynccontextmanager
async def built(made: Any) -> AsyncIterator[Any]:
    """The client, whose connections are closed at the end, which it does not do itself."""
    managers: list[ConnectionManager] = []
    with pytest.MonkeyPatch.context() as patch:
        before = ConnectionManager.__init__

        def remembered(self: ConnectionManager, options: Any) -> None:
            before(self, options)
            managers.append(self)

        patch.setattr(ConnectionManager, "__init__", remembered)
        client = await made.build()
    try:
        yield client
    finally:
        for manager in managers:
            for each in manager._connections.values():
                await each.channel.close()


def test_a_client_with_a_token_sends_and_receives_and_no_other_does(tmp_path: Path) -> None:
    async def story(world: World, authority: Authority) -> None:
        good = token("shop", kind="service_account")
        async with built(builder(world, authority).with_token(good)) as client:
            sender = await producer(client, ORDERS)
            async with consumer(client, ORDERS, "shared", subscription="new") as receiver:
                for number in range(10):
                    await sender.send(b"%d" % number)
                found = [each.payload for each in await receiver.take_all(10)]
            assert found == [b"%d" % number for number in range(10)]
        for given, status in (
            (None, grpc.StatusCode.UNAUTHENTICATED),
            (WRONG, grpc.StatusCode.UNAUTHENTICATED),
            (token("shop", -1, "service_account"), grpc.StatusCode.UNAUTHENTICATED),
            (token("shop"), grpc.StatusCode.PERMISSION_DENIED),  # a user of this name has no role
        ):
            made = builder(world, authority)
            async with built(made if given is None else made.with_token(given)) as other:
                assert (await refused(producer(other, ORDERS, name="other")))[0] is status

    run(tmp_path, story)


def test_a_client_with_a_supplier_outlives_its_tokens(tmp_path: Path) -> None:
    async def story(world: World, authority: Authority) -> None:
        def supply() -> str:
            return token("shop", SHORT, "service_account")

        async with built(builder(world, authority).with_token_supplier(supply)) as client:
            sender = await producer(client, ORDERS)
            async with consumer(client, ORDERS, "shared", subscription="new") as receiver:
                ends, number = time.monotonic() + 2 * SHORT, 0
                while time.monotonic() < ends:
                    await sender.send(b"%d" % number)
                    assert [each.payload for each in await receiver.take_all(1)] == [b"%d" % number]
                    number += 1
                    await asyncio.sleep(0.2)
        assert number > 5

    run(tmp_path, story)


def test_security_admin_has_the_statuses_of_other_brokers(tmp_path: Path) -> None:
    async def story(world: World, authority: Authority) -> None:
        host, port = world.server.address
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(authority.file.read_bytes()), grpc.access_token_call_credentials(token(ROOT))
        )
        admin = "danube_admin.SecurityAdmin"
        async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as opened:
            await ask(opened, f"{admin}/CreateRole", role={"name": "r", "permissions": ["Produce", "Lookup"]})
            found = (await ask(opened, f"{admin}/GetRole", name="r")).role
            assert (list(found.permissions), found.system) == (["Produce", "Lookup"], False)
            listed = (await ask(opened, f"{admin}/ListRoles")).roles
            assert {each.name for each in listed if each.system} == {
                "admin", "consumer", "namespace-admin", "producer", "viewer",
            }  # fmt: skip
            binding = {"id": "b", "principal_type": "user", "principal_name": "a", "role_names": ["r"]}
            await ask(opened, f"{admin}/CreateBinding", binding={**binding, "scope": "topic", "resource_name": ORDERS})
            named = {"scope": "topic", "resource_name": ORDERS, "binding_id": "b"}
            assert (await ask(opened, f"{admin}/GetBinding", **named)).binding.role_names == ["r"]
            on_topics = await ask(opened, f"{admin}/ListBindings", scope="topic", resource_name=ORDERS)
            assert [each.id for each in on_topics.bindings] == ["b"]
            assert [each.id for each in (await ask(opened, f"{admin}/ListAllBindings")).bindings] == ["b", "b1"]
            for path, fields, status in (
                ("CreateRole", {"role": {"name": "x", "permissions": ["Fly"]}}, "INVALID_ARGUMENT"),
                ("CreateRole", {"role": {"name": "a/b"}}, "INVALID_ARGUMENT"),
                ("CreateRole", {"role": {"name": "admin"}}, "FAILED_PRECONDITION"),
                ("DeleteRole", {"name": "admin"}, "FAILED_PRECONDITION"),
                ("DeleteRole", {"name": "absent"}, "NOT_FOUND"),
                ("GetRole", {"name": "absent"}, "NOT_FOUND"),
                ("CreateBinding", {"binding": {**binding, "scope": "planet"}}, "INVALID_ARGUMENT"),
                ("GetBinding", {**named, "scope": "cluster"}, "NOT_FOUND"),
                ("DeleteBinding", {"binding_id": "absent"}, "NOT_FOUND"),
            ):
                assert (await refused(ask(opened, f"{admin}/{path}", **fields)))[0].name == status, path
            await ask(opened, f"{admin}/DeleteBinding", **named)
            await ask(opened, f"{admin}/DeleteRole", name="r")
            assert (await refused(ask(opened, f"{admin}/GetRole", name="r")))[0] is grpc.StatusCode.NOT_FOUND

    run(tmp_path, story)


@pytest.mark.parametrize("header", ["Basic dXNlcjpwYXNz", "Bearer", "", "Token x"])
def test_other_credentials_are_none(tmp_path: Path, header: str) -> None:
    async def story(world: World, authority: Authority) -> None:
        host, port = world.server.address
        credentials = grpc.ssl_channel_credentials(authority.file.read_bytes())
        async with grpc.aio.secure_channel(f"{host}:{port}", credentials) as opened:
            call = opened.unary_unary("/danube_admin.BrokerAdmin/ListBrokers")
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call(b"", metadata=(("authorization", header),), timeout=20)
            assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED

    run(tmp_path, story)
