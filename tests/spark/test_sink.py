"""Writes as Spark makes them, against a broker and without a JVM: each batch once, whatever is repeated or lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

import pydanube.sync
from pydanube.base.errors import (
    BatchTooLarge,
    ColumnInvalid,
    ConnectionLost,
    MessageTooLarge,
    NotReliable,
    OptionInvalid,
    SinkConflict,
    SinkExpired,
    TopicNotFound,
)
from pydanube.base.keys import fnv1a64
from pydanube.client.connection import Connection
from pydanube.operations.operation import Request
from pydanube.operations.sinks import CommitSink
from pydanube.spark import staging
from pydanube.spark.broker_link import close_links
from pydanube.spark.sink import BatchWriter
from pydanube.spark.sink_options import SinkOptions
from pydanube.spark.source import DanubeSource
from pydanube.testing.broker import broker_beside
from spark.sink_world import Run, payloads, rows, values, write_once


def test_a_batch_is_there_when_it_is_committed_with_the_first_task_first(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    run = Run(url, topic)
    staged = run.stage(0, values(b"a", b"b"), values(b"c"), [])
    assert topic not in client.admin.topics("default"), "nothing is seen, and nothing is made, before the commit"
    run.commit(0, staged)
    run.write(1, [values(b"d"), values(b"e")])
    assert payloads(client, topic) == [b"a", b"b", b"c", b"d", b"e"]


def test_all_columns_arrive(url: str, client: pydanube.sync.Client, topic: str) -> None:
    one = rows(value=[b"v", None], key=["k", None], attributes=[[("a", "1")], None], event_time=[5, None])
    Run(url, topic, compression="zstd").write(0, one)
    table = client.read_arrow(topic)
    assert table.column("payload").to_pylist() == [b"v", None]
    assert table.column("key").to_pylist() == [b"k", None]
    assert table.column("attributes").to_pylist() == [[("a", "1")], None]
    assert [None if time is None else time.timestamp() * 1e6 for time in table.column("event_time").to_pylist()] == [
        5,
        None,
    ]


def test_a_key_goes_to_the_partition_that_a_producer_chooses(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    client.admin.create_topic(topic, partitions=4)
    keys = [f"key-{number % 50}" for number in range(2_000)]
    with client.producer(topic) as producer:
        producer.send_many([b"p"] * 50, keys=keys[:50]).result()
    Run(url, topic).write(0, rows(value=[b"%d" % number for number in range(2_000)], key=keys))
    total = 0
    for partition in range(4):
        table = client.read_arrow(f"{topic}-part-{partition}")
        found = list(zip(table.column("key").to_pylist(), table.column("payload").to_pylist(), strict=True))
        assert {fnv1a64(key) % 4 for key, _ in found} == {partition}
        written = [int(payload) for _, payload in found if payload != b"p"]
        assert written == sorted(written), "in the order of the task"
        total += len(written)
    assert total == 2_000


def test_rows_name_their_topics(url: str, client: pydanube.sync.Client, topic: str) -> None:
    one = rows(value=[b"1", b"2", b"3"], topic=[f"{topic}-a", None, f"{topic}-b"])
    Run(url, topic).write(0, one)
    assert [payloads(client, f"{topic}{end}") for end in ("", "-a", "-b")] == [[b"2"], [b"1"], [b"3"]]


# -- the same batch again ----------------------------------------------------------------------------------------------


def test_a_repeated_batch_adds_nothing_even_if_its_rows_fell_differently(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    first = Run(url, topic)
    first.write(0, values(b"a", b"b"), values(b"c"))
    again = first.again()
    again.write(0, values(b"z"), values(b"y", b"x"))
    again.write(1, values(b"d"))
    assert payloads(client, topic) == [b"a", b"b", b"c", b"d"]


def test_a_task_that_ran_twice_counts_once(url: str, client: pydanube.sync.Client, topic: str) -> None:
    run = Run(url, topic)
    [zombie] = run.stage(0, values(b"a", b"b"))
    [attempt] = run.stage(0, values(b"a", b"b"))
    assert zombie.parts != attempt.parts
    run.commit(0, [attempt])
    assert payloads(client, topic) == [b"a", b"b"]


def test_abort_after_a_commit_takes_nothing_back_and_before_it_leaves_nothing(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    run = Run(url, topic)
    staged = run.stage(0, values(b"a"))
    run.commit(0, staged)
    run._writer(["value"]).abort([*staged, None], 0)
    run._writer(["value"]).abort([*run.stage(1, values(b"gone")), None], 1)
    run.write(1, values(b"b"))
    assert payloads(client, topic) == [b"a", b"b"]


def test_two_writes_of_one_batch_need_names_of_their_own(url: str, client: pydanube.sync.Client, topic: str) -> None:
    run = Run(url, topic)
    run.write(0, values(b"a"))
    with pytest.raises(SinkConflict, match="writeName") as caught:
        run.write(0, values(b"b"))
    assert any("What to do" in note for note in caught.value.__notes__)
    named = run.again(writeName="second")
    named.write(0, values(b"b"))
    assert payloads(client, topic) == [b"a", b"b"]


def test_a_checkpoint_that_was_copied_or_wiped_is_named(
    url: str, client: pydanube.sync.Client, topic: str, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    for batch, end in enumerate((10, 20)):
        (checkpoint / "offsets" / str(batch)).write_text(f'v1\n{{}}\n{{"{topic}":{{"0":{end}}}}}', encoding="utf-8")
    run = Run(url, topic, checkpointLocation=str(checkpoint))
    run.write(0, values(b"a"))
    run.write(1, values(b"b"))
    wiped = Run(url, topic, checkpointLocation=f"file://{checkpoint}")
    with pytest.raises(SinkConflict, match=f"{run.query}.*wiped"):
        wiped.write(0, values(b"a"))
    with pytest.raises(SinkConflict, match=f"{run.id}.*old copy"):
        run.again().write(0, values(b"a"))
    (checkpoint / "offsets" / "1").write_text(f'v1\n{{}}\n{{"{topic}":{{"0":25}}}}', encoding="utf-8")
    with pytest.raises(SinkConflict, match="copied"):
        run.again().write(1, values(b"other"))
    assert payloads(client, topic) == [b"a", b"b"]


def test_a_wiped_checkpoint_is_noticed_though_more_has_come_since(
    url: str, client: pydanube.sync.Client, topic: str, tmp_path: Path
) -> None:
    def checkpoint(name: str, end: int, began: int) -> str:
        (tmp_path / name / "offsets").mkdir(parents=True)
        offsets = f'{{"/default/in":{{"id":7,"0":{end},"began":[{began}]}}}}'
        (tmp_path / name / "offsets" / "0").write_text(f"v1\n{{}}\n{offsets}", encoding="utf-8")
        return str(tmp_path / name)

    run = Run(url, topic, checkpointLocation=checkpoint("first", 100, 0))
    run.write(0, values(b"a"))
    wiped = Run(url, topic, checkpointLocation=checkpoint("wiped", 110, 0))
    with pytest.raises(SinkConflict, match=f"{wiped.query}.*{run.query}.*wiped.*writeName.*danube sink forget"):
        wiped.write(0, values(b"a", b"b"))
    Run(url, topic, checkpointLocation=checkpoint("later", 110, 100)).write(0, values(b"b"))
    assert payloads(client, topic) == [b"a", b"b"]


def test_a_second_write_without_a_name_is_not_lost_when_the_batch_is_repeated(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    first = Run(url, topic)
    first.write(0, values(b"a"))  # and it dies before its second write
    for _ in range(2):
        again = first.again()
        again.write(0, values(b"a"))
        with pytest.raises(SinkConflict, match="writeName"):
            again.write(0, values(b"b"))
    assert payloads(client, topic) == [b"a"]


def test_an_end_of_the_input_that_cannot_be_read_is_worth_one_warning_for_each_run(
    url: str, topic: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run = Run(url, topic, checkpointLocation="s3a://bucket/checkpoint")
    for batch in range(3):
        run.write(batch, values(b"a"))
    [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert run.query in warning
    assert "checkpointLocation" in warning
    caplog.clear()
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text("v1\n{}\n5", encoding="utf-8")
    Run(url, f"{topic}-known", checkpointLocation=str(tmp_path)).write(0, values(b"a"))
    write_once(url, f"{topic}-plain", values(b"a"))
    assert not caplog.records


def test_a_stream_says_where_its_checkpoint_is(url: str) -> None:
    """Spark does not show a sink what the session has set."""
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(OptionInvalid, match=r"option\('checkpointLocation'"):
        DanubeSource({"url": url, "topic": "out"}).streamWriter(schema, False)
    assert DanubeSource({"url": url, "topic": "out", "checkpointLocation": "/x"}).streamWriter(schema, False)


def test_versions_of_an_application_are_written_once(url: str, client: pydanube.sync.Client, topic: str) -> None:
    for version, value in ((3, b"a"), (3, b"again"), (2, b"older"), (4, b"b")):
        write_once(url, topic, values(value), txnAppId=topic, txnVersion=str(version))
    assert payloads(client, topic) == [b"a", b"b"]


def test_plain_writes_are_each_their_own_and_leave_nothing_behind(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    before = client.admin.topics("system")
    for _ in range(2):
        write_once(url, topic, values(b"a"), values(b"b"))
    write_once(url, topic, rows(value=[]))
    assert payloads(client, topic) == [b"a", b"b"] * 2
    assert client.admin.topics("system") == before


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_rows_that_are_too_large_are_refused_with_their_size(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    client.admin.create_topic(topic, policies={"message_bytes_max": 100})
    run = Run(url, topic)
    with pytest.raises(MessageTooLarge, match=r"101 bytes.*100"):
        run.stage(0, values(b"x", bytes(101)))
    with pytest.raises(BatchTooLarge, match="17000000 bytes"):
        Run(url, f"{topic}-other").stage(0, values(bytes(17_000_000)))


def test_the_limit_of_a_namespace_holds_for_new_topics(url: str, client: pydanube.sync.Client, topic: str) -> None:
    client.admin.create_namespace("small", policies={"message_bytes_max": 10})
    with pytest.raises(MessageTooLarge, match=r"11 bytes.*maximum for /small/new is 10"):
        Run(url, "/small/new").stage(0, values(bytes(11)))


def test_a_topic_that_keeps_nothing_is_refused(url: str, client: pydanube.sync.Client, topic: str) -> None:
    client.admin.create_topic(topic, reliable=False)
    with pytest.raises(NotReliable, match="exactly once"):
        Run(url, topic).stage(0, values(b"x"))


def test_nothing_is_written_to_what_belongs_to_the_broker(url: str, client: pydanube.sync.Client) -> None:
    with pytest.raises(OptionInvalid, match="/system/x belongs to the broker"):
        Run(url, "/system/x").stage(0, values(b"a"))
    with pytest.raises(ColumnInvalid, match="/system/x belongs to the broker"):
        Run(url, "out").stage(0, rows(value=[b"a"], topic=["/system/x"]))
    assert "/system/x" not in client.admin.topics("system")


def test_what_was_staged_and_is_gone_is_not_committed(url: str, client: pydanube.sync.Client, topic: str) -> None:
    run = Run(url, topic)
    [staged] = run.stage(0, values(b"a"))
    staged.parts[topic] = [(10_000, 10_000)]
    with pytest.raises(SinkExpired):
        run.commit(0, [staged])
    with pytest.raises(TopicNotFound):
        client.admin.describe_topic(topic)


def test_a_task_that_hands_over_nothing_or_something_else_stops_the_commit(
    url: str, client: pydanube.sync.Client, topic: str
) -> None:
    run = Run(url, topic)
    [one], [other] = run.stage(0, values(b"a")), run.stage(1, values(b"b"))
    for messages in ([one, None], [one, other]):
        with pytest.raises(SinkExpired, match="task"):
            run.commit(0, messages)
    assert topic not in client.admin.topics("default")


def test_a_stream_numbers_its_batches_itself(url: str) -> None:
    source = DanubeSource({"url": url, "topic": "out", "txnAppId": "app", "txnVersion": "1"})
    schema = StructType([StructField("value", BinaryType())])
    assert isinstance(source.writer(schema, False), BatchWriter)
    with pytest.raises(OptionInvalid, match="batch writes"):
        source.streamWriter(schema, False)


def test_overwriting_is_refused(url: str) -> None:
    source = DanubeSource({"url": url, "topic": "out"})
    schema = StructType([StructField("value", BinaryType())])
    assert isinstance(source.writer(schema, False), BatchWriter)
    for make in (source.writer, source.streamWriter):
        with pytest.raises(OptionInvalid, match="append"):
            make(schema, True)


# -- a broker that dies ------------------------------------------------------------------------------------------------


def test_a_broker_that_dies_while_rows_are_staged_and_committed_is_waited_for(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "WINDOW_BYTES", 200_000)
    count = 400
    with broker_beside() as broker:
        run = Run(broker.url, topic)
        taken = threading.Semaphore(0)
        real = staging.Stage._take

        def take(stage: staging.Stage) -> None:
            real(stage)
            taken.release()

        monkeypatch.setattr(staging.Stage, "_take", take)

        def die() -> None:
            for _ in range(3):
                for _ in range(20):
                    taken.acquire()
                broker.crash()

        killer = threading.Thread(target=die)
        killer.start()
        run.write(0, (values(*[b"%06d" % number + bytes(60_000)] * 20) for number in range(count // 4)))
        killer.join()
        with pydanube.sync.connect(broker.url) as client:
            found = [bytes(each or b"")[:6] for each in payloads(client, topic)]
        assert found == [b"%06d" % number for number in range(count // 4) for _ in range(20)]
        close_links()


def test_a_commit_whose_answer_got_lost_is_asked_for_again(topic: str) -> None:
    with broker_beside() as broker:
        run = Run(broker.url, topic)
        for batch in range(4):
            staged = run.stage(batch, values(b"%d" % batch, b"x"))
            committing = threading.Thread(target=run.commit, args=(batch, staged))
            committing.start()
            broker.crash()
            committing.join()
        with pydanube.sync.connect(broker.url) as client:
            assert payloads(client, topic) == [b"0", b"x", b"1", b"x", b"2", b"x", b"3", b"x"]
        close_links()


@pytest.mark.parametrize("done", [False, True])
def test_a_plain_write_that_is_asked_for_again_is_done_only_if_it_was(
    url: str, client: pydanube.sync.Client, topic: str, done: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it is lost, before the broker has it or after. If not, the topic that it goes to is gone."""
    real = Connection.request
    asked = 0

    async def request(connection: Connection, request: Request[Any]) -> Any:
        nonlocal asked
        if isinstance(request, CommitSink):
            asked += 1
            if asked == 1:
                if done:
                    await real(connection, request)
                raise ConnectionLost("planted")
        return await real(connection, request)

    monkeypatch.setattr(Connection, "request", request)
    client.admin.create_topic(topic, partitions=1)
    writer = BatchWriter(SinkOptions.of({"url": url, "topic": topic}), ["value"])
    staged = writer.stage(iter([values(b"a")]), {}.get, 0)
    if done:
        writer.commit([staged])
        assert payloads(client, topic) == [b"a"]
    else:
        client.admin.delete_topic(topic)
        with pytest.raises(TopicNotFound, match=topic):
            writer.commit([staged])
    assert asked == 2
