"""`history`: one frame over everything, as Parquet where that goes, with the same rows as by the source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import pydanube.spark
import pydanube.sync
from pydanube.operations.storage import SealedSegment
from pydanube.spark import sealed
from pydanube.spark.columns import ALL
from pydanube.spark.frames import SealedRange, sealed_part
from pydanube.spark.plan import Range
from spark.tiered import Broker, tiered_broker
from spark.world import fill, numbers

TOPIC = "/default/events"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Two partitions: the first has two segments and a tail, the second one segment."""
    folder = tmp_path_factory.mktemp("objects and more")
    place = f"file://{folder}".replace(" ", "%20")
    data = tmp_path_factory.mktemp("data")
    with tiered_broker(data, place, local_seconds=0.0) as url, pydanube.sync.connect(url) as client:
        found = Broker(url, folder, client)
        client.admin.create_topic(TOPIC, partitions=2)
        for first in (0, 100):
            with client.producer(TOPIC) as producer:
                for number in range(first, first + 100):
                    attributes = {"n": str(number)} if number % 3 else None
                    producer.send(b"%06d" % number, key=f"k{number % 5}", attributes=attributes, event_time=number)
                producer.flush()
            found.upload(TOPIC)
        fill(client, TOPIC, numbers(200, 249))
        yield found


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed, "RANGE_BYTES_MIN", 0)


def is_native(frame: DataFrame) -> bool:
    return "parquet" in frame._jdf.queryExecution().toString().lower()  # type: ignore[operator]


def rows(frame: DataFrame) -> list[object]:
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def test_every_column_is_the_same_as_by_the_source(spark: SparkSession, broker: Broker) -> None:
    more = {"url": broker.url, "includeAttributes": "true", "includeMeta": "true"}
    frame = pydanube.spark.history(spark, TOPIC, **more)
    assert is_native(frame)
    assert frame.columns == list(ALL)
    other = pydanube.spark.history(spark, TOPIC, native=False, **more)
    assert not is_native(other)
    assert frame.schema == other.schema
    assert len(rows(frame)) == 250
    assert rows(frame) == rows(other)


def test_it_is_a_snapshot_and_keeps_to_offsets(spark: SparkSession, broker: Broker) -> None:
    ends = broker.client.admin.describe_topic(TOPIC)["ends"]
    offsets = {
        "startingOffsets": json.dumps({TOPIC: {"0": 30, "1": -2}}),
        "endingOffsets": json.dumps({TOPIC: {"0": ends[0], "1": 20}}),
    }
    frame = pydanube.spark.history(spark, "events", url=broker.url, schema="partition INT, offset BIGINT", **offsets)
    fill(broker.client, TOPIC, numbers(250, 259))
    assert is_native(frame)
    expected = [(0, offset) for offset in range(30, ends[0])] + [(1, offset) for offset in range(20)]
    assert [tuple(row) for row in rows(frame)] == expected  # type: ignore[call-overload]
    assert frame.where("partition = 1 and offset >= 19").count() == 1


def test_a_place_that_the_jvm_does_not_reach_is_read_through_python(spark: SparkSession, broker: Broker) -> None:
    for place in ("s3://bucket/prefix", "file:///nowhere", "off"):
        options = {"url": broker.url, "objects.url": place}
        frame = pydanube.spark.history(spark, TOPIC, schema="value BINARY", **options)
        assert not is_native(frame)
    assert frame.count() >= 250


def test_damage_is_noticed_by_sparks_own_reader(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    folder, topic = tmp_path / "objects", "/default/damaged"
    with tiered_broker(tmp_path / "data", f"file://{folder}") as url, pydanube.sync.connect(url) as client:
        fill(client, topic, numbers(0, 99))
        broker = Broker(url, folder, client)
        broker.upload(topic)
        [segment] = broker.segments(topic)
        data = bytearray(segment.read_bytes())
        column = pq.read_metadata(segment).row_group(0).column(0)
        data[column.data_page_offset + column.total_compressed_size - 3] ^= 1
        segment.write_bytes(data)
        with pytest.raises(Exception, match=r"(?i)corrupt|crc|checksum"):
            pydanube.spark.history(spark, topic, url=url, schema="offset BIGINT").collect()
        found = pydanube.spark.history(spark, topic, url=url, schema="offset BIGINT", native=False)
        assert found.count() == 100  # by the broker, which has a copy


def stored(first: int, last: int) -> SealedSegment:
    return SealedSegment(f"{first}", first, last, 1, last - first + 1, 2000, 1000, "")


@pytest.mark.parametrize(
    ("begin", "end", "segments", "found"),
    [
        (0, 100, [], None),
        (0, 100, [stored(10, 49)], None),
        (0, 100, [stored(0, 49)], (50, 1)),
        (20, 100, [stored(0, 49), stored(50, 79)], (80, 2)),
        (0, 100, [stored(0, 49), stored(60, 79)], (50, 1)),
        (0, 60, [stored(0, 49), stored(50, 79)], (60, 2)),
        (0, 50, [stored(0, 49), stored(50, 79)], (50, 1)),
    ],
)
def test_a_gap_ends_what_is_sealed(
    begin: int, end: int, segments: list[SealedSegment], found: tuple[int, int] | None
) -> None:
    wanted = Range(TOPIC, 1, 0, TOPIC, begin, end, True, tuple(segments))
    expected = None if found is None else SealedRange(TOPIC, 0, begin, found[0], tuple(segments[: found[1]]))
    assert sealed_part(wanted) == expected
