"""Runs pure, expensive functions off the event loop. In the simulator, the seed decides when they run."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Offload(Protocol):
    def run(self, function: Callable[..., Result], *arguments: object) -> Future[Result]: ...
