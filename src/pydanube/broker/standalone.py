"""A whole broker in one process, on one directory: the composition root of `danube standalone`.

§26 gives the order of a start: lock, metadata, journal, then the door opens. A stop has the opposite order.
"""

from __future__ import annotations

import asyncio
import logging
import re
import shutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path

from pydanube.access.rights import Authorise, authorise
from pydanube.adapters.objects_url import ObjectsLocation, delta_options
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.errors import ConfigInvalid, DanubeError, DirectoryInUse, DiskFailed
from pydanube.base.limits import CONNECTIONS_MAX, KEEPALIVE_SECONDS
from pydanube.broker.cold.claim import Claim
from pydanube.broker.cold.tiering import Space
from pydanube.broker.directory.directory import Directory
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.door import Door
from pydanube.broker.door.metrics import Page, Source
from pydanube.broker.door.process import Process
from pydanube.broker.limits.disk_room import DiskRoom, check_new, reserve_of
from pydanube.broker.routing.router import Router
from pydanube.ports.clock import Clock
from pydanube.ports.segments import Segments
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.local import open_local
from pydanube.storage.metadata.raft import RaftMetadata
from pydanube.storage.node.bad_blocks import NODE_FILE
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.stream.tiering import TierSettings

log = logging.getLogger(__name__)
FORGETFUL = ("memory",)  # locations that are empty after a restart: local copies stay as well
Claiming = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ObjectsSettings:
    """Where sealed messages go, and when."""

    location: ObjectsLocation
    tier: TierSettings = field(default_factory=TierSettings)


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6650
    auto_create: bool = True
    node: NodeSettings = field(default_factory=NodeSettings)
    reserve_bytes: int | None = None  # kept free of messages; by default, it depends on the size of a journal file
    objects: ObjectsSettings | None = None
    cache_bytes: int | None = None
    advertise: HostPort | None = None  # the address given to clients; by default, the bound one
    certificate: tuple[Path, Path] | None = None  # a chain and its key, in PEM: TLS
    connections_max: int = CONNECTIONS_MAX
    keepalive_seconds: int = KEEPALIVE_SECONDS
    admin_listen: HostPort | None = None  # a second address for the gRPC services that manage a broker
    admin_required: bool = True  # if false, a port that is in use is only logged
    disk: Callable[[Path], PosixDisk] = PosixDisk  # tests pass a disk that can fail
    segments: Callable[[ObjectsLocation], Segments] | None = None  # tests pass one that works in this process
    authorise: Authorise = authorise  # tests pass one that refuses or records


