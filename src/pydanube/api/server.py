"""Runs a broker with its faces as a process: addresses, the ready file, signals, a clean stop."""

from __future__ import annotations

import asyncio
import errno
import gc
import json
import logging
import os
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

from pydanube import __version__
from pydanube.adapters.replacing import replacing
from pydanube.api.grpc.face import GrpcFace, LoadedLater
from pydanube.api.http.face import HttpFace
from pydanube.api.http.operations import make_router
from pydanube.api.listening.face import Face
from pydanube.api.listening.listener import Listener
from pydanube.api.listening.loop_watch import LoopWatch
from pydanube.api.listening.tls import Certificate
from pydanube.api.listening.turns import Turns
from pydanube.api.native.face import NativeFace
from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.broker.config import Config, Loaded, load, settings
from pydanube.broker.configured import settings_in_force, standalone_settings
from pydanube.broker.door.metrics import Page
from pydanube.broker.door.process import Process
from pydanube.broker.standalone import Broker, StandaloneSettings
from pydanube.operations.broker import BrokerAddress
from pydanube.ports.clock import Clock

__all__ = [
    "Config",
    "Loaded",
    "Server",
    "StandaloneSettings",
    "load",
    "serve",
    "settings",
    "write_ready_file",
]
log = logging.getLogger(__name__)
STOP_SECONDS = 8  # after the signal; supervisors kill after ten. What is not durable by then was never promised
UNCLEAN = 1  # exit status
FULL_COLLECTION_ROUNDS = 10_000_000  # of those for new objects, of which there are up to fifty in a second


@dataclass
class Server:
    """A broker and its listener. `start`, then `stop`."""

    settings: StandaloneSettings
    address: tuple[str, int] = ("", 0)
    clock: Clock | None = None  # the system clock, unless a test passes its own
    admin_address: tuple[str, int] | None = None
    loaded: Loaded | None = None  # the loaded configuration; optional for programs that start a broker themselves

    async def start(self) -> tuple[str, int]:
        chosen = self.settings
        self._certificate = None if chosen.certificate is None else Certificate(*chosen.certificate)
        self._broker = Broker(chosen, self.clock)
        await self._broker.open()
        door, turns = self._broker.door, Turns()
        self._lengths, self._now = turns.lengths, turns.now
        self._watch: LoopWatch | None = None
        self._native = NativeFace(
            door, turns, f"danube {__version__}", chosen.keepalive_seconds, lambda: self._advertised
        )
        self._http = HttpFace(make_router(), door, self._broker.clock, turns, self._hosts())
        self._grpc = LoadedLater(door, turns, self._grpc_urls)
        self._listener = self._make_listener(turns, self._native, GrpcFace(self._grpc), self._http)
        self._admin = self._make_listener(turns, GrpcFace(self._grpc, admin_only=True), self._http)
        try:
            self.address = await self._start_listener(HostPort(chosen.host, chosen.port))
            await self._start_admin()
            self._broker.serve(self._describe(), self._export)
        except BaseException:
            await self.stop()
            raise
        return self.address

    def _hosts(self) -> frozenset[str] | None:
        """The host names that HTTP requests may use; None for any. With TLS, the certificate already shows the name."""
        chosen = self.settings
        if chosen.certificate is not None:
            return None
        known = (HostPort(chosen.host, chosen.port), chosen.advertise, chosen.admin_listen)
        return frozenset(each.host.lower() for each in known if each is not None)

    def _make_listener(self, turns: Turns, *faces: Face) -> Listener:
        return Listener(
            self._broker.door,
            faces,
            turns,
            certificate=self._certificate,
            connections_max=self.settings.connections_max,
            keepalive_seconds=self.settings.keepalive_seconds,
        )

    async def _start_listener(self, listen: HostPort) -> tuple[str, int]:
        try:
            return await self._listener.start(listen)
        except OSError as error:
            raise _not_bound("listen", listen, error) from None

    async def _start_admin(self) -> None:
        chosen = self.settings.admin_listen
        if chosen is None:
            return
        try:
            self.admin_address = await self._admin.start(chosen)
        except OSError as error:
            if self.settings.admin_required:
                raise _not_bound("admin_listen", chosen, error) from None
            log.warning("the admin services are not available: %s", _not_bound("admin_listen", chosen, error))

    def _grpc_urls(self) -> tuple[str, str]:
        """The URL for clients, and the URL for management."""
        scheme = "https" if self.settings.certificate else "http"
        here = self._advertised
        admin = here if self.admin_address is None else str(HostPort(*self.admin_address))
        return f"{scheme}://{here}", f"{scheme}://{admin}"

    @property
    def _advertised(self) -> str:
        """Where clients should reach the broker."""
        return str(self.settings.advertise or HostPort(*self.address))

    @property
    def url(self) -> str:
        return f"danube{'s' if self.settings.certificate else ''}://{HostPort(*self.address)}"

    def load(self) -> None:
        """Imports what the first connection would otherwise import while others wait."""
        self._grpc.services  # noqa: B018 - loads them

    def watch(self) -> None:
        """Begins to measure all that the loop does; before, loading and collecting hold it up for long."""
        self._watch = LoopWatch(asyncio.get_running_loop(), self._lengths, self._now)

    def reload(self) -> None:
        """Reads the certificate again if it has changed, and the keys of tokens; any other change needs a restart."""
        self._broker.reload()
        if self._certificate is not None:
            self._certificate.refresh()

    def time_moved(self) -> None:
        """Called when a test has moved the clock: does everything that has become due."""
        self._broker.time_moved()

    def _describe(self) -> Process:
        listen, admin = HostPort(*self.address), None if self.admin_address is None else HostPort(*self.admin_address)
        address = BrokerAddress(version=__version__, url=self.url, address=self._advertised)
        return Process(address, settings_in_force(self._broker, listen, admin, self.loaded))

    async def _export(self, page: Page) -> None:
        page.add("danube_connections", len(self._listener.connections))
        page.add("danube_connections_refused_total", self._listener.refused)
        page.add("danube_http_requests_waiting", self._http.waiting)
        page.add_histogram("danube_loop_turn_seconds", self._lengths.served)
        page.add("danube_loop_turn_seconds_max", self._lengths.longest.seconds)
        page.add("danube_loop_turn_processor_seconds_max", self._lengths.dearest.seconds)
        page.add("danube_collector_pause_seconds_max", self._lengths.longest_pause.seconds)
        page.add("danube_build_info", 1, __version__)

    async def stop(self) -> None:
        """Accepts no new work, makes everything accepted durable, and closes everything."""
        if self._watch is not None:
            self._watch.stop()
        await asyncio.gather(self._listener.stop(), self._admin.stop())
        await self._broker.close()


