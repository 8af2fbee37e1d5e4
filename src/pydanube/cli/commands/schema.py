"""`danube schema`."""

from __future__ import annotations

import json
from collections.abc import Callable
from difflib import unified_diff
from pathlib import PurePath
from typing import Any, BinaryIO

import click

from pydanube.base.limits import SCHEMA_BYTES_MAX
from pydanube.base.units import shown_time
from pydanube.base.wording import many
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import connected
from pydanube.client import Client
from pydanube.operations.operation import Answer
from pydanube.operations.schemas import (
    DeletedSchemas,
    RegisteredSchema,
    Schema,
    SchemaBreak,
    SchemaCheck,
    SchemaMode,
    SchemaReference,
    SchemaVersion,
    Subject,
)

TYPES = ("avro", "json_schema", "protobuf", "bytes", "string", "number")
MODES = ("none", "backward", "forward", "full", "backward_transitive", "forward_transitive", "full_transitive")
_BY_ENDING = {".avsc": "avro", ".json": "json_schema", ".proto": "protobuf"}
_Command = Callable[..., Any]


@click.group(cls=CommandGroup, epilog="Example: danube schema list")
def schema() -> None:
    """Register schemas, and check whether new ones are compatible."""


def definition_options(command: _Command) -> _Command:
    """A file with a definition, its type, and what it refers to."""
    for each in (
        click.option(
            "--reference",
            "references",
            multiple=True,
            metavar="NAME=SUBJECT:VERSION",
            help="A version of another subject that the definition refers to by NAME. May be repeated.",
        ),
        click.option(
            "--type",
            "kind",
            type=click.Choice(TYPES),
            help="Type of the schema. Default: from the ending of the file (.avsc, .json or .proto).",
        ),
        click.argument("file", type=click.File("rb"), required=False),
    ):
        command = each(command)
    return command


def _definition(file: BinaryIO | None, kind: str | None) -> tuple[str, str]:
    """The text of the file, and its type."""
    if file is None:
        if kind in ("bytes", "string", "number"):
            return "", kind
        raise click.UsageError("pass a file with the definition, or - for stdin")
    kind = kind or _BY_ENDING.get(PurePath(file.name).suffix)
    if kind is None:
        raise click.UsageError(f"the type of {file.name} is unknown; pass --type")
    try:
        return file.read(SCHEMA_BYTES_MAX + 1).decode(), kind
    except UnicodeDecodeError:
        raise click.UsageError(f"{file.name} is not UTF-8") from None


def _references(texts: tuple[str, ...]) -> list[SchemaReference]:
    found: list[SchemaReference] = []
    for text in texts:
        name, _, rest = text.partition("=")
        subject, _, version = rest.rpartition(":")
        if not name or not subject or not version.isdecimal() or len(version) > 9:
            raise click.UsageError(f"--reference must look like NAME=SUBJECT:VERSION, got {text!r}")
        found.append(SchemaReference(name, subject, int(version)))
    return found


@schema.command("register", epilog="Example: danube schema register orders --type string")
@click.argument("subject")
@definition_options
@click.option("--description", default="", help="What the schema is for.")
@click.option("--created-by", default="", help="Who registers it.")
@click.option("--tag", "tags", multiple=True, help="A tag. May be repeated.")
@prints(RegisteredSchema)
@connected
async def register(
    client: Client,
    output: Output,
    subject: str,
    file: BinaryIO | None,
    kind: str | None,
    references: tuple[str, ...],
    description: str,
    created_by: str,
    tags: tuple[str, ...],
) -> None:
    """Register a definition as a new version of a subject.

    A definition that the subject already has keeps its version. One that is not compatible is refused, with every place
    that breaks.
    """
    text, kind = _definition(file, kind)
    made = await client.admin.register_schema(
        subject,
        text,
        type=kind,
        references=_references(references),
        description=description,
        created_by=created_by,
        tags=tags,
    )
    done = "registered" if made.is_new else "already registered:"
    output.done(f"{done} version {made.version} of {subject}, schema id {made.schema_id}", made)


@schema.command("get", epilog="Example: danube schema get orders --version 1")
@click.argument("subject")
@click.option("--version", type=click.IntRange(1), help="Default: the latest version.")
@click.option("--definition", is_flag=True, help="Print only the definition, as it was registered.")
@prints(Schema)
@connected
async def get(client: Client, output: Output, subject: str, version: int | None, definition: bool) -> None:
    """Show a version of a subject."""
    found = await client.admin.schema(subject, version)
    if definition:
        click.echo(found.definition)
    else:
        output.record(found, {**found, "created_at": shown_time(found.created_at)})


