"""Runs a command's coroutine on a client of the chosen broker, and gives it the ways to print and to ask."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any

import click

import pydanube
from pydanube.base.errors import ConnectionLost, DanubeError
from pydanube.cli.shell.failures import say
from pydanube.cli.shell.settings import broker_of, place_options
from pydanube.client import Client, ClientEvent

LOOKS_MILLISECONDS = 500  # after which a thread that watches stdout sees that it is no longer needed
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
            lost = ConnectionLost(f"lost the connection to the broker: {error}")  # whatever it said before
            for note in getattr(error, "__notes__", ()):
                lost.add_note(note)
            raise lost from error


@contextmanager
def ended_by_its_reader() -> Iterator[None]:
    """Cancels the task when nobody reads stdout any more: a command that waits for messages has nothing to write."""
    try:
        stdout = sys.stdout.fileno()
        piped = stat.S_ISFIFO(mode := os.fstat(stdout).st_mode) or stat.S_ISSOCK(mode)
    except (OSError, ValueError):  # it is not a file
        piped = False
    task = asyncio.current_task()
    if task is None or not piped or not hasattr(select, "poll"):
        yield
        return
    loop, ended = asyncio.get_running_loop(), threading.Event()

    def leave() -> None:
        if not ended.is_set():  # else it ends already, and closes what it has open
            task.cancel()

    def watch() -> None:
        poll = select.poll()
        poll.register(stdout, 0)  # only its end
        while not ended.is_set():
            if poll.poll(LOOKS_MILLISECONDS):
                with suppress(RuntimeError):  # the loop has ended as well
                    loop.call_soon_threadsafe(leave)
                return

    threading.Thread(target=watch, name="danube-reader", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


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
            say("the broker is unreachable; retrying")
        elif event.what == "connected" and self._away:
            self._away = False
            say("the broker is reachable again")
        elif event.what == "disk_full":
            say(f"the broker's disk is full, nothing is published for now; trying again: {event.error}")
