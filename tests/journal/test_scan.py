"""D4 and D5 on the scanner alone: every bit that is used and every byte of padding, every end, and any bytes at all.

The oracle: every entry and every control record of the undamaged file is found again in its place, or a damage names
its ledger, or nobody can tell whose the damage is. `tests/storage` holds the same of the whole node, on fewer bits.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.limits import BLOCK_BYTES
from pydanube.journal.group import EntryKind
from pydanube.journal.ledger_table import Control
from pydanube.journal.scan import Damage, Scan, scan_file
from storage.damage import flipped, groups, one_file, regions, several_files, uncovered, valid_end
from storage.node_world import NodeWorld, append, batch_of, create

NAME = "journal-0000000000000001.log"
SIZE = 65536


def scanned(content: bytes, *, end: int | None = None, sealed: bool = False, size: int = SIZE) -> Scan:
    """Reads as a file does: zeros up to its size."""
    reads = scan_file(1, size, end, sealed=sealed)
    request = next(reads)
    try:
        while True:
            position, length = request
            found = content[position : position + length]
            request = reads.send(found.ljust(min(length, max(size - position, 0)), b"\0"))
    except StopIteration as done:
        result: Scan = done.value
        return result


def concerned(damage: list[Damage], ledger: int) -> bool:
    return any(each.ledgers is None or ledger in each.ledgers for each in damage)


def complaint(true: Scan, found: Scan) -> str:
    """What was lost without a word, or an empty text."""
    if found.checkpoint not in (None, true.checkpoint):
        return "another checkpoint"
    for ledger, runs in true.index.ledgers.items():
        for first, block in zip(runs.firsts, runs.blocks, strict=True):
            if found.index.find(ledger, first, first) != block and not concerned(found.damage, ledger):
                return f"ledger {ledger}, offset {first}"
    revived = {Control(EntryKind.CREATE, ledger) for each in found.damage for ledger in each.ledgers or true.names}
    if not set(found.controls) <= set(true.controls) | revived:
        return "a control record that never was"
    for record in set(true.controls) - set(found.controls):
        if not concerned(found.damage, record.ledger):
            return f"{record}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("end", [None, "known"])
def test_every_bit_that_is_used(end: str | None) -> None:
    """Of the newest file, and of one whose end the next file knows."""
    content = one_file().content(NAME)
    limit = valid_end(content) if end else None
    true = scanned(content, end=limit)
    assert true.damage == []
    mark = list(groups(content))[-1][0]
    for region in regions(content):
        for position in range(region.start, region.end):
            for bit in range(8):
                found = scanned(flipped(content, position, bit), end=limit)
                place = f"{region.what}, byte {position}, bit {bit}"
                if region.start >= mark and end is None:
                    assert found.damage == [], place  # the mark itself is not covered, and nothing is lost with it
                    continue
                assert not complaint(true, found), place
                named = {ledger for damage in found.damage for ledger in damage.ledgers or ()}
                assert named <= region.ledgers, place
                assert all(damage.ledgers is not None for damage in found.damage), place


@pytest.mark.slow
def test_every_byte_of_padding_does_not_matter() -> None:
    """Of the checkpoint, two groups and the mark; the groups between are like them."""
    content, random = one_file().content(NAME), Random(1)
    true = scanned(content)
    used = {position for region in regions(content) for position in range(region.start, region.end)}
    header = range(BLOCK_BYTES)  # of which every byte is checked
    between = range(4 * BLOCK_BYTES, list(groups(content))[-1][0])
    for position in range(valid_end(content)):
        if position not in used and position not in header and position not in between:
            assert scanned(flipped(content, position, random.randrange(8))) == true, position


def test_any_block_of_garbage_harms_nothing_behind_or_before_it() -> None:
    content, random = one_file().content(NAME), Random(2)
    true = scanned(content)
    for position, head in list(groups(content))[1:-1]:
        for _ in range(50):
            start = position + random.randrange(head.length)
            length = random.randrange(1, position + head.length - start + 1)
            broken = content[:start] + random.randbytes(length) + content[start + length :]
            found = scanned(broken)
            assert not complaint(true, found)
            assert all(position <= damage.position < position + head.length for damage in found.damage)


@pytest.mark.slow
@pytest.mark.parametrize("end", [None, "known"])
def test_a_file_that_ends_anywhere(end: str | None) -> None:
    content = one_file().content(NAME)
    limit = valid_end(content) if end else None
    true = scanned(content, end=limit)
    edges = [*range(BLOCK_BYTES), *range(len(content) - BLOCK_BYTES, len(content))]
    for length in sorted({*edges, *range(0, len(content), 16)}):
        found = scanned(content[:length], end=limit, size=length)
        assert not complaint(true, found), length
        assert found.damage, length


def test_a_torn_tail_is_cut_without_a_word() -> None:
    """Zeros from anywhere in the last group on, which no later one covers."""
    content = uncovered().content(NAME)
    position, _ = list(groups(content))[-1]
    before = scanned(content[:position])
    for cut in range(position, len(content), 8):
        found = scanned(content[:cut])
        if found.end == position:
            assert (found.damage, found.index, found.controls) == ([], before.index, before.controls), cut
        else:
            assert content[cut:].strip(b"\0") == b"", "whole after all"
    whole = scanned(content)
    assert [group.position for group in whole.uncovered] == [position]
    assert whole.covered == position


def test_a_kept_file_that_lost_its_end_says_so() -> None:
    directory = several_files()
    content = directory.content(directory.only("kept-"))
    generation = int(directory.only("kept-")[5:21], 16)

    def kept(data: bytes) -> Scan:
        reads = scan_file(generation, len(data), None, sealed=True)
        request = next(reads)
        try:
            while True:
                request = reads.send(data[request[0] : sum(request)])
        except StopIteration as done:
            result: Scan = done.value
            return result

    true = kept(content)
    assert true.damage == []
    for length in range(0, len(content), 64):
        found = kept(content[:length])
        assert any(damage.ledgers is None for damage in found.damage), length
    for position in range(BLOCK_BYTES, len(content), 16):
        assert not complaint(true, kept(flipped(content, position, 3)))


@given(st.binary(max_size=3 * BLOCK_BYTES), st.booleans(), st.none() | st.integers(0, 4 * BLOCK_BYTES))
@settings(max_examples=200)
def test_any_bytes_at_all_are_scanned_to_an_end(content: bytes, sealed: bool, end: int | None) -> None:
    found = scanned(content, end=end, sealed=sealed, size=len(content))
    assert found.header is None
    assert found.checkpoint is None
    assert found.damage
    assert found.index.ledgers == {}


def test_a_scan_gives_the_index_that_the_writer_had() -> None:
    world = NodeWorld()

    async def scenario() -> tuple[object, bytes]:
        node = await world.open()
        await create(node, 1, 2, 3)
        for offset in range(0, 40, 4):
            for ledger in (1, 2):
                await append(node, ledger, [batch_of(ledger, offset, count=2)])
        await append(node, 1, [batch_of(1, offset, count=2) for offset in (38, 2, 30, 6)])  # late ones
        await asyncio.sleep(1)
        active = node._journal.active
        return active.index, world.disk.content(active.file.name)

    world.settings = type(world.settings)(file_bytes=1 << 20)
    index, content = world.run(scenario())
    assert scanned(content, size=1 << 20).index == index
    world.end()
