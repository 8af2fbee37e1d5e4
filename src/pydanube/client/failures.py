"""Failures of sends that no one awaits: counted, logged, given to `on_error`, and raised once by `flush` or `close`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from pydanube.base.errors import DanubeError
from pydanube.base.wording import many
from pydanube.client.errors import copy_of
from pydanube.client.send_results import OnError

if TYPE_CHECKING:
    from pydanube.client.client import Client

KEPT_MAX = 100  # errors kept until `flush` or `close` raises the first; all messages are counted
log = logging.getLogger(__name__)


class Failed(Protocol):
    @property
    def count(self) -> int:
        """The number of its messages."""
        ...

    @property
    def awaited(self) -> bool:
        """Whether someone has awaited it after all."""
        ...


class Failures:
    """The failures of one producer."""

    def __init__(self, client: Client, topic: str, on_error: OnError | None) -> None:
        self._client = client
        self._topic = topic
        self._on_error = on_error
        self._kept: list[tuple[Failed, DanubeError]] = []
        self._count = 0
        self._unlogged = 0

    def add(self, failed: Failed, error: DanubeError) -> None:
        self._count += failed.count
        if len(self._kept) < KEPT_MAX:
            self._kept.append((failed, error))
        if not self._unlogged:
            self._client.loop.call_soon(self._log, error)  # once for all failures of this turn
        self._unlogged += failed.count
        if self._on_error is not None:
            self._client.call_back(self._on_error, error, failed.count)

    def _log(self, error: DanubeError) -> None:
        count, self._unlogged = self._unlogged, 0
        log.warning("sending %s to %s failed, and no one awaited the result: %s", many(count), self._topic, error)

    def raise_first(self) -> None:
        """Raises the first failure that no one awaited, and forgets all."""
        failed = [error for each, error in self._kept if not each.awaited]
        count, self._kept, self._count = self._count, [], 0
        if failed:
            error = copy_of(failed[0])
            error.add_note(f"sending {many(count)} failed, and no one awaited the result")
            raise error
