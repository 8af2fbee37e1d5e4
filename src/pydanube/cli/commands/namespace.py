"""`danube namespace`."""

from __future__ import annotations

import click

from pydanube.cli.commands.topic import policy_option
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import policies_of
from pydanube.client import Client
from pydanube.operations.namespaces import (
    DeleteNamespace,
    DescribeNamespace,
    Namespace,
    NamespacePolicies,
)
from pydanube.operations.operation import Answer


@click.group(cls=CommandGroup, epilog="Example: danube namespace describe default")
def namespace() -> None:
    """Manage namespaces and their policies."""


@namespace.command("create", epilog="Example: danube namespace create shop --policy topics_max=100")
@click.argument("name")
@policy_option
@prints(Namespace)
@connected
async def create(client: Client, output: Output, name: str, policies: tuple[str]) -> None:
    """Create a namespace."""
    await client.admin.create_namespace(name, policies=policies_of(policies))
    output.done(f"created the namespace {name}", await client.ask(DescribeNamespace(name)))


@namespace.command("list", epilog="Example: danube namespace list")
@prints(list[str])
@connected
async def list_namespaces(client: Client, output: Output) -> None:
    """List all namespaces."""
    output.names(await client.admin.namespaces(), "namespace")


class NamespaceDescription(Namespace):
    topics: int


@namespace.command("describe", epilog="Example: danube namespace describe shop")
@click.argument("name")
@prints(NamespaceDescription)
@connected
async def describe(client: Client, output: Output, name: str) -> None:
    """Show the policies and the number of topics of a namespace."""
    policies = await client.admin.policies(name)
    found = NamespaceDescription(name, policies, topics=len(await client.admin.topics(name)))
    output.record(found, {"namespace": name, "topics": found.topics, "policies": policies})


@namespace.command("alter", epilog="Example: danube namespace alter shop --policy publish_bytes_per_second=10MiB")
@click.argument("name")
@policy_option
@prints(NamespacePolicies)
@connected
async def alter(client: Client, output: Output, name: str, policies: tuple[str]) -> None:
    """Change the policies of a namespace. Other policies stay as they are; `none` removes one."""
    if not policies:
        raise click.UsageError("nothing to change; pass --policy")
    changed = NamespacePolicies(await client.admin.policies(name, change=policies_of(policies)))
    output.record(changed, {"namespace": name, **changed})


class NamespaceDeletion(Answer):
    namespace: str
    dry_run: bool


@namespace.command("delete", epilog="Example: danube namespace delete shop --dry-run")
@click.argument("name")
@prints(NamespaceDeletion)
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete an empty namespace."""
    await client.ask(DeleteNamespace(name, dry_run=True))
    deletion = NamespaceDeletion(name, confirmation.dry_run)
    if confirmation.ask(output, f"delete the namespace {name}", deletion):
        await client.admin.delete_namespace(name)
        output.done(f"deleted the namespace {name}", deletion)
