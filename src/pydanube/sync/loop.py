"""The thread with an event loop behind a client without `await`, and the calls that wait for it.

Every wait ends: with the loop, in a forked child and in the loop's own thread it is refused, not begun.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from pydanube.base.errors import ClientClosed, ClientForked, DanubeError, OtherLoop
from pydanube.client.outgoing import fresh
from pydanube.client.values import Duration, seconds_of

Result = TypeVar("Result")


class LoopThread:
    """A thread that runs an event loop, uvloop where there is one."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False  # nothing is handed to it any more
        self._thread = threading.Thread(target=self._run, name="pydanube", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        left = asyncio.all_tasks(self.loop)
        for task in left:
            task.cancel()  # and with it whoever waits in another thread
        if left:
            self.loop.run_until_complete(asyncio.wait(left))
        self.loop.close()

    @property
    def forked(self) -> bool:
        """This is a child of the process that made it, and has no such thread."""
        return os.getpid() != self._process

    @property
    def here(self) -> bool:
        """This is its own thread, in a callback of the client."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raises if a call that is handed over now would never be made."""
        if self.forked:
            raise ClientForked("the client was opened before this process forked")
        if self._ended:
            raise ClientClosed("the client is closed")

    def check_waiting(self) -> None:
        """Raises if waiting for it now would never end."""
        self.check()
        if self.here:
            raise OtherLoop("a callback runs in the client's own thread and cannot wait for the client there")

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """In the loop, soon."""
        self.check()
        with self._lock:
            self.check()
            self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """In the loop, without waiting."""
        try:
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except DanubeError:
            work.close()
            raise

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs it there and waits. Interrupting the wait cancels it."""
        try:
            self.check_waiting()
        except DanubeError:
            work.close()
            raise
        future = self.run(work)
        try:
            return future.result()
        except CancelledError:
            if not self._ended:
                raise
            raise ClientClosed("the client was closed in the meantime") from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        if self.forked:
            return
        with self._lock:
            ended, self._ended = self._ended, True
            if not ended:
                self.loop.call_soon_threadsafe(self.loop.stop)
        if not self.here:
            self._thread.join()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Pending(Generic[Result]):
    """What `send` and `ack` return. It may be dropped; `result()` waits."""

    __slots__ = ("_handed_over", "_loop", "asked")

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._handed_over: Future[Awaitable[Result]] = Future()
        self.asked = False

    def answer(self, call: Callable[[], Awaitable[Result]]) -> None:
        """In the loop: does what was asked for."""
        try:
            self._handed_over.set_result(call())
        except Exception as error:
            self._handed_over.set_exception(error)

    def fail(self, error: BaseException) -> None:
        self._handed_over.set_exception(error)

    @property
    def error(self) -> BaseException | None:
        """Why it could not even be handed over."""
        return self._handed_over.exception() if self._handed_over.done() else None

    def result(self, timeout: Duration | None = None) -> Result:
        """Gives up after `timeout` (seconds, or a timedelta); what was handed over is not taken back by that.

        Raises why it takes so long if that is known, a lost connection for one; else `TimeoutError`.
        """
        self.asked = True
        self._loop.check_waiting()
        seconds = None if timeout is None else seconds_of(timeout)
        return self._loop.wait(_within(self._handed_over.result(seconds), seconds))


async def _within(what: Awaitable[Result], timeout: float | None) -> Result:  # noqa: ASYNC109 - handed in by a program
    try:
        async with asyncio.timeout(timeout):
            return await what
    except TimeoutError:
        reason = getattr(what, "reason", None)
        if reason is None:
            raise
        raise fresh(reason) from None
