"""`danube produce`: lines, files, one value, or many by a template, to a topic."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from time import perf_counter
from typing import Any, NamedTuple

import click

from pydanube.base.errors import DanubeError, MessageTooLarge, TopicNotFound
from pydanube.cli import values
from pydanube.cli.failures import Exit
from pydanube.cli.intake import fill, lines_of, whole_files
from pydanube.cli.messages import Draft, draft_of_line
from pydanube.cli.output import Output, pace, printed
from pydanube.cli.running import connected
from pydanube.cli.values import many, pairs
from pydanube.client import Client

GENERATED_AT_ONCE = 1000


class Shape(NamedTuple):
    """How a line becomes a message."""

    json: bool
    key: str | None
    key_separator: bytes | None
    attributes: dict[str, str]

    @property
    def keyed(self) -> bool:
        return self.key is not None or self.key_separator is not None

    def draft(self, line: bytes, number: int) -> Draft:
        if self.json:
            draft = draft_of_line(line, strict=True)
            return draft._replace(
                key=self._key(number) if draft.key is None else draft.key,
                attributes={**self.attributes, **(draft.attributes or {})} or None,
            )
        key = self._key(number)
        if self.key_separator is not None:
            name, found, value = line.partition(self.key_separator)
            if found:
                key, line = name, value
        return Draft(line, key, self.attributes or None)

    def _key(self, number: int) -> bytes | None:
        return None if self.key is None else fill(self.key, number)


@click.command(epilog="Example: danube produce orders --value 'order {n}' --count 100 --rate 10 --key 'k{n}'")
@click.argument("topic", type=values.topic)
@click.argument("files", nargs=-1, metavar="[FILE]...", type=click.Path(exists=True, dir_okay=False, allow_dash=True))
@click.option("--value", metavar="TEXT", help="Publish this instead of lines; {n}, {uuid} and {now} are filled in.")
@click.option("--count", "-n", type=values.Whole(min=1), help="So many messages: of --value, or of the lines at most.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="So many a second at most.")
@click.option("--key", "-k", metavar="TEXT", help="Key of each message; {n}, {uuid} and {now} are filled in.")
@click.option("--key-separator", "-K", metavar="TEXT", help="A line is its key, this, and its value.")
@click.option("--whole", is_flag=True, help="Each FILE, or all of stdin, is one message, whatever bytes it has.")
@click.option("--header", "-H", "headers", multiple=True, metavar="NAME=VALUE", help="Attribute of each message.")
@click.option("--json", "as_json", is_flag=True, help='A line is {"key": …, "payload": …, "attributes": …}.')
@click.option("--reliable/--no-reliable", default=None, help="Kind of the topic, if it is new.  [default: reliable]")
@click.option("--compression", type=click.Choice(["none", "lz4", "zstd"]), default="none", show_default=True)
@click.option("--quiet", "-q", is_flag=True, help="Do not say how many were acknowledged.")
@printed
@connected
async def produce(
    client: Client,
    output: Output,
    topic: str,
    files: tuple[str, ...],
    value: str | None,
    count: int | None,
    rate: float | None,
    key: str | None,
    key_separator: str | None,
    whole: bool,
    headers: tuple[str, ...],
    as_json: bool,
    reliable: bool | None,
    compression: str,
    quiet: bool,
) -> int:
    """Publish lines, files or generated messages.

    Without FILE and --value, every line of stdin is a message; its end, \\n or \\r\\n, is no part of it. Ends when all
    are acknowledged, and says how many. Ctrl-C stops reading, waits for what was sent, and says the same.
    """
    if value is not None and (files or whole):
        raise click.UsageError("say either --value or files")
    if whole and (as_json or key_separator is not None):
        raise click.UsageError("--whole takes files as they are: leave out --json and --key-separator")
    if key_separator == "":
        raise click.UsageError("--key-separator is at least one character")
    separator = None if key_separator is None else key_separator.encode()
    shape = Shape(as_json, key, separator, pairs(headers, "an attribute"))
    if value is None and not files and sys.stdin.isatty() and not quiet:
        click.echo("every line is a message; Ctrl-D ends", err=True)
    if reliable is None:
        reliable = await _is_reliable(client, topic)
    read = whole_files if whole else lines_of
    source = _generated(value, count or 1) if value is not None else read(files or ("-",))
    sending = Sending(client, topic, shape, rate, count, reliable=reliable, compression=compression)
    began = perf_counter()
    try:
        return await sending.run(source)
    finally:
        if not quiet:
            fields = {"topic": topic, **pace(sending.acknowledged, perf_counter() - began)}
            what = "acknowledged" if reliable else "sent (the topic is not reliable)"
            output.summary(f"{many(sending.acknowledged)} {what}", **fields)


async def _is_reliable(client: Client, topic: str) -> bool:
    """As the topic is; one that is new will be."""
    try:
        return (await client.topic(topic)).reliable
    except TopicNotFound:
        return True


async def _generated(template: str, count: int) -> AsyncIterator[list[bytes]]:
    for first in range(1, count + 1, GENERATED_AT_ONCE):
        last = min(first + GENERATED_AT_ONCE, count + 1)
        yield [fill(template, number) for number in range(first, last)]


class Sending:
    """One run of the command."""

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
        """All of it, or what came before Ctrl-C; every message is answered when it returns."""
        ended = Exit.FINE
        try:
            async with self._producer:
                try:
                    await self._send_all(source)
                except asyncio.CancelledError:
                    ended = Exit.INTERRUPTED
                finally:
                    self._ended = True
        except DanubeError as error:
            if self._failed:
                error.__notes__ = [f"{many(self._failed)} not published"]
            raise
        return ended

    async def _send_all(self, source: AsyncIterator[list[bytes]]) -> None:
        plain = not self._shape.json and not self._shape.attributes and self._rate is None
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
        except MessageTooLarge:  # none was sent; one by one, those before it are, and it is named
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
                raise MessageTooLarge(f"line {self._sent + 1}: {error}") from None
            self._sent += 1
