"""A broker whose loop is watched while somebody sends it all they can: how long each turn took of the processor.

The time of the loop's thread is measured, not the wall's: other programs of the machine do not count.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import threading
from asyncio import SelectorEventLoop
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from time import thread_time
from typing import Any

from api.http_client import Http
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB
from pydanube.storage.settings import NodeSettings

KEPT_BYTES = 1 << 17  # of what was answered
SECONDS = 60.0  # for anything, on a machine that does much else


class WatchedSelector(selectors.DefaultSelector):
    """Knows how long the loop was away at most."""

    longest = 0.0
    _since: float | None = None

    def select(self, timeout: float | None = None) -> Any:
        if self._since is not None:
            self.longest = max(self.longest, thread_time() - self._since)
        ready = super().select(timeout)
        self._since = thread_time()
        return ready


ATTEMPTS = 3  # a neighbour on the machine makes a turn long now and then; what is slow by itself is so each time


def watched(directory: Path, story: Callable[[Server, WatchedSelector], Awaitable[None]], **options: Any) -> None:
    """Runs the story with a broker of its own, once more with another if a turn of its loop was too long."""
    for attempt in range(ATTEMPTS):
        try:
            return _watched(directory / str(attempt), story, **options)
        except AssertionError:
            if attempt + 1 == ATTEMPTS:
                raise


def _watched(directory: Path, story: Callable[[Server, WatchedSelector], Awaitable[None]], **options: Any) -> None:
    async def run() -> None:
        server = Server(StandaloneSettings(directory, port=0, node=NodeSettings(file_bytes=16 * MIB), **options))
        await server.start()
        server.load()
        gc.collect()
        gc.freeze()  # as the broker does: what the test suite holds is not looked at again and again
        try:
            async with asyncio.timeout(SECONDS):
                await story(server, selector)
        finally:
            gc.unfreeze()
            await server.stop()

    selector = WatchedSelector()
    with asyncio.Runner(loop_factory=lambda: SelectorEventLoop(selector)) as runner:
        runner.run(run())


async def probe(server: Server, done: Callable[[], bool]) -> float:
    """Asks for `/healthz` again and again. The most that the loop did between a question and its answer."""
    worst = 0.0
    while not done():
        asked = thread_time()
        http = await Http.connect(server)
        assert (await http.ask("GET", "/healthz")).status == 200
        worst = max(worst, thread_time() - asked)
        await http.close()
    return worst


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
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        with socket.create_connection(self._address, timeout=SECONDS) as peer:
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
            if not self._came.wait_for(lambda: mark in self.answered, SECONDS):
                self.failed = f"{mark!r} has not come, but {self.answered!r}"

    def _read(self, peer: socket.socket) -> None:
        with suppress(OSError):
            while data := peer.recv(1 << 16):
                with self._came:
                    self.answered = (self.answered + data)[-KEPT_BYTES:]
                    self.answered_bytes += len(data)
                    self._came.notify_all()
