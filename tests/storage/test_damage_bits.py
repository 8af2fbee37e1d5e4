"""D4: a flipped bit anywhere in a node's directory is noticed or harmless, and harms nobody but whom it hit.

After the flip and a restart everything ever acknowledged is read back. Each batch is the same to the bit, or
`LedgerDamaged`; never other bytes, never an absence. Every bit that is used is tried: of a small journal file that is
the newest, of a closed one, of a kept one and of the indexes, here; of the `node` file in `test_start_refusals.py`. Of
the padding between groups, which nobody reads, `tests/journal/test_scan.py` tries a bit a byte on the scanner alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from random import Random

import pytest

from storage.damage import (
    Bench,
    Directory,
    Region,
    flipped,
    groups,
    one_file,
    regions,
    several_files,
    uncovered,
    valid_end,
    written_again,
)

pytestmark = [pytest.mark.timeout(1200), pytest.mark.slow]  # exhaustive: minutes on a busy machine

NEWEST = "journal-0000000000000001.log"


@pytest.fixture
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    bench = Bench(request.param())
    logging.disable(logging.CRITICAL)  # thousands of starts that each report their damage
    yield bench
    logging.disable(logging.NOTSET)
    bench.end()


def check(bench: Bench, name: str, region: Region, position: int, bit: int) -> None:
    result = bench.try_bytes(name, flipped(bench.directory.content(name), position, bit))
    place = f"{name}, {region.what}, byte {position}, bit {bit}"
    if result.refused:  # the one file's only checkpoint: nothing can be told without it
        assert region.what in {"group header", "checkpoint"}, place
        assert region.ledgers == frozenset(), place
        return
    assert result.harmed <= region.ledgers, place
    if region.ledgers or region.what == "file header":  # a checkpoint's trailer or a mark may go: nothing is lost by it
        assert result.noticed, f"{place}: nobody noticed"


@pytest.mark.parametrize("bench", [one_file, written_again], indirect=True)
def test_every_used_bit_of_the_newest_file(bench: Bench) -> None:
    name = max(file for file in bench.directory.image["data"] if file.startswith("journal-"))
    content = bench.directory.content(name)
    for region in regions(content):
        for position in range(region.start, region.end):
            for bit in range(8):
                check(bench, name, region, position, bit)


@pytest.mark.parametrize("bench", [written_again], indirect=True)
def test_every_used_bit_of_a_small_closed_journal_file(bench: Bench) -> None:
    every_used_bit_of_a_closed_file(bench, "journal-")


@pytest.mark.parametrize("bench", [several_files], indirect=True)
def test_every_used_bit_of_a_small_kept_file(bench: Bench) -> None:
    every_used_bit_of_a_closed_file(bench, "kept-")


def every_used_bit_of_a_closed_file(bench: Bench, start: str) -> None:
    """Its index tells where its entries lie, so the start does not scan it."""
    name = bench.directory.only(start)
    content = bench.directory.content(name)
    for region in regions(content):
        for position in range(region.start, region.end):
            for bit in range(8):
                result = bench.try_bytes(name, flipped(content, position, bit))
                assert not result.refused
                assert result.harmed <= region.ledgers, f"{name}, {region.what}, byte {position}, bit {bit}"


def closed_journal(directory: Directory) -> str:
    return directory.only("journal-")


@pytest.mark.parametrize("bench", [several_files], indirect=True)
def test_one_bit_of_every_third_used_byte_of_a_closed_file_with_large_batches(bench: Bench) -> None:
    """Of the batches one byte in 64: they are long, and under one checksum each."""
    name, random = bench.directory.only("journal-"), Random(2)
    content = bench.directory.content(name)
    for region in regions(content):
        step = 3 if region.end - region.start < 500 else 64
        for position in range(region.start, region.end, step):
            result = bench.try_bytes(name, flipped(content, position, random.randrange(8)))
            assert not result.refused
            assert result.harmed <= region.ledgers, f"{name}, {region.what}, byte {position}"


@pytest.mark.parametrize("bench", [several_files], indirect=True)
@pytest.mark.parametrize("start", ["journal-", "kept-"])
def test_a_closed_file_whose_index_is_lost_too(bench: Bench, start: str) -> None:
    """Then the start scans it, and finds the damage itself."""
    name, random = bench.directory.only(start), Random(3)
    content = bench.directory.content(name)
    number = name.rpartition("-")[2].partition(".")[0]
    files = {file: stored for file, stored in bench.directory.image["data"].items() if number not in file}
    size = bench.directory.image["data"][name][0]
    for region in regions(content):
        step = 7 if region.end - region.start < 500 else 499
        for position in range(region.start, region.end, step):
            damaged = flipped(content, position, random.randrange(8))
            result = bench.try_image({"data": files | {name: (size, damaged)}}, restarts=2)
            assert not result.refused
            assert result.harmed <= region.ledgers, f"{name}, {region.what}, byte {position}"


@pytest.mark.parametrize("bench", [several_files], indirect=True)
def test_every_bit_of_an_index_is_harmless(bench: Bench) -> None:
    for name in bench.directory.image["data"]:
        if name.startswith("index-"):
            content = bench.directory.content(name)
            for bit in range(8 * len(content)):
                result = bench.try_bytes(name, flipped(content, bit // 8, bit % 8))
                assert not result.refused
                assert result.harmed == set()


@pytest.mark.parametrize("bench", [several_files], indirect=True)
def test_a_bit_of_the_newest_checkpoint_is_harmless_while_an_older_one_leads_here(bench: Bench) -> None:
    random = Random(6)
    name = max(file for file in bench.directory.image["data"] if file.startswith("journal-"))
    content = bench.directory.content(name)
    position, head = next(groups(content))
    for region in regions(content):
        if position <= region.start < position + head.length:
            for at in range(region.start, region.end):
                result = bench.try_bytes(name, flipped(content, at, random.randrange(8)))
                assert not result.refused
                assert result.harmed == set()


@pytest.mark.parametrize("bench", [uncovered], indirect=True)
def test_a_bit_of_an_uncovered_last_group_reads_as_a_torn_tail(bench: Bench) -> None:
    """Nothing says that it was ever synced: it is cut, without a word of damage. What is before it stays."""
    content, random = bench.directory.content(NEWEST), Random(4)
    position, head = list(groups(content))[-1]
    cut = {ledger: batches[:-1] for ledger, batches in bench.directory.acked.items()}
    bench.acked = cut
    for region in regions(content):
        if region.start >= position:
            for at in range(region.start, region.end):
                result = bench.try_bytes(NEWEST, flipped(content, at, random.randrange(8)))
                assert (result.refused, result.harmed, result.noticed) == (False, set(), False)
    assert valid_end(content) == position + head.length
