"""The shared metadata of a simulated cluster: each process reads a copy that follows, and answers may be lost."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from pydanube.base.errors import MetadataConflict, NodeUnreachable
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.world.metadata import BEHIND_SECONDS_MAX, FollowedMetadata, SharedMetadata


class World:
    def __init__(self, seed: int = 0) -> None:
        self.loop = SimLoop(seed)
        self.shared = SharedMetadata(self.loop, Random(seed))
        self.one, self.other = self.loop.process("one"), self.loop.process("other")
        self.near, self.far = self.shared.of(self.one), self.shared.of(self.other)


def value(store: FollowedMetadata, key: str) -> bytes | None:
    found = store.get(key)
    return None if found is None else found.value


@pytest.mark.parametrize("seed", range(5))
def test_who_changes_something_reads_it_and_others_read_it_soon(seed: int) -> None:
    world = World(seed)

    async def main() -> None:
        revision = await world.near.transact([("a", 0)], [("a", b"1")])
        assert (value(world.near, "a"), world.near.revision) == (b"1", revision)
        await asyncio.sleep(BEHIND_SECONDS_MAX)
        assert value(world.far, "a") == b"1"
        with pytest.raises(MetadataConflict):
            await world.far.transact([("a", 0)], [("a", b"2")])

    world.loop.run_until_complete(main())


def test_what_is_read_may_be_behind_until_a_barrier() -> None:
    world = World()

    async def main() -> None:
        behind = 0
        for number in range(50):
            await world.near.transact((), [("a", b"%d" % number)])
            behind += value(world.far, "a") != b"%d" % number
            await world.far.barrier()
            assert value(world.far, "a") == b"%d" % number
        assert behind > 10

    world.loop.run_until_complete(main())


def test_a_process_that_starts_later_knows_everything_and_a_dead_one_learns_nothing() -> None:
    world = World()

    async def main() -> None:
        await world.near.transact((), [("a", b"1"), ("b", b"1")])
        await asyncio.sleep(1.0)
        world.loop.kill(world.other)
        await world.near.transact((), [("a", b"2"), ("b", None)])
        await asyncio.sleep(1.0)
        assert value(world.far, "a") == b"1"
        new = world.shared.of(world.loop.process("other"))
        assert (value(new, "a"), value(new, "b"), new.count("")) == (b"2", None, 1)

    world.loop.run_until_complete(main())


def test_an_answer_may_be_lost_although_the_change_was_made() -> None:
    world = World()
    world.shared.unreliable = 0.5

    async def main() -> None:
        made = lost = 0
        for number in range(60):
            try:
                await world.near.transact((), [(f"{number}", b"")])
            except NodeUnreachable:
                lost += 1
                made += world.shared.get(f"{number}") is not None
        assert 0 < made < lost < 60

    world.loop.run_until_complete(main())


def test_a_watch_sees_every_change_in_order() -> None:
    world = World()
    seen: list[str] = []

    async def watch() -> None:
        async for change in world.far.watch("a"):
            seen.append(change.key)

    async def main() -> None:
        watching = asyncio.ensure_future(watch())
        await asyncio.sleep(0)
        for key in ("a1", "b", "a2", "a3"):
            await world.near.transact((), [(key, b"")])
        await asyncio.sleep(1.0)
        await world.far.close()
        await watching
        assert seen == ["a1", "a2", "a3"]

    world.loop.run_until_complete(main())
