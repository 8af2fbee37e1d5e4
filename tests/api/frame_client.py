"""A client of bytes and frames, for tests that want to see every one."""

from __future__ import annotations

import asyncio
from typing import Any

from pydanube.wire.batch import Batch, build
from pydanube.wire.commands import (
    Command,
    Deliver,
    Error,
    Hello,
    Publish,
    Published,
    Reply,
    RequestFrame,
    Welcome,
    decode,
)
from pydanube.wire.frames import PREFACE, FrameReader, Side


class Client:
    """Bytes and frames, no cleverness."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(Side.CLIENT)
        self._commands: list[Command] = []
        self._requests = 0

    @classmethod
    async def connect(cls, address: tuple[str, int], *, hello: bool = True, token: str = "") -> Client:
        client = cls(*await asyncio.open_connection(*address))
        _CONNECTED.append(client)
        if hello:
            client.write(PREFACE)
            client.send(Hello("test", token=token))
            assert isinstance(await client.receive(), Welcome)
        return client

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    def send(self, command: Any) -> None:
        self._writer.writelines(command.encode())

    async def receive(self) -> Command:
        while not self._commands:
            data = await asyncio.wait_for(self._reader.read(65536), 10)
            if not data:
                raise EOFError
            self._commands += [decode(frame) for frame in self._frames.feed(data)]
        return self._commands.pop(0)

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        self._requests += 1
        self.send(RequestFrame(self._requests, verb, fields))
        answer = await self.receive()
        assert isinstance(answer, Reply), answer
        return answer.fields

    async def refused(self, verb: str, **fields: Any) -> str:
        self._requests += 1
        self.send(RequestFrame(self._requests, verb, fields))
        answer = await self.receive()
        assert isinstance(answer, Error), answer
        return answer.code

    async def publish(self, channel: int, *payloads: bytes, **columns: Any) -> Published:
        batch = build(list(payloads), publish_time=1, **columns)
        self.send(Publish(channel, 77, batch.to_bytes()))
        answer = await self.receive()
        assert isinstance(answer, Published), answer
        return answer

    def stop_reading(self) -> None:
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        self._writer.transport.abort()

    async def close(self) -> None:
        self._writer.close()
        await asyncio.gather(self._writer.wait_closed(), return_exceptions=True)


_CONNECTED: list[Client] = []


async def close_all() -> None:
    while _CONNECTED:
        await _CONNECTED.pop().close()


def payloads(deliver: Deliver) -> list[bytes | None]:
    batch = Batch.parse(deliver.batch)
    return batch.payloads()[deliver.first - batch.base_offset : deliver.last - batch.base_offset + 1]
