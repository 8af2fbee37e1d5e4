"""Callers with tokens: what they keep, and when they lose it (§50); and what becomes of keys, roles and bindings."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt import encode
from jwt.algorithms import ECAlgorithm

import pydanube
from api.door_cases import GRPC
from api.door_rig import ORDERS, World
from api.frame_client import Client
from api.http_client import Http
from api.secured import ROOT, SECRET, WRONG, secured, security_of, settings_of, token
from api.test_door import METHODS
from grpc_face.rig import SECONDS, channel
from pydanube.access.principals import PrincipalKind
from pydanube.api.grpc.messages import message_class
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import ArgumentInvalid, ConfigInvalid, DanubeError, NotAllowed, TokenExpired, Unauthenticated
from pydanube.base.limits import AUTH_FAILURES_MAX
from pydanube.broker.security.settings import AuthSettings
from pydanube.operations.security import (
    CanI,
    DeleteBinding,
    DeleteRole,
    DescribeRole,
    ListBindings,
    ListRoles,
    PutBinding,
    PutRole,
    WhoAmI,
)
from pydanube.wire.batch import build
from pydanube.wire.commands import Closed, Deliver, Grant, Hello, Publish, Published

LOSES_SECONDS = 2.0  # §50
SLOW = 20.0  # for a loaded machine


def run(directory: Path, story: Callable[[World], Awaitable[None]], *, prepared: bool = False) -> None:
    async def main() -> None:
        async with secured(directory, prepared=prepared) as world:
            await story(world)

    asyncio.run(main())


async def bound(world: World, name: str, role: str, scope: str = "cluster", resource: str = "") -> str:
    """Returns a token of the user, who has the role from now on."""
    await world.system.carry_out(PutBinding(f"{name}-{role}", "user", name, [role], scope, resource))
    policy = security_of(world).policy
    while f"{name}-{role}" not in policy.bindings:  # noqa: ASYNC110 - it follows the metadata
        await asyncio.sleep(0)
    return token(name)


def client_of(world: World, **credentials: Any) -> pydanube.Client:
    host, port = world.server.address
    return pydanube.connect(f"danube://{host}:{port}", request_timeout=SLOW, **credentials)


# -- what ends, and when -----------------------------------------------------------------------------------------------


def test_a_binding_that_is_deleted_ends_what_it_allowed(tmp_path: Path) -> None:
    """And what was accepted before stays accepted."""

    async def story(world: World) -> None:
        await bound(world, "alice", "consumer")
        client = await Client.connect(world.server.address, token=await bound(world, "alice", "producer"))
        await client.ask("open_producer", channel=1, topic=ORDERS)
        await client.ask("open_consumer", channel=2, topic=ORDERS, subscription="billing", type="shared")
        offset = (await client.publish(1, b"accepted")).base_offset
        began = time.monotonic()
        await world.system.carry_out(DeleteBinding("alice-producer"))
        while not isinstance(closed := await client.receive(), Closed):
            pass
        assert (closed.channel, closed.code) == (1, "not_allowed")
        assert time.monotonic() - began < LOSES_SECONDS
        batch = build([b"too late"], publish_time=1).to_bytes()
        client.send(Publish(1, 7, batch))
        assert (await client.receive()).code == "channel_invalid"  # type: ignore[union-attr]
        client.send(Grant(2, 1, 0))  # it may still consume
        while not isinstance(await client.receive(), Deliver):
            pass
        opened = next(each for each in world.door.topics.opened() if str(each.name) == ORDERS)
        assert opened.reliable.ledger.confirmed_end == offset + 1
        await world.system.carry_out(PutRole("reader", ["Lookup"]))
        await world.system.carry_out(PutBinding("alice-consumer", "user", "alice", ["reader"], "cluster"))
        while not isinstance(closed := await client.receive(), Closed):
            pass
        assert (closed.channel, closed.code) == (2, "not_allowed")

    run(tmp_path, story)


def test_a_native_connection_ends_with_its_token(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await bound(world, "alice", "producer")
        expires = int(time.time()) + 3
        client = await Client.connect(world.server.address, token=token("alice", expires - time.time()))
        await client.ask("open_producer", channel=1, topic=ORDERS)
        assert isinstance(await client.publish(1, b"accepted"), Published)
        closed = await client.receive()
        assert isinstance(closed, Closed)
        assert closed.code == "token_expired"
        assert closed.retriable
        assert -0.1 < time.time() - expires < SLOW
        with pytest.raises(EOFError):
            await client.receive()

    run(tmp_path, story)


def test_a_grpc_stream_ends_with_its_token_unless_its_caller_shows_a_newer_one(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        for name in ("alice", "bob"):
            await bound(world, name, "consumer")
        host, port = world.server.address

        async def streamed(name: str, renews: bool) -> tuple[grpc.StatusCode | None, float]:
            async with channel(f"{host}:{port}") as opened:

                def ask(method_name: str, given: str) -> Any:
                    method, case = METHODS[method_name], GRPC[method_name]
                    assert isinstance(case.fields, dict)
                    fields = case.fields
                    make = opened.unary_stream if method.server_streaming else opened.unary_unary
                    answers = message_class(method.output_type.full_name)
                    sent = (("authorization", f"Bearer {given}"),)
                    return make(f"/{method_name}", lambda each: each.SerializeToString(), answers.FromString)(
                        message_class(method.input_type.full_name)(**fields), timeout=SECONDS, metadata=sent
                    )

                expires = int(time.time()) + 3
                short = token(name, expires - time.time())
                await ask("danube.ConsumerService/Subscribe", short)
                stream = ask("danube.ConsumerService/ReceiveMessages", short)
                await stream.read()
                if renews:
                    await ask("danube.Discovery/TopicLookup", token(name))
                try:
                    async with asyncio.timeout(expires + 3 - time.time()):
                        while await stream.read() is not grpc.aio.EOF:
                            pass
                except TimeoutError:
                    return None, 0.0
                except grpc.aio.AioRpcError as error:
                    return error.code(), time.time() - expires
                raise AssertionError("the stream ended without a reason")

        status, late = await streamed("alice", renews=False)
        assert status is grpc.StatusCode.UNAUTHENTICATED
        assert late < LOSES_SECONDS + 1
        assert await streamed("bob", renews=True) == (None, 0.0)

    run(tmp_path, story)


def test_leases_end_with_the_token_that_they_were_taken_with(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await bound(world, "alice", "consumer")
        http = await Http.connect(world.server)
        path = f"/api/v1/topics{ORDERS}/subscriptions/billing"
        short = token("alice", 2)
        taken = await http.ask("POST", f"{path}/receive?limit=5", authorization=f"Bearer {short}")
        assert len(taken.json["messages"]) == 5
        async with asyncio.timeout(SLOW):
            while len(world.door.leasing):  # noqa: ASYNC110 - nothing tells
                await asyncio.sleep(0.05)
        refused = await http.ask("POST", f"{path}/receive?limit=5", authorization=f"Bearer {short}")
        assert (refused.status, refused.json["code"]) == (401, "token_expired")
        again = await http.ask("POST", f"{path}/receive?limit=5", authorization=f"Bearer {token('alice')}")
        assert [each["offset"] for each in again.json["messages"]] == [
            each["offset"] for each in taken.json["messages"]
        ]
        await http.close()

    run(tmp_path, story)


# -- clients -----------------------------------------------------------------------------------------------------------


def test_a_client_with_a_file_connects_again_with_the_new_token(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await bound(world, "alice", "producer")
        file = tmp_path / "alice.jwt"
        file.write_text(token("alice", 2) + "\n")
        client = client_of(world, token_file=str(file))
        async with client, client.producer(ORDERS, name="p") as producer:
            first = await producer.send(b"before")
            old = await client.connection()
            file.write_text(token("alice"))
            async with asyncio.timeout(SLOW):
                while await client.connection() is old:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.05)
            assert (await producer.send(b"after")).offset == first.offset + 1

    run(tmp_path, story)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_client_asks_its_function_for_each_connection(tmp_path: Path, asynchronous: bool) -> None:
    async def story(world: World) -> None:
        asked = 0

        def supply() -> str:
            nonlocal asked
            asked += 1
            return token(ROOT)

        async def supply_later() -> str:
            return supply()

        client = client_of(world, token_supplier=supply_later if asynchronous else supply)
        async with client:
            found = await client.ask(WhoAmI())
            assert (found.principal_type, found.principal_name) == ("user", ROOT)
            assert (found.authentication, found.super_admin) == (True, True)
        assert asked == 1

    run(tmp_path, story, prepared=True)


def test_a_client_without_a_good_token_says_so(tmp_path: Path) -> None:
    def failing() -> str:
        raise OSError(WRONG)

    async def story(world: World) -> None:
        for credentials, error in (
            ({}, Unauthenticated),
            ({"token": WRONG}, Unauthenticated),
            ({"token": token("alice", -1)}, TokenExpired),
            ({"token": ""}, Unauthenticated),
            ({"token": "ä"}, Unauthenticated),
            ({"token_file": str(tmp_path / "absent")}, Unauthenticated),
            ({"token_supplier": failing}, Unauthenticated),
            ({"token_supplier": lambda: None}, Unauthenticated),
        ):
            with pytest.raises(error) as refused:
                await client_of(world, **credentials).open()
            assert WRONG not in str(refused.value)
        with pytest.raises(ArgumentInvalid):
            client_of(world, token="a", token_file="b")

    run(tmp_path, story, prepared=True)


def test_a_broker_without_keys_refuses_tokens_and_takes_everything_else(tmp_path: Path) -> None:
    async def main() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0))
        host, port = await server.start()
        try:
            client = await Client.connect((host, port), hello=False)
            async with pydanube.connect(f"danube://{host}:{port}") as plain:
                assert (await plain.ask(WhoAmI())).authentication is False
                assert (await plain.ask(CanI("topic.publish", ORDERS))).allowed
            with pytest.raises(DanubeError) as refused:
                await pydanube.connect(f"danube://{host}:{port}", token=token("alice")).open()
            assert refused.value.code == "tokens_not_configured"
            http = await Http.connect(server)
            reply = await http.ask("GET", "/api/v1/status", authorization="Bearer x")
            assert (reply.status, reply.json["code"]) == (400, "tokens_not_configured")
            assert (await http.ask("GET", "/api/v1/status", authorization="Basic dXNlcjpwYXNz")).status == 200
            await http.close()
            async with channel(f"{host}:{port}") as opened:
                health = opened.unary_unary("/grpc.health.v1.Health/Check")
                with pytest.raises(grpc.aio.AioRpcError) as failed:
                    await health(b"", metadata=(("authorization", "Bearer x"),), timeout=SECONDS)
                assert failed.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                await health(b"", timeout=SECONDS)
            client._writer.close()
        finally:
            await server.stop()

    asyncio.run(main())


# -- keys --------------------------------------------------------------------------------------------------------------


def test_keys_are_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    claims = {"iss": "x", "sub": "x", "exp": time.time() + 600, "principal_type": "user", "principal_name": "alice"}
    signed = encode(claims, key, "ES256")

    async def main() -> None:
        key_set = tmp_path / "keys.json"
        other = ECAlgorithm.to_jwk(ec.generate_private_key(ec.SECP256R1()).public_key(), as_dict=True)
        mine = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
        key_set.write_text(json.dumps({"keys": [other]}))
        server = Server(StandaloneSettings(tmp_path / "data", port=0, auth=AuthSettings(jwks=str(key_set))))
        await server.start()
        try:
            http = await Http.connect(server)

            async def status() -> int:
                return (await http.ask("GET", "/api/v1/security/whoami", authorization=f"Bearer {signed}")).status

            async def becomes(expected: int) -> None:
                server.reload()
                async with asyncio.timeout(SLOW):
                    while await status() != expected:  # noqa: ASYNC110 - nothing tells
                        await asyncio.sleep(0.1)

            assert await status() == 401
            key_set.write_text(json.dumps({"keys": [other, mine]}))
            await becomes(200)
            key_set.write_text("not a key set")
            with caplog.at_level(logging.ERROR):
                server.reload()
                async with asyncio.timeout(SLOW):
                    while "keeping the old ones" not in caplog.text:  # noqa: ASYNC110 - nothing tells
                        await asyncio.sleep(0.1)
            assert await status() == 200
            key_set.write_text(json.dumps({"keys": [other]}))
            await becomes(401)
            await http.close()
        finally:
            await server.stop()

    asyncio.run(main())


def test_keys_come_from_a_server_that_may_be_away(tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    claims = {"iss": "x", "sub": "x", "exp": time.time() + 600, "principal_type": "user", "principal_name": "alice"}
    document = json.dumps({"keys": [ECAlgorithm.to_jwk(key.public_key(), as_dict=True)]}).encode()
    answers = [b"HTTP/1.1 500 No\r\n\r\n", b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:1/\r\n\r\n"]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        found = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(document), document)
        writer.write(answers.pop(0) if answers else found)
        writer.close()

    async def main() -> None:
        keys = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{keys.sockets[0].getsockname()[1]}/keys"
        server = Server(StandaloneSettings(tmp_path, port=0, auth=AuthSettings(jwks=url)))
        await server.start()
        try:
            http = await Http.connect(server)
            async with asyncio.timeout(SLOW):
                while True:
                    sent = f"Bearer {encode(claims, key, 'ES256')}"
                    if (await http.ask("GET", "/api/v1/security/whoami", authorization=sent)).status == 200:
                        break
                    server.reload()
                    await asyncio.sleep(0.2)
            assert answers == []
            await http.close()
        finally:
            await server.stop()
            keys.close()

    asyncio.run(main())


def test_the_shared_secret_counts_while_the_server_of_keys_is_away(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)

    async def main() -> None:
        auth = AuthSettings(secret_file=secret, jwks="http://127.0.0.1:1/keys")
        server = Server(StandaloneSettings(tmp_path / "data", port=0, auth=auth))
        await server.start()
        try:
            http = await Http.connect(server)
            sent = f"Bearer {token('alice')}"
            assert (await http.ask("GET", "/api/v1/security/whoami", authorization=sent)).status == 200
            await http.close()
        finally:
            await server.stop()
        secret.write_bytes(b"short")
        with pytest.raises(ConfigInvalid, match="at least 32"):
            await Server(StandaloneSettings(tmp_path / "data", port=0, auth=auth)).start()

    asyncio.run(main())


@pytest.mark.parametrize("source", ["http://example.com/keys", "file:///etc/keys", "ftp://127.0.0.1/keys"])
def test_keys_never_come_from_where_anybody_could_answer(tmp_path: Path, source: str) -> None:
    async def main() -> None:
        server = Server(StandaloneSettings(tmp_path, port=0, auth=AuthSettings(jwks=source)))
        with pytest.raises(ConfigInvalid, match="https"):
            await server.start()

    asyncio.run(main())


@pytest.mark.parametrize("secret", [None, b"short"])
def test_a_broker_does_not_start_without_its_secret(tmp_path: Path, secret: bytes | None) -> None:
    file = tmp_path / "secret"
    if secret is not None:
        file.write_bytes(secret)

    async def main() -> None:
        server = Server(StandaloneSettings(tmp_path / "data", port=0, auth=AuthSettings(secret_file=file)))
        with pytest.raises(ConfigInvalid):
            await server.start()

    asyncio.run(main())


# -- attempts and secrets ----------------------------------------------------------------------------------------------


def test_wrong_tokens_of_one_address_are_slowed_down_and_good_ones_pass(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        http = await Http.connect(world.server)

        async def code(given: str) -> str:
            reply = await http.ask("GET", "/api/v1/security/whoami", authorization=f"Bearer {given}")
            return str(reply.status)

        known, new = token("alice"), token("bob")
        assert await code(known) == "200"
        found = [await code(f"{WRONG}{number}") for number in range(AUTH_FAILURES_MAX + 5)]
        assert set(found) == {"401", "429"}
        assert found[-1] == "429"
        assert await code(known) == "200"  # whoever was let in before stays in
        assert await code(new) == "429"
        await http.close()

    run(tmp_path, story, prepared=True)


def test_a_token_of_a_megabyte_is_refused_by_every_face(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        huge = "x" * (1 << 20)
        http = await Http.connect(world.server)
        assert (await http.ask("GET", "/api/v1/status", authorization=f"Bearer {huge}")).status in (400, 401, 431)
        await http.close()
        host, port = world.server.address
        async with channel(f"{host}:{port}") as opened:
            with pytest.raises(grpc.aio.AioRpcError):
                await opened.unary_unary("/grpc.health.v1.Health/Check")(
                    b"", metadata=(("authorization", f"Bearer {huge}"),), timeout=SECONDS
                )
        assert (await Client.connect(world.server.address, token=token(ROOT))) is not None
        assert not security_of(world)._attempts._failures.get("127.0.0.1", (0, 0))[0] > 1

    run(tmp_path, story, prepared=True)


def test_no_log_error_or_metric_contains_a_token_or_the_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(world: World) -> None:
        good = token(ROOT)
        texts: list[str] = []
        http = await Http.connect(world.server)
        for given in (good, WRONG, token(ROOT, -5)):
            for path in ("/metrics", "/api/v1/config", "/api/v1/connections", "/api/v1/nothing", "/"):
                reply = await http.ask("GET", path, authorization=f"Bearer {given}")
                texts += [reply.body.decode(), str(reply.headers)]
            texts.append(repr(Hello("test", token=given)))
            try:
                async with client_of(world, token=given) as opened:
                    texts.append(str(vars(opened)))
            except DanubeError as error:
                texts.append(repr(error))
        await http.close()
        everything = "\n".join([*texts, caplog.text])
        parts = [part for each in (good, WRONG) for part in (each, each.split(".")[2], each.split(".")[1])]
        assert not any(part in everything for part in [*parts, SECRET.decode()])

    with caplog.at_level(logging.DEBUG):
        run(tmp_path, story, prepared=True)


# -- roles and bindings ------------------------------------------------------------------------------------------------


def test_roles_and_bindings_survive_a_restart_and_say_what_they_allow(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        async with client_of(world, token=token(ROOT)) as root:
            await root.ask(PutRole("loader", ["Produce", "Lookup", "Produce"]))
            assert (await root.ask(DescribeRole("loader"))).permissions == ["Produce", "Lookup"]
            await root.ask(PutBinding("b1", "user", "alice", ["loader"], "topic", "/shop/or*"))
            await root.ask(PutBinding("b2", "service_account", "job", ["viewer", "loader"], "namespace", "shop"))
            roles = await root.ask(ListRoles())
            assert [each.role for each in roles.roles] == [
                "admin", "consumer", "loader", "namespace-admin", "producer", "viewer",
            ]  # fmt: skip
            assert [each.role for each in (await root.ask(ListRoles(after="consumer", limit=2))).roles] == [
                "loader", "namespace-admin",
            ]  # fmt: skip
            found = await root.ask(ListBindings("user", "alice"))
            assert [(each.binding, each.resource) for each in found.bindings] == [("b1", "/shop/or*")]
            assert (await root.ask(ListBindings(limit=1))).more
            for wrong, code in (
                (PutRole("admin", []), "role_fixed"),
                (DeleteRole("viewer"), "role_fixed"),
                (PutRole("x", ["produce"]), "request_invalid"),
                (DeleteRole("absent"), "role_not_found"),
                (DescribeRole("absent"), "role_not_found"),
                (DeleteBinding("absent"), "binding_not_found"),
                (PutBinding("b3", "user", "alice", ["absent"], "cluster"), "role_not_found"),
                (PutBinding("b3", "user", "alice", ["admin"], "topic", "/a/b/c"), "name_invalid"),
                (CanI("topic.fly", ORDERS), "request_invalid"),
                (CanI("topic.publish", ""), "request_invalid"),
                (CanI("backup", ORDERS), "request_invalid"),
                (CanI("backup", "", "robot", "x"), "request_invalid"),
            ):
                with pytest.raises(DanubeError) as refused:
                    await root.ask(wrong)
                assert refused.value.code == code, wrong

    async def later(world: World) -> None:
        async with client_of(world, token=token("alice")) as alice:
            allowed = await alice.ask(CanI("topic.publish", "/shop/orders"))
            assert (allowed.allowed, allowed.binding, allowed.needs) == (True, "b1", "Produce")
            missing = await alice.ask(CanI("topic.publish", "/shop/other"))
            assert (missing.allowed, missing.binding) == (False, None)
            assert "no binding gives user alice the permission Produce for /shop/other" in missing.why
            with pytest.raises(NotAllowed):
                await alice.ask(CanI("topic.publish", "/shop/orders", "user", "bob"))
        async with client_of(world, token=token(ROOT)) as root:
            verdict = await root.ask(CanI("topic.publish", "/shop/x", "service_account", "job"))
            assert verdict.binding == "b2"
            await root.ask(DeleteRole("loader"))
            async with asyncio.timeout(SLOW):
                asked = CanI("topic.publish", "/shop/x", "service_account", "job")
                while (await root.ask(asked)).allowed:  # noqa: ASYNC110 - it follows the metadata
                    await asyncio.sleep(0.05)

    run(tmp_path, story, prepared=True)
    run(tmp_path, later, prepared=True)


def test_many_changes_at_once_are_followed(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        await asyncio.gather(
            *(
                world.system.carry_out(PutBinding(f"b{number}", "user", f"u{number}", ["viewer"], "cluster"))
                for number in range(300)
            )
        )
        policy = security_of(world).policy
        async with asyncio.timeout(SLOW):
            while len(policy.bindings) < 300:  # noqa: ASYNC110 - it follows the metadata
                await asyncio.sleep(0.01)
        assert security_of(world).guard.failures == 0
        assert token("x", kind=PrincipalKind.SERVICE_ACCOUNT)

    run(tmp_path, story, prepared=True)


def test_settings_of_a_secured_broker_name_its_files(tmp_path: Path) -> None:
    assert settings_of(tmp_path).auth is not None

    async def story(world: World) -> None:
        async with client_of(world, token=token(ROOT)) as root:
            found = (await root.admin.settings()).auth
            assert found.jwt.secret_file == str(tmp_path / "secret")  # type: ignore[union-attr]
            assert found.super_admins == ROOT  # type: ignore[union-attr]

    run(tmp_path, story, prepared=True)
