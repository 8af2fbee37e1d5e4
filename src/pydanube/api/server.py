"""Runs a broker with its faces as a process: addresses, the ready file, signals, a clean stop."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydanube import __version__
from pydanube.api.http.probe import Answer
from pydanube.api.listener import Listener
from pydanube.broker.standalone import Broker, StandaloneSettings
from pydanube.ports.clock import Clock

__all__ = ["Server", "StandaloneSettings", "serve", "write_ready_file"]
log = logging.getLogger(__name__)
STOP_SECONDS = 4.0  # a clean stop takes no longer; what is not durable by then was never promised


@dataclass
class Server:
    """A broker and its listener. `start`, then `stop`."""

    settings: StandaloneSettings
    address: tuple[str, int] = ("", 0)
    clock: Clock | None = None  # the machine's, unless a test has its own

    async def start(self) -> tuple[str, int]:
        self._broker = Broker(self.settings, self.clock)
        await self._broker.open()
        routes: dict[str, Callable[[], Answer]] = {
            "/healthz": lambda: (200, "ok\n"),
            "/readyz": lambda: (200, "ready\n"),
            "/metrics": self._metrics,
        }
        self._listener = Listener(self._broker.service, routes, f"danube {__version__}")
        try:
            self.address = await self._listener.start(self.settings.host, self.settings.port)
        except BaseException:
            await self._broker.close()
            raise
        return self.address

    @property
    def url(self) -> str:
        host, port = self.address
        return f"danube://{f'[{host}]' if ':' in host else host}:{port}"

    def time_moved(self) -> None:
        """The clock was moved by hand: what is due now need not wait for its timer."""
        self._broker.service.time_moved()

    def _metrics(self) -> Answer:
        lines = [f"danube_connections {len(self._listener.connections)}", *self._broker.service.metrics()]
        return 200, "\n".join(lines) + "\n"

    async def stop(self) -> None:
        """No new work, what was taken becomes durable, everything is closed."""
        await self._listener.stop()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._broker.close()
        except TimeoutError:
            log.error("the broker did not stop cleanly within %.0f s; the next start recovers", STOP_SECONDS)


def write_ready_file(path: Path, address: tuple[str, int]) -> None:
    """Atomically, once it serves."""
    host, port = address
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps({"listen": f"{host}:{port}", "pid": os.getpid()}) + "\n")
    temporary.replace(path)


async def serve(settings: StandaloneSettings, ready_file: Path | None) -> None:
    """Until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = Server(settings)
    host, port = await server.start()
    if ready_file is not None:
        write_ready_file(ready_file, (host, port))
    log.info("danube %s serves on %s, data in %s", __version__, server.url, settings.data_dir)
    await stopped.wait()
    log.info("danube stops")
    await server.stop()
