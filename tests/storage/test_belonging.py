"""Directories that do not belong together, or from which a file is gone, are refused before anything is written."""

from __future__ import annotations

import pytest

from pydanube.base.errors import NodeDirectoryInvalid
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import BLOCK_BYTES, DATA_DIRECTORIES_MAX
from pydanube.journal.group import FileHeader, encode_file_header
from pydanube.storage.node.disk import DiskNode
from storage.node_world import PLENTY, NodeWorld, append, batch_of, create


def filled(world: NodeWorld) -> None:
    """One acknowledged batch, and a clean end."""

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1)
        await append(node, 1, [batch_of(1, 0)])
        await node.close()

    world.run(scenario())
    world.restart()


def logs(world: NodeWorld) -> dict[str, dict[str, tuple[int, bytes]]]:
    return {
        disk: {name: file for name, file in files.items() if name.endswith(".log")}
        for disk, files in world.image().items()
    }


def refused(world: NodeWorld, *names: str) -> None:
    """A node on these directories does not start, and takes no file of entries away."""
    before = logs(world)

    async def scenario() -> None:
        with pytest.raises(NodeDirectoryInvalid):
            await DiskNode.open([world.disks[name] for name in names], world.settings, world.randomness)

    world.run(scenario())
    assert logs(world) == before
    world.restart()


def test_a_start_without_the_newest_journal_file_is_refused() -> None:
    world = NodeWorld()
    filled(world)
    files = world.image()["data"]
    newest = max(name for name in files if name.startswith("journal-"))
    world.load({"data": {name: file for name, file in files.items() if name != newest}})
    refused(world, "data")
    world.load({"data": {"node": files["node"]}})
    refused(world, "data")


def test_a_data_directory_is_not_taken_for_the_one_with_the_journal() -> None:
    world = NodeWorld(disks=("a", "b"))
    filled(world)
    refused(world, "b")

    async def scenario() -> None:
        node = await world.open()
        assert (await node.read(1, 0, PLENTY))[0] == batch_of(1, 0)

    world.run(scenario())


def test_a_new_directory_is_not_marked_when_another_one_is_a_stranger() -> None:
    stranger = NodeWorld(seed=9, disks=("c",))
    filled(stranger)
    world = NodeWorld(disks=("a", "b", "c"))
    world.load({"a": {}, "b": {}, "c": stranger.image()["c"]})
    refused(world, "a", "b", "c")

    async def scenario() -> None:
        await DiskNode.open([world.disks["a"], world.disks["b"]], world.settings, world.randomness)

    world.run(scenario())
    world.end()


def test_a_node_has_no_more_directories_than_a_ledger_can_name() -> None:
    names = [f"d{number}" for number in range(DATA_DIRECTORIES_MAX + 1)]
    refused(NodeWorld(disks=names), *names)


def test_a_kept_file_of_another_node_is_refused() -> None:
    world = NodeWorld()
    filled(world)
    header = FileHeader(77, 1, NodeIdentity("ab" * 16), 0, 0, False, (99,))
    world.load(
        {"data": world.image()["data"] | {"kept-000000000000004d.log": (BLOCK_BYTES, encode_file_header(header))}}
    )

    async def scenario() -> None:
        with pytest.raises(NodeDirectoryInvalid, match="written by node abab"):
            await world.open()

    world.run(scenario())
