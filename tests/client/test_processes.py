"""Clients and whole programs: forks, ends without closing, Ctrl-C, callbacks and threads."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

import pydanube.sync
from client.broker import TOPIC, with_client
from pydanube.base.errors import ClientClosed, DanubeError, NothingReceived, NotOpened, OtherLoop
from pydanube.client import Client
from pydanube.client import ClientEvent as Event
from pydanube.sync.loop import LoopThread
from pydanube.testing.broker import broker_thread


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with broker_thread(tmp_path / "data") as url:
        yield url


def program(text: str, url: str) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, which it must come to by itself."""
    command = [sys.executable, "-c", text.replace("URL", repr(url))]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


def stored(url: str, topic: str = TOPIC) -> int:
    with pydanube.sync.connect(url) as client:
        return int(client.admin.describe_topic(topic)["end"])


# -- forks -------------------------------------------------------------------------------------------------------------

FORKED = """
import os, signal
from pydanube import sync
client = sync.connect(URL).open()
producer = client.producer("/default/orders").open()
consumer = client.consumer("/default/orders", subscription="s", start="earliest").open()
producer.send(b"parent").result(10)
message = consumer.receive(10)
def attempt(what):
    try:
        what()
    except Exception as error:
        print(type(error).__name__, flush=True)
child = os.fork()
if not child:
    signal.alarm(10)
    attempt(lambda: producer.send(b"child").result(5))
    attempt(lambda: producer.flush())
    attempt(lambda: consumer.receive(timeout=5))
    attempt(lambda: consumer.ack(message))
    attempt(lambda: client.admin.topics())
    client.close()
    with sync.connect(URL) as own, own.producer("/default/orders") as mine:
        print(mine.send(b"own").result(5).offset, flush=True)
    raise SystemExit
assert os.waitpid(child, 0)[1] == 0
print(producer.send(b"parent").result(10).offset)
consumer.ack(message).result(10)
client.close()
"""

FORKED_ASYNC = """
import asyncio, os, signal, pydanube
async def attempt(what):
    try:
        await what()
    except Exception as error:
        print(type(error).__name__, flush=True)
async def child(client, producer, consumer, reader, message):
    async def ack():
        await consumer.ack(message)
    await attempt(lambda: producer.send(b"child"))
    await attempt(lambda: producer.send_many([b"child"]))
    await attempt(lambda: consumer.receive(timeout=5))
    await attempt(lambda: reader.receive(timeout=5))
    await attempt(ack)
    await attempt(lambda: client.admin.topics())
    await client.close()
    async with pydanube.connect(URL) as own, own.producer("/default/orders") as mine:
        print((await mine.send(b"own")).offset, flush=True)
async def main():
    async with (
        pydanube.connect(URL) as client,
        client.producer("/default/orders", linger=60) as producer,
        client.consumer("/default/orders", subscription="s", start="earliest") as consumer,
        client.reader("/default/orders") as reader,
    ):
        await producer.send(b"parent")
        message = await consumer.receive(10)
        producer.send(b"unsent")
        forked = os.fork()
        if not forked:
            signal.alarm(10)
            try:
                asyncio.run(child(client, producer, consumer, reader, message))
            finally:
                os._exit(0)
        assert os.waitpid(forked, 0)[1] == 0
        print((await producer.send(b"parent")).offset)
        await consumer.ack(message)
asyncio.run(main())
"""


@pytest.mark.parametrize(("text", "refused", "offsets"), [(FORKED, 5, ["1", "2"]), (FORKED_ASYNC, 6, ["1", "3"])])
def test_a_forked_child_is_told_and_its_parent_is_not_disturbed(
    url: str, text: str, refused: int, offsets: list[str]
) -> None:
    ended = program(text, url)
    assert ended.stdout.split() == ["ClientForked"] * refused + offsets, ended
    assert ended.returncode == 0, ended


# -- ends --------------------------------------------------------------------------------------------------------------

NEVER_CLOSED = """
from pydanube import sync
client = sync.connect(URL).open()
producer = client.producer("/default/orders", linger=60).open()
for number in range(1000):
    producer.send(b"%d" % number)
"""

NEVER_CLOSED_ASYNC = """
import asyncio, pydanube
async def main():
    client = await pydanube.connect(URL).open()
    producer = await client.producer("/default/orders", linger=60).open()
    for number in range(1000):
        producer.send(b"%d" % number)
asyncio.run(main())
"""

CUT_SHORT = """
import asyncio, pydanube
async def main():
    client = await pydanube.connect(URL).open()
    producer = await client.producer("/default/orders", linger=60).open()
    for number in range(1000):
        producer.send(b"%d" % number)
    return client
loop = asyncio.new_event_loop()
client = loop.run_until_complete(main())
"""


@pytest.mark.parametrize("text", [NEVER_CLOSED, NEVER_CLOSED_ASYNC])
def test_a_program_that_ends_without_closing_sends_what_it_has(url: str, text: str) -> None:
    ended = program(text, url)
    assert (ended.returncode, stored(url)) == (0, 1000), ended


def test_a_program_that_cannot_send_any_more_says_what_it_did_not_send(url: str) -> None:
    ended = program(CUT_SHORT, url)
    assert "1,000 messages may not have been sent" in ended.stderr, ended


INTERRUPTED = """
import asyncio, pydanube
async def main():
    async with pydanube.connect(URL) as client, client.producer("/default/orders") as producer:
        print("open", flush=True)
        while True:
            await producer.send(b"x")
asyncio.run(main())
"""

INTERRUPTED_SYNC = """
from pydanube import sync
with sync.connect(URL) as client, client.producer("/default/orders") as producer:
    print("open", flush=True)
    while True:
        producer.send(b"x").result()
"""


