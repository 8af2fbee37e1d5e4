"""What the links between nodes carry: two processes on the loopback interface, the sender's figures.

Run `python bench/peer_links.py`, or with `--tls` for mutual TLS. Each figure is the median of five runs.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

import uvloop

from figures import Figures
from pydanube.adapters.peer_links import PeerLinks, PeerTls
from pydanube.adapters.system import SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import KIB, MIB
from pydanube.raft.entries import EntryKind, Point, next_entry
from pydanube.raft.messages import Alive, Append, Appended, Heartbeat
from pydanube.wire.peer.hello import Node
from pydanube.wire.peer.messages import CONSENSUS, MessageTable

RUNS = 5
SECRET = b"only for a benchmark"
SENDER, RECEIVER = Node(NodeIdentity("aa" * 16)), Node(NodeIdentity("bb" * 16))
HERE = HostPort("127.0.0.1", 0)
AHEAD_BYTES = 8 * MIB  # sent and not answered; less than what may wait for a peer
AHEAD_MESSAGES = 8_192


def tls_in(directory: Path) -> PeerTls:
    certificate, key = directory / "broker.pem", directory / "broker.key"
    connecting = ssl.create_default_context(cafile=str(directory / "authority.pem"))
    accepting = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    accepting.load_verify_locations(directory / "authority.pem")
    accepting.verify_mode = ssl.CERT_REQUIRED
    for context in (connecting, accepting):
        context.load_cert_chain(certificate, key)
    return PeerTls(connecting, accepting)


def links_of(node: Node, host: Sender | Receiver, directory: str) -> PeerLinks:
    tls = tls_in(Path(directory)) if directory else None
    return PeerLinks(node, SECRET, MessageTable(CONSENSUS), host, SystemRandomness(), tls)


class Receiver:
    """Answers each heartbeat and each message with entries, as a follower does."""

    links: PeerLinks

    def on_message(self, sender: NodeIdentity, message: object) -> None:
        if isinstance(message, Heartbeat):
            self.links.send(sender, Alive(1, message.round), urgent=True)
        elif isinstance(message, Append):
            self.links.send(sender, Appended(1, True, message.committed))

    def on_lost(self, peer: NodeIdentity, reset: bool) -> None:
        asyncio.get_running_loop().stop()


async def receive(port: int, directory: str) -> None:
    host = Receiver()
    host.links = links_of(RECEIVER, host, directory)
    print((await host.links.start(HERE)).port, flush=True)
    host.links.connect(SENDER.identity, HostPort("127.0.0.1", port))
    await asyncio.Event().wait()


class Sender:
    links: PeerLinks

    def __init__(self) -> None:
        self.answered = 0
        self.alive: dict[int, float] = {}
        self.changed = asyncio.Event()

    def on_message(self, sender: NodeIdentity, message: object) -> None:
        if isinstance(message, Appended):
            self.answered = message.index
        elif isinstance(message, Alive):
            self.alive[message.round] = perf_counter()
        self.changed.set()

    def on_lost(self, peer: NodeIdentity, reset: bool) -> None: ...

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.changed.clear()
            await self.changed.wait()

    async def appends(self, size: int, count: int) -> float:
        """Seconds until `count` messages with that much data are answered, with a window of them in flight."""
        entries = (next_entry(Point(), 1, EntryKind.DATA, bytes(size)),)
        ahead = max(1, min(AHEAD_MESSAGES, AHEAD_BYTES // (size + 1)))
        self.answered, begun = 0, perf_counter()
        for number in range(1, count + 1):
            self.links.send(RECEIVER.identity, Append(1, Point(), entries, number))
            if number - self.answered >= ahead:
                await self.until(lambda number=number: number - self.answered < ahead // 2 + 1)
        await self.until(lambda: self.answered == count)
        return perf_counter() - begun

    async def heartbeats(self, count: int, first: int) -> list[float]:
        """The milliseconds until each is answered."""
        times = []
        for number in range(first, first + count):
            begun = perf_counter()
            self.links.send(RECEIVER.identity, Heartbeat(1, number, 0), urgent=True)
            await self.until(lambda number=number: number in self.alive)
            times.append((self.alive[number] - begun) * 1000)
            await asyncio.sleep(0.005)
        return times


async def middle(work: Callable[[], Awaitable[float]]) -> float:
    return median([await work() for _ in range(RUNS)])


async def measure(directory: str) -> None:
    figures, host = Figures(), Sender()
    host.links = links_of(SENDER, host, directory)
    address = await host.links.start(HERE)
    command = [sys.executable, __file__, "receive", str(address.port), directory]
    other = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    assert other.stdout is not None
    port = int(await other.stdout.readline())
    host.links.connect(RECEIVER.identity, HostPort("127.0.0.1", port))
    while not host.alive:
        host.links.send(RECEIVER.identity, Heartbeat(1, 0, 0), urgent=True)
        await asyncio.sleep(0.05)
    for size, count in ((200, 60_000), (64 * KIB, 6_000), (256 * KIB, 2_000), (4 * MIB, 120)):
        seconds = await middle(lambda size=size, count=count: host.appends(size, count))
        figures.report(f"appends of {size} bytes", count / seconds, "messages/s")
        figures.report(f"data in appends of {size} bytes", count * size / seconds / MIB, "MiB/s")
    quiet = await host.heartbeats(400, 1)
    bulk = asyncio.ensure_future(host.appends(4 * MIB, 10_000))
    busy = await host.heartbeats(400, 1_000)
    bulk.cancel()
    for name, times in (("alone", quiet), ("beside messages of 4 MiB", busy)):
        figures.report(f"heartbeat and answer {name}, p50", median(times), "ms")
        figures.report(f"heartbeat and answer {name}, p99", quantiles(times, n=100)[98], "ms")
    other.kill()
    await other.wait()
    await host.links.stop()
    figures.table()


if __name__ == "__main__":
    if sys.argv[1:2] == ["receive"]:
        uvloop.run(receive(int(sys.argv[2]), sys.argv[3]))
    else:
        with tempfile.TemporaryDirectory() as made:
            if "--tls" in sys.argv:
                sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
                from certificates import Authority

                Authority(Path(made)).sign()
            uvloop.run(measure(made if "--tls" in sys.argv else ""))
