"""What every face can be asked about tiers: what lies where, whether it is sound, and uploading it now.

`VERBS` has these and all others of `api/operations/verbs.py`. What may take long
is answered with a ticket to ask again with.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydanube.api.operations.fields import flag, number, text
from pydanube.api.operations.verbs import VERBS, Caller, limit_of, page, tiers_of, topics_behind, verb
from pydanube.base.errors import TopicNotFound
from pydanube.broker.cold.storage_admin import Part, Uploaded, Verified
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.serving.salvage import Examined, Found, StateLeft
from pydanube.broker.topic.topic import Topic
from pydanube.wire.objects import Object

__all__ = ["VERBS"]
USAGES_A_TURN = 50  # topics, before others of the loop have theirs


async def _topic(caller: Caller, fields: Object) -> Topic:
    """The partition that is named, or the topic that has none."""
    return caller.service.reliable(await caller.service.open(caller.principal, text(fields, "topic")))


@verb("storage.status")
async def status(caller: Caller, fields: Object) -> Object:
    """How object storage stands; with a look at the place if there is one."""
    tiers = caller.service.tiers
    wrong = await tiers.check() if tiers.configured else None
    found = tiers.status()
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
async def usage(caller: Caller, fields: Object) -> Object:
    name = text(fields, "topic")
    return {"topic": name, **tiers_of(await caller.service.admin.usage(caller.principal, name))}


@verb("storage.list")
async def list_usage(caller: Caller, fields: Object) -> Object:
    """Of the topics of a namespace that keep messages, by name."""
    namespace, after, limit = text(fields, "namespace", "default"), text(fields, "after", ""), limit_of(fields)
    found: list[TopicRecord] = []
    more = True
    while more and len(found) <= limit:
        known = await topics_behind(caller, namespace, after, limit)
        found += [record for record in known if record.reliable]
        more = len(known) > limit
        after = known[-1].name.name if known else after
    usages: list[Object] = []
    for count, record in enumerate(found[:limit], 1):
        try:
            used = await caller.service.admin.usage(caller.principal, str(record.name))
        except TopicNotFound:
            continue  # deleted meanwhile
        usages.append({"topic": str(record.name), **tiers_of(used)})
        if not count % USAGES_A_TURN:
            await asyncio.sleep(0)
    return page("topics", usages, len(found) > limit)


@verb("storage.segments")
async def segments(caller: Caller, fields: Object) -> Object:
    topic, start, limit = await _topic(caller, fields), number(fields, "start", 0), limit_of(fields)
    found = await caller.service.tiers.parts(topic, start, limit + 1)
    return page("segments", [_part(topic.name, part) for part in found[:limit]], len(found) > limit)


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
async def table(caller: Caller, fields: Object) -> Object:
    name = text(fields, "topic")
    found = await caller.service.admin.table(caller.principal, name)
    facts = {"made": found.made, "grows": found.grows, "troubles": list(found.troubles)}
    return {"topic": name, "format": "delta", "uri": found.uri, **facts}


@verb("storage.verify")
async def verify(caller: Caller, fields: Object) -> Object:
    topic, first = await _topic(caller, fields), number(fields, "first")
    asked = await caller.service.tiers.verify(topic, first, number(fields, "ticket", None))
    found: Verified | None = asked.result
    told: dict[str, Any] = {"topic": topic.name, "first": first, "done": found is not None, "ticket": asked.ticket}
    if found is not None:
        told |= {
            "segment": found.id or None,
            "result": found.result,
            "object_bytes": found.bytes,
            "what": found.what or None,
        }
    return told


@verb("storage.damage")
async def damage(caller: Caller, fields: Object) -> Object:
    """Topics of which something is known to be damaged, or may be."""
    return {"topics": await caller.service.salvage.topics(caller.principal)}


@verb("storage.salvage")
async def salvage(caller: Caller, fields: Object) -> Object:
    name, accept = text(fields, "topic"), flag(fields, "accept", False)
    asked = await caller.service.salvage.examine(
        caller.principal, name, accept=accept, ticket=number(fields, "ticket", None)
    )
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
async def upload(caller: Caller, fields: Object) -> Object:
    topic = await _topic(caller, fields)
    asked = await caller.service.tiers.upload(topic, number(fields, "ticket", None))
    found: Uploaded | None = asked.result
    told: dict[str, Any] = {"topic": topic.name, "done": found is not None, "ticket": asked.ticket}
    if found is not None:
        told |= {
            "segments": found.segments,
            "messages": found.messages,
            "bytes": found.bytes,
            "object_bytes": found.size,
        }
    return told
