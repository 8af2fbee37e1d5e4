"""`danube topic`."""

from __future__ import annotations

from typing import Any

import click

from pydanube.base.errors import OffsetsDamaged
from pydanube.base.errors.root import ExitCode
from pydanube.base.units import shown_bytes
from pydanube.cli.commands.table_snippets import snippets
from pydanube.cli.messages.stored import find_topic
from pydanube.cli.messages.text import message_rows
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, destructive, output_option
from pydanube.cli.shell.running import ask_dry_run, connected
from pydanube.cli.shell.values import POSITION_HELP, many, policies_of
from pydanube.client import Client

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
    type=click.Choice(["fsynced", "buffered"]),
    help="What a publish waits for before it is acknowledged.",
)
@policy_option
@output_option
@connected
async def create(
    client: Client,
    output: Output,
    name: str,
    partitions: int,
    reliable: bool,
    durability: str | None,
    policies: tuple[str],
) -> None:
    """Create a topic."""
    made = await client.admin.create_topic(
        name, partitions=partitions, reliable=reliable, durability=durability, policies=policies_of(policies)
    )
    output.done(f"created {name}", **made)


@topic.command("list", epilog="Example: danube topic list --namespace shop")
@click.option("--namespace", default="default", show_default=True)
@click.option("--all", "everywhere", is_flag=True, help="List all namespaces.")
@output_option
@connected
async def list_topics(client: Client, output: Output, namespace: str, everywhere: bool) -> None:
    """List the topics of a namespace."""
    names = await client.admin.namespaces() if everywhere else [namespace]
    rows = [each for name in names for each in await client.admin.topic_records(name)]
    output.rows([_with_durability(each) for each in rows], ("topic", "reliable", "partitions", "durability"))


@topic.command("describe", epilog="Example: danube topic describe orders -o json")
@click.argument("name", type=values.topic)
@output_option
@connected
async def describe(client: Client, output: Output, name: str) -> None:
    """Show a topic in detail: offsets, bytes, producers, consumers, subscriptions, tiers."""
    found = await client.admin.describe_topic(name)
    if output.for_people:
        found["tiers"] = {name: each for name, each in (found.get("tiers") or {}).items() if each and name != "bytes"}
        found["damaged"] = [_damaged(each) for each in found.get("damaged") or ()]
    output.record({**_with_durability(found), "messages": messages_of(found)})


def _damaged(found: dict[str, Any]) -> str:
    first, last, partition = found["first"], found["last"], found["partition"]
    offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
    return offsets if partition is None else f"{offsets} of partition {partition}"


@topic.command("alter", epilog="Example: danube topic alter orders --partitions 8 --policy ttl_seconds=none")
@click.argument("name", type=values.topic)
@click.option("--partitions", type=values.Integer(min=1), help="New number of partitions; it can only grow.")
@policy_option
@output_option
@connected
async def alter(client: Client, output: Output, name: str, partitions: int | None, policies: tuple[str]) -> None:
    """Add partitions or change policies. Other policies stay as they are; `none` removes one."""
    if partitions is None and not policies:
        raise click.UsageError("nothing to change; pass --partitions or --policy")
    changed = await client.admin.alter_topic(name, partitions=partitions, policies=policies_of(policies))
    output.record(changed)


@topic.command("delete", epilog="Example: danube topic delete orders --dry-run")
@click.argument("name", type=values.topic)
@output_option
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, name: str) -> None:
    """Delete a topic with its messages and subscriptions."""
    await ask_dry_run(client, "topic.delete", topic=name)
    fields: dict[str, Any] = {"topic": name}
    try:
        found = await client.admin.describe_topic(name)
    except OffsetsDamaged:
        action = f"delete {name}, whose state is damaged and unreadable,"
    else:
        fields |= {"messages": messages_of(found), "subscriptions": found["subscriptions"]}
        action = f"delete {name} with {_contents(found)} and {many(found['subscriptions'], 'subscription')}"
    if confirmation.ask(output, action, **fields):
        await client.admin.delete_topic(name)
        output.done(f"deleted {name}", **fields)


@topic.command("truncate", epilog="Example: danube topic truncate orders --before 1000 --dry-run")
@click.argument("name", type=values.topic)
@click.option(
    "--before",
    type=values.Integer(min=0),
    metavar="OFFSET",
    help="Delete only messages before this offset, in one partition.",
)
@output_option
@destructive
@connected
async def truncate(client: Client, output: Output, confirmation: Confirmation, name: str, before: int | None) -> None:
    """Delete the messages of a topic, but not the topic. Subscriptions skip them."""
    count = (await ask_dry_run(client, "topic.truncate", topic=name, before=before))["messages"]
    if confirmation.ask(output, f"delete {many(count)} of {name}", topic=name, messages=count):
        await client.admin.truncate_topic(name, before=before)
        output.done(f"deleted {many(count)} of {name}", topic=name, messages=count)


@topic.command("peek", epilog="Example: danube topic peek orders --count 5 --from 10m")
@click.argument("name", type=values.topic)
@click.option("--count", "-n", type=values.Integer(1, 10_000), default=1, show_default=True)
@click.option("--from", "start", type=values.position, default="earliest", show_default=True, help=POSITION_HELP)
@click.option("--partition", type=values.Integer(min=0), help="Only this partition.")
@output_option
@connected
async def peek(client: Client, output: Output, name: str, count: int, start: Any, partition: int | None) -> None:
    """Show messages without consuming them."""
    await find_topic(client, name, partition, start)
    found = await client.admin.peek(name, count, start=start, partition=partition)
    output.rows(
        message_rows(found, for_people=output.for_people),
        ("partition", "offset", "publish_time", "key", "payload", "attributes"),
    )


@topic.command("table", epilog="Example: danube topic table orders")
@click.argument("name", type=values.topic)
@output_option
@connected
async def table(client: Client, output: Output, name: str) -> None:
    """Show where the table of a topic is, and how to read it with DuckDB, Polars and Spark.

    A topic with the policy `table=delta` is also a Delta table. It holds the messages of all partitions that have been
    uploaded so far.
    """
    found = await client.admin.table(name)
    if not output.for_people:
        return output.record({**found, "snippets": snippets(found["uri"])})
    if not found["made"]:
        say("; ".join([f"{name} has no table yet", *found["troubles"]]), _next_step(name, grows=found["grows"]))
        raise click.exceptions.Exit(ExitCode.FAILED)
    click.echo(f"uri: {found['uri']}")
    for reader, snippet in snippets(found["uri"]).items():
        click.echo(f"\n# {reader}\n{snippet}")
    if not found["grows"]:
        say("the policy was removed: new uploads are not added to the table")
    for trouble in found["troubles"]:
        say(f"it is not up to date: {trouble}")


def _next_step(name: str, *, grows: bool) -> str:
    if grows:
        return f"It is created by the first upload; run `danube storage upload {name}` to upload now."
    return f"Run `danube topic alter {name} --policy table=delta` to get one."


def _with_durability(record: dict[str, Any]) -> dict[str, Any]:
    """The record with the real durability: a topic that stores nothing has none, whatever was chosen."""
    return record if record["reliable"] else {**record, "durability": "none"}


def messages_of(described: dict[str, Any]) -> int:
    """The number of stored offsets; some of them may be gaps."""
    return int(sum(described["ends"]) - sum(described["firsts"]))


def _contents(described: dict[str, Any]) -> str:
    return f"{many(messages_of(described))} ({shown_bytes(described['bytes'])})"
