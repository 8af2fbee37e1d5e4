"""Operations of a client that copies a backup."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pydanube.operations.fields import Offset
from pydanube.operations.operation import Answer, Done, Request, operation


class Backup(Answer):
    backup: Annotated[int, Meta(description="number of the backup, to name it in what follows")]
    files: Annotated[int, Meta(description="number of files to copy")]
    bytes: Annotated[int, Meta(description="bytes of these files")]
    revision: Annotated[int, Meta(description="revision of the metadata at this moment")]
    node: Annotated[str, Meta(description="id of the storage node")]
    objects: Annotated[str | None, Meta(description="URL of the object storage that holds the rest")]


class BackupFile(Answer):
    name: str
    bytes: Annotated[int, Meta(description="bytes of the file to copy")]
    size: Annotated[int, Meta(description="bytes of the restored file, which is padded with zeros")]


class BackupFiles(Answer):
    files: list[BackupFile]


@operation("backup.begin", "Begin a backup of this moment", changes=True)
class BeginBackup(Request[Backup]):
    pass


@operation("backup.files", "List the files of a backup in the order to copy them")
class ListBackupFiles(Request[BackupFiles]):
    backup: int
    after: str = ""


@operation("backup.read", "Read a piece of a file of a backup")
class ReadBackup(Request[Done]):  # answered with a batch whose payload is the piece
    backup: int
    name: str
    offset: Offset
    length: Offset


@operation("backup.end", "End a backup", changes=True)
class EndBackup(Request[Done]):
    backup: int
