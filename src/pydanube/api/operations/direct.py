"""For jobs that read object storage directly: which segments exist, where they are, and when there is more.

Only the native protocol has these verbs. No answer contains a credential: readers use their own.
"""

from __future__ import annotations

import asyncio

from pydanube.api.operations.fields import field, number, text
from pydanube.api.operations.verbs import Verb, limit_of, page
from pydanube.base.errors import RequestInvalid
from pydanube.base.limits import NEWS_PARTITIONS_MAX, NEWS_SECONDS_MAX
from pydanube.broker.door.session import Session
from pydanube.stream.segments import Segment
from pydanube.wire.objects import Object


async def place(session: Session, fields: Object) -> Object:
    """URL and options, as in the configuration; no URL if only the broker can reach the objects."""
    found = session.storage.place()
    return {"url": None, "options": {}} if found is None else {"url": found[0], "options": dict(found[1])}


async def sealed(session: Session, fields: Object) -> Object:
    """The segments of a partition with offsets from `start` to before `end`, oldest first."""
    start, end, limit = number(fields, "start", 0), number(fields, "end"), limit_of(fields)
    if not 0 <= start <= end:
        raise RequestInvalid(f"offsets {start} to {end} are not a valid range")
    found = await session.storage.sealed(text(fields, "topic"), start, end, limit + 1)
    return page("segments", [_facts(key, segment) for key, segment in found[:limit]], len(found) > limit)


async def news(session: Session, fields: Object) -> Object:
    """Answers when one of the partitions has a message at its given offset, or when the time is over."""
    offsets = field(fields, "offsets", dict)
    seconds = max(0.0, min(number(fields, "milliseconds") / 1_000, NEWS_SECONDS_MAX))
    if len(offsets) > NEWS_PARTITIONS_MAX or not all(type(each) is int and each >= 0 for each in offsets.values()):
        raise RequestInvalid(f"offsets must be an object with at most {NEWS_PARTITIONS_MAX} partitions by name")
    waits = [asyncio.ensure_future(session.wait_beyond(place, offset, seconds)) for place, offset in offsets.items()]
    if waits:
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        for each in done:
            each.result()  # raises, for example, if the topic was deleted
    return {}


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


VERBS: dict[str, Verb] = {"storage.place": place, "storage.sealed": sealed, "news": news}
