"""A job that writes exactly once, as a test drives it: it stages rows, decides, and asks for the commit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from broker.door_world import served
from pydanube.access.principals import ANONYMOUS
from pydanube.broker.standalone import Broker
from pydanube.topic.sinks import Once, SinkKey, SinkRequest, Verdict
from pydanube.wire.batch import Batch, build
from tier.broker_world import opened, read_all, topic_of

TOPIC, OTHER = "/default/out", "/default/other"
KEY = SinkKey("query", TOPIC)


class Crash(Exception):
    pass


def message(payload: str, producer: int = 0, sequence: int = 0) -> Batch:
    return build([payload.encode()], publish_time=1, producer_id=producer, first_sequence=sequence)


class Job:
    """A run of a query: stages rows in several batches, then asks for the commit."""

    def __init__(self, broker: Broker, run: str = "run-1", key: SinkKey = KEY) -> None:
        self._door = broker.door
        self._run = run
        self._key = key

    async def stage(self, rows: Sequence[str]) -> list[list[int]]:
        name, _ = await self._door.sinks.begin(self._key)
        staged = (await served(self._door, name)).reliable
        refs = []
        for at in range(0, len(rows), 3):
            payloads = [row.encode() for row in rows[at : at + 3]]
            receipt = staged.publish(build(payloads, publish_time=1))
            await receipt.confirmed
            refs.append([receipt.offset, receipt.offset + len(payloads) - 1])
        return refs

    async def decide(self, parts: Mapping[str, list[list[int]]]) -> int:
        name, _ = await self._door.sinks.begin(self._key)
        staged = (await served(self._door, name)).reliable
        receipt = staged.publish(build([json.dumps({"parts": parts}).encode()], publish_time=1))
        await receipt.confirmed
        return receipt.offset

    async def write(
        self, batch: int, rows: Mapping[str, Sequence[str]], source: str = "", once: Once = Once.STREAM
    ) -> Verdict:
        decision = await self.decide({place: await self.stage(each) for place, each in rows.items()})
        return await self.commit(batch, decision, source, once)

    async def commit(self, batch: int, decision: int, source: str = "", once: Once = Once.STREAM) -> Verdict:
        request = SinkRequest(once, self._run, batch, source, decision)
        return await self._door.sinks.commit(ANONYMOUS, self._key, request)


def rows_of(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


async def seen(broker: Broker, topic: str = TOPIC) -> list[str]:
    return [(row.payload or b"").decode() for row in await read_all(await topic_of(broker, topic))]


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[Broker]:
    """As a process starts: what was decided goes on by itself."""
    async with opened(path, None) as broker:
        broker.door.reopen()
        yield broker
