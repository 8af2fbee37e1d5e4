"""A broker in the test's own process that remembers, or refuses, everything that it is asked about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from api.frame_client import Client, close_all
from pydanube.access.principals import SYSTEM, Principal, PrincipalKind
from pydanube.access.rights import Action, Resource
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import NotAllowed
from pydanube.base.limits import MIB
from pydanube.broker.door import door as door_module
from pydanube.broker.door.door import Door
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.serving import dead_letters
from pydanube.broker.topic.dead_letter import ORIGIN
from pydanube.operations.pipelines import ReportPipeline
from pydanube.operations.sinks import BeginSink
from pydanube.operations.subscriptions import CreateSubscription
from pydanube.operations.topics import CreateTopic, DescribeTopic
from pydanube.storage.node.settings import NodeSettings
from pydanube.topic.sinks import SinkKey
from pydanube.wire.batch import build
from pydanube.wire.commands import Error, RequestFrame

ORDERS, SECOND, LETTERS = "/default/orders", "/default/second", "/default/letters"
JOB = SinkKey("job", ORDERS)
CALLER = Principal(PrincipalKind.ANONYMOUS, "the caller")  # in the place of everybody, so that it is told apart
Right = tuple[Action, Resource]


class Recorder:
    """In the place of `authorise`. The broker itself is asked too, and always may."""

    def __init__(self) -> None:
        self.asked: list[Right] = []
        self.system: list[Right] = []
        self.by: list[tuple[Principal, Action]] = []  # who asked
        self.callers = {CALLER}  # who may
        self.refuses: Callable[[Action, Resource], bool] = lambda action, resource: False

    def __call__(self, principal: Principal, action: Action, resource: Resource) -> None:
        if principal == SYSTEM:
            self.system.append((action, resource))
            return
        assert principal in self.callers
        self.by.append((principal, action))
        self.asked.append((action, resource))
        if self.refuses(action, resource):
            raise NotAllowed(f"{principal} may not {action} {resource}")

    @contextmanager
    def recording(self) -> Iterator[list[Right]]:
        self.asked = []
        yield self.asked

    @contextmanager
    def refusing(self, which: Callable[[Action, Resource], bool] = lambda action, resource: True) -> Iterator[None]:
        before, self.refuses = self.refuses, which
        try:
            yield
        finally:
            self.refuses = before


class World(NamedTuple):
    server: Server
    recorder: Recorder
    memory: dict[str, Any]  # what one call leaves for the next

    @property
    def door(self) -> Door:
        return self.server._broker.door

    @property
    def system(self) -> Session:
        return self.door.session(SYSTEM, Origin("test"))

    def state(self) -> object:
        """All that a refused call must not change."""
        door = self.door
        topics = [
            (each.name, each.topic.inbound.messages, len(each.producers), len(each.consumers), _cursors(each.topic))
            for each in door.topics.opened()
        ]
        pipelines = [(each.name, each.report, each.order) for each in door.pipelines.listed()]
        return topics, pipelines, door.directory.store.revision, len(door.leasing), door.backups._snapshot  # type: ignore[union-attr]


def _cursors(topic: Any) -> object:
    return [
        (name, host.known.cursor.floor, host.known.cursor.generation, host.known.options, host.engine.paused)
        for name, host in topic.subscriptions.items()
    ]


@asynccontextmanager
async def world_of(directory: Path, monkeypatch: pytest.MonkeyPatch, *, prepared: bool = False) -> AsyncIterator[World]:
    """With topics, messages, dead letters and rows that a job has staged, unless an earlier one has `prepared` them."""
    for module in (door_module, dead_letters):
        monkeypatch.setattr(module, "ANONYMOUS", CALLER)
    recorder = Recorder()
    settings = StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=4 * MIB), authorise=recorder)
    server = Server(settings)
    await server.start()
    world = World(server, recorder, {"channel": 100})
    try:
        async with asyncio.timeout(60):
            if not prepared:
                await prepare(world)
            yield world
    finally:
        await close_all()
        await server.stop()


async def prepare(world: World) -> None:
    system = world.system
    for name in (ORDERS, SECOND, LETTERS):
        await system.carry_out(CreateTopic(name))
        await system.carry_out(DescribeTopic(name))  # it is open
    for subscription in ("billing", "idle"):
        await system.carry_out(CreateSubscription(ORDERS, subscription, "shared"))
    await system.carry_out(ReportPipeline("flow", "r1", {"host": "here"}, "running"))
    await published(system, ORDERS, *[b"order"] * 20)
    await published(system, LETTERS, b"a letter", attributes=[{ORIGIN: SECOND}])
    staging = (await system.carry_out(BeginSink(JOB.query, JOB.target))).staging
    first = await published(system, staging, b"row 1", b"row 2")
    parts = {ORDERS: [[first, first]], SECOND: [[first + 1, first + 1]]}
    world.memory["decision"] = await published(system, staging, json.dumps({"parts": parts}).encode())


async def published(session: Session, topic: str, *payloads: bytes, **columns: Any) -> int:
    """The first offset."""
    producer = await session.open_producer(topic, lambda error: None)
    receipt = producer.publish(build(list(payloads), publish_time=1, **columns))
    await receipt.confirmed
    producer.close(lost=False)
    return receipt.offset


async def native_code(client: Client, number: int, verb: str, fields: dict[str, Any]) -> str | None:
    """The code of the error that a request is answered with, if it is one. Frames of channels are passed over."""
    client.send(RequestFrame(number, verb, fields))
    while getattr(answer := await client.receive(), "request", 0) != number:
        pass
    return answer.code if isinstance(answer, Error) else None
