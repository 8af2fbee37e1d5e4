"""The simulated disk fulfils the contract without faults, and with faults loses only what it may."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator

import pytest

from disk_contract import DiskContract, Run
from disk_world import World, lose, make
from pydanube.base.errors import DirectoryInUse, DiskFailed
from pydanube.ports.disk import Disk, DiskFile
from pydanube.sim.machine.disk import SimDisk
from pydanube.sim.machine.loop import Process

BLOCK = 2048  # four sectors


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.end()


class TestSimDisk(DiskContract):
    """The contract."""

    @pytest.fixture
    def run(self, world: World) -> Run:
        return world.loop.run_until_complete

    @pytest.fixture
    def disk(self, world: World) -> Disk:
        return world.disk

    @pytest.fixture
    def same_directory(self, world: World) -> Disk:
        return world.disk

    @pytest.fixture
    def fill(self, world: World) -> Callable[[], None]:
        def full() -> None:
            world.disk.capacity = 10

        return full


# -- power cuts --------------------------------------------------------------------------------------------------------


def test_what_was_synced_survives_and_nothing_is_invented_for_a_thousand_seeds() -> None:
    fates: set[str] = set()
    for seed in range(1_000):
        world = World(seed)
        synced: list[int] = []

        async def program(disk: Disk = world.disk, synced: list[int] = synced) -> None:
            file = await make(disk, reserve=64 * BLOCK)
            for number in range(20):
                await file.write(number * BLOCK, [bytes([number + 1]) * BLOCK], sync=number % 2 == 0)
                if number % 2 == 0:
                    synced.append(number)

        world.start(program(), (seed % 100) / 1000)
        world.cut()
        assert synced == [] or world.disk.names() == ("a",)
        if world.disk.names():
            content = world.disk.content("a")
            for number in range(20):
                block = content[number * BLOCK : (number + 1) * BLOCK]
                assert set(block) <= {0, number + 1}
                if block and (number in synced or number + 1 in synced):
                    assert set(block) == {number + 1}
                elif block:
                    fates.add("lost" if not any(block) else "landed" if all(block) else "torn")
        world.end()
    assert fates == {"lost", "landed", "torn"}


def test_every_subset_of_the_sectors_of_a_torn_write_can_be_chosen() -> None:
    seen = set()
    for subset in itertools.product([False, True], repeat=5):
        world = World()

        async def program(disk: Disk = world.disk) -> None:
            file = await make(disk, reserve=10_000)
            await file.write(1_000, [b"x" * 2_000], sync=False)  # 24 bytes, three sectors, 440 bytes

        world.run(program())
        assert world.disk.unsynced() == [("a", 1_000, 2_000)]
        world.cut(keep=lambda write, sector, subset=subset: subset[sector])
        content = world.disk.content("a")
        for kept, (start, end) in zip(subset, itertools.pairwise([1000, 1024, 1536, 2048, 2560, 3000]), strict=True):
            assert content[start:end] == (b"x" if kept else b"\0") * (end - start)
        assert len(content) == 10_000
        seen.add(content)
        world.end()
    assert len(seen) == 32


def test_writes_land_out_of_order_and_the_later_one_wins_where_both_did(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        await file.write(0, [b"1" * 512], sync=False)
        await file.write(0, [b"2" * 1024], sync=False)
        await file.write(0, [b"3" * 512], sync=False)

    world.run(program())
    world.cut(keep=lambda write, sector: write in (0, 1) and (write, sector) != (1, 0))
    assert world.disk.content("a") == b"1" * 512 + b"2" * 512


def test_a_write_in_flight_may_be_torn_by_the_power_cut(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        await file.write(0, [b"1" * 1024], sync=True)
        world.disk.slow(10)
        await file.write(0, [b"2" * 1024], sync=True)

    world.start(program(), 1)
    world.disk.freeze()
    assert world.disk.unsynced() == [("a", 0, 1024)]
    world.cut(keep=lambda write, sector: sector == 1)
    world.loop.run_until_complete(asyncio.sleep(100))  # nothing from before the cut happens later
    assert world.disk.content("a") == b"1" * 512 + b"2" * 512


def test_a_crash_can_fall_between_a_write_and_its_sync(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk)
        world.disk.slow(10, only="sync")
        await file.write(0, [b"x"], sync=True)

    world.start(program(), 5)
    assert world.disk.content("a") == b"x"
    world.disk.freeze()
    world.cut(keep=lose)
    assert world.disk.content("a") == b""


def test_a_sync_covers_what_was_complete_when_it_was_asked_for(world: World) -> None:
    async def program() -> None:
        file = await make(world.disk, reserve=3)
        await file.write(0, [b"1"], sync=False)
        world.disk.slow(10, only="sync")
        synced = file.sync()
        await file.write(1, [b"2"], sync=False)
        await synced

    world.run(program())
    world.cut(keep=lose)
    assert world.disk.content("a") == b"1\0\0"


def test_the_size_of_an_unsynced_file_is_not_promised() -> None:
    sizes = set()
    for seed in range(50):
        world = World(seed)

        async def program(disk: Disk = world.disk) -> None:
            await disk.create("a", reserve=4096)
            await disk.sync_directory()

        world.run(program())
        world.cut()
        sizes.add(len(world.disk.content("a")))
        world.end()
    assert sizes == {0, 4096}


def test_handles_from_before_the_cut_change_nothing(world: World) -> None:
    async def program() -> DiskFile:
        file = await make(world.disk)
        await file.write(0, [b"kept"], sync=True)
        return file

    file = world.run(program())
    world.cut()

    async def late() -> None:
        await file.write(0, [b"late"], sync=True)

    world.run(late())
    assert world.disk.content("a") == b"kept"


# -- the directory -----------------------------------------------------------------------------------------------------


def test_changes_of_the_directory_survive_up_to_any_one_of_them() -> None:
    async def program(disk: Disk) -> None:
        for name in ("a", "b"):
            await (await make(disk, name)).write(0, [name.encode()], sync=True)
        await disk.create("c")
        await disk.rename("a", "b")
        await disk.remove("b")

    expected = [{"a": b"a", "b": b"b"}, {"a": b"a", "b": b"b", "c": b""}, {"b": b"a", "c": b""}, {"c": b""}]
    for kept, files in enumerate(expected):
        world = World()
        world.run(program(world.disk))
        world.cut(keep=lose, keep_directory=kept)
        assert {name: world.disk.content(name) for name in world.disk.names()} == files
        world.end()

    seen = set()
    for seed in range(100):
        world = World(seed)
        world.run(program(world.disk))
        world.cut()
        seen.add(world.disk.names())
        world.end()
    assert seen == {tuple(files) for files in expected}


def test_a_synced_file_whose_name_was_not_may_vanish(world: World) -> None:
    async def program() -> None:
        await (await world.disk.create("a")).write(0, [b"x"], sync=True)

    world.run(program())
    world.cut(keep_directory=0)
    assert world.disk.names() == ()


def test_a_file_that_was_created_and_removed_may_come_back(world: World) -> None:
    async def program() -> None:
        file = await world.disk.create("a")
        await file.write(0, [b"1"], sync=True)
        await file.write(1, [b"2"], sync=False)
        await world.disk.remove("a")

    world.run(program())
    world.cut(keep=lose, keep_directory=1)
    assert world.disk.content("a") == b"1"


def test_a_synced_directory_is_durable(world: World) -> None:
    async def program() -> None:
        await make(world.disk, "a")
        await world.disk.rename("a", "b")
        await world.disk.sync_directory()

    world.run(program())
    world.cut(keep_directory=0)
    assert world.disk.names() == ("b",)


# -- killed processes --------------------------------------------------------------------------------------------------


def test_the_cache_outlives_the_process(world: World) -> None:
    async def program() -> None:
        await (await world.disk.create("a")).write(0, [b"unsynced"], sync=False)

    world.run(program())
    world.restart()
    assert world.disk.content("a") == b"unsynced"


def test_a_write_in_flight_at_a_kill_happens_wholly_in_part_or_not_and_never_later() -> None:
    lengths = set()
    for seed in range(200):
        world = World(seed)

        async def program(disk: SimDisk = world.disk) -> None:
            file = await make(disk)
            disk.slow(10)
            await file.write(0, [b"x" * 100], sync=True)

        world.start(program(), 1)
        world.restart()
        length = len(world.disk.content("a"))
        world.loop.run_until_complete(asyncio.sleep(100))
        assert len(world.disk.content("a")) == length
        lengths.add(length)
        world.end()
    assert {0, 100} < lengths


def test_a_lock_ends_with_its_process(world: World) -> None:
    async def take(owner: str) -> None:
        await world.disk.lock(owner)

    world.run(take("first"))
    other = world.loop.process("other")
    with pytest.raises(DirectoryInUse, match=r"first \(node#1\)"):
        world.loop.run_until_complete(world.loop.spawn(other, take("other")))
    world.loop.kill(world.process)
    world.loop.run_until_complete(world.loop.spawn(other, take("other")))


def test_completions_never_reach_the_dead(world: World) -> None:
    done: list[Process] = []

    async def program() -> None:
        world.disk.slow(1)
        await world.disk.create("a")
        done.append(world.process)

    world.start(program(), 0.5)
    world.restart()
    world.loop.run_until_complete(asyncio.sleep(10))
    assert done == []


# -- every write boundary ----------------------------------------------------------------------------------------------


def test_power_can_be_cut_at_every_boundary_of_a_scripted_run() -> None:
    async def script(disk: Disk, done: list[str]) -> None:
        file = await disk.create("new")  # boundary 0
        await file.write(0, [b"x"], sync=True)  # 1, 2
        await disk.rename("new", "current")  # 3
        await disk.sync_directory()  # 4
        done.append("made")
        await file.write(1, [b"y"], sync=True)  # 5, 6
        done.append("changed")

    outcomes = []
    for boundary in range(8):
        world = World(3)
        done: list[str] = []
        finished = world.loop.create_future()
        world.disk.cut_at = boundary
        world.disk.on_cut = lambda finished=finished: finished.set_result(None)
        task = world.loop.spawn(world.process, script(world.disk, done))
        if boundary < 7:
            world.loop.run_until_complete(finished)
            assert world.disk.frozen
        else:
            world.loop.run_until_complete(task)
        assert world.disk.boundaries == boundary
        world.cut(keep=lose, keep_directory=0)
        outcomes.append((list(done), {name: world.disk.content(name) for name in world.disk.names()}))
        world.end()
    assert outcomes == [
        *[([], {})] * 5,
        *[(["made"], {"current": b"x"})] * 2,
        (["made", "changed"], {"current": b"xy"}),
    ]


def test_boundaries_are_announced(world: World) -> None:
    seen: list[int] = []
    world.disk.on_boundary = seen.append

    async def program() -> None:
        file = await make(world.disk)
        await file.read(0, 1)
        await world.disk.list()

    world.run(program())
    assert seen == [0, 1, 2]
    assert world.disk.operations == {"create": 1, "sync": 1, "sync_directory": 1, "read": 1, "list": 1}


# -- determinism -------------------------------------------------------------------------------------------------------


def test_equal_seeds_give_equal_disks() -> None:
    def digest(seed: int) -> tuple[str, dict[str, tuple[int, bytes]]]:
        world = World(seed)

        async def program(disk: Disk) -> None:
            file = await make(disk, reserve=1 << 20)
            await asyncio.gather(*(file.write(n * 700, [b"%c" % n * 700], sync=n % 5 == 0) for n in range(100)))

        world.start(program(world.disk), 0.004)
        world.cut()
        found = world.loop.trace_digest(), world.disk.image()
        world.end()
        return found

    assert [digest(seed) for seed in range(10)] == [digest(seed) for seed in range(10)]
    assert digest(1) != digest(2)


def test_a_write_whose_sync_failed_never_comes_back_over_a_later_one_that_was_synced(world: World) -> None:
    async def scenario() -> None:
        file = await make(world.disk, "a", 4096)
        world.disk.fail_next("sync")
        with pytest.raises(DiskFailed):
            await file.write(0, [b"old " * 4], sync=True)
        await file.write(4, [b"new " * 2], sync=True)

    world.run(scenario())
    world.cut(keep=lambda write, sector: True, keep_directory=0)
    assert world.disk.content("a")[:16] == b"old new new old "
