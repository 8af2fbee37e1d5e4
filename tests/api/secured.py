"""A broker in the test's own process that checks tokens, and tokens for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from api.door_rig import Recorder, Right, World, prepare
from api.frame_client import close_all
from pydanube.access.policy import Binding, Policy, Role, place_of
from pydanube.access.principals import PrincipalKind
from pydanube.access.table import TABLE, Open, Permission
from pydanube.access.tokens import create
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB
from pydanube.broker.security.security import Security
from pydanube.broker.security.settings import AuthSettings
from pydanube.storage.node.settings import NodeSettings

SECRET = b"a secret of the tests, which has enough bytes"
ROOT = "root"  # the super-admin


def token(name: str, seconds: float = 3600, kind: str = "user", secret: bytes = SECRET) -> str:
    return create(secret, PrincipalKind(kind), name, "tests", int(time.time() + seconds))


WRONG = token("alice", secret=b"another secret, which the broker does not know")


def needed(rights: Iterable[Right]) -> set[Permission]:
    return {found for action, _ in rights if isinstance(found := TABLE[action][0], Permission)}


def is_open(rights: Iterable[Right], who: Open) -> bool:
    return all(TABLE[action][0] in (who, Open.EVERYONE) for action, _ in rights)


def settings_of(directory: Path, **options: Any) -> StandaloneSettings:
    secret = directory / "secret"
    secret.write_bytes(SECRET + b"\n")
    auth = AuthSettings(secret_file=secret, leeway_seconds=0, super_admins=(ROOT,))
    node = NodeSettings(file_bytes=4 * MIB)
    return StandaloneSettings(directory / "data", port=0, node=node, auth=auth, **options)


@asynccontextmanager
async def secured(directory: Path, *, prepared: bool = False, **options: Any) -> AsyncIterator[World]:
    server = Server(settings_of(directory, **options))
    await server.start()
    world = World(server, Recorder(), {"channel": 100})
    try:
        async with asyncio.timeout(120):
            if not prepared:
                await prepare(world)
            yield world
    finally:
        await close_all()
        await server.stop()


def security_of(world: World) -> Security:
    found = world.door.security
    assert found is not None
    return found


def give(policy: Policy, name: str, *bindings: tuple[Iterable[Permission], str, str]) -> None:
    """Replaces everything that the user has, without the metadata: tests of that are elsewhere."""
    for id in [id for id, each in policy.bindings.items() if each.principal_name == name]:
        policy.set_binding(id, None)
    for number, (permissions, scope, resource) in enumerate(bindings):
        role = f"{name}-{number}"
        policy.set_role(role, Role(sorted(map(str, permissions))))
        policy.set_binding(role, Binding("user", name, [role], scope, resource))


def narrowest(rights: Iterable[Right]) -> list[tuple[Iterable[Permission], str, str]]:
    """Just what these rights need, for nothing larger than they are about."""
    found = []
    for action, resource in rights:
        permission = TABLE[action][0]
        namespace, name = place_of(resource)
        scope = "topic" if name else "namespace" if namespace else "cluster"
        if isinstance(permission, Permission):
            found.append(([permission], scope, name or namespace))
    return found
