"""`danube consume`: prints messages, either with a reader, which leaves no trace, or as a consumer of a subscription.

A message of a subscription is acknowledged after it was written and flushed, never before.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

import click

from pydanube.base.errors import NothingReceived, NotReliable, SubscriptionNotFound
from pydanube.base.names import parse_topic
from pydanube.base.units import shown_when
from pydanube.cli.commands.subscription import SubscriptionType, find_subscription, floors_of
from pydanube.cli.messages.formats import FIELDS, TABLE_HEADER, Writer, writer_of
from pydanube.cli.messages.stored import count_messages, find_topic, nothing_will_arrive, stored_batches, stored_ranges
from pydanube.cli.shell import values
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.output import output_option, stderr_is_terminal
from pydanube.cli.shell.running import cancelled_when_output_closes, connected
from pydanube.cli.shell.values import POSITION_HELP, many
from pydanube.client import Client, Consumer, Message
from pydanube.operations.fields import TYPES
from pydanube.operations.messages import StoredMessage
from pydanube.operations.subscriptions import SubscriptionDescription

AT_ONCE = 1000  # messages to write, flush and acknowledge together
SILENCE_SECONDS = 0.2  # after which --exit-at-end asks whether anything is left
FORMAT_HELP = (
    "Print each message in this format: " + "; ".join(f"%{name} {what}" for name, (what, _) in FIELDS.items()) + "."
)


@click.command(epilog="Example: danube consume orders --since 10m --exit-at-end -f '%o %k %v'")
@click.argument("topic", type=values.topic)
@click.option(
    "--subscription",
    "-s",
    type=values.subscription,
    metavar="NAME",
    help="Consume with this subscription and acknowledge what was printed. Created if it does not exist.",
)
@click.option("--type", "kind", type=SubscriptionType(TYPES), help="Type of a new subscription.  [default: exclusive]")
@click.option("--from", "start", type=values.position, help=POSITION_HELP)
@click.option("--since", type=values.moment, help="Start this far back (10m), or at this time.")
@click.option("--offset", type=values.Integer(min=0), help="Start at this offset of one partition.")
@click.option("--partition", "-p", type=values.Integer(min=0), help="Read only this partition.")
@click.option("--count", "-n", type=values.Integer(min=1), help="Exit after this many messages.")
@click.option("--exit-at-end", "-e", is_flag=True, help="Exit when no more messages will arrive on their own.")
@click.option("--format", "-f", "format", metavar="FORMAT", help=FORMAT_HELP)
@output_option(StoredMessage, formats=["raw", "json", "yaml", "table"])
@connected
async def consume(
    client: Client,
    topic: str,
    subscription: str | None,
    kind: str | None,
    start: Any,
    since: Any,
    offset: int | None,
    partition: int | None,
    count: int | None,
    exit_at_end: bool,
    format: str | None,
    output: str,
) -> None:
    """Print messages, with or without a subscription.

    Without --subscription, nothing is left behind and no one else is affected. Each message is printed on a line of its
    own. JSON has the fields of REST, and `danube produce --json` publishes it again. An existing subscription continues
    at its position, with the type that it has. The command ends with Ctrl-C, or when its output pipe is closed. With
    --exit-at-end it also ends, and says so, when all that is left is delayed, blocked, or with other consumers.
    """
    positions = [each for each in (start, since, offset) if each is not None]
    if len(positions) > 1:
        raise click.UsageError("pass only one of --from, --since and --offset")
    begin = positions[0] if positions else None
    printer = Printer(writer_of(output, format), count)
    found = await find_topic(client, topic, partition, begin)
    if not found.reliable and begin not in (None, "latest"):
        raise NotReliable(f"{topic} is not reliable: it stores nothing, so there is no earlier position to start at")
    if output == "table" and format is None:
        printer.write_header()
    source = topic if partition is None else f"{topic}-part-{partition}"
    try:
        with cancelled_when_output_closes():
            if exit_at_end and not found.reliable:
                say(f"{topic} is not reliable: it stores nothing, so there is nothing to print")
            elif subscription is not None:
                known = await find_subscription(client, source, subscription)
                if stderr_is_terminal() and found.reliable:
                    await _say_where_it_begins(client, source, subscription, known, begin, exit_at_end)
                async with _consumer(client, source, subscription, known, kind, begin) as consumer:
                    await _consume(consumer, source, exit_at_end, printer)
            elif found.reliable:
                if begin in (None, "latest") and stderr_is_terminal():
                    await _say_what_is_stored(client, source, exit_at_end, "`--from earliest` shows them")
                await _read(client, topic, "latest" if begin is None else begin, partition, exit_at_end, printer)
            else:
                await _listen(client, source, printer)
    except asyncio.CancelledError:  # ended by Ctrl-C, or because the output pipe was closed
        return


def _consumer(
    client: Client, source: str, name: str, found: SubscriptionDescription | None, kind: str | None, begin: Any
) -> Consumer:
    """A consumer of an existing subscription, or of a new one."""
    if found is None:
        if parse_topic(source).partition is not None:  # it would be created in this partition only
            raise SubscriptionNotFound(
                f"{source} has no subscription {name!r}; a new one is created for the whole topic"
            )
        start = "latest" if begin is None else begin
        return client.consumer(source, subscription=name, type=kind or "exclusive", start=start, create=False)
    if begin is not None:
        help = f"To start elsewhere, run `danube subscription seek {source} {name} --to …` first."
        say(f"subscription {name} exists; continuing at offset {floors_of(found)}", help)
    return client.consumer(source, subscription=name, type=kind or found.type, create=False)


async def _say_where_it_begins(
    client: Client, source: str, name: str, found: SubscriptionDescription | None, begin: Any, exit_at_end: bool
) -> None:
    """Tells people where a subscription starts, unless other messages of `-e` or `--from` say so."""
    if found is None and begin in (None, "latest") and parse_topic(source).partition is None:
        seek = f"danube subscription seek {source} {name} --to earliest"
        await _say_what_is_stored(client, source, exit_at_end, f"`{seek}` goes back to them")
    elif found is not None and begin is None and not exit_at_end:
        say(f"subscription {name} continues at offset {floors_of(found)}, with {many(found.backlog)} to do")


async def _say_what_is_stored(client: Client, source: str, exit_at_end: bool, how: str) -> None:
    """Tells people how much is stored, in case they wonder why nothing is printed: by default, only new messages."""
    count = count_messages(await stored_ranges(client, source, "earliest", None))
    what = "no new messages" if exit_at_end else "waiting for new messages"
    say(f"{what}; {count:,} stored, {how}" if count else what)


class Printer:
    """Writes messages to stdout, up to a limit."""

    def __init__(self, writer: Writer, limit: int | None) -> None:
        self._writer = writer
        self._limit = limit
        self._written = 0
        self._stdout = sys.stdout.buffer

    @property
    def wanted(self) -> int:
        """How many messages to write next, at most."""
        return AT_ONCE if self._limit is None else min(AT_ONCE, self._limit - self._written)

    def write_header(self) -> None:
        self._stdout.write(TABLE_HEADER)
        self._stdout.flush()

    def write(self, messages: list[Message]) -> None:
        """Writes and flushes the messages. Raises `BrokenPipeError` if the reader is gone."""
        self._stdout.write(b"".join(map(self._writer, messages)))
        self._stdout.flush()
        self._written += len(messages)


async def _read(
    client: Client, topic: str, begin: Any, partition: int | None, exit_at_end: bool, printer: Printer
) -> None:
    if exit_at_end:
        batches = stored_batches(client, await stored_ranges(client, topic, begin, partition))
    else:
        reader = await client.reader(topic, start=begin, partition=partition).open()
        batches = reader.batches()
    async for batch in batches:
        messages = list(batch)
        while messages and printer.wanted:
            now, messages = messages[: printer.wanted], messages[printer.wanted :]
            printer.write(now)
        if not printer.wanted:
            return


async def _listen(client: Client, source: str, printer: Printer) -> None:
    """Prints the messages of a topic that stores nothing, with a subscription that is deleted at the end."""
    name = f"danube-consume-{os.urandom(8).hex()}"
    async with client.consumer(source, subscription=name) as consumer:
        try:
            await _consume(consumer, source, False, printer)
        finally:
            await client.admin.delete_subscription(str(parse_topic(source).whole), name)


async def _consume(consumer: Consumer, source: str, exit_at_end: bool, printer: Printer) -> None:
    while printer.wanted:
        try:
            messages = [await consumer.receive(SILENCE_SECONDS if exit_at_end else None)]
        except NothingReceived:
            found = await consumer.client.admin.describe_subscription(source, consumer.subscription)
            if nothing_will_arrive(consumer, found):
                _say_what_is_left(found)
                return
            continue
        messages += consumer.arrived(printer.wanted - 1)
        printer.write(messages)
        for acks in dict.fromkeys(consumer.ack(message) for message in messages):  # one per partition
            await acks


def _say_what_is_left(found: SubscriptionDescription) -> None:
    """Tells what is left in the subscription, if anything."""
    left: list[str] = []
    if found.delayed and found.delayed_until is not None:
        left.append(f"{found.delayed:,} delayed until {shown_when(found.delayed_until, time.time_ns() // 1000)}")
    if found.stopped:
        left.append(f"{found.stopped:,} blocked {found.blocked or 'by a message that failed too often'}")
    if found.in_flight:
        left.append(f"{found.in_flight:,} with other consumers")
    if left:
        say(f"{many(found.backlog)} left: {', '.join(left)}")
