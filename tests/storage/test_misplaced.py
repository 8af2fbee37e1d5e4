"""Files that are not what their name says, or are of another time: a start believes none of them, or refuses them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

import pytest

from pydanube.base.errors import DanubeError, DiskFailed, NodeDirectoryInvalid
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES, KIB
from pydanube.journal.group import decode_file_header
from pydanube.journal.index import FileIndex, decode_index
from pydanube.journal.ledger_table import Control
from pydanube.storage.node.files import file_name, index_name
from pydanube.storage.node.keeper import Keeper
from pydanube.storage.node.node_file import decode_node_file
from pydanube.storage.node.settings import NodeSettings
from pydanube.wire.batch import Batch
from storage.damage import groups, several_files
from storage.node_world import Image, NodeWorld, append, batch_of, create, damaged_ledgers

EAGER = NodeSettings(file_bytes=64 * KIB, copy_below=0.9, copy_bytes_per_second=1 << 30)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def rolled(ledger: int, seed: int = 0) -> tuple[Image, dict[int, list[Batch]]]:
    """A closed file with its index and a newer one, all of one ledger."""
    world = NodeWorld(seed)
    batches = [batch_of(ledger, offset, size=5000) for offset in range(12)]

    async def scenario() -> None:
        node = await world.open()
        await create(node, ledger)
        await append(node, ledger, batches)
        await asyncio.sleep(1)
        await node.close()

    world.run(scenario())
    image = world.image()
    assert index_name(1) in image["data"]
    world.end()
    return image, {ledger: batches}


def changed(image: Image, **files: bytes) -> Image:
    """With other files, or other bytes in them."""
    return {"data": image["data"] | {name: (len(content), content) for name, content in files.items()}}


def harmed_by(image: Image, acked: dict[int, list[Batch]]) -> set[int]:
    """Starts it, lets the keeper look around, and reads everything, now and after another start."""
    world = NodeWorld()
    world.load(image)

    async def scenario() -> set[int]:
        node = await world.open()
        await asyncio.sleep(1)
        return await damaged_ledgers(node, acked)

    harmed: set[int] = world.run(scenario())
    world.restart()
    harmed |= world.run(scenario())
    world.end()
    return harmed


def refused(image: Image, match: str, *, tries: int = 1) -> None:
    """However often it is tried, and no file changes; not even a start is counted."""
    world = NodeWorld(disks=tuple(image))
    world.load(image)

    async def scenario() -> None:
        with pytest.raises(NodeDirectoryInvalid, match=match):
            await world.open()

    for _ in range(tries):
        world.run(scenario())
        world.restart()
        assert world.image() == image
    world.end()


# -- indexes -----------------------------------------------------------------------------------------------------------


def test_an_index_of_another_node_is_not_believed() -> None:
    image, acked = rolled(1)
    other, _ = rolled(77, seed=5)
    planted = changed(image, **{index_name(1): other["data"][index_name(1)][1]})
    assert harmed_by(planted, acked) == set()


@pytest.mark.parametrize("end", [BLOCK_BYTES, 3 * BLOCK_BYTES, 1 << 30])
def test_an_index_that_ends_elsewhere_than_the_file_is_not_believed(end: int) -> None:
    """Its checksum and its salt are right, as of an index that was stored too early."""
    image, acked = rolled(1)
    header = decode_file_header(image["data"][file_name(1)][1][:BLOCK_BYTES])
    assert header is not None
    planted = changed(image, **{index_name(1): FileIndex().encode(1, header.salt, end)})
    assert harmed_by(planted, acked) == set()


def test_an_index_names_the_very_file_it_is_of() -> None:
    image, _ = rolled(1)
    header = decode_file_header(image["data"][file_name(1)][1][:BLOCK_BYTES])
    assert header is not None
    content = image["data"][index_name(1)][1]
    assert decode_index(content, 1, header.salt) is not None
    assert decode_index(content, 1, header.salt ^ 1) is None


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_the_number_of_a_copy_that_was_discarded_is_never_given_out_again() -> None:
    world = NodeWorld(settings=EAGER)
    named: list[str] = []

    async def scenario() -> None:
        node = await world.open()

        async def refuse(records: Sequence[Control]) -> None:
            named.extend(name for name in world.disk.names() if name.startswith("kept-"))
            raise DiskFailed("the records of a copy")

        node._keeper._log = refuse  # type: ignore[assignment]
        await create(node, 1, 2)
        for offset in range(12):
            await append(node, 1 + offset % 2, [batch_of(1 + offset % 2, offset, size=5000)])
        await node.delete(LedgerId(2))
        await asyncio.sleep(0.2)

    world.run(scenario())
    assert named
    assert not [name for name in world.disk.names() if name.startswith("kept-")]
    world.restart()

    async def again() -> int:
        return (await world.open())._journal.active.file.generation

    assert file_name(world.run(again()), kept=True) > max(named)
    world.end()


# -- files under another name ------------------------------------------------------------------------------------------


def test_a_file_under_the_name_of_another_is_refused_and_both_are_named() -> None:
    image = several_files().image
    logs = [name for name in image["data"] if name.endswith(".log")]
    pairs = [(one, two) for one in logs for two in logs if one < two]
    assert {"journal", "kept"} == {name.partition("-")[0] for pair in pairs for name in pair}
    for one, two in pairs:
        files = dict(image["data"])
        files[one], files[two] = files[two], files[one]
        refused({"data": files}, f"{one} is {two} under another name")


def test_fences_are_not_forgotten_because_files_were_exchanged() -> None:
    """The old file in the place of the new one would let a stale owner write again."""
    image, _ = rolled(1)
    one, two = sorted(name for name in image["data"] if name.startswith("journal-"))[-2:]
    files = dict(image["data"])
    files[one], files[two] = files[two], files[one]
    refused({"data": files}, "under another name", tries=2)


@pytest.mark.parametrize(
    "name",
    [
        "debug.log", "journal-old.log", "journal-1.log", "journal-0000000000000001 (copy).log", "kept-x.log",
        "journal-00000000000000FF.log", "kept-.log", "index-x.idx",
    ],
)  # fmt: skip
def test_files_of_somebody_else_are_left_alone(name: str) -> None:
    image, acked = rolled(1)
    content = image["data"][file_name(1)][1]
    world = NodeWorld()
    world.load(changed(image, **{name: content}))

    async def scenario() -> None:
        node = await world.open()
        assert await damaged_ledgers(node, acked) == set()

    world.run(scenario())
    assert world.disk.content(name) == content
    world.end()


def test_a_directory_with_files_of_somebody_else_only_is_a_new_one() -> None:
    world = NodeWorld()
    world.load({"data": {"debug.log": (1, b"x")}})

    async def scenario() -> None:
        await create(await world.open(), 1)

    world.run(scenario())
    assert world.disk.content("debug.log") == b"x"
    world.end()


# -- an old `node` file ------------------------------------------------------------------------------------------------


def started(world: NodeWorld, *, rounds: int = 1) -> None:
    async def scenario() -> None:
        node = await world.open()
        await create(node, node.boots)
        await append(node, node.boots, [batch_of(node.boots, 0)])
        await node.close()

    for _ in range(rounds):
        world.run(scenario())
        world.restart()


def test_an_old_node_file_is_refused_however_often_it_is_tried() -> None:
    """Were a start counted each time, the count would soon be right."""
    world = NodeWorld()
    started(world)
    old = world.disk.content("node")
    started(world, rounds=2)
    refused(changed(world.image(), node=old), "restore the newest `node` file", tries=4)
    world.end()


def test_an_old_journal_directory_beside_a_newer_data_directory_is_refused() -> None:
    world = NodeWorld(disks=("a", "b"))
    both = world.disks
    world.disks = {"a": both["a"]}
    started(world)
    old = world.image()["a"]
    world.disks = both
    started(world)
    refused({"a": old, "b": world.image()["b"]}, "has numbered 1 data directories", tries=3)
    world.end()


def test_a_directory_that_was_numbered_in_a_start_that_failed_gets_its_number_again() -> None:
    world = NodeWorld(disks=("a", "b"))

    async def fail() -> None:
        with pytest.raises(DiskFailed):
            await world.open()

    world.disks["a"].fail_next("write", after=1, prefix="node")  # the one that counts the directory
    world.run(fail())
    first = decode_node_file(world.disks["b"].content("node"))
    assert first is not None
    world.restart()
    started(world, rounds=2)
    theirs, ours = (decode_node_file(world.disks[name].content("node")) for name in ("b", "a"))
    assert ours is not None
    assert theirs is not None
    assert (first.slot, theirs.slot, ours.slots) == (1, 1, 2)
    world.end()


# -- copies ------------------------------------------------------------------------------------------------------------


def test_a_copy_that_is_listed_counts_though_its_source_is_still_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the list and the removal of the source, which is damaged since."""
    world = NodeWorld(settings=EAGER)
    acked = {1: [batch_of(1, offset, size=5000) for offset in range(0, 12, 2)]}

    async def never(keeper: Keeper, file: object) -> None:
        await asyncio.sleep(1 << 20)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        for offset in range(12):
            await append(node, 1 + offset % 2, [batch_of(1 + offset % 2, offset, size=5000)])
        await node.delete(LedgerId(2))
        await asyncio.sleep(1)

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "remove", never)
        world.run(scenario())
    world.restart()
    node = decode_node_file(world.disk.content("node"))
    assert node is not None
    copies = [generation for generation, slot in node.files.items() if slot == 0]
    assert len(copies) == 1
    assert 1 not in node.files
    for position, head in groups(world.disk.content(file_name(1))):
        world.disk.zero_range(file_name(1), position + head.body_start, 100)

    async def check() -> None:
        found = await world.open()
        assert found.damage == []
        assert await damaged_ledgers(found, acked) == set()
        await asyncio.sleep(1)
        assert file_name(copies[0], kept=True) in world.disk.names()
        assert file_name(1) not in world.disk.names(), "its removal goes on"
        assert await damaged_ledgers(found, acked) == set()

    world.run(check())
    world.restart()
    world.run(check())
    world.end()


