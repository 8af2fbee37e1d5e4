"""What every metadata store promises, asked of the one in memory, of the durable one on a simulated disk, and of a
cluster of three: of its leader, and of a follower that has to ask the leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from pydanube.base.errors import (
    MetadataBusy,
    MetadataClosed,
    MetadataConflict,
    MetadataFull,
    MetadataInvalid,
    SessionExpired,
    WatchLagged,
)
from pydanube.base.limits import (
    METADATA_KEY_BYTES_MAX,
    METADATA_OPERATIONS_MAX,
    METADATA_VALUE_BYTES_MAX,
    METADATA_WAITING_BYTES_MAX,
    WATCH_CHANGES_MAX,
    WATCHES_MAX,
)
from pydanube.metadata.records import Entry, Repeat
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.store import MemoryMetadata, StateStore
from storage.metadata_cluster import ClusterWorld
from storage.metadata_world import MetadataWorld, put, shown

MOMENT = 1e-6  # less than any operation of the disk takes: what was started is under way then, and not over
Scenario = Callable[[StateStore], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(params=["memory", "durable", "leader", "follower"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    """Runs a scenario with an open store on a simulated loop."""
    world = ClusterWorld() if request.param in ("leader", "follower") else MetadataWorld()

    @asynccontextmanager
    async def opened() -> AsyncIterator[StateStore]:
        store: StateStore = MemoryMetadata()
        if isinstance(world, ClusterWorld):
            await world.form()
            store = world.stores[request.param == "follower"]
        elif request.param == "durable":
            store = await world.open()
        yield store
        for each in [store, *(world.stores if isinstance(world, ClusterWorld) else ())]:
            await each.close()

    async def main(scenario: Scenario) -> None:
        async with opened() as store:
            await scenario(store)

    yield lambda scenario: world.run(main(scenario))
    world.end()


def test_a_store_is_what_the_port_asks_for(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        port: MetadataStore = store
        before = port.revision
        assert await port.transact((), ()) == port.revision > before
        assert port.get("a") is None
        assert port.scan("") == []

    run(scenario)


def test_a_transaction_is_one_revision_and_the_version_of_what_it_wrote(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        first = await store.transact([("a", 0)], [("a", b"1"), ("b", b"2")])
        assert store.revision == first
        second = await store.transact([("a", first), ("b", first)], [("a", b"3"), ("b", None)])
        assert store.get("a") == Entry(b"3", second)
        assert store.get("b") is None
        assert store.revision == second == first + 1

    run(scenario)


def test_a_wrong_version_changes_nothing(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        version = await put(store, a=b"1")
        for checks in ([("a", 0)], [("a", version + 1)], [("a", version), ("b", version)]):
            with pytest.raises(MetadataConflict):
                await store.transact(checks, [("a", b"no"), ("c", b"no")])
        assert shown(store) == {"a": (b"1", version)}

    run(scenario)


def test_a_key_that_was_deleted_and_made_again_has_a_version_it_never_had(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        first = await put(store, a=b"1")
        await put(store, a=None)
        assert await put(store, a=b"1") > first
        with pytest.raises(MetadataConflict):
            await store.transact([("a", first)], [("a", b"2")])

    run(scenario)


def test_of_those_who_want_the_same_key_at_once_one_succeeds(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        tries = [store.transact([("a", 0)], [("a", b"%d" % number)]) for number in range(50)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        assert [type(answer) for answer in answers].count(int) == 1
        assert [type(answer) for answer in answers].count(MetadataConflict) == 49

    run(scenario)


def test_counters_raised_by_many_at_once_miss_nothing(run: Run) -> None:
    async def raise_it(store: StateStore, times: int) -> None:
        for _ in range(times):
            while True:
                entry = store.get("count")
                value, version = (0, 0) if entry is None else (int(entry.value), entry.version)
                try:
                    await store.transact([("count", version)], [("count", b"%d" % (value + 1))])
                    break
                except MetadataConflict:
                    await store.transact((), ())

    async def scenario(store: StateStore) -> None:
        await asyncio.gather(*(raise_it(store, 5) for _ in range(8)))
        assert shown(store)["count"][0] == b"40"

    run(scenario)


def test_a_scan_is_sorted_and_exact(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        await put(store, **{"b/2": b"", "a": b"", "b/1": b"", "b": b"", "b0": b"", "b/é": b""})
        assert [key for key, _ in store.scan("b/")] == ["b/1", "b/2", "b/é"]
        assert [key for key, _ in store.scan("")] == ["a", "b", "b/1", "b/2", "b/é", "b0"]
        assert store.scan("c") == []

    run(scenario)


@pytest.mark.parametrize(
    ("checks", "changes"),
    [
        ((), [("", b"")]),
        ((), [("k" * (METADATA_KEY_BYTES_MAX + 1), b"")]),
        ((), [("é" * (METADATA_KEY_BYTES_MAX // 2 + 1), b"")]),
        ((), [("\ud800", b"")]),
        ((), [("a", bytes(METADATA_VALUE_BYTES_MAX + 1))]),
        ((), [("a", b"1"), ("a", None)]),
        ((), [("a", "text")]),
        ((), [(7, b"")]),
        ([("a", -1)], ()),
        ([("", 0)], ()),
        ([(f"{number}", 0) for number in range(METADATA_OPERATIONS_MAX)], [("a", b"")]),
        ((), [(f"{number}", bytes(METADATA_VALUE_BYTES_MAX)) for number in range(2)]),
    ],
)
def test_a_transaction_out_of_bounds_is_refused_and_changes_nothing(run: Run, checks: object, changes: object) -> None:
    async def scenario(store: StateStore) -> None:
        before = store.revision
        with pytest.raises(MetadataInvalid):
            await store.transact(checks, changes)  # type: ignore[arg-type]
        assert store.revision == before
        assert await put(store, a=b"") == before + 1

    run(scenario)


def test_the_largest_key_value_and_number_of_operations_are_taken(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        await store.transact(
            [("k" * METADATA_KEY_BYTES_MAX, 0)], [("k" * METADATA_KEY_BYTES_MAX, bytes(METADATA_VALUE_BYTES_MAX))]
        )
        await store.transact((), [(f"{number}", b"") for number in range(METADATA_OPERATIONS_MAX)])
        assert len(store.scan("")) == METADATA_OPERATIONS_MAX + 1

    run(scenario)


def test_a_watch_sees_every_change_from_the_moment_it_is_made(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        await put(store, **{"a/1": b"before"})
        watch = store.watch("a/")
        first = await put(store, **{"a/1": b"x", "b/1": b"other"})
        last = await put(store, **{"a/1": None, "a/2": b"y"})
        await put(store, **{"a/3": None})  # was not there: nothing happened
        watch.close()
        seen = [tuple(change) async for change in watch]
        assert seen == [(first, "a/1", Entry(b"x", first)), (last, "a/1", None), (last, "a/2", Entry(b"y", last))]

    run(scenario)


def test_a_watcher_that_waits_is_woken(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        watch = store.watch("")
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.01)
        await put(store, a=b"1")
        assert (await waiting).key == "a"
        waiting = asyncio.ensure_future(anext(watch))
        await asyncio.sleep(0.01)
        watch.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    run(scenario)


def test_a_watcher_that_falls_behind_is_told_and_never_sees_a_gap(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        slow, other = store.watch("a"), store.watch("b")
        per_step, before = METADATA_OPERATIONS_MAX, store.revision
        for _ in range(WATCH_CHANGES_MAX // per_step):
            await store.transact((), [(f"a{number}", b"") for number in range(per_step)])
        assert (await anext(slow)).revision == before + 1
        await store.transact((), [("a", b""), ("b", b"")])
        await store.transact((), [("a", b"more")])
        for _ in range(2):
            with pytest.raises(WatchLagged):
                await anext(slow)
        assert (await anext(other)).key == "b"

    run(scenario)


def test_watches_are_bounded_and_a_closed_one_makes_room(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        watches = [store.watch("") for _ in range(WATCHES_MAX)]
        with pytest.raises(MetadataFull):
            store.watch("")
        watches[0].close()
        store.watch("")

    run(scenario)


def test_keys_of_a_session_go_when_it_is_not_kept_alive(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        session = await store.open_session(1.0)
        await store.transact((), [(f"mine/{number}", b"") for number in range(100)], session=session)
        await store.transact((), [("mine/7", b"now nobody's")])
        await put(store, other=b"")
        for _ in range(3):
            await asyncio.sleep(0.9)
            await store.keep_alive(session)
        assert len(store.scan("mine/")) == 100
        await asyncio.sleep(1.5)
        assert sorted(shown(store)) == ["mine/7", "other"]
        for call in (store.keep_alive(session), store.transact((), [("mine/1", b"")], session=session)):
            with pytest.raises(SessionExpired):
                await call

    run(scenario)


def test_closing_a_session_takes_its_keys_also_those_on_their_way(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        session = await store.open_session(60.0)
        await store.transact((), [("a", b"1")], session=session)
        late = asyncio.ensure_future(store.transact((), [("b", b"1")], session=session))
        stolen = asyncio.ensure_future(store.transact((), [("a", b"2")]))
        await asyncio.sleep(MOMENT)
        await store.close_session(session)
        await asyncio.gather(late, stolen)
        assert sorted(shown(store)) == ["a"]

    run(scenario)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), 1e9])
def test_a_session_of_no_sensible_length_is_refused(run: Run, seconds: float) -> None:
    async def scenario(store: StateStore) -> None:
        with pytest.raises(MetadataInvalid):
            await store.open_session(seconds)

    run(scenario)


def test_a_transaction_that_is_asked_for_again_is_made_once(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        session = await store.open_session(60)
        named = Repeat(session, 1)
        tries = [store.transact([("a", 0)], [("a", b"%d" % each)], repeat=named) for each in range(3)]
        first, *others = await asyncio.gather(*tries)
        assert others == [first, first]
        assert shown(store)["a"][1] == first
        assert await store.transact((), [("b", b"")], repeat=Repeat(session, 2, answered=1)) > first
        await store.close_session(session)
        with pytest.raises(SessionExpired):
            await store.transact((), [("b", b"")], repeat=Repeat(session, 3, answered=2))

    run(scenario)


def test_the_end_of_a_session_is_one_step_for_watchers(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        session = await store.open_session(60)
        for each in range(3):
            await store.transact((), [(f"mine/{each}/{number}", b"") for number in range(100)], session=session)
        watch = store.watch("mine/")
        await store.close_session(session)
        watch.close()
        changes = [change async for change in watch]
        assert len(changes) == 300
        assert {change.revision for change in changes} == {store.revision}

    run(scenario)


def test_a_closed_store_takes_nothing_and_ends_its_watches(run: Run) -> None:
    async def scenario(store: StateStore) -> None:
        watch = store.watch("")
        await put(store, a=b"1")
        await store.close()
        await store.close()
        assert [change.key async for change in watch] == ["a"]
        with pytest.raises(MetadataClosed):
            await put(store, b=b"1")
        with pytest.raises(MetadataClosed):
            await store.open_session(1)
        with pytest.raises(MetadataClosed):
            store.watch("")

    run(scenario)


def test_a_caller_that_gives_up_harms_nobody() -> None:
    world = MetadataWorld()

    async def scenario() -> None:
        store = await world.open()
        version = store.revision + 1
        first = asyncio.ensure_future(put(store, a=b"1"))
        await asyncio.sleep(MOMENT)
        second = asyncio.ensure_future(store.transact([("a", version)], [("b", b"2")]))
        await asyncio.sleep(MOMENT)
        first.cancel()
        second.cancel()
        await store.barrier()
        assert store.revision == version + 1
        assert shown(store) == {"a": (b"1", version), "b": (b"2", version + 1)}
        await store.close()

    world.run(scenario())
    world.end()


def test_transactions_that_wait_for_the_disk_are_bounded() -> None:
    world = MetadataWorld()

    async def scenario() -> None:
        store = await world.open()
        count = METADATA_WAITING_BYTES_MAX // METADATA_VALUE_BYTES_MAX + 8
        tries = [put(store, **{f"k{number}": bytes(METADATA_VALUE_BYTES_MAX)}) for number in range(count)]
        answers = await asyncio.gather(*tries, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, MetadataBusy)]
        assert 0 < len(refused) < count
        assert len(shown(store)) == count - len(refused)
        assert await put(store, again=b"") == store.revision
        await store.close()

    world.run(scenario())
    world.end()


def test_readers_see_nothing_that_is_not_durable() -> None:
    world = MetadataWorld()

    async def scenario() -> None:
        store = await world.open()
        watch, before = store.watch(""), store.revision
        world.disk.slow(1.0, only="sync")
        writing = asyncio.ensure_future(put(store, a=b"1"))
        await asyncio.sleep(0.5)
        assert store.get("a") is None
        assert store.revision == before
        assert watch.queue.take() is None
        await writing
        assert store.get("a") == Entry(b"1", before + 1)
        await store.close()

    world.run(scenario())
    world.end()
