"""`danube produce`: publishes messages from arguments, stdin, files or a template."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import click

from pydanube.base.errors import DanubeError, MessageTooLarge, TopicNotFound
from pydanube.base.errors.root import ExitCode
from pydanube.base.units import shown_when
from pydanube.cli.messages.sources import fill_template, lines_of, whole_files
from pydanube.cli.messages.text import Draft, draft_of_line
from pydanube.cli.shell import values
from pydanube.cli.shell.output import Output, Throughput, prints, throughput
from pydanube.cli.shell.running import connected
from pydanube.cli.shell.values import many, pairs
from pydanube.client import Client

GENERATED_AT_ONCE = 1000


class Delivery(NamedTuple):
    """When messages are to be delivered: a delay after sending, or at a time; immediately if neither is given."""

    delay: int | None = None  # microseconds
    at: int | None = None  # microseconds since 1970

    def __bool__(self) -> bool:
        return self.delay is not None or self.at is not None

    def time(self) -> int | None:
        return self.at if self.delay is None else time.time_ns() // 1000 + self.delay


class Shape(NamedTuple):
    """How to turn a line into a message."""

    json: bool
    key: str | None
    key_separator: bytes | None
    attributes: dict[str, str]
    delivery: Delivery = Delivery()

    @property
    def plain(self) -> bool:
        """Whether messages have only a payload and perhaps a key, so that `send_many` can be used."""
        return not (self.json or self.attributes or self.delivery)

    @property
    def keyed(self) -> bool:
        return self.key is not None or self.key_separator is not None

    def draft(self, line: bytes, number: int) -> Draft:
        if self.json:
            draft = draft_of_line(line, strict=True)
            return draft._replace(
                key=self._key(number) if draft.key is None else draft.key,
                attributes={**self.attributes, **(draft.attributes or {})} or None,
                delivery_time=self.delivery.time() if draft.delivery_time is None else draft.delivery_time,
            )
        key = self._key(number)
        if self.key_separator is not None:
            name, found, value = line.partition(self.key_separator)
            if found:
                key, line = name, value
        return Draft(line, key, self.attributes or None, delivery_time=self.delivery.time())

    def _key(self, number: int) -> bytes | None:
        return None if self.key is None else fill_template(self.key, number)


class Produced(Throughput):
    topic: str


@click.command(epilog="Example: danube produce orders --value 'order {n}' --count 100 --rate 10 --key 'k{n}'")
@click.argument("topic", type=values.topic)
@click.argument("messages", nargs=-1, metavar="[MESSAGE]...")
@click.option("--value", metavar="TEXT", help="Publish this text; {n}, {uuid} and {now} are filled in.")
@click.option(
    "--file",
    "files",
    multiple=True,
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Publish the lines of this file; - is stdin. May be repeated.",
)
@click.option("--whole", is_flag=True, help="Publish each file, or all of stdin, as one message.")
@click.option(
    "--count", "-n", type=values.Integer(min=1), help="Publish --value this many times, or at most this many lines."
)
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Maximum messages per second.")
@click.option("--delay", type=values.duration, metavar="DURATION", help="Delay the delivery of each message: 3s.")
@click.option(
    "--at", type=values.delivery_time, metavar="TIME", help="Deliver at this time: 14:30, or 2026-01-31T10:00."
)
@click.option("--key", "-k", metavar="TEXT", help="Key of each message; {n}, {uuid} and {now} are filled in.")
@click.option("--key-separator", "-K", metavar="TEXT", help="Split each line at this text into key and value.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Attribute of each message.")
@click.option("--json", "as_json", is_flag=True, help='Read each line as {"key": …, "value": …, "attributes": …}.')
@click.option(
    "--reliable/--no-reliable", default=None, help="Kind of the topic, if it has to be created.  [default: reliable]"
)
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@click.option("--quiet", "-q", is_flag=True, help="Do not print how many messages were acknowledged.")
@prints(Produced)
@connected
async def produce(
    client: Client,
    output: Output,
    topic: str,
    messages: tuple[str, ...],
    value: str | None,
    files: tuple[str, ...],
    whole: bool,
    count: int | None,
    rate: float | None,
    delay: int | None,
    at: int | None,
    key: str | None,
    key_separator: str | None,
    headers: tuple[str, ...],
    as_json: bool,
    reliable: bool | None,
    compression: str,
    quiet: bool,
) -> int:
    """Publish messages: arguments, lines of stdin, files, or generated text.

    Each MESSAGE is published as it is. Without MESSAGE, --value and --file, every line of stdin is a message, without
    its line ending. The command ends when all messages are acknowledged. Ctrl-C stops reading and waits for what was
    sent. Only Shared subscriptions honour --delay and --at.
    """
    if messages == ("-",):
        messages, files = (), files or ("-",)
    _check_sources(messages, value, files, whole=whole, by_line=as_json or key_separator is not None)
    if key_separator == "":
        raise click.UsageError("--key-separator must not be empty")
    if delay is not None and at is not None:
        raise click.UsageError("use either --delay or --at")
    separator, delivery = None if key_separator is None else key_separator.encode(), Delivery(delay, at)
    shape = Shape(as_json, key, separator, pairs(headers, "an attribute"), delivery)
    if not (messages or files or value is not None or quiet) and sys.stdin.isatty():
        click.echo("every line is a message; Ctrl-D ends", err=True)
    if reliable is None:
        reliable = await _is_reliable(client, topic)
    if messages or value is not None:
        source = _given(messages) if messages else _generated(value or "", count or 1)
    else:
        source = (whole_files if whole else lines_of)(files or ("-",))
    sender = Sender(client, topic, shape, rate, count, reliable=reliable, compression=compression)
    began = perf_counter()
    try:
        return await sender.run(source)
    finally:
        if not quiet:
            done = Produced(topic=topic, **throughput(sender.acknowledged, perf_counter() - began))
            what = "acknowledged" if reliable else "sent (the topic is not reliable)"
            output.summary(f"{many(sender.acknowledged)} {what}{_when(delivery)}", done)


def _check_sources(
    messages: tuple[str, ...], value: str | None, files: tuple[str, ...], *, whole: bool, by_line: bool
) -> None:
    """Allows only one source. Refuses a MESSAGE that is the name of a file, which is hardly ever meant as text."""
    if bool(messages) + (value is not None) + (bool(files) or whole) > 1:
        raise click.UsageError("use only one of MESSAGE, --value and --file")
    if whole and by_line:
        raise click.UsageError("--whole publishes files as they are; it cannot be used with --json or --key-separator")
    if messages and (named := next(filter(_is_file, messages), None)) is not None:
        raise click.UsageError(
            f"{named!r} is a file; use --file {named} to publish its lines, or --value {named} to publish the name"
        )


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long, or not a path at all
        return False


def _when(delivery: Delivery) -> str:
    if not delivery:
        return ""
    due = delivery.time() or 0
    return f"; Shared subscriptions deliver from {shown_when(due, time.time_ns() // 1000)}"


async def _is_reliable(client: Client, topic: str) -> bool:
    """The kind of the topic; a new one will be reliable."""
    try:
        return (await client.topic(topic)).reliable
    except TopicNotFound:
        return True


async def _given(messages: tuple[str, ...]) -> AsyncIterator[list[bytes]]:
    yield [each.encode("utf-8", "surrogateescape") for each in messages]


async def _generated(template: str, count: int) -> AsyncIterator[list[bytes]]:
    for first in range(1, count + 1, GENERATED_AT_ONCE):
        last = min(first + GENERATED_AT_ONCE, count + 1)
        yield [fill_template(template, number) for number in range(first, last)]


class Sender:
    """Sends the messages of one run of the command."""

    def __init__(
        self, client: Client, topic: str, shape: Shape, rate: float | None, limit: int | None, **options: Any
    ) -> None:
        self._producer = client.producer(topic, on_error=self._lose, **options)
        self._shape = shape
        self._rate = rate
        self._limit = limit
        self._sent = 0
        self._failed = 0
        self._ended = False

    @property
    def acknowledged(self) -> int:
        return self._sent - self._failed if self._ended else 0

    def _lose(self, error: DanubeError, count: int) -> None:
        self._failed += count

    async def run(self, source: AsyncIterator[list[bytes]]) -> int:
        """Sends everything, or what was read before Ctrl-C, and waits for all answers. Returns the exit code."""
        ended = ExitCode.SUCCESS
        try:
            async with self._producer:
                try:
                    await self._send_all(source)
                except asyncio.CancelledError:
                    ended = ExitCode.INTERRUPTED
                finally:
                    self._ended = True
        except DanubeError as error:
            if self._failed:
                error.__notes__ = [f"{many(self._failed)} not published"]
            raise
        return ended

    async def _send_all(self, source: AsyncIterator[list[bytes]]) -> None:
        plain = self._shape.plain and self._rate is None
        began = asyncio.get_running_loop().time()
        async for lines in source:
            if self._limit is not None:
                lines = lines[: self._limit - self._sent]
            if plain:
                await self._send_many(lines, began)
            else:
                await self._send_each(lines, began)
            if self._sent == self._limit:
                return

    async def _send_many(self, lines: list[bytes], began: float) -> None:
        await self._producer.ready()
        given = lines
        keys: list[str | bytes | None] | None = None
        if self._shape.keyed:
            drafts = [self._shape.draft(line, number) for number, line in enumerate(lines, self._sent + 1)]
            lines, keys = [each.payload or b"" for each in drafts], [each.key for each in drafts]
        try:
            self._producer.send_many(lines, keys=keys)
        except MessageTooLarge:  # nothing was sent; send one by one to publish those before it and to name the line
            await self._send_each(given, began)
            return
        self._sent += len(lines)

    async def _send_each(self, lines: list[bytes], began: float) -> None:
        loop = asyncio.get_running_loop()
        for line in lines:
            try:
                draft = self._shape.draft(line, self._sent + 1)
            except click.UsageError as error:
                raise click.UsageError(f"line {self._sent + 1}: {error.message}") from None
            if self._rate is not None and (early := began + self._sent / self._rate - loop.time()) > 0:
                await asyncio.sleep(early)
            if self._producer.busy:
                await self._producer.ready()
            try:
                self._producer.send(draft.payload, **draft.options)
            except MessageTooLarge as error:
                raise type(error)(f"line {self._sent + 1}: {error}") from None
            self._sent += 1
