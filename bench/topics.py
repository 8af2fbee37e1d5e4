"""Measures topics on this machine's disk: reopening one with a million acks out of order, and messages end to end.

The restart is a crash: only the disk was closed. End to end is everything that a broker does except for the sockets:
publish, store, dispatch, acknowledge, and store the acks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import uvloop

from figures import Figures
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemClock, SystemRandomness
from pydanube.base.errors import DanubeError
from pydanube.base.ids import ConsumerId
from pydanube.base.limits import ACK_RANGES_MAX
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.subscription.delivery import Delivery
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.topic import Topic
from pydanube.sim.world.catalog import SimCatalog
from pydanube.storage.checked_clock import CheckedClock
from pydanube.storage.local import LocalNodes
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.settings import NodeSettings
from pydanube.storage.stream.tail import TailCache
from pydanube.storage.stream.tenure import Tenure
from pydanube.stream.assignment import Assignment
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import Batch, build

ACKS = 1_000_000
BATCH = build([b"x" * 100] * 1_000, publish_time=1)
RUNS = 5
MESSAGES_ORDERED = 1_000_000
MESSAGES_SINGLE = 200_000
PERMITS = 10_000
REOPEN_SECONDS_MAX = 5.0


async def nowhere(topic: str, letter: Batch, chosen: bool) -> None:
    """Never called: no message fails here."""


@asynccontextmanager
async def opened(directory: Path, catalog: SimCatalog) -> AsyncIterator[Topic]:
    """Opens the topic in that directory. It is not closed, so the next opening finds what a crash leaves."""
    disk = PosixDisk(directory)
    node = await DiskNode.open([disk], NodeSettings(), SystemRandomness())
    await node.reconcile_with_catalog(catalog.known(), catalog.next_ledger)
    clock = CheckedClock(SystemClock())
    dependencies = TopicDependencies(catalog, LocalNodes(node), clock, SystemRandomness(), TailCache(), nowhere)
    try:
        tenure = await Tenure.take("/default/bench", Assignment("b", SystemRandomness().bytes(8).hex()), catalog)
        yield await Topic.open(tenure, dependencies, TopicOptions())
    finally:
        await node.close()
        disk.close()


async def scatter(directory: Path, catalog: SimCatalog) -> float:
    """Acks every second of two million messages. Returns the durable acks per second."""
    async with opened(directory, catalog) as topic:
        host = await topic.subscribe("bench", SubscriptionKind.SHARED)
        for _ in range(2 * ACKS // BATCH.count // 100):
            await asyncio.gather(*[topic.publish(BATCH).confirmed for _ in range(100)])
        offsets = range(1, 2 * ACKS, 2)
        started = perf_counter()
        for at in range(0, ACKS, ACK_RANGES_MAX):
            await host.ack(0, [(offset, offset) for offset in offsets[at : at + ACK_RANGES_MAX]])
        return ACKS / (perf_counter() - started)


async def reopen(directory: Path, catalog: SimCatalog) -> float:
    """How many seconds it takes until node and topic are ready again."""
    started = perf_counter()
    async with opened(directory, catalog) as topic:
        seconds = perf_counter() - started
        cursor = topic.subscriptions["bench"].known.cursor
        assert (cursor.floor, cursor.above.count) == (0, ACKS)
    return seconds


class Worker:
    """A consumer that acks every delivery at once, and grants as many permits again."""

    def __init__(self, host: SubscriptionHost, count: int, *, single: bool) -> None:
        self.id = ConsumerId(0)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._host = host
        self._left = count
        self._single = single

    def deliver(self, delivery: Delivery) -> None:
        host, count = self._host, delivery.last - delivery.first + 1
        if self._single:
            for offset in range(delivery.first, delivery.last + 1):
                answer = host.ack(0, ((offset, offset),))
        else:
            answer = host.ack_through(0, delivery.last)
        host.grant(self.id, count)
        self._left -= count
        if not self._left:
            answer.add_done_callback(lambda _: self.done.set_result(None))

    def reset(self, generation: int) -> None:
        """Never called: there are no seeks."""

    def recall(self, generation: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Never called: nothing fails."""

    def hindered(self, error: DanubeError | None) -> None:
        """Never called: nothing is damaged."""

    def closed(self, error: DanubeError) -> None:
        """Never called: the topic is not closed."""


async def end_to_end(directory: Path, kind: SubscriptionKind, count: int, *, single: bool) -> float:
    """Messages per second, from the first publish to the last durable ack."""
    async with opened(directory, SimCatalog(Random(0))) as topic:
        host = await topic.subscribe("bench", kind)
        worker = Worker(host, count, single=single)
        worker.id = topic.connect(host, "worker", worker).id
        host.grant(worker.id, PERMITS)
        started = perf_counter()
        for _ in range(count // BATCH.count // 20):
            await asyncio.gather(*[topic.publish(BATCH).confirmed for _ in range(20)])
        await worker.done
        return count / (perf_counter() - started)


def measured(kind: SubscriptionKind, count: int, *, single: bool) -> float:
    rates = []
    for _ in range(RUNS):
        with TemporaryDirectory(prefix="danube-bench-") as directory:
            rates.append(uvloop.run(end_to_end(Path(directory), kind, count, single=single)))
    return median(rates)


def report_restart(figures: Figures) -> None:
    with TemporaryDirectory(prefix="danube-bench-") as directory:
        catalog = SimCatalog(Random(0))
        acks = uvloop.run(scatter(Path(directory), catalog))
        figures.report("topics: acks out of order that became durable", acks, "acks/s")
        seconds = median(uvloop.run(reopen(Path(directory), catalog)) for _ in range(RUNS))
        figures.report(
            "topics: reopened with a million acks out of order", seconds, "s", REOPEN_SECONDS_MAX, at_least=False
        )


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()
    report_restart(figures)
    for kind in (SubscriptionKind.EXCLUSIVE, SubscriptionKind.FAILOVER):
        rate = measured(kind, MESSAGES_ORDERED, single=False)
        figures.report(f"topics: {kind.name.lower()}, end to end, acked by range", rate, "messages/s")
    for kind in (SubscriptionKind.SHARED, SubscriptionKind.KEY_SHARED):
        rate = measured(kind, MESSAGES_SINGLE, single=True)
        figures.report(f"topics: {kind.name.lower()}, end to end, acked one by one", rate, "messages/s")
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
