"""Messages that age from ledgers into segments: nothing is lost, doubled or skipped on the way, whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from broker.door_world import caller
from pydanube.base import limits
from pydanube.base.errors import ConfigInvalid, ObjectsFailed, ObjectsRefused, SegmentDamaged, SegmentMissing
from pydanube.broker.cold.claim import MARK
from pydanube.broker.standalone import Broker
from pydanube.operations.topics import DeleteTopic
from pydanube.stream import cold
from pydanube.stream.segments import segment_key
from pydanube.tier import direct
from pydanube.wire.batch import build
from tier.broker_world import (
    AT_ONCE,
    LOCAL_NOTHING,
    PLACE,
    TOPIC,
    in_loop,
    numbers,
    opened,
    publish,
    read_all,
    seal,
    settings_of,
    tiering_of,
    topic_of,
    work,
)
from tier.objects_world import Fault, WorldObjects

pytestmark = pytest.mark.slow  # brokers that upload for a while


@in_loop
async def test_what_is_sealed_is_uploaded_and_stays_readable_when_the_local_copy_is_gone(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 100)
        before = await read_all(topic)
        await seal(topic)
        await publish(topic, 100, 20)
        await work(broker, topic)
        record = topic.ledger.stream.record
        assert record.cold.local_from == 100
        assert [ledger.first for ledger in record.ledgers if not record.is_dead(ledger)] == [100]
        after = await read_all(topic)
        assert after[:100] == before
        assert numbers(after) == list(range(120))
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        assert numbers(await read_all(await topic_of(broker))) == list(range(120))


@in_loop
async def test_small_ledgers_go_together_and_a_large_one_alone(tmp_path: Path) -> None:
    objects = WorldObjects()
    patient = replace(AT_ONCE, lag_seconds=3600.0, segment_bytes=32 * 1024)
    async with opened(tmp_path, objects, patient) as broker:
        topic = await topic_of(broker)
        for part in range(4):
            await publish(topic, part * 10, 10)
            await seal(topic)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.end == 0, "they wait for others, or for their age"
        await publish(topic, 40, 400)
        await seal(topic)
        await work(broker, topic)
        first = topic.ledger.stream.record.cold.segments[0]
        assert (first.first, first.rows) == (0, first.last + 1)
        assert first.last > 39
        await tiering_of(broker).upload(topic)
        assert topic.ledger.stream.record.cold.end == 440
        assert numbers(await read_all(topic)) == list(range(440))


@in_loop
async def test_a_plan_that_no_segment_can_hold_becomes_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as one that was recorded when ledgers were thought to be smaller than they are."""
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 100)
        await seal(topic)
        monkeypatch.setattr(direct, "SEGMENT_BATCHES_BYTES_MAX", 5_000)
        await work(broker, topic)
        record = topic.ledger.stream.record
        assert record.cold.end == record.cold.local_from == 100
        assert len(record.cold.segments) > 2
        assert all(segment.bytes <= 5_000 for segment in record.cold.segments)
        assert not tiering_of(broker).troubles.of(topic.ledger.stream.name)
        await work(broker, topic)
        keys = {segment_key(topic.ledger.stream.name, each.plan) for each in record.cold.segments}
        assert {key for key in objects.objects if key.endswith(".parquet")} == keys, "nothing is left of the plan"
        assert numbers(await read_all(topic)) == list(range(100))
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        assert numbers(await read_all(await topic_of(broker))) == list(range(100))


@in_loop
async def test_a_batch_that_no_segment_can_hold_stays_where_it_is_and_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path, WorldObjects(), LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 20)
        await publish(topic, 20, 10, size=2_000)
        await seal(topic)
        monkeypatch.setattr(direct, "SEGMENT_BATCHES_BYTES_MAX", 5_000)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.end == 20, "what lies before it is uploaded"
        assert tiering_of(broker).troubles.of(topic.ledger.stream.name)
        assert numbers(await read_all(topic)) == list(range(30))


@in_loop
async def test_switched_on_for_a_directory_that_is_there_it_uploads_what_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path, None) as broker:
        await publish(await topic_of(broker), 0, 50)
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.end == 50


@in_loop
async def test_switched_off_while_messages_lie_there_it_does_not_start(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 50)
        await tiering_of(broker).upload(topic)
    with pytest.raises(ConfigInvalid, match=r"storage\.objects\.url is not set"):
        await Broker(settings_of(tmp_path, None)).open()
    async with opened(tmp_path, objects) as broker:
        assert numbers(await read_all(await topic_of(broker))) == list(range(50))


