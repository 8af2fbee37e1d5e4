"""D7, §9, §26: a start refuses what it cannot trust, says so, and leaves every file as it was."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.errors import DirectoryInUse, NodeDirectoryInvalid
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES, KIB
from pydanube.journal.group import CHECKPOINTS, decode_file_header
from pydanube.sim.machine.disk import SimDisk
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.node_file import decode_node_file
from pydanube.storage.node.settings import NodeSettings
from storage.damage import Bench, Directory, flipped, groups, one_file, regions, several_files
from storage.node_world import PLENTY, Image, NodeWorld, append, batch_of, create

SETTINGS = NodeSettings(file_bytes=64 * KIB)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def refused_and_untouched(world: NodeWorld, image: Image) -> bool:
    """Whether a start refuses these files; then not one may have changed, but for the count of starts in `node`."""
    world.load(image)

    async def start() -> None:
        await world.open()

    try:
        world.run(start())
    except NodeDirectoryInvalid:
        before, after = image["data"], world.disk.image()
        assert {name: file for name, file in after.items() if name != "node"} == {
            name: file for name, file in before.items() if name != "node"
        }
        return True
    finally:
        world.restart()
    return False


def with_file(directory: Directory, name: str, content: bytes | None) -> Image:
    files = dict(directory.image["data"])
    if content is None:
        del files[name]
    else:
        files[name] = (len(content), content)
    return {"data": files}


def node_copy() -> tuple[bytes, int]:
    """The `node` file of `several_files`, and the used length of one of its two copies."""
    content = several_files().content("node")
    node = decode_node_file(content)
    assert node is not None
    assert len(node.files) == 4, "two journal files and two kept ones"
    return content, node.bytes_needed


@pytest.mark.slow
def test_a_bit_of_either_copy_of_the_node_file_is_harmless() -> None:
    """Every bit of both, and the file is whole again after the start."""
    bench = Bench(several_files())
    content, used = node_copy()
    for start in (0, len(content) // 2):
        for bit in range(8 * used):
            result = bench.try_bytes("node", flipped(content, start + bit // 8, bit % 8))
            assert (result.refused, result.harmed) == (False, set())
    bench.end()


def test_a_node_file_of_which_no_copy_is_whole_is_refused() -> None:
    directory, world = several_files(), NodeWorld()
    content, used = node_copy()
    wrong = [flipped(flipped(content, at, at % 8), len(content) // 2 + at, at % 7) for at in range(used)]
    wrong += [content[:length] for length in range(used)]
    wrong += [b"", bytes(40), bytes(len(content))]
    for damaged in wrong:
        assert refused_and_untouched(world, with_file(directory, "node", damaged))
        assert world.disk.content("node") == damaged
    assert refused_and_untouched(world, with_file(directory, "node", None))
    for length in (used, len(content) // 2, len(content) - 1):
        assert not refused_and_untouched(world, with_file(directory, "node", content[:length]))
    assert not refused_and_untouched(world, directory.image)
    world.end()


@pytest.mark.parametrize("start", ["journal-", "kept-"])
def test_a_file_that_somebody_removed_is_missed_whichever_it_was(start: str) -> None:
    directory, world = several_files(), NodeWorld()
    names = [name for name in directory.image["data"] if name.startswith(start)]
    assert len(names) == 2
    for name in names:
        assert refused_and_untouched(world, with_file(directory, name, None)), name
    world.end()


@pytest.mark.slow
def test_both_copies_of_the_only_checkpoint_damaged_at_any_byte_are_refused_or_harmless() -> None:
    """One of them alone never is. Of the padding, one byte in 64."""
    directory, world = one_file(), NodeWorld()
    name = "journal-0000000000000001.log"
    content, size = directory.content(name), directory.image["data"][name][0]
    position, head = next(groups(content))
    outcomes = set()
    padding = range(position + 300, position + head.length - 100)
    for at in range(position, position + head.length):
        if at in padding and at % 64:
            continue
        damaged = flipped(content, at, at % 8)
        if not at % 16:
            assert not refused_and_untouched(world, {"data": directory.image["data"] | {name: (size, damaged)}})
        damaged = flipped(damaged, at + head.length, at % 8)
        refused = refused_and_untouched(world, {"data": directory.image["data"] | {name: (size, damaged)}})
        used = any(region.what != "trailer" and region.start <= at < region.end for region in regions(content))
        assert refused == used, at
        outcomes.add(refused)
    assert outcomes == {True, False}
    world.end()


def test_a_checkpoint_that_older_ones_do_not_lead_to_is_not_replaced_by_them() -> None:
    """The files between them are gone, with the ledgers that were made in them: they would seem never to have been."""
    world = NodeWorld()

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 9)
        await append(node, 1, [batch_of(1, offset, size=6000) for offset in range(5)])  # the first file stays
        await append(node, 9, [batch_of(9, offset, size=6000) for offset in range(8)])
        await create(node, 2)  # known to files that go
        await append(node, 9, [batch_of(9, offset, size=6000) for offset in range(8, 20)])
        await node.delete(LedgerId(9))
        await asyncio.sleep(1)
        await append(node, 2, [batch_of(2, offset, size=6000) for offset in range(4)])

    world.run(scenario())
    world.restart()
    names = [name for name in world.disk.names() if name.startswith("journal-")]
    assert names[0].endswith("1.log")
    files = dict(world.image()["data"])
    second = decode_file_header(files[names[1]][1][:BLOCK_BYTES])
    assert second is not None
    assert second.previous > 1, "what was between them is gone"
    for name in names[1:]:
        size, content = files[name]
        for position, head in list(groups(content))[:CHECKPOINTS]:
            content = flipped(content, position + head.body_start, 0)
        files[name] = (size, content)
    world.load({"data": files})

    async def start() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await world.open()

    world.run(start())
    world.end()


def test_a_damaged_directory_that_is_restored_starts_as_if_nothing_had_been() -> None:
    directory = several_files()
    bench = Bench(directory)
    for name in ("node", max(name for name in directory.image["data"] if name.startswith("journal-"))):
        content = directory.content(name)
        bench.try_bytes(name, flipped(content, len(content) // 2, 1))
    result = bench.try_image(directory.image)
    assert (result.refused, result.harmed, result.noticed) == (False, set(), False)
    bench.end()


# -- whose directory it is ---------------------------------------------------------------------------------------------


def test_a_directory_belongs_to_one_process() -> None:
    world = NodeWorld()
    other = world.loop.process("other")

    async def scenario() -> DiskNode:
        return await world.open()

    async def intrude() -> None:
        with pytest.raises(DirectoryInUse):
            await world.open()

    node = world.run(scenario())
    world.loop.run_until_complete(world.loop.spawn(other, intrude()))
    world.run(node.close())
    world.loop.run_until_complete(world.loop.spawn(other, scenario()))
    world.end()


def test_a_real_directory_belongs_to_one_node(tmp_path: Path) -> None:
    async def scenario() -> None:
        node = await DiskNode.open([disk], SETTINGS, SystemRandomness())
        with pytest.raises(DirectoryInUse, match="storage node"):
            await DiskNode.open([same], SETTINGS, SystemRandomness())
        await node.close()
        again = await DiskNode.open([same], SETTINGS, SystemRandomness())
        assert (again.identity, again.boots) == (node.identity, node.boots + 1)
        await again.close()

    disk, same = PosixDisk(tmp_path), PosixDisk(tmp_path)
    asyncio.run(scenario())
    disk.close()
    same.close()


def test_a_start_that_is_refused_lets_go_of_the_directory() -> None:
    world = NodeWorld()
    world.load(with_file(one_file(), "node", b"nonsense"))

    async def scenario() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await world.open()
        world.load(one_file().image)
        await world.open()

    world.run(scenario())
    world.end()


def _two_disks() -> tuple[NodeWorld, SimDisk]:
    world = NodeWorld(disks=("data", "more"), settings=SETTINGS)
    return world, world.disks["more"]


def test_a_data_directory_of_another_node_is_refused() -> None:
    world, _ = _two_disks()
    other = NodeWorld(1)

    async def start(world: NodeWorld) -> None:
        node = await world.open()
        await node.close()

    world.run(start(world))
    other.run(start(other))
    world.disks["more"].load(other.disk.image())

    async def refuse() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await world.open()

    world.run(refuse())
    world.end()
    other.end()


def test_a_data_directory_given_twice_is_refused() -> None:
    world, _ = _two_disks()

    async def start() -> None:
        node = await world.open()
        await node.close()

    world.run(start())
    world.disks["more"].load(world.disks["data"].image())

    async def refuse() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await world.open()

    world.run(refuse())
    world.end()


def test_a_wiped_journal_directory_is_not_taken_for_a_new_node_while_its_data_is_there() -> None:
    world, _ = _two_disks()

    async def start() -> None:
        node = await world.open()
        await node.close()

    world.run(start())
    world.disks["data"].load({})

    async def refuse() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await world.open()

    world.run(refuse())
    world.end()


def test_journal_files_of_another_node_are_refused() -> None:
    image = dict(one_file().image["data"])
    other = NodeWorld(7)

    async def start() -> None:
        node = await other.open()
        await create(node, 1)
        await append(node, 1, [batch_of(1, 0)])
        assert await node.read(LedgerId(1), 0, PLENTY)
        await node.close()

    other.run(start())
    image["node"] = other.disk.image()["node"]
    other.end()
    world = NodeWorld()
    assert refused_and_untouched(world, {"data": image})
    world.end()
