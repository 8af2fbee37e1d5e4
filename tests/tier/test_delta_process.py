"""Tables followed in the process of the cold tier, through its link."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from deltalake import DeltaTable

from pydanube.adapters.objects_url import parse_objects_url
from pydanube.base.errors import ObjectsRefused, OwnershipLost
from pydanube.base.ids import Epoch
from pydanube.stream.cold import make_index
from pydanube.stream.delta_table import Folded, TableListing, listing_of
from pydanube.stream.segments import Segment
from pydanube.tier.frames import from_listing, listing_pieces, to_listing
from pydanube.tier.limits import TABLE_FILES_A_PIECE
from pydanube.tier.process import SegmentProcesses
from wire.batches import NOW

STREAM = "t1.1"


def segments(count: int) -> list[Segment]:
    return [
        Segment(10 * number, 10 * number + 9, Epoch(3), 10, 100, 100, "c", "d", NOW, NOW + 5, (10 * number,))
        for number in range(count)
    ]


def long_listing(epoch: int = 3) -> TableListing:
    """Of more files than go over in one piece."""
    return listing_of(STREAM, Epoch(epoch), segments(2 * TABLE_FILES_A_PIECE + 1), now=NOW, grows=True)


def test_a_listing_comes_over_as_it_was() -> None:
    index, _ = make_index(segments(4))
    for listing in (long_listing(), listing_of(STREAM, Epoch(1), [index], now=1, grows=False)):
        pieces = list(listing_pieces(listing))
        assert len(pieces) == -(-len(listing.files) // TABLE_FILES_A_PIECE)
        assert to_listing(from_listing(listing), b"".join(pieces)) == listing


def test_a_process_makes_the_table_asks_for_what_is_folded_and_says_whose_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        place = parse_objects_url(f"file://{tmp_path}", {}, {})
        tier = SegmentProcesses(place.scheme, place.options, place.shown)
        try:
            listing = long_listing()
            assert await tier.follow_table(listing) == ()
            assert len(DeltaTable(tmp_path / "t1").file_uris()) == len(listing.files)
            index, _ = make_index(segments(5000))
            folded = listing_of(STREAM, Epoch(3), [index], now=NOW, grows=True)
            assert await tier.follow_table(folded) == (Folded(index.first, index.last, index.rows),)
            assert len(DeltaTable(tmp_path / "t1").file_uris()) == len(listing.files), "nothing changed"
            with pytest.raises(OwnershipLost):
                await tier.follow_table(long_listing(epoch=2))
        finally:
            await tier.close()

    asyncio.run(story())


def test_a_process_at_a_place_without_tables_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        place = parse_objects_url("memory://", {}, {})
        tier = SegmentProcesses(place.scheme, place.options, place.shown)
        try:
            with pytest.raises(ObjectsRefused, match="tables cannot be created at memory://"):
                await tier.follow_table(long_listing())
        finally:
            await tier.close()

    asyncio.run(story())
