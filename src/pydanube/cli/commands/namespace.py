"""`danube namespace`."""

from __future__ import annotations

import click

from pydanube.cli.commands.topic import policy_option
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, output_option
from pydanube.cli.shell.running import ask_dry_run, connected
from pydanube.cli.shell.values import policies_of
from pydanube.client import Client


@click.group(cls=CommandGroup, epilog="Example: danube namespace describe default")
def namespace() -> None:
    """Manage namespaces and their policies."""


@namespace.command("create", epilog="Example: danube namespace create shop --policy topics_max=100")
@click.argument("name")
@policy_option
@output_option
@connected
async def create(client: Client, output: Output, name: str, policies: tuple[str]) -> None:
    """Create a namespace."""
    chosen = policies_of(policies)
    await client.admin.create_namespace(name, policies=chosen)
    output.done(f"created the namespace {name}", namespace=name, policies=chosen)


@namespace.command("list", epilog="Example: danube namespace list")
@output_option
@connected
async def list_namespaces(client: Client, output: Output) -> None:
    """List all namespaces."""
    output.rows([{"namespace": each} for each in await client.admin.namespaces()], ("namespace",))


@namespace.command("describe", epilog="Example: danube namespace describe shop")
@click.argument("name")
@output_option
@connected
async def describe(client: Client, output: Output, name: str) -> None:
    """Show the policies and the number of topics of a namespace."""
    policies = await client.admin.policies(name)
    output.record({"namespace": name, "topics": len(await client.admin.topics(name)), "policies": policies})


@namespace.command("alter", epilog="Example: danube namespace alter shop --policy publish_bytes_per_second=10MiB")
@click.argument("name")
@policy_option
@output_option
@connected
async def alter(client: Client, output: Output, name: str, policies: tuple[str]) -> None:
    """Change the policies of a namespace. Other policies stay as they are; `none` removes one."""
    if not policies:
        raise click.UsageError("nothing to change; pass --policy")
    output.record({"namespace": name, "policies": await client.admin.policies(name, change=policies_of(policies))})


@namespace.command("delete", epilog="Example: danube namespace delete shop --dry-run")
@click.argument("name")
@output_option
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete an empty namespace."""
    await ask_dry_run(client, "namespace.delete", namespace=name)
    if confirmation.ask(output, f"delete the namespace {name}", namespace=name):
        await client.admin.delete_namespace(name)
        output.done(f"deleted the namespace {name}", namespace=name)
