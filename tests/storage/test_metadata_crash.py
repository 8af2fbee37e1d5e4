"""Power cuts and kills at every step that changes the disk: what was acknowledged is there, whole, and nothing is half.

The script writes transactions of several keys that belong together, one at a time and in groups, often enough that
files are replaced. After the crash the directory is opened again, written to, and opened once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from disk_world import lose
from pydanube.base.errors import DanubeError
from pydanube.base.limits import KIB
from pydanube.storage.metadata.raft import RaftMetadata
from storage.metadata_world import MetadataWorld, Shown, put, shown

ROUNDS = 14


class Script:
    """Pairs of keys that always change together, and what was acknowledged of each."""

    def __init__(self, world: MetadataWorld) -> None:
        self.world = world
        self.asked: dict[str, list[bytes]] = {}  # by pair, in order
        self.acknowledged: dict[str, bytes] = {}
        self.over = False

    async def run(self) -> None:
        store = await self.world.open()
        for number in range(ROUNDS):
            await self.write(store, "alone", number)
            await asyncio.gather(*(self.write(store, f"group{member}", number) for member in range(3)))
        await store.close()
        self.over = True

    async def write(self, store: RaftMetadata, pair: str, number: int) -> None:
        value = b"%d " % number * 150
        self.asked.setdefault(pair, []).append(value)
        await store.transact((), [(f"{pair}/left", value), (f"{pair}/right", value)])
        self.acknowledged[pair] = value

    def check(self, found: Shown) -> None:
        for pair, values in self.asked.items():
            left, right = (found.get(f"{pair}/{side}", (None, 0)) for side in ("left", "right"))
            assert left == right, f"{pair} is half applied"
            at = -1 if left[0] is None else values.index(left[0])
            acknowledged = self.acknowledged.get(pair)
            assert acknowledged is None or at >= values.index(acknowledged), f"{pair} lost what was acknowledged"


def count_steps() -> int:
    world = MetadataWorld()
    world.run(Script(world).run())
    steps = world.disk.boundaries
    names = world.disk.names()
    world.end()
    assert not any(name.endswith("1.log") for name in names), "the script replaces no file"
    return steps


STEPS = count_steps()
Crash = Callable[[MetadataWorld], None]


def crash_at(step: int, seed: int, crash: Crash) -> None:
    world = MetadataWorld()  # the same run each time up to the crash
    script = Script(world)
    world.disk.cut_at = step
    world.disk.on_cut = lambda: world.loop.kill(world.process)
    world.loop.spawn(world.process, script.run())
    world.loop.run_until_complete(asyncio.sleep(5))
    assert not script.over
    world.disk._random.seed(f"{step}/{seed}")
    crash(world)

    async def look() -> Shown:
        store = await world.open()
        script.check(shown(store))
        await put(store, after=b"%d" % step)
        found = shown(store)
        world.loop.trace("looked", store.revision)
        return found

    found = world.run(look())
    world.cut(keep=lose, keep_directory=0)
    assert world.run(look_again(world)) == found
    world.end()


async def look_again(world: MetadataWorld) -> Shown:
    store = await world.open()
    return shown(store)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_power_cut_at_every_step(seed: int) -> None:
    for step in range(STEPS):
        crash_at(step, seed, lambda world: world.cut())


@pytest.mark.slow
def test_a_power_cut_that_loses_all_it_may() -> None:
    for step in range(STEPS):
        crash_at(step, 0, lambda world: world.cut(keep=lose, keep_directory=0))


@pytest.mark.slow
@pytest.mark.parametrize("parity", [0, 1])
def test_a_power_cut_that_keeps_every_second_sector(parity: int) -> None:
    for step in range(STEPS):
        crash_at(step, 0, lambda world: world.cut(keep=lambda _, sector: sector % 2 == parity))


def test_a_power_cut_while_a_start_mends_what_another_left() -> None:
    """A torn write, then a cut at every step of the start that finds it."""
    world = MetadataWorld()

    async def prepare() -> None:
        store = await world.open()
        await put(store, a=b"1")
        world.disk.slow(10.0, only="sync")
        await put(store, big=bytes(range(1, 256)) * 64)

    world.start(prepare(), 2.0)
    world.disk.freeze()
    world.cut(keep=lambda _, sector: sector % 3 == 1)
    torn = world.disk.image()
    world.end()
    step = 0
    while step == 0 or cut_of_start(torn, step - 1):
        step += 1
    assert step > 4


def cut_of_start(image: dict[str, tuple[int, bytes]], step: int) -> bool:
    """Whether the start takes as many steps."""
    world = MetadataWorld(step)
    world.disk.load(image)
    world.disk.cut_at = step
    world.disk.on_cut = lambda: world.loop.kill(world.process)
    world.start(world.open(mark_idle_seconds=1e6), 5.0)
    if not world.disk.frozen:
        world.end()
        return False
    for _ in range(2):
        world.cut()
        assert world.run(look_again(world)) == {"a": (b"1", 2)}
    world.end()
    return True


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_kill_at_every_step(seed: int) -> None:
    """The machine lives on: what the operating system has, it keeps, in part perhaps."""
    for step in range(STEPS):
        world = MetadataWorld()
        script = Script(world)

        def kill(number: int, world: MetadataWorld = world, step: int = step) -> None:
            if number == step:
                world.disk._random.seed(f"{step}/{seed}")
                world.loop.call_soon(world.loop.kill, world.process, context=world.loop.world)

        world.disk.on_boundary = kill
        world.loop.spawn(world.process, script.run())
        world.loop.run_until_complete(asyncio.sleep(5))
        world.restart()
        found = world.run(look_again(world))
        script.check(found)
        world.cut(keep=lose, keep_directory=0)  # what a start has shown is durable
        assert world.run(look_again(world)) == found
        world.end()


def test_what_was_written_and_never_synced_is_synced_before_it_is_shown() -> None:
    world = MetadataWorld()

    async def write() -> None:
        store = await world.open()
        await put(store, a=b"1")
        world.disk.fail_next("sync", prefix="metadata-")
        with pytest.raises(DanubeError):
            await put(store, a=b"2")

    world.run(write())
    world.restart()
    assert world.run(look_again(world))["a"][0] == b"2"
    world.cut(keep=lose, keep_directory=0)
    assert world.run(look_again(world))["a"][0] == b"2"
    world.end()


def test_keys_of_sessions_go_when_their_process_is_gone() -> None:
    world = MetadataWorld()

    async def write() -> int:
        store = await world.open()
        session = await store.open_session(3600)
        await store.transact((), [(f"mine/{number}", b"") for number in range(100)], session=session)
        for number in range(20):  # a snapshot remembers whose they are
            await put(store, **{f"k{number}": bytes(4 * KIB)})
        return session

    async def look() -> int:
        store = await world.open()
        assert store.scan("mine/") == []
        assert len(store.scan("k")) == 20
        session = await store.open_session(3600)
        await store.close()
        return session

    former = world.run(write())
    world.restart()
    assert world.run(look()) != former
    world.end()


def test_what_a_torn_write_left_is_not_taken_for_damage_later() -> None:
    """All of a group landed but its head; then smaller groups are written over a part of it."""
    world = MetadataWorld()

    async def tear() -> None:
        store = await world.open()
        await put(store, a=b"1")
        world.disk.slow(10.0, only="sync")
        await put(store, big=bytes(range(1, 256)) * 64)

    async def go_on(number: int) -> None:
        store = await world.open(mark_idle_seconds=1e6)
        await put(store, **{f"small{number}": b""})

    world.start(tear(), 2.0)
    world.disk.freeze()
    world.cut(keep=lambda _, sector: sector > 0)
    for number in range(4):
        world.run(go_on(number))
        world.restart()
    assert set(world.run(look_again(world))) == {"a", "small0", "small1", "small2", "small3"}
    world.end()
