"""A real broker on a real socket in the test's own loop, and a door before it that can be shut."""

from __future__ import annotations

import asyncio
from asyncio import BaseTransport, Task
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pydanube
from pydanube.api.server import Server
from pydanube.base.limits import MIB
from pydanube.broker.standalone import StandaloneSettings
from pydanube.client import Client
from pydanube.client.producer import Producer
from pydanube.storage.node.settings import NodeSettings

TOPIC = "/default/orders"


def settings(directory: Path, port: int = 0) -> StandaloneSettings:
    return StandaloneSettings(directory, port=port, node=NodeSettings(file_bytes=1 * MIB))


class Door:
    """Passes bytes on to a broker. `cut` ends all connections. While `silent`, it loses what the broker answers; while
    `deaf`, what clients say.

    While it is stalled, nothing passes and nothing is lost.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.silent = self.deaf = False
        self.asked = asyncio.Event()  # bytes of a client have passed since it was cleared
        self.lost_some = asyncio.Event()  # an answer was lost since it was cleared
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._word: bytes | None = None  # when a client says it, the door falls silent
        self._transports: list[BaseTransport] = []
        self._tasks: list[Task[None]] = []

    async def start(self) -> None:
        self._listener = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        self.url = f"danube://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*self.server.address)
        except OSError:
            writer.transport.abort()
            return
        self._transports += [writer.transport, broker_writer.transport]
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._pump(reader, broker_writer, answers=False)))
        self._tasks.append(loop.create_task(self._pump(broker_reader, writer, answers=True)))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, answers: bool) -> None:
        try:
            while data := await reader.read(65536):
                await self._flowing.wait()
                if self.silent if answers else self.deaf:
                    self.lost_some.set()
                else:
                    writer.write(data)
                if not answers:
                    if self._word is not None and self._word in data:
                        self.silent, self._word = True, None
                    self.asked.set()
        except OSError:
            pass
        writer.transport.abort()

    def lose_after(self, verb: str) -> None:
        """Once a client asks for that, the answer and those after it are lost."""
        self.silent, self._word = False, verb.encode()
        self.lost_some.clear()

    def stall(self) -> None:
        self._flowing.clear()

    def flow(self) -> None:
        self._flowing.set()

    def cut(self) -> None:
        for transport in self._transports:
            transport.abort()  # type: ignore[attr-defined]
        self._transports.clear()

    async def stop(self) -> None:
        self.cut()
        self.flow()
        self._listener.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    """Turns of the loop until something is so that no event tells of."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Server]:
    server = Server(settings(directory))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def unaware(producer: Producer) -> Producer:
    """As if the limit for messages had been lowered a moment ago, and the broker's word of it were under way."""
    producer.limit(None)
    return producer


def with_client(directory: Path, test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Runs the test with a client of a broker of its own."""

    async def run() -> None:
        async with asyncio.timeout(20), running(directory) as server, pydanube.connect(server.url, **options) as client:
            await test(client)

    asyncio.run(run())


def with_door(
    directory: Path, test: Callable[[Client, Door], Awaitable[None]], *, seconds: float = 20, **options: Any
) -> None:
    """The same through a door."""

    async def run() -> None:
        async with asyncio.timeout(seconds), running(directory) as server:
            door = Door(server)
            await door.start()
            try:
                async with pydanube.connect(door.url, **options) as client:
                    await test(client, door)
            finally:
                await door.stop()

    asyncio.run(run())
