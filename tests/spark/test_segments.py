"""History straight from object storage: the same rows as by the broker, exactly the range, else by the broker."""

from __future__ import annotations

import logging
import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import pydanube.sync
from pydanube.base.errors import DataLost, OptionInvalid
from pydanube.spark import direct, sealed
from pydanube.spark.broker_link import close_links
from pydanube.spark.columns import ALL
from pydanube.spark.options import OFF, Options
from pydanube.spark.source import BatchReader
from servers.fixtures import ObjectServer
from spark.tiered import Asked, Broker, jobs, table, tiered_broker
from spark.world import Query, Readers, Row, all_rows, fill, numbers, rows, singly, values_of

OFFSETS = '{"%s": {"0": %d}}'


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("objects")
    with (
        tiered_broker(
            tmp_path_factory.mktemp("data"), f"file://{folder}", local_seconds=0.0, lag_seconds=3600.0
        ) as url,
        pydanube.sync.connect(url) as client,
    ):
        yield Broker(url, folder, client)


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sealed, "RANGE_BYTES_MIN", 0)
    direct._stores.clear()
    yield
    direct._stores.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


@pytest.fixture
def here(broker: Broker, topic: str) -> Readers:
    return Readers(broker.url, topic)


def everything(broker: Broker, topic: str, **given: str) -> BatchReader:
    options = Options.of({"url": broker.url, "topic": topic} | given, streaming=False)
    return BatchReader(options, tuple(ALL))


def test_every_column_is_the_same_as_by_the_broker(broker: Broker, topic: str, asked: Asked) -> None:
    broker.client.admin.create_topic(topic, partitions=2)
    with broker.client.producer(topic) as producer:
        producer.send(b"v", key="k", attributes={"a": "1", "b": ""}, event_time=1_500_000).result()
        producer.send(None, key=None).result()
        producer.send_many([b"%d" % number for number in range(500)], keys=[f"k{n % 7}" for n in range(500)]).result()
        producer.send(b"", key="", attributes={}).result()
    broker.upload(topic)
    found = table(everything(broker, topic))
    assert asked.places == []
    assert found.num_rows == 503
    expected = table(everything(broker, topic, **{"objects.url": OFF}))
    assert asked.places != []
    assert found.schema == expected.schema
    assert found.equals(expected)


def test_any_range_is_exact_and_the_tail_is_the_brokers(
    broker: Broker, here: Readers, topic: str, asked: Asked
) -> None:
    for first in (0, 100):
        fill(broker.client, topic, numbers(first, first + 99))
        broker.upload(topic)
    fill(broker.client, topic, numbers(200, 249))
    for first, end in ((0, 250), (0, 1), (50, 150), (99, 101), (100, 200), (199, 201), (210, 220), (249, 250)):
        asked.places.clear()
        given = {"startingOffsets": OFFSETS % (topic, first), "endingOffsets": OFFSETS % (topic, end)}
        found = all_rows(here.batch(**given))
        assert [offset for _, offset, _ in found] == list(range(first, end))
        assert [value for _, _, value in found] == numbers(first, end - 1)
        assert asked.places == ([(topic, max(first, 200))] if end > 200 else [])


def test_row_groups_are_read_as_they_are_needed(broker: Broker, here: Readers, topic: str, asked: Asked) -> None:
    fill(broker.client, topic, [])
    with broker.client.producer(topic) as producer:
        for first in range(0, 250_000, 50_000):
            producer.send_many([b"%d" % number for number in range(first, first + 50_000)])
        producer.flush()
    broker.upload(topic)
    for first, end in ((0, 250_000), (99_999, 100_001), (150_000, 249_999), (249_999, 250_000)):
        given = {"startingOffsets": OFFSETS % (topic, first), "endingOffsets": OFFSETS % (topic, end)}
        found = all_rows(here.batch(minPartitions="3", **given))
        assert [offset for _, offset, _ in found] == list(range(first, end))
        assert all(value == b"%d" % offset for _, offset, value in found)
    assert asked.places == []


