"""A connection to the broker for code that does not await: one for each broker and process, for as long as it lives.

Spark's workers run many tasks, which share the connection. The client reconnects automatically.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

import pydanube
from pydanube.base.errors import DanubeError
from pydanube.base.retry import Backoff
from pydanube.client import Client
from pydanube.sync import LoopThread

log = logging.getLogger(__name__)
Result = TypeVar("Result")
PATIENCE_SECONDS = 60.0  # for a broker that is busy or restarts
RETRY = Backoff(0.05, 1.0)


class BrokerLink:
    """A client with an event loop in a thread of its own."""

    def __init__(self, url: str, ca_file: str | None) -> None:
        self._loop = LoopThread()
        try:
            self.client: Client = pydanube.connect(url, ca_file=ca_file)
        except BaseException:
            self._loop.stop()
            raise

    def open(self, patience: float) -> None:
        try:
            self.wait(self._open(patience))
        except BaseException:
            self._loop.stop()
            raise

    async def _open(self, patience: float) -> None:
        try:
            await self.client.open()
        except DanubeError as error:
            if not error.retriable or not patience:
                raise
            log.warning("%s; waiting for it for %g seconds", error, patience)
            await with_retries(self.client.open, patience)

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        return self._loop.wait(work)

    def begin(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        return asyncio.run_coroutine_threadsafe(work, self._loop.loop)

    def close(self) -> None:
        self.wait(self.client.close())
        self._loop.stop()


async def with_retries(ask: Callable[[], Awaitable[Result]], seconds: float = PATIENCE_SECONDS) -> Result:
    """Repeats a request as long as that may help. Only for requests that can be repeated."""
    loop = asyncio.get_running_loop()
    until, pauses = loop.time() + seconds, iter(RETRY)
    while True:
        try:
            return await ask()
        except DanubeError as error:
            pause = next(pauses)
            if not error.retriable or loop.time() + pause > until:
                raise
        await asyncio.sleep(pause)


_links: dict[tuple[int, str, str | None], BrokerLink] = {}
_lock = threading.Lock()


def link_to(url: str, ca_file: str | None, *, patience: float = 0.0) -> BrokerLink:
    """This process's link to the broker. If there is none yet, it is opened, which may take `patience` seconds."""
    key = (os.getpid(), url, ca_file)  # a forked process has its parent's dictionary, but not its threads
    with _lock:
        if key not in _links:
            link = BrokerLink(url, ca_file)
            link.open(patience)
            _links[key] = link
        return _links[key]


def close_links() -> None:
    """Closes all links of this process, for a program that continues without Spark."""
    with _lock:
        mine = [key for key in _links if key[0] == os.getpid()]
        links = [_links.pop(key) for key in mine]
    for link in links:
        link.close()
