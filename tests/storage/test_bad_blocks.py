"""Blocks that the disk cannot read: they cost what lies in them. A disk that fails altogether costs nothing."""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Callable, Iterator

import pytest

from broker.door_world import DoorWorld, caller, served
from pydanube.access.principals import ANONYMOUS
from pydanube.base.errors import DanubeError, DiskFailed, OffsetsDamaged
from pydanube.base.limits import BLOCK_BYTES
from pydanube.broker.door.door import Door
from pydanube.journal.group import CHECKPOINTS, GroupKind
from pydanube.operations.topics import CreateTopic
from pydanube.sim.machine.disk import SimDisk, SimFile
from pydanube.storage.node.bad_blocks import NODE_FILE
from pydanube.wire.batch import build
from storage.damage import groups

TOPICS = ("/default/a", "/default/b")
COUNT = 3
Breaks = Callable[[str, int], bool]  # whether a block of a file, by its position, cannot be read


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[SimDisk, Breaks], None]:
    """From now on reads of a disk fail where blocks are broken."""

    def begin(disk: SimDisk, breaks: Breaks) -> None:
        def read(file: SimFile, position: int, length: int) -> Future[bytes]:
            first = position // BLOCK_BYTES * BLOCK_BYTES
            if file._disk is disk and any(breaks(file.name, at) for at in range(first, position + length, BLOCK_BYTES)):
                answer: Future[bytes] = asyncio.get_running_loop().create_future()
                answer.set_exception(DiskFailed(f"read {file.name}: Input/output error"))
                return answer
            return whole(file, position, length)

        monkeypatch.setattr(SimFile, "read", read)

    whole = SimFile.read
    return begin


def payload(topic: str, offset: int) -> bytes:
    return f"{topic}:{offset}.".encode()


async def write(door: Door) -> None:
    for topic in TOPICS:
        await caller(door).carry_out(CreateTopic(topic))
    for offset in range(COUNT):
        for topic in TOPICS:
            await publish(door, topic, offset)


async def publish(door: Door, topic: str, number: int) -> int:
    kept = (await served(door, topic)).reliable
    receipt = kept.publish(build([payload(topic, number)], publish_time=1))
    await receipt.confirmed
    return receipt.offset


async def covered(door: Door) -> None:
    await write(door)
    await asyncio.sleep(2)  # a mark says that all of it was synced


async def lost_in(door: Door, topic: str) -> set[int]:
    """What cannot be read; the rest is right."""
    lost: set[int] = set()
    for offset in range(COUNT):
        try:
            [batch, *_] = await caller(door).read(topic, offset, 1)
        except OffsetsDamaged:
            lost.add(offset)
        else:
            assert (batch.base_offset, batch.payloads()) == (offset, [payload(topic, offset)])
    return lost


async def state_is_damaged(door: Door, topic: str) -> bool:
    try:
        await served(door, topic)
    except OffsetsDamaged:
        return True
    return False


def journal_of(world: DoorWorld) -> str:
    return max(name for name in world.disks[1].names() if name.startswith("journal-"))


def place_of(world: DoorWorld, content: bytes) -> int:
    return world.disks[1].content(journal_of(world)).index(content) // BLOCK_BYTES * BLOCK_BYTES


def blocks_of(world: DoorWorld) -> list[int]:
    """Of every group of the newest journal but the mark at its end, which nothing follows."""
    found = list(groups(world.disks[1].content(journal_of(world))))
    assert found[-1][1].kind is GroupKind.MARK
    return list(range(0, found[-1][0], BLOCK_BYTES))


@pytest.mark.parametrize("block", range(CHECKPOINTS + 14))
def test_one_block_that_cannot_be_read_at_a_start_costs_what_is_in_it(
    block: int, broken: Callable[[SimDisk, Breaks], None]
) -> None:
    world = DoorWorld()
    world.run(covered)
    name, places = journal_of(world), blocks_of(world)
    position = places[block % len(places)]
    content = world.disks[1].content(name)[position : position + BLOCK_BYTES]
    expected = {topic: {o for o in range(COUNT) if payload(topic, o) in content} for topic in TOPICS}
    broken(world.disks[1], lambda file, at: file == name and at == position)

    async def look(door: Door) -> None:
        for topic in TOPICS:
            if not await state_is_damaged(door, topic):
                assert await lost_in(door, topic) == expected[topic]
            await door.salvage.examine(ANONYMOUS, topic, accept=True, ticket=None)
            assert await publish(door, topic, 99) >= COUNT

    world.run(look)


