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
from pydanube.cli.shell.output import Output, output_option, progress
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many
from pydanube.client import Client
from pydanube.client.backups import read_piece

_DIRECTORY = click.Path(path_type=Path)
Row = dict[str, Any]


@click.group(cls=CommandGroup, epilog="Example: danube backup create /backup/danube-2026-01-31")
def backup() -> None:
    """Back up a running broker, and restore it."""


@backup.command("create", epilog="Example: danube backup create /backup/danube-2026-01-31")
@click.argument("directory", type=_DIRECTORY)
@output_option
@connected
async def create(client: Client, output: Output, directory: Path) -> None:
    """Copy everything that the broker has on its disk into DIRECTORY, which must be new or empty.

    The broker keeps serving. The backup is a consistent copy of one moment, with everything that was acknowledged
    before it. Objects in object storage are not copied, only their location.
    """
    backup_files.require_empty(directory)
    begun = await client.ask("backup.begin", {})
    try:
        facts, done = await _copy_all(client, begun, directory)
    finally:  # a backup keeps files from being deleted; the broker ends it itself if this is lost
        with suppress(DanubeError):
            await client.ask("backup.end", {"backup": begun["backup"]})
    size = sum(file.bytes for file in done)
    output.done(
        f"backed up {many(len(done), 'file')} ({shown_bytes(size)}) to {directory}",
        directory=str(directory), files=len(done), bytes=size, **facts,
    )  # fmt: skip


async def _copy_all(client: Client, begun: Row, directory: Path) -> tuple[Row, list[BackupFile]]:
    number: int = begun["backup"]
    done: list[BackupFile] = []
    with progress("bytes", begun["bytes"]) as advance, backup_files.disk_errors(directory):
        while listed := (await client.ask("backup.files", {"backup": number, "after": done[-1].name if done else ""}))[
            "files"
        ]:
            for each in listed:
                done.append(await _copy(client, number, each, directory / each["name"], advance))
        facts = {
            "danube": __version__,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            **{name: begun[name] for name in ("node", "revision", "objects")},
        }
        backup_files.write_manifest(directory, facts, done)
    return facts, done


async def _copy(client: Client, number: int, file: Row, path: Path, advance: backup_files.Progress) -> BackupFile:
    writer, offset = Writer(path), 0
    try:
        while offset < file["bytes"]:
            length = BACKUP_CHUNK_BYTES_MAX
            data = await read_piece(client, backup=number, name=file["name"], offset=offset, length=length)
            writer.write(data)
            offset += len(data)
            advance(len(data))
        return BackupFile(file["name"], file["bytes"], file["size"], writer.done())
    finally:
        writer.abandon()


@backup.command("verify", epilog="Example: danube backup verify /backup/danube-2026-01-31")
@click.argument("directory", type=_DIRECTORY)
@output_option
def verify(output: Output, directory: Path) -> int:
    """Check that a backup is complete and that no file has changed. Needs no broker."""
    facts, files = backup_files.read_manifest(directory)
    size = sum(file.bytes for file in files)
    with progress("bytes", size) as advance:
        wrong = list(backup_files.problems(directory, files, advance))
    found = {"directory": str(directory), "files": len(files), "bytes": size, "created": facts.get("created")}
    if not wrong:
        output.done(f"{directory} is sound: {many(len(files), 'file')} ({shown_bytes(size)})", **found, wrong=[])
        return ExitCode.SUCCESS
    if not output.for_people:
        output.record({**found, "wrong": wrong})
    raise BackupInvalid("; ".join(wrong[:10]) + ("" if len(wrong) <= 10 else f"; and {len(wrong) - 10} more"))


@backup.command("restore", epilog="Example: danube backup restore /backup/danube-2026-01-31 /var/lib/danube")
@click.argument("directory", type=_DIRECTORY)
@click.argument("data_dir", type=_DIRECTORY)
@click.option(
    "--take-over-objects",
    is_flag=True,
    help="Use the object storage of the original broker, which must be gone for good.",
)
@output_option
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
        directory=str(directory), data_dir=str(data_dir), files=len(files), bytes=size,
    )  # fmt: skip
