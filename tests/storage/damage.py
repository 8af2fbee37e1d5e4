"""Directories to damage: built once, then loaded, changed, started and read back as often as a test likes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache

from pydanube.base.errors import NodeDirectoryInvalid
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES
from pydanube.journal.group import (
    GROUP_HEADER_BYTES,
    NAME_BYTES,
    TRAILER_BYTES,
    EntryKind,
    GroupHead,
    GroupKind,
    decode_directory,
    decode_file_header,
    decode_group_head,
)
from pydanube.sim.machine.disk import SimDisk
from pydanube.storage.node.disk import DiskNode
from pydanube.wire.batch import Batch
from storage.node_world import FENCER, MAKER, Image, NodeWorld, append, batch_of, create, damaged_ledgers

STARTED_AGAIN = 7  # one case of seven is started twice: not a power of two, so that every bit has its turn
CASES_PER_WORLD = 250  # a simulated loop remembers its processes


@dataclass
class Directory:
    """What a node left behind, and what it had acknowledged by then."""

    image: Image
    acked: dict[int, list[Batch]]

    def content(self, name: str, disk: str = "data") -> bytes:
        return self.image[disk][name][1]

    def only(self, start: str, disk: str = "data") -> str:
        """The name of the one file that starts so and is not the newest."""
        return min(name for name in self.image[disk] if name.startswith(start))


@dataclass
class Region:
    """A stretch of a file, and the ledgers that may be harmed if it is damaged."""

    what: str
    start: int
    end: int
    ledgers: frozenset[int] = field(default_factory=frozenset)


# -- building ----------------------------------------------------------------------------------------------------------


async def _write_some(node: DiskNode, acked: dict[int, list[Batch]], numbers: Sequence[int], rounds: int) -> None:
    """A few groups: of one ledger each, of all, with control records between them."""
    for _ in range(rounds):
        for ledger in numbers:
            batch = batch_of(ledger, len(acked.setdefault(ledger, [])))
            await append(node, ledger, [batch])
            acked[ledger].append(batch)
        together = {ledger: batch_of(ledger, len(acked[ledger])) for ledger in numbers}
        answers = [node.append(LedgerId(ledger), MAKER, batch, -1) for ledger, batch in together.items()]
        await asyncio.gather(*answers)
        for ledger, batch in together.items():
            acked[ledger].append(batch)


def _built(world: NodeWorld, scenario: Callable[[dict[int, list[Batch]]], object]) -> Directory:
    acked: dict[int, list[Batch]] = {}
    world.run(scenario(acked))  # type: ignore[arg-type]
    world.restart()
    image = {
        disk: {name: file for name, file in files.items() if not name.endswith(".tmp")}
        for disk, files in world.image().items()
    }
    directory = Directory(image, acked)
    world.end()
    return directory


@cache
def one_file() -> Directory:
    """A single journal file, idle, so that a mark covers the last group; ledgers open, fenced and sealed."""
    world = NodeWorld()

    async def scenario(acked: dict[int, list[Batch]]) -> None:
        node = await world.open()
        await create(node, 1, 2, 3)
        await _write_some(node, acked, (1, 2, 3), 1)
        await node.fence(LedgerId(2), FENCER)
        await node.seal(LedgerId(3), MAKER, 1)
        await append(node, 1, [batch_of(1, 2, count=3, size=40)])
        acked[1].append(batch_of(1, 2, count=3, size=40))
        await asyncio.sleep(1)

    return _built(world, scenario)


@cache
def uncovered() -> Directory:
    """The same, ended before the mark: nothing says that the last group was ever synced."""
    world = NodeWorld()

    async def scenario(acked: dict[int, list[Batch]]) -> None:
        node = await world.open()
        await create(node, 1, 2)
        await _write_some(node, acked, (1, 2), 1)

    return _built(world, scenario)


@cache
def written_again() -> Directory:
    """Killed before the mark, and started again: the last group was written once more, and is covered by now."""
    world = NodeWorld()
    world.load(uncovered().image)

    async def scenario(acked: dict[int, list[Batch]]) -> None:
        node = await world.open()
        acked.update(uncovered().acked)
        await asyncio.sleep(1)
        assert await damaged_ledgers(node, acked) == set()

    return _built(world, scenario)


@cache
def several_files() -> Directory:
    """A closed journal file with its index, a kept file with its own, and a newer journal file in use; idle."""
    world = NodeWorld()

    async def scenario(acked: dict[int, list[Batch]]) -> None:
        node = await world.open()
        await create(node, 1, 2, 9)
        await _write_some(node, acked, (1, 2), 1)
        await _fill_file(node, 9)
        await node.delete(LedgerId(9))
        await asyncio.sleep(1)  # the first file is nearly empty now and is copied out
        await create(node, 3, 4)
        await _write_some(node, acked, (3, 4), 2)
        await _roll(node, world.disk, acked)
        await create(node, 5)
        await _write_some(node, acked, (1, 5), 1)
        await asyncio.sleep(1)

    directory = _built(world, scenario)
    kinds = [name.partition("-")[0] for name in directory.image["data"]]
    assert set(kinds) == {"index", "journal", "kept", "node"}
    assert kinds.count("journal") == 2
    return directory


async def _fill_file(node: DiskNode, ledger: int) -> None:
    for offset in range(12):
        await append(node, ledger, [batch_of(ledger, offset, size=5000)])


async def _roll(node: DiskNode, disk: SimDisk, acked: dict[int, list[Batch]]) -> None:
    newest = max(name for name in disk.names() if name.startswith("journal"))
    while max(name for name in disk.names() if name.startswith("journal")) == newest:
        batch = batch_of(3, len(acked[3]), size=6000)
        await append(node, 3, [batch])
        acked[3].append(batch)
    await asyncio.sleep(1)


# -- the parts of a file -----------------------------------------------------------------------------------------------


def groups(content: bytes) -> Iterator[tuple[int, GroupHead]]:
    header = decode_file_header(content[:BLOCK_BYTES])
    assert header is not None
    position = BLOCK_BYTES
    while (head := decode_group_head(content[position : position + GROUP_HEADER_BYTES], header.salt)) is not None:
        yield position, head
        position += head.length


def regions(content: bytes) -> list[Region]:
    """Every used byte of a journal or kept file; what is between the regions is padding."""
    found = [Region("file header", 0, 80)]
    for position, head in groups(content):
        directory = content[position + GROUP_HEADER_BYTES : position + head.body_start]
        entries = decode_directory(head, position, directory)
        assert entries is not None
        ledgers = frozenset(int(entry.ledger) for entry in entries)
        found.append(Region("group header", position, position + GROUP_HEADER_BYTES, ledgers))
        found.append(Region("directory", position + GROUP_HEADER_BYTES, position + head.body_start, ledgers))
        for entry in entries:
            if entry.kind == EntryKind.APPEND:
                found.append(
                    Region("batch", entry.position, entry.position + entry.length, frozenset({int(entry.ledger)}))
                )
        if head.kind is GroupKind.CHECKPOINT:
            start = position + head.body_start
            found.append(Region("checkpoint", start, start + head.body_bytes))
        end = position + head.length
        found.append(
            Region(
                "trailer", end - TRAILER_BYTES - NAME_BYTES * (head.ledgers + max(head.repeated - 1, 0)), end, ledgers
            )
        )
    return [region for region in found if region.end > region.start]


def valid_end(content: bytes) -> int:
    return max(position + head.length for position, head in groups(content))


# -- trying ------------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What a start made of a damaged directory."""

    refused: bool
    harmed: set[int] = field(default_factory=set)
    noticed: bool = False


