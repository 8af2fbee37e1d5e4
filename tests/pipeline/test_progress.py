"""Numbers out of what Spark says of each batch: events as Spark 4.3 gave them."""

from __future__ import annotations

from typing import Any

import pydanube.sync
from pydanube.broker.door.metrics import OF_PROGRESS
from pydanube.pipeline.query.progress import Lag, Progress
from pydanube.spark.broker_link import BrokerLink
from pydanube.spark.offsets import TopicOffsets


def event(second: int, **facts: Any) -> dict[str, Any]:
    return {
        "timestamp": f"2026-11-15T22:47:{second:02}.841Z",
        "batchId": second,
        "numInputRows": 0,
        "processedRowsPerSecond": 0.0,
        "durationMs": {"triggerExecution": 1500, "addBatch": 1200},
        "sources": [],
        **facts,
    }


def of_topic(start: dict[str, int] | None, end: dict[str, int], latest: dict[str, int] | None = None) -> dict[str, Any]:
    def told(offsets: dict[str, int] | None) -> Any:
        return None if offsets is None else {"/default/orders": {"id": 1, **offsets}}

    return {"startOffset": told(start), "endOffset": told(end), "latestOffset": told(latest)}


def test_batches_add_up_and_events_that_come_twice_count_once() -> None:
    progress = Progress()
    first = event(1, numInputRows=1_000, processedRowsPerSecond=500.0)
    assert progress.take(first)
    assert not progress.take(first)
    assert progress.take(event(2, numInputRows=500, processedRowsPerSecond=250.0))
    assert not progress.take(first)
    assert (progress.rows, progress.batches, progress.batch) == (1_500, 2, 2)
    assert (progress.rows_per_second, progress.batch_seconds) == (250.0, 1.5)


def test_an_idle_trigger_is_no_batch() -> None:
    progress = Progress()
    progress.take(event(1, numInputRows=10, processedRowsPerSecond=5.0))
    progress.take(event(11, durationMs={"triggerExecution": 2, "latestOffset": 2}))
    assert (progress.batches, progress.batch, progress.batch_seconds) == (1, 1, 1.5)
    assert progress.rows_per_second == 0.0


def test_a_topic_that_is_scanned_twice_in_a_batch_counts_once() -> None:
    progress = Progress()
    both = of_topic({"0": 0, "1": 0}, {"0": 60, "1": 40}, {"0": 70, "1": 40})
    progress.take(event(1, numInputRows=200, sources=[both, both]))
    assert progress.rows == 100
    assert progress.done == {"/default/orders": TopicOffsets(1, (60, 40))}
    assert progress.newest == {"/default/orders": TopicOffsets(1, (70, 40))}
    again = of_topic({"0": 60, "1": 40}, {"0": 70, "1": 40})
    progress.take(event(2, numInputRows=20, sources=[again, again]))
    assert progress.rows == 110


def test_files_that_are_scanned_twice_in_a_batch_count_once() -> None:
    progress = Progress(scans=2)
    files = {"startOffset": None, "endOffset": {"logOffset": 0}, "latestOffset": None}
    progress.take(event(1, numInputRows=20, processedRowsPerSecond=10.0, sources=[files, files]))
    assert (progress.rows, progress.rows_per_second) == (10, 5.0)


def test_dead_letters_are_counted_as_the_query_counts_them() -> None:
    progress = Progress()
    progress.take(event(1, numInputRows=10))
    assert progress.dead_rows is None
    progress.take(event(2, numInputRows=10, observedMetrics={"danube": {"dead": 3}}))
    progress.take(event(3, numInputRows=10, observedMetrics={"danube": {"dead": 0}}))
    assert progress.dead_rows == 3


def test_the_first_batch_has_no_start() -> None:
    progress = Progress()
    progress.take(event(1, numInputRows=100, sources=[of_topic(None, {"0": 100})]))
    assert progress.rows == 100


def test_a_first_batch_that_scans_its_topic_twice_counts_once() -> None:
    """As a pipeline with dead letters and steps does: Spark counts both ways, and the offsets know where it began."""
    progress = Progress()
    end = {"/default/orders": {"id": 1, "0": 50, "1": 7, "began": [40, 7]}}
    source = {"startOffset": None, "endOffset": end, "latestOffset": end, "numInputRows": 20}
    progress.take(event(1, numInputRows=20, processedRowsPerSecond=30.0, sources=[source]))
    assert (progress.rows, progress.rows_per_second) == (10, 15.0)


def test_offsets_may_be_texts_and_of_other_sources() -> None:
    progress = Progress()
    text = '{"/default/orders": {"id": 1, "0": 5}}'
    progress.take(
        event(1, numInputRows=5, sources=[{"endOffset": text}, {"endOffset": 7}, {"endOffset": '{"logOffset":1}'}])
    )
    assert progress.done == {"/default/orders": TopicOffsets(1, (5,))}


def test_what_is_reported_is_what_the_broker_exports() -> None:
    reported = set(Progress().numbers((0, 0.0)))
    assert set(OF_PROGRESS.values()) | {"watermark"} == reported


def test_watermark_and_state() -> None:
    progress = Progress()
    progress.take(event(1, eventTime={"watermark": "1970-01-01T00:00:00.000Z"}))
    assert progress.watermark is None
    operators = [{"numRowsTotal": 3, "memoryUsedBytes": 100}, {"numRowsTotal": 4, "memoryUsedBytes": 50}]
    times = {"watermark": "2026-11-15T22:40:00.500Z"}
    progress.take(event(2, eventTime=times, stateOperators=operators, observedMetrics={"danube": {"dead": 2}}))
    progress.take(event(3, observedMetrics={"danube": {"dead": 1}}))
    found = progress.numbers((7, 1.5))
    assert (found["state_rows"], found["state_bytes"], found["dead_rows"]) == (7, 150, 3)
    assert found["watermark"] == 1_794_782_400_500_000
    assert (found["lag_rows"], found["lag_seconds"]) == (7, 1.5)


def test_the_lag_is_that_of_the_broker_now(url: str, client: pydanube.sync.Client, topic: str) -> None:
    client.admin.create_topic(topic, partitions=2)
    with client.producer(f"{topic}-part-1") as producer:
        for number in range(10):
            producer.send(str(number).encode())
        producer.flush()
    number = client.admin.describe_topic(topic)["id"]
    link, lag = BrokerLink(url, None), Lag()
    link.open(5.0)
    try:

        def asked(*done: int) -> tuple[int, float | None]:
            return link.wait(lag.of(link.client, {topic: TopicOffsets(number, done)}, {}))

        rows, seconds = asked(0, 4)
        assert rows == 6
        assert seconds is not None
        assert 0 <= seconds < 60
        later = asked(0, 4)[1]
        assert later is not None
        assert later >= seconds  # the same message, now older
        assert asked(0, 10) == (0, 0.0)
        assert asked(0)[0] == 10  # a partition that the query does not know yet
        assert link.wait(lag.of(link.client, {topic: TopicOffsets(number + 1, (0, 0))}, {})) == (0, 0.0)
    finally:
        link.close()
