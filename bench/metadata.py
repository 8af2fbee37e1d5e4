"""What three nodes of metadata do on one machine, each in a process of its own: transactions, elections, catching up.

Run `python bench/metadata.py`. Transactions are made by the leader's own process, then by that of a follower, with 200
bytes each. Latencies are printed beside an echo between two processes and one fdatasync of the same disk.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

from figures import Figures
from probes import Probes, probing

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from metadata_node import MetadataNode, form, leader_of, until_told

RUNS = 5
KILLS = 20
MANY, FEW = 20_000, 1_500  # transactions of one run, with 64 in flight and with one
AWAY = 100_000  # transactions that a follower misses


async def middle(node: MetadataNode, count: int, in_flight: int) -> float:
    """Transactions in a second: the median of several runs."""
    return count / median([await node.ask("load", count, in_flight) for _ in range(RUNS)])


async def transactions(figures: Figures, probes: Probes, nodes: list[MetadataNode]) -> None:
    leader = await leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)
    figures.report("transactions by the leader, 64 in flight", await middle(leader, MANY, 64), "1/s", 10_000)
    figures.report("transactions by a follower, 64 in flight", await middle(follower, MANY, 64), "1/s")
    for name, node, goal in (("leader", leader, 800), ("follower", follower, None)):
        probes = probes.fresh()
        probes.take()
        rate = await middle(node, FEW, 1)
        probes.take()
        figures.report(f"transactions by the {name}, one in flight", rate, "1/s", goal)
        figures.latency(f"one transaction by the {name}", 1 / rate, probes, durable=True)


async def elections(figures: Figures, nodes: list[MetadataNode]) -> None:
    """From the kill of a leader to the first transaction of a survivor."""
    times = []
    for number in range(KILLS):
        leader = await leader_of(nodes)
        survivor = next(node for node in nodes if node is not leader)
        begun = perf_counter()
        await leader.kill()
        await until_told(lambda number=number, survivor=survivor: survivor.ask("put", "killed", f"{number}"))
        times.append(perf_counter() - begun)
        await leader.start()
        await until_told(lambda leader=leader: leader.ask("barrier"))
    figures.report(f"a new leader after a kill, median of {KILLS}", median(times), "s", 0.6, at_least=False)
    figures.report(f"a new leader after a kill, longest of {KILLS}", max(times), "s", 1.5, at_least=False)


async def catching_up(figures: Figures, nodes: list[MetadataNode]) -> None:
    leader = await leader_of(nodes)
    follower = next(node for node in nodes if node is not leader)
    await follower.kill()
    for _ in range(10):
        await leader.ask("load", AWAY // 10, 64)
    last = await leader.ask("barrier")
    begun = perf_counter()
    await follower.start()
    started = perf_counter()
    await until_told(lambda: follower.ask("reach", last))
    figures.report(f"a follower that missed {AWAY:,}: its process starts", started - begun, "s")
    figures.report(f"a follower that missed {AWAY:,}: it has them", perf_counter() - started, "s", 3, at_least=False)


async def measure(directory: Path, probes: Probes) -> None:
    figures = Figures()
    nodes = await form(directory)
    try:
        await transactions(figures, probes, nodes)
        await elections(figures, nodes)
        await catching_up(figures, nodes)
    finally:
        for node in nodes:
            await node.kill()
    figures.table()


if __name__ == "__main__":
    where = tempfile.TemporaryDirectory(prefix="danube-bench-", dir=os.environ.get("BENCH_DIR"))
    with where as made, probing(Path(made)) as probes:
        asyncio.run(measure(Path(made), probes))
