"""Segments over object storage: made once, read again, adopted, merged, and what each fault of it leads to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pydanube.tier.segment_file as segment_file
from pydanube.base.errors import (
    BatchInvalid,
    BatchTooLarge,
    DanubeError,
    ObjectMissing,
    ObjectsFailed,
    SegmentConflict,
    SegmentDamaged,
    SegmentMissing,
)
from pydanube.base.limits import SMALL_OBJECT_BYTES_MAX
from pydanube.stream.segments import Segment, segment_key
from pydanube.tier import direct as direct_module
from pydanube.tier.direct import STEPS, DirectSegments
from pydanube.tier.limits import TAIL_BYTES
from pydanube.wire.batch import Batch
from tier.objects_world import Fault, WorldObjects
from tier.rows_world import STREAM, full, messages, plan_of, segment_bytes, simple, streams


async def flow(batches: list[Batch]) -> AsyncIterator[Batch]:
    for batch in batches:
        yield batch


async def written(segments: DirectSegments, batches: list[Batch]) -> tuple[str, Segment]:
    plan = plan_of(batches)
    key = segment_key(STREAM, plan)
    return key, await segments.write(key, plan, STREAM, flow(batches))


async def read_all(segments: DirectSegments, key: str, segment: Segment, bytes_max: int = 1000) -> list[Batch]:
    """By one read after the other, as a consumer that catches up."""
    found: list[Batch] = []
    offset = segment.first
    while offset <= segment.last:
        batches = await segments.read(key, segment, offset, bytes_max)
        assert batches
        assert batches[0].base_offset >= offset
        found += batches
        offset = batches[-1].last_offset + 1
    return found


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "GROUP_ROWS", 7)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


# -- what it is for --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(streams(), st.integers(1, 2000))
@settings(max_examples=30)
def test_what_was_written_is_read(batches: list[Batch], bytes_max: int) -> None:
    async def work() -> None:
        segments = DirectSegments(WorldObjects())
        key, segment = await written(segments, batches)
        assert segment.bytes == sum(batch.size for batch in batches)
        assert messages(await read_all(segments, key, segment, bytes_max)) == messages(batches)
        await segments.verify(key, segment)

    run(work)


@pytest.mark.usefixtures("small_groups")
def test_a_read_starts_anywhere_and_goes_on_behind_a_gap() -> None:
    async def work() -> None:
        batches = [*simple(20), *simple(20, first=40)]
        everything = messages(batches)
        segments = DirectSegments(WorldObjects())
        key, segment = await written(segments, batches)
        assert len(segment.groups) == 6
        for offset in range(60):
            found = await segments.read(key, segment, offset, 1)
            assert len(found) == 1
            rest = [message for message in everything if message.offset >= offset]
            assert messages(found) == rest[: found[0].count]
        assert await segments.read(key, segment, 60, 1) == []

    run(work)


@pytest.mark.usefixtures("small_groups")
def test_a_reader_takes_the_footer_once_and_every_row_group_once() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        key, segment = await written(segments, simple(70))
        objects.calls.clear()
        await read_all(segments, key, segment, bytes_max=1)
        assert objects.calls == {"read": 1 + 10}
        await read_all(segments, key, segment, bytes_max=1)
        assert objects.calls == {"read": 1 + 10}

    run(work)


@pytest.mark.usefixtures("small_groups")
def test_the_next_row_group_is_read_ahead() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        key, segment = await written(segments, simple(70))
        objects.calls.clear()
        await segments.read(key, segment, 0, 1)
        ahead = list(segments._reader._coming.values())
        assert len(ahead) == 1
        await asyncio.wait(ahead)
        assert objects.calls["read"] == 3
        objects.faults["read"] = [None, Fault.FAILS]  # the group behind, and nothing for the one that was read ahead
        assert (await segments.read(key, segment, 7, 1))[0].base_offset == 7
        await segments.close()
        assert objects.closed

    run(work)


@pytest.mark.slow
def test_a_footer_longer_than_the_first_look_is_read_in_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_file, "GROUP_ROWS", 1)

    async def work() -> None:
        batches = simple(200)
        segments = DirectSegments(WorldObjects())
        key, segment = await written(segments, batches)
        footer = segment_file.read_footer(segments._objects.objects[key], segment.size)  # type: ignore[attr-defined]
        assert footer.length > TAIL_BYTES
        assert messages(await read_all(segments, key, segment)) == messages(batches)

    run(work)


def test_segments_become_one() -> None:
    async def work() -> None:
        parts = [full(), simple(30, first=20), simple(5, first=50)]
        everything = [batch for part in parts for batch in part]
        segments = DirectSegments(WorldObjects())
        sources = [await written(segments, part) for part in parts]
        plan = plan_of(everything)
        merged = await segments.merge("merged", plan, STREAM, sources)
        direct = await segments.write("direct", plan, STREAM, flow(everything))
        assert merged == direct
        assert messages(await read_all(segments, "merged", merged)) == messages(everything)

    run(work)


def test_a_damaged_or_missing_source_is_named() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        sources = [await written(segments, simple(10)), await written(segments, simple(10, first=10))]
        key = sources[1][0]
        plan = plan_of([*simple(10), *simple(10, first=10)])
        good = objects.objects[key]
        objects.objects[key] = good[:50] + b"?" + good[51:]
        with pytest.raises(SegmentDamaged, match=key):
            await segments.merge("merged", plan, STREAM, sources)
        del objects.objects[key]
        with pytest.raises(SegmentMissing, match=key):
            await segments.merge("merged", plan, STREAM, sources)
        assert "merged" not in objects.objects
        objects.objects[key] = good
        with pytest.raises(BatchInvalid):
            await segments.merge("merged", plan, STREAM, sources[:1])

    run(work)


# -- one object for one plan -----------------------------------------------------------------------------------------


def test_an_object_with_the_same_rows_is_adopted_however_it_is_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        batches = simple(20)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(segment_file, "GROUP_ROWS", 3)
            key, first = await written(segments, batches)
        kept = objects.objects[key]
        _, again = await written(segments, batches)
        assert again == first
        assert objects.objects[key] is kept
        await segments.verify(key, again)

    run(work)


@pytest.mark.parametrize("other", ["rows", "damaged", "text", "plan", "stream"])
def test_another_object_under_the_key_is_a_conflict_and_stays(other: str) -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        batches = simple(20)
        plan = plan_of(batches)
        key = segment_key(STREAM, plan)
        if other == "rows":
            objects.objects[key] = segment_bytes(simple(20, size=2))
        elif other == "damaged":
            objects.objects[key] = segment_bytes(batches)[:-1]
        elif other == "text":
            objects.objects[key] = b"something else"
        elif other == "plan":
            await segments.write(key, plan_of(batches, epoch=8), STREAM, flow(batches))
        else:
            await segments.write(key, plan, "7/12.4", flow(batches))
        there = objects.objects[key]
        with pytest.raises(SegmentConflict, match=key):
            await segments.write(key, plan, STREAM, flow(batches))
        assert objects.objects[key] is there

    run(work)


def test_two_writers_make_one_object() -> None:
    async def work() -> None:
        objects = WorldObjects()
        batches = simple(50)
        found = await asyncio.gather(*(written(DirectSegments(objects), batches) for _ in range(5)))
        assert len({segment for _, segment in found}) == 1
        assert len(objects.objects) == 1

    run(work)


@pytest.mark.parametrize("step", STEPS)
def test_a_writer_that_dies_at_any_step_is_simply_repeated(step: str) -> None:
    class Killed(Exception):
        pass

    def die(name: str) -> None:
        if name == step:
            raise Killed

    async def work() -> None:
        objects = WorldObjects()
        batches = full()
        with pytest.raises(Killed):
            await written(DirectSegments(objects, step=die), batches)
        segments = DirectSegments(objects)
        key, segment = await written(segments, batches)
        assert messages(await read_all(segments, key, segment)) == messages(batches)
        assert list(objects.objects) == [key]

    run(work)


# -- faults ----------------------------------------------------------------------------------------------------------

OPERATIONS: dict[str, tuple[str, ...]] = {  # of the storage, that an operation of the tier calls
    "write": ("create", "read"),
    "write again": ("create", "size", "read"),
    "merge": ("read", "create"),
    "verify": ("read",),
    "read": ("read",),
    "create": ("create",),
    "load": ("read",),
    "list": ("list",),
    "delete": ("delete",),
}


EACH = [
    (name, call, fault)
    for name, calls in OPERATIONS.items()
    for call in calls
    for fault in (Fault.FAILS, Fault.FAILS_AFTER, Fault.SLOW)
    if (name, call, fault) != ("write again", "create", Fault.FAILS_AFTER)  # nothing succeeds there before it fails
]


@pytest.mark.parametrize(("operation", "call", "fault"), EACH)
def test_each_operation_under_each_fault(operation: str, call: str, fault: Fault) -> None:
    """It fails typed, or waits; repeated, it succeeds, and nothing is lost or doubled."""

    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        batches = simple(20)
        key, segment = await written(segments, batches)
        await segments.create("small/one", b"data")
        if operation == "write":
            await segments.delete(key)
        plan = segment.plan
        operations: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
            "write": lambda: segments.write(key, plan, STREAM, flow(batches)),
            "write again": lambda: segments.write(key, plan, STREAM, flow(batches)),
            "merge": lambda: segments.merge("merged", plan, STREAM, [(key, segment)]),
            "verify": lambda: segments.verify(key, segment),
            "read": lambda: segments.read(key, segment, 0, 1000),
            "create": lambda: segments.create("small/two", b"more"),
            "load": lambda: segments.load("small/one"),
            "list": lambda: segments.list("small/"),
            "delete": lambda: segments.delete("small/one"),
        }
        objects.faults[call] = [fault]
        if fault is Fault.SLOW:
            task = asyncio.create_task(operations[operation]())
            await objects.hanging.wait()
            assert not task.done()
            objects.go_on.set()
            await task
        else:
            with pytest.raises(ObjectsFailed) as caught:
                await operations[operation]()
            assert caught.value.retriable
            await operations[operation]()
        assert not objects.faults[call]
        assert messages(await read_all(segments, key, segment)) == messages(batches)
        await segments.verify(key, segment)

    run(work)


def test_an_object_lost_after_it_was_made_is_noticed_and_written_anew() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        objects.faults["create"] = [Fault.LOST]
        with pytest.raises(ObjectsFailed):
            await written(segments, simple(10))
        key, segment = await written(segments, simple(10))
        await segments.verify(key, segment)

    run(work)


def test_a_lost_object_is_named_and_nothing_else() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        key, segment = await written(segments, simple(10))
        del objects.objects[key]
        for attempt in (segments.read(key, segment, 0, 100), segments.verify(key, segment)):
            with pytest.raises(SegmentMissing, match=key):
                await attempt
        assert not objects.objects

    run(work)


def test_a_list_that_lags_is_only_late() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        assert await segments.list("a/") == []
        await segments.create("a/1", b"")
        objects.faults["list"] = [Fault.STALE]
        assert await segments.list("a/") == []
        objects.faults["list"] = []
        assert await segments.list("a/") == ["a/1"]

    run(work)


# -- damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_flipped_byte_and_every_truncation_is_damage_by_read_and_verify() -> None:
    async def outcome(work: Coroutine[Any, Any, Any]) -> object:
        try:
            return await work
        except SegmentDamaged as error:
            return str(error).startswith("_segment") and SegmentDamaged

    async def work() -> None:
        batches = full(3)
        data = segment_bytes(batches)
        segment = segment_file.made(data, 1)
        objects = WorldObjects()
        harmless = 0
        damaged = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(len(data))]
        damaged += [data[:length] for length in range(len(data))]
        for number, bad in enumerate(damaged):
            segments = DirectSegments(objects)
            objects.objects["_segment"] = bad
            assert await outcome(segments.verify("_segment", segment)) is SegmentDamaged, number
            found = await outcome(segments.read("_segment", segment, 3, 1000))
            harmless += found is not SegmentDamaged
        assert harmless == 4  # bits of the magic at the start, which a reader does not look at
        objects.objects["_segment"] = data + b"\0"
        assert await outcome(DirectSegments(objects).verify("_segment", segment)) is SegmentDamaged

    run(work)


def test_a_whole_segment_in_the_place_of_another_is_damage() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        key, segment = await written(segments, simple(10))
        for other in (simple(10, size=2), simple(10, first=10)):
            objects.objects[key] = segment_bytes(other)
            for attempt in (segments.read(key, segment, 0, 100), segments.verify(key, segment)):
                with pytest.raises(SegmentDamaged, match=key):
                    await attempt

    run(work)


def test_what_a_failing_source_says_reaches_the_caller() -> None:
    async def failing() -> AsyncIterator[Batch]:
        yield simple(10)[0]
        raise ObjectsFailed("the source")

    async def work() -> None:
        objects = WorldObjects()
        with pytest.raises(ObjectsFailed, match="the source"):
            await DirectSegments(objects).write("k", plan_of(simple(20)), STREAM, failing())
        assert not objects.objects

    run(work)


def test_a_segment_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct_module, "SEGMENT_BATCHES_BYTES_MAX", 1000)

    async def work() -> None:
        with pytest.raises(BatchTooLarge):
            await written(DirectSegments(WorldObjects()), simple(100))

    run(work)


# -- small objects ---------------------------------------------------------------------------------------------------


def test_small_objects() -> None:
    async def work() -> None:
        objects = WorldObjects()
        segments = DirectSegments(objects)
        await segments.create("a/1", b"one")
        await segments.create("a/1", b"one")
        for other in (b"two", b"on", b"one!", b""):
            with pytest.raises(SegmentConflict, match="a/1"):
                await segments.create("a/1", other)
        assert await segments.load("a/1") == b"one"
        await segments.delete("a/1")
        await segments.delete("a/1")
        with pytest.raises(ObjectMissing):
            await segments.load("a/1")
        objects.objects["a/2"] = bytes(SMALL_OBJECT_BYTES_MAX + 1)
        with pytest.raises(SegmentDamaged, match="a/2"):
            await segments.load("a/2")
        assert issubclass(SegmentDamaged, DanubeError)

    run(work)
