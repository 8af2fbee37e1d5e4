"""S4: what others do to a good client, in bytes that it waits behind and in work that is done meanwhile.

The benchmarks say how long it takes; these hold on a machine that is busy with something else.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import pydanube
from api.frame_client import Client, close_all
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import KIB, MIB, UNCONFIRMED_BYTES_MAX
from pydanube.storage.node.journal import Journal
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import build
from pydanube.wire.commands import Grant, Ping, Publish, Published
from pydanube.wire.frames import PREFACE
from waiting import until

FLOODERS = 4
FLOOD_BATCHES = 200  # of each
BATCH = build([b"x" * KIB] * 32, publish_time=1).to_bytes()
READ_BYTES = 256 * KIB  # that a loop reads at once, and so may publish before it stops
PEERS = 60  # of each sort
SENDS = 300


def with_broker(directory: Path, story: Callable[[Server], Awaitable[None]]) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=32 * MIB)))
        await server.start()
        try:
            async with asyncio.timeout(30):
                await story(server)
        finally:
            await close_all()
            await server.stop()

    asyncio.run(run())


class Stall:
    """A journal that writes nothing while it is held."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = False
        self._stalled: list[Journal] = []
        self._flush = Journal._flush
        monkeypatch.setattr(Journal, "_flush", lambda journal: self._or_not(journal))

    def _or_not(self, journal: Journal) -> None:
        if self.held:
            self._stalled.append(journal)
        else:
            self._flush(journal)

    @property
    def queued_bytes(self) -> int:
        return sum(journal._queued_bytes for journal in self._stalled)

    def release(self) -> None:
        self.held = False
        for journal in self._stalled:
            self._flush(journal)


async def publisher(server: Server, topic: str) -> Client:
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=1, topic=topic)
    await client.publish(1, b"the first")
    return client


def test_whoever_floods_puts_little_before_what_others_publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stall = Stall(monkeypatch)

    async def story(server: Server) -> None:
        flooders = [await publisher(server, f"/default/flood-{number}") for number in range(FLOODERS)]
        victim = await publisher(server, "/default/victim")
        natives: list[Any] = [doorway._connection for doorway in server._listener.connections]
        stall.held = True
        flood = b"".join(Publish(1, 1, BATCH).encode()) * FLOOD_BATCHES
        for each in flooders:
            each.write(flood)
        await until(lambda: all(native.choked for native in natives[:FLOODERS]))
        for _ in range(100):
            await asyncio.sleep(0)
        before = stall.queued_bytes
        assert 0 < before <= UNCONFIRMED_BYTES_MAX + FLOODERS * (READ_BYTES + len(BATCH))
        assert before < FLOODERS * len(flood) / 10
        victim.send(Publish(1, 9, BATCH))
        await until(lambda: stall.queued_bytes > before)
        assert stall.queued_bytes == before + len(BATCH)  # nothing of the flood came in between
        stall.release()
        assert isinstance(await victim.receive(), Published)
        for each in flooders:
            for _ in range(FLOOD_BATCHES):
                assert isinstance(await each.receive(), Published)

    with_broker(tmp_path, story)


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Calls of Python functions, as a measure of work that knows no clock."""
    calls = [0]

    def count(frame: object, event: str, argument: object) -> None:
        if event == "call":
            calls[0] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(before)


async def good_client(server: Server, topic: str) -> int:
    """Publishes and consumes; how much work that was, its own included."""
    async with (
        pydanube.connect(server.url) as client,
        client.producer(topic) as producer,
        client.consumer(topic, subscription="s") as consumer,
    ):
        with counted_calls() as calls:
            for number in range(SENDS):
                await producer.send(b"%d" % number)
                await consumer.ack(await consumer.receive())
        return calls[0]


def test_peers_that_are_silent_stuck_or_half_way_cost_a_good_client_next_to_nothing(tmp_path: Path) -> None:
    async def story(server: Server) -> None:
        await good_client(server, "/default/first")  # what is loaded and opened once
        alone = await good_client(server, "/default/alone")
        frame = b"".join(Publish(1, 1, BATCH).encode())
        for number in range(PEERS):
            await Client.connect(server.address)
            (await Client.connect(server.address, hello=False)).write(PREFACE[: number % len(PREFACE)])
            half = await publisher(server, "/default/half")
            half.write(frame[: len(frame) // 2])
            stuck = await Client.connect(server.address)
            await stuck.ask(
                "open_consumer", channel=1, topic="/default/half", subscription=f"s{number}", start="earliest"
            )
            stuck.stop_reading()
            stuck.send(Grant(1, 1_000_000))
            stuck.write(b"".join(Ping(1).encode()) * 100)
        await until(lambda: server._native.unfinished.bytes == PEERS * (len(frame) // 2 - 20))
        among_others = await good_client(server, "/default/among")
        assert among_others < 2 * alone

    with_broker(tmp_path, story)
