"""The end of `async with`: closes in peace, or in a hurry where the program is being ended."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pydanube.base.errors import DanubeError

HURRIED_SECONDS = 5.0  # to send what is left to a broker that is there
AWAY_SECONDS = 0.5  # to one that is not: a program with several open things still ends within two seconds


class Closing(Protocol):
    """A client, producer, consumer or reader."""

    @property
    def connected(self) -> bool: ...

    async def close(self) -> None: ...


async def close_after(open_thing: Closing, error: BaseException | None) -> None:
    """Closes what a block used that ended with this error, which says more than a failing `close` would.

    Ctrl-C and cancelling want an end soon. What could not be sent until then has failed, and is logged.
    """
    hurried = error is not None and not isinstance(error, Exception)
    try:
        async with asyncio.timeout(_seconds(open_thing) if hurried else None):
            await open_thing.close()
    except TimeoutError:
        pass
    except DanubeError:
        if error is None:
            raise


def _seconds(open_thing: Closing) -> float:
    return HURRIED_SECONDS if open_thing.connected else AWAY_SECONDS
