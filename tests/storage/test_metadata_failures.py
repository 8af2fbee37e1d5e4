"""Every disk operation of a scripted run fails once, each in a run of its own; and disks that are full.

Whatever fails, a caller gets a typed error and nothing acknowledged is lost; the store goes on by itself with the next
transaction, and a restart or a power cut finds what was acknowledged, and of the rest all or nothing.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import pytest

from disk_world import lose
from pydanube.base.errors import DanubeError, DiskFailed, DiskFull, MetadataConflict
from pydanube.base.limits import KIB, MIB
from pydanube.storage.metadata.raft import RaftMetadata
from storage.metadata_world import LOG_BYTES, MetadataWorld, Shown, put, shown

KINDS = ("write", "sync", "create", "rename", "remove", "sync_directory", "open", "list", "read", "size")


@dataclass
class Script:
    """Pairs of keys that change together, for long enough that files are replaced."""

    world: MetadataWorld
    acknowledged: dict[str, bytes] = field(default_factory=dict)
    asked: dict[str, list[bytes]] = field(default_factory=dict)
    failed: int = 0

    async def run(self) -> None:
        for start in range(2):
            store = await self.open()
            for number in range(6):
                value = b"%d.%d " % (start, number) * 40
                await self.write(store, "alone", value)
                await asyncio.gather(*(self.write(store, f"group{member}", value) for member in range(3)))
            self.check(shown(store))
            await self.write(store, "last", b"%d" % start)  # may be the one that fails
            await self.write(store, "last", b"%d again" % start)
            assert self.acknowledged["last"] in (b"%d" % start, b"%d again" % start)
            await store.close()

    async def open(self) -> RaftMetadata:
        while True:
            try:
                return await self.world.open(mark_idle_seconds=1e6)
            except DanubeError:
                self.failed += 1

    async def write(self, store: RaftMetadata, pair: str, value: bytes) -> None:
        self.asked.setdefault(pair, []).append(value)
        try:
            await store.transact((), [(f"{pair}/left", value), (f"{pair}/right", value)])
        except DanubeError:
            self.failed += 1
        else:
            self.acknowledged[pair] = value

    def check(self, found: Shown) -> None:
        for pair, values in self.asked.items():
            left, right = (found.get(f"{pair}/{side}", (None, 0)) for side in ("left", "right"))
            assert left == right, f"{pair} is half applied"
            acknowledged = self.acknowledged.get(pair)
            if acknowledged is not None:
                assert left[0] is not None
                assert values.index(left[0]) >= values.index(acknowledged), f"{pair} lost what was acknowledged"


def count_operations() -> Counter[str]:
    world = MetadataWorld()
    world.run(Script(world).run())
    counted = world.disk.operations
    world.end()
    return counted


OPERATIONS = count_operations()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "error"), [*((kind, DiskFailed) for kind in KINDS), ("write", DiskFull), ("create", DiskFull)]
)
def test_every_operation_of_a_kind_fails_once(kind: str, error: type[DanubeError]) -> None:
    assert OPERATIONS[kind] > 0
    noticed = 0
    for after in range(OPERATIONS[kind]):
        world = MetadataWorld()
        world.disk.fail_next(kind, error, after=after)
        script = Script(world)
        world.run(script.run())
        noticed += script.failed > 0
        world.cut(keep=lose, keep_directory=0)

        async def look(world: MetadataWorld = world, script: Script = script) -> None:
            store = await world.open()
            script.check(shown(store))
            await put(store, after=b"")

        world.run(look())
        world.end()
    assert noticed > 0 or kind == "remove"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["write", "sync", "create", "rename", "sync_directory"])
def test_a_power_cut_while_it_fails(kind: str) -> None:
    """The failure, then a few transactions, then the power goes: nothing acknowledged in the new file is lost."""
    for after in range(OPERATIONS[kind]):
        world = MetadataWorld()
        world.disk.fail_next(kind, after=after, count=2)
        script = Script(world)
        world.start(script.run(), 0.05 + after * 0.004)
        world.cut()

        async def look(world: MetadataWorld = world, script: Script = script) -> None:
            world.disk.cure()
            script.check(shown(await world.open()))

        world.run(look())
        world.end()


def test_what_a_failed_write_was_about_is_not_shown_and_what_built_on_it_is_refused() -> None:
    world = MetadataWorld()

    async def scenario() -> None:
        store = await world.open()
        watch = store.watch("")
        first = await put(store, a=b"1")
        term = store.term
        world.disk.fail_next("sync", prefix="metadata-")
        writing = asyncio.ensure_future(store.transact([("a", first)], [("a", b"2")]))
        await asyncio.sleep(1e-6)
        behind = asyncio.ensure_future(store.transact([("a", first + 1)], [("b", b"1")]))
        for answer in await asyncio.gather(writing, behind, return_exceptions=True):
            assert isinstance(answer, DiskFailed)
        assert shown(store) == {"a": (b"1", first)}
        with pytest.raises(MetadataConflict):
            await store.transact([("a", first + 1)], [("b", b"1")])
        assert await store.transact([("a", first)], [("a", b"3")]) > first + 1
        assert store.term > term
        watch.close()
        assert [change.entry and change.entry.value async for change in watch] == [b"1", b"3"]
        await store.close()

    world.run(scenario())
    world.end()


def test_on_a_full_disk_nothing_is_lost_and_it_goes_on_when_there_is_room() -> None:
    world = MetadataWorld(capacity=3 * LOG_BYTES + 64 * KIB)

    async def fill() -> Shown:
        store = await world.open()
        acknowledged: Shown = {}
        refused = 0
        for number in range(200):
            key = f"k{number}"
            try:
                acknowledged[key] = (bytes(KIB), await put(store, **{key: bytes(KIB)}))
            except DiskFull:
                refused += 1
        assert refused > 0
        assert shown(store) == acknowledged
        return acknowledged

    async def go_on(acknowledged: Shown) -> None:
        store = await world.open()
        assert shown(store) == acknowledged
        more = [put(store, **{f"more{number}": bytes(KIB)}) for number in range(100)]
        assert any(isinstance(answer, DiskFull) for answer in await asyncio.gather(*more, return_exceptions=True))
        world.disk.capacity = 10 * MIB
        await put(store, room=b"again")
        assert store.get("room") is not None
        await store.close()

    acknowledged = world.run(fill())
    world.cut(keep=lose, keep_directory=0)
    world.run(go_on(acknowledged))
    world.end()


def test_a_full_disk_can_be_opened_and_read() -> None:
    world = MetadataWorld()

    async def write() -> None:
        store = await world.open()
        await put(store, a=b"1")

    async def look() -> None:
        world.disk.capacity = 1
        store = await world.open()
        assert shown(store) == {"a": (b"1", 2)}
        assert await put(store, b=b"2") > 2  # there was room set aside for it

    world.run(write())
    world.restart()
    world.run(look())
    world.end()


def test_a_session_that_ends_while_the_disk_fails_is_ended_later() -> None:
    world = MetadataWorld()

    async def scenario() -> None:
        store = await world.open()
        session = await store.open_session(1.0)
        await store.transact((), [("mine", b"")], session=session)
        world.disk.fail_next("sync", count=20)
        await asyncio.sleep(3)
        assert store.get("mine") is not None
        world.disk.cure()
        await asyncio.sleep(3)
        assert store.get("mine") is None
        await store.close()

    world.run(scenario())
    world.end()
