"""Asks a broker repeatedly, until Ctrl-C, even while the broker is unreachable."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.client import Client

Row = TypeVar("Row")


async def poll(
    client: Client, look: Callable[[], Awaitable[list[Row]]], every: int, rounds: int | None
) -> AsyncIterator[tuple[list[Row], float]]:
    """Yields the rows that `look` returns and the seconds since the last ones. A failed attempt counts as a round."""
    loop = asyncio.get_running_loop()
    looked = loop.time()
    number = 0
    while number != rounds:
        if number:
            await asyncio.sleep(every / SECOND)
        number += 1
        if number > 1 and not client.connected:
            continue
        try:
            rows = await look()
        except DanubeError as error:
            if number == 1 or not error.retriable:
                raise
            continue
        elapsed, looked = loop.time() - looked, loop.time()
        yield rows, elapsed
