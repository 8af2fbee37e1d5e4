"""TLS on the one listener: whom a client trusts, what the wrong scheme is told, a certificate that is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

import pydanube
from api.frame_client import Client as FrameClient
from api.frame_client import close_all
from certificates import Authority
from pydanube.api.listening import doorway as doorway_module
from pydanube.api.listening import listener as listener_module
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import ConfigInvalid, ConnectionLost, TlsFailed, TooManyConnections
from pydanube.base.limits import MIB
from pydanube.storage.node.settings import NodeSettings

TOPIC = "/default/orders"
LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Awaitable[None]], None]


@asynccontextmanager
async def broker(directory: Path, files: tuple[Path, Path] | None, **limits: int) -> AsyncIterator[Server]:
    node = NodeSettings(file_bytes=4 * MIB)
    server = Server(StandaloneSettings(directory / "data", port=0, node=node, certificate=files, **limits))
    await server.start()
    try:
        async with asyncio.timeout(20):
            yield server
    finally:
        await server.stop()


async def serial(address: tuple[str, int], ca: Path) -> int:
    """Of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(*address, ssl=ssl.create_default_context(cafile=ca))
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)
    return int(shown, 16)


@LOOPS
def test_large_and_many_messages_pass_through_tls(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            assert server.url.startswith("danubes://")
            async with pydanube.connect(server.url, ca_file=str(authority.file)) as client:
                payloads = [bytes([number % 256]) * 300_000 for number in range(40)]
                async with client.producer(TOPIC) as producer:
                    await producer.send_many(payloads)
                    await producer.send_many([b"%d" % number for number in range(5_000)])
                async with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
                    messages = [await consumer.receive(5) for _ in range(5_040)]
                    await consumer.ack(messages[-1])
                assert [message.payload for message in messages[:40]] == payloads
                assert messages[-1].payload == b"4999"

    run(story())


@LOOPS
def test_a_client_that_was_closed_leaves_no_socket_to_a_loop_that_ends(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            async with pydanube.connect(server.url, ca_file=str(authority.file)) as client:
                connection = await client.connection()
            assert connection._socket_closed.done()

    run(story())


@LOOPS
def test_a_hello_in_single_bytes_is_a_handshake_too(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = ssl.create_default_context(cafile=authority.file)
            tls = context.wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            reader, writer = await asyncio.open_connection(*server.address)
            with pytest.raises(ssl.SSLWantReadError):
                tls.do_handshake()
            for byte in outgoing.read():
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0)
            while tls.version() is None or not tls.getpeercert():
                incoming.write(await reader.read(65536))
                try:
                    tls.do_handshake()
                except ssl.SSLWantReadError:
                    continue
            tls.write(b"GET /healthz HTTP/1.1\r\nHost: danube\r\n\r\n")
            writer.write(outgoing.read())
            answer = b""
            while b"ok\n" not in answer:
                incoming.write(await reader.read(65536))
                try:
                    answer += tls.read(65536)
                except ssl.SSLWantReadError:
                    continue
            writer.close()
            await writer.wait_closed()

    run(story())


@LOOPS
def test_a_client_trusts_its_authority_and_the_name_only(tmp_path: Path, run: Run) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def refused(files: tuple[Path, Path], ca: Path, said: str) -> None:
        async with broker(tmp_path, files) as server:
            with pytest.raises(TlsFailed, match=said):
                await pydanube.connect(server.url, ca_file=str(ca)).open()

    async def story() -> None:
        await refused(authority.sign(), other.file, "certificate is not trusted")
        await refused(authority.sign("elsewhere.example"), authority.file, "certificate is not trusted.*127.0.0.1")
        await refused(authority.sign(years=1), authority.file, "certificate is not trusted.*expired")
        await refused(authority.sign(), tmp_path / "gone.pem", r"gone\.pem cannot be read")
        await refused(authority.sign(), tmp_path / "broker.key", r"broker\.key cannot be read")

    run(story())


@LOOPS
def test_the_wrong_scheme_is_told_so(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            with pytest.raises(TlsFailed, match="this port speaks TLS: use danubes://"):
                await pydanube.connect(server.url.replace("danubes", "danube")).open()
            reader, writer = await asyncio.open_connection(*server.address)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: danube\r\n\r\n")
            assert b"400 Bad Request" in await reader.read()
            writer.close()
            await writer.wait_closed()
        async with broker(tmp_path, None) as server:
            with pytest.raises(TlsFailed, match="does not speak TLS; use danube://"):
                await pydanube.connect(server.url.replace("danube", "danubes"), ca_file=str(authority.file)).open()

    run(story())


def test_a_client_that_may_not_trust_the_broker_any_more_says_why_it_waits(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")

    async def story() -> None:
        events: asyncio.Queue[pydanube.client.ClientEvent] = asyncio.Queue()
        async with broker(tmp_path, authority.sign()) as server:
            client = pydanube.connect(
                server.url, ca_file=str(authority.file), on_event=events.put_nowait, request_timeout=0.2
            )
            await client.open()
            other.sign()
            server.reload()
            for doorway in list(server._listener.connections):
                doorway.abort()
            while (event := await events.get()).what != "connect_failed":
                pass
            assert isinstance(event.error, TlsFailed)
            with pytest.raises(TlsFailed, match="not trusted"):
                await client.admin.namespaces()
            await client.close()

    asyncio.run(story())


@LOOPS
def test_new_connections_are_shown_a_new_certificate_and_old_ones_live_on(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        files = authority.sign()
        connect = pydanube.connect
        async with broker(tmp_path, files) as server, connect(server.url, ca_file=str(authority.file)) as client:
            before = await serial(server.address, authority.file)
            authority.sign()
            server.reload()
            after = await serial(server.address, authority.file)
            assert after != before
            assert "default" in await client.admin.namespaces()
            files[1].write_text("no key")
            server.reload()
            assert await serial(server.address, authority.file) == after
            files[1].unlink()
            server.reload()
            assert await serial(server.address, authority.file) == after
            authority.sign()
            server.reload()
            assert await serial(server.address, authority.file) not in (before, after)

    run(story())


def test_a_broken_certificate_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            os.replace(authority.file, tmp_path / "broker.pem")
            with caplog.at_level(logging.ERROR):
                server.reload()
                server.reload()
            assert [record.message for record in caplog.records if "keeping the old one" in record.message]
            assert len(caplog.records) == 1  # not again until the files change again

    asyncio.run(story())


def test_a_broker_does_not_start_with_a_broken_certificate(tmp_path: Path) -> None:
    certificate, _ = Authority(tmp_path).sign()

    async def story() -> None:
        with pytest.raises(ConfigInvalid, match=r"broker\.pem"):
            async with broker(tmp_path, (certificate, certificate)):
                pass

    asyncio.run(story())
    assert not (tmp_path / "data").exists()


@LOOPS
def test_handshakes_that_end_midway_leave_nothing(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            for sent in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\x16" * 2000, b""):
                for _ in range(5):
                    _, writer = await asyncio.open_connection(*server.address)
                    writer.write(sent)
                    await writer.drain()
                    writer.transport.abort()
            for _ in range(200):
                await asyncio.sleep(0)
                if not server._listener.connections:
                    break
            await serial(server.address, authority.file)  # a round trip: what came before it was seen
            _, writer = await asyncio.open_connection(*server.address)
            writer.write(b"\x16\x03")  # in a handshake when the broker stops
            await writer.drain()
            while not server._listener.greeting:  # noqa: ASYNC110 - the loop must turn
                await asyncio.sleep(0)
        assert not server._listener.connections
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    run(story())


@LOOPS
def test_one_connection_too_many_is_told_so_through_tls(tmp_path: Path, run: Run) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign(), connections_max=1) as server:
            ca_file = str(authority.file)
            async with pydanube.connect(server.url, ca_file=ca_file) as client:
                with pytest.raises(TooManyConnections):
                    await pydanube.connect(server.url, ca_file=ca_file).open()
                context = ssl.create_default_context(cafile=authority.file)
                reader, writer = await asyncio.open_connection(*server.address, ssl=context)
                writer.write(b"GET /api/v1/broker HTTP/1.1\r\nHost: danube\r\n\r\n")
                answer = await reader.read()
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"too_many_connections" in answer
                writer.close()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)
                assert "default" in await client.admin.namespaces()
                assert (len(server._listener.connections), server._listener.refused) == (1, 2)
            while server._listener._lingering or server._listener.connections:  # noqa: ASYNC110 - the loop must turn
                await asyncio.sleep(0)
            async with pydanube.connect(server.url, ca_file=ca_file):
                assert len(server._listener.connections) == 1

    run(story())


@LOOPS
def test_handshakes_of_too_many_are_few_and_short(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    monkeypatch.setattr(listener_module, "REFUSED_HANDSHAKES_MAX", 3)
    monkeypatch.setattr(listener_module, "LINGER_SECONDS", 3600.0)  # none of them is past
    monkeypatch.setattr(doorway_module, "LINGER_SECONDS", 0.05)

    async def ended(sent: bytes) -> None:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(sent)
        await asyncio.gather(reader.read(), return_exceptions=True)
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def story() -> None:
        nonlocal server
        async with broker(tmp_path, authority.sign(), connections_max=1) as server:
            ca_file = str(authority.file)
            async with pydanube.connect(server.url, ca_file=ca_file):
                for sent in (b"", b"\x16\x03\x01"):  # says nothing, and stops in its handshake
                    await ended(sent)
                with pytest.raises(TooManyConnections):
                    await pydanube.connect(server.url, ca_file=ca_file).open()
                with pytest.raises(ConnectionLost):  # the fourth is not told
                    await pydanube.connect(server.url, ca_file=ca_file).open()
                assert (server._listener._handshakes, server._listener.refused) == (3, 4)
                assert not server._listener._lingering

    server: Server
    run(story())


def test_plain_frames_after_a_preface_are_not_served_on_a_tls_port(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        async with broker(tmp_path, authority.sign()) as server:
            with pytest.raises(AssertionError):  # CLOSED instead of WELCOME
                await FrameClient.connect(server.address)
            await close_all()
            with pytest.raises((TlsFailed, ConnectionLost)):
                await pydanube.connect(f"danube://127.0.0.1:{server.address[1]}").open()

    asyncio.run(story())
