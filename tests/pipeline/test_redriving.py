"""Dead letters that go through their pipeline again: once each, whatever is killed, and as they were."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import pydanube
from pydanube.base.errors import ConnectionLost, RedriveOvertaken
from pydanube.pipeline.dead_letters import redrive_record, redriving
from pydanube.pipeline.dead_letters.redrive_record import OffsetRanges, Pending, RedriveRecord, _page_of
from pydanube.pipeline.dead_letters.redriving import ORIGIN, Redriven, redrive
from pydanube.pipeline.query.writer import letter_schema
from pydanube.pipeline.sinks.topic import TopicSink
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.targets.files.json_rows import json_of
from pydanube.sync import Client

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
    name = f"p{crc32(topic.encode())}"  # the record of a pipeline has bounds that its topics share
    return Flow.of({"name": name, "source": source, "sink": {"delta": "out"}, "dead_letters": letters}, tmp_path)


@pytest.fixture
def put(client: Client, topic: str, flow: Flow, tmp_path: Path, kind: str) -> Put:
    """Letters of these offsets, as a batch of the pipeline leaves them."""

    def write(*offsets: int, error: str = "expected id > 0", pipeline: str = flow.name, **others: Any) -> None:
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

    async def killed(marks: RedriveRecord, key: str, offsets: list[int]) -> None:
        raise ConnectionLost("killed")

    monkeypatch.setattr(RedriveRecord, "add", killed)
    with pytest.raises(ConnectionLost):
        run(url, flow)
    monkeypatch.undo()
    put(0, 4)  # and meanwhile there are more, before and behind them
    monkeypatch.setattr(redriving, "CHUNK", 1)  # and others come together
    assert run(url, flow) == Redriven(2, 0, 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m2", b"m0", b"m4"]


def test_who_is_killed_before_anything_is_published_leaves_nothing_out(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, topic, 5)
    put(1)
    assert run(url, flow).letters == 1
    put(2, 3)
    note = RedriveRecord.note

    async def killed(marks: RedriveRecord, pending: Pending) -> None:
        await note(marks, pending)
        raise ConnectionLost("killed")

    monkeypatch.setattr(RedriveRecord, "note", killed)
    with pytest.raises(ConnectionLost):
        run(url, flow)
    monkeypatch.undo()
    assert run(url, flow) == Redriven(2, 0, 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m2", b"m3"]


@pytest.mark.parametrize("kind", ["parquet"])
@pytest.mark.parametrize("end", ["ended", "killed"])
@pytest.mark.parametrize(("step", "at"), [("note", "before"), ("note", "after"), ("add", "before"), ("add", "after")])
def test_a_run_that_starts_while_another_is_under_way_takes_over_and_no_letter_goes_twice(
    url: str,
    client: Client,
    topic: str,
    flow: Flow,
    put: Put,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    at: str,
    end: str,
) -> None:
    published(client, topic, 5)
    put(0, 1, 2, 3, 4)
    monkeypatch.setattr(redriving, "CHUNK", 2)
    plain: Any = getattr(RedriveRecord, step)
    publish: Any = redriving._Redrive._publish

    async def work() -> Redriven | None:
        here, further = asyncio.Event(), asyncio.Event()

        async def paused(*arguments: Any) -> None:
            monkeypatch.setattr(RedriveRecord, step, plain)  # only the first time
            if at == "after":
                await plain(*arguments)
            here.set()
            await further.wait()
            if at == "before":
                await plain(*arguments)

        async def killed(*arguments: Any) -> None:
            await publish(*arguments)
            raise ConnectionLost("killed")

        async with pydanube.connect(url) as one, pydanube.connect(url) as other:
            monkeypatch.setattr(RedriveRecord, step, paused)
            first = asyncio.create_task(redrive(one, flow, url))
            await here.wait()
            found = None
            with monkeypatch.context() as patch:
                if end == "killed":
                    patch.setattr(redriving._Redrive, "_publish", killed)
                    with pytest.raises(ConnectionLost):
                        await redrive(other, flow, url)
                else:
                    found = await redrive(other, flow, url)
            further.set()
            with pytest.raises(RedriveOvertaken, match=f"another redrive of {flow.name} is running"):
                await first
            return found

    found = asyncio.run(asyncio.wait_for(work(), 60))
    before = 2 if step == "add" else 0
    assert found is None or found == Redriven(5 - before, 0, 0)
    assert run(url, flow).letters == (3 - before if found is None else 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m0", b"m1", b"m2", b"m3", b"m4"]
    assert run(url, flow) == Redriven(0, 0, 0)


@pytest.mark.parametrize("kind", ["parquet"])
def test_marks_that_two_runs_add_to_one_page_are_all_kept(url: str, flow: Flow) -> None:
    async def work() -> None:
        async with pydanube.connect(url) as client:
            one, other, later = (RedriveRecord(client, flow.name) for _ in range(3))
            for marks in (one, other):
                await marks.load(["1.0"])
            await one.add("1.0", [1])
            await other.add("1.0", [5])
            await one.add("1.0", [9])
            await later.load(["1.0"])
            assert [each for each in range(12) if later.redriven("1.0").find(each)] == [1, 5, 9]

    asyncio.run(work())


def test_all_letters_of_a_partition_go_under_one_name(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = set[object]()
    producer = pydanube.Client.producer

    def watched(client: pydanube.Client, address: str, **options: Any) -> Any:
        names.add(options["name"])
        return producer(client, address, **options)

    published(client, topic, 5)
    put(1, 2, 3)
    monkeypatch.setattr(pydanube.Client, "producer", watched)
    monkeypatch.setattr(redriving, "CHUNK", 1)
    assert run(url, flow).letters == 3
    assert len(names) == 1


def test_letters_before_the_last_one_redriven_are_redriven_too(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    """As after a reset to the beginning."""
    published(client, topic, 5)
    put(3)
    assert run(url, flow).letters == 1
    put(0, 1, 3)
    assert run(url, flow) == Redriven(2, 0, 0)
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m3", b"m0", b"m1"]


def test_letters_that_nobody_knows_of_are_counted_and_go_if_asked_for(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, topic, 9)
    monkeypatch.setattr(redrive_record, "RANGES_MAX", 2)
    put(0, 3, 8)
    assert run(url, flow) == Redriven(3, 0, 0)
    put(2, 6)
    assert run(url, flow) == Redriven(1, 0, 0, unsure=1)
    assert [each["payload"] for each in since(client, topic, 12)] == [b"m6"]
    assert run(url, flow, again=True) == Redriven(5, 0, 0)
    assert [each["payload"] for each in since(client, topic, 13)] == [b"m0", b"m2", b"m3", b"m6", b"m8"]


def test_a_letter_that_its_topic_does_not_take_keeps_no_others_back(
    url: str, client: Client, topic: str, flow: Flow, put: Put
) -> None:
    published(client, topic, 5)
    put(1, 4)
    put(2, value=b"x" * 200)
    client.admin.alter_topic(topic, policies={"message_bytes_max": 100})
    found = run(url, flow)
    assert (found.letters, found.refused, len(found.refusals)) == (2, 1, 1)
    assert f"{topic} offset 2: message_too_large" in found.refusals[0]
    assert [each["payload"] for each in since(client, topic, 5)] == [b"m1", b"m4"]
    client.admin.alter_topic(topic, policies={"message_bytes_max": 1000})
    assert run(url, flow) == Redriven(1, 0, 0)


def test_times_after_the_year_9999_are_taken(url: str, client: Client, topic: str, flow: Flow, put: Put) -> None:
    published(client, topic, 2)
    put(1, event_time=1_700_000_000_000_000_000)
    assert run(url, flow).letters == 1
    [message] = client.admin.peek(topic, 10)[2:]
    assert message.event_time == 1_700_000_000_000_000_000


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
    publish, offset = redriving._Redrive.publish, 4

    async def failing_again(*arguments: Any) -> None:
        nonlocal offset
        await publish(*arguments)
        offset += 1
        await asyncio.to_thread(put, offset)

    monkeypatch.setattr(redriving._Redrive, "publish", failing_again)
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
            marks = RedriveRecord(client, "wide")
            await marks.load(places)
            for page in marks._pages:
                own = [each for each in places if _page_of(each) == page]
                marks._pages[page] = {each: OffsetRanges([(1 << 40, 1 << 41, 7 << 30)]) for each in own}
                await marks.add(own[0], range(0, 1000, 2))
            again = RedriveRecord(client, "wide")
            await again.load(places)
            assert all(again.redriven(each).all == marks.redriven(each).all for each in places)
            await client.admin.forget_pipeline("wide", records=True)
            gone = RedriveRecord(client, "wide")
            await gone.load(places[:1])
            assert gone.redriven(places[0]).all == []

    asyncio.run(work())


@pytest.mark.parametrize("kind", ["parquet"])
def test_letters_in_folders_by_column_have_what_their_names_say(
    url: str, client: Client, topic: str, flow: Flow, tmp_path: Path
) -> None:
    published(client, topic, 3)
    rows = [{"topic": topic, "partition": 0, "offset": 1, "value": b"m1", "pipeline": flow.name}]
    table = pa.Table.from_pylist(rows, schema=letter_schema()).drop_columns(["topic", "pipeline"])
    folder = tmp_path / "dead" / f"topic={quote(topic, safe='')}" / f"pipeline={flow.name}"
    folder.mkdir(parents=True)
    pq.write_table(table, folder / "1.parquet")
    assert run(url, flow) == Redriven(1, 0, 0)
    assert [each["payload"] for each in since(client, topic, 3)] == [b"m1"]


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_a_table_of_letters_from_before_some_columns_is_read(
    url: str, client: Client, topic: str, flow: Flow, tmp_path: Path, kind: str
) -> None:
    published(client, topic, 3)
    rows = [{"topic": topic, "partition": 0, "offset": 1, "value": b"m1", "pipeline": flow.name}]
    table = pa.Table.from_pylist(rows, schema=letter_schema()).drop_columns(["attributes", "event_time", "rule"])
    if kind == "delta":
        write_deltalake(str(tmp_path / "dead"), table)
    else:
        (tmp_path / "dead").mkdir()
        pq.write_table(table, tmp_path / "dead" / "1.parquet")
    assert run(url, flow) == Redriven(1, 0, 0)


@pytest.mark.parametrize("kind", ["topic"])
def test_letters_in_a_topic_of_another_broker_are_read_there(
    url: str, client: Client, topic: str, flow: Flow, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    published(client, topic, 3)
    put(1)
    assert isinstance(flow.dead_letters, TopicSink)
    elsewhere = replace(flow, dead_letters=replace(flow.dead_letters, url="danube://127.0.0.1:1"))
    asked = list[str]()
    connect = pydanube.connect

    def watched(place: str, **options: Any) -> Any:
        asked.append(place)
        return connect(url, **options)

    async def work() -> Redriven:
        async with connect(url) as home:
            monkeypatch.setattr(pydanube, "connect", watched)
            return await redrive(home, elsewhere, url)

    assert asyncio.run(work()).letters == 1
    assert set(asked) == {"danube://127.0.0.1:1"}
