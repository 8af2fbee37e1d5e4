"""Runs a command's coroutine on a client of the chosen broker, and gives it the ways to print and to ask."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from typing import Any

import click

import pydanube
from pydanube.base.errors import ConnectionLost, DanubeError
from pydanube.cli.failures import say
from pydanube.cli.settings import broker_of, place_options
from pydanube.client import Client, ClientEvent

logging.getLogger("pydanube.client").addHandler(logging.NullHandler())  # commands say it in their own words


def run(work: Any) -> Any:
    """A coroutine to its end, on the quick loop where there is one."""
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.run(work)
    return uvloop.run(work)


def connected(work: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Makes a command of a coroutine function whose first argument is a connected client."""

    @wraps(work)
    def command(*arguments: Any, **options: Any) -> Any:
        try:
            return run(_on_client(work, *arguments, **options))
        except asyncio.CancelledError:  # by SIGTERM
            raise KeyboardInterrupt from None

    return place_options(command)


async def _on_client(work: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every platform, nor beside the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # it ends as by Ctrl-C
    async with client_of(click.get_current_context(), Announcer().tell) as client:
        try:
            return await work(client, *arguments, **options)
        except DanubeError as error:
            if client.connected or not error.retriable or isinstance(error, ConnectionLost):
                raise
            lost = ConnectionLost(f"the broker went away: {error}")  # whatever it said before
            for note in getattr(error, "__notes__", ()):
                lost.add_note(note)
            raise lost from error


def client_of(context: click.Context, on_event: Callable[[ClientEvent], None] | None = None) -> Client:
    broker = broker_of(context)
    return pydanube.connect(broker.url, ca_file=broker.ca_file, on_event=on_event)


async def rehearsed(client: Client, verb: str, **fields: Any) -> dict[str, Any]:
    """What the broker would answer; it refuses what it would refuse. So nobody agrees to what then cannot be done."""
    given = {name: value for name, value in fields.items() if value is not None}
    return await client.ask(verb, {**given, "dry_run": True})


class Announcer:
    """Says on stderr when the broker goes away and comes back: a command that waits for it is not silent."""

    def __init__(self) -> None:
        self._away = False

    def tell(self, event: ClientEvent) -> None:
        if event.what == "disconnected":
            self._away = True
            say("the broker is unreachable; trying again")
        elif event.what == "connected" and self._away:
            self._away = False
            say("the broker is reachable again")
