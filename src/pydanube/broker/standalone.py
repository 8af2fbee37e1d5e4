"""A whole broker in one process, on one directory: the composition root of `danube standalone`.

The order of a start is §26's: lock, metadata, journal, then the door opens. A stop is the same backwards.
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
from pydanube.adapters.objects_url import ObjectsPlace, delta_options
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.counting import Histogram
from pydanube.base.errors import ConfigInvalid, DanubeError, DirectoryInUse, DiskFailed
from pydanube.base.limits import CONNECTIONS_MAX, KEEPALIVE_SECONDS
from pydanube.broker.cold.claim import Claim
from pydanube.broker.cold.tiering import Space
from pydanube.broker.directory.directory import Directory
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.door import Door
from pydanube.broker.limits.disk_room import Room, check_new, reserve_of
from pydanube.ports.clock import Clock
from pydanube.ports.segments import Segments
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.local import open_local
from pydanube.storage.metadata.file import LocalMetadata
from pydanube.storage.node.bad_blocks import NODE_FILE
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.stream.tiering import TierSettings

log = logging.getLogger(__name__)
FORGETFUL = ("memory",)  # places that are empty after a restart: nothing is kept there alone
Claiming = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ObjectsSettings:
    """Where sealed messages go, and when."""

    place: ObjectsPlace
    tier: TierSettings = field(default_factory=TierSettings)


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6650
    auto_create: bool = True
    node: NodeSettings = field(default_factory=NodeSettings)
    reserve_bytes: int | None = None  # of the disk, not for messages; else by the size of a journal file
    objects: ObjectsSettings | None = None
    cache_bytes: int | None = None
    advertise: HostPort | None = None  # what clients are told; else what is bound
    certificate: tuple[Path, Path] | None = None  # a chain and its key, in PEM: TLS
    connections_max: int = CONNECTIONS_MAX
    keepalive_seconds: int = KEEPALIVE_SECONDS
    admin_listen: HostPort | None = None  # where the gRPC services that manage a broker are served again
    admin_required: bool = True  # else a port that is taken is only logged
    disk: Callable[[Path], PosixDisk] = PosixDisk  # a test's fails when told to
    segments: Callable[[ObjectsPlace], Segments] | None = None  # a test's, in this process
    authorise: Authorise = authorise  # a test's refuses, or remembers what it was asked


class Broker:
    """Everything below the faces, opened and closed in order."""

    def __init__(self, settings: StandaloneSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.door: Door
        self._disks: list[PosixDisk] = []
        self._metadata: LocalMetadata
        self._node: DiskNode
        self._room: Room
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
                process = re.search(r"process \d+", str(error))  # as it signed the lock, if it could
                who = "" if process is None else f" ({process[0]})"
                raise DirectoryInUse(f"another broker{who} is using {settings.data_dir}") from None
            raise
        reserve = reserve_of(settings.node.file_bytes, settings.reserve_bytes)
        room = self._room = Room(reserve, self._node.room, self._node.make_room, lambda: self._node.ledgers)
        await room.start()
        cache = TailCache() if settings.cache_bytes is None else TailCache(settings.cache_bytes)
        watch = CheckedClock(clock)
        watch.begin(storage.catalog.newest_time())
        self._backups = Backups(self._metadata, self._node, room, settings.node.copy_bytes_per_second)
        self.door = Door(
            directory, storage.catalog, storage.nodes, watch, randomness, cache=cache, backups=self._backups,
            auto_create=settings.auto_create, room=room, tier=tier, space=self._space, claim=claim,
            authorise=settings.authorise,
        )  # fmt: skip
        self.door.presence.guards.append(self._node.guard)

    def _check_room_if_new(self) -> None:
        """Before anything is made: a broker that could take no message is not started."""
        settings, place = self.settings, self.settings.data_dir.absolute()
        if any((place / name / NODE_FILE).exists() for name in ("metadata", "node")):
            return
        there = next(each for each in (place, *place.parents) if each.exists())
        check_new(shutil.disk_usage(there).free, str(place), settings.node.file_bytes, settings.reserve_bytes)

    async def _open_tier(
        self, used: bool, directory: Directory, randomness: SystemRandomness
    ) -> tuple[ColdTier | None, Claiming | None]:
        """Object storage, if there is any, and how its place becomes ours. Nothing is asked of it yet."""
        objects = self.settings.objects
        if objects is None:
            if used:
                raise ConfigInvalid("some messages are in object storage, but storage.objects.url is not set")
            return None, None
        segments = (self.settings.segments or _in_processes)(objects.place)
        place, tables = objects.place, _tables(objects.place)
        tier = ColdTier(
            segments, ColdReader(segments), objects.tier, place.shown, *tables, client_access=place.client_access
        )
        if objects.place.scheme in FORGETFUL:
            return replace(tier, settings=replace(objects.tier, evicts=False), client_access=None), None
        claim = Claim(segments, directory.notes, randomness, objects.place.shown, used=used)
        return tier, claim.take

    async def _space(self) -> Space:
        """Of the disk with the journal. What is to be reused there is as good as free."""
        try:
            found = await self.door.offload.run(shutil.disk_usage, self.settings.data_dir)
        except OSError as error:
            raise DiskFailed(f"could not measure the disk of {self.settings.data_dir}: {error}") from None
        kept = self._room.reserve_bytes + self._room.reserve_bytes // 8 + self.settings.node.file_bytes
        usable = found.used + found.free  # without what the system reserves for others
        return Space(await self._node.room(), usable, kept)

    async def free_bytes(self) -> int:
        """Where messages are stored."""
        return await self._disks[-1].free_bytes()

    @property
    def commits(self) -> Histogram:
        """Seconds that groups of the journal took."""
        return self._node.commits

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


def _tables(place: ObjectsPlace) -> tuple[str | None, str]:
    """The URI that tables begin with, or why there can be none."""
    found = delta_options(place) if "root" in place.options else None
    if found is None:
        return None, "Delta readers support only files, S3, Google and Azure"
    if find_spec("deltalake") is None:
        return None, "deltalake is not installed; run pip install 'pydanube[delta]'"
    return found[0], ""


def _in_processes(place: ObjectsPlace) -> Segments:
    try:
        from pydanube.tier.process import SegmentProcesses
    except ImportError as error:
        raise ConfigInvalid(f"storage.objects needs {error.name}: pip install 'pydanube[objects]'") from None
    return SegmentProcesses(place.scheme, place.options, place.shown)
