"""A topic on a real disk, taken back after a crash with very many acks out of order: `bench/topics.py` in small."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from time import perf_counter

import pytest

from broker.topic_world import OneNode
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.limits import ACK_RANGES_MAX
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.dependencies import LetterSource, TopicDependencies
from pydanube.broker.topic.topic import Topic
from pydanube.sim.world.catalog import SimCatalog
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.tail import TailCache
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch, build

ACKS = 100_000
SECONDS_MAX = 5.0  # the promise for ten times as many


async def no_dead_letters(topic: str, message: Batch, source: LetterSource) -> None:
    raise AssertionError("no message fails here")


async def opened(directory: Path, catalog: SimCatalog) -> tuple[PosixDisk, DiskNode, Topic]:
    disk = PosixDisk(directory)
    node = await DiskNode.open([disk], NodeSettings(file_bytes=4 << 20), SystemRandomness())
    await node.reconcile_with_catalog(catalog.known(), catalog.next_ledger)
    dependencies = TopicDependencies(
        catalog, OneNode(node), CheckedClock(SystemClock()), SystemRandomness(), TailCache(), no_dead_letters
    )
    tenure = await Tenure.take("/default/t", Assignment("b", SystemRandomness().bytes(8).hex()), catalog)
    return disk, node, await Topic.open(tenure, dependencies, TopicOptions())


async def scatter(directory: Path, catalog: SimCatalog) -> None:
    disk, node, topic = await opened(directory, catalog)
    host = await topic.subscribe("s", SubscriptionKind.SHARED)
    for _ in range(2 * ACKS // 10_000):
        await topic.publish(build([b""] * 10_000, publish_time=1)).confirmed
    offsets = range(1, 2 * ACKS, 2)
    for at in range(0, ACKS, ACK_RANGES_MAX):
        await host.ack(0, [(offset, offset) for offset in offsets[at : at + ACK_RANGES_MAX]])
    await node.close()  # and nobody closes the topic
    disk.close()


async def reopen(directory: Path, catalog: SimCatalog) -> float:
    start = perf_counter()
    disk, node, topic = await opened(directory, catalog)
    seconds = perf_counter() - start
    cursor = topic.subscriptions["s"].known.cursor
    assert (cursor.floor, cursor.above.count) == (0, ACKS)
    assert cursor.pending(0, 5) == [(0, 0), (2, 2), (4, 4)]
    await topic.close()
    await node.close()
    disk.close()
    return seconds


@pytest.mark.slow
def test_a_topic_with_very_many_acks_out_of_order_is_soon_back(tmp_path: Path) -> None:
    catalog = SimCatalog(Random(0))
    asyncio.run(scatter(tmp_path, catalog))
    assert asyncio.run(reopen(tmp_path, catalog)) < SECONDS_MAX
