"""The real broker in a test: in the test's own loop, or in a thread of its own for tests without one.

It writes to a real directory, a temporary one unless told otherwise, and is up in some forty milliseconds.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from threading import Thread

from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.limits import MIB
from pydanube.storage.settings import NodeSettings
from pydanube.testing.clock import VirtualClock

NODE = NodeSettings(file_bytes=4 * MIB)  # small files: a test writes little, and must not fill the disk


@asynccontextmanager
async def broker(
    data_dir: Path | None = None, *, port: int = 0, clock: VirtualClock | None = None
) -> AsyncIterator[Server]:
    """A broker while the block runs; `server.url` is what clients connect to.

    By a `VirtualClock` its delays, timeouts and times to live pass when the test says so.
    """
    with tempfile.TemporaryDirectory(prefix="danube-") as temporary:
        server = Server(StandaloneSettings(data_dir or Path(temporary), port=port, node=NODE), clock=clock)
        await server.start()
        loop = asyncio.get_running_loop()

        def time_moved() -> None:  # in whatever thread
            loop.call_soon_threadsafe(server.time_moved)

        if clock is not None:
            clock.watch(time_moved)
        try:
            yield server
        finally:
            if clock is not None:
                clock.unwatch(time_moved)
            await server.stop()


@contextmanager
def broker_thread(data_dir: Path | None = None, *, clock: VirtualClock | None = None) -> Iterator[str]:
    """The same beside the test, in a thread; gives the URL."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever, name="danube-broker", daemon=True)
    thread.start()
    running = broker(data_dir, clock=clock)
    server = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(30)
    try:
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
