"""A broker whose loop is watched while somebody sends it all they can: what each turn took of the processor.

The time of the loop's thread is measured, not the wall's, so that other programs of the machine hardly count. What
takes long because of what is sent does so hundreds of times in 10 MB, while a machine that does much else makes a few
turns of thousands longer: so the few longest have a bound of their own, and what is too long is measured once more
before it counts. Garbage collection happens in turns, too, and is set as in a broker.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import threading
from asyncio import Handle, SelectorEventLoop
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import zip_longest
from pathlib import Path
from resource import RUSAGE_THREAD, getrusage
from time import monotonic, thread_time
from typing import Any, NamedTuple, cast
from unittest import mock

from pydanube.api.http.connection import HttpConnection
from pydanube.api.listening.doorway import Doorway
from pydanube.api.server import Server, StandaloneSettings, collect_seldom
from pydanube.base.limits import MIB
from pydanube.storage.node.settings import NodeSettings

KEPT_BYTES = 1 << 17  # of what was answered
SECONDS = 100.0  # for anything, on a machine that does much else
TURN_SECONDS_MAX = 0.02  # of the processor, for all turns but a few; all we know of take half of it on a busy machine
HOLD_SECONDS_MAX = 0.02  # the same between a question and its answer, for which a broker needs five turns
FEW = 5  # turns, or holds
FEW_SECONDS_MAX = 0.4  # for the few that are longest; 0.28 was seen, in one process of three, of a cause not found yet
MEASURED_MAX = 2  # times
SWITCH_SECONDS = 0.0005  # that it takes to be interrupted by another program, as caches are cold afterwards
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: danube\r\nConnection: close\r\n\r\n"


class Turn(NamedTuple):
    """Of the loop: from where it has looked for what is ready to where it looks again."""

    seconds: float  # of the processor
    switches: int  # times that another program was given the processor meanwhile
    dearest: str = ""  # of what was done in it, and how long that took

    @property
    def own_seconds(self) -> float:
        return self.seconds - SWITCH_SECONDS * self.switches


class Longest:
    """The few longest of many, and the one behind them."""

    def __init__(self) -> None:
        self._found = [Turn(0.0, 0)] * (FEW + 1)  # the longest last

    def add(self, turn: Turn) -> None:
        if turn.own_seconds > self._found[0].own_seconds:
            self._found = sorted([*self._found[1:], turn], key=lambda each: each.own_seconds)

    def check(self, most: float) -> None:
        assert self._found[0].own_seconds < most, self._found
        assert self._found[-1].own_seconds < FEW_SECONDS_MAX, self._found


class WatchedSelector(selectors.DefaultSelector):
    """Knows the longest turn of its loop, and the most that was done while a request was waiting for its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.longest = Longest()
        self.held = Longest()
        self._since: tuple[float, int] | None = None
        self._asked: dict[int, tuple[float, int]] = {}  # by connection that has not been answered yet
        self._dearest: tuple[float, Any] = (0.0, None)

    def forget(self) -> None:
        self.longest, self.held = Longest(), Longest()

    def select(self, timeout: float | None = None) -> Any:
        if self._since is not None:
            turn = _since(self._since)
            if turn.own_seconds > TURN_SECONDS_MAX / 2:
                took, callback = self._dearest
                self.longest.add(turn._replace(dearest=f"{took:.4f} s in {callback!r}"[:300]))
        ready = super().select(timeout)
        self._dearest = (0.0, None)
        self._since = _now()
        return ready

    def run(self, handle: Handle) -> None:
        """What the loop does in a turn, one after the other."""
        callback, since = handle._callback, thread_time()  # type: ignore[attr-defined]
        _run(handle)
        took = thread_time() - since
        if took > self._dearest[0]:
            self._dearest = took, callback

    def made(self, doorway: Doorway, *arguments: Any) -> None:
        """A connection was accepted."""
        self._asked[id(doorway)] = _now()
        _make(doorway, *arguments)

    def lost(self, doorway: Doorway, error: Exception | None) -> None:
        self._asked.pop(id(doorway), None)
        _lose(doorway, error)

    def answered(self, connection: HttpConnection, answer: Any, **how: Any) -> None:
        """The first request of a connection; of the others nobody knows here when they came."""
        _write(connection, answer, **how)
        asked = self._asked.pop(id(connection._transport.get_protocol()), None)
        if asked is not None and answer[1] == b"ok\n":
            self.held.add(_since(asked))


_run, _make, _lose, _write = Handle._run, Doorway.__init__, Doorway.connection_lost, HttpConnection._write


def _now() -> tuple[float, int]:
    return thread_time(), getrusage(RUSAGE_THREAD).ru_nivcsw


def _since(before: tuple[float, int]) -> Turn:
    seconds, switches = _now()
    return Turn(seconds - before[0], switches - before[1])


class Probes(threading.Thread):
    """Asks for `/healthz` repeatedly, each time on a connection of its own."""

    def __init__(self, address: tuple[str, int]) -> None:
        super().__init__(daemon=True)
        self.answered = 0
        self.longest_seconds = 0.0  # of the wall, which a busy machine makes long
        self.failed: str | None = None
        self._address = address
        self._enough = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._enough.is_set():
            since = monotonic()
            answer = self._ask()
            self.longest_seconds = max(self.longest_seconds, monotonic() - since)
            self.answered += 1
            if not answer.startswith(b"HTTP/1.1 200 "):
                self.failed = f"answer {self.answered} was {answer!r}"

    def _ask(self) -> bytes:
        try:
            with socket.create_connection(self._address, timeout=SECONDS) as peer:
                peer.sendall(HEALTH)
                return peer.recv(1 << 16)
        except OSError as error:
            return repr(error).encode()

    def stop(self) -> None:
        self._enough.set()
        self.join(SECONDS)


