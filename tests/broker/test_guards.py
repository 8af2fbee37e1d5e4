"""Work in the background goes on after an error that nobody foresaw: it is counted, told once, and then forgotten."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pydanube.broker.cold import tiering
from pydanube.broker.cold.tiering import OBJECT_STORAGE, Tiering
from pydanube.broker.commit import sinks
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.directory.topic_changes import TopicChanges
from pydanube.broker.door.metrics import Page
from pydanube.broker.limits import disk_room as room
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.routing.losses import Losses
from pydanube.broker.serving import house
from pydanube.broker.serving.house import Housekeeping
from pydanube.broker.standalone import Broker
from pydanube.storage import guard as module
from pydanube.storage.guard import Guard
from pydanube.storage.node.keeper import Keeper
from pydanube.stream.tiering import TierSettings
from tier.broker_world import in_loop, settings_of, topic_of
from tier.objects_world import WorldObjects

LOOPS: dict[str, tuple[type, str]] = {  # and a step of each
    "housekeeping": (Housekeeping, "_line_up"),
    "measuring the free disk space": (DiskRoom, "look"),
    "tidying up after jobs": (Sinks, "_forget_old"),
    "moving messages to object storage": (Tiering, "turn"),
    "watching for changes of topics": (TopicChanges, "_note"),
    "watching for topics that other brokers take": (Losses, "_note"),
    "freeing journal files": (Keeper, "_worth_copying"),
}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name in [
        (house, "TICK_SECONDS"),
        (room, "ROOM_CHECK_SECONDS"),
        (sinks, "TIDY_SECONDS"),
        (tiering, "TURN_SECONDS"),
        (module, "ROUND_FAILED_PAUSE_SECONDS"),
    ]:
        monkeypatch.setattr(where, name, 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 - it does not tell, it is asked
            await asyncio.sleep(0.001)


async def started(path: Path) -> Broker:
    broker = Broker(settings_of(path, WorldObjects(), TierSettings()))
    await broker.open()
    broker.door.reopen()
    return broker


async def stir(broker: Broker, number: int) -> None:
    """So that there is something to do for those who wait until there is."""
    await topic_of(broker, f"/default/t{number}")
    broker._node._keeper.wake()
    await asyncio.sleep(0.01)


@in_loop
@pytest.mark.parametrize("name", LOOPS)
async def test_a_loop_goes_on_after_rounds_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    broker = await started(tmp_path)
    await broker.door.topic_changes.after(None, None, 0.0)
    guards = {each.name: each for each in broker.door.presence.guards}
    assert set(guards) == set(LOOPS)
    guard, (owner, step), rounds = guards[name], LOOPS[name], 0
    real = getattr(owner, step)

    def fails(owner: Any, *arguments: Any) -> Any:
        nonlocal rounds
        if (owner._state.disks if isinstance(owner, Keeper) else owner).guard is guard:  # not that of another broker
            rounds += 1
            if rounds <= 3:
                raise OSError(5, "Input/output error")
        return real(owner, *arguments)

    async def fails_later(*arguments: Any) -> Any:
        return await fails(*arguments)

    monkeypatch.setattr(owner, step, fails_later if asyncio.iscoroutinefunction(real) else fails)
    async with asyncio.timeout(20):
        for number in count():
            await stir(broker, number)
            if rounds >= 5:
                break
    await until(lambda: guard.failing is None or name.startswith("watching"))
    assert guard.failures == 3
    assert [(context["message"], str(context["exception"])) for context in told] == [
        (f"{name} failed and will be retried (failures so far: 1)", "[Errno 5] Input/output error")
    ]
    page = Page()
    await broker.door.metrics.collect(page)
    assert f'danube_background_failures_total{{work="{name}"}} 3' in await page.text()
    await broker.close()


@in_loop
async def test_a_disk_that_cannot_be_measured_is_a_trouble_of_tiering_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = await started(tmp_path)
    tiers = broker.door.tiering
    assert tiers is not None

    def fails(place: Path) -> Any:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", fails)
        await until(lambda: tiers.troubles.of(OBJECT_STORAGE, "space") != [])
    await until(lambda: tiers.troubles.of(OBJECT_STORAGE, "space") == [])
    assert tiers.guard.failures == 0
    await broker.close()


@in_loop
async def test_what_fails_all_the_time_is_told_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
    monkeypatch.setattr(module, "WARNING_REPEAT_SECONDS", 0.2)
    monkeypatch.setattr(module, "ROUND_FAILED_PAUSE_SECONDS", 0.0)
    guard = Guard("counting")

    async def fails() -> None:
        raise ZeroDivisionError

    async with asyncio.timeout(20):
        while len(told) < 3:
            assert not await guard.over(fails())
    assert guard.failures > 3
    assert guard.failing == "ZeroDivisionError: "


@in_loop
async def test_a_guarded_loop_can_be_cancelled() -> None:
    guard = Guard("waiting")
    waiting = asyncio.ensure_future(guard.over(asyncio.Event().wait()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert guard.failures == 0
