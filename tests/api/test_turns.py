"""S1, S2, S4, S16: whatever one connection sends, before or after it has said hello, nobody else waits long for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api.hostile import Attack, Crowd, Watch, watched
from api.hostile_inputs import BYTES, HTTP1, HTTP2, MARKS, MESSAGES, NATIVE, batch_of, got, http2, much, native, said
from api.http_client import Http
from pydanube.api.server import Server
from pydanube.base.limits import CONNECTIONS_LINGERING_MAX, MIB, WAITING_REQUESTS_MAX
from pydanube.wire.batch import Codec
from pydanube.wire.commands import Ping, Publish, RequestFrame
from pydanube.wire.frames import PREFACE
from pydanube.wire.http2.frames import FrameType, frame

LASTING_SECONDS = 1.0  # of each: what a broker takes longer for goes on alike
CONNECTIONS = 200
CASES = [
    *(pytest.param(make, id=f"native: {name}") for name, make in NATIVE.items()),
    *(pytest.param(make, id=f"HTTP/2: {name}") for name, make in HTTP2.items()),
    *(pytest.param(make, id=f"HTTP/1: {name}") for name, make in HTTP1.items()),
]


async def create_topic(server: Server) -> None:
    http = await Http.connect(server)
    await http.ask("PUT", "/api/v1/topics/default/orders")
    await http.close()


@pytest.mark.parametrize("make", CASES)
def test_no_input_holds_up_the_loop(tmp_path: Path, make: Callable[[], list[bytes]]) -> None:
    parts = make()

    async def story(server: Server, watch: Watch) -> None:
        await create_topic(server)
        bomb = native(said(Publish(1, 1, batch_of(1, bytes(15 * MIB), Codec.ZSTD))))
        await Attack(server.address, bomb, MARKS).done()
        watch.begin()
        attack = Attack(server.address, parts, MARKS if parts[0].startswith(PREFACE) else ())
        await attack.done(LASTING_SECONDS)
        await watch.end()

    watched(tmp_path, story)


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        pytest.param(native()[0], said(Ping(1)), id="pings"),
        pytest.param(native()[0], said(RequestFrame(9, "x", {})), id="unknown verbs"),
        pytest.param(http2()[0], frame(FrameType.WINDOW_UPDATE, 0, 0, b"\0\0\0\1"), id="WINDOW_UPDATEs"),
        pytest.param(b"", got("/api/v1/broker"), id="requests"),
        pytest.param(b"", b"GET /", id="what never becomes a request"),
    ],
)
def test_many_connections_at_once_share_a_turn(tmp_path: Path, first: bytes, piece: bytes) -> None:
    """10 MB in all. They begin together, when all are connected."""

    async def story(server: Server, watch: Watch) -> None:
        await create_topic(server)
        crowd = await asyncio.to_thread(Crowd, server.address, CONNECTIONS, first)
        watch.begin()
        await asyncio.to_thread(crowd.send, much(piece, size=BYTES // CONNECTIONS), LASTING_SECONDS)
        crowd.close()
        await watch.end()

    watched(tmp_path, story)


def test_probes_are_answered_though_there_are_too_many_connections(tmp_path: Path) -> None:
    async def story(server: Server, watch: Watch) -> None:
        first = await Http.connect(server)
        await first.ask("GET", "/healthz")
        silent = [await Http.connect(server) for _ in range(CONNECTIONS_LINGERING_MAX + 5)]
        for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/api/v1/broker", 503)):
            other = await Http.connect(server)
            assert (await other.ask("GET", path)).status == status
            assert await other.ended()
            await other.close()
        for each in (first, *silent):
            await each.close()

    watched(tmp_path, story, connections_max=1)


def test_as_many_long_polls_as_may_wait_keep_nobody_waiting_when_they_wake_up(tmp_path: Path) -> None:
    async def story(server: Server, watch: Watch) -> None:
        http = await Http.connect(server)
        await http.ask("PUT", "/api/v1/topics/default/orders")
        polls = [await Http.connect(server) for _ in range(WAITING_REQUESTS_MAX)]
        for each in polls:
            each.send("GET", f"{MESSAGES}?offset=latest&wait=20")
        while server._http.serving < len(polls):  # noqa: ASYNC110 - of this loop
            await asyncio.sleep(0)
        watch.begin()
        for path in ("/healthz", "/readyz"):
            assert (await http.ask("GET", path)).status == 200
        producer = Attack(server.address, native(said(Publish(1, 1, batch_of(1, b"x")))), MARKS)
        await producer.done()
        for each in polls:
            assert len((await each.reply()).json["messages"]) == 1
            await each.close()
        await watch.end()
        await http.close()

    watched(tmp_path, story)
