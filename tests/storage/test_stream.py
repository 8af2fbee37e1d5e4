"""Streams and their writer on real nodes: cancelled futures, closing, rolling, pushing back, bad numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest

from pydanube.base.durability import Durability
from pydanube.base.errors import (
    ArgumentInvalid,
    DanubeError,
    NodeBusy,
    NodeClosed,
    NodeUnreachable,
    OffsetNotConfirmed,
    OwnershipLost,
)
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.ledger.catalog import Copies, Phase
from pydanube.ports.storage import StorageNode
from pydanube.sim.catalog import SimCatalog
from pydanube.sim.clock import SimClock
from pydanube.sim.disk import SimDisk
from pydanube.sim.loop import SimLoop
from pydanube.sim.randomness import SimRandomness
from pydanube.storage.memory import MemoryNode
from pydanube.storage.node import DiskNode
from pydanube.storage.settings import NodeSettings
from pydanube.storage.stream import Stream, StreamSettings
from pydanube.wire.batch import Batch, build

ONE = Copies(1, 1, 1)
THREE = Copies(3, 3, 2)


class Nodes:
    """Nodes in this process; one that is `down` refuses everything from then on."""

    def __init__(self, *nodes: MemoryNode | DiskNode) -> None:
        self.nodes = {node.identity: node for node in nodes}
        self.down: set[NodeIdentity] = set()

    def get(self, identity: NodeIdentity) -> StorageNode:
        return Reached(self, identity)  # type: ignore[return-value]

    def choose(self, count: int) -> list[NodeIdentity]:
        return list(self.nodes)[:count]


class Reached:
    """A node if it is up."""

    in_order = True

    def __init__(self, nodes: Nodes, identity: NodeIdentity) -> None:
        self._nodes = nodes
        self.identity = identity

    def __getattr__(self, name: str) -> Callable[..., asyncio.Future[Any]]:
        return self._refuse if self.identity in self._nodes.down else getattr(self._nodes.nodes[self.identity], name)

    def _refuse(self, *_: object) -> asyncio.Future[Any]:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        answer.set_exception(NodeUnreachable("down"))
        return answer


class Scene:
    """One loop, one catalogue; `take` becomes the owner of the stream `t`."""

    def __init__(self, seed: int = 1) -> None:
        self.loop = SimLoop(seed, budget=200_000)
        self.catalog = SimCatalog(Random(seed))
        self.randomness = SimRandomness(Random(seed))

    def play(self, story: Callable[[Scene], Awaitable[None]]) -> None:
        try:
            self.loop.run_until_complete(story(self))
            assert not self.loop.failures, self.loop.failures
        finally:
            self.loop.shutdown()

    async def take(self, nodes: Nodes, copies: Copies, **settings: int) -> Stream:
        chosen = StreamSettings(copies=copies, **settings)  # type: ignore[arg-type]
        return await Stream.take("t", self.catalog, nodes, SimClock(self.loop), self.randomness, chosen)

    async def disk_node(self) -> DiskNode:
        disk = SimDisk(self.loop, Random(3), "d")
        return await DiskNode.open([disk], NodeSettings(file_bytes=1 << 18), self.randomness)

    def memory_nodes(self, count: int) -> Nodes:
        return Nodes(*(MemoryNode(self.randomness) for _ in range(count)))


def batch(number: int, size: int = 20) -> Batch:
    return build([f"{number}".encode().ljust(size, b".")], publish_time=1)


async def until(holds: Callable[[], bool]) -> None:
    """In virtual time, so that it costs nothing; a stalled loop ends it."""
    for _ in range(10_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it never came true")


async def read_all(stream: Stream) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = stream.first
    while offset <= stream.confirmed:
        batches = await stream.read(offset, 1 << 20)
        for each in batches:
            found += each.payloads()
        offset = batches[-1].last_offset + 1
    return found


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
        assert (stamped.base_offset, stamped.epoch) == (1, 2)

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
