"""Frames between a broker and its cold tier: batches cut anywhere come out whole, and lengths are not believed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import DanubeError, ObjectsFailed, SegmentDamaged, TierBusy
from pydanube.base.ids import Epoch
from pydanube.base.limits import BATCH_BYTES_MAX, MIB
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.tier.frames import (
    BatchReader,
    Frame,
    FrameKind,
    FrameStream,
    Packing,
    StreamBroken,
    batch_pieces,
    from_error,
    from_plan,
    from_segment,
    to_error,
    to_plan,
    to_segment,
)
from pydanube.tier.limits import ALONE_BYTES, CHUNK_BYTES, FRAME_BYTES_MAX, FRAMES_WAITING_BYTES
from pydanube.tier.process import CallLimit
from pydanube.tier.reading import SizedCache
from pydanube.tier.worker import Server
from pydanube.wire.batch import Batch, build
from tier.rows_world import simple, streams
from wire.batches import NOW


@given(streams(), st.data())
def test_batches_come_out_of_pieces_cut_anywhere(batches: list[Batch], data: st.DataObject) -> None:
    whole = b"".join(piece for batch in batches for piece in batch_pieces(batch))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    reader = BatchReader()
    found = []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += [Batch.from_parts(*parts) for parts in reader.feed(whole[start:end])]
    assert found == batches


def test_pieces_are_small_enough_for_one_turn() -> None:
    batch = build([bytes(5 * MIB)], publish_time=NOW).stamped(0, 1, NOW)
    packing = Packing()
    sent = []
    for one in [*simple(500, first=1), batch, *simple(500, first=501)]:
        for piece in batch_pieces(one):
            sent.append(packing.add(piece))
    sent.append(packing.rest())
    assert max(sum(map(len, pieces)) for pieces in sent) <= CHUNK_BYTES
    reader = BatchReader()
    found = [parts for pieces in sent if pieces for parts in reader.feed(b"".join(pieces))]
    assert len(found) == 101


def test_a_large_content_is_a_frame_of_its_own_and_is_not_copied() -> None:
    batches = [build([bytes(size)], publish_time=NOW).stamped(0, 1, NOW) for size in (ALONE_BYTES, 10, 3 * ALONE_BYTES)]

    async def work(one: FrameStream, other: FrameStream) -> None:
        packing, frames = Packing(), 0
        for batch in batches:
            for piece in batch_pieces(batch):
                if pieces := packing.add(piece):
                    one.send(FrameKind.DATA, 1, *pieces)
                    frames += 1
        one.send(FrameKind.DATA, 1, *packing.rest())
        bodies = [(await other.receive()).body for _ in range(frames + 1)]
        assert all(type(body) is bytes for body in bodies)
        reader = BatchReader()
        found = [parts for body in bodies for parts in reader.feed(body)]
        assert [Batch.from_parts(*parts) for parts in found] == batches
        assert [any(content is body for body in bodies) for _, content in found] == [True, False, True]

    run_links(work)


@pytest.mark.parametrize("length", [0, 95, BATCH_BYTES_MAX + 1, 0xFFFF_FFFF])
def test_a_batch_of_an_impossible_length_is_refused_at_once(length: int) -> None:
    with pytest.raises(StreamBroken):
        BatchReader().feed(length.to_bytes(4, "little"))


def run_links(work: Any) -> None:
    async def whole() -> None:
        ends = socket.socketpair()
        links = [await FrameStream.over(end) for end in ends]
        try:
            coroutine: Coroutine[Any, Any, None] = work(*links)
            await coroutine
        finally:
            for link in links:
                link.close()

    asyncio.run(whole())


def test_a_frame_arrives_as_it_was_sent() -> None:
    async def work(one: FrameStream, other: FrameStream) -> None:
        one.send(FrameKind.DATA, 1 << 40, b"ab", b"", b"c")
        one.send(FrameKind.END, 7)
        assert await other.receive() == (FrameKind.DATA, 1 << 40, b"abc")
        assert await other.receive() == (FrameKind.END, 7, b"")
        one.close()
        with pytest.raises(StreamBroken):
            await other.receive()

    run_links(work)


def test_a_frame_that_is_too_long_is_neither_sent_nor_read() -> None:
    async def work(one: FrameStream, other: FrameStream) -> None:
        with pytest.raises(StreamBroken):
            one.send(FrameKind.DATA, 1, bytes(FRAME_BYTES_MAX + 1))
        one._transport.write((FRAME_BYTES_MAX + 1).to_bytes(4, "little") + b"\4" + bytes(8))
        with pytest.raises(StreamBroken):
            await other.receive()

    run_links(work)


def test_a_frame_of_no_kind_is_the_end() -> None:
    async def work(one: FrameStream, other: FrameStream) -> None:
        one._transport.write(bytes(4) + b"\x63" + bytes(8))
        with pytest.raises(StreamBroken):
            await other.receive()

    run_links(work)


def test_little_is_read_while_frames_wait_to_be_taken() -> None:
    async def work(one: FrameStream, other: FrameStream) -> None:
        for number in range(20):
            one.send(FrameKind.DATA, number, bytes([number]) * CHUNK_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert other._untaken_bytes <= FRAMES_WAITING_BYTES + FRAME_BYTES_MAX
        assert one.waiting_bytes > 10 * CHUNK_BYTES
        for number in range(20):
            kind, call, body = await other.receive()
            assert (kind, call, body == bytes([number]) * CHUNK_BYTES) == (FrameKind.DATA, number, True)
        assert other._untaken_bytes == 0

    run_links(work)


def test_who_sends_waits_while_the_other_end_takes_nothing() -> None:
    async def work(one: FrameStream, other: FrameStream) -> None:
        one.send(FrameKind.DATA, 1, bytes(CHUNK_BYTES))
        one.send(FrameKind.DATA, 2, bytes(CHUNK_BYTES))
        one.send(FrameKind.DATA, 3, bytes(3 * CHUNK_BYTES))
        one.send(FrameKind.DATA, 4, bytes(3 * CHUNK_BYTES))
        waiting = asyncio.create_task(one.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        for number in range(1, 5):
            assert (await other.receive()).call == number
        await waiting
        one.send(FrameKind.DATA, 5, bytes(FRAME_BYTES_MAX))
        waiting = asyncio.create_task(one.drain())
        await asyncio.sleep(0)
        other.close()
        with pytest.raises(StreamBroken):
            await waiting

    run_links(work)


def test_values_cross_as_they_are() -> None:
    plan = SegmentPlan(1, 2, Epoch(3))
    assert to_plan(from_plan(plan)) == plan
    segment = Segment(1, 2, Epoch(3), 2, 100, 200, "c", "d", 5, 6, (1, 2))
    assert to_segment(from_segment(segment)) == segment
    error = to_error(from_error(SegmentDamaged("the key: why")))
    assert type(error) is SegmentDamaged
    assert str(error) == "the key: why"
    assert type(to_error(["objects_failed", "x"])) is ObjectsFailed
    assert type(to_error(["of a newer version", "x"])) is DanubeError


def test_what_is_kept_has_a_bound() -> None:
    kept: SizedCache[str, int] = SizedCache(10)
    kept.put("a", 1, 4)
    kept.put("b", 2, 4)
    assert kept.get("a") == 1  # used: now `b` is the one to go
    kept.put("c", 3, 4)
    assert [kept.get(key) for key in "abc"] == [1, None, 3]
    kept.put("a", 4, 6)
    assert (kept.get("a"), kept.bytes) == (4, 10)
    kept.put("large", 5, 100)
    assert (kept.get("large"), kept.get("a"), kept.bytes) == (5, None, 100)
    kept.drop(lambda key: key == "large")
    assert (kept.get("large"), kept.bytes) == (None, 0)


def test_turns_are_bounded_and_given_back() -> None:
    async def work() -> None:
        turns = CallLimit(1, 1)
        go_on = asyncio.Event()

        async def take() -> None:
            async with turns.turn():
                await go_on.wait()

        one, two = asyncio.create_task(take()), asyncio.create_task(take())
        await asyncio.sleep(0)
        assert turns.waiting == 1
        with pytest.raises(TierBusy):
            await take()
        two.cancel()
        await asyncio.gather(two, return_exceptions=True)
        assert turns.waiting == 0
        go_on.set()
        await one
        await take()

    asyncio.run(work())


def test_a_call_that_is_cancelled_before_it_began_leaves_nothing() -> None:
    async def work(link: FrameStream, _: FrameStream) -> None:
        server = Server(link)
        server._take(Frame(FrameKind.CALL, 1, b'{"operation": "create", "key": "k"}'))
        server._take(Frame(FrameKind.DATA, 1, bytes(1000)))
        server._take(Frame(FrameKind.CANCEL, 1, b""))
        await asyncio.wait(server._tasks.values())
        assert (server._tasks, server._incoming) == ({}, {})

    run_links(work)