class Broker:
    """Everything below the faces, opened and closed in order."""

    def __init__(self, settings: StandaloneSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.door: Door
        self._disks: list[PosixDisk] = []
        self._metadata: RaftMetadata
        self._node: DiskNode
        self._room: DiskRoom
        self._backups: Backups

    async def open(self) -> None:
        settings = self.settings
        clock, randomness = self.clock, SystemRandomness()
        self._check_room_if_new()
        try:
            storage = await open_local(self._disk("metadata"), self._disk("node"), settings.node, randomness)
            self._metadata, self._node = storage.metadata, storage.node
            directory = Directory(self._metadata)
            await directory.prepare()
            tier, claim = await self._open_tier(storage.catalog.uses_objects(), directory, randomness)
        except BaseException as error:
            for disk in self._disks:
                disk.close()
            if isinstance(error, DirectoryInUse):
                process = re.search(r"process \d+", str(error))  # its holder wrote this into the lock file, if it could
                who = "" if process is None else f" ({process[0]})"
                raise DirectoryInUse(f"another broker{who} is using {settings.data_dir}") from None
            raise
        reserve = reserve_of(settings.node.file_bytes, settings.reserve_bytes)
        room = self._room = DiskRoom(reserve, self._node.room, self._node.make_room, lambda: self._node.ledgers)
        await room.start()
        cache = TailCache() if settings.cache_bytes is None else TailCache(settings.cache_bytes)
        watch = CheckedClock(clock)
        watch.begin(storage.catalog.newest_time())
        self._backups = Backups(self._metadata, self._node, room, settings.node.copy_bytes_per_second)
        router = Router.of(self._metadata.identity, self._metadata, storage.catalog, randomness)
        await router.begin()
        self.door = Door(
            directory, storage.catalog, storage.nodes, watch, randomness, router=router, cache=cache,
            backups=self._backups, auto_create=settings.auto_create, room=room, tier=tier, space=self._space,
            claim=claim, authorise=settings.authorise,
        )  # fmt: skip
        self.door.presence.guards.append(self._node.guard)

    def _check_room_if_new(self) -> None:
        """Called before anything is created: a broker without room for messages does not start."""
        settings, directory = self.settings, self.settings.data_dir.absolute()
        if any((directory / name / NODE_FILE).exists() for name in ("metadata", "node")):
            return
        there = next(each for each in (directory, *directory.parents) if each.exists())
        check_new(shutil.disk_usage(there).free, str(directory), settings.node.file_bytes, settings.reserve_bytes)

    async def _open_tier(
        self, used: bool, directory: Directory, randomness: SystemRandomness
    ) -> tuple[ColdTier | None, Claiming | None]:
        """Object storage, if it is configured, and the function that claims its location. Contacts nothing yet."""
        objects = self.settings.objects
        if objects is None:
            if used:
                raise ConfigInvalid("some messages are in object storage, but storage.objects.url is not set")
            return None, None
        segments = (self.settings.segments or _in_processes)(objects.location)
        location, tables = objects.location, _tables(objects.location)
        tier = ColdTier(
            segments, ColdReader(segments), objects.tier, location.shown, *tables, client_access=location.client_access
        )
        if location.scheme in FORGETFUL:
            return replace(tier, settings=replace(objects.tier, evicts=False), client_access=None), None
        claim = Claim(segments, directory.store, randomness, location.shown, used=used)
        return tier, claim.take

    async def _space(self) -> Space:
        """Measures the disk with the journal. Files that will be reused count as free."""
        try:
            found = await self.door.offload.run(shutil.disk_usage, self.settings.data_dir)
        except OSError as error:
            raise DiskFailed(f"could not measure the disk of {self.settings.data_dir}: {error}") from None
        reserved = self._room.reserve_bytes + self._room.reserve_bytes // 8 + self.settings.node.file_bytes
        usable = found.used + found.free  # excludes what the system reserves for other users
        return Space(await self._node.room(), usable, reserved)

    def serve(self, process: Process, export: Source) -> None:
        """Called when the faces listen: `export` adds their metrics. Topics are opened again in the background."""
        self.door.process = process
        self.door.metrics.sources += [self._export, export]
        self.door.reopen()

    def time_moved(self) -> None:
        """Called when a test has moved the clock: does everything that has become due."""
        self.door.time_moved()

    async def _export(self, page: Page) -> None:
        page.add("danube_disk_free_bytes", await self._disks[-1].free_bytes())  # where messages are stored
        page.add_histogram("danube_group_commit_seconds", self._node.commits)

    def _disk(self, name: str) -> PosixDisk:
        disk = self.settings.disk(self.settings.data_dir / name)
        self._disks.append(disk)
        return disk

    async def close(self) -> None:
        self._backups.close()
        for part in (self.door, self._room, self._node, self._metadata):
            try:
                await part.close()
            except DanubeError as error:
                log.error("could not stop cleanly: %s", error)
        await asyncio.sleep(0)
        for disk in self._disks:
            disk.close()


def _tables(location: ObjectsLocation) -> tuple[str | None, str]:
    """The URI that tables begin with, or why there can be none."""
    found = delta_options(location) if "root" in location.options else None
    if found is None:
        return None, "Delta readers support only files, S3, Google and Azure"
    if find_spec("deltalake") is None:
        return None, "deltalake is not installed; run pip install 'pydanube[delta]'"
    return found[0], ""


def _in_processes(location: ObjectsLocation) -> Segments:
    try:
        from pydanube.tier.process import SegmentProcesses
    except ImportError as error:
        raise ConfigInvalid(f"storage.objects needs {error.name}: pip install 'pydanube[objects]'") from None
    return SegmentProcesses(location.scheme, location.options, location.shown)
