"""Ledgers that have lost messages: what is left of them is uploaded, and so is everything behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.door_world import caller
from pydanube.base.durability import Durability
from pydanube.base.errors import EntryMissing, LedgerDamaged
from pydanube.base.ids import LedgerId
from pydanube.broker.topic.topic import Topic
from pydanube.operations.topics import CreateTopic
from pydanube.storage.stream.copies import CopyReader
from pydanube.stream.record import LedgerRecord, LostRange
from pydanube.stream.segments import Segment
from pydanube.wire.batch import Batch
from tier.broker_world import (
    LOCAL_NOTHING,
    TOPIC,
    in_loop,
    numbers,
    opened,
    publish,
    read_all,
    seal,
    tiering_of,
    topic_of,
    work,
)
from tier.objects_world import WorldObjects


def segments_of(topic: Topic) -> list[Segment]:
    return [each for each in topic.ledger.stream.record.cold.entries if isinstance(each, Segment)]


@pytest.mark.parametrize("durability", [Durability.FSYNC, Durability.BUFFERED])
@pytest.mark.parametrize("left", [10, 0])
@in_loop
async def test_a_ledger_that_ends_in_lost_messages_is_uploaded_without_them_and_those_behind_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: int, durability: Durability
) -> None:
    """Accepted damage, or what a power cut took of a buffered ledger; of the ledger only the first `left` remain."""
    async with opened(tmp_path, WorldObjects(), LOCAL_NOTHING) as broker:
        await caller(broker.door).carry_out(CreateTopic(TOPIC, durability=durability.value))
        topic = await topic_of(broker)
        stream = topic.ledger.stream
        await publish(topic, 0, 20)
        await publish(topic, 20, 20)
        await seal(topic)
        lose_end(monkeypatch, stream.record.ledgers[0].id, left, durability)
        if durability is Durability.FSYNC:
            await stream.give_up([LostRange(left, 39)])
        await work(broker, topic)
        assert [each.last for each in segments_of(topic)] == ([left - 1] if left else [])
        for first in (40, 60, 80):
            await publish(topic, first, 20)
            await seal(topic)
            await work(broker, topic)
        assert tiering_of(broker).troubles.listed() == []
        assert stream.record.cold.local_from == 100
        assert sum(each.rows for each in segments_of(topic)) == left + 60
        assert numbers(await read_all(topic)) == [*range(left), *range(40, 100)]
        for offset in range(left, 40):
            assert (await topic.ledger.read(offset))[0].base_offset == 40


def lose_end(monkeypatch: pytest.MonkeyPatch, lost: LedgerId, left: int, durability: Durability) -> None:
    """As a node answers that has only the first `left` offsets of a ledger."""
    reading = CopyReader.read

    async def read(self: CopyReader, ledger: LedgerRecord, offset: int, bytes_max: int) -> list[Batch]:
        if ledger.id != lost:
            return await reading(self, ledger, offset, bytes_max)
        if offset >= left:
            raise EntryMissing("a power cut took it") if durability is Durability.BUFFERED else LedgerDamaged("bad")
        return [batch for batch in await reading(self, ledger, offset, bytes_max) if batch.last_offset < left]

    async def after_gap(self: CopyReader, ledger: LedgerRecord, offset: int) -> int:
        return ledger.last + 1

    monkeypatch.setattr(CopyReader, "read", read)
    monkeypatch.setattr(CopyReader, "after_gap", after_gap)
