"""`danube topic`."""

from __future__ import annotations

from typing import Any, get_args

import click
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from pydanube.base.errors import OffsetsDamaged
from pydanube.base.errors.root import ExitCode
from pydanube.base.units import shown_bytes
from pydanube.cli.commands.table_snippets import snippets
from pydanube.cli.messages.stored import find_topic
from pydanube.cli.messages.text import PeekedMessage, peeked_message, row_for_people
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, prints
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import POSITION_HELP, many, policies_of
from pydanube.client import Client
from pydanube.operations.fields import DurabilityName
from pydanube.operations.operation import Answer
from pydanube.operations.storage import Table
from pydanube.operations.topics import DamagedOffsets, DeleteTopic, Topic, TopicDescription, TruncateTopic

policy_option = click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME=VALUE",
    help="A policy, see docs/policies.md; accepts units such as 7d and 10GiB.",
)


@click.group(cls=CommandGroup, epilog="Example: danube topic list")
def topic() -> None:
    """Create, inspect, change and delete topics."""


@topic.command("create", epilog="Example: danube topic create orders --partitions 4 --policy retention_seconds=7d")
@click.argument("name", type=values.topic)
@click.option(
    "--partitions",
    type=values.Integer(min=0),
    default=0,
    show_default=True,
    help="Number of partitions; 0 for an unpartitioned topic.",
)
@click.option(
    "--reliable/--no-reliable",
    default=True,
    show_default=True,
    help="Store messages until they are acknowledged, or not at all.",
)
@click.option(
    "--durability",
    type=click.Choice(get_args(DurabilityName)),
    help="What a publish waits for before it is acknowledged.",
)
@policy_option
@prints(Topic)
@connected
async def create(
    client: Client,
    output: Output,
    name: str,
    partitions: int,
    reliable: bool,
    durability: DurabilityName | None,
    policies: tuple[str],
) -> None:
    """Create a topic."""
    made = await client.admin.create_topic(
        name, partitions=partitions, reliable=reliable, durability=durability, policies=policies_of(policies)
    )
    output.done(f"created {name}", made)


@topic.command("list", epilog="Example: danube topic list --namespace shop")
@click.option("--namespace", default="default", show_default=True)
@click.option("--all", "everywhere", is_flag=True, help="List all namespaces.")
@prints(list[Topic])
@connected
async def list_topics(client: Client, output: Output, namespace: str, everywhere: bool) -> None:
    """List the topics of a namespace."""
    names = await client.admin.namespaces() if everywhere else [namespace]
    rows = [each for name in names for each in await client.admin.topic_records(name)]
    output.rows(rows, ("topic", "reliable", "partitions", "durability"))


class CountedTopic(TopicDescription, kw_only=True):
    messages: int


@topic.command("describe", epilog="Example: danube topic describe orders -o json")
@click.argument("name", type=values.topic)
@prints(CountedTopic)
@connected
async def describe(client: Client, output: Output, name: str) -> None:
    """Show a topic in detail: offsets, bytes, producers, consumers, subscriptions, tiers."""
    found = await client.admin.describe_topic(name)
    counted = CountedTopic(**asdict(found), messages=messages_of(found))
    tiers = {name: each for name, each in (found.tiers or {}).items() if each and name != "bytes"}
    damaged = [_damaged(each) for each in found.damaged]
    output.record(counted, {**counted, "tiers": tiers, "damaged": damaged})


def _damaged(found: DamagedOffsets) -> str:
    offsets = f"offset {found.first}" if found.first == found.last else f"offsets {found.first} to {found.last}"
    return offsets if found.partition is None else f"{offsets} of partition {found.partition}"


@topic.command("alter", epilog="Example: danube topic alter orders --partitions 8 --policy ttl_seconds=none")
@click.argument("name", type=values.topic)
@click.option("--partitions", type=values.Integer(min=1), help="New number of partitions; it can only grow.")
@policy_option
@prints(Topic)
@connected
async def alter(client: Client, output: Output, name: str, partitions: int | None, policies: tuple[str]) -> None:
    """Add partitions or change policies. Other policies stay as they are; `none` removes one."""
    if partitions is None and not policies:
        raise click.UsageError("nothing to change; pass --partitions or --policy")
    changed = await client.admin.alter_topic(name, partitions=partitions, policies=policies_of(policies))
    output.record(changed)