def test_an_unreadable_last_group_is_no_torn_tail(broken: Callable[[SimDisk, Breaks], None]) -> None:
    """It was acknowledged. Nothing behind it says so, and nobody can read that it was not."""
    world = DoorWorld()
    world.run(write)
    name, position = journal_of(world), place_of(world, payload(TOPICS[1], COUNT - 1))
    broken(world.disks[1], lambda file, at: file == name and at == position)

    async def look(door: Door) -> None:
        assert await publish(door, TOPICS[1], 99) >= COUNT
        assert await lost_in(door, TOPICS[1]) == {COUNT - 1}
        assert not await lost_in(door, TOPICS[0])

    world.run(look)


def test_an_unreadable_block_found_while_the_broker_runs_can_be_given_up(
    broken: Callable[[SimDisk, Breaks], None],
) -> None:
    world = DoorWorld()
    world.run(covered)
    name, position = journal_of(world), place_of(world, payload(TOPICS[0], 1))

    async def look(door: Door) -> None:
        await served(door, TOPICS[0])
        broken(world.disks[1], lambda file, at: file == name and at == position)
        assert await lost_in(door, TOPICS[0]) == {1}
        await door.salvage.examine(ANONYMOUS, TOPICS[0], accept=True, ticket=None)
        assert [batch.base_offset for batch in await caller(door).read(TOPICS[0], 1, 1)] == [2]

    world.run(look)


def test_a_disk_that_reads_nothing_stops_the_start_and_has_everything_when_it_is_back(
    broken: Callable[[SimDisk, Breaks], None],
) -> None:
    world = DoorWorld()
    world.run(covered)
    failing = True
    broken(world.disks[1], lambda file, at: failing)

    async def refused(door: Door) -> None:
        raise AssertionError("it started")

    with pytest.raises(DiskFailed, match="Input/output error"):
        world.run(refused)
    failing = False

    async def look(door: Door) -> None:
        assert not [offset for topic in TOPICS for offset in await lost_in(door, topic)]

    world.run(look)


def test_one_copy_of_the_node_file_is_enough(broken: Callable[[SimDisk, Breaks], None]) -> None:
    world = DoorWorld()
    world.run(covered)
    broken(world.disks[1], lambda file, at: file == NODE_FILE and at == 0)

    async def look(door: Door) -> None:
        assert not await lost_in(door, TOPICS[0])

    world.run(look)


def test_metadata_that_cannot_be_read_stops_the_start_and_is_named(broken: Callable[[SimDisk, Breaks], None]) -> None:
    world = DoorWorld()
    world.run(covered)
    broken(world.disks[0], lambda file, at: file.startswith("metadata-") and at == BLOCK_BYTES)

    async def refused(door: Door) -> None:
        raise AssertionError("it started")

    with pytest.raises(DanubeError, match="metadata-") as error:
        world.run(refused)
    assert "restore the directory from a backup" in error.value.help


@pytest.mark.parametrize(("disk", "start"), [(0, "metadata-"), (1, "journal-")])
def test_what_nothing_can_be_trusted_without_is_named_with_its_directory(disk: int, start: str) -> None:
    """The metadata, or both checkpoints of the only journal file, overwritten."""
    world = DoorWorld()
    world.run(covered)
    damaged = world.disks[disk]
    name = max(name for name in damaged.names() if name.startswith(start))
    for block in range(CHECKPOINTS + 1):
        damaged.overwrite(name, block * BLOCK_BYTES, b"\xa5" * BLOCK_BYTES)

    async def refused(door: Door) -> None:
        raise AssertionError("it started")

    with pytest.raises(DanubeError, match=f"{damaged.name}/{name}") as error:
        world.run(refused)
    assert "from a backup" in error.value.help
