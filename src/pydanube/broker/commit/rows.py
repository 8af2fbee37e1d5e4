"""Rows of a batch that is written exactly once: which are staged, which are already written, and where they begin.

A job's batches have no producer, and number their rows from 1 in the field for sequences. This distinguishes them from
what others publish in between.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import AsyncIterator, Iterable, Sequence

from pydanube.base.errors import SinkBlocked, SinkExpired, TopicBusy, TopicClosed
from pydanube.base.limits import RATE_DEBT_SECONDS_MAX, READ_AHEAD_BYTES, SINK_SETTLE_SECONDS
from pydanube.base.retry import Backoff
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.topic.topic import Topic
from pydanube.topic.sinks import Ref
from pydanube.wire.batch import Batch

CERTAIN = Backoff(0.001, 0.1)  # between checks whether the end of a partition is known


async def admitted(opened: OpenTopic, staged: Topic, refs: Sequence[Ref]) -> Topic:
    """Refuses whatever a producer would be refused, before anything is decided."""
    opened.check_producers()
    topic = opened.topic.as_reliable("is not reliable, so it cannot be written exactly once")
    opened.admit(0)
    if opened.policies.message_bytes_max is not None:
        async for batch in staged_batches(staged, refs, 0):
            opened.check_messages(batch)
            await asyncio.sleep(0)  # lets other tasks run: reading batches from memory does not pause
    return topic


async def slow_down(targets: Sequence[OpenTopic]) -> None:
    """Holds a job to publish rates, like a producer: it is answered late, and refused far beyond the rate."""
    waits = [each.pace.wait_seconds for each in targets if each.pace is not None]
    if waits:
        await asyncio.sleep(min(max(waits), RATE_DEBT_SECONDS_MAX))


async def begin_rows(topic: Topic) -> int:
    """Reserves the topic, and returns the offset where the rows begin. From now on no other job writes to it, and
    nothing from that offset on is visible. Everything below it is confirmed and stays, whatever happens to what others
    are publishing.
    """
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
            await certain(topic)
        offset = topic.ledger.written_end
    except TimeoutError:
        topic.reserve(None)
        raise TopicBusy(f"the end of {topic.name} is not known yet") from None
    except BaseException:
        topic.reserve(None)
        raise
    topic.reserve(offset)
    return offset


async def certain(topic: Topic) -> None:
    """Waits until it is known which of the failed writes have happened."""
    pauses = iter(CERTAIN)
    while not topic.certain:
        if topic.closed or topic.lost:
            raise TopicClosed(f"this broker no longer serves {topic.name}")
        await asyncio.sleep(next(pauses))


async def rows_from(topic: Topic, offset: int) -> int:
    """How many rows of a job are already written. No other job has written from `offset` on."""
    stream, rows = topic.ledger.stream, 0
    while (offset := stream.past_lost(offset)) <= stream.confirmed:
        for batch in await stream.read(offset, READ_AHEAD_BYTES):
            if not batch.producer_id and batch.first_sequence:
                rows = batch.first_sequence - 1 + batch.count
            offset = batch.last_offset + 1
    return rows


async def landed(under_way: Iterable[Future[None]]) -> None:
    """Waits until every write has succeeded or failed."""
    await asyncio.gather(*under_way, return_exceptions=True)


def numbered(batch: Batch, rows: int) -> Batch:
    """The job's next batch, after `rows` rows."""
    return batch.anonymous(rows + 1)


async def staged_batches(staged: Topic, refs: Sequence[Ref], skipped: int) -> AsyncIterator[Batch]:
    """The staged batches that the refs name, in order, without the first `skipped` rows."""
    for ref in refs:
        if skipped >= ref.rows:
            skipped -= ref.rows
            continue
        offset, skipped = ref.first + skipped, 0
        while offset <= ref.last:
            for batch in await staged.ledger.read(offset):
                if offset > ref.last:
                    break
                if batch.base_offset > offset:  # a part was lost to damage: the rest is not the batch that was staged
                    raise SinkExpired(f"offset {offset} of {staged.name} is lost")
                last = min(ref.last, batch.last_offset)
                yield batch.slice(offset - batch.base_offset, last - offset + 1)
                offset = last + 1
