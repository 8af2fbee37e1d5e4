"""A copy of everything on the broker's disk at one moment, made piece by piece."""

from __future__ import annotations

from typing import ClassVar

from pydanube.access.rights import Action
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import BACKUP_FILES_LISTED_MAX
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.verbs.base import Verbs
from pydanube.operations.backups import Backup, BackupFile, BackupFiles, BeginBackup, EndBackup, ListBackupFiles
from pydanube.operations.operation import Done


class BackupVerbs(Verbs):
    __slots__ = ()

    def _backups(self) -> Backups:
        self._ask(Action.BACKUP)
        found = self._door.backups
        if found is None:
            raise RequestInvalid("this broker has no storage of its own to back up")
        return found

    async def begin(self, request: BeginBackup) -> Backup:
        """`objects` is where the uploaded messages are, if there are any."""
        backups, tiers = self._backups(), self._door.tiers
        number, cut = await backups.begin()
        objects = tiers.status().location if tiers.configured else None
        size = sum(file.length for file in cut.files)
        return Backup(number, len(cut.files), size, cut.revision, backups.node, objects)

    async def list_files(self, request: ListBackupFiles) -> BackupFiles:
        """The files after the one named `after`, in the order in which to copy them."""
        found = self._backups().files(request.backup, request.after, BACKUP_FILES_LISTED_MAX)
        return BackupFiles([BackupFile(file.name, file.length, file.size) for file in found])

    async def read(self, number: int, name: str, offset: int, length: int) -> bytes:
        data = await self._backups().read(number, name, offset, length)
        self._ask(Action.BACKUP)  # it may have waited for its turn
        return data

    async def end(self, request: EndBackup) -> Done:
        self._backups().end(request.backup)
        return Done()

    carries_out: ClassVar = (
        BeginBackup.carried_out_by(begin),
        ListBackupFiles.carried_out_by(list_files),
        EndBackup.carried_out_by(end),
    )
