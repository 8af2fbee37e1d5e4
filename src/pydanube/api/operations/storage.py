"""What every face can be asked about storage: what is stored where, whether it is intact, and to upload it now.

`VERBS` has these and all others of `api/operations/verbs.py`. A request that may take long is answered with a ticket
to ask again with.
"""

from __future__ import annotations

from typing import Any

from pydanube.api.operations.fields import flag, number, text
from pydanube.api.operations.verbs import VERBS, limit_of, page, tiers_of, verb
from pydanube.broker.door.session import Session
from pydanube.broker.door.values import Examined, Found, Part, StateLeft, Uploaded, Verified
from pydanube.wire.objects import Object

__all__ = ["VERBS"]


@verb("storage.status")
async def status(session: Session, fields: Object) -> Object:
    """The status of object storage, which is contacted if it is configured."""
    found, wrong = await session.storage.status()
    return {
        "objects": found.location,
        "claimed": found.claimed,
        "trouble": wrong,
        "troubles": list(found.troubles),
        "troubled_topics": found.troubled,
        "uploads": found.uploaded,
        "uploaded_bytes": found.uploaded_bytes,
        "failures": found.failures,
    }


@verb("storage.usage")
async def usage(session: Session, fields: Object) -> Object:
    name = text(fields, "topic")
    return {"topic": name, **tiers_of(await session.storage.usage(name))}


@verb("storage.list")
async def list_usage(session: Session, fields: Object) -> Object:
    """The usage of each reliable topic of a namespace, by name."""
    namespace, after, limit = text(fields, "namespace", "default"), text(fields, "after", ""), limit_of(fields)
    found, more = await session.storage.listed(namespace, after, limit)
    return page("topics", [{"topic": name, **tiers_of(used)} for name, used in found], more)


@verb("storage.segments")
async def segments(session: Session, fields: Object) -> Object:
    name, start, limit = text(fields, "topic"), number(fields, "start", 0), limit_of(fields)
    found = await session.storage.segments(name, start, limit + 1)
    return page("segments", [_part(name, part) for part in found[:limit]], len(found) > limit)


def _part(topic: str, part: Part) -> Object:
    return {
        "topic": topic,
        "segment": part.id,
        "where": part.where,
        "first": part.first,
        "last": part.last,
        "bytes": part.bytes,
        "object_bytes": part.size,
        "newest": part.newest,
    }


@verb("storage.table")
async def table(session: Session, fields: Object) -> Object:
    name = text(fields, "topic")
    found = await session.storage.table(name)
    facts = {"made": found.made, "grows": found.grows, "troubles": list(found.troubles)}
    return {"topic": name, "format": "delta", "uri": found.uri, **facts}


@verb("storage.verify")
async def verify(session: Session, fields: Object) -> Object:
    name, first = text(fields, "topic"), number(fields, "first")
    asked = await session.storage.verify(name, first, number(fields, "ticket", None))
    found: Verified | None = asked.result
    told: dict[str, Any] = {"topic": name, "first": first, "done": found is not None, "ticket": asked.ticket}
    if found is not None:
        told |= {
            "segment": found.id or None,
            "result": found.result,
            "object_bytes": found.bytes,
            "what": found.what or None,
        }
    return told


@verb("storage.damage")
async def damage(session: Session, fields: Object) -> Object:
    """The topics in which something is, or may be, damaged."""
    return {"topics": await session.storage.damaged()}


@verb("storage.salvage")
async def salvage(session: Session, fields: Object) -> Object:
    name, accept = text(fields, "topic"), flag(fields, "accept", False)
    asked = await session.storage.salvage(name, accept=accept, ticket=number(fields, "ticket", None))
    found: Examined | None = asked.result
    told: dict[str, Any] = {"topic": name, "done": found is not None, "ticket": asked.ticket, "accepted": accept}
    if found is not None:
        told |= {"damage": [_damage(each) for each in found.found], "state_left": [_left(each) for each in found.left]}
    return told


def _damage(found: Found) -> Object:
    lost = found.lost
    return {
        "topic": found.topic,
        "what": found.what,
        "ledger": found.ledger,
        "first": lost.first,
        "last": lost.last,
        "messages": lost.messages if lost.known else None,
    }


def _left(left: StateLeft) -> Object:
    kept = [{"subscription": name, "floor": floor} for name, floor in left.subscriptions]
    return {"topic": left.topic, "subscriptions": kept, "subscriptions_lost": left.lost}


@verb("storage.upload")
async def upload(session: Session, fields: Object) -> Object:
    name = text(fields, "topic")
    asked = await session.storage.upload(name, number(fields, "ticket", None))
    found: Uploaded | None = asked.result
    told: dict[str, Any] = {"topic": name, "done": found is not None, "ticket": asked.ticket}
    if found is not None:
        told |= {
            "segments": found.segments,
            "messages": found.messages,
            "bytes": found.bytes,
            "object_bytes": found.size,
        }
    return told
