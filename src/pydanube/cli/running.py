"""Runs a command's coroutine on a client of the chosen broker, and gives it the ways to print and to ask."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from typing import Any

import click

import pydanube
from pydanube.cli.settings import broker_of, place_options
from pydanube.client import Client


def run(work: Any) -> Any:
    """A coroutine to its end, on the quick loop where there is one."""
    try:
        import uvloop
    except ImportError:  # not on every platform
        import asyncio

        return asyncio.run(work)
    return uvloop.run(work)


def connected(work: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Makes a command of a coroutine function whose first argument is a connected client."""

    @wraps(work)
    def command(*arguments: Any, **options: Any) -> Any:
        return run(_on_client(work, *arguments, **options))

    return place_options(command)


async def _on_client(work: Callable[..., Awaitable[Any]], *arguments: Any, **options: Any) -> Any:
    async with client_of(click.get_current_context()) as client:
        return await work(client, *arguments, **options)


def client_of(context: click.Context) -> Client:
    broker = broker_of(context)
    return pydanube.connect(broker.url, ca_file=broker.ca_file)