class Watch:
    """What a story is told under: the loop is watched from `begin` on, and nobody may have waited long at its `end`."""

    def __init__(self, selector: WatchedSelector, server: Server) -> None:
        self.selector = selector
        self.server = server
        self.probes: Probes | None = None

    def begin(self) -> None:
        self.selector.forget()
        self.probes = Probes(self.server.address)

    async def end(self) -> None:
        assert self.probes is not None
        await asyncio.to_thread(self.probes.stop)
        assert self.probes.failed is None
        assert self.probes.answered
        self.selector.longest.check(TURN_SECONDS_MAX)
        self.selector.held.check(HOLD_SECONDS_MAX)


def watched(directory: Path, story: Callable[[Server, Watch], Awaitable[None]], **options: Any) -> None:
    """Runs the story with a broker of its own; once more if it took too long."""
    for attempt in range(1, MEASURED_MAX + 1):
        try:
            return _watched(directory / str(attempt), story, **options)
        except AssertionError:
            if attempt == MEASURED_MAX:
                raise


def _watched(directory: Path, story: Callable[[Server, Watch], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=16 * MIB), **options))
        await server.start()
        server.load()
        try:
            async with asyncio.timeout(SECONDS):
                await story(server, Watch(selector, server))
        finally:
            await server.stop()

    selector = WatchedSelector()
    with (
        _settings_of_a_broker(),
        mock.patch.object(Handle, "_run", lambda handle: selector.run(handle)),
        mock.patch.object(Doorway, "__init__", lambda *given: selector.made(*given)),
        mock.patch.object(Doorway, "connection_lost", lambda *given: selector.lost(*given)),
        mock.patch.object(HttpConnection, "_write", lambda *given, **how: selector.answered(*given, **how)),
        asyncio.Runner(loop_factory=lambda: SelectorEventLoop(selector)) as runner,
    ):
        runner.run(run())


@contextmanager
def _settings_of_a_broker() -> Iterator[None]:
    """Garbage is collected as in a broker, and what the test suite holds is not looked at."""
    thresholds = gc.get_threshold()
    collect_seldom()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()


class Attack:
    """Sends all of it from a thread, and reads what is answered, until the broker has had it all or closes.

    Parts are sent one after the other; behind those in `marks`, when that has come in answer.
    """

    def __init__(self, address: tuple[str, int], parts: list[bytes], marks: Sequence[bytes] = ()) -> None:
        self.answered = b""  # the last of it
        self.answered_bytes = 0
        self.failed: str | None = None
        self._address, self._parts, self._marks = address, parts, marks
        self._came = threading.Condition()
        self._enough = False
        self._peer: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    async def done(self, seconds: float = SECONDS) -> None:
        """Until the broker has had it all, or the time is over."""
        await asyncio.to_thread(self.wait, seconds)
        assert self.failed is None

    def wait(self, seconds: float = SECONDS) -> None:
        self._thread.join(seconds)
        with self._came:
            self._enough = True
            self._came.notify_all()
        if self._peer is not None:
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join(SECONDS)

    async def answered_with(self, mark: bytes) -> None:
        await asyncio.to_thread(self._wait_for, mark)
        assert self.failed is None

    def _run(self) -> None:
        with socket.create_connection(self._address, timeout=SECONDS) as peer:
            self._peer = peer
            reader = threading.Thread(target=self._read, args=(peer,), daemon=True)
            reader.start()
            with suppress(OSError):  # it was told to stop
                for part, mark in zip_longest(self._parts, self._marks, fillvalue=b""):
                    peer.sendall(part)
                    self._wait_for(mark)
                peer.shutdown(socket.SHUT_WR)
            reader.join(SECONDS)

    def _wait_for(self, mark: bytes) -> None:
        with self._came:
            if not self._came.wait_for(lambda: self._enough or mark in self.answered, SECONDS):
                self.failed = f"{mark!r} has not come, but {self.answered!r}"

    def _read(self, peer: socket.socket) -> None:
        with suppress(OSError):
            while data := peer.recv(1 << 16):
                with self._came:
                    self.answered = (self.answered + data)[-KEPT_BYTES:]
                    self.answered_bytes += len(data)
                    self._came.notify_all()


class Crowd:
    """Many connections that send the same at once, when all of them are there."""

    def __init__(self, address: tuple[str, int], count: int, first: bytes) -> None:
        self._peers = [socket.create_connection(address, timeout=SECONDS) for _ in range(count)]
        for peer in self._peers:
            peer.sendall(first)
        if first:
            for peer in self._peers:
                peer.recv(1)

    def send(self, data: bytes, seconds: float) -> None:
        """Until all of it is sent, or the time is over. What is answered is read."""
        left = dict.fromkeys(self._peers, memoryview(data))
        until = monotonic() + seconds
        with selectors.DefaultSelector() as selector:
            for peer in self._peers:
                peer.setblocking(False)
                selector.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while left and monotonic() < until:
                for key, events in selector.select(0.1):
                    peer = cast("socket.socket", key.fileobj)
                    with suppress(BlockingIOError):
                        if events & selectors.EVENT_READ and not peer.recv(1 << 16):
                            left.pop(peer, None)
                            selector.unregister(peer)
                        elif events & selectors.EVENT_WRITE and peer in left:
                            left[peer] = left[peer][peer.send(left[peer]) :]
                            if not left[peer]:
                                del left[peer]

    def close(self) -> None:
        for peer in self._peers:
            peer.close()
