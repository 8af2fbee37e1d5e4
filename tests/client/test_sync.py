"""The client without `await`, from a plain program and from within a running loop."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pydanube.sync
from client.broker import TOPIC, running
from pydanube.base.errors import (
    ArgumentInvalid,
    ClientClosed,
    ConnectionLost,
    DanubeError,
    MessageTooLarge,
    NothingReceived,
    TopicNotFound,
)
from pydanube.sync.loop import Pending
from pydanube.testing.broker import broker_thread


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A broker in a thread of its own."""
    ready: list[str] = []
    started, loop = threading.Event(), asyncio.new_event_loop()
    stop = asyncio.Event()

    async def run() -> None:
        async with running(tmp_path) as server:
            ready.append(server.url)
            started.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),))
    thread.start()
    assert started.wait(10)
    yield ready[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join()
    loop.close()


def test_publish_and_consume(url: str) -> None:
    with pydanube.sync.connect(url) as client:
        with client.producer(TOPIC) as producer:
            assert producer.send(b"one", key="k").result().offset == 0
            assert producer.send_many([b"two", b"three"]).result().offsets == [1, 2]
            for number in range(2000):
                producer.send(b"%d" % number)
        with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            got = []
            for message in consumer:
                got.append(message.payload)
                consumer.ack(message)
                if len(got) == 2003:
                    break
            assert got == [b"one", b"two", b"three", *(b"%d" % number for number in range(2000))]
            consumer.seek(2000)
            assert [message.offset for message in consumer.fetch(3, timeout=5)] == [2000, 2001, 2002]
            consumer.seek(0)
            batch = next(consumer.batches())
            consumer.ack(batch).result(5)
            consumer.seek(2003)
            with pytest.raises(NothingReceived):
                consumer.receive(timeout=0.01)
        with client.reader(TOPIC, start=1) as reader:
            assert reader.receive(5).payload == b"two"
        assert client.read_arrow(TOPIC).num_rows == 2003
        assert client.admin.topics() == [TOPIC]
        assert [record["partitions"] for record in client.admin.topic_records()] == [0]
        with pytest.raises(TopicNotFound):
            client.admin.describe_topic("/default/nothing")
    with pytest.raises(ClientClosed):
        client.producer(TOPIC)


def test_it_works_inside_a_running_loop(url: str) -> None:
    async def notebook() -> int | None:
        with pydanube.sync.connect(url) as client, client.producer(TOPIC) as producer:
            return producer.send(b"one").result().offset

    assert asyncio.run(notebook()) == 0


def test_a_full_buffer_makes_send_wait(url: str) -> None:
    with (
        pydanube.sync.connect(url) as client,
        client.producer(TOPIC, buffer_bytes=20_000, batch_bytes=2_000) as producer,
    ):
        pending = [producer.send(bytes(1000)) for _ in range(500)]
        assert [each.result().offset for each in pending] == list(range(500))


@pytest.mark.parametrize("many", [1, 5])
def test_what_the_loop_has_not_looked_at_is_bounded_in_bytes_too(url: str, many: int) -> None:
    """However few calls they are: where the broker takes nothing, each may be of megabytes."""
    with pydanube.sync.connect(url) as client, client.producer(TOPIC, buffer_bytes=20_000) as producer:
        producer.send(b"first").result()
        busy, pending = threading.Event(), list[Pending[Any]]()
        client._loop.loop.call_soon_threadsafe(busy.wait)

        def send() -> None:
            for _ in range(100 // many):
                pending.append(producer.send_many([bytes(1000)] * many) if many > 1 else producer.send(bytes(1000)))
            pending.append(producer.send(bytes(50_000)))  # more than there is room for, at any time

        sender = threading.Thread(target=send)
        sender.start()
        try:
            while not producer._room._waiters:  # type: ignore[attr-defined]
                sender.join(0.001)
                assert sender.is_alive()
            assert producer._waiting_bytes == 20_000
        finally:
            busy.set()
        sender.join()
        for each in pending:
            each.result(10)
        assert producer._waiting_bytes == producer._waiting == 0


def test_what_nobody_asked_about_surfaces_at_flush(url: str) -> None:
    with pydanube.sync.connect(url) as client:
        client.admin.create_topic(TOPIC, policies={"message_bytes_max": 1000})
        with client.producer(TOPIC) as producer:
            producer.send(["no bytes"])
            with pytest.raises(TypeError):
                producer.flush()
            producer.send(bytes(2000))
            with pytest.raises(MessageTooLarge):
                producer.flush()
            with pytest.raises(TypeError):
                producer.send(["no bytes"]).result()
            producer.flush()


def test_threads_share_a_producer(url: str) -> None:
    with pydanube.sync.connect(url) as client, client.producer(TOPIC) as producer:
        threads = [threading.Thread(target=lambda: [producer.send(b"x") for _ in range(200)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        producer.flush()
        assert producer.send(b"last").result().offset == 800


def test_nobody_at_the_address_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    with pytest.raises(ConnectionLost), pydanube.sync.connect("danube://127.0.0.1:1"):
        pass
    assert threading.active_count() == before


def test_importing_a_core_loads_no_client() -> None:
    program = "import sys, pydanube, pydanube.wire.batch; assert not [m for m in sys.modules if 'pydanube.client' in m]"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_steering_without_await_has_the_same_words_and_errors(url: str) -> None:
    with pydanube.sync.connect(url) as client:
        with client.producer(TOPIC, name="import") as producer:
            assert producer.last_sequence is None
            producer.send_many([b"0", b"1", b"2"], sequence=0).result()
            assert producer.send(b"1", sequence=1).result().duplicate
            assert producer.last_sequences == [2]
        options = {"failure": {"base_delay": 0.001}}
        with client.consumer(TOPIC, subscription="s", type="shared", start="earliest", options=options) as consumer:
            assert consumer.partitions == [(TOPIC, None)]
            message = consumer.receive(5)
            with pytest.raises(ArgumentInvalid):
                consumer.nack(message, delay=-1)
            consumer.nack(message)
            assert [each.offset for each in consumer.fetch(3, timeout=5)] == [1, 2, 0]
        with client.reader(TOPIC, start=1) as reader:
            assert reader.receive(5).payload == b"1"
            assert reader.offsets == {None: 2}
        with pytest.raises(ClientClosed):
            consumer.ack(message).result(5)


def test_a_wait_that_is_over_says_why_it_was_long(tmp_path: Path) -> None:
    with broker_thread(tmp_path / "data") as url:
        client = pydanube.sync.connect(url).open()
        producer = client.producer(TOPIC, send_timeout=1.0).open()
        assert producer.send(b"one").result(5).offset == 0
        consumer = client.consumer(TOPIC, subscription="s", start="earliest").open()
        message = consumer.receive(5)
    for waits in (producer.send(b"two"), producer.send_many([b"three"]), consumer.ack(message)):
        with pytest.raises(DanubeError) as why:
            waits.result(timeout=0.02)
        assert why.value.retriable
    client.close()


def test_a_list_with_a_message_that_is_too_large_is_refused_as_a_whole(url: str) -> None:
    with pydanube.sync.connect(url) as client:
        client.admin.create_topic(TOPIC, policies={"message_bytes_max": 10})
        with client.producer(TOPIC) as producer:
            with pytest.raises(MessageTooLarge):
                producer.send_many([b"fine", bytes(11)]).result()
            assert producer.send_many([b"fine"]).result().offsets == [0]
