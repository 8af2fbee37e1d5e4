"""The offload port without threads: each function runs after a seeded delay, in any order."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

from pydanube.sim.machine.loop import PROCESS, Process, SimLoop

Result = TypeVar("Result")

DELAY_SECONDS_MAX = 0.005


class SimOffload:
    def __init__(self, loop: SimLoop, random: Random) -> None:
        self._loop = loop
        self._random = random

    def run(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        future: Future[Result] = self._loop.create_future()
        delay = self._random.random() * DELAY_SECONDS_MAX
        work = (PROCESS.get(), future, function, arguments)
        self._loop.call_later(delay, self._work, *work, context=self._loop.world)
        return future

    def _work(
        self, process: Process | None, future: Future[Any], function: Callable[..., Any], arguments: tuple[object, ...]
    ) -> None:
        if future.done() or (process is not None and not process.alive):
            return
        try:
            result = function(*arguments)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
