"""Streams and their writer on real nodes: cancelled futures, closing, rolling, pushing back, bad numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    DanubeError,
    NodeBusy,
    NodeClosed,
    OffsetNotConfirmed,
    OwnershipLost,
)
from pydanube.base.ids import Epoch, LedgerId
from pydanube.storage.node.disk import DiskNode
from pydanube.stream.record import Copies, Phase
from storage.stream_world import ONE, THREE, Nodes, Scene, batch, read_all, until


@pytest.mark.parametrize("copies", [ONE, THREE])
def test_a_cancelled_append_gives_up_one_wait_and_nothing_else(copies: Copies) -> None:
    async def story(scene: Scene) -> None:
        nodes = Nodes(await scene.disk_node()) if copies is ONE else scene.memory_nodes(3)
        stream = await scene.take(nodes, copies)
        futures = [stream.append(batch(number))[1] for number in range(6)]
        futures[1].cancel()
        futures[5].cancel()
        await asyncio.gather(*futures[2:5], futures[0])
        await until(lambda: stream.confirmed == 5)
        assert len(await read_all(stream)) == 6
        await stream.close()
        again = await scene.take(nodes, copies)
        assert len(await read_all(again)) == 6

    Scene().play(story)


@pytest.mark.parametrize("copies", [ONE, THREE])
def test_closing_waits_for_what_was_sent_and_takes_nothing_more(copies: Copies) -> None:
    async def story(scene: Scene) -> None:
        nodes = Nodes(await scene.disk_node()) if copies is ONE else scene.memory_nodes(3)
        stream = await scene.take(nodes, copies)
        acked: list[int] = []

        async def publish() -> None:
            number = 0
            while True:
                try:
                    stamped, future = stream.append(batch(number))
                except NodeClosed:
                    return
                await future
                acked.append(stamped.base_offset)
                number += 1
                await asyncio.sleep(0.0005)

        publishing = asyncio.get_running_loop().create_task(publish())
        await until(lambda: len(acked) >= 10)
        await stream.close()
        await publishing
        record, _ = await scene.catalog.load("t")
        assert record.ledgers[-1].phase is Phase.SEALED
        assert record.ledgers[-1].last == acked[-1]

    Scene().play(story)


def test_a_stream_closes_while_its_nodes_are_down_and_the_next_owner_finds_everything() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await scene.take(nodes, THREE)
        await stream.append(batch(0))[1]
        nodes.down.update(nodes.nodes)
        with pytest.raises(DanubeError):
            await stream.append(batch(1))[1]
        await stream.close()
        nodes.down.clear()
        again = await scene.take(nodes, THREE)
        assert (await read_all(again))[0] == batch(0).payloads()[0]

    Scene().play(story)


def test_a_cancelled_take_leaves_nobody_behind() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        nodes.down.update(nodes.nodes)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(scene.take(nodes, THREE), 2.0)
        nodes.down.clear()
        before, _ = await scene.catalog.load("t")
        await asyncio.sleep(10)
        assert (await scene.catalog.load("t"))[0] == before

    Scene().play(story)


def test_a_burst_is_pushed_back_and_the_ledger_lives_on() -> None:
    async def story(scene: Scene) -> None:
        stream = await scene.take(Nodes(await scene.disk_node()), ONE)
        taken = []
        refused = 0
        for number in range(90):
            try:
                taken.append(stream.append(batch(number, 1 << 20))[1])
            except NodeBusy:
                refused += 1
        assert refused
        await asyncio.gather(*taken)
        await stream.append(batch(90))[1]
        assert stream.epoch == 1

    Scene().play(story)


def test_batches_sent_while_a_ledger_rolls_follow_without_a_gap() -> None:
    async def story(scene: Scene) -> None:
        stream = await scene.take(scene.memory_nodes(3), THREE, ledger_bytes=500)
        futures = []
        for number in range(50):
            futures.append(stream.append(batch(number))[1])
            if number % 7 == 0:
                await asyncio.sleep(0.005)
        await asyncio.gather(*futures)
        assert [payload.split(b".")[0] for payload in await read_all(stream) if payload] == [
            str(number).encode() for number in range(50)
        ]
        record, _ = await scene.catalog.load("t")
        assert len(record.ledgers) > 3
        assert stream.epoch == 1

    Scene().play(story)


def test_the_old_owner_is_refused_once_another_has_taken_the_stream() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        old = await scene.take(nodes, THREE)
        await old.append(batch(0))[1]
        new = await scene.take(nodes, THREE)
        with pytest.raises(DanubeError):
            await old.append(batch(1))[1]
        await until(lambda: old.lost)
        with pytest.raises(OwnershipLost):
            old.append(batch(2))
        stamped, confirmed = new.append(batch(3))
        await confirmed
        assert (stamped.base_offset, stamped.epoch) == (1, new.epoch)

    Scene().play(story)


def test_one_of_three_copies_may_be_down_and_a_reader_sees_only_what_is_confirmed() -> None:
    async def story(scene: Scene) -> None:
        nodes = scene.memory_nodes(3)
        stream = await scene.take(nodes, THREE)
        nodes.down.add(next(iter(nodes.nodes)))
        with pytest.raises(OffsetNotConfirmed):
            await stream.read(0, 1)
        await stream.append(batch(0))[1]
        assert stream.receipt == "replicated:2"
        assert len(await stream.read(0, 1)) == 1

    Scene().play(story)


@pytest.mark.parametrize(
    "call",
    [
        lambda node: node.create(LedgerId(-1), Epoch(1), Durability.FSYNC),
        lambda node: node.create(LedgerId(2**63), Epoch(1), Durability.FSYNC),
        lambda node: node.create(LedgerId(9), Epoch(-1), Durability.FSYNC),
        lambda node: node.create(LedgerId(9), Epoch(2**63), Durability.FSYNC),
        lambda node: node.fence(LedgerId(9), Epoch(2**63)),
        lambda node: node.fence(LedgerId(2**64), Epoch(1)),
        lambda node: node.seal(LedgerId(1), Epoch(1), 2**63),
        lambda node: node.seal(LedgerId(1), Epoch(1), -5),
        lambda node: node.append(LedgerId(1), Epoch(1), batch(0).stamped(0, 1, 1), 2**63),
        lambda node: node.append(LedgerId(1), Epoch(1), batch(0).stamped(0, 1, 1), -2),
    ],
)
def test_a_number_that_fits_no_field_is_refused_and_harms_nobody(call: Callable[[DiskNode], Awaitable[object]]) -> None:
    async def story(scene: Scene) -> None:
        node = await scene.disk_node()
        await node.create(LedgerId(1), Epoch(1), Durability.FSYNC)
        with pytest.raises(ArgumentInvalid):
            await call(node)
        await node.append(LedgerId(1), Epoch(1), batch(0).stamped(0, 1, 1), -1)
        await node.close()

    Scene().play(story)