@pytest.mark.parametrize("text", [INTERRUPTED, INTERRUPTED_SYNC])
def test_ctrl_c_ends_a_program_soon_when_its_broker_is_away(tmp_path: Path, text: str) -> None:
    with broker_thread(tmp_path / "data") as url:
        command = [sys.executable, "-c", text.replace("URL", repr(url))]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
    process.send_signal(signal.SIGINT)
    try:
        process.wait(5)  # two seconds, and what a busy machine adds
    finally:
        process.kill()
    _, errors = process.communicate()
    assert process.returncode != -signal.SIGKILL
    assert "KeyboardInterrupt" in errors


# -- threads and callbacks ---------------------------------------------------------------------------------------------


def test_a_send_from_another_thread_is_refused(tmp_path: Path) -> None:
    async def run(client: Client) -> None:
        async with client.producer(TOPIC) as producer:
            await producer.send(b"0")
            for send in (lambda: producer.send(b"x"), lambda: producer.send_many([b"x"])):
                with pytest.raises(OtherLoop):
                    await asyncio.to_thread(send)
            assert (await producer.send(b"1")).offset == 1

    with_client(tmp_path, run)


def test_a_callback_that_waits_for_its_own_client_is_told(tmp_path: Path) -> None:
    outcomes: list[Exception] = []

    def on_event(event: Event) -> None:
        for use in (lambda: client.admin.topics(), lambda: producer.flush(), lambda: producer.send(b"x").result()):
            try:
                use()
            except Exception as error:
                outcomes.append(error)
        told.set()

    told = threading.Event()
    with broker_thread(tmp_path / "data") as url:
        client = pydanube.sync.connect(url, on_event=lambda event: event.what == "disconnected" and on_event(event))
        client.open()
        producer = client.producer(TOPIC, send_timeout=0.1).open()
    assert told.wait(10)
    assert [type(outcome) for outcome in outcomes] == [OtherLoop] * 3
    with pytest.raises(DanubeError):
        client.close()  # what the callback sent was not published


def test_a_blocks_own_error_is_not_hidden_by_a_failing_close(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    with broker_thread(tmp_path / "data") as url:
        block = _block(pydanube.sync.connect(url), OwnError)
        next(block)
    with pytest.raises(OwnError):
        next(block)


def _block(client: pydanube.sync.Client, error: type[Exception]) -> Iterator[None]:
    with client:
        producer = client.producer(TOPIC, send_timeout=1.0).open()
        producer.send(b"x").result(5)
        yield  # the broker goes
        producer.send(b"y")
        raise error


def test_threads_that_share_a_consumer_get_each_message_once(url: str) -> None:
    got: list[int] = []
    errors: list[BaseException] = []
    with pydanube.sync.connect(url) as client:
        with client.producer(TOPIC) as producer:
            producer.send_many([b"x"] * 5000)
        with client.consumer(TOPIC, subscription="s", type="shared", start="earliest") as consumer:

            def work() -> None:
                try:
                    while True:
                        got.append(consumer.receive(timeout=0.5).offset)
                        got.extend(message.offset for message in consumer.fetch(3, timeout=0))
                except NothingReceived:
                    pass
                except BaseException as error:
                    errors.append(error)

            interval = sys.getswitchinterval()
            sys.setswitchinterval(1e-6)
            try:
                threads = [threading.Thread(target=work) for _ in range(6)]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join(20)
            finally:
                sys.setswitchinterval(interval)
    assert errors == []
    assert sorted(got) == list(range(5000))


def test_closing_a_client_ends_the_waits_of_other_threads(url: str) -> None:
    outcomes: list[BaseException | None] = []

    def wait_for(work: object) -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            outcomes.append(error)

    client = pydanube.sync.connect(url).open()
    consumer = client.consumer(TOPIC, subscription="s").open()
    reader = client.reader(TOPIC).open()
    begun = threading.Barrier(4)

    def forever() -> None:
        begun.wait()
        while True:
            client.admin.topics()

    threads = [
        threading.Thread(target=wait_for, args=(lambda: (begun.wait(), consumer.receive()),)),
        threading.Thread(target=wait_for, args=(lambda: (begun.wait(), reader.receive()),)),
        threading.Thread(target=wait_for, args=(forever,)),
    ]
    for thread in threads:
        thread.start()
    begun.wait()
    client.close()
    for thread in threads:
        thread.join(10)
    assert [type(outcome) for outcome in outcomes] == [ClientClosed] * 3, outcomes


def test_what_is_not_open_says_so_at_once(url: str) -> None:
    closed = pydanube.sync.connect(url)
    with pytest.raises(NotOpened):
        closed.producer(TOPIC)
    with pydanube.sync.connect(url) as client:
        with pytest.raises(NotOpened):
            client.producer(TOPIC).send(b"x").result(5)
        with pytest.raises(NotOpened):
            client.reader(TOPIC).receive()
        with pytest.raises(NotOpened):
            client.consumer(TOPIC, subscription="s").receive()


@pytest.mark.parametrize("turns", range(5))
def test_a_call_that_ends_just_before_the_loop_stops_answers_its_thread(turns: int) -> None:
    thread = LoopThread()
    begun = threading.Event()
    gate: list[asyncio.Future[str]] = []

    async def work() -> str:
        gate.append(asyncio.get_running_loop().create_future())
        begun.set()
        return await gate[0]

    def stop(left: int) -> None:
        if left:
            thread.loop.call_soon(stop, left - 1)
        else:
            thread.loop.stop()

    def end() -> None:
        gate[0].set_result("done")
        stop(turns)

    call = thread.run(work())
    assert begun.wait(10)
    thread.call(end)
    wait([call], timeout=10)
    assert call.done()
    thread._thread.join(10)