class Bench:
    """Starts one damaged directory after the other, and asks the same of each: nothing wrong, nothing denied."""

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.acked = directory.acked
        self._world: NodeWorld | None = None
        self._cases = 0

    def try_bytes(self, name: str, content: bytes, *, size: int | None = None, disk: str = "data") -> Result:
        """With other bytes in one file."""
        image = dict(self.directory.image[disk])
        image[name] = (image[name][0] if size is None else size, content)
        return self.try_image(self.directory.image | {disk: image})

    def try_image(self, image: Image, *, restarts: int = 1) -> Result:
        world = self._fresh_world()
        world.load(image)
        before = {name: set(files) for name, files in image.items()}
        result = Result(False)
        for _ in range(restarts):
            result = world.run(self._start_and_read(world))
            if result.noticed or result.refused or result.harmed:
                for name, files in before.items():
                    assert not files - set(world.disks[name].names()), "damage led to deletion"
            world.restart()
        if result.noticed and self._cases % STARTED_AGAIN == 0:
            again = world.run(self._start_and_read(world))
            assert again.noticed or again.refused, "the next start does not notice"
            assert again.harmed <= result.harmed
            world.restart()
        return result

    async def _start_and_read(self, world: NodeWorld) -> Result:
        try:
            node = await world.open()
        except NodeDirectoryInvalid:
            return Result(True)
        return Result(False, await damaged_ledgers(node, self.acked), bool(node.damage))

    def _fresh_world(self) -> NodeWorld:
        if self._world is None or self._cases == CASES_PER_WORLD:
            self.end()
            names = tuple(self.directory.image)
            self._world = NodeWorld(disks=names)
        self._cases += 1
        return self._world

    def end(self) -> None:
        if self._world is not None:
            self._world.end()
        self._world, self._cases = None, 0


def flipped(content: bytes, position: int, bit: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]
