"""Typed tables: what is written is read, bad values are refused, and changes are decided again after conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from pydanube.base.errors import LimitReached, MetadataConflict, MetadataDamaged, TopicNotFound
from pydanube.base.limits import RECORD_BYTES_MAX
from pydanube.metadata.tables import LEDGER_IDS, NAMESPACES, PIPELINE_RECORDS, TOPICS, TURNS, topic_name
from pydanube.storage.metadata import table as module
from pydanube.storage.metadata.store import MemoryMetadata
from pydanube.storage.metadata.table import Edit, Row, RowChange, Table, edited
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord
from storage.metadata_world import MetadataWorld


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def record(key: str, number: int) -> TopicRecord:
    return TopicRecord(topic_name(key), number)


def test_rows_are_read_in_pages_of_their_own_table() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        topics, turns = Table(store, TOPICS), Table(store, TURNS)
        for number, key in enumerate(("a/x", "b/x", "b/y", "b/z")):
            await topics.write(key, record(key, number))
        await turns.write("b", 7)
        assert topics.keys() == ["a/x", "b/x", "b/y", "b/z"]
        assert [row.key for row in topics.scan("b/", after="b/x", limit=1)] == ["b/y"]
        assert (topics.count(), topics.count("b/"), turns.count()) == (4, 3, 1)
        assert topics.row("b/y") == Row("b/y", record("b/y", 2), 3)
        assert (topics.get("b/none"), topics.row("b/none"), topics.version("b/none")) == (None, None, 0)
        await topics.write("b/y", None)
        await topics.write("b/none", None)
        assert (topics.get("b/y"), store.revision) == (None, 6), "there was nothing to delete the second time"

    run(main())


def test_a_value_that_cannot_be_read_is_named_and_can_still_be_deleted() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        topics = Table(store, TOPICS)
        await store.transact((), [("topics/a/x", b'{"id":"one"}'), ("topics/a/y", b"\xff"), ("topics/a/z", b"[]")])
        for key in ("a/x", "a/y", "a/z"):
            with pytest.raises(MetadataDamaged, match=f"topics/{key}"):
                topics.get(key)
            await topics.write(key, None)
        assert topics.count() == 0

    run(main())


def test_a_record_that_its_client_made_too_large_is_refused() -> None:
    async def main() -> None:
        pages = Table(MemoryMetadata(), PIPELINE_RECORDS)
        await pages.write("read/p/0", "x" * RECORD_BYTES_MAX)
        with pytest.raises(LimitReached):
            await pages.write("read/p/1", "x" * (RECORD_BYTES_MAX + 1))
        assert pages.count() == 1

    run(main())


def test_a_replacement_of_another_version_is_a_conflict() -> None:
    async def main() -> None:
        turns = Table(MemoryMetadata(), TURNS)
        first = await turns.replace("a", 0, 1)
        second = await turns.replace("a", first, 2)
        for version in (0, first):
            with pytest.raises(MetadataConflict):
                await turns.replace("a", version, 3)
        assert turns.row("a") == Row("a", 2, second)
        await turns.replace("a", second, None)
        assert turns.get("a") is None

    run(main())


def test_an_update_writes_deletes_or_leaves_alone() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        namespaces = Table(store, NAMESPACES)
        policies = Policies(ttl_seconds=1)
        assert await namespaces.update("a", lambda known: known or policies) == policies
        revision = store.revision
        assert await namespaces.update("a", lambda known: known) == policies
        assert await namespaces.update("b", lambda known: known) is None
        assert store.revision == revision
        assert await namespaces.update("a", lambda known: None) is None
        assert namespaces.keys() == []

    run(main())


def test_updates_at_the_same_time_all_count_and_are_read_at_once() -> None:
    """In a store whose transactions take a while, so that the second decision is made before the first can be read."""
    world = MetadataWorld()

    async def main() -> None:
        ids = Table(await world.open(), LEDGER_IDS)

        async def add() -> int:
            added = await ids.update("", lambda known: (known or 0) + 1)
            now = ids.get()
            assert added is not None
            assert now is not None
            assert now >= added
            return added

        assert sorted(await asyncio.gather(*(add() for _ in range(50)))) == list(range(1, 51))

    world.run(main())
    world.end()


def test_what_was_read_of_any_table_is_checked_with_the_changes() -> None:
    """A namespace is deleted while a topic in it is being decided."""

    async def main() -> None:
        store = MemoryMetadata()
        namespaces, topics = Table(store, NAMESPACES), Table(store, TOPICS)
        await namespaces.write("a", Policies())
        asked, real = 0, store.transact
        deleting: list[asyncio.Task[int]] = []

        def create(edit: Edit) -> None:
            nonlocal asked
            asked += 1
            if edit.read(namespaces, "a") is None:
                raise TopicNotFound("its namespace is gone")
            edit.add(topics.put("a/x", record("a/x", 1)))
            if asked == 1:
                deleting.append(asyncio.get_running_loop().create_task(real((), [namespaces.put("a", None)])))

        async def later(*arguments: Any, **named: Any) -> int:
            await asyncio.sleep(0)  # the deletion comes first
            return await real(*arguments, **named)

        store.transact = later  # type: ignore[method-assign]
        with pytest.raises(TopicNotFound):
            await edited(store, create)
        assert (asked, topics.count()) == (2, 0)

    run(main())


def test_a_condition_that_there_are_no_keys_is_checked_with_the_changes() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        namespaces, topics = Table(store, NAMESPACES), Table(store, TOPICS)
        await namespaces.write("a", Policies())
        await topics.write("a/x", record("a/x", 1))
        asked = 0

        def delete(edit: Edit) -> bool:
            nonlocal asked
            asked += 1
            if asked == 1:
                edit.require_none(topics, "a/")
                edit.add(namespaces.put("a", None))
            return asked == 1

        assert not await edited(store, delete)
        assert namespaces.keys() == ["a"]

    run(main())


def test_a_change_that_always_meets_another_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "METADATA_ATTEMPTS_MAX", 3)

    async def main() -> None:
        store = MemoryMetadata()
        turns = Table(store, TURNS)
        asked = 0

        def meets_another(edit: Edit) -> None:
            nonlocal asked
            asked += 1
            edit.checks["turns/a"] = 99
            edit.add(turns.put("a", 1))

        with pytest.raises(MetadataConflict, match="turns/a"):
            await edited(store, meets_another)
        assert asked == 3

    run(main())


def test_a_watch_tells_keys_and_records_of_its_table() -> None:
    async def main() -> None:
        store = MemoryMetadata()
        turns = Table(store, TURNS)
        watch = turns.watch()
        await turns.write("a", 1)
        await Table(store, NAMESPACES).write("a", Policies())
        await turns.write("a", None)
        watch.close()
        assert [change async for change in watch] == [RowChange(1, "a", 1), RowChange(3, "a", None)]

    run(main())
