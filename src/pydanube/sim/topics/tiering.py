"""The cold tier of a world: brokers that move segments, a client that reads topics, and one that truncates them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TYPE_CHECKING

from pydanube.base.errors import ConfigInvalid, DanubeError, SegmentDamaged, SegmentMissing
from pydanube.broker.cold.tiering import Space
from pydanube.broker.topic.topic import Topic
from pydanube.operations.topics import TruncateTopic
from pydanube.ports.offload import Offload
from pydanube.ports.segments import Segments
from pydanube.sim.machine.offload import SimOffload
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.stream import Stream
from pydanube.stream.segments import SegmentPlan
from pydanube.stream.tiering import TierSettings

if TYPE_CHECKING:
    from pydanube.sim.topics.broker import TopicBroker
    from pydanube.sim.topics.memory import TopicMemory
    from pydanube.sim.topics.world import TopicWorld

LISTED_MAX = 4  # segments in a record; small, so that there are indexes, and indexes of indexes


def tier_settings(world: TopicWorld) -> TierSettings:
    """The settings, which are the same for all brokers of a world and all their lives."""
    draw = Random(f"{world.plan.profile}/{world.plan.seed}/tier")
    return TierSettings(
        segment_bytes=draw.choice((1_000, 2_500, 6_000)),
        lag_seconds=draw.choice((0.6, 2.0)),
        local_seconds=draw.choice((0.0, 1.0, 3.0)),
        local_bytes=draw.choice((None, 3_000)),
    )


def segments_of(world: TopicWorld, offload: Offload | None = None) -> Segments:
    """The object storage of the world. It needs numpy and PyArrow, which the rest of the simulator does not."""
    try:
        from pydanube.tier.direct import DirectSegments
    except ImportError as error:
        raise ConfigInvalid(f"simulated object storage needs {error.name}: pip install 'pydanube[objects]'") from None
    return DirectSegments(world.objects, offload)


def cold_tier(world: TopicWorld, random: Random) -> ColdTier:
    segments = segments_of(world, SimOffload(world.loop, random))
    return ColdTier(segments, ColdReader(segments), tier_settings(world))


def space_of(random: Random) -> Callable[[], Awaitable[Space]]:
    async def space() -> Space:
        """Reports a full disk now and then."""
        return Space(random.choice((0, 100_000, 100_000, 100_000)), 100_000)

    return space


async def read_through(broker: TopicBroker, topic: Topic, memory: TopicMemory) -> None:
    """Reads a topic from beginning to end repeatedly: without gaps, or with an error that names the loss."""
    session, tier = broker.session, broker.world.tier
    while True:
        await asyncio.sleep(broker.random.uniform(0.3, 2.0))
        try:
            offset, end = await session.bounds(memory.name)
            while offset < end:
                batches = await session.read(memory.name, offset, broker.random.choice((1, 1_000, 50_000)))
                first, end = await session.bounds(memory.name)
                if batches:  # otherwise another owner has found fewer messages
                    offset = tier.read(memory.stream, offset, batches, first=first, lossy=memory.history.lossy)
                await asyncio.sleep(broker.random.choice((0.0, 0.05)))
        except DanubeError as error:
            broker.world.loop.trace("read.failed", memory.name, error.code)
            if isinstance(error, SegmentMissing | SegmentDamaged):
                tier.check_report(error)


async def truncate_now_and_then(broker: TopicBroker, topic: Topic, memory: TopicMemory) -> None:
    draw, world = broker.random, broker.world
    while not world.healed:
        await asyncio.sleep(draw.uniform(1.0, 4.0))
        writing = draw.random() < 0.5 and await _segment_being_written(topic.ledger.stream)
        first, end = topic.ledger.first, topic.ledger.confirmed_end
        if topic.lost:
            return
        before = draw.randint(first, first + (end - first) // 2)
        if writing:
            before = max(before, min(writing.last + 1, end))
        memory.history.truncated = max(memory.history.truncated, before)
        try:
            await broker.session.request(TruncateTopic(memory.name, before))
        except DanubeError as error:
            world.loop.trace("truncate.failed", memory.name, before, error.code)
            continue
        world.loop.trace("truncated", memory.name, before)


async def _segment_being_written(stream: Stream) -> SegmentPlan | None:
    """The plan of the next segment, if there is one within a few seconds."""
    for _ in range(60):
        if (planned := stream.record.cold.planned) is not None:
            return planned
        await asyncio.sleep(0.05)
    return None
