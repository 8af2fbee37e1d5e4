"""The simulated disk fails, fills up, slows down and is damaged on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from disk_world import World, lose, make
from pydanube.base.errors import DiskFailed, DiskFull, FileMissing
from pydanube.ports.disk import DiskFile
from pydanube.sim.machine.disk import SimDisk


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.end()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_a_failed_sync_is_not_cured_by_one_that_succeeds(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        await file.write(0, [b"1"], sync=False)
        world.disk.fail_next("sync")
        with pytest.raises(DiskFailed, match="sync a"):
            await file.sync()
        await file.write(1, [b"2"], sync=True)
        await file.sync()
        assert await file.read(0, 9) == b"12"

    world.run(program())
    world.cut(keep=lose)
    assert world.disk.content("a") == b"\x002"


def test_when_one_of_two_concurrent_syncs_fails_what_both_cover_is_lost(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        await file.write(0, [b"1"], sync=False)
        first = file.sync()
        world.disk.slow(1)
        second = file.sync()
        world.disk.fail_next("sync")
        with pytest.raises(DiskFailed):
            await first
        await second

    world.run(program())
    world.cut(keep=lose)
    assert world.disk.content("a") == b"\0"


def test_the_sync_of_a_write_fails_the_write(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        world.disk.fail_next("sync")
        with pytest.raises(DiskFailed):
            await file.write(0, [b"1"], sync=True)
        assert await file.read(0, 9) == b"1"

    world.run(program())


def test_a_failed_write_may_have_written_a_part() -> None:
    lengths = set()
    for seed in range(100):
        world = World(seed)

        async def program(disk: SimDisk = world.disk) -> None:
            file = await make(disk)
            disk.fail_next("write")
            with pytest.raises(DiskFailed):
                await file.write(0, [b"xyz"], sync=True)

        world.run(program())
        assert b"xyz".startswith(world.disk.content("a"))
        lengths.add(len(world.disk.content("a")))
        world.end()
    assert lengths == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", ["create", "rename", "remove", "read", "sync_directory", "open", "list"])
def test_any_operation_can_be_made_to_fail(world: World, kind: str) -> None:
    async def program() -> None:
        file = await make(world.disk)
        calls: dict[str, Callable[[], Any]] = {
            "create": lambda: world.disk.create("b"),
            "rename": lambda: world.disk.rename("a", "c"),
            "remove": lambda: world.disk.remove("a"),
            "read": lambda: file.read(0, 1),
            "sync_directory": world.disk.sync_directory,
            "open": lambda: world.disk.open("a"),
            "list": world.disk.list,
        }
        world.disk.fail_next(kind)
        with pytest.raises(DiskFailed, match=f"{kind}.*injected"):
            await calls[kind]()
        assert world.disk.names() == ("a",)
        await calls[kind]()

    world.run(program())


def test_faults_are_counted_and_can_wait_for_their_file(world: World) -> None:
    async def attempt(file: DiskFile) -> str:
        try:
            await file.write(0, [b"x"], sync=False)
        except DiskFailed:
            return "failed"
        except DiskFull:
            return "full"
        return "done"

    async def program() -> None:
        journal, other = await make(world.disk, "journal-1"), await make(world.disk, "other")
        world.disk.fail_next("write", after=1, count=2, prefix="journal-")
        world.disk.fail_next("write", DiskFull, after=1, prefix="other")
        outcomes = [await attempt(file) for _ in range(5) for file in (journal, other)]
        assert outcomes[::2] == ["done", "failed", "failed", "done", "done"]
        assert outcomes[1::2] == ["done", "full", "done", "done", "done"]
        world.disk.fail_next("write", count=100)
        world.disk.cure()
        assert await attempt(journal) == "done"

    world.run(program())


def test_a_full_disk_counts_reserved_space_and_has_room_again_when_files_are_removed() -> None:
    world = World(capacity=10_000)

    async def program() -> None:
        disk = world.disk
        reserved = await make(disk, "a", reserve=6_000)
        assert await disk.free_bytes() == 4_000
        with pytest.raises(DiskFull, match="create b"):
            await disk.create("b", reserve=4_001)
        grown = await make(disk, "b")
        await reserved.write(0, [bytes(6_000)], sync=True)
        with pytest.raises(DiskFull, match="write b"):
            await grown.write(3_000, [b"x" * 2_000], sync=True)
        assert await grown.read(0, 9_999) == bytes(3_000) + b"x" * 1_000
        await disk.remove("a")
        await grown.write(3_000, [b"y" * 2_000], sync=True)
        disk.capacity = None
        assert await disk.free_bytes() > 1 << 40

    world.run(program())
    world.end()


def test_a_slow_disk_is_slow_until_the_given_time(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        world.disk.slow(7, factor=2, until=world.loop.time() + 10, only="sync")
        start = world.loop.time()
        await file.write(0, [b"x"], sync=True)
        assert 7 < world.loop.time() - start < 7.1
        await file.sync()
        assert 14 < world.loop.time() - start < 14.2
        await file.sync()
        assert world.loop.time() - start < 14.4

    world.run(program())


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_is_seen_at_once_and_survives_sync_and_power_cut(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk, reserve=20)
        await file.write(0, [b"abcd"], sync=True)
        await file.write(4, [b"efgh"], sync=False)
        world.disk.flip_bit("a", 0, 0)
        world.disk.flip_bit("a", 5, 5)
        world.disk.zero_range("a", 2, 1)
        world.disk.overwrite("a", 3, b"DE")
        world.disk.truncate("a", 10)
        assert await file.read(0, 100) == b"`b\0DEFgh\0\0"
        await file.sync()

    world.run(program())
    world.cut(keep=lose)
    assert world.disk.content("a") == b"`b\0DEFgh\0\0"


def test_damage_needs_a_file(world: World) -> None:
    with pytest.raises(FileMissing):
        world.disk.flip_bit("a", 0, 0)


def test_an_image_can_be_loaded_repeatedly(world: World) -> None:
    async def program() -> None:
        await (await make(world.disk, reserve=1 << 30)).write(0, [b"abc"], sync=False)

    world.run(program())
    image = world.disk.image()
    assert image == {"a": (1 << 30, b"abc")}
    for bit in range(8):
        copy = World(bit)
        copy.disk.load(image)
        copy.disk.flip_bit("a", 1, bit)
        copy.cut(keep=lose)
        assert copy.disk.image()["a"] == (1 << 30, bytes([97, 98 ^ (1 << bit), 99]))
        copy.end()
