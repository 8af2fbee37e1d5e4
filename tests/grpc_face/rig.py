"""A real broker process that comes back at the same port, and the public client against it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import danube
import grpc
from danube.client import DanubeClientBuilder
from danube.proto import DanubeApi_pb2, DanubeApi_pb2_grpc

from pydanube.api.grpc.messages import message_class, service

SECONDS = 20.0  # for anything that should happen at once


class Broker:
    """`danube standalone` as a process. `start` after `kill` is a restart: same port, same directory."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.directory = directory
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.target = f"127.0.0.1:{self.port}"
        self.admin_target = ""
        self._flags = flags
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--ready-file", str(ready)]
        command += ["--data-dir", str(self.directory / "data"), "--listen", self.target]
        command += ["--admin-listen", "127.0.0.1:0", *self._flags]
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)
        deadline = monotonic() + SECONDS
        while not ready.exists():
            assert self._process.poll() is None, self.log()[-2000:]
            assert monotonic() < deadline
            sleep(0.01)  # another process writes it
        self.admin_target = json.loads(ready.read_text())["admin_listen"]

    def end(self, number: int = signal.SIGTERM) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        self._process.wait(SECONDS)

    def kill(self) -> None:
        self.end(signal.SIGKILL)

    def log(self) -> str:
        return (self.directory / "log").read_text()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


# -- the public client -------------------------------------------------------------------------------------------------

TYPES = {
    "exclusive": danube.SubType.EXCLUSIVE,
    "shared": danube.SubType.SHARED,
    "failover": danube.SubType.FAILOVER,
    "key_shared": danube.SubType.KEY_SHARED,
}


async def connect(url: str) -> Any:
    return await DanubeClientBuilder().service_url(url).build()


async def producer(client: Any, topic: str, name: str = "p", *, reliable: bool = True, partitions: int = 0) -> Any:
    strategy = danube.DispatchStrategy.RELIABLE if reliable else danube.DispatchStrategy.NON_RELIABLE
    builder = client.new_producer().with_topic(topic).with_name(name).with_dispatch_strategy(strategy)
    made = (builder.with_partitions(partitions) if partitions else builder).build()
    await made.create()
    return made


class Consumer:
    """The public client's consumer with its queue, and what came."""

    def __init__(self, client: Any, topic: str, kind: str, name: str, subscription: str, filters: list[str]) -> None:
        builder = client.new_consumer().with_topic(topic).with_consumer_name(name).with_subscription(subscription)
        self.consumer = builder.with_subscription_type(TYPES[kind]).with_key_filters(filters).build()
        self.queue: asyncio.Queue[Any]

    async def open(self) -> None:
        await self.consumer.subscribe()
        self.queue = await self.consumer.receive()

    async def take(self, timeout: float = SECONDS) -> Any:  # noqa: ASYNC109
        return await asyncio.wait_for(self.queue.get(), timeout)

    async def take_all(self, count: int) -> list[Any]:
        """So many, each acknowledged before the next."""
        taken = []
        for _ in range(count):
            taken.append(await self.take())
            await self.consumer.ack(taken[-1])
        return taken


@asynccontextmanager
async def consumer(
    client: Any,
    topic: str,
    kind: str = "exclusive",
    name: str = "c",
    subscription: str = "s",
    filters: list[str] | None = None,
) -> AsyncIterator[Consumer]:
    made = Consumer(client, topic, kind, name, subscription, filters or [])
    await made.open()
    try:
        yield made
    finally:
        await made.consumer.close()


# -- plain stubs -------------------------------------------------------------------------------------------------------

api = DanubeApi_pb2
Producers = DanubeApi_pb2_grpc.ProducerServiceStub
Consumers = DanubeApi_pb2_grpc.ConsumerServiceStub
Discovery = DanubeApi_pb2_grpc.DiscoveryStub
Health = DanubeApi_pb2_grpc.HealthCheckStub


@asynccontextmanager
async def channel(target: str) -> AsyncIterator[grpc.aio.Channel]:
    """A connection of its own; channels of one process share theirs unless they are told not to."""
    async with grpc.aio.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as opened:
        yield opened


async def ask(opened: grpc.aio.Channel, path: str, **fields: Any) -> Any:
    """A unary call by its path, as `danube_admin.TopicAdmin/CreateTopic`, with our own descriptors."""
    name, _, method_name = path.partition("/")
    method = service(name).methods_by_name[method_name]
    request = message_class(method.input_type.full_name)(**fields)
    answer = message_class(method.output_type.full_name)
    call = opened.unary_unary(
        f"/{path}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer.FromString,
    )
    return await call(request, timeout=SECONDS)


async def refused(work: Any) -> tuple[grpc.StatusCode, str]:
    """The status of a call that must fail."""
    try:
        await work
    except grpc.aio.AioRpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call was answered")


async def until_allowed(attempt: Callable[[], Awaitable[Any]]) -> Any:
    """What it gives once the broker has seen that somebody else is gone."""
    async with asyncio.timeout(SECONDS):
        while True:
            try:
                return await attempt()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.PERMISSION_DENIED:
                    raise
                await asyncio.sleep(0.01)


def message(topic: str, payload: bytes, producer_id: int, name: str = "p", **fields: Any) -> Any:
    identity = api.MsgID(producer_id=producer_id, topic_name=topic)
    return api.StreamMessage(request_id=7, msg_id=identity, payload=payload, producer_name=name, **fields)