def test_what_moves_between_planning_and_reading_is_read_all_the_same(
    broker: Broker, here: Readers, topic: str
) -> None:
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    fill(broker.client, topic, numbers(100, 199))
    reader = here.batch()
    planned = reader.partitions()  # the second half is in the journal
    broker.upload(topic)
    broker.evicted(topic)
    assert values_of(rows(reader, planned)) == numbers(0, 199)


def test_segments_that_were_merged_meanwhile_are_read_by_the_broker(
    tmp_path: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    folder, topic = tmp_path / "objects", "/default/merged"
    with (
        tiered_broker(tmp_path / "data", f"file://{folder}", local_seconds=0.0) as url,
        pydanube.sync.connect(url) as client,
    ):
        broker = Broker(url, folder, client)
        client.admin.create_topic(topic, policies={"table": "delta"})
        for first in range(0, 80, 10):
            fill(client, topic, numbers(first, first + 9))
            planned = everything(broker, topic).partitions() if first else []
            before = broker.segments(topic)
            broker.upload(topic)
        while len(broker.segments(topic)) > 1:
            pass
        for old in before:
            old.unlink()  # as when the lease is over
        reader = Readers(url, topic).batch()
        assert values_of(rows(reader, planned)) == numbers(0, 79)
        assert asked.places
    assert len([each for each in caplog.records if "through the broker" in each.getMessage()]) == 1


def test_a_lost_segment_is_read_by_the_broker_and_said_once(
    tmp_path: Path, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    folder, topic = tmp_path / "objects", "/default/lost"
    with tiered_broker(tmp_path / "data", f"file://{folder}") as url, pydanube.sync.connect(url) as client:
        broker = Broker(url, folder, client)
        for first in (0, 100, 200):
            fill(client, topic, numbers(first, first + 99))
            broker.upload(topic)
        lost, damaged, sound = broker.segments(topic)
        lost.unlink()
        data = bytearray(damaged.read_bytes())
        data[pq.read_metadata(damaged).row_group(0).column(6).data_page_offset + 60] ^= 1  # in its payloads
        damaged.write_bytes(data)
        for _ in range(2):
            assert values_of(all_rows(Readers(url, topic).batch())) == numbers(0, 299)
        assert sound.exists()
    assert asked.places == [(topic, 0), (topic, 100)] * 2
    told = [each.getMessage() for each in caplog.records if "through the broker" in each.getMessage()]
    assert [text.split(": ")[1] for text in told] == ["ObjectMissing", "InvalidSegment"]


def test_a_topic_that_is_truncated_meanwhile_is_a_loss(broker: Broker, here: Readers, topic: str) -> None:
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    [segment] = broker.segments(topic)
    fill(broker.client, topic, numbers(100, 199))
    strict, lenient = here.batch(), here.batch(failOnDataLoss="false")
    planned = strict.partitions()
    broker.client.admin.truncate_topic(topic, before=100)
    while segment.exists():
        pass
    with pytest.raises(DataLost, match="offsets 0 to 99"):
        rows(strict, planned)
    assert values_of(rows(lenient, planned)) == numbers(100, 199)


def test_a_stream_that_is_behind_reads_segments_and_a_replay_is_the_same(
    broker: Broker, here: Readers, topic: str, asked: Asked
) -> None:
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    fill(broker.client, topic, numbers(100, 149))
    query = Query(here.stream(maxRecordsPerTrigger="80"))
    first = query.trigger()
    assert (values_of(first), asked.places) == (numbers(0, 79), [])
    start, end = query.plan()
    batch: list[Row] = rows(query.reader, query.reader.partitions(start, end))
    assert asked.places == [(topic, 100)]
    broker.upload(topic)
    broker.evicted(topic)
    asked.places.clear()
    assert rows(query.reader, query.reader.partitions(start, end)) == batch
    assert asked.places == []


def test_a_limit_of_bytes_holds_in_segments_and_behind_them(broker: Broker, here: Readers, topic: str) -> None:
    broker.client.admin.create_topic(topic)
    singly(broker.client, topic, [os.urandom(10_000) for _ in range(20)])
    broker.upload(topic)
    broker.evicted(topic)
    singly(broker.client, topic, [os.urandom(10_000) for _ in range(20)])
    batches = Query(here.stream(maxBytesPerTrigger="35000")).until_done()
    assert [offset for batch in batches for _, offset, _ in batch] == list(range(40))
    assert {len(batch) for batch in batches[:-1]} == {3}
    both = Query(here.stream(maxBytesPerTrigger="35000", maxRecordsPerTrigger="2")).until_done()
    assert [len(batch) for batch in both] == [2] * 20


def test_little_is_asked_of_the_broker_at_once(
    broker: Broker, here: Readers, topic: str, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealed, "RANGE_BYTES_MIN", sealed.MIB)
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    assert [job.objects for job in jobs(here.batch())] == [None]
    assert values_of(all_rows(here.batch())) == numbers(0, 99)
    assert asked.places == [(topic, 0)]


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("file:///nowhere/at/all", "ObjectsRefused: the folder does not exist on this machine"),
        ("nothing://bucket", "ConfigInvalid: unknown object storage 'nothing'"),
    ],
)
def test_executors_without_a_way_to_the_place_ask_the_broker(
    broker: Broker, here: Readers, topic: str, asked: Asked, caplog: pytest.LogCaptureFixture, url: str, said: str
) -> None:
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    assert values_of(all_rows(here.batch(**{"objects.url": url}))) == numbers(0, 99)
    assert asked.places == [(topic, 0)]
    assert not Path("/nowhere").exists()
    [told] = [each.getMessage() for each in caplog.records if "through the broker" in each.getMessage()]
    assert said in told


