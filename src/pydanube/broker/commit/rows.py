"""Rows of a batch that is written exactly once: whether they are accepted, and how they are read and numbered.

A job's batches have no producer, and number their rows from 1 in the field for sequences. This distinguishes them from
what others publish in between.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from pydanube.base.errors import SinkBlocked, SinkExpired
from pydanube.base.limits import RATE_DEBT_SECONDS_MAX
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.topic.topic import Topic
from pydanube.topic.sinks import Ref
from pydanube.wire.batch import Batch


async def admit(opened: OpenTopic, staged: Topic, refs: Sequence[Ref]) -> None:
    """Refuses whatever a producer would be refused, before anything is decided."""
    opened.check_producers()
    topic = opened.topic.as_reliable("is not reliable, so it cannot be written exactly once")
    if topic.filler.blocked is not None:
        raise SinkBlocked(*topic.filler.blocked.args)
    opened.admit(0)
    if opened.policies.message_bytes_max is not None:
        async for batch in staged_batches(staged, refs, 0):
            opened.check_messages(batch)
            await asyncio.sleep(0)  # lets other tasks run: reading batches from memory does not pause


async def slow_down(targets: Sequence[OpenTopic]) -> None:
    """Holds a job to publish rates, like a producer: it is answered late, and refused far beyond the rate."""
    waits = [each.pace.wait_seconds for each in targets if each.pace is not None]
    if waits:
        await asyncio.sleep(min(max(waits), RATE_DEBT_SECONDS_MAX))


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
