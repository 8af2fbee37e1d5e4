"""The capability matrix, row by row: four types of subscription, partitioned or not, reliable or not.

Each row goes through a connection that breaks and a broker that is killed with -9, with a real broker process behind a
door that can be shut. A reliable row loses nothing, delivers nothing again whose ack was confirmed, and keeps the order
its type promises; one that is not reliable delivers nothing twice and keeps that order too.
"""

from __future__ import annotations

import asyncio
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import pydanube
from api.broker_process import BrokerProcess
from client.broker import Door
from pydanube.api.server import Server
from pydanube.base.errors import NothingReceived

KINDS = ("exclusive", "failover", "shared", "key_shared")
KEYS = 5
ROUND = 60


@dataclass
class Row:
    """One row of the matrix at work: what was sent, and what came of it in which order."""

    kind: str
    topic: str
    reliable: bool
    sent: int = 0
    came: list[tuple[int | None, str, int, int]] = field(default_factory=list)  # partition, key, number, offset
    since: int = 0  # where in `came` the present connection begins
    acked: set[int] = field(default_factory=set)  # numbers whose ack was confirmed

    async def send(self, producer: pydanube.Producer, count: int = ROUND) -> None:
        sending = []
        for _ in range(count):
            sending.append(producer.send(b"%d" % self.sent, key=f"k{self.sent % KEYS}"))
            self.sent += 1
        errors = []
        for sent in sending:  # each of them, so that closing has no failure to tell that nobody heard of
            try:
                await sent
            except pydanube.DanubeError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    async def take(self, consumer: pydanube.Consumer, timeout: float = 10.0) -> None:  # noqa: ASYNC109
        """One message, noted and acknowledged, and the ack known to be durable."""
        message = await consumer.receive(timeout=timeout)
        number = int(message.payload or b"")
        assert number not in self.acked, f"{number} came again although its ack was confirmed"
        self.came.append((message.partition, message.key or "", number, message.offset))
        await consumer.ack(message)
        if self.reliable:
            self.acked.add(number)

    def check_order(self) -> None:
        """Of what came over one connection, as far as the type promises any."""
        lines: dict[object, list[int]] = defaultdict(list)
        for partition, key, _, offset in self.came[self.since :]:
            if self.kind in ("exclusive", "failover"):
                lines[partition].append(offset)
            elif self.kind == "key_shared":
                lines[partition, key].append(offset)
        for line in lines.values():
            assert line == sorted(line)
            assert len(set(line)) == len(line)
        self.since = len(self.came)


class Broker:
    """A real process behind a door; it comes back after a kill at another port, and the door knows."""

    def __init__(self, directory: Path) -> None:
        self.process = BrokerProcess(directory)
        self._place = SimpleNamespace(address=("", 0))
        self.door = Door(cast(Server, self._place))

    async def start(self) -> None:
        self._place.address = await self.process.start()

    def kill(self) -> None:
        self.process.end(signal.SIGKILL)
        self.door.cut()


@asynccontextmanager
async def opened(directory: Path, row: Row, partitions: int) -> AsyncIterator[Any]:
    broker = Broker(directory)
    await broker.start()
    await broker.door.start()
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(pydanube.connect(broker.door.url))
            await client.admin.create_topic(row.topic, partitions=partitions, reliable=row.reliable)
            consumers = []
            for number in range(1 if row.kind == "exclusive" else 2):
                consumer = client.consumer(
                    row.topic,
                    subscription="matrix",
                    type=row.kind,
                    name=f"c{number}",
                    start="earliest" if row.reliable else "latest",
                    reliable=row.reliable,
                )
                consumers.append(await stack.enter_async_context(consumer))
            producer = await stack.enter_async_context(client.producer(row.topic, reliable=row.reliable))
            yield broker, producer, consumers
    finally:
        broker.process.end(signal.SIGKILL)
        await broker.door.stop()


async def take_all(row: Row, consumers: list[pydanube.Consumer], numbers: set[int]) -> None:
    """Until each of these has come, to any of the consumers."""

    async def drain(consumer: pydanube.Consumer) -> None:
        while not numbers <= {number for _, _, number, _ in row.came}:
            try:
                await row.take(consumer, timeout=0.2)
            except NothingReceived:
                continue

    async with asyncio.timeout(30):
        await asyncio.gather(*map(drain, consumers))


async def reliable_row(directory: Path, row: Row, partitions: int) -> None:
    async with opened(directory, row, partitions) as (broker, producer, consumers):
        await row.send(producer)
        for _ in range(ROUND // 3):
            await row.take(consumers[0])
        row.check_order()

        broker.door.cut()
        await row.send(producer)
        await take_all(row, consumers, set(range(ROUND)))
        row.check_order()

        broker.kill()
        sending = asyncio.create_task(row.send(producer))
        await broker.start()
        await sending
        await take_all(row, consumers, set(range(3 * ROUND)))
        row.check_order()
        firsts = {number: key for _, key, number, _ in row.came}
        assert firsts == {number: f"k{number % KEYS}" for number in range(3 * ROUND)}


async def until_heard(row: Row, producer: pydanube.Producer, consumers: list[pydanube.Consumer]) -> None:
    """After a break: what is sent meanwhile may be lost, until one comes."""
    before = len(row.came)
    async with asyncio.timeout(30):
        while len(row.came) == before:
            try:
                await row.send(producer, 2 * KEYS)
            except pydanube.DanubeError:
                await asyncio.sleep(0.05)
                continue
            for consumer in consumers:
                try:
                    while True:
                        await row.take(consumer, timeout=0.1)
                except NothingReceived:
                    continue


async def best_effort_row(directory: Path, row: Row, partitions: int) -> None:
    async with opened(directory, row, partitions) as (broker, producer, consumers):
        await until_heard(row, producer, consumers)
        start = row.sent
        await row.send(producer)
        await take_all(row, consumers, set(range(start, row.sent)))
        row.check_order()
        for breaks in ("connection", "broker"):
            if breaks == "connection":
                broker.door.cut()
            else:
                broker.kill()
                await broker.start()
            await until_heard(row, producer, consumers)
            row.check_order()
        numbers = [number for _, _, number, _ in row.came]
        assert len(set(numbers)) == len(numbers), "something came twice"


def rows() -> Iterator[Any]:
    for reliable in (False, True):
        for partitions in (0, 3):
            for kind in KINDS:
                name = f"{'reliable' if reliable else 'best-effort'}-{'partitioned' if partitions else 'plain'}-{kind}"
                yield pytest.param(kind, partitions, reliable, id=name)


@pytest.mark.parametrize(("kind", "partitions", "reliable"), list(rows()))
def test_row_of_the_capability_matrix(tmp_path: Path, kind: str, partitions: int, reliable: bool) -> None:
    row = Row(kind, "/default/matrix", reliable)
    scenario = reliable_row if reliable else best_effort_row
    asyncio.run(scenario(tmp_path, row, partitions))
