"""Jobs: waited for with a ticket, bounded, and their failures go to whoever has the ticket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest

from pydanube.base.errors import ObjectsFailed, TierBusy
from pydanube.broker.work import jobs as jobs_module
from pydanube.broker.work.jobs import Jobs

SOON = 0.001
LATER = 10.0


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options))

    return run


@in_loop
async def test_a_job_is_begun_once_and_its_result_given_to_who_has_the_ticket() -> None:
    jobs, go_on, begun = Jobs(), asyncio.Event(), 0

    async def work() -> str:
        nonlocal begun
        begun += 1
        await go_on.wait()
        return "done"

    first = await jobs.ask(("a",), work, None, SOON)
    assert first.result is None
    assert await jobs.ask(("a",), work, first.ticket, SOON) == first
    go_on.set()
    assert (await jobs.ask(("a",), work, first.ticket, LATER)).result == "done"
    assert begun == 1
    assert (await jobs.ask(("a",), work, first.ticket, LATER)).result == "done"  # the ticket is used up: a new one
    assert begun == 2


@in_loop
async def test_a_ticket_of_something_else_begins_a_job_of_its_own() -> None:
    jobs, never = Jobs(), asyncio.Event()

    async def hangs() -> str:
        await never.wait()
        return ""

    async def quick() -> str:
        return "mine"

    theirs = await jobs.ask(("theirs",), hangs, None, SOON)
    assert (await jobs.ask(("mine",), quick, theirs.ticket, LATER)).result == "mine"
    await jobs.close()


@in_loop
async def test_a_failure_is_raised_to_who_asks() -> None:
    jobs = Jobs()

    async def fails() -> str:
        raise ObjectsFailed("planted")

    with pytest.raises(ObjectsFailed, match="planted"):
        await jobs.ask(("a",), fails, None, LATER)


@in_loop
async def test_there_are_only_so_many_and_what_ended_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs_module, "JOBS_MAX", 2)
    jobs, go_on = Jobs(), asyncio.Event()

    async def work() -> str:
        await go_on.wait()
        return "done"

    await jobs.ask(("a",), work, None, SOON)
    second = await jobs.ask(("b",), work, None, SOON)
    with pytest.raises(TierBusy):
        await jobs.ask(("c",), work, None, SOON)
    go_on.set()
    await asyncio.wait([job.task for job in jobs._jobs.values()])
    assert (await jobs.ask(("c",), work, None, LATER)).result == "done"  # in the place of the oldest
    assert (await jobs.ask(("b",), work, second.ticket, LATER)).result == "done"
    await jobs.close()
