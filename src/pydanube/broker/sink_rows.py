"""Rows of a batch that is written exactly once: what is staged, what is there, and when a partition is settled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from pydanube.base.errors import NotReliable, SinkBlocked, TopicBusy, TopicClosed
from pydanube.base.limits import RATE_DEBT_SECONDS_MAX, READ_AHEAD_BYTES, SINK_SETTLE_SECONDS
from pydanube.broker.holds import Opened
from pydanube.broker.topic import Topic
from pydanube.ledger.sinks import Ref
from pydanube.wire.batch import Batch

SETTLING_SECONDS, SETTLING_SECONDS_MAX = 0.001, 0.1  # between looks whether a partition is settled


async def admitted(opened: Opened, staged: Topic, refs: Sequence[Ref]) -> Topic:
    """What a producer would be refused, a job is too, before anything is decided."""
    opened.check_producers()
    if not isinstance(opened.topic, Topic):
        raise NotReliable(f"{opened.name} keeps nothing, so nothing can be written to it exactly once")
    opened.admit(0)
    if opened.policies.message_bytes_max is not None:
        async for batch in staged_batches(staged, refs, 0):
            opened.check_messages(batch)
    return opened.topic


async def slow_down(targets: Sequence[Opened]) -> None:
    """A job is held to publish rates as producers are: it is answered late, and far beyond them refused."""
    waits = [each.pace.wait_seconds for each in targets if each.pace is not None]
    if waits:
        await asyncio.sleep(min(max(waits), RATE_DEBT_SECONDS_MAX))


async def settled(topic: Topic) -> int:
    """Nobody else publishes any more, and all before is confirmed; the offset of the next message."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + SINK_SETTLE_SECONDS
    while topic.reserved:
        if topic.blocked is not None:
            raise SinkBlocked(*topic.blocked.args)
        if loop.time() >= deadline:
            raise TopicBusy(f"{topic.name} is being written by another job")
        await asyncio.sleep(0.01)
    topic.reserved = True
    try:
        async with asyncio.timeout_at(deadline):
            await quiet(topic)
        offset = topic.ledger.stream.next_offset
    except TimeoutError:
        topic.reserve(None)
        raise TopicBusy(f"what others published to {topic.name} is not confirmed yet") from None
    except BaseException:
        topic.reserve(None)
        raise
    topic.reserve(offset)
    return offset


async def quiet(topic: Topic) -> None:
    """Nothing is on its way, and the next offset is certain."""
    pause = SETTLING_SECONDS
    while not topic.settled:
        if topic.closed or topic.lost:
            raise TopicClosed(f"{topic.name} is not served here any more")
        await asyncio.sleep(pause)
        pause = min(2 * pause, SETTLING_SECONDS_MAX)


async def rows_from(topic: Topic, offset: int) -> int:
    """How many rows of a job are there already: nobody else has written from `offset` on."""
    stream, rows = topic.ledger.stream, 0
    while offset <= stream.confirmed:
        for batch in await stream.read(offset, READ_AHEAD_BYTES):
            rows += batch.count
            offset = batch.last_offset + 1
    return rows


async def staged_batches(staged: Topic, refs: Sequence[Ref], skipped: int) -> AsyncIterator[Batch]:
    """What the refs name, in their order, but for the first rows."""
    for ref in refs:
        if skipped >= ref.rows:
            skipped -= ref.rows
            continue
        offset, skipped = ref.first + skipped, 0
        while offset <= ref.last:
            for batch in await staged.ledger.read(offset):
                first = max(offset, batch.base_offset)
                last = min(ref.last, batch.last_offset)
                if first > last:
                    break
                yield batch.slice(first - batch.base_offset, last - first + 1)
                offset = last + 1