class TopicDeletion(Answer):
    """What is deleted with a topic; not known if its state is damaged."""

    topic: str
    dry_run: bool
    messages: int | UnsetType = UNSET
    subscriptions: int | UnsetType = UNSET


@topic.command("delete", epilog="Example: danube topic delete orders --dry-run")
@click.argument("name", type=values.topic)
@prints(TopicDeletion)
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete a topic with its messages and subscriptions."""
    await client.ask(DeleteTopic(name, dry_run=True))
    deletion = TopicDeletion(name, confirmation.dry_run)
    try:
        found = await client.admin.describe_topic(name)
    except OffsetsDamaged:
        action = f"delete {name}, whose state is damaged and unreadable,"
    else:
        deletion.messages, deletion.subscriptions = messages_of(found), found.subscriptions
        action = f"delete {name} with {_contents(found)} and {many(found.subscriptions, 'subscription')}"
    if confirmation.ask(output, action, deletion):
        await client.admin.delete_topic(name)
        output.done(f"deleted {name}", deletion)


class Truncation(Answer):
    topic: str
    messages: int
    dry_run: bool


@topic.command("truncate", epilog="Example: danube topic truncate orders --before 1000 --dry-run")
@click.argument("name", type=values.topic)
@click.option(
    "--before",
    type=values.Integer(min=0),
    metavar="OFFSET",
    help="Delete only messages before this offset, in one partition.",
)
@prints(Truncation)
@destructive
@connected
async def truncate(client: Client, output: Output, confirmation: Confirmation, name: str, before: int | None) -> None:
    """Delete the messages of a topic, but not the topic. Subscriptions skip them."""
    count = (await client.ask(TruncateTopic(name, before=before, dry_run=True))).messages
    truncation = Truncation(name, count, confirmation.dry_run)
    if confirmation.ask(output, f"delete {many(count)} of {name}", truncation):
        await client.admin.truncate_topic(name, before=before)
        output.done(f"deleted {many(count)} of {name}", truncation)


@topic.command("peek", epilog="Example: danube topic peek orders --count 5 --from 10m")
@click.argument("name", type=values.topic)
@click.option("--count", "-n", type=values.Integer(1, 10_000), default=1, show_default=True)
@click.option("--from", "start", type=values.position, default="earliest", show_default=True, help=POSITION_HELP)
@click.option("--partition", type=values.Integer(min=0), help="Only this partition.")
@prints(list[PeekedMessage])
@connected
async def peek(client: Client, output: Output, name: str, count: int, start: Any, partition: int | None) -> None:
    """Show messages without consuming them."""
    await find_topic(client, name, partition, start)
    found = await client.admin.peek(name, count, start=start, partition=partition)
    columns = ("partition", "offset", "publish_time", "key", "payload", "attributes")
    output.rows([*map(peeked_message, found)], columns, [*map(row_for_people, found)])


class ReadableTable(Table):
    snippets: dict[str, str]  # how to read it, by the name of the reader


@topic.command("table", epilog="Example: danube topic table orders")
@click.argument("name", type=values.topic)
@prints(ReadableTable)
@connected
async def table(client: Client, output: Output, name: str) -> None:
    """Show where the table of a topic is, and how to read it with DuckDB, Polars and Spark.

    A topic with the policy `table=delta` is also a Delta table. It holds the messages of all partitions that have been
    uploaded so far.
    """
    found = await client.admin.table(name)
    if not output.for_people:
        return output.record(ReadableTable(**asdict(found), snippets=snippets(found.uri)))
    if not found.made:
        say("; ".join([f"{name} has no table yet", *found.troubles]), _next_step(name, grows=found.grows))
        raise click.exceptions.Exit(ExitCode.FAILED)
    click.echo(f"uri: {found.uri}")
    for reader, snippet in snippets(found.uri).items():
        click.echo(f"\n# {reader}\n{snippet}")
    if not found.grows:
        say("the policy was removed: new uploads are not added to the table")
    for trouble in found.troubles:
        say(f"it is not up to date: {trouble}")


def _next_step(name: str, *, grows: bool) -> str:
    if grows:
        return f"It is created by the first upload; run `danube storage upload {name}` to upload now."
    return f"Run `danube topic alter {name} --policy table=delta` to get one."


def messages_of(described: TopicDescription) -> int:
    """The number of stored offsets; some of them may be gaps."""
    return sum(described.ends) - sum(described.firsts)


def _contents(described: TopicDescription) -> str:
    return f"{many(messages_of(described))} ({shown_bytes(described.bytes)})"