@pytest.mark.parametrize("fault", [Fault.FAILS, Fault.FAILS_AFTER])
@pytest.mark.parametrize("operation", ["create", "read"])
@in_loop
async def test_an_upload_that_failed_is_repeated_and_makes_one_object(
    tmp_path: Path, operation: str, fault: Fault
) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await seal(topic)
        objects.faults[operation] = [fault]
        await work(broker, topic)
        assert tiering_of(broker).troubles.of(topic.ledger.stream.name)
        assert topic.ledger.stream.record.cold.end == 0
        assert numbers(await read_all(topic)) == list(range(30))
        await tiering_of(broker).upload(topic)
        segments = [key for key in objects.objects if key.endswith(".parquet")]
        assert len(segments) == 1
        assert topic.ledger.stream.record.cold.end == 30


@in_loop
async def test_the_next_owner_goes_on_with_a_plan(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await seal(topic)
        objects.faults["create"] = [Fault.FAILS_AFTER]
        await work(broker, topic)
        plan = topic.ledger.stream.record.cold.planned
        assert plan is not None
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 30, 30)
        await tiering_of(broker).upload(topic)
        segments = topic.ledger.stream.record.cold.segments
        assert segments[0].plan == plan
        assert segments[-1].last == 59
        assert numbers(await read_all(topic)) == list(range(60))


