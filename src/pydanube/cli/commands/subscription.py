"""`danube subscription`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import click
from click.core import ParameterSource
from msgspec import UNSET, UnsetType
from msgspec.structs import asdict

from pydanube.base.errors import SubscriptionNotFound, TopicNotFound
from pydanube.base.limits import SECOND
from pydanube.base.units import shown_duration, shown_when
from pydanube.cli.messages.stored import count_messages, find_topic, stored_ranges
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import printable, say
from pydanube.cli.shell.groups import CommandGroup
from pydanube.cli.shell.output import Confirmation, Output, Row, destructive, flatten, prints
from pydanube.cli.shell.polling import poll
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import POSITION_HELP, many, options_of, shown_time
from pydanube.client import Client
from pydanube.operations import subscriptions
from pydanube.operations.fields import TYPES, Position, type_named
from pydanube.operations.operation import Answer
from pydanube.operations.subscriptions import Consumer, Explanations, Subscription, SubscriptionDescription

COLUMNS = ("subscription", "type", "backlog", "backlog_seconds", "in_flight", "consumers", "floor", "end")
option_option = click.option(
    "--option",
    "options",
    multiple=True,
    metavar="NAME=VALUE",
    help="An option, such as failure.max_redelivery_count=3, failure.ack_timeout=30s or idle_seconds=7d.",
)


class SubscriptionType(click.Choice):  # type: ignore[type-arg]  # not generic in older releases of click
    """A type of subscription, in any case and also as `key-shared`, as in Python and REST."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(type_named(value) or value, param, ctx)


def of_a_topic(command: Any) -> Any:
    """Adds the arguments TOPIC and NAME of a subscription."""
    return click.argument("topic", type=values.topic)(click.argument("name", type=values.subscription)(command))


@click.group(cls=CommandGroup, epilog="Example: danube subscription lag")
def subscription() -> None:
    """Create, inspect, move and delete subscriptions."""


class CreatedSubscription(SubscriptionDescription):
    created: bool  # false if it already existed


@subscription.command(
    "create", epilog="Example: danube subscription create orders billing --type shared --from earliest"
)
@click.argument("topic", type=values.topic)
@click.argument("name")
@click.option("--type", "kind", type=SubscriptionType(TYPES), default="exclusive", show_default=True)
@click.option("--from", "start", type=values.position, default="latest", show_default=True, help=POSITION_HELP)
@option_option
@click.option("--dead-letter-topic", type=values.topic, help="Topic for messages whose retries are exhausted.")
@prints(CreatedSubscription)
@connected
async def create(
    client: Client,
    output: Output,
    topic: str,
    name: str,
    kind: str,
    start: Any,
    options: tuple[str],
    dead_letter_topic: str | None,
) -> None:
    """Create a subscription. An existing one is left unchanged."""
    await find_topic(client, topic, None, start)
    chosen = options_of(options) or {}
    if dead_letter_topic is not None:
        chosen.setdefault("failure", {}).update(poison="dead_letter", dead_letter_topic=dead_letter_topic)
    known = await find_subscription(client, topic, name)
    await client.admin.create_subscription(topic, name, type=kind, start=start, options=chosen or None)
    found = await client.admin.describe_subscription(topic, name)
    if known is None:
        output.done(f"created {name} of {topic}", CreatedSubscription(**asdict(found), created=True))
    else:
        unchanged = CreatedSubscription(**asdict(found), created=False)
        output.done(f"{name} of {topic} already exists; nothing changed", unchanged)
        _warn(found, chosen)


async def find_subscription(client: Client, topic: str, name: str) -> SubscriptionDescription | None:
    """Describes the subscription; None if it does not exist."""
    try:
        return await client.admin.describe_subscription(topic, name)
    except SubscriptionNotFound:
        return None


def _warn(found: SubscriptionDescription, chosen: dict[str, Any]) -> None:
    """Warns about options that differ from those of the existing subscription."""
    held = dict(flatten(found.options))
    for name, value in flatten(chosen):
        has = held.get(name, False if value is False else None)  # a flag that is off is not in the description
        if has != value:
            say(f"{name} stays {has}, not {value}", "Use `danube subscription alter`.")
    if click.get_current_context().get_parameter_source("start") is not ParameterSource.DEFAULT:
        say(f"the subscription stays at {floors_of(found)}", "Use `danube subscription seek`.")


@subscription.command("list", epilog="Example: danube subscription list orders")
@click.argument("topic", type=values.topic)
@prints(list[Subscription])
@connected
async def list_subscriptions(client: Client, output: Output, topic: str) -> None:
    """List the subscriptions of a topic."""
    found = await client.admin.subscriptions(topic)
    output.rows(found, (*COLUMNS, *_stuck(found)))


def _stuck(rows: Sequence[Row]) -> list[str]:
    """Columns to show only if something is wrong."""
    return [name for name in ("blocked", "unreadable") if any(each.get(name) for each in rows)]


