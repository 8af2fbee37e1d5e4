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
from pydanube.adapters.objects_url import parse_objects_url
from pydanube.adapters.replacing import replacing
from pydanube.api.grpc.face import GrpcFace, LoadedLater
from pydanube.api.http.cached_page import CachedPage
from pydanube.api.http.face import HttpFace
from pydanube.api.http.operations import make_router
from pydanube.api.listening.face import Face
from pydanube.api.listening.listener import Listener
from pydanube.api.listening.tls import Certificate
from pydanube.api.listening.turns import Turns
from pydanube.api.native.face import NativeFace
from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid
from pydanube.base.limits import FILES_RESERVED, NODE_LEDGERS_MAX, NODE_LEDGERS_RESERVED
from pydanube.base.redaction import redacted_options
from pydanube.broker.config import ADMIN_LOOPBACK, Config, Limits, Loaded, Objects, load, settings
from pydanube.broker.door.metrics import LoopWatch, Page
from pydanube.broker.standalone import Broker, ObjectsSettings, StandaloneSettings
from pydanube.ports.clock import Clock
from pydanube.storage.node.settings import NodeSettings
from pydanube.stream.tiering import TierSettings
from pydanube.wire.objects import Object

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
CONNECTIONS_FEW = 5_000  # if the system allows fewer, a warning is logged
STOP_SECONDS = 8  # after the signal; supervisors kill after ten. What is not durable by then was never promised
UNCLEAN = 1  # exit status


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
        self._watch = LoopWatch(asyncio.get_running_loop())
        door, turns = self._broker.door, Turns()
        self._native = NativeFace(
            door, turns, f"danube {__version__}", chosen.keepalive_seconds, lambda: self._advertised
        )
        metrics = CachedPage(self._exported)
        self._http = HttpFace(
            make_router(), door, self._broker.clock, self._describe, self._in_force, metrics, turns, self._hosts()
        )
        self._grpc = LoadedLater(door, turns, self._grpc_urls)
        self._listener = self._make_listener(turns, self._native, GrpcFace(self._grpc), self._http)
        self._admin = self._make_listener(turns, GrpcFace(self._grpc, admin_only=True), self._http)
        try:
            self.address = await self._start_listener(HostPort(chosen.host, chosen.port))
            await self._start_admin()
        except BaseException:
            self._watch.stop()
            await self._broker.close()
            raise
        door.reopen()
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
                await self._listener.stop()
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

    def reload(self) -> None:
        """Reads the certificate again if it has changed; any other change needs a restart."""
        if self._certificate is not None:
            self._certificate.refresh()

    def time_moved(self) -> None:
        """Called when a test has moved the clock: does everything that has become due."""
        self._broker.door.time_moved()

    def _describe(self) -> Object:
        return {"version": __version__, "url": self.url, "address": self._advertised}

    def _in_force(self) -> Object:
        """The settings in force, by name. None of them is a secret: a key is given by its path."""
        chosen, door = self.settings, self._broker.door
        certificate, key = map(str, chosen.certificate) if chosen.certificate is not None else (None, None)
        return {
            "data_dir": str(chosen.data_dir),
            "listen": str(HostPort(*self.address)),
            "admin_listen": None if self.admin_address is None else str(HostPort(*self.admin_address)),
            "advertise": None if chosen.advertise is None else str(chosen.advertise),
            "auto_create": chosen.auto_create,
            "keepalive_seconds": chosen.keepalive_seconds,
            "tls": {"certificate": certificate, "key": key},
            "limits": {"cache_bytes": door.cache.bytes_max, "connections_max": chosen.connections_max},
            "journal": {
                "file_bytes": chosen.node.file_bytes,
                "reserve_bytes": door.room.reserve_bytes,
                "buffered_sync_seconds": chosen.node.buffered_sync_seconds,
                "copy_bytes_per_second": chosen.node.copy_bytes_per_second,
            },
            "storage": {"objects": self._objects_in_force()},
            **self._as_loaded(),
        }

    def _objects_in_force(self) -> Object:
        """Object storage without secrets: only configured options, because those of the environment may be secret."""
        objects = self.settings.objects
        tier = TierSettings() if objects is None else objects.tier
        return {
            "url": None if objects is None else objects.place.shown,
            "options": {} if self.loaded is None else redacted_options(self.loaded.config.storage.objects.options),
            "segment_bytes": tier.segment_bytes,
            "lag_seconds": tier.lag_seconds,
            "local_seconds": tier.local_seconds,
            "local_bytes": tier.local_bytes,
            "free_percent": round(100 * tier.free_part),
            "lease_seconds": tier.lease_seconds,
        }

    def _as_loaded(self) -> Object:
        """The settings of the process itself, and where each setting comes from."""
        if self.loaded is None:
            return {"origins": {}}
        config, origins = self.loaded
        return {
            "ready_file": None if config.ready_file is None else str(config.ready_file),
            "allow_unprotected_network": config.allow_unprotected_network,
            "log_level": config.log_level,
            "origins": {key: {"source": each.source, "name": each.name or None} for key, each in origins.items()},
        }

    async def _exported(self) -> str:
        page, door = Page(), self._broker.door
        await door.metrics.collect(page)
        page.add("danube_connections", len(self._listener.connections))
        page.add("danube_connections_refused_total", self._listener.refused)
        page.add("danube_http_leases", len(door.leasing))
        page.add("danube_http_requests_waiting", self._http.waiting)
        room = door.room
        page.add("danube_disk_free_bytes", await self._broker.free_bytes())
        page.add("danube_disk_reserve_bytes", room.reserve_bytes)
        page.add("danube_publishing_refused", int(room.short))
        page.add("danube_ledgers", room.ledgers())
        page.add("danube_ledgers_max", NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED)
        page.add("danube_loop_turn_seconds_max", self._watch.longest_seconds)
        page.add("danube_build_info", 1, __version__)
        page.add_histogram("danube_group_commit_seconds", self._broker.commits)
        return await page.text()

    async def stop(self) -> None:
        """Accepts no new work, makes everything accepted durable, and closes everything."""
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
    server = Server(_standalone(config, raise_file_limit()), loaded=loaded)
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _begin_to_stop, stopped)
    address = await server.start()
    server.load()
    collect_seldom()
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

    Full collections are therefore as rare as possible. New objects are examined in small portions, because the loop
    stands still meanwhile: two thousand objects take a fraction of a millisecond.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 4, 6_000)


