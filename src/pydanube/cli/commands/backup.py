"""`danube backup`."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from pydanube import __version__
from pydanube.base.errors import ArgumentInvalid, BackupInvalid, DanubeError
from pydanube.base.errors.root import ExitCode
from pydanube.base.limits import BACKUP_CHUNK_BYTES_MAX
from pydanube.base.units import shown_bytes
from pydanube.cli.commands import backup_files
from pydanube.cli.commands.backup_files import BackupFile, Writer
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Output, prints, progress
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many
from pydanube.client import Client
from pydanube.client.backups import read_piece
from pydanube.operations import backups
from pydanube.operations.operation import Answer

_DIRECTORY = click.Path(path_type=Path)


@click.group(cls=CommandGroup, epilog="Example: danube backup create /backup/danube-2026-01-31")
def backup() -> None:
    """Back up a running broker, and restore it."""


class CreatedBackup(Answer):
    directory: str
    files: int
    bytes: int
    danube: str  # the version that made it
    created: str
    node: str
    revision: int
    objects: str | None  # the object storage of the broker


@backup.command("create", epilog="Example: danube backup create /backup/danube-2026-01-31")
@click.argument("directory", type=_DIRECTORY)
@prints(CreatedBackup)
@connected
async def create(client: Client, output: Output, directory: Path) -> None:
    """Copy everything that the broker has on its disk into DIRECTORY, which must be new or empty.

    The broker keeps serving. The backup is a consistent copy of one moment, with everything that was acknowledged
    before it. Objects in object storage are not copied, only their location.
    """
    backup_files.require_empty(directory)
    begun = await client.ask(backups.BeginBackup())
    try:
        facts, done = await _copy_all(client, begun, directory)
    finally:  # a backup keeps files from being deleted; the broker ends it itself if this is lost
        with suppress(DanubeError):
            await client.ask(backups.EndBackup(begun.backup))
    size = sum(file.bytes for file in done)
    made = CreatedBackup(str(directory), len(done), size, **facts)
    output.done(f"backed up {many(len(done), 'file')} ({shown_bytes(size)}) to {directory}", made)


async def _copy_all(client: Client, begun: backups.Backup, directory: Path) -> tuple[dict[str, Any], list[BackupFile]]:
    done: list[BackupFile] = []
    listing = backups.ListBackupFiles(begun.backup)
    with progress("bytes", begun.bytes) as advance, backup_files.disk_errors(directory):
        while listed := (await client.ask(listing)).files:
            for each in listed:
                done.append(await _copy(client, begun.backup, each, directory / each.name, advance))
            listing.after = listed[-1].name
        facts = {
            "danube": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **{name: begun[name] for name in ("node", "revision", "objects")},
        }
        backup_files.write_manifest(directory, facts, done)
    return facts, done


async def _copy(
    client: Client, number: int, file: backups.BackupFile, path: Path, advance: backup_files.Progress
) -> BackupFile:
    writer, offset = Writer(path), 0
    try:
        while offset < file.bytes:
            piece = backups.ReadBackup(number, file.name, offset, length=BACKUP_CHUNK_BYTES_MAX)
            data = await read_piece(client, piece)
            writer.write(data)
            offset += len(data)
            advance(len(data))
        return BackupFile(**file, sha256=writer.done())
    finally:
        writer.abandon()


class VerifiedBackup(Answer):
    directory: str
    files: int
    bytes: int
    created: str | None
    wrong: list[str]  # what is wrong, file by file


@backup.command("verify", epilog="Example: danube backup verify /backup/danube-2026-01-31")
@click.argument("directory", type=_DIRECTORY)
@prints(VerifiedBackup)
def verify(output: Output, directory: Path) -> int:
    """Check that a backup is complete and that no file has changed. Needs no broker."""
    facts, files = backup_files.read_manifest(directory)
    size = sum(file.bytes for file in files)
    with progress("bytes", size) as advance:
        wrong = list(backup_files.problems(directory, files, advance))
    found = VerifiedBackup(str(directory), len(files), size, facts.get("created"), wrong)
    if not wrong:
        output.done(f"{directory} is sound: {many(len(files), 'file')} ({shown_bytes(size)})", found)
        return ExitCode.SUCCESS
    if not output.for_people:
        output.record(found)
    raise BackupInvalid("; ".join(wrong[:10]) + ("" if len(wrong) <= 10 else f"; and {len(wrong) - 10} more"))


class RestoredBackup(Answer):
    directory: str
    data_dir: str
    files: int
    bytes: int


@backup.command("restore", epilog="Example: danube backup restore /backup/danube-2026-01-31 /var/lib/danube")
@click.argument("directory", type=_DIRECTORY)
@click.argument("data_dir", type=_DIRECTORY)
@click.option(
    "--take-over-objects",
    is_flag=True,
    help="Use the object storage of the original broker, which must be gone for good.",
)
@prints(RestoredBackup)
def restore(output: Output, directory: Path, data_dir: Path, take_over_objects: bool) -> None:
    """Restore a backup to DATA_DIR, which must be new or empty.

    This verifies every checksum. Afterwards, start a broker on DATA_DIR. If the backup has messages in object storage,
    the original broker must not run anymore: two brokers cannot share a location there.
    """
    facts, files = backup_files.read_manifest(directory)
    if facts.get("objects") and not take_over_objects:
        raise ArgumentInvalid(
            f"the broker of this backup keeps messages in {facts['objects']}, which only one broker may use; "
            "if that broker is gone for good, pass --take-over-objects"
        )
    backup_files.require_empty(data_dir)
    size = sum(file.bytes for file in files)
    with progress("bytes", 2 * size) as advance:
        wrong = list(backup_files.problems(directory, files, advance))  # before anything is written
        if wrong:
            raise BackupInvalid("; ".join(wrong[:10]))
        backup_files.restore(directory, files, data_dir, advance)
    output.done(
        f"restored {many(len(files), 'file')} ({shown_bytes(size)}); start a broker with --data-dir {data_dir}",
        RestoredBackup(str(directory), str(data_dir), len(files), size),
    )
