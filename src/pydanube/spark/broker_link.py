"""A connection to the broker for code that does not await: one for each broker and process, kept as long as that.

Spark's workers live through many tasks, so the connection does too; the client keeps it up by itself.
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
PATIENCE_SECONDS = 60.0  # for a broker that is busy, or starts again
RETRY = Backoff(0.05, 1.0)


class BrokerLink:
    """A client on a loop of its own."""

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
    """Asks again while it may help; only for what can be asked twice."""
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
    """The process's link to this broker; opened, with so many seconds for it, if there is none yet."""
    key = (os.getpid(), url, ca_file)  # a forked process has the dictionary of its parent, and none of its threads
    with _lock:
        if key not in _links:
            link = BrokerLink(url, ca_file)
            link.open(patience)
            _links[key] = link
        return _links[key]


def close_links() -> None:
    """All of this process; a program that continues without Spark may want its connections back."""
    with _lock:
        mine = [key for key in _links if key[0] == os.getpid()]
        links = [_links.pop(key) for key in mine]
    for link in links:
        link.close()
