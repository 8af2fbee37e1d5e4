"""`danube top`: the busiest topics, measured between two refreshes."""

from __future__ import annotations

import asyncio

import click
from msgspec.structs import asdict

from pydanube.base.errors import NamespaceNotFound, TopicNotFound
from pydanube.cli.shell import values
from pydanube.cli.shell.output import Output, prints
from pydanube.cli.shell.polling import poll
from pydanube.cli.shell.running import connected
from pydanube.client import Client
from pydanube.operations.topics import TopicDescription

TOPICS_MAX = 1000  # described in each refresh, with one request each
ASKED_AT_ONCE = 32
COLUMNS = ("topic", "messages_per_second", "bytes_per_second", "messages", "bytes", "producers", "consumers")
SORTS = {"rate": "messages_per_second", "bytes": "bytes", "messages": "messages", "name": "topic"}


class TopicRates(TopicDescription):
    """Rates need two refreshes, so the first one has none."""

    published: int  # the sum of all ends
    messages: int
    messages_per_second: float | None = None
    bytes_per_second: float | None = None


@click.command(epilog="Example: danube top --namespace default --every 5s")
@click.option("--namespace", help="Only this namespace.")
@click.option("--every", type=values.duration, default="2s", show_default=True, help="Refresh interval.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="rate", show_default=True)
@click.option(
    "--lines", type=values.Integer(1, TOPICS_MAX), default=20, show_default=True, help="Number of topics to show."
)
@click.option("--count", "rounds", type=values.Integer(min=1), help="Stop after this many refreshes.")
@prints(list[TopicRates])
@connected
async def top(
    client: Client, output: Output, namespace: str | None, every: int, sort: str, lines: int, rounds: int | None
) -> None:
    """Live view of the busiest topics.

    Runs until Ctrl-C, even while the broker is unreachable. Rates need two refreshes, so the first one shows none. With
    JSON every refresh is a line, with YAML a document.
    """
    before: dict[str, TopicRates] = {}
    try:
        with output.live(COLUMNS) as show:
            async for rows, elapsed in poll(client, lambda: _topic_rows(client, namespace), every, rounds):
                for row in rows:
                    _measure(row, before.get(row.topic), elapsed)
                before = {row.topic: row for row in rows}
                show(_sorted(rows, SORTS[sort])[:lines])
    except asyncio.CancelledError:  # ended by Ctrl-C
        return


async def _topic_rows(client: Client, namespace: str | None) -> list[TopicRates]:
    names: list[str] = []
    for each in [namespace] if namespace is not None else await client.admin.namespaces():
        try:
            names += await client.admin.topics(each)
        except NamespaceNotFound:
            if namespace is not None:
                raise
    gate = asyncio.Semaphore(ASKED_AT_ONCE)

    async def row(name: str) -> TopicRates | None:
        async with gate:
            try:
                found = await client.admin.describe_topic(name)
            except TopicNotFound:  # deleted meanwhile
                return None
        ends = sum(found.ends)
        return TopicRates(**asdict(found), published=ends, messages=ends - sum(found.firsts))

    return [found for found in await asyncio.gather(*map(row, names[:TOPICS_MAX])) if found is not None]


def _measure(row: TopicRates, before: TopicRates | None, elapsed: float) -> None:
    """Adds the rates. Bytes are estimated from the average message, because deleted messages are not known."""
    if before is None or elapsed <= 0:
        return
    row.messages_per_second = rate = (row.published - before.published) / elapsed
    row.bytes_per_second = rate * row.bytes / row.messages if row.messages else 0.0


def _sorted(rows: list[TopicRates], name: str) -> list[TopicRates]:
    if name == "topic":
        return sorted(rows, key=lambda row: row.topic)
    return sorted(rows, key=lambda row: (-(row[name] or 0), row.topic))
