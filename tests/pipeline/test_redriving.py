"""Dead letters that go through their pipeline again: once each, whatever is killed, and as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import pydanube
from pydanube.base.errors import ConnectionLost
from pydanube.pipeline import redriving
from pydanube.pipeline.flow import Flow
from pydanube.pipeline.keeping import Marks, _page_of
from pydanube.pipeline.redriving import ORIGIN, Redriven, redrive
from pydanube.pipeline.targets.json_rows import json_of
from pydanube.pipeline.targets.sink import letter_schema
from pydanube.sync import Client

SECOND = 1_000_000
Put = Callable[..., None]


def published(client: Client, topic: str, count: int) -> None:
    with client.producer(topic) as producer:
        for number in range(count):
            producer.send(b"m%d" % number, key=f"k{number}", attributes={"trace": str(number)}, event_time=number)
        producer.flush()


@pytest.fixture(params=["delta", "parquet", "topic"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def flow(topic: str, tmp_path: Path, kind: str) -> Flow:
    source = {"topic": topic, "format": "json", "schema": "id BIGINT"}
    letters = {kind: f"{topic}-dead" if kind == "topic" else "dead"}
    return Flow.of({"name": "p", "source": source, "sink": {"delta": "out"}, "dead_letters": letters}, tmp_path)


@pytest.fixture
def put(client: Client, topic: str, tmp_path: Path, kind: str) -> Put:
    """Letters of these offsets, as a batch of the pipeline leaves them."""

    def write(*offsets: int, error: str = "expected id > 0", pipeline: str = "p", **others: Any) -> None:
        at = datetime(2026, 1, 31, tzinfo=UTC)
        plain = {"topic": topic, "partition": 0, "timestamp": at, "error": error, "rule": "r", "pipeline": pipeline}
        rows = [
            {
                **plain,
                "offset": n,
                "event_time": datetime.fromtimestamp(n, UTC),
                "key": b"k%d" % n,
                "attributes": [("trace", str(n))],
                "value": b"m%d" % n,
                **others,
            }
            for n in offsets
        ]
        table = pa.Table.from_pylist(rows, schema=letter_schema())
        if kind == "delta":
            write_deltalake(str(tmp_path / "dead"), table, mode="append")
        elif kind == "parquet":
            (tmp_path / "dead" / "_danube").mkdir(parents=True, exist_ok=True)
            pq.write_table(table, tmp_path / "dead" / f"{offsets[0]}-{pipeline}.parquet")
            (tmp_path / "dead" / "_danube" / "staged.parquet").write_bytes(b"not for readers")
        else:
            with client.producer(f"{topic}-dead") as producer:
                for payload in json_of(table.combine_chunks().to_batches()[0]).to_pylist():
                    producer.send(payload)
                producer.flush()

    return write


def run(url: str, flow: Flow, **options: bool) -> Redriven:
    async def work() -> Redriven:
        async with pydanube.connect(url) as client:
            return await redrive(client, flow, url, **options)

    return asyncio.run(work())


def since(client: Client, topic: str, offset: int) -> list[dict[str, Any]]:
    return list(client.read_arrow(topic, start=offset).to_pylist())


def test_each_letter_is_published_once_more_with_all_that_its_message_had(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 5)
    put(3, 1)
    put(2, pipeline="another")
    assert run(url, flow, dry_run=True) == Redriven(2, 0, 0)
    assert since(client, topic, 5) == []
    assert run(url, flow) == Redriven(2, 0, 0)
    first, second = since(client, topic, 5)
    assert [each["payload"] for each in (first, second)] == [b"m1", b"m3"]
    assert (first["key"], dict(first["attributes"])) == (b"k1", {"trace": "1", ORIGIN: f"{topic} 1"})
    assert first["event_time"] == datetime.fromtimestamp(1, UTC)
    assert run(url, flow) == Redriven(0, 0, 0)
    put(4)
    assert run(url, flow) == Redriven(1, 0, 0)
    assert len(since(client, topic, 5)) == 3


def test_who_is_killed_before_it_is_noted_publishes_none_twice(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, topic, 5)
    put(1, 2)

    async def killed(marks: Marks, key: str, offset: int) -> None:
        raise ConnectionLost("killed")

    monkeypatch.setattr(Marks, "note", killed)
    with pytest.raises(ConnectionLost):
        run(url, flow)
    monkeypatch.undo()
    put(4)  # and meanwhile there is one more
    assert run(url, flow) == Redriven(3, 0, 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m2", b"m4"]


def test_a_message_with_two_letters_is_published_once(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 5)
    put(1, 2)
    put(3, 1)  # the pipeline was reset, and read them again
    assert run(url, flow) == Redriven(3, 0, 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m2", b"m3"]


def test_letters_that_fail_again_meanwhile_are_left_for_the_next_time(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, topic, 5)
    put(1)
    publish, offset = redriving._publish, 4

    async def failing_again(*arguments: Any) -> None:
        nonlocal offset
        await publish(*arguments)
        offset += 1
        await asyncio.to_thread(put, offset)

    monkeypatch.setattr(redriving, "_publish", failing_again)
    assert run(url, flow) == Redriven(1, 0, 0)
    assert len(since(client, topic, 5)) == 1


def test_late_letters_stay_unless_they_are_asked_for(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 5)
    put(0, error="late: event_time 1970 is not after the watermark")
    put(1)
    put(2, topic=None, offset=None)
    assert run(url, flow) == Redriven(1, 1, 1)
    assert run(url, flow, late=True) == Redriven(1, 0, 1)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m0"]


def test_a_message_that_the_topic_has_no_more_comes_from_its_letter(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 2)
    put(7, value=b"kept", attributes=None, event_time=None)
    assert run(url, flow) == Redriven(1, 0, 0)
    [found] = since(client, topic, 2)
    assert (found["payload"], dict(found["attributes"])) == (b"kept", {ORIGIN: f"{topic} 7"})
    assert found["event_time"] == datetime(2026, 1, 31, tzinfo=UTC), "else it would be in another window"


def test_letters_of_a_topic_that_was_made_again_are_redriven_to_it(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 5)
    put(3)
    assert run(url, flow) == Redriven(1, 0, 0)
    client.admin.delete_topic(topic)
    put(2)
    assert run(url, flow) == Redriven(0, 0, 2), "their topic is gone"
    published(client, topic, 1)
    assert run(url, flow) == Redriven(2, 0, 0), "offsets of the one before say nothing of this one"
    assert [each["payload"] for each in since(client, topic, 1)] == [b"m2", b"m3"]


@pytest.mark.parametrize("bound", ["PASS_BYTES_MAX", "PASS_LETTERS_MAX"])
def test_letters_that_memory_is_not_meant_for_take_further_passes_in_order(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    published(client, topic, 1)
    for offset in (9, 2, 7, 4, 5, 6, 3, 8, 1):  # the last comes first
        put(offset, value=b"%d" % offset)
    monkeypatch.setattr(redriving, bound, 2)
    assert run(url, flow, dry_run=True).more
    assert run(url, flow) == Redriven(9, 0, 0)
    assert [int(each["payload"]) for each in since(client, topic, 1)] == list(range(1, 10))
    assert run(url, flow) == Redriven(0, 0, 0)


def test_how_far_it_is_fits_what_the_broker_keeps_with_every_partition_there_can_be(url: str) -> None:
    places = [
        f"{(1 << 40) + topic}.{number}{late}" for topic in range(16) for number in range(1024) for late in ("", ".late")
    ]

    async def work() -> None:
        async with pydanube.connect(url) as client:
            marks = Marks(client, "wide")
            await marks.load(places)
            for page in marks._pages:
                own = [each for each in places if _page_of(each) == page]
                marks._pages[page] = dict.fromkeys(own, 1 << 40)
                await marks.note(own[0], 7)
            again = Marks(client, "wide")
            await again.load(places)
            assert again._pages == marks._pages
            await client.admin.forget_pipeline("wide", records=True)
            gone = Marks(client, "wide")
            await gone.load(places[:1])
            assert gone.reached(places[0]) == -1

    asyncio.run(work())
