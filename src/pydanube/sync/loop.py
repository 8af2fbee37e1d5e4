"""The thread with the event loop of a synchronous client, and the calls that wait for it.

Every wait ends. A call that could wait forever is refused: after the loop has ended, in a forked child, and in the
loop's own thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, Generic, TypeVar

from pydanube.base.errors import ClientClosed, ClientForked, DanubeError, OtherLoop
from pydanube.client.arguments import Duration, seconds_of
from pydanube.client.errors import copy_of

Result = TypeVar("Result")


class LoopThread:
    """A thread that runs an event loop, with uvloop if it is installed."""

    def __init__(self) -> None:
        self.loop = _new_loop()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._ended = False  # it accepts no more calls
        self._thread = threading.Thread(target=self._run, name="pydanube", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_end_tasks())
        self.loop.close()

    @property
    def forked(self) -> bool:
        """Whether this process is a fork of the one that started the thread, and so does not have the thread."""
        return os.getpid() != self._process

    @property
    def here(self) -> bool:
        """Whether the caller is in this very thread, in a callback of the client."""
        return threading.current_thread() is self._thread

    def check(self) -> None:
        """Raises if a call to the loop would never run."""
        if self.forked:
            raise ClientForked("the client was opened before this process forked")
        if self._ended:
            raise ClientClosed("the client is closed")

    def check_waiting(self) -> None:
        """Raises if waiting for the loop would never end."""
        self.check()
        if self.here:
            raise OtherLoop("a callback runs in the client's own thread and cannot wait for the client there")

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function in the loop, soon."""
        self.check()
        with self._lock:
            self.check()
            self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:
        """Runs a coroutine in the loop, without waiting for it."""
        try:
            self.check()
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except DanubeError:
            work.close()
            raise

    def wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs a coroutine in the loop and waits for it. Interrupting the wait cancels the coroutine."""
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


async def _end_tasks() -> None:
    """Ends every call under way, and with it the wait of another thread."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
    await asyncio.sleep(0)  # calls that finished just before the loop stopped have still to answer their threads


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Pending(Generic[Result]):
    """The result of `send` or `ack`. Ignore it, or wait with `result()`."""

    __slots__ = ("_call", "_loop", "asked")

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._call: Future[Awaitable[Result]] = Future()
        self.asked = False

    def answer(self, call: Callable[[], Awaitable[Result]]) -> None:
        """Called in the loop: makes the call."""
        try:
            self._call.set_result(call())
        except Exception as error:
            self._call.set_exception(error)

    def fail(self, error: BaseException) -> None:
        self._call.set_exception(error)

    @property
    def error(self) -> BaseException | None:
        """Why the call itself failed; None if it succeeded or has not been made yet."""
        return self._call.exception() if self._call.done() else None

    def result(self, timeout: Duration | None = None) -> Result:
        """Waits for the result, at most `timeout` (seconds, or a timedelta). A timeout does not cancel the send or ack.

        After a timeout, raises the reason if it is known, such as a lost connection, and otherwise `TimeoutError`.
        """
        self.asked = True
        self._loop.check_waiting()
        seconds = None if timeout is None else seconds_of(timeout)
        return self._loop.wait(_within(self._call.result(seconds), seconds))


async def _within(what: Awaitable[Result], timeout: float | None) -> Result:  # noqa: ASYNC109 - given by the program
    try:
        async with asyncio.timeout(timeout):
            return await what
    except TimeoutError:
        reason = getattr(what, "reason", None)
        if reason is None:
            raise
        raise copy_of(reason) from None
