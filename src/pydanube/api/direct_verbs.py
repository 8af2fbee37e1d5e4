"""What a job asks that reads segments from object storage by itself: which there are, and where.

Only of the native protocol. No answer has a credential: whoever reads there has their own.
"""

from __future__ import annotations

from pydanube.api.fields import number, text
from pydanube.api.verbs import Caller, Verb, limit_of, page
from pydanube.base.errors import RequestInvalid
from pydanube.ledger.segments import Segment
from pydanube.wire.objects import Object


async def place(caller: Caller, fields: Object) -> Object:
    """URL and options, as in the configuration; no URL if nobody but the broker gets there."""
    found = caller.service.tiers.told
    return {"url": None, "options": {}} if found is None else {"url": found[0], "options": dict(found[1])}


async def sealed(caller: Caller, fields: Object) -> Object:
    """The segments of a partition that have offsets from `start` to `end`, without `end`, oldest first."""
    topic = caller.service.reliable(await caller.service.open(caller.principal, text(fields, "topic")))
    start, end, limit = number(fields, "start", 0), number(fields, "end"), limit_of(fields)
    if not 0 <= start <= end:
        raise RequestInvalid(f"from {start} to {end} there are no offsets")
    found = await caller.service.tiers.sealed(topic, start, end, limit + 1)
    return page("segments", [_facts(key, segment) for key, segment in found[:limit]], len(found) > limit)


def _facts(key: str, segment: Segment) -> Object:
    return {
        "key": key,
        "first": segment.first,
        "last": segment.last,
        "epoch": segment.epoch,
        "rows": segment.rows,
        "bytes": segment.bytes,
        "object_bytes": segment.size,
        "digest": segment.digest,
    }


VERBS: dict[str, Verb] = {"storage.place": place, "storage.sealed": sealed}
