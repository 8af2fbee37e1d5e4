"""A broker that uploads what it has and dies at a step of it, as by kill -9. Run by test_servers.py.

`python dying_broker.py DATA_DIR URL OPTIONS STEP`; with STEP `none` it lives, and prints what it reads.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path

from broker.door_world import served
from pydanube.adapters.objects_url import ObjectsLocation, parse_objects_url
from pydanube.adapters.opendal_objects import OpendalObjects
from pydanube.base.limits import KIB
from pydanube.broker.standalone import Broker, ObjectsSettings, StandaloneSettings
from pydanube.broker.topic.topic import Topic
from pydanube.ports.segments import Segments
from pydanube.storage.node.settings import NodeSettings
from pydanube.stream.tiering import TierSettings
from pydanube.tier.direct import DirectSegments
from pydanube.wire.batch import build

TOPIC = "/default/orders"
ROWS = 300
AFTER = ("published", "evicted")  # steps beyond the object: of the record, and of the local copy
LOCAL_NOTHING = TierSettings(segment_bytes=64 * KIB, lag_seconds=0.000001, local_seconds=0.0, free_part=0.0)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(place: ObjectsLocation, fatal: str) -> Segments:
    def step(name: str) -> None:
        if name == fatal:
            die()

    return DirectSegments(OpendalObjects(place), step=step)


async def publish(topic: Topic) -> None:
    for start in range(topic.ledger.confirmed_end, ROWS, 50):
        batch = build([b"%d" % number for number in range(start, start + 50)], publish_time=start)
        await topic.publish(batch).confirmed


async def read(topic: Topic) -> list[list[object]]:
    found: list[list[object]] = []
    offset = topic.ledger.first
    while offset < topic.ledger.confirmed_end:
        for batch in await topic.ledger.read(offset):
            found += [[message.offset, (message.payload or b"").decode()] for message in batch.messages()]
            offset = batch.last_offset + 1
    return found


async def main(data_dir: str, url: str, options: str, fatal: str) -> None:
    place = parse_objects_url(url, json.loads(options), os.environ)
    settings = StandaloneSettings(
        Path(data_dir),
        node=NodeSettings(file_bytes=256 * KIB),
        objects=ObjectsSettings(place, replace(LOCAL_NOTHING, local_seconds=None)),
        segments=lambda place: dying(place, fatal),
        cache_bytes=0,
    )
    broker = Broker(settings)
    await broker.open()
    door, tiering = broker.door, broker.door.tiering
    assert tiering is not None
    if door._moving is not None:
        door._moving.cancel()  # the turns are taken here
    assert tiering._claim is not None or place.scheme == "memory"
    if tiering._claim is not None:
        await tiering._claim()
    topic = (await served(door, TOPIC, create=True, reliable=True)).reliable
    await publish(topic)
    await tiering.upload(topic)
    if fatal == "published":
        die()
    object.__setattr__(tiering.tier, "settings", LOCAL_NOTHING)
    if fatal == "evicted":
        decide = topic.ledger.stream.decide

        async def decided(change: object) -> object:
            await decide(change)  # type: ignore[arg-type]
            die()

        topic.ledger.stream.decide = decided  # type: ignore[assignment,method-assign]
    task = tiering.begin(topic)
    if task is not None:
        await task
    record = topic.ledger.stream.record
    keys = [part.id for part in await door.tiers.parts(topic)]
    rows = await read(topic)
    await broker.close()
    print(json.dumps({"rows": rows, "local_from": record.cold.local_from, "keys": keys}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
