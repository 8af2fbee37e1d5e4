"""The offload port on a thread pool. The functions must be pure: they share nothing with the loop."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

OFFLOAD_THREADS = 2  # compression and checksums release the interpreter; more threads only compete with the loop


class ThreadOffload:
    def __init__(self, threads: int = OFFLOAD_THREADS) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="danube-offload")

    def run(self, function: Callable[..., Result], *arguments: object) -> Future[Result]:
        return asyncio.get_running_loop().run_in_executor(self._pool, function, *arguments)

    def close(self) -> None:
        """Waits for running functions and ends the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
