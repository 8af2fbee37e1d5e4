"""D5: files that are cut, writes that were lost, and blocks that hold what belongs elsewhere.

As with single bits: never other bytes, never a false absence; what cannot be told is `LedgerDamaged`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pydanube.base.errors import LedgerDamaged
from pydanube.base.ids import LedgerId
from pydanube.base.limits import BLOCK_BYTES, KIB
from pydanube.storage.node.settings import NodeSettings
from storage.damage import Bench, groups, one_file, several_files, valid_end
from storage.node_world import NodeWorld, damaged_ledgers

NEWEST = "journal-0000000000000001.log"


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param())
    logging.disable(logging.CRITICAL)
    yield bench
    logging.disable(logging.NOTSET)
    bench.end()


def lengths(end: int, edge: int) -> list[int]:
    """Every 64 bytes, and every byte of both edges."""
    return sorted({*range(0, end, 64), *range(edge), *range(max(0, end - edge), end)})


@pytest.mark.slow
@pytest.mark.parametrize("bench", [one_file], indirect=True)
def test_the_newest_file_cut_at_any_length(bench: Bench) -> None:
    """It was longer once, for room is set aside before it gets its name: that tells a cut file from a torn tail.

    Every 64 bytes, and every byte at both ends; `tests/journal/test_scan.py` has every length of two blocks.
    """
    content = bench.directory.content(NEWEST)
    for length in lengths(len(content), 256):
        result = bench.try_bytes(NEWEST, content[:length], size=length)
        assert result.refused or result.noticed, length
        if length >= 2 * BLOCK_BYTES:
            assert not result.refused, "the checkpoint is there"


@pytest.mark.slow
@pytest.mark.parametrize("bench", [several_files], indirect=True)
@pytest.mark.parametrize("start", ["journal-", "kept-", "index-"])
def test_an_older_file_cut_at_any_length(bench: Bench, start: str) -> None:
    name = bench.directory.only(start)
    content = bench.directory.content(name)
    for length in lengths(len(content), 128):
        result = bench.try_bytes(name, content[:length], size=length)
        assert not result.refused
        if start == "index-":
            assert result.harmed == set()
        elif length < valid_end(content):  # its index knows better
            assert result.noticed, length


@pytest.mark.slow
@pytest.mark.parametrize("bench", [several_files], indirect=True)
@pytest.mark.parametrize("start", ["journal-", "kept-"])
def test_an_older_file_cut_at_any_length_without_its_index(bench: Bench, start: str) -> None:
    name = bench.directory.only(start)
    content = bench.directory.content(name)
    number = name.rpartition("-")[2].partition(".")[0]
    files = {file: stored for file, stored in bench.directory.image["data"].items() if number not in file}
    for length in lengths(len(content), 16)[::3]:
        result = bench.try_image({"data": files | {name: (length, content[:length])}})
        assert not result.refused
        assert result.noticed


@pytest.mark.slow
@pytest.mark.parametrize("bench", [one_file, several_files], indirect=True)
def test_any_number_of_lost_blocks_anywhere(bench: Bench) -> None:
    """Zeros where a write should have landed: one block, two, three, or all but the last.

    In the newest file the last group and the mark behind it must not both be lost: then nothing says that they were
    ever written, and no journal could tell.
    """
    newest = max(name for name in bench.directory.image["data"] if name.startswith("journal-"))
    for name in bench.directory.image["data"]:
        if not name.endswith(".log"):
            continue
        content = bench.directory.content(name)
        end = valid_end(content)
        for position in range(0, end, BLOCK_BYTES):
            for stop in {position + BLOCK_BYTES * count for count in (1, 2, 3)} | {end - BLOCK_BYTES}:
                if not position < stop <= end or (name == newest and stop == end > position + BLOCK_BYTES):
                    continue
                lost = content[:position] + bytes(stop - position) + content[stop:]
                result = bench.try_bytes(name, lost)
                if position > BLOCK_BYTES:
                    assert not result.refused, (name, position, stop)


@pytest.mark.slow
@pytest.mark.parametrize("bench", [one_file, several_files], indirect=True)
def test_a_block_that_holds_what_belongs_elsewhere(bench: Bench) -> None:
    """Each block of each file, overwritten with each block of each file: stale chunks and misdirected writes."""
    contents = {name: bench.directory.content(name) for name in bench.directory.image["data"] if name.endswith(".log")}
    blocks = [
        content[position : position + BLOCK_BYTES]
        for content in contents.values()
        for position in range(0, valid_end(content), BLOCK_BYTES)
    ]
    for name, content in contents.items():
        for position in range(0, valid_end(content), BLOCK_BYTES):
            for other in blocks:
                if other == content[position : position + BLOCK_BYTES]:
                    continue
                wrong = content[:position] + other + content[position + BLOCK_BYTES :]
                result = bench.try_bytes(name, wrong)
                if position > BLOCK_BYTES:
                    assert not result.refused


@pytest.mark.parametrize("bench", [one_file], indirect=True)
def test_a_block_that_landed_twice_harms_nobody_else(bench: Bench) -> None:
    """A misdirected write hits one group: the ledgers of the others are untouched."""
    content = bench.directory.content(NEWEST)
    found = list(groups(content))
    for position, head in found[2:-1]:
        for source, _ in found:
            if source != position:
                wrong = content[:position] + content[source : source + BLOCK_BYTES] + content[position + head.length :]
                result = bench.try_bytes(NEWEST, wrong)
                assert result.noticed


@pytest.mark.parametrize("start", ["journal-", "kept-"])
def test_damage_that_comes_while_the_node_runs_is_no_absence_either(start: str) -> None:
    """The index is lost too, so that the file is scanned when it is read: what is not found there is not denied."""
    logging.disable(logging.CRITICAL)
    directory = several_files()
    name = directory.only(start)
    content = directory.content(name)
    index = f"index-{name.rpartition('-')[2].partition('.')[0]}.idx"
    for position, head in groups(content):
        world = NodeWorld(settings=NodeSettings(file_bytes=64 * KIB, index_cache_bytes=0))
        world.load(directory.image)

        async def scenario(world: NodeWorld = world, position: int = position, length: int = head.length) -> None:
            node = await world.open()
            world.disk.zero_range(index, 0, 100)
            world.disk.zero_range(name, position, length)
            harmed = await damaged_ledgers(node, directory.acked)
            for ledger in harmed:
                with pytest.raises(LedgerDamaged):  # nor is a damaged part taken for a gap
                    await node.find_next(LedgerId(ledger), 0)
            again = await damaged_ledgers(node, directory.acked)
            assert again == harmed

        world.run(scenario())
        world.end()
    logging.disable(logging.NOTSET)
