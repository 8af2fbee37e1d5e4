"""The capability matrix through this face, row by row: four types of subscription, partitioned or not, reliable or not.

Each row has two consumers where its type allows two, one of which leaves in the middle. A reliable row loses nothing
and keeps the order its type promises; one that is not reliable delivers nothing twice and keeps that order too.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from grpc_face.rig import SECONDS, Broker, Consumer, connect, consumer, producer

KEYS = 5
ROUND = 40


class Row:
    """What came, to whom, in which order."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.came: list[tuple[str, Any]] = []
        self._more = asyncio.Event()

    async def take(self, name: str, receiver: Consumer) -> None:
        while True:
            message = await receiver.take()
            self.came.append((name, message))
            self._more.set()
            await receiver.consumer.ack(message)

    async def until(self, count: int) -> None:
        async with asyncio.timeout(SECONDS):
            while len({message.payload for _, message in self.came}) < count:
                await self._more.wait()
                self._more.clear()

    def check_order(self) -> None:
        """Of each consumer, as far as the type promises any."""
        lines: dict[object, list[int]] = defaultdict(list)
        for name, message in self.came:
            if self.kind in ("exclusive", "failover"):
                lines[message.msg_id.topic_name, name].append(int(message.payload))
            elif self.kind == "key_shared":
                lines[message.routing_key].append(int(message.payload))
        for line in lines.values():
            firsts = list(dict.fromkeys(line))  # what was in flight when a consumer left comes again
            assert firsts == sorted(firsts)


def rows() -> Iterator[Any]:
    for reliable in (False, True):
        for partitions in (0, 3):
            for kind in ("exclusive", "failover", "shared", "key_shared"):
                name = f"{'reliable' if reliable else 'best-effort'}-{'partitioned' if partitions else 'plain'}-{kind}"
                yield pytest.param(kind, partitions, reliable, id=name)


@pytest.mark.parametrize(("kind", "partitions", "reliable"), list(rows()))
def test_row_of_the_capability_matrix(broker: Broker, topic: str, kind: str, partitions: int, reliable: bool) -> None:
    row = Row(kind)

    async def send(sender: Any, first: int) -> None:
        for number in range(first, first + ROUND):
            await sender.send_with_key(b"%d" % number, None, f"k{number % KEYS}")

    async def run() -> None:
        client = await connect(broker.url)
        sender = await producer(client, topic, reliable=reliable, partitions=partitions)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(consumer(client, topic, kind, "first"))
            taking = {"first": asyncio.create_task(row.take("first", first))}
            if kind != "exclusive":
                second = await stack.enter_async_context(consumer(client, topic, kind, "second"))
                taking["second"] = asyncio.create_task(row.take("second", second))
            await send(sender, 0)
            await row.until(ROUND)
            row.check_order()
            if kind != "exclusive":
                taking.pop("first").cancel()
                await first.consumer.close()
            await send(sender, ROUND)
            await row.until(2 * ROUND)
            row.check_order()
            for task in taking.values():
                task.cancel()

    asyncio.run(run())
    payloads = [message.payload for _, message in row.came]
    assert set(payloads) == {b"%d" % number for number in range(2 * ROUND)}
    if not reliable:
        assert len(payloads) == 2 * ROUND, "something came twice"
