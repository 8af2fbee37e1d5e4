"""The same work for many items, some at a time: for the partitions of a topic, of which there may be thousands."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar, cast

from pydanube.base.limits import PARTITIONS_AT_ONCE

Result = TypeVar("Result")
Item = TypeVar("Item")


async def together(work: Callable[[Item], Awaitable[Result]], items: Iterable[Item]) -> list[Result]:
    """What it returns of each, some at a time and no more in one turn; raises the first failure when all have ended."""
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
    for result in (*in_order, *ended):  # some were cancelled, if they ended so
        if isinstance(result, BaseException):
            raise result
    return cast(list[Result], in_order)
