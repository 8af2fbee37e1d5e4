"""A stream continues from its offsets: each message in one batch, within limits, and whatever happens to the topic."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

import pydanube.sync
from pydanube.base.errors import DataLost, OptionInvalid, TopicNotFound, TopicReplaced
from pydanube.spark.broker_link import close_links
from pydanube.testing.broker import broker_beside
from spark.world import Query, Readers, fill, numbers, rows, singly, values_of

Client = pydanube.sync.Client


def test_each_message_is_in_one_batch(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9), partitions=2)
    query = Query(readers.stream())
    assert values_of(query.trigger()) == numbers(0, 9)
    assert query.trigger() == []
    fill(client, topic, numbers(10, 29))
    assert values_of(query.trigger()) == numbers(10, 29)


def test_a_trigger_without_news_waits_for_some_at_the_broker(
    client: Client, readers: Readers, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, topic, numbers(0, 9), partitions=2)
    query = Query(readers.stream())
    monkeypatch.setattr("pydanube.spark.source.IDLE_SECONDS", 4.9)
    began = monotonic()
    assert values_of(query.trigger()) == numbers(0, 9)
    assert monotonic() - began < 4.9, "what is there is not waited for"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(query.trigger)
        fill(client, topic, [b"news"])
        assert values_of(waiting.result()) == [b"news"]
    monkeypatch.setattr("pydanube.spark.source.IDLE_SECONDS", 0.2)
    began = monotonic()
    assert query.trigger() == []
    assert monotonic() - began >= 0.2
    query.reader.prepareForTriggerAvailableNow()
    monkeypatch.setattr("pydanube.spark.source.IDLE_SECONDS", 4.9)
    began = monotonic()
    assert query.trigger() == []
    assert monotonic() - began < 4.9, "what ends when all is read waits for nothing"


def test_it_starts_at_the_latest_unless_told_otherwise(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream(startingOffsets="latest"))
    fill(client, topic, numbers(10, 19))
    assert values_of(query.trigger()) == numbers(10, 19)
    middle = Query(readers.stream(startingOffsets=json.dumps({topic: {"0": 15}})))
    assert values_of(middle.trigger()) == numbers(15, 19)


def test_offsets_name_the_topic_by_its_id(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream())
    known = client.admin.describe_topic(topic)["id"]
    assert query.at == {topic: {"id": known, "0": 0, "began": [0]}}
    query.trigger()
    assert query.at == {topic: {"id": known, "0": 10, "began": [0]}}
    assert query.reader.reportLatestOffset() == {topic: {"id": known, "0": 10}}


def test_a_restart_goes_on_and_ignores_where_to_start(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    first = Query(readers.stream())
    first.trigger()
    fill(client, topic, numbers(10, 19))
    again = Query(readers.stream(startingOffsets="earliest"), start=first.at)
    assert values_of(again.trigger()) == numbers(10, 19)


def test_a_first_batch_that_is_repeated_has_the_same_rows_though_the_latest_is_another_now(
    client: Client, readers: Readers, topic: str
) -> None:
    """Spark asks for the start of the first batch again as long as it is not committed."""
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream(startingOffsets="latest"))
    fill(client, topic, numbers(10, 14))
    _, end = query.plan()
    fill(client, topic, numbers(15, 19))
    again = readers.stream(startingOffsets="latest")
    assert values_of(rows(again, again.partitions(again.initialOffset(), end))) == numbers(10, 14)
    assert values_of(Query(again, start=end).trigger()) == numbers(15, 19)


def test_a_checkpoint_of_an_older_version_goes_on(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9), partitions=1)
    known = client.admin.describe_topic(topic)["id"]
    query = Query(readers.stream(), start={topic: {"id": known, "0": 4}})
    assert values_of(query.trigger()) == numbers(4, 9)
    assert query.at == {topic: {"id": known, "0": 10}}
    client.admin.alter_topic(topic, partitions=2)
    singly(client, f"{topic}-part-1", numbers(10, 19))
    assert values_of(query.trigger()) == numbers(10, 19)
    assert query.at == {topic: {"id": known, "0": 10, "1": 10}}


def test_the_same_offsets_are_the_same_rows_however_often(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 999), partitions=3)
    start, end = Query(readers.stream(maxRecordsPerTrigger="500")).plan()
    reader = readers.stream(minPartitions="4")
    first = rows(reader, reader.partitions(start, end))
    fill(client, topic, numbers(1000, 1999))
    replay = readers.stream()
    assert sorted(first) == sorted(rows(replay, replay.partitions(start, end)))
    assert len(first) == 500


def test_a_topic_that_is_not_there_is_an_error(readers: Readers) -> None:
    with pytest.raises(TopicNotFound):
        Query(readers.stream())


def test_somebody_elses_checkpoint_is_an_error(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    with pytest.raises(OptionInvalid, match="the offset in the checkpoint"):
        Query(readers.stream(), start={"0": 12}).trigger()


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_trigger_takes_no_more_records_than_allowed(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 999), partitions=3)
    batches = Query(readers.stream(maxRecordsPerTrigger="300")).until_done()
    assert max(map(len, batches)) <= 300
    assert len(batches) <= 5
    assert values_of(row for batch in batches for row in batch) == numbers(0, 999)


@pytest.mark.parametrize(
    "limit", [{"maxRecordsPerTrigger": "2"}, {"maxRecordsPerTrigger": "7"}, {"maxBytesPerTrigger": "600"}]
)
def test_a_backlog_is_read_in_the_order_of_append_time(
    client: Client, readers: Readers, topic: str, limit: dict[str, str]
) -> None:
    """Histories that lie apart, and one that goes on later: no trigger has what is older than the one before it."""
    client.admin.create_topic(topic, partitions=4)
    for number, partition in enumerate([0, 1, 2, 3, 1, 0]):
        singly(client, f"{topic}-part-{partition}", numbers(number * 10, number * 10 + 9))
    batches = Query(readers.stream(**limit)).until_done()
    found = [sorted(value for _, _, value in batch if value is not None) for batch in batches]
    assert [value for batch in found for value in batch] == numbers(0, 59)
    most = int(limit.get("maxRecordsPerTrigger", 60))
    assert max(map(len, found)) <= most
    assert len(found) <= 2 * 60 // most + 1 or most == 60


def test_a_partition_that_joins_later_is_read_by_its_time_too(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic, partitions=1)
    singly(client, f"{topic}-part-0", numbers(0, 9))
    query = Query(readers.stream(maxRecordsPerTrigger="4"))
    first = query.trigger()
    client.admin.alter_topic(topic, partitions=2)
    singly(client, f"{topic}-part-1", numbers(10, 19))
    rest = query.until_done()
    found = [sorted(value for _, _, value in batch if value is not None) for batch in [first, *rest]]
    assert [value for batch in found for value in batch] == numbers(0, 19)


def test_a_trigger_takes_no_more_bytes_than_allowed(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    for number in range(2):
        singly(client, f"{topic}-part-{number}", [bytes(10_000)] * 20)
    batches = Query(readers.stream(maxBytesPerTrigger=str(10_100 * 8))).until_done()
    assert sum(map(len, batches)) == 40
    assert max(map(len, batches)) <= 8
    assert len(batches) <= 7


def test_messages_of_one_batch_count_alike(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, [bytes(100)] * 1000)
    batches = Query(readers.stream(maxBytesPerTrigger="20000")).until_done()
    assert sum(map(len, batches)) == 1000
    assert max(map(len, batches)) <= 200
    assert len(batches) < 8


def test_bytes_count_as_they_are_unpacked(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic)
    with client.producer(topic, compression="zstd") as producer:
        producer.send_many([bytes(100_000)] * 100).result()
    assert client.admin.describe_topic(topic)["bytes"] < 1_000_000
    batches = Query(readers.stream(maxBytesPerTrigger="1000000")).until_done()
    assert sum(map(len, batches)) == 100
    assert 5 <= max(map(len, batches)) <= 10


def test_a_message_larger_than_the_limit_goes_alone(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    for number in range(2):
        singly(client, f"{topic}-part-{number}", [bytes(10_000)] * 2)
    batches = Query(readers.stream(maxBytesPerTrigger="10")).until_done()
    assert [len(batch) for batch in batches] == [1, 1, 1, 1]


def test_both_limits_hold(client: Client, readers: Readers, topic: str) -> None:
    client.admin.create_topic(topic)
    singly(client, topic, [bytes(10)] * 20)
    singly(client, topic, [bytes(10_000)] * 20)
    batches = Query(readers.stream(maxRecordsPerTrigger="10", maxBytesPerTrigger="35000")).until_done()
    assert [len(batch) for batch in batches[:2]] == [10, 10]
    assert all(sum(len(value or b"") for _, _, value in batch) <= 35_000 for batch in batches)
    assert sum(map(len, batches)) == 40


def test_a_trigger_of_everything_knows_no_limit(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99))
    query = Query(readers.stream(maxRecordsPerTrigger="10", maxBytesPerTrigger="10"))
    assert len(query.trigger(ReadAllAvailable())) == 100


def test_available_now_ends_where_it_began_to_look(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 99), partitions=2)
    query = Query(readers.stream(maxRecordsPerTrigger="30"))
    query.reader.prepareForTriggerAvailableNow()
    fill(client, topic, numbers(100, 199))
    client.admin.alter_topic(topic, partitions=3)
    singly(client, f"{topic}-part-2", numbers(200, 209))
    batches = query.until_done()
    assert values_of(row for batch in batches for row in batch) == numbers(0, 99)
    assert values_of(Query(readers.stream(), start=query.at).trigger()) == numbers(100, 209)


# -- topics that change ------------------------------------------------------------------------------------------------


def test_new_partitions_and_new_topics_are_read_from_their_first_message(
    client: Client, readers: Readers, topic: str
) -> None:
    fill(client, f"{topic}-a", numbers(0, 9), partitions=1)
    query = Query(readers.stream(topicPattern=f"{topic}-*", startingOffsets="latest", maxRecordsPerTrigger="4"))
    client.admin.alter_topic(f"{topic}-a", partitions=2)
    singly(client, f"{topic}-a-part-1", numbers(10, 19))
    fill(client, f"{topic}-b", numbers(20, 29))
    found = query.until_done()
    assert values_of(row for batch in found for row in batch) == numbers(10, 29)
    assert max(map(len, found)) == 4


def test_a_pattern_may_match_nothing_yet(
    client: Client, readers: Readers, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(readers.stream(topicPattern=f"{topic}-*", maxRecordsPerTrigger="5"))
    assert query.trigger() == query.trigger() == []
    assert caplog.text.count(f"no topic matches {topic}-* yet") == 1
    fill(client, f"{topic}-a", numbers(0, 2))
    assert values_of(query.trigger()) == numbers(0, 2)


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_made_anew_is_an_error(client: Client, readers: Readers, topic: str, fails: str) -> None:
    fill(client, topic, numbers(0, 9))
    query = Query(readers.stream(failOnDataLoss=fails))
    query.trigger()
    start, at = {topic: query.at[topic] | {"0": 0}}, query.at
    client.admin.delete_topic(topic)
    fill(client, topic, numbers(0, 19))
    with pytest.raises(TopicReplaced):
        query.trigger()
    with pytest.raises(TopicReplaced):
        query.reader.partitions(start, at)


def test_a_deleted_topic_is_lost_or_left_out(client: Client, readers: Readers, topic: str) -> None:
    fill(client, f"{topic}-a", numbers(0, 9))
    fill(client, f"{topic}-b", numbers(10, 19))
    both = f"{topic}-a,{topic}-b"
    strict, lenient = Query(readers.stream(topic=both)), Query(readers.stream(topic=both, failOnDataLoss="false"))
    start, end = lenient.plan()
    client.admin.delete_topic(f"{topic}-a")
    with pytest.raises(DataLost, match="no longer exists"):
        strict.trigger()
    assert values_of(rows(lenient.reader, lenient.reader.partitions(start, end))) == numbers(10, 19)
    lenient.at = end
    assert lenient.trigger() == []
    fill(client, f"{topic}-b", numbers(20, 29))
    assert values_of(lenient.trigger()) == numbers(20, 29)


def test_the_only_topic_is_deleted_and_a_lenient_query_goes_on(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    strict, lenient = Query(readers.stream()), Query(readers.stream(failOnDataLoss="false"))
    lenient.trigger()
    client.admin.delete_topic(topic)
    with pytest.raises(DataLost, match="no longer exists") as raised:
        strict.trigger()
    assert "nothing protects the messages of a deleted topic" in raised.value.__notes__[0]
    assert [lenient.trigger() for _ in range(3)] == [[], [], []]
    again = Query(readers.stream(failOnDataLoss="false"), start=lenient.at)
    again.reader.prepareForTriggerAvailableNow()
    assert again.until_done() == []
    fill(client, topic, numbers(10, 19))  # the query has forgotten the old one: this is a new topic to it
    assert values_of(lenient.trigger()) == numbers(10, 19)


@pytest.mark.parametrize("limits", [{}, {"maxRecordsPerTrigger": "50"}, {"maxBytesPerTrigger": "1000000"}])
def test_what_is_cut_off_within_a_batch_does_not_come(
    client: Client, readers: Readers, topic: str, limits: dict[str, str]
) -> None:
    """Batches are stored as a whole: what was cut off of one is still on the disk."""
    fill(client, topic, numbers(0, 99))
    query = Query(readers.stream(failOnDataLoss="false", **limits))
    batch = readers.batch(failOnDataLoss="false", startingOffsets=json.dumps({topic: {"0": 0}}))
    client.admin.truncate_topic(topic, before=50)
    assert client.admin.describe_topic(topic)["firsts"] == [50]
    assert values_of(query.trigger()) == numbers(50, 99)
    assert values_of(rows(batch, batch.partitions())) == numbers(50, 99)


def test_messages_that_were_deleted_unread_are_lost(client: Client, readers: Readers, topic: str) -> None:
    fill(client, topic, numbers(0, 9))
    fill(client, topic, numbers(10, 19))
    strict, lenient = Query(readers.stream()), Query(readers.stream(failOnDataLoss="false"))
    client.admin.truncate_topic(topic, before=10)
    with pytest.raises(DataLost, match="offsets 0 to 9"):
        strict.trigger()
    assert values_of(lenient.trigger()) == numbers(10, 19)


def test_a_broker_with_less_than_was_read_is_noticed(client: Client, readers: Readers, topic: str) -> None:
    """As after a restored backup."""
    fill(client, topic, numbers(0, 9))
    known = client.admin.describe_topic(topic)["id"]
    ahead = {topic: {"id": known, "0": 15}}
    with pytest.raises(DataLost, match="ends at 10, but the query has read up to 15"):
        Query(readers.stream(), start=ahead).trigger()
    lenient = Query(readers.stream(failOnDataLoss="false"), start=ahead)
    assert lenient.trigger() == []
    assert lenient.at == ahead
    fill(client, topic, numbers(10, 19))
    assert [offset for _, offset, _ in lenient.trigger()] == list(range(15, 20))


def test_a_query_that_starts_while_the_broker_is_away_waits_for_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        fill(client, "/default/t", numbers(0, 9))
        port = broker.address[1]
    with ThreadPoolExecutor(1) as pool:
        reader = Readers(broker.url, "/default/t").stream()
        begun = pool.submit(reader.prepareForTriggerAvailableNow)
        while "waiting for it" not in caplog.text:
            assert not begun.done()
        with broker_beside(tmp_path, port=port):
            begun.result(30)
            assert values_of(Query(reader).trigger()) == numbers(0, 9)
            close_links()


def test_a_query_outlives_its_broker(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as broker, pydanube.sync.connect(broker.url) as client:
        fill(client, "/default/t", numbers(0, 9))
        query = Query(Readers(broker.url, "/default/t").stream(subscription="q"))
        first = query.trigger()
        broker.crash()
        fill(client, "/default/t", numbers(10, 19))
        assert values_of(first + query.trigger()) == numbers(0, 19)
        broker.restart()
        assert query.trigger() == []
        query.reader.stop()
        close_links()
