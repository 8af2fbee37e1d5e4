"""A broker's insides on a real directory, with object storage in a dict: topics are published to, moved and read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from broker.door_world import served
from pydanube.adapters.objects_url import ObjectsLocation
from pydanube.base.limits import KIB
from pydanube.broker.cold.tiering import Tiering
from pydanube.broker.standalone import Broker, ObjectsSettings, StandaloneSettings
from pydanube.broker.topic.topic import Topic
from pydanube.storage.node.settings import NodeSettings
from pydanube.stream.tiering import TierSettings
from pydanube.tier.direct import DirectSegments
from pydanube.wire.batch import Message, build
from tier.objects_world import WorldObjects

PLACE = ObjectsLocation("fs", {}, "file:///somewhere")
AT_ONCE = TierSettings(segment_bytes=64 * KIB, lag_seconds=0.000001, local_seconds=None, free_part=0.0)
LOCAL_NOTHING = TierSettings(segment_bytes=64 * KIB, lag_seconds=0.000001, local_seconds=0.0, free_part=0.0)
TOPIC = "/default/orders"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def settings_of(
    path: Path,
    objects: WorldObjects | None,
    tier: TierSettings = AT_ONCE,
    place: ObjectsLocation = PLACE,
    **others: object,
) -> StandaloneSettings:
    return StandaloneSettings(
        path,
        node=NodeSettings(file_bytes=256 * KIB, retry_seconds=0.01),
        objects=None if objects is None else ObjectsSettings(place, tier),
        segments=None if objects is None else (lambda _: DirectSegments(objects)),
        cache_bytes=0,
        **others,  # type: ignore[arg-type]
    )


@asynccontextmanager
async def opened(
    path: Path, objects: WorldObjects | None, tier: TierSettings = AT_ONCE, place: ObjectsLocation = PLACE
) -> AsyncIterator[Broker]:
    """A broker whose tiering does nothing by itself: the test takes its turns."""
    found = Broker(settings_of(path, objects, tier, place))
    await found.open()
    if found.door._moving is not None:
        found.door._moving.cancel()
    try:
        yield found
    finally:
        await found.close()


def tiering_of(broker: Broker) -> Tiering:
    assert broker.door.tiering is not None
    return broker.door.tiering


async def topic_of(broker: Broker, name: str = TOPIC) -> Topic:
    return (await served(broker.door, name, create=True, reliable=True)).reliable


async def publish(topic: Topic, first: int, count: int, size: int = 100) -> None:
    """Messages whose payloads tell their numbers, in batches of ten, and a ledger sealed behind them."""
    for start in range(first, first + count, 10):
        numbers = range(start, min(start + 10, first + count))
        payloads = [b"%d/" % number + b"x" * size for number in numbers]
        batch = build(payloads, publish_time=start, keys=[b"k%d" % (number % 3) for number in numbers])
        await topic.publish(batch).confirmed


async def seal(topic: Topic) -> None:
    await topic.ledger.stream.seal()


async def work(broker: Broker, topic: Topic) -> None:
    """One round of tiering of this topic, to its end."""
    tiering = tiering_of(broker)
    await tiering._free_space([topic])
    task = tiering.begin(topic)
    if task is not None:
        await task


async def read_all(topic: Topic) -> list[Message]:
    offset, found = topic.ledger.first, []
    while offset < topic.ledger.confirmed_end:
        for batch in await topic.ledger.read(offset):
            messages = [message for message in batch.messages() if message.offset >= offset]
            found += messages
            offset = batch.last_offset + 1
    return found


def numbers(messages: list[Message]) -> list[int]:
    return [int((message.payload or b"").split(b"/")[0]) for message in messages]