@in_loop
async def test_a_lost_object_is_written_again_while_there_is_a_local_copy(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        [key] = objects.objects
        data = objects.objects.pop(key)
        object.__setattr__(tiering_of(broker).tier, "settings", LOCAL_NOTHING)
        await work(broker, topic)
        assert objects.objects[key] == data
        assert topic.ledger.stream.record.cold.local_from == 30
        assert numbers(await read_all(topic)) == list(range(30))


@in_loop
async def test_a_damaged_object_never_costs_the_local_copy_and_is_named(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        [key] = objects.objects
        sound = objects.objects[key]
        objects.objects[key] = sound[:100] + bytes([sound[100] ^ 1]) + sound[101:]
        object.__setattr__(tiering_of(broker).tier, "settings", LOCAL_NOTHING)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.local_from == 0
        assert key in tiering_of(broker).troubles.of(topic.ledger.stream.name)[0]
        assert numbers(await read_all(topic)) == list(range(30))


@in_loop
async def test_a_lost_or_damaged_object_is_reported_by_name_and_nothing_is_skipped_or_deleted(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        await publish(topic, 30, 30)
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        first = topic.ledger.stream.record.cold.segments[0]
        key = segment_key(topic.ledger.stream.name, first.plan)
        sound = objects.objects.pop(key)
        with pytest.raises(SegmentMissing, match=key):
            await topic.ledger.read(0)
        await work(broker, topic)
        await topic.tick()
        assert topic.ledger.first == 0
        assert len(topic.ledger.stream.record.cold.segments) == 2
        objects.objects[key] = sound[:-20] + bytes(20)
        with pytest.raises(SegmentDamaged, match=key):
            await topic.ledger.read(0)
        objects.objects[key] = sound
        assert numbers(await read_all(topic)) == list(range(60))


@in_loop
async def test_what_retention_or_a_truncation_ends_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        other = await topic_of(broker, "/default/other")
        for each in (topic, other):
            for part in range(3):
                await publish(each, part * 10, 10)
                await tiering_of(broker).upload(each)
            await work(broker, each)
        objects.objects["t1/mine.txt"] = b"not the broker's"
        await topic.truncate(15)
        await work(broker, topic)
        assert topic.ledger.first == 15
        assert numbers(await read_all(topic)) == list(range(15, 30))
        kept = [key for key in objects.objects if key.startswith("t1/_segments")]
        assert len(kept) == 2, "the one that holds 15 to 19 is needed"
        await topic.truncate()
        await work(broker, topic)
        assert [key for key in objects.objects if key.startswith("t1/")] == ["t1/mine.txt"]
        assert topic.ledger.stream.record.cold.entries == ()
        await publish(topic, 30, 5)
        assert numbers(await read_all(topic)) == list(range(30, 35))
        assert numbers(await read_all(other)) == list(range(30))


@in_loop
async def test_a_reader_below_what_was_truncated_goes_on_behind_it_when_no_segment_is_left(tmp_path: Path) -> None:
    async with opened(tmp_path, WorldObjects(), LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 10)
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        await topic.truncate(10)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.entries == ()
        await publish(topic, 10, 5)
        batches = await topic.ledger.stream.read(3, 1_000_000)
        assert batches[0].base_offset == 10


@in_loop
async def test_a_deleted_topic_takes_its_objects_along_and_no_others(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        for name in (TOPIC, "/default/other"):
            topic = await topic_of(broker, name)
            await publish(topic, 0, 30)
            await tiering_of(broker).upload(topic)
        objects.objects["t1/mine.txt"] = b"not the broker's"
        before = set(objects.objects)
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        gone = before - set(objects.objects)
        assert len(gone) == 1
        assert numbers(await read_all(await topic_of(broker, "/default/other"))) == list(range(30))


@in_loop
async def test_a_deletion_does_not_wait_for_object_storage_that_fails_and_ends_later(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        objects.faults["delete"] = [Fault.FAILS]
        await caller(broker.door).carry_out(DeleteTopic(TOPIC))
        assert [key for key in objects.objects if key.endswith(".parquet")]
        await broker.door.leftovers.sweep()
        assert not [key for key in objects.objects if key.endswith(".parquet")]


@in_loop
async def test_a_plan_of_what_was_truncated_meanwhile_is_given_up(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await seal(topic)
        objects.faults["create"] = [Fault.FAILS_AFTER]
        await work(broker, topic)
        await topic.truncate()
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        assert not [key for key in objects.objects if key.endswith(".parquet")]
        record = topic.ledger.stream.record
        assert (record.cold.planned, record.cold.doomed) == (None, ())


@in_loop
async def test_long_lists_of_segments_become_objects_and_can_be_trimmed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "SEGMENTS_LISTED_MAX", 4)
    assert limits.SEGMENTS_LISTED_MAX > 4
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        for part in range(40):
            await publish(topic, part * 5, 5)
            await tiering_of(broker).upload(topic)
            await work(broker, topic)
        record = topic.ledger.stream.record
        assert max(index.level for index in record.cold.indexes) >= 3
        assert len(record.cold.entries) <= 4 * 5
        assert numbers(await read_all(topic)) == list(range(200))
        parts = await broker.door.tiers.parts(topic)
        assert [part.first for part in parts] == list(range(0, 200, 5))
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        assert numbers(await read_all(topic)) == list(range(200))
        await topic.truncate(103)
        for _ in range(5):
            await work(broker, topic)
        assert numbers(await read_all(topic)) == list(range(103, 200))
        listed = {part.id for part in await broker.door.tiers.parts(topic)}
        there = {key for key in objects.objects if key.endswith(".parquet")}
        assert there == listed
        await topic.truncate()
        for _ in range(5):
            await work(broker, topic)
        assert set(objects.objects) == set()


@in_loop
async def test_a_local_copy_that_is_damaged_is_served_from_its_segment(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        ledger = topic.ledger.stream.record.ledgers[0]
        await broker._node.delete(ledger.id)
        assert numbers(await read_all(topic)) == list(range(30))


@in_loop
async def test_a_truncation_within_a_ledger_is_not_undone_by_uploading_it(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await topic.truncate(13)
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        [segment] = topic.ledger.stream.record.cold.segments
        assert (segment.first, segment.rows) == (13, 17)
        assert numbers(await read_all(topic)) == list(range(13, 30))


# -- whose place it is -------------------------------------------------------------------------------------------------


async def claimed(path: Path, objects: WorldObjects) -> None:
    async with opened(path, objects) as broker:
        claim = tiering_of(broker)._claim
        assert claim is not None
        await claim()


@in_loop
async def test_a_place_belongs_to_one_broker(tmp_path: Path) -> None:
    objects = WorldObjects()
    await claimed(tmp_path / "a", objects)
    await claimed(tmp_path / "a", objects)
    assert json.loads(objects.objects[MARK])["broker"]
    with pytest.raises(ObjectsRefused, match="another broker"):
        await claimed(tmp_path / "b", objects)
    await claimed(tmp_path / "b", WorldObjects())
    with pytest.raises(ObjectsRefused, match="another broker"):
        await claimed(tmp_path / "b", objects)


@in_loop
async def test_a_place_without_the_mark_is_not_where_the_segments_are(tmp_path: Path) -> None:
    objects = WorldObjects()
    await claimed(tmp_path, objects)
    async with opened(tmp_path, objects) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
    with pytest.raises(ObjectsRefused, match="mounted"):
        await claimed(tmp_path, WorldObjects())
    await claimed(tmp_path, objects)


@pytest.mark.parametrize("mark", [None, b'{"broker": "another"}'])
@in_loop
async def test_a_place_that_is_replaced_under_a_running_broker_gets_nothing_and_costs_no_copy(
    tmp_path: Path, mark: bytes | None
) -> None:
    """A folder is unmounted, or another bucket has the name now."""
    objects = WorldObjects()
    await claimed(tmp_path, objects)
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        tiering, topic = tiering_of(broker), await topic_of(broker)
        assert tiering._claim is not None
        await tiering._claim()
        tiering.claimed = True
        await publish(topic, 0, 30)
        await tiering.upload(topic)
        there, objects.objects = objects.objects, {} if mark is None else {MARK: mark}
        await publish(topic, 30, 30)
        with pytest.raises(ObjectsRefused):
            await tiering.upload(topic)
        await work(broker, topic)
        assert set(objects.objects) <= {MARK}
        record = topic.ledger.stream.record
        assert (record.cold.end, record.cold.local_from) == (30, 0)
        assert tiering.troubles.of("object storage")
        objects.objects = there
        await tiering.upload(topic)
        for _ in range(200):
            await work(broker, topic)
            if topic.ledger.stream.record.cold.local_from == 60:
                break
            await asyncio.sleep(0.02)  # until the next attempt is due
        assert topic.ledger.stream.record.cold.local_from == 60
        assert tiering.troubles.of("object storage") == []
        assert numbers(await read_all(topic)) == list(range(60))


@in_loop
async def test_a_claim_that_was_cut_short_is_finished(tmp_path: Path) -> None:
    objects = WorldObjects()
    objects.faults["create"] = [Fault.FAILS]
    with pytest.raises(ObjectsFailed):
        await claimed(tmp_path, objects)
    await claimed(tmp_path, objects)
    assert MARK in objects.objects


@in_loop
async def test_memory_forgets_so_nothing_is_kept_there_alone(tmp_path: Path) -> None:
    place = replace(PLACE, scheme="memory")
    async with opened(tmp_path, WorldObjects(), LOCAL_NOTHING, place) as broker:
        topic = await topic_of(broker)
        await publish(topic, 0, 30)
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        assert topic.ledger.stream.record.cold.local_from == 0
        assert tiering_of(broker)._claim is None
    async with opened(tmp_path, WorldObjects(), LOCAL_NOTHING, place) as broker:
        assert numbers(await read_all(await topic_of(broker))) == list(range(30))


@in_loop
async def test_a_list_that_is_folded_again_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deletion of the old one may be late, and must not take the new one."""
    monkeypatch.setattr(cold, "SEGMENTS_LISTED_MAX", 4)
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        for part in range(5):
            await publish(topic, part * 5, 5)
            await tiering_of(broker).upload(topic)
            await work(broker, topic)
        stream = topic.ledger.stream
        [index] = stream.record.cold.indexes
        await tiering_of(broker)._unfold(stream)
        again, _ = cold.make_index(stream.record.cold.entries[:2], stream.record.cold.unfolds)
        assert (again.first, again.last) == (index.first, index.last)
        assert cold.index_key(stream.name, again) != cold.index_key(stream.name, index)


@in_loop
async def test_a_limit_within_a_segment_does_not_unfold_its_list_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold, "SEGMENTS_LISTED_MAX", 4)
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        for part in range(6):
            await publish(topic, part * 5, 5)
            await tiering_of(broker).upload(topic)
            await work(broker, topic)
        await topic.truncate(2)
        for _ in range(3):
            await work(broker, topic)
        assert topic.ledger.stream.record.cold.indexes
        created = objects.calls["create"]
        for _ in range(5):
            await work(broker, topic)
        assert objects.calls["create"] == created
        assert numbers(await read_all(topic)) == list(range(2, 30))


@in_loop
async def test_what_a_restart_reads_again_has_a_local_copy(tmp_path: Path) -> None:
    objects = WorldObjects()
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        topic = await topic_of(broker)
        session = await topic.attach("p")
        batch = build([b"0/"] * 10, publish_time=1, producer_id=session.producer)
        await topic.publish(batch, session.epoch).confirmed
        assert topic.state.needed_from() is not None
        await tiering_of(broker).upload(topic)
        await work(broker, topic)
        needed = topic.state.needed_from()
        assert needed is None or needed >= topic.ledger.stream.record.cold.local_from
        for _ in range(200):
            await work(broker, topic)
            if topic.ledger.stream.record.cold.local_from == 10:
                break
            await asyncio.sleep(0.01)
        assert topic.ledger.stream.record.cold.local_from == 10
    objects.faults["read"] = [Fault.FAILS] * 1_000
    async with opened(tmp_path, objects, LOCAL_NOTHING) as broker:
        again = await topic_of(broker)
        known = again.state.producers.find("p")
        assert known is not None
        assert known.next_sequence == 10
