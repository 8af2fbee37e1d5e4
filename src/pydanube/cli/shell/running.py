"""Runs the coroutine of a command with a client that is connected to the chosen broker."""

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
from pydanube.cli.shell.settings import broker_of, broker_options
from pydanube.client import Client, ClientEvent

WATCH_MILLISECONDS = 500  # how often the thread that watches stdout checks whether it is still needed
logging.getLogger("pydanube.client").addHandler(logging.NullHandler())  # commands report failures themselves


def run(work: Any) -> Any:
    """Runs a coroutine, with uvloop if it is installed."""
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.run(work)
    return uvloop.run(work)


def connected(work: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Makes a command of a coroutine function that takes a connected client as its first argument."""

    @wraps(work)
    def command(*arguments: Any, **options: Any) -> Any:
        try:
            return run(_on_client(work, *arguments, **options))
        except asyncio.CancelledError:  # by SIGTERM
            raise KeyboardInterrupt from None

    return broker_options(command)


async def _on_client(work: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError, RuntimeError, ValueError):  # not on every platform, and only in the main thread
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # ends the command like Ctrl-C
    async with client_of(click.get_current_context(), ConnectionNotices().on_event) as client:
        try:
            return await work(client, *arguments, **options)
        except DanubeError as error:
            if client.connected or not error.retriable or isinstance(error, ConnectionLost):
                raise
            lost = ConnectionLost(f"lost the connection to the broker: {error}")  # the cause of whatever failed
            for note in getattr(error, "__notes__", ()):
                lost.add_note(note)
            raise lost from error


@contextmanager
def cancelled_when_output_closes() -> Iterator[None]:
    """Cancels the task when the reader of stdout is gone, which a command that only waits would not notice."""
    try:
        stdout = sys.stdout.fileno()
        piped = stat.S_ISFIFO(mode := os.fstat(stdout).st_mode) or stat.S_ISSOCK(mode)
    except (OSError, ValueError):  # stdout is not a file
        piped = False
    task = asyncio.current_task()
    if task is None or not piped or not hasattr(select, "poll"):
        yield
        return
    loop, ended = asyncio.get_running_loop(), threading.Event()

    def leave() -> None:
        if not ended.is_set():  # otherwise the command is already closing what it opened
            task.cancel()

    def watch() -> None:
        poll = select.poll()
        poll.register(stdout, 0)  # reports only that the other end was closed
        while not ended.is_set():
            if poll.poll(WATCH_MILLISECONDS):
                with suppress(RuntimeError):  # the loop has ended, too
                    loop.call_soon_threadsafe(leave)
                return

    threading.Thread(target=watch, name="danube-reader", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def client_of(context: click.Context, on_event: Callable[[ClientEvent], None] | None = None) -> Client:
    broker = broker_of(context)
    return pydanube.connect(broker.url, ca_file=broker.ca_file, token_file=broker.token_file, on_event=on_event)


class ConnectionNotices:
    """Reports on stderr when the broker becomes unreachable and reachable again."""

    def __init__(self) -> None:
        self._away = False

    def on_event(self, event: ClientEvent) -> None:
        if event.what == "disconnected":
            self._away = True
            say("the broker is unreachable; retrying")
        elif event.what == "connected" and self._away:
            self._away = False
            say("the broker is reachable again")
        elif event.what == "disk_full":
            say(f"the broker's disk is full, nothing is published for now; trying again: {event.error}")
