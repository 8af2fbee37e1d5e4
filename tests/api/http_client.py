"""A client of HTTP/1.1 for tests, and a broker for it: one connection, every byte visible."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

from api.frame_client import close_all
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB
from pydanube.ports.clock import Clock
from pydanube.storage.node.settings import NodeSettings


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Http:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, server: Server) -> Http:
        return cls(*await asyncio.open_connection(*server.address))

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> None:
        """JSON, or bytes as they are."""
        content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", f"Content-Length: {len(content)}"]
        headers.setdefault("host", "danube")
        if body is not None and "content_type" not in headers:
            kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
            lines.append(f"Content-Type: {kind}")
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + content)

    async def reply(self, *, to_head: bool = False) -> Reply:
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)).decode("latin-1")
        line, *fields = head.strip().split("\r\n")
        headers = {name.lower(): value for name, _, value in (field.partition(": ") for field in fields)}
        length = 0 if to_head else int(headers.get("content-length", 0))
        return Reply(int(line.split(" ")[1]), headers, await self.reader.readexactly(length))

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        self.send(method, path, body, **headers)
        return await self.reply()

    async def ended(self) -> bool:
        return await asyncio.wait_for(self.reader.read(), 10) == b""

    async def close(self) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)


def with_http(
    directory: Path, story: Callable[[Server, Http], Awaitable[None]], *, clock: Clock | None = None, **options: Any
) -> None:
    """Runs the story beside a broker, with one connection to it."""

    async def run() -> None:
        settings = StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=4 * MIB), **options)
        server = Server(settings, clock=clock)
        await server.start()
        try:
            async with asyncio.timeout(30):
                http = await Http.connect(server)
                try:
                    await story(server, http)
                finally:
                    await http.close()
        finally:
            await close_all()
            await server.stop()

    asyncio.run(run())
