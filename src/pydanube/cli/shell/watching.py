"""Looking at a broker repeatedly. One that goes away meanwhile ends nothing: it is looked for until Ctrl-C."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydanube.base.errors import DanubeError
from pydanube.base.limits import SECOND
from pydanube.client import Client

Rows = list[dict[str, Any]]


async def looks(
    client: Client, look: Callable[[], Awaitable[Rows]], every: int, rounds: int | None
) -> AsyncIterator[tuple[Rows, float]]:
    """What each look finds, and the seconds since the one before it. A look that finds no broker counts as a round."""
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
