"""Does the same work for many items, a few at a time: for example for thousands of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from pydanube.base.limits import PARTITIONS_AT_ONCE

Result = TypeVar("Result")
Item = TypeVar("Item")


async def together(work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    """The results for all items, a few at a time, in slices of a turn. Raises the first failure when all have ended."""
    wanted = list(items)
    ahead, results = iter(range(len(wanted))), dict[int, Result | Exception]()

    async def one_by_one() -> None:
        for at in ahead:
            if at >= PARTITIONS_AT_ONCE:
                await asyncio.sleep(0)  # lets other tasks run
            try:
                results[at] = await work(wanted[at])
            except Exception as error:
                results[at] = error

    ended = await asyncio.gather(*(one_by_one() for _ in wanted[:PARTITIONS_AT_ONCE]), return_exceptions=True)
    in_order = [results[at] for at in sorted(results)]
    for result in (*in_order, *ended):  # when one fails, others may have been cancelled
        if isinstance(result, BaseException):
            raise result
    return cast(list[Result], in_order)
