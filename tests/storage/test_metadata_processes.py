"""Three nodes of metadata as processes on this machine, with real disks and links, killed while they are used."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from metadata_node import MetadataNode, Refused, form, leader_of, until_told

KILLS = 10
WRITERS = 6
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


class Writers:
    """Write a key at a time through any node, and remember what they were told is made."""

    def __init__(self, nodes: list[MetadataNode]) -> None:
        self.nodes = nodes
        self.made: dict[str, str] = {}
        self.revision = 0
        self.stopped = False

    async def write(self, writer: int) -> None:
        for number in count():
            if self.stopped:
                return
            key = f"{writer}/{number}"
            try:
                revision = await self.nodes[(writer + number) % len(self.nodes)].ask("put", key, key)
            except Refused:
                await asyncio.sleep(0.01)
            else:
                self.made[key] = key
                self.revision = max(self.revision, revision)

    async def more(self, least: int = 20) -> None:
        """Returns when some more were made."""
        wanted = len(self.made) + least
        for _ in iter(lambda: len(self.made) >= wanted, True):
            await asyncio.sleep(0.01)


async def kill_and_write(directory: Path) -> None:
    nodes = await form(directory)
    writers = Writers(nodes)
    tasks = [asyncio.ensure_future(writers.write(writer)) for writer in range(WRITERS)]
    await writers.more()
    for number in range(KILLS):
        leader = await leader_of(nodes)
        followers = [node for node in nodes if node is not leader]
        victim = leader if number % 2 == 0 else followers[number // 2 % len(followers)]
        await victim.kill()
        await writers.more()  # the others go on without it
        await victim.start()
        await until_told(lambda victim=victim: victim.ask("barrier"))  # type: ignore[misc]
        await writers.more()
    writers.stopped = True
    await asyncio.gather(*tasks)
    last = await until_told(lambda: nodes[0].ask("barrier"))
    for node in nodes:
        await until_told(lambda node=node: node.ask("reach", last))  # type: ignore[misc]
        found = await node.ask("scan", "")
        assert {key: found.get(key) for key in writers.made} == writers.made, "something that was answered is lost"
    while len(chains := {tuple((await node.ask("info"))["chain"]) for node in nodes}) > 1:
        assert len({index for index, _ in chains}) > 1, "the nodes have different logs"
        await asyncio.sleep(0.01)
    for node in nodes:
        await node.kill()


def test_nothing_that_was_answered_is_lost_when_nodes_are_killed(tmp_path: Path) -> None:
    asyncio.run(kill_and_write(tmp_path))
