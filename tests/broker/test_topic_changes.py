"""Who waits for changes of topics hears of each, continues where it was, and is told when something was missed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pydanube.base.errors import TopicBusy
from pydanube.broker.directory import topic_changes
from pydanube.broker.directory.topic_changes import Changes, TopicChanges
from pydanube.metadata.tables import TOPICS, topic_name
from pydanube.metadata.watch import WatchQueue
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.metadata.table import Table
from pydanube.topic.record import TopicRecord

HOUR = 3_600.0


def run(story: Callable[[MemoryMetadata, TopicChanges], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryMetadata()
        changes = TopicChanges(store)
        async with asyncio.timeout(20):
            await story(store, changes)
        await changes.close()
        await store.close()

    asyncio.run(main())


async def put(store: MemoryMetadata, *names: str, exist: bool = True) -> int:
    topics = Table(store, TOPICS)
    return await store.transact((), [topics.put(name, _record(name) if exist else None) for name in names])


def _record(name: str) -> TopicRecord:
    return TopicRecord(topic_name(name), 1)


def test_a_change_is_told_to_those_who_wait_for_its_namespace() -> None:
    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        await put(store, "default/before")
        start = await changes.after(frozenset({"default"}), None, HOUR)
        assert start == Changes(store.revision, [])
        waiting = asyncio.ensure_future(changes.after(frozenset({"default"}), start.revision, HOUR))
        elsewhere = asyncio.ensure_future(changes.after(frozenset({"shop"}), start.revision, HOUR))
        await asyncio.sleep(0)
        revision = await put(store, "default/a", "default/b")
        assert await waiting == Changes(revision, ["/default/a", "/default/b"])
        assert not elsewhere.done()
        await put(store, "default/a", exist=False)
        await put(store, "shop/x")
        assert (await elsewhere).topics == ["/shop/x"]
        found = await changes.after(frozenset({"default"}), revision, HOUR)
        assert found.topics == ["/default/a"], "that it is gone is a change too"

    run(story)


def test_who_comes_back_hears_of_all_that_it_missed_and_nothing_twice() -> None:
    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        revision = (await changes.after(frozenset({"default"}), None, 0)).revision
        heard: list[str] = []
        for number in range(50):
            await put(store, f"default/t{number}")
            if number % 7 == 0:  # it is away for six of them
                found = await changes.after(frozenset({"default"}), revision, HOUR)
                heard += sorted(found.topics, key=lambda name: int(name[10:]))
                revision = found.revision
        found = await changes.after(frozenset({"default"}), revision, 0)
        heard += found.topics
        assert heard == [f"/default/t{number}" for number in range(50)]
        assert await changes.after(frozenset({"default"}), found.revision, 0.001) == Changes(found.revision, [])

    run(story)


def test_who_was_away_too_long_or_comes_from_elsewhere_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "TOPIC_CHANGES_KEPT", 3)

    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        start = (await changes.after(frozenset({"default"}), None, 0)).revision
        for number in range(5):
            await put(store, f"default/t{number}")
        await asyncio.sleep(0)
        assert (await changes.after(frozenset({"default"}), start, HOUR)).missed
        assert (await changes.after(frozenset({"default"}), start + 1, HOUR)).missed
        assert (await changes.after(frozenset({"default"}), start + 2, HOUR)).topics == [
            f"/default/t{number}" for number in (2, 3, 4)
        ]
        assert (await changes.after(frozenset({"default"}), store.revision + 1, HOUR)).missed, "of other metadata"

    run(story)


def test_many_changes_at_once_are_not_told_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "TOPIC_CHANGES_LISTED_MAX", 2)

    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        start = (await changes.after(frozenset({"default"}), None, 0)).revision
        revision = await put(store, "default/a", "default/b", "default/c")
        await asyncio.sleep(0)
        assert await changes.after(frozenset({"default"}), start, HOUR) == Changes(revision, [], missed=True)

    run(story)


def test_a_watch_that_lags_wakes_everybody_to_look_at_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(WatchQueue.__init__, "__defaults__", (2,))

    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        start = (await changes.after(frozenset({"default"}), None, 0)).revision
        waiting = asyncio.ensure_future(changes.after(frozenset({"default"}), start, HOUR))
        await asyncio.sleep(0)
        await put(store, *(f"default/t{number}" for number in range(3)))
        found = await waiting
        assert found.missed
        await put(store, "default/later")
        await asyncio.sleep(0)
        assert (await changes.after(frozenset({"default"}), found.revision, HOUR)).topics == ["/default/later"]

    run(story)


def test_no_more_wait_than_are_allowed_and_those_who_leave_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_changes, "TOPIC_WATCHERS_MAX", 1)

    async def story(store: MemoryMetadata, changes: TopicChanges) -> None:
        start = (await changes.after(frozenset({"default"}), None, 0)).revision
        waiting = asyncio.ensure_future(changes.after(frozenset({"default"}), start, HOUR))
        await asyncio.sleep(0)
        with pytest.raises(TopicBusy):
            await changes.after(frozenset({"default"}), start, HOUR)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await changes.after(frozenset({"default"}), start, 0.001) == Changes(start, [])
        assert changes._waiting == {}

    run(story)