@subscription.command("describe", epilog="Example: danube subscription describe orders billing")
@of_a_topic
@prints(SubscriptionDescription)
@connected
async def describe(client: Client, output: Output, topic: str, name: str) -> None:
    """Show a subscription in detail: progress per partition, options, and finished messages by cause."""
    found = await client.admin.describe_subscription(topic, name)
    output.record(found, _for_people(found))


def _for_people(found: SubscriptionDescription) -> Row:
    """Durations get a unit and times are formatted."""
    failure = dict(found.options["failure"])
    for name in ("ack_timeout", "base_delay", "max_delay"):
        if failure.get(name) is not None:
            failure[name] = shown_duration(round(failure[name] * SECOND))
    due = found.delayed_until
    shown = None if due is None else shown_when(due, time.time_ns() // 1000)
    return {**found, "delayed_until": shown, "options": {**found.options, "failure": failure}}


@subscription.command(
    "alter", epilog="Example: danube subscription alter orders billing --option failure.ack_timeout=1m"
)
@of_a_topic
@option_option
@prints(SubscriptionDescription)
@connected
async def alter(client: Client, output: Output, topic: str, name: str, options: tuple[str]) -> None:
    """Change options of a subscription. Other options stay as they are."""
    chosen = options_of(options)
    if chosen is None:
        raise click.UsageError("nothing to change; pass --option")
    found = await client.admin.alter_subscription(topic, name, options=chosen)
    output.record(found, _for_people(found))


class SeekPlan(Answer):
    topic: str
    subscription: str
    backlog: int  # before
    to: Position
    leaves: int  # the backlog afterwards
    dry_run: bool


@subscription.command("seek", epilog="Example: danube subscription seek orders billing --to 10m --dry-run")
@of_a_topic
@click.option("--to", type=values.position, required=True, help=POSITION_HELP)
@prints(SeekPlan, SubscriptionDescription)
@destructive
@connected
async def seek(client: Client, output: Output, confirmation: Confirmation, topic: str, name: str, to: Any) -> None:
    """Move a subscription to another position. Messages delivered before can no longer be acknowledged."""
    before = await client.ask(subscriptions.SeekSubscription(topic, name, to, dry_run=True))
    target = shown_time(to["time"]) if isinstance(to, dict) else to
    left = count_messages(await stored_ranges(client, topic, to, None))
    action = (
        f"move {name} of {topic}, now at {floors_of(before)} with {many(before.backlog)} to do, to {_short(target)}"
    )
    action += f", which leaves {many(left)} to do"
    if confirmation.ask(output, action, SeekPlan(topic, name, before.backlog, to, left, confirmation.dry_run)):
        after = await client.admin.seek_subscription(topic, name, to)
        output.done(f"{name} of {topic} is at {floors_of(after)}, with {many(after.backlog)} to do", after)


class SkippedMessages(Answer):
    topic: str
    subscription: str
    backlog: int  # before
    skipped: int
    dry_run: bool


@subscription.command("skip", epilog="Example: danube subscription skip orders billing --count 1 --yes")
@of_a_topic
@click.option("--count", type=values.Integer(min=1), help="Skip the next N messages.")
@click.option("--before", type=values.Integer(min=0), metavar="OFFSET", help="Skip all messages before this offset.")
@prints(SkippedMessages)
@destructive
@connected
async def skip(
    client: Client,
    output: Output,
    confirmation: Confirmation,
    topic: str,
    name: str,
    count: int | None,
    before: int | None,
) -> None:
    """Skip messages: they count as acknowledged. For a partitioned topic, name the partition, as in orders-part-0."""
    if (count is None) == (before is None):
        raise click.UsageError("pass either --count or --before")
    most = (await client.ask(subscriptions.SkipMessages(topic, name, count, before, dry_run=True))).skipped
    found = await client.admin.describe_subscription(topic, name)
    action = f"skip the next {many(most)} of {name}, which has {many(found.backlog)} to do"
    plan = SkippedMessages(topic, name, found.backlog, most, confirmation.dry_run)
    if confirmation.ask(output, action, plan):
        plan.skipped = await client.admin.skip_messages(topic, name, count=count, to=before)
        output.done(f"skipped {many(plan.skipped)} of {name}", plan)


@subscription.command("consumers", epilog="Example: danube subscription consumers orders billing")
@of_a_topic
@prints(list[Consumer])
@connected
async def consumers(client: Client, output: Output, topic: str, name: str) -> None:
    """List the consumers of a subscription: name, address, partitions, and which of them are active."""
    rows = await client.admin.consumers(topic, name)
    partitioned = any(each.partitions for each in rows)
    columns = ("partitions", "active_partitions") if partitioned else ("active",)
    output.rows(rows, ("name", "address", *columns, "in_flight"))


@subscription.command("explain", epilog="Example: danube subscription explain orders billing --offset 42")
@of_a_topic
@click.option("--offset", type=int, help="Offset of the message. [default: the first unacknowledged one]")
@click.option("--consumer", type=int, help="Explain why this consumer gets nothing.")
@prints(Explanations)
@connected
async def explain(
    client: Client, output: Output, topic: str, name: str, offset: int | None, consumer: int | None
) -> None:
    """Explain why messages are not delivered, or why a consumer gets nothing.

    Without --offset and --consumer, it explains the first unacknowledged message of each partition.
    """
    found = await client.admin.explanations(topic, name, offset=offset, consumer=consumer)
    explained = found.explanations
    if not output.for_people:
        output.record(found)
        return
    if offset is not None or consumer is not None or not found.backlog:
        click.echo(printable(found.sentence))
        return
    click.echo(f"{found.backlog:,} of {many(found.total)} to do")
    for each in explained:
        if each.backlog:
            where = "" if each.partition is None else f"partition {each.partition}, "
            click.echo(printable(f"{where}offset {each.offset}: {each.sentence}"))
    if hidden := found.backlog - sum(each.backlog for each in explained):
        click.echo(f"{many(hidden)} in other partitions; name one to explain it")


class Lag(Subscription, kw_only=True):
    topic: str
    done: int  # the sum of all ends, without the backlog
    acked_per_second: float | UnsetType | None = UNSET  # with --watch, from the second refresh on


@subscription.command("lag", epilog="Example: danube subscription lag orders --watch")
@click.argument("topic", type=values.topic, required=False)
@click.option("--namespace", default="default", show_default=True, help="Without TOPIC: all topics of this namespace.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C.")
@click.option("--every", type=values.duration, default="2s", show_default=True, help="Refresh interval of --watch.")
@click.option("--count", "rounds", type=values.Integer(min=1), help="With --watch: stop after this many refreshes.")
@prints(list[Lag])
@connected
async def lag(
    client: Client, output: Output, topic: str | None, namespace: str, watch: bool, every: int, rounds: int | None
) -> None:
    """Show how far subscriptions are behind, worst first.

    Lag is given in messages, and in seconds: the age of the oldest unacknowledged message. With --watch and JSON or
    YAML, every refresh is one line or document. Watching continues while the broker is unreachable.
    """
    columns = ("topic", "subscription", "backlog", "backlog_seconds", "in_flight", "consumers")
    if not watch:
        rows = await _lags(client, topic, namespace)
        output.rows(rows, (*columns, *_stuck(rows)))
        return
    before: dict[tuple[str, str], int] = {}
    try:
        with output.live((*columns, "acked_per_second", "blocked")) as show:
            async for rows, elapsed in poll(client, lambda: _lags(client, topic, namespace), every, rounds):
                for each in rows:
                    last = before.get((each.topic, each.subscription))
                    each.acked_per_second = None if last is None else (each.done - last) / elapsed
                before = {(each.topic, each.subscription): each.done for each in rows}
                show(rows)
    except asyncio.CancelledError:  # ended by Ctrl-C
        return


async def _lags(client: Client, topic: str | None, namespace: str) -> list[Lag]:
    rows: list[Lag] = []
    for name in [topic] if topic is not None else await client.admin.topics(namespace):
        try:
            ends = sum((await client.admin.describe_topic(name)).ends)
            found = await client.admin.subscriptions(name)
        except TopicNotFound:
            if topic is not None:
                raise
            continue  # deleted meanwhile
        rows += [Lag(**asdict(each), topic=name, done=ends - each.backlog) for each in found]
    return sorted(rows, key=lambda each: (-each.backlog, each.topic, each.subscription))


class SubscriptionDeletion(Answer):
    topic: str
    subscription: str
    backlog: int
    consumers: int
    dry_run: bool


@subscription.command("delete", epilog="Example: danube subscription delete orders billing --dry-run")
@of_a_topic
@prints(SubscriptionDeletion)
@destructive
@connected
async def delete(client: Client, output: Output, confirmation: Confirmation, topic: str, name: str) -> None:
    """Delete a subscription. Its consumers get an error."""
    await client.ask(subscriptions.DeleteSubscription(topic, name, dry_run=True))
    found = await client.admin.describe_subscription(topic, name)
    deletion = SubscriptionDeletion(topic, name, found.backlog, found.consumers, confirmation.dry_run)
    action = f"delete {name} of {topic} with {many(found.backlog)} to do and {many(found.consumers, 'consumer')}"
    if confirmation.ask(output, action, deletion):
        await client.admin.delete_subscription(topic, name)
        output.done(f"deleted {name} of {topic}", deletion)


def _short(target: Any) -> str:
    """A time without fractions of a second that are zero."""
    return str(target).replace(".000000Z", "Z")


def floors_of(described: SubscriptionDescription) -> str:
    return ", ".join("-" if each is None else str(each) for each in described.floors)
