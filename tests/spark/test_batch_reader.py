"""A batch read is exactly what its offsets say, as it was when it was planned."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructType

import pydanube
import pydanube.sync
from certificates import Authority
from pydanube.api.server import Server, StandaloneSettings
from pydanube.base.errors import (
    ColumnInvalid,
    ConnectionLost,
    DataLost,
    NotReliable,
    OptionInvalid,
    TlsFailed,
    TopicNotFound,
    TopicReplaced,
)
from pydanube.spark.broker_link import close_links
from pydanube.spark.source import DanubeSource
from pydanube.testing.broker import broker_beside
from spark.world import Query, Readers, all_rows, fill, numbers, rows, singly, values_of

Client = pydanube.sync.Client


def test_all_partitions_are_read_once(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 4999), partitions=3)
    found = all_rows(readers.batch())
    assert values_of(found) == numbers(0, 4999)
    assert len({(partition, offset) for partition, offset, _ in found}) == 5000


def test_a_range_in_many_tasks_is_the_same(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 999))
    reader = readers.batch(minPartitions="7")
    tasks = reader.partitions()
    assert len(tasks) == 7
    assert rows(reader, tasks) == [(0, number, value) for number, value in enumerate(numbers(0, 999))]


def test_an_empty_topic_has_no_rows(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    assert all_rows(readers.batch()) == []


def test_a_plan_is_a_snapshot(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    reader = readers.batch()
    planned = reader.partitions()
    fill(client, topic, numbers(10, 19))
    assert values_of(rows(reader, planned)) == numbers(0, 9)
    assert values_of(all_rows(reader)) == numbers(0, 19)


def test_offsets_say_where_to_start_and_before_which_to_stop(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99))
    given = {"startingOffsets": json.dumps({topic: {"0": 20}}), "endingOffsets": json.dumps({topic: {"0": 30}})}
    assert [offset for _, offset, _ in all_rows(readers.batch(**given))] == list(range(20, 30))
    marks = {"startingOffsets": json.dumps({topic: {"0": -2}}), "endingOffsets": json.dumps({topic: {"0": -1}})}
    assert len(all_rows(readers.batch(**marks))) == 100
    nothing = {"startingOffsets": json.dumps({topic: {"0": 100}})}
    assert all_rows(readers.batch(**nothing)) == []


@pytest.mark.parametrize(
    ("option", "places", "said"),
    [
        ("startingOffsets", {"0": 1}, "each partition of"),
        ("startingOffsets", {"0": 1, "1": 1, "2": 1}, "each partition of"),
        ("startingOffsets", {"0": 11, "1": 0}, "ends at 10, before 11"),
        ("endingOffsets", {"0": 11, "1": 0}, "ends at 10, before 11"),
    ],
)
def test_offsets_that_do_not_fit_the_topic_are_refused(
    client: Client, readers: Readers, topic: str, option: str, places: dict[str, int], said: str
) -> None:
    client.admin.create_topic(topic, partitions=2)
    for number in range(2):
        singly(client, f"{topic}-part-{number}", numbers(0, 9))
    with pytest.raises(OptionInvalid, match=said):
        readers.batch(**{option: json.dumps({topic: places})}).partitions()


def test_offsets_of_other_topics_are_refused(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    with pytest.raises(OptionInvalid, match="which this query does not read"):
        readers.batch(startingOffsets=json.dumps({topic: {"0": 1}, "/default/x": {"0": 1}})).partitions()
    with pytest.raises(OptionInvalid, match="says nothing about"):
        readers.batch(startingOffsets="{}").partitions()
    backwards = {"startingOffsets": json.dumps({topic: {"0": 5}}), "endingOffsets": json.dumps({topic: {"0": 4}})}
    with pytest.raises(OptionInvalid, match="the end is before the start"):
        readers.batch(**backwards).partitions()
    with pytest.raises(TopicReplaced):
        readers.batch(startingOffsets=json.dumps({topic: {"id": 123456, "0": 5}})).partitions()


def test_times_say_where_to_start_and_to_stop(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    between = next_millisecond()
    fill(client, topic, numbers(10, 19))
    later = next_millisecond()
    assert values_of(all_rows(readers.batch(startingTimestamp=str(between)))) == numbers(10, 19)
    assert values_of(all_rows(readers.batch(endingTimestamp=str(between)))) == numbers(0, 9)
    assert all_rows(readers.batch(startingTimestamp=str(later))) == []
    assert values_of(all_rows(readers.batch(endingTimestamp=str(later)))) == numbers(0, 19)


def next_millisecond() -> int:
    """A millisecond that nothing was published in yet."""
    begun = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 < begun + 2:
        pass
    return begun + 1


@pytest.mark.parametrize(
    "schema",
    [
        StructType().add("value", BinaryType(), nullable=False),
        StructType().add("offset", LongType()).add("key", BinaryType(), nullable=False),
        StructType().add("attributes", MapType(StringType(), StringType(), valueContainsNull=False)),
    ],
)
def test_a_schema_promises_nothing_about_nulls(schema: StructType) -> None:
    source = DanubeSource({"topic": "t"})
    for call in (source.reader, source.streamReader):
        with pytest.raises(ColumnInvalid, match="must be nullable for Spark: leave NOT NULL out"):
            call(schema)
        call(schema.toNullable())


def test_a_pattern_reads_all_that_match(
    client: Client, readers: Readers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    fill(client, f"{topic}-a", numbers(0, 9))
    fill(client, f"{topic}-b", numbers(10, 19), partitions=2)
    client.admin.create_topic(f"{topic}-volatile", reliable=False)
    assert values_of(all_rows(readers.batch(topicPattern=f"{topic}-*"))) == numbers(0, 19)
    assert all_rows(readers.batch(topicPattern=f"{topic}-none-*")) == []
    assert f"no topic matches {topic}-none-* yet" in caplog.text
    assert values_of(all_rows(readers.batch(topic=f"{topic}-b,{topic}-a"))) == numbers(0, 19)


def test_what_cannot_be_read_is_said(client: Client, readers: Readers, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        readers.batch().partitions()
    client.admin.create_topic(topic, reliable=False)
    with pytest.raises(NotReliable):
        readers.batch().partitions()
    with pytest.raises(ConnectionLost):
        Readers("danube://127.0.0.1:1", topic).batch().partitions()


def test_many_small_batches_reach_spark_as_few(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic)
    singly(client, topic, numbers(0, 299))
    reader = readers.batch()
    [task] = reader.partitions()
    [batch] = reader.read(task)
    assert batch.num_rows == 300


def test_whoever_reads_only_the_beginning_may_stop(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, [bytes(1000)] * 20_000)
    reader = readers.batch(minPartitions="1")
    [task, *_] = reader.partitions()
    batches = reader.read(task)
    assert next(batches).num_rows
    batches.close()  # type: ignore[attr-defined]
    assert len(all_rows(reader)) == 20_000


# -- what changes between planning and reading -------------------------------------------------------------------------


def test_a_topic_made_anew_is_never_read_as_the_old_one(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    reader = readers.batch(failOnDataLoss="false")
    planned = reader.partitions()
    client.admin.delete_topic(topic)
    fill(client, topic, numbers(10, 29))
    with pytest.raises(TopicReplaced):
        rows(reader, planned)


def test_a_topic_deleted_meanwhile_is_lost(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    strict, lenient = readers.batch(), readers.batch(failOnDataLoss="false")
    planned = strict.partitions(), lenient.partitions()
    client.admin.delete_topic(topic)
    with pytest.raises(DataLost, match="was deleted while it was being read"):
        rows(strict, planned[0])
    assert rows(lenient, planned[1]) == []


def test_messages_deleted_meanwhile_are_lost(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 39))
    fill(client, topic, numbers(40, 99))
    strict, lenient = readers.batch(), readers.batch(failOnDataLoss="false")
    planned = strict.partitions(), lenient.partitions()
    client.admin.truncate_topic(topic, before=40)
    with pytest.raises(DataLost, match="offsets 0 to 39"):
        rows(strict, planned[0])
    assert [offset for _, offset, _ in rows(lenient, planned[1])] == list(range(40, 100))
    with pytest.raises(DataLost):
        readers.batch(startingOffsets=json.dumps({topic: {"0": 10}})).partitions()
    assert values_of(all_rows(readers.batch())) == numbers(40, 99)


def test_a_broker_that_comes_back_is_waited_for(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        fill(client, "/default/t", numbers(0, 999))
        reader = Readers(broker.url, "/default/t").batch(minPartitions="4")
        planned = reader.partitions()
        before = rows(reader, planned[:2])
        broker.crash()
        assert values_of(before + rows(reader, planned[2:])) == numbers(0, 999)
        close_links()


def test_offsets_that_were_never_used_are_passed_over(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        client.admin.create_topic("/default/t", durability="buffered")
        fill(client, "/default/t", numbers(0, 9))
        broker.crash()
        fill(client, "/default/t", numbers(10, 19))
        ends = client.admin.describe_topic("/default/t")["ends"]
        assert ends[0] > 20
        found = all_rows(Readers(broker.url, "/default/t").batch())
        assert values_of(found)[-10:] == numbers(10, 19)
        stream = Readers(broker.url, "/default/t").stream(maxRecordsPerTrigger="3")
        batches = Query(stream).until_done()
        assert [row for batch in batches for row in batch] == found
        assert len(batches) <= len(found) // 3 + 3
        close_links()


def test_tls_goes_by_the_authority_that_is_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def story() -> None:
        server = Server(StandaloneSettings(tmp_path / "data", port=0, certificate=authority.sign()))
        await server.start()
        try:
            connected = pydanube.connect(server.url, ca_file=str(authority.file))
            async with connected as client, client.producer("/default/t") as producer:
                await producer.send_many(numbers(0, 9))
            readers = Readers(server.url, "/default/t")
            found = await asyncio.to_thread(all_rows, readers.batch(**{"tls.ca": str(authority.file)}))
            assert values_of(found) == numbers(0, 9)
            with pytest.raises(TlsFailed):
                await asyncio.to_thread(readers.batch().partitions)
            await asyncio.to_thread(close_links)
        finally:
            await server.stop()

    asyncio.run(story())
