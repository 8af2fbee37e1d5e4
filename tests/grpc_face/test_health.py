"""The health of each address: what is served there, until the broker says that it goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from h2.connection import H2Connection

from grpc_face.rig import SECONDS, Consumers, Health, api, ask, channel, refused
from grpc_face.test_calls import made, subscribed
from pydanube.api.grpc.messages import message_class
from pydanube.api.server import Server
from pydanube.base.addresses import HostPort
from pydanube.base.errors import TopicClosed
from pydanube.broker.standalone import StandaloneSettings

CHECK = "grpc.health.v1.Health/Check"
SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
ADDRESSES = pytest.mark.parametrize("which", ["data", "admin"])
TOPIC = "/default/x"


@asynccontextmanager
async def served(directory: Path) -> AsyncIterator[tuple[Server, dict[str, str]]]:
    server = Server(StandaloneSettings(directory, port=0, admin_listen=HostPort("127.0.0.1", 0)))
    address = await server.start()
    assert server.admin_address is not None
    try:
        async with asyncio.timeout(SECONDS):
            yield server, {"data": str(HostPort(*address)), "admin": str(HostPort(*server.admin_address))}
    finally:
        await server.stop()


def watch(opened: grpc.aio.Channel, service: str = "") -> Any:
    request, response = (message_class(f"grpc.health.v1.HealthCheck{kind}") for kind in ("Request", "Response"))
    return opened.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=lambda body: body.SerializeToString(),
        response_deserializer=response.FromString,
    )(request(service=service))


class Deaf:
    """A client of HTTP/2 that has not read yet that the broker goes, and so asks on."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._core = H2Connection()
        self._core.initiate_connection()
        self.heard = b""

    @classmethod
    async def connect(cls, target: str) -> Deaf:
        host, _, port = target.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def ask(self, path: str, message: bytes) -> None:
        stream = self._core.get_next_available_stream_id()
        head = {":method": "POST", ":scheme": "http", ":path": path, ":authority": "x", "te": "trailers"}
        self._core.send_headers(stream, [*head.items(), ("content-type", "application/grpc")])
        self._core.send_data(stream, b"\0" + len(message).to_bytes(4) + message, end_stream=True)
        self._writer.write(self._core.data_to_send())

    async def hear(self, message: bytes) -> None:
        """Until an answer with this message came."""
        wanted = b"\0" + len(message).to_bytes(4) + message
        while wanted not in self.heard:
            data = await self._reader.read(65536)
            assert data, self.heard
            self.heard += data
        self.heard = b""

    def close(self) -> None:
        self._writer.close()


@ADDRESSES
def test_an_address_is_asked_for_what_it_serves(tmp_path: Path, which: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as (_, targets), channel(targets[which]) as opened:
            for name in ("", "danube_admin.TopicAdmin", "grpc.health.v1.Health"):
                assert (await ask(opened, CHECK, service=name)).status == SERVING
            if which == "data":
                assert (await ask(opened, CHECK, service="danube.ProducerService")).status == SERVING
                return
            unknown = ask(opened, CHECK, service="danube.ProducerService")
            assert (await refused(unknown))[0] is grpc.StatusCode.NOT_FOUND
            watched = watch(opened, "danube.ProducerService")
            assert (await watched.read()).status == SERVICE_UNKNOWN
            watched.cancel()

    asyncio.run(run())


@ADDRESSES
def test_whoever_watches_is_told_before_the_broker_goes(tmp_path: Path, which: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as (server, targets), channel(targets[which]) as opened:
            known, unknown = watch(opened), watch(opened, "nobody")
            assert [(await each.read()).status for each in (known, unknown)] == [SERVING, SERVICE_UNKNOWN]
            stopped = asyncio.create_task(server.stop())
            assert (await known.read()).status == NOT_SERVING
            for each in (known, unknown):
                assert (await refused(each.read()))[0] is grpc.StatusCode.UNAVAILABLE
            await stopped

    asyncio.run(run())


@ADDRESSES
def test_whoever_asks_while_the_broker_goes_is_told_so(tmp_path: Path, which: str) -> None:
    async def run() -> None:
        async with served(tmp_path) as (server, targets):
            listener = server._listener if which == "data" else server._admin
            client = await Deaf.connect(targets[which])
            client.ask(f"/{CHECK}", b"")
            await client.hear(b"\x08\x01")
            for doorway in list(listener.connections):
                doorway.stop(TopicClosed("the broker stops"))
            client.ask(f"/{CHECK}", b"")
            await client.hear(b"\x08\x02")
            client.close()

    asyncio.run(run())


def test_a_consumer_whose_stream_is_about_to_end_is_told_to_subscribe_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(tmp_path) as (server, targets), channel(targets["data"]) as opened:
            await made(opened, TOPIC)
            number = await subscribed(opened, TOPIC)
            stream = Consumers(opened).ReceiveMessages(api.ReceiveRequest(consumer_id=number))
            check = api.HealthCheckRequest(client=1, id=number)
            assert (await Health(opened).HealthCheck(check)).status == api.HealthCheckResponse.OK
            client = await Deaf.connect(targets["data"])
            path, close = "/danube.HealthCheck/HealthCheck", b"\x08\x01"
            client.ask(f"/{CHECK}", b"")
            await client.hear(b"\x08\x01")  # it is connected, behind the other
            *_, last = server._listener.connections
            last.stop(TopicClosed("the broker stops"))
            client.ask(path, check.SerializeToString())
            await client.hear(close)
            assert (await Health(opened).HealthCheck(check)).status == api.HealthCheckResponse.OK  # that one goes on
            stream.cancel()
            client.close()

    asyncio.run(run())
