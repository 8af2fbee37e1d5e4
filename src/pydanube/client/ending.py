"""What all that is opened has in common: `await`, `async with`, and an end in peace or in a hurry."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, Protocol, Self

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


class Openable:
    """Opened with `async with`, `await` or `open`. One that `await` has opened may be used with `async with` too."""

    _awaited = False

    @property
    def connected(self) -> bool:
        raise NotImplementedError

    async def open(self) -> Self:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open_now().__await__()

    async def _open_now(self) -> Self:
        await self.open()
        self._awaited = True
        return self

    async def __aenter__(self) -> Self:
        if self._awaited:
            self._awaited = False
            return self
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await close_after(self, error)
