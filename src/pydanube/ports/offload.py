"""Pure, heavy functions away from the loop. In the simulator they run at a seeded later moment."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from typing import Protocol, TypeVar

Result = TypeVar("Result")


class Offload(Protocol):
    def run(self, function: Callable[..., Result], *arguments: object) -> Future[Result]: ...