def test_a_copy_that_never_got_its_name_is_removed_from_any_directory() -> None:
    world = NodeWorld(disks=("a", "b"))
    started(world)
    unnamed = f"{file_name(9, kept=True)}.tmp"
    world.load({disk: files | {unnamed: (4, b"half")} for disk, files in world.image().items()})
    started(world)
    assert [name for disk in world.disks.values() for name in disk.names() if name == unnamed] == []
    world.end()


def test_a_copy_that_is_not_listed_goes_if_all_its_sources_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    world = NodeWorld(settings=EAGER)
    acked = {1: [batch_of(1, offset, size=5000) for offset in range(0, 12, 2)]}

    async def never(keeper: Keeper, sources: object, copies: object) -> None:
        await asyncio.sleep(1 << 20)

    async def scenario() -> None:
        node = await world.open()
        await create(node, 1, 2)
        for offset in range(12):
            await append(node, 1 + offset % 2, [batch_of(1 + offset % 2, offset, size=5000)])
        await node.delete(LedgerId(2))
        await asyncio.sleep(1)

    with monkeypatch.context() as patched:
        patched.setattr(Keeper, "_switch", never)
        world.run(scenario())
    world.restart()
    (copy,) = (name for name in world.disk.names() if name.startswith("kept-"))

    async def check() -> None:
        found = await world.open()
        assert copy not in world.disk.names()
        assert await damaged_ledgers(found, acked) == set()
        with pytest.raises(DanubeError):
            await found.read(LedgerId(2), 1, 1)

    world.run(check())
    world.end()