@pytest.mark.parametrize("package", ["opendal", "pyarrow.parquet"])
def test_executors_without_the_packages_ask_the_broker(
    broker: Broker, here: Readers, topic: str, asked: Asked, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    fill(broker.client, topic, numbers(0, 99))
    broker.upload(topic)
    for module in ("adapters.opendal_objects", "tier.segment_file", "tier.projection"):
        monkeypatch.delitem(sys.modules, f"pydanube.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    assert values_of(all_rows(here.batch())) == numbers(0, 99)
    assert asked.places == [(topic, 0)]


@pytest.mark.parametrize("url", ["s3://me:secret@bucket", "s3://bucket?secret_access_key=x", "bucket"])
def test_a_credential_in_the_option_is_refused(url: str) -> None:
    with pytest.raises(OptionInvalid, match=r"objects\.url") as raised:
        Options.of({"topic": "t", "objects.url": url}, streaming=False)
    assert "secret" not in str(raised.value)


@pytest.fixture(params=["moto", "swift"])
def server(request: pytest.FixtureRequest) -> ObjectServer:
    found: ObjectServer = request.getfixturevalue(f"{request.param}_server")
    return found


def test_credentials_are_the_executors_own(
    server: ObjectServer,
    tmp_path: Path,
    asked: Asked,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    place, topic = server.place(), "/default/t"
    options = place.options | {"disable_ec2_metadata": "true"}
    with (
        tiered_broker(tmp_path, place.url, options, place.environment) as url,
        pydanube.sync.connect(url) as client,
        caplog.at_level(logging.DEBUG),
    ):
        fill(client, topic, numbers(0, 99))
        client.admin.upload_topic(topic)
        reader = Readers(url, topic).batch()
        planned = reader.partitions()
        [job] = [partition.value for partition in planned]
        assert (job.objects.url, dict(job.objects.options)) == (place.url, options)
        secrets = [text for name, text in place.environment.items()]
        assert not [text for text in secrets if text.encode() in pickle.dumps((reader, planned))]
        assert values_of(rows(reader, planned)) == numbers(0, 99)  # nobody here knows a key
        assert asked.places == [(topic, 0)]
        asked.places.clear()
        close_links()
        direct._stores.clear()
        for name, text in place.environment.items():
            monkeypatch.setenv(name, text)
        assert values_of(rows(reader, planned)) == numbers(0, 99)
        assert asked.places == []
    assert not [text for text in secrets if text in caplog.text]
