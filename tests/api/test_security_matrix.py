"""I10 with authentication: every verb of every face is answered as the table of rights says, for callers without a
token, with a wrong or expired one, with rights elsewhere, with other rights, and with just the right ones. The verbs
are those of `door_cases.py`, which `test_door.py` compares with the faces' own tables; a refused call changed nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from api.door_cases import GRPC, HTTP, NATIVE, Case
from api.door_rig import ORDERS, World, native_code
from api.frame_client import Client
from api.http_client import Http
from api.secured import WRONG, give, is_open, narrowest, needed, secured, security_of, token
from api.test_door import ROUTES, code_of, request_of, status_of
from pydanube.access.attempts import Attempts
from pydanube.access.principals import PrincipalKind, TokenPrincipal
from pydanube.access.table import Open, Permission
from pydanube.base.limits import SECOND
from pydanube.wire.commands import Closed, Hello
from pydanube.wire.frames import PREFACE

NOBODY, ELSEWHERE, OTHERWISE, RIGHT = "nobody", "elsewhere", "otherwise", "right"
EXPIRED = token("alice", seconds=-10)
Call = Callable[[str, dict[str, Any]], Awaitable[str | None]]  # the name of the caller, and the fields of the verb


async def with_rights(world: World, name: str, case: Case, call: Call) -> None:
    """Three callers with a token."""
    policy, rights = security_of(world).policy, case.rights(world)
    others = set(Permission) - needed(rights)
    give(policy, ELSEWHERE, (Permission, "namespace", "elsewhere"), (Permission, "topic", "/elsewhere/*"))
    give(policy, OTHERWISE, (others, "cluster", ""), (others, "namespace", "default"), (others, "topic", ORDERS))
    give(policy, RIGHT, *narrowest(rights))
    for who in (NOBODY, ELSEWHERE, OTHERWISE):
        if is_open(rights, Open.AUTHENTICATED):
            code = await call(who, case.given(world))
            assert code == case.fails, (name, who, code)
        else:
            await refused(world, case, who, call, "not_allowed", name)
    code = await call(RIGHT, case.given(world))
    assert code == case.fails, (name, code)


async def refused(world: World, case: Case, who: str, call: Call, expected: str, name: str) -> None:
    """Repeated if something changed: that may have been left over from an earlier verb, but not every time."""
    for _ in range(5):
        before = world.state()
        code = await call(who, case.given(world))
        assert code == expected, (name, code)
        if world.state() == before:
            return
    pytest.fail(f"{name} changes something although it is refused")


async def without_rights(world: World, name: str, case: Case, call: Call) -> None:
    """Three callers without a valid token."""
    for credentials, expected in (("", "unauthenticated"), (WRONG, "unauthenticated"), (EXPIRED, "token_expired")):
        security_of(world)._attempts = Attempts()
        if not credentials and is_open(case.rights(world), Open.EVERYONE):
            code = await call(credentials, case.given(world))
            assert code == case.fails, (name, code)
        else:
            await refused(world, case, credentials, call, expected, name)


def test_every_verb_of_the_native_protocol(tmp_path: Path) -> None:
    async def story() -> None:
        async with secured(tmp_path) as world:
            clients: dict[str, Client] = {}
            number = 1_000
            for who in (NOBODY, ELSEWHERE, OTHERWISE, RIGHT):
                give(security_of(world).policy, who, (Permission, "cluster", ""))
                clients[who] = await Client.connect(world.server.address, token=token(who))
                await clients[who].ask("open_consumer", channel=2, topic=ORDERS, subscription="billing", type="shared")
            give(security_of(world).policy, NOBODY)

            async def call(who: str, fields: dict[str, Any], name: str) -> str | None:
                nonlocal number
                number += 1
                return await native_code(clients[who], number, name, fields)

            for name, case in NATIVE.items():
                await with_rights(world, name, case, lambda who, fields, name=name: call(who, fields, name))  # type: ignore[misc]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("credentials", "code"),
    [("", "unauthenticated"), (WRONG, "unauthenticated"), (EXPIRED, "token_expired"), ("x", "unauthenticated")],
    ids=["none", "wrong", "expired", "no token"],
)
def test_the_native_protocol_greets_only_callers_with_a_token(tmp_path: Path, credentials: str, code: str) -> None:
    async def story() -> None:
        async with secured(tmp_path) as world:
            before = world.state()
            client = await Client.connect(world.server.address, hello=False)
            client.write(PREFACE)
            client.send(Hello("test", token=credentials))
            closed = await client.receive()
            assert isinstance(closed, Closed)
            assert (closed.channel, closed.code) == (0, code)
            assert credentials not in closed.message or not credentials or credentials == "x"
            with pytest.raises(EOFError):
                await client.receive()
            assert world.state() == before

    asyncio.run(story())


def test_every_route_of_rest(tmp_path: Path) -> None:
    cases = HTTP | {name: case for name, case in NATIVE.items() if name in ROUTES}

    async def story() -> None:
        async with secured(tmp_path) as world:
            http = await Http.connect(world.server)
            for name, case in cases.items():
                route = ROUTES[name]

                async def send(fields: dict[str, Any], route: Any = route, **headers: str) -> str | None:
                    reply = await http.ask(route.method, *request_of(route, fields), **headers)
                    assert (reply.status == 401) == (reply.headers.get("www-authenticate") == "Bearer")
                    if reply.status < 400 and route.operation == "receive":
                        world.memory["leases"] = [each["lease"] for each in reply.json["messages"]]
                    return code_of(reply)

                async def anonymous(credentials: str, fields: dict[str, Any], send: Any = send) -> str | None:
                    headers = {"authorization": f"Bearer {credentials}"} if credentials else {}
                    code: str | None = await send(fields, **headers)
                    return code

                async def known(who: str, fields: dict[str, Any], send: Any = send) -> str | None:
                    code: str | None = await send(fields, authorization=f"bearer {token(who)}")
                    return code

                await without_rights(world, name, case, anonymous)
                await with_rights(world, name, case, known)
            await http.close()

    asyncio.run(story())


def test_every_method_of_grpc(tmp_path: Path) -> None:
    async def story() -> None:
        async with secured(tmp_path) as world:
            for name, case in GRPC.items():

                async def anonymous(credentials: str, fields: dict[str, Any], name: str = name) -> str | None:
                    metadata = {"authorization": f"Bearer {credentials}"} if credentials else {}
                    status = await status_of(world, name, fields, **metadata)
                    expected = "token_expired" if credentials == EXPIRED else "unauthenticated"
                    return {"OK": None, "UNAUTHENTICATED": expected}.get(status, status)

                async def known(who: str, fields: dict[str, Any], name: str = name) -> str | None:
                    status = await status_of(world, name, fields, authorization=f"Bearer {token(who)}")
                    return {"OK": None, "PERMISSION_DENIED": "not_allowed"}.get(status, status)

                await without_rights(world, name, case, anonymous)
                await with_rights(world, name, case, known)

    asyncio.run(story())


def test_the_matrix_fails_for_a_hole(tmp_path: Path) -> None:
    """The check is checked: a broker that lets somebody in without the permission is found."""

    async def story() -> None:
        async with secured(tmp_path) as world:
            principal = TokenPrincipal.of(PrincipalKind.USER, NOBODY, SECOND << 40)

            async def call(who: str, fields: dict[str, Any]) -> str | None:
                assert principal.name == NOBODY
                return None

            with pytest.raises(AssertionError):
                await with_rights(world, "status", NATIVE["status"], call)
            with pytest.raises(AssertionError):
                await without_rights(world, "status", NATIVE["status"], call)

    asyncio.run(story())
