"""Work that goes on without who asked for it: it keeps its turn, and its failure is heard of."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest

from pydanube.base.errors import DiskFailed
from pydanube.broker.work.errands import Errands
from pydanube.broker.work.named_locks import NamedLocks
from tier.broker_world import in_loop


async def failing_with(error: Exception, may: asyncio.Event) -> None:
    await may.wait()
    raise error


async def left(errands: Errands, error: Exception) -> list[dict[str, Any]]:
    """Its client hangs up, then it fails. What the loop was told."""
    told = list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, about: told.append(about))
    may = asyncio.Event()
    asking = asyncio.ensure_future(errands.run(failing_with(error, may)))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    may.set()
    await asyncio.gather(*errands._tasks, return_exceptions=True)
    return told


@in_loop
async def test_a_failure_that_nobody_waits_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await left(Errands(), DiskFailed("a sector is gone")) == []
    assert "client did not wait for the answer failed: disk_failed: a sector is gone" in caplog.text


@in_loop
async def test_a_mistake_that_nobody_waits_for_is_told_to_the_loop() -> None:
    [told] = await left(Errands(), mistake := ValueError("a mistake"))
    assert told["exception"] is mistake


@in_loop
async def test_a_failure_that_somebody_waits_for_is_theirs_alone(caplog: pytest.LogCaptureFixture) -> None:
    may = asyncio.Event()
    may.set()
    with caplog.at_level(logging.WARNING), pytest.raises(DiskFailed):
        await Errands().run(failing_with(DiskFailed("a sector is gone"), may))
    assert caplog.text == ""


@in_loop
async def test_a_failure_in_the_very_moment_in_which_the_client_leaves_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    may = asyncio.Event()

    async def failing() -> None:
        await may.wait()
        asking.cancel()
        raise DiskFailed("a sector is gone")

    asking = asyncio.ensure_future(Errands().run(failing()))
    with caplog.at_level(logging.WARNING):
        await asyncio.sleep(0)
        may.set()
        await asyncio.wait([asking])
        await asyncio.sleep(0)
    assert caplog.text.count("a sector is gone") == 1


@in_loop
async def test_a_turn_lasts_as_long_as_the_work_though_the_client_is_gone() -> None:
    errands, turns, may = Errands(), NamedLocks(), asyncio.Event()

    async def work() -> None:
        await may.wait()

    async def ask() -> None:
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(turns.of("it"))
            await errands.run_holding(turn, work)

    asking = asyncio.ensure_future(ask())
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])
    assert "it" in turns
    may.set()
    await asyncio.gather(*errands._tasks)
    assert "it" not in turns
