"""A whole broker in one process, on one directory: the composition root of `danube standalone`.

The order of a start is §26's: lock, metadata, journal, then the door opens. A stop is the same backwards.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.addresses import HostPort
from pydanube.base.counting import Histogram
from pydanube.base.errors import DanubeError, DirectoryInUse
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import CONNECTIONS_MAX, KEEPALIVE_SECONDS
from pydanube.broker.directory import Directory
from pydanube.broker.room import Room, reserve_of
from pydanube.broker.service import Service
from pydanube.ports.clock import Clock
from pydanube.ports.storage import StorageNode
from pydanube.storage.catalog import MetadataCatalog
from pydanube.storage.metadata_file import LocalMetadata
from pydanube.storage.node import DiskNode
from pydanube.storage.settings import NodeSettings
from pydanube.storage.tail import TailCache

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StandaloneSettings:
    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 6650
    auto_create: bool = True
    node: NodeSettings = field(default_factory=NodeSettings)
    reserve_bytes: int | None = None  # of the disk, not for messages; else by the size of a journal file
    cache_bytes: int | None = None
    advertise: HostPort | None = None  # what clients are told; else what is bound
    certificate: tuple[Path, Path] | None = None  # a chain and its key, in PEM: TLS
    connections_max: int = CONNECTIONS_MAX
    keepalive_seconds: int = KEEPALIVE_SECONDS
    admin_listen: HostPort | None = None  # where the gRPC services that manage a broker are served again
    admin_required: bool = True  # else a port that is taken is only logged
    disk: Callable[[Path], PosixDisk] = PosixDisk  # a test's fails when told to


class LocalNodes:
    """The one storage node there is."""

    def __init__(self, node: DiskNode) -> None:
        self._node = node

    def get(self, identity: NodeIdentity) -> StorageNode:
        return self._node

    def choose(self, count: int) -> list[NodeIdentity]:
        return [self._node.identity]


class Broker:
    """Everything below the faces, opened and closed in order."""

    def __init__(self, settings: StandaloneSettings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.service: Service
        self._disks: list[PosixDisk] = []
        self._metadata: LocalMetadata
        self._node: DiskNode
        self._room: Room

    async def open(self) -> None:
        settings = self.settings
        clock, randomness = self.clock, SystemRandomness()
        try:
            self._metadata = await LocalMetadata.open(self._disk("metadata"), randomness)
            self._node = await DiskNode.open([self._disk("node")], settings.node, randomness)
            catalog = MetadataCatalog(self._metadata)
            await self._node.meet_catalog(catalog.known(), catalog.next_ledger)
            directory = Directory(self._metadata)
            await directory.prepare()
        except BaseException as error:
            for disk in self._disks:
                disk.close()
            if isinstance(error, DirectoryInUse):
                process = re.search(r"process \d+", str(error))  # as it signed the lock, if it could
                who = "" if process is None else f" ({process[0]})"
                raise DirectoryInUse(f"another broker{who} uses {settings.data_dir}") from None
            raise
        reserve = reserve_of(settings.node.file_bytes) if settings.reserve_bytes is None else settings.reserve_bytes
        room = self._room = Room(reserve, self._node.room, self._node.make_room)
        await room.start()
        cache = TailCache() if settings.cache_bytes is None else TailCache(settings.cache_bytes)
        self.service = Service(
            directory, catalog, LocalNodes(self._node), clock, randomness, cache=cache,
            auto_create=settings.auto_create, room=room,
        )  # fmt: skip

    async def free_bytes(self) -> int:
        """Where messages are stored."""
        return await self._disks[-1].free_bytes()

    @property
    def commits(self) -> Histogram:
        """Seconds that groups of the journal took."""
        return self._node.commits

    def _disk(self, name: str) -> PosixDisk:
        path = self.settings.data_dir / name
        os.makedirs(path, exist_ok=True)
        disk = self.settings.disk(path)
        self._disks.append(disk)
        return disk

    async def close(self) -> None:
        for part in (self.service, self._room, self._node, self._metadata):
            try:
                await part.close()
            except DanubeError as error:
                log.error("a clean stop was not possible: %s", error)
        await asyncio.sleep(0)
        for disk in self._disks:
            disk.close()