def raise_file_limit() -> int:
    """Raises the limit on open files as far as the system allows, because every connection is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def _standalone(config: Config, files: int) -> StandaloneSettings:
    connections_max = config.limits.connections_max
    room = max(1, files - FILES_RESERVED)
    if room < connections_max and files != resource.RLIM_INFINITY:
        asked = connections_max != Limits().connections_max
        level = logging.WARNING if asked or room < CONNECTIONS_FEW else logging.DEBUG
        log.log(
            level, "limiting connections to %d, because the system allows this process only %d open files", room, files
        )
        connections_max = room
    tls = config.tls
    return StandaloneSettings(
        config.data_dir,
        *config.listen,
        auto_create=config.auto_create,
        node=NodeSettings(
            file_bytes=config.journal.file_bytes,
            buffered_sync_seconds=config.journal.buffered_sync_seconds,
            copy_bytes_per_second=config.journal.copy_bytes_per_second,
        ),
        reserve_bytes=config.journal.reserve_bytes,
        objects=_objects(config.storage.objects),
        cache_bytes=config.limits.cache_bytes,
        advertise=config.advertise,
        certificate=(tls.certificate, tls.key) if tls.certificate and tls.key else None,
        connections_max=connections_max,
        keepalive_seconds=config.keepalive_seconds,
        admin_listen=config.admin_listen,
        admin_required=config.admin_listen is not ADMIN_LOOPBACK,
    )


def _objects(chosen: Objects) -> ObjectsSettings | None:
    if chosen.url is None:
        return None
    return ObjectsSettings(parse_objects_url(chosen.url, chosen.options, os.environ), chosen.tier)