def _not_bound(setting: str, address: HostPort, error: OSError) -> ConfigInvalid:
    flag = settings()[setting].flag
    if error.errno == errno.EADDRINUSE:
        return ConfigInvalid(f"{address} is already in use by another program; choose another {flag}")
    known = error.errno is not None and error.errno > 0  # otherwise it comes from the resolver
    why = os.strerror(error.errno or 0) if known else error.strerror
    return ConfigInvalid(f"{flag} is {address}, which could not be bound: {why}")


def write_ready_file(path: Path, address: tuple[str, int], admin_address: tuple[str, int] | None = None) -> None:
    """Writes the file atomically; called once the broker serves."""
    admin = None if admin_address is None else str(HostPort(*admin_address))
    ready = {"listen": str(HostPort(*address)), "admin_listen": admin, "pid": os.getpid()}
    with replacing(path) as file:
        file.write(json.dumps(ready).encode() + b"\n")


async def serve(loaded: Loaded) -> None:
    """Runs a broker until SIGTERM or SIGINT. SIGHUP reloads."""
    config = loaded.config
    server = Server(standalone_settings(config, raise_file_limit()), loaded=loaded)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _begin_to_stop, stopped)
    address = await server.start()
    server.load()
    collect_seldom()
    server.watch()
    loop.add_signal_handler(signal.SIGHUP, server.reload)
    if config.ready_file is not None:
        write_ready_file(config.ready_file, address, server.admin_address)
    log.info("danube %s is listening on %s, data in %s", __version__, server.url, config.data_dir)
    await stopped.wait()
    log.info("danube is stopping")
    await server.stop()
    signal.alarm(0)


def _begin_to_stop(stopped: asyncio.Event) -> None:
    """Starts the time limit of a stop. An alarm interrupts even a loop that is too busy for its timers."""
    if not stopped.is_set():
        stopped.set()
        signal.signal(signal.SIGALRM, _give_up)
        signal.alarm(STOP_SECONDS)


def _give_up(*_: object) -> None:
    log.error("danube did not stop within %d s of the signal and exits now; the next start recovers", STOP_SECONDS)
    logging.shutdown()
    os._exit(UNCLEAN)


def collect_seldom() -> None:
    """Makes garbage collection rare. Few objects here are in cycles, and searching all objects of ten thousand topics
    takes long.

    Full collections are therefore as rare as possible: only `LoopWatch` begins them. New objects are examined in small
    portions, because the loop stands still meanwhile: two thousand objects take a fraction of a millisecond. The
    interpreter counts new objects less those that are gone, and so may begin with a hundred thousand of them, when a
    cache of small batches drops an old one for each new one. `LoopWatch` has new objects examined before they are that
    many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 4, FULL_COLLECTION_ROUNDS)


def raise_file_limit() -> int:
    """Raises the limit on open files as far as the system allows, because every connection is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
