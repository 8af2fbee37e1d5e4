"""Names that a shell offers behind a word: of topics and subscriptions, by asking the broker, and of saved contexts.

Somebody waits with a finger on the key: what takes long, or fails in whatever way, offers nothing and says nothing.
"""

from __future__ import annotations

import asyncio

import click

from pydanube.cli.shell import values
from pydanube.cli.shell.contexts import Contexts
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.running import client_of, run
from pydanube.client import Client

PATIENCE_SECONDS = 1.0


def contexts(incomplete: str) -> list[str]:
    try:
        return [name for name in Contexts.load().saved if name.startswith(incomplete)]
    except (Failure, OSError):
        return []


def topics(context: click.Context, incomplete: str) -> list[str]:
    try:
        found: list[str] = run(_topics(context, incomplete))
    except Exception:  # also a fault of the command: a line of a shell is no place for it
        return []
    return [name for name in found if name.startswith(incomplete)]


def subscriptions(context: click.Context, incomplete: str) -> list[str]:
    try:
        topic = context.params["topic"] or values.topic(context.args[0])  # behind an option the line is not taken apart
        found: list[str] = run(_subscriptions(context, topic))
    except Exception:  # as above
        return []
    return [name for name in found if name.startswith(incomplete)]


async def _subscriptions(context: click.Context, topic: str) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(context) as client:
        return [str(each["subscription"]) for each in await client.admin.subscriptions(topic)]


async def _topics(context: click.Context, incomplete: str) -> list[str]:
    async with asyncio.timeout(PATIENCE_SECONDS), client_of(context) as client:
        if not incomplete.startswith("/"):
            return [name.rpartition("/")[2] for name in await client.admin.topics()]
        return [
            name for namespace in await _namespaces(client, incomplete) for name in await client.admin.topics(namespace)
        ]


async def _namespaces(client: Client, incomplete: str) -> list[str]:
    """That of the name; while that is not whole, all that it could become."""
    _, namespace, *name = incomplete.split("/")
    known = await client.admin.namespaces()
    return [each for each in known if (each == namespace if name else each.startswith(namespace))]
