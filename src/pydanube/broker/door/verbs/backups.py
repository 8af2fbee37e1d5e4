"""A copy of everything on the broker's disk at one moment, made piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.access.rights import Action
from pydanube.base.errors import RequestInvalid
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.verbs.base import Verbs
from pydanube.storage.snapshot import SnapshotFile


class Begun(NamedTuple):
    """A backup that is ready to be copied."""

    number: int
    files: int
    bytes: int
    revision: int  # of the metadata
    node: str
    objects: str | None  # where the uploaded messages are, if there are any


class BackupVerbs(Verbs):
    __slots__ = ()

    def _backups(self) -> Backups:
        self._ask(Action.BACKUP)
        found = self._door.backups
        if found is None:
            raise RequestInvalid("this broker has no storage of its own to back up")
        return found

    async def begin(self) -> Begun:
        backups, tiers = self._backups(), self._door.tiers
        number, cut = await backups.begin()
        objects = tiers.status().location if tiers.configured else None
        size = sum(file.length for file in cut.files)
        return Begun(number, len(cut.files), size, cut.revision, backups.node, objects)

    def files(self, number: int, after: str, limit: int) -> Sequence[SnapshotFile]:
        """The files after the one named `after`, in the order in which to copy them."""
        return self._backups().files(number, after, limit)

    async def read(self, number: int, name: str, offset: int, length: int) -> bytes:
        return await self._backups().read(number, name, offset, length)

    def end(self, number: int) -> None:
        self._backups().end(number)
