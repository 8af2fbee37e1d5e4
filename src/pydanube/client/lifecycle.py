"""Opening with `await` or `async with`, and closing, for clients, producers, consumers and readers."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from types import TracebackType
from typing import Any, Protocol, Self

from pydanube.base.errors import DanubeError

INTERRUPTED_SECONDS = 5.0  # to send what is left after Ctrl-C, if the broker is connected
DISCONNECTED_SECONDS = 0.5  # the same without a connection, so that programs end within about two seconds


class Closable(Protocol):
    """A client, producer, consumer or reader."""

    @property
    def connected(self) -> bool: ...

    async def close(self) -> None: ...


async def close_after(closable: Closable, error: BaseException | None) -> None:
    """Closes an object whose block ended with this error. That error is more useful than one of `close`.

    After Ctrl-C or a cancellation, closing is limited in time. What cannot be sent by then fails and is logged.
    """
    interrupted = error is not None and not isinstance(error, Exception)
    try:
        async with asyncio.timeout(_seconds(closable) if interrupted else None):
            await closable.close()
    except TimeoutError:
        pass
    except DanubeError:
        if error is None:
            raise


def _seconds(closable: Closable) -> float:
    return INTERRUPTED_SECONDS if closable.connected else DISCONNECTED_SECONDS


class Openable:
    """Can be opened with `async with`, `await` or `open`; after `await`, `async with` still works."""

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
