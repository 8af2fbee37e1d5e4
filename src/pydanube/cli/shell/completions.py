"""Shell completion of names: topics and subscriptions, by asking the broker, and saved contexts.

A user is waiting at the prompt. Completion that takes too long, or fails for any reason, offers nothing and prints
nothing.
"""

from __future__ import annotations

import asyncio

import click

from pydanube.cli.shell import values
from pydanube.cli.shell.contexts import Contexts
from pydanube.cli.shell.failures import Failure
from pydanube.cli.shell.running import client_of, run
from pydanube.client import Client

TIMEOUT_SECONDS = 1.0


def contexts(incomplete: str) -> list[str]:
    try:
        return [name for name in Contexts.load().saved if name.startswith(incomplete)]
    except (Failure, OSError):
        return []


def topics(context: click.Context, incomplete: str) -> list[str]:
    try:
        found: list[str] = run(_topics(context, incomplete))
    except Exception:  # even a bug in this command must not print a traceback at the prompt
        return []
    return [name for name in found if name.startswith(incomplete)]


def subscriptions(context: click.Context, incomplete: str) -> list[str]:
    try:
        # After an option, click has not parsed the arguments yet.
        topic = context.params["topic"] or values.topic(context.args[0])
        found: list[str] = run(_subscriptions(context, topic))
    except Exception:  # as above
        return []
    return [name for name in found if name.startswith(incomplete)]


async def _subscriptions(context: click.Context, topic: str) -> list[str]:
    async with asyncio.timeout(TIMEOUT_SECONDS), client_of(context) as client:
        return [each.subscription for each in await client.admin.subscriptions(topic)]


async def _topics(context: click.Context, incomplete: str) -> list[str]:
    async with asyncio.timeout(TIMEOUT_SECONDS), client_of(context) as client:
        if not incomplete.startswith("/"):
            return [name.rpartition("/")[2] for name in await client.admin.topics()]
        return [
            name for namespace in await _namespaces(client, incomplete) for name in await client.admin.topics(namespace)
        ]


async def _namespaces(client: Client, incomplete: str) -> list[str]:
    """The namespace of the name; if that is incomplete itself, all namespaces that start with it."""
    _, namespace, *name = incomplete.split("/")
    known = await client.admin.namespaces()
    return [each for each in known if (each == namespace if name else each.startswith(namespace))]
