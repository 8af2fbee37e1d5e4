"""Every byte of a small directory damaged, files cut at every length, gone or exchanged: refused or harmless.

Whatever the damage, a start either shows exactly what was acknowledged or refuses with a typed error, and deletes
nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import cache

import pytest

from pydanube.base.errors import DanubeError, DirectoryInUse, DiskFailed, MetadataDamaged, NodeDirectoryInvalid
from pydanube.base.limits import BLOCK_BYTES, KIB
from pydanube.storage.metadata.log_file import log_name
from pydanube.storage.metadata.raft import RaftMetadata
from storage.metadata_world import MetadataWorld, Shown, put, shown

Image = dict[str, tuple[int, bytes]]
SMALL_LOG = 8 * KIB
STARTS_PER_WORLD = 300  # a simulated loop remembers its processes
SECTOR = 512


@cache
def directory(covered: bool) -> tuple[Image, Shown]:
    """A file with a snapshot and a few groups, the last one a mark or not, and what it must show."""
    world = MetadataWorld()

    async def write() -> Shown:
        store = await world.open(log_bytes=SMALL_LOG, mark_idle_seconds=0.25 if covered else 1e6)
        await store.transact((), [("kept", b"1"), ("gone", b"2")])
        while any(name == log_name(1) for name in world.disk.names()):
            await put(store, kept=b"in the snapshot")
        await store.transact((), [("kept", b"3"), ("gone", None)])
        await asyncio.gather(put(store, one=b"one"), put(store, two=b"two" * 300))
        await asyncio.sleep(1)
        return shown(store)

    found = world.run(write())
    world.restart()
    image = {name: file for name, file in world.disk.image().items() if not name.endswith(".tmp")}
    world.end()
    assert {"node"} < set(image)
    return image, found


def live(image: Image) -> str:
    (name,) = [name for name in image if name.startswith("metadata-")]
    return name


class Starts:
    """Opens one directory after the other."""

    def __init__(self) -> None:
        self._world: MetadataWorld | None = None
        self._count = 0

    def outcome(self, image: Image) -> Shown | type[DanubeError]:
        """What a start shows, or what it is refused with; it must not have deleted anything then."""
        if self._world is None or self._count % STARTS_PER_WORLD == 0:
            self.end()
            self._world = MetadataWorld()
        self._count += 1
        world = self._world
        world.disk.load(image)
        result = world.run(self._open(world))
        if isinstance(result, type):
            assert world.disk.image() == image, "a refused start changed the directory"
        world.restart()
        return result

    async def _open(self, world: MetadataWorld) -> Shown | type[DanubeError]:
        try:
            store = await world.open(log_bytes=SMALL_LOG)
        except DanubeError as error:
            return type(error)
        return shown(store)

    def end(self) -> None:
        if self._world is not None:
            self._world.end()
        self._world = None


@pytest.fixture
def starts() -> Iterator[Starts]:
    started = Starts()
    yield started
    started.end()


def with_bytes(image: Image, name: str, data: bytes, size: int | None = None) -> Image:
    return {**image, name: (image[name][0] if size is None else size, data)}


def used_places(data: bytes) -> Iterator[int]:
    """Every byte of a sector that has any, and the start of each block."""
    for start in range(0, len(data), SECTOR):
        sector = data[start : start + SECTOR]
        if any(sector):
            yield from range(start, start + len(sector))
        elif start % BLOCK_BYTES == 0:
            yield from range(start, min(start + 64, len(data)))


@pytest.mark.slow
def test_every_byte_of_a_file_whose_end_is_marked(starts: Starts) -> None:
    """One bit of each; `tests/metadata/test_log.py` has them all."""
    image, acknowledged = directory(covered=True)
    name = live(image)
    data = image[name][1]
    places = list(used_places(data))
    refused = 0
    for place in places:
        damaged = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        found = starts.outcome(with_bytes(image, name, damaged))
        assert found in (acknowledged, MetadataDamaged), f"byte {place}"
        refused += found is MetadataDamaged
    assert refused > len(places) // 3


def test_every_byte_of_the_last_group_before_it_is_marked(starts: Starts) -> None:
    """A flipped bit is no torn write: also the last group is not cut for it."""
    image, acknowledged = directory(covered=False)
    name = live(image)
    data = image[name][1].rstrip(b"\0")
    last = (len(data) - 1) // BLOCK_BYTES * BLOCK_BYTES
    for place in range(last, len(data)):
        damaged = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        found = starts.outcome(with_bytes(image, name, damaged))
        assert found in (acknowledged, MetadataDamaged), f"byte {place}"


@pytest.mark.slow
def test_every_byte_of_the_node_file(starts: Starts) -> None:
    image, acknowledged = directory(covered=True)
    data = image["node"][1]
    for place in used_places(data):
        damaged = data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :]
        assert starts.outcome(with_bytes(image, "node", damaged)) == acknowledged


@pytest.mark.parametrize("covered", [True, False])
def test_a_file_cut_at_every_length_is_refused(starts: Starts, covered: bool) -> None:
    image, _ = directory(covered)
    name = live(image)
    size, data = image[name]
    lengths = [*range(0, len(data), 37), *range(len(data), size, 512), size - 1]
    for length in lengths:
        found = starts.outcome(with_bytes(image, name, data[:length], length))
        assert found is MetadataDamaged, f"{length} bytes"


def test_a_node_file_cut_at_every_length_is_refused_or_harmless(starts: Starts) -> None:
    image, acknowledged = directory(covered=True)
    size, data = image["node"]
    for length in range(0, size, 97):
        found = starts.outcome(with_bytes(image, "node", data[:length], length))
        assert found in (acknowledged, NodeDirectoryInvalid), f"{length} bytes"


def test_every_block_lost_after_it_was_acknowledged_is_noticed(starts: Starts) -> None:
    """Once it is marked: a write that never reached the platter, though the disk said so."""
    image, acknowledged = directory(covered=True)
    name = live(image)
    data = image[name][1].rstrip(b"\0")
    mark = (len(data) - 1) // BLOCK_BYTES * BLOCK_BYTES
    for start in range(0, mark, BLOCK_BYTES):
        lost = data[:start] + bytes(BLOCK_BYTES) + data[start + BLOCK_BYTES :]
        assert starts.outcome(with_bytes(image, name, lost)) is MetadataDamaged, f"block at {start}"
    assert starts.outcome(with_bytes(image, name, data[:mark])) == acknowledged


def test_a_file_that_is_gone_is_missed(starts: Starts) -> None:
    image, _ = directory(covered=True)
    without = {name: file for name, file in image.items() if name != live(image)}
    assert starts.outcome(without) is MetadataDamaged
    alone = {live(image): image[live(image)]}
    assert starts.outcome(alone) is NodeDirectoryInvalid


def test_a_file_of_another_store_is_refused(starts: Starts) -> None:
    image, _ = directory(covered=True)
    other = MetadataWorld(seed=5)

    async def write() -> None:
        store = await other.open(log_bytes=SMALL_LOG)
        while live(image) not in other.disk.names():
            await put(store, theirs=b"1")
        await store.close()

    other.run(write())
    theirs = other.disk.image()
    other.end()
    assert live(theirs) == live(image)
    assert starts.outcome({**image, live(image): theirs[live(image)]}) is MetadataDamaged


def test_an_old_node_file_beside_a_newer_log_is_refused(starts: Starts) -> None:
    """Somebody restored one and not the other: what the newer file holds must not be taken for leftovers."""
    world = MetadataWorld()
    images: list[Image] = []

    async def write() -> None:
        store = await world.open(log_bytes=SMALL_LOG)
        images.append(world.disk.image())
        while log_name(1) in world.disk.names():
            await put(store, kept=b"1")
        await put(store, kept=b"2")
        await store.close()

    world.run(write())
    newer = world.disk.image()
    world.end()
    (old,) = images
    assert starts.outcome({**newer, "node": old["node"]}) is MetadataDamaged
    assert starts.outcome({**old, live(newer): newer[live(newer)]}) is MetadataDamaged


def test_what_a_replacement_left_behind_is_cleared(starts: Starts) -> None:
    """The file before, one that never got its name, and one that was never listed, all without a loss."""
    image, acknowledged = directory(covered=True)
    world = MetadataWorld()
    world.disk.load({**image, log_name(1): (9, b"left over"), log_name(99) + ".tmp": (4, b"half")})

    async def look() -> Shown:
        store = await world.open()
        found = shown(store)
        await store.close()
        return found

    assert world.run(look()) == acknowledged
    names = world.disk.names()
    assert len(names) == len(image)
    assert not {log_name(1), log_name(99) + ".tmp"} & set(names)
    world.end()


def test_a_read_error_at_the_start_is_told_and_passes(starts: Starts) -> None:
    image, acknowledged = directory(covered=True)
    world = MetadataWorld()
    world.disk.load(image)

    async def look() -> Shown:
        for kind in ("list", "open", "read", "size"):
            world.disk.fail_next(kind, prefix="" if kind == "list" else "metadata-")
            with pytest.raises(DiskFailed):
                await world.open()
        store = await world.open()
        return shown(store)

    assert world.run(look()) == acknowledged
    world.end()


def test_a_directory_has_one_owner() -> None:
    world = MetadataWorld()

    async def both() -> None:
        store: RaftMetadata = await world.open()
        with pytest.raises(DirectoryInUse):
            await world.open()
        await store.close()
        await (await world.open()).close()

    world.run(both())
    world.end()
