"""Streams of batches to make segments of: any columns, producers and gaps, and the same messages batched again."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import strategies as st

from pydanube.base.ids import Epoch
from pydanube.stream.segments import SegmentPlan
from pydanube.tier.cutting import CutRows
from pydanube.tier.rows import rows_of
from pydanube.tier.segment_file import SegmentWriter
from pydanube.wire.batch import Batch, Message, build
from wire.batches import NOW, drafts

STREAM = "7/12.3"
EVERYTHING: dict[str, Any] = {
    "payloads": [b"one", b"", None, b"four"],
    "keys": ["a", None, "", "ключ"],
    "publish_times": [NOW, NOW + 1, NOW + 2, NOW + 3],
    "event_times": [None, -5, 0, NOW],
    "delivery_times": [NOW + 9, None, None, NOW + 10],
    "attributes": [{"trace": "ü1", "": ""}, {}, None, {"trace": "2"}],
    "schema_ids": [7, 7, None, 8],
    "schema_versions": [1, 2, None, -1],
}


@st.composite
def streams(draw: st.DrawFn) -> list[Batch]:
    """Up to five batches of one ledger after the other, with gaps between some."""
    offset = draw(st.integers(0, 1 << 40))
    found: list[Batch] = []
    for draft in draw(st.lists(drafts(), min_size=1, max_size=5)):
        offset += draw(st.integers(0, 2))
        epoch = draw(st.integers(1, 3))
        batch = build(**draft).stamped(offset, epoch, draw(st.integers(0, 1 << 60)))
        found.append(batch)
        offset += batch.count
    return found


@st.composite
def rebatched(draw: st.DrawFn, batches: list[Batch]) -> list[Batch]:
    """The same messages, cut elsewhere."""
    found: list[Batch] = []
    for batch in batches:
        cuts = sorted({0, batch.count, *draw(st.lists(st.integers(0, batch.count), max_size=3))})
        found += [batch.slice(first, end - first) for first, end in itertools.pairwise(cuts)]
    return found


def messages(batches: list[Batch]) -> list[Message]:
    return [message for batch in batches for message in batch.messages()]


def plan_of(batches: list[Batch], epoch: int = 9) -> SegmentPlan:
    return SegmentPlan(batches[0].base_offset, batches[-1].last_offset, Epoch(epoch))


def segment_bytes(batches: list[Batch], *, at_once: int = 1) -> bytes:
    """The object of these batches, given to its writer so many at a time."""
    writer = SegmentWriter(plan_of(batches), STREAM)
    for start in range(0, len(batches), at_once):
        writer.add(rows_of(batches[start : start + at_once]))
    return writer.finish()


def batches_of(cut: CutRows) -> list[Batch]:
    return [cut.batch(index) for index in range(len(cut))]


def simple(count: int, first: int = 0, *, size: int = 1, per_batch: int = 10, **fields: Any) -> list[Batch]:
    """So many messages from offset `first` on, in batches of one producer."""
    found = []
    for start in range(first, first + count, per_batch):
        here = min(per_batch, first + count - start)
        payloads = [b"%d " % offset * size for offset in range(start, start + here)]
        batch = build(payloads, publish_time=NOW + start, producer_id=5, first_sequence=start, **fields)
        found.append(batch.stamped(start, 2, NOW + start))
    return found


def full(first: int = 0) -> list[Batch]:
    """Two batches with every column, nulls and empties, and a gap between them."""
    one = build(**EVERYTHING, publish_time=NOW, producer_id=42, first_sequence=1000)
    return [one.stamped(first, 2, NOW + 50), one.stamped(first + 6, 3, NOW + 51)]
