"""Turns a batch into what an engine needs: runs of offsets, with keys and delivery times where the type uses them.

Pure functions of a batch and a cursor. Examining each message takes time, so each turn of the loop has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydanube.base.errors import DanubeError
from pydanube.base.limits import DECODED_ATTRIBUTES_BYTES, EXAMINED_AT_ONCE
from pydanube.broker.subscription.delivery import PRODUCER_ATTRIBUTE
from pydanube.dispatch.events import Run
from pydanube.topic.records import SubscriptionKind
from pydanube.topic.state import Subscription
from pydanube.wire.batch import Batch, Codec


def keys_of(batch: Batch, rows: range | None = None) -> list[bytes]:
    """The keys by which Key-Shared distributes these messages, or all of them; the producer replaces a missing key."""
    nameless, keys = b"%d" % batch.producer_id, batch.keys(rows)
    if not batch.producer_id and _may_name_producers(batch) and None in keys:
        names = _producers_of(batch)
        names = names if rows is None else names[rows.start : rows.stop]
        return [name or nameless if key is None else key for key, name in zip(keys, names, strict=True)]
    return [nameless if key is None else key for key in keys]


def _may_name_producers(batch: Batch) -> bool:
    """Only the gRPC face names producers in attributes; its batches are not compressed and have few attributes."""
    return batch.has_attributes and batch.codec is Codec.NONE and batch.attributes_bytes <= DECODED_ATTRIBUTES_BYTES


def _producers_of(batch: Batch) -> list[bytes]:
    """The names in the attributes, which nothing has validated yet: if they cannot be read, there are no names."""
    try:
        return [(row or {}).get(PRODUCER_ATTRIBUTE, "").encode() for row in batch.attributes()]
    except DanubeError:
        return [b""] * batch.count


def _inspects(batch: Batch, kind: SubscriptionKind) -> bool:
    """Whether that type of subscription examines each message, so that many messages take long."""
    return kind is SubscriptionKind.KEY_SHARED or (kind is SubscriptionKind.SHARED and batch.has_delivery_times)


def inspectable(
    batch: Batch, kind: SubscriptionKind, first: int, last: int, most: int, key_bytes: int
) -> tuple[int, int]:
    """The last offset of first..last that fits into this turn, and how much of `most` it uses: long keys use more."""
    if last < first or not _inspects(batch, kind):
        return last, 0
    last = min(last, first + most - 1)
    if kind is not SubscriptionKind.KEY_SHARED:
        return last, last - first + 1
    rows = range(first - batch.base_offset, last - batch.base_offset + 1)
    count, size = batch.rows_by_key_bytes(rows, key_bytes * most // EXAMINED_AT_ONCE)
    return first + count - 1, min(most, max(count, EXAMINED_AT_ONCE * size // key_bytes))


def runs_of(batch: Batch, known: Subscription, first: int, last: int, clock_ahead: int) -> Iterator[Run]:
    """The parts of first..last that the subscription has not finished."""
    base = batch.base_offset
    keys, due = _columns_of(batch, range(first - base, last - base + 1), known.kind, clock_ahead)
    for start, end in known.cursor.pending(first, last):
        rows = slice(start - first, end - first + 1)
        yield Run(start, end, keys and keys[rows], due and due[rows])


def _columns_of(
    batch: Batch, rows: range, kind: SubscriptionKind, clock_ahead: int
) -> tuple[list[bytes] | None, list[int | None] | None]:
    """Keys or delivery times, if that type uses them; converts times to a clock that is `clock_ahead` behind."""
    if not _inspects(batch, kind):
        return None, None
    if kind is SubscriptionKind.KEY_SHARED:
        return keys_of(batch, rows), None
    return None, [None if time is None else time - clock_ahead for time in batch.delivery_times(rows)]