@schema.command("list", epilog="Example: danube schema list --start orders")
@click.option("--start", default="", help="Only subjects whose names begin with this.")
@prints(list[Subject])
@connected
async def list_subjects(client: Client, output: Output, start: str) -> None:
    """List subjects with their latest version."""
    columns = ("subject", "type", "latest_version", "mode", "schema_id", "tags")
    found = await client.admin.subjects(start)
    output.rows(found, columns, [{**each, "tags": ", ".join(each.tags)} for each in found])


@schema.command("versions", epilog="Example: danube schema versions orders")
@click.argument("subject")
@prints(list[SchemaVersion])
@connected
async def versions(client: Client, output: Output, subject: str) -> None:
    """List the versions of a subject."""
    columns = ("version", "definition_id", "created_at", "created_by", "description", "fingerprint")
    found = await client.admin.schema_versions(subject)
    output.rows(found, columns, [{**each, "created_at": shown_time(each.created_at)} for each in found])


@schema.command("check", epilog="Example: danube schema check orders --type string")
@click.argument("subject")
@definition_options
@click.option("--mode", type=click.Choice(MODES), help="Default: the mode of the subject.")
@click.option("--version", type=click.IntRange(1), help="Compare with this version only.")
@prints(SchemaCheck)
@connected
async def check(
    client: Client,
    output: Output,
    subject: str,
    file: BinaryIO | None,
    kind: str | None,
    references: tuple[str, ...],
    mode: str | None,
    version: int | None,
) -> None:
    """Check whether a definition may follow the versions of a subject, without registering it.

    Ends with exit code 1 if it may not.
    """
    text, kind = _definition(file, kind)
    found = await client.admin.check_schema(
        subject, text, type=kind, references=_references(references), mode=mode, version=version
    )
    if output.for_people and found.breaks:
        output.table(found.breaks, ("version", "path", "reason"))
    else:
        output.done("compatible", found)
    if not found.compatible:
        raise click.exceptions.Exit(1)


class SchemaDeletion(DeletedSchemas):
    subject: str
    dry_run: bool


@schema.command("delete", epilog="Example: danube schema delete orders --version 2 --dry-run")
@click.argument("subject")
@click.option("--version", type=click.IntRange(1), help="Default: all versions, and the subject.")
@prints(SchemaDeletion)
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, subject: str, version: int | None) -> None:
    """Delete a version of a subject, or the subject. Their numbers are never used again."""
    planned = await client.admin.delete_schema(subject, version, dry_run=True)
    deletion = SchemaDeletion(planned, subject, confirmation.dry_run)
    what = f"{subject} with {many(len(planned), 'version')}" if version is None else f"version {version} of {subject}"
    if confirmation.ask(output, f"delete {what}", deletion):
        deletion = SchemaDeletion(await client.admin.delete_schema(subject, version), subject, False)
        output.done(f"deleted {what}", deletion)


@schema.command("set-mode", epilog="Example: danube schema set-mode full orders")
@click.argument("mode", type=click.Choice([*MODES, "inherit"]))
@click.argument("subject", required=False)
@prints(SchemaMode)
@connected
async def set_mode(client: Client, output: Output, mode: str, subject: str | None) -> None:
    """Set the compatibility mode of a subject, or without a subject the default of all others.

    `inherit` removes the subject's own mode.
    """
    found = await client.admin.set_schema_mode(subject, None if mode == "inherit" else mode)
    output.done(f"the compatibility mode of {subject or 'subjects without their own'} is {found.mode}", found)


class SchemaDifference(Answer):
    subject: str
    old: int
    new: int
    lines: list[str]
    breaks: list[SchemaBreak]


@schema.command("diff", epilog="Example: danube schema diff orders 1 2")
@click.argument("subject")
@click.argument("old", type=click.IntRange(1))
@click.argument("new", type=click.IntRange(1))
@prints(SchemaDifference)
@connected
async def diff(client: Client, output: Output, subject: str, old: int, new: int) -> None:
    """Show what changed between two versions of a subject, and what the change breaks."""
    before, after = [await client.admin.schema(subject, each) for each in (old, new)]
    changed = unified_diff(_lines(before), _lines(after), f"version {old}", f"version {new}", lineterm="")
    lines = list(changed)
    checked = await client.admin.check_schema(
        subject, after.definition, type=after.type, references=after.references, version=old
    )
    found = SchemaDifference(subject, old, new, lines, checked.breaks)
    if not output.for_people:
        output.record(found)
        return
    click.echo("\n".join(lines) if lines else "no difference")
    if checked.breaks:
        click.echo(f"\nIn the mode {after.mode}, it breaks:")
        output.table(checked.breaks, ("path", "reason"))


def _lines(found: Schema) -> list[str]:
    """The definition with a line for each value, so that differences are small."""
    if found.type in ("avro", "json_schema"):
        return json.dumps(json.loads(found.definition), indent=2, ensure_ascii=False).splitlines()
    return found.definition.splitlines()
