"""Commands as processes: Ctrl-C, pipes that close, brokers that go away, and disks that are full."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

import pytest

from certificates import Authority
from cli.conftest import Danube
from pydanube.testing.broker import broker_beside, broker_thread

COMMAND = [sys.executable, "-m", "pydanube.cli.main"]


class Started:
    def __init__(self, *arguments: str, url: str) -> None:
        pipe = subprocess.PIPE
        environment = os.environ | {"DANUBE_URL": url, "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen([*COMMAND, *arguments], stdin=pipe, stdout=pipe, stderr=pipe, env=environment)

    def line(self) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def error_line(self) -> bytes:
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def interrupt(self, stop: signal.Signals = signal.SIGINT) -> tuple[int, bytes]:
        self.process.send_signal(stop)
        code = self.process.wait(20)  # before its input ends, which would end it too
        return code, self.process.communicate()[1]


@pytest.fixture
def started() -> Iterator[list[Started]]:
    all_of_them: list[Started] = []
    yield all_of_them
    for each in all_of_them:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def test_ctrl_c_ends_a_consumer_quietly_and_a_producer_with_its_count(
    danube: Danube, url: str, topic: str, started: list[Started]
) -> None:
    danube("topic", "create", topic)
    consumer = Started("consume", topic, "--from", "earliest", url=url)
    producer = Started("produce", topic, url=url)
    started += [consumer, producer]
    producer.write(b"typed by hand\n")
    assert consumer.line() == b"typed by hand\n"  # at once, not when the input ends
    assert producer.interrupt() == (130, b"1 message acknowledged\n")
    assert consumer.interrupt() == (0, b"")


def test_a_topic_that_keeps_nothing_is_listened_to(
    danube: Danube, url: str, topic: str, started: list[Started]
) -> None:
    danube("topic", "create", topic, "--no-reliable")
    started.append(Started("consume", topic, "-n", "1", url=url))
    while not danube("subscription", "list", topic, "-o", "json").json:
        pass  # until it listens
    danube("produce", topic, stdin=b"heard\n")
    assert started[0].line() == b"heard\n"
    assert started[0].process.wait(20) == 0
    assert danube("subscription", "list", topic, "-o", "json").json == []  # it went with the command


def test_a_pipe_that_closes_ends_it_with_nothing_said(danube: Danube, url: str, topic: str) -> None:
    danube("produce", topic, "--value", "{n} and some more to fill the pipe", "--count", "20000", "-q")
    command = f"{sys.executable} -m pydanube.cli.main consume {topic} --from earliest; echo ended $? >&2"
    environment = os.environ | {"DANUBE_URL": url}
    done = subprocess.run(
        ["sh", "-c", f"({command}) | head -n 1"], capture_output=True, env=environment, timeout=30, text=True
    )
    assert done.stdout == "1 and some more to fill the pipe\n"
    assert done.stderr == "ended 0\n"


@pytest.mark.parametrize("options", [[], ["-s", "readers"], ["-s", "readers", "-o", "json"]])
def test_a_consumer_that_waits_ends_when_its_reader_leaves(
    danube: Danube, url: str, topic: str, started: list[Started], options: list[str]
) -> None:
    danube("produce", topic, stdin=b"only\n")
    consumer = Started("consume", topic, "--from", "earliest", *options, url=url)
    started.append(consumer)
    assert b"only" in consumer.line()
    assert consumer.process.stdout is not None
    consumer.process.stdout.close()  # nothing more is published: there is nothing to write that would tell it
    assert consumer.process.wait(20) == 0


def test_watching_and_top_end_with_ctrl_c(danube: Danube, url: str, topic: str, started: list[Started]) -> None:
    danube("topic", "create", topic)
    for command in (["subscription", "lag", topic, "--watch", "--every", "10ms"], ["top", "--every", "10ms"]):
        started.append(Started(*command, url=url))
        assert started[-1].line()
        assert started[-1].interrupt() == (0, b"")


def test_a_broker_that_goes_away_is_a_connection_lost(tmp_path: Path, run: Danube, topic: str) -> None:
    with broker_thread(tmp_path / "data") as url:
        assert run("topic", "create", topic, "--url", url).code == 0
    assert run("topic", "list", "--url", url).code == 4


@pytest.mark.parametrize("command", [["subscription", "lag", "TOPIC", "--watch"], ["top"]], ids=" ".join)
def test_watching_goes_on_while_the_broker_is_away(
    tmp_path: Path, run: Danube, topic: str, started: list[Started], command: list[str]
) -> None:
    with broker_thread(tmp_path / "data") as url:
        run("topic", "create", topic, "--url", url)
        words = [topic if word == "TOPIC" else word for word in command]
        started.append(Started(*words, "--every", "10ms", url=url))
        assert started[0].line()
    assert started[0].error_line() == b"danube: the broker is unreachable; retrying\n"
    assert started[0].process.poll() is None
    assert started[0].interrupt() == (0, b"")


def test_a_producer_whose_broker_goes_away_says_so_at_once(
    tmp_path: Path, run: Danube, topic: str, started: list[Started]
) -> None:
    with broker_thread(tmp_path / "data") as url:
        started.append(Started("produce", topic, url=url))
        started[0].write(b"one\n")
        while '"value": "one"' not in run("topic", "peek", topic, "--url", url, "-o", "json").text:
            pass  # until it is published
    assert started[0].error_line() == b"danube: the broker is unreachable; retrying\n"
    assert started[0].interrupt() == (130, b"1 message acknowledged\n")


def test_sigterm_ends_a_producer_as_ctrl_c_does(danube: Danube, url: str, topic: str, started: list[Started]) -> None:
    danube("topic", "create", topic)
    consumer, producer = Started("consume", topic, "--from", "earliest", url=url), Started("produce", topic, url=url)
    started += [consumer, producer]
    producer.write(b"one\n")
    assert consumer.line() == b"one\n"
    assert producer.interrupt(signal.SIGTERM) == (130, b"1 message acknowledged\n")
    assert consumer.interrupt(signal.SIGTERM) == (0, b"")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_question_that_was_interrupted_is_not_answered_later(
    danube: Danube, url: str, topic: str, stop: signal.Signals
) -> None:
    danube("topic", "create", topic)
    ours, theirs = pty.openpty()
    environment = os.environ | {"DANUBE_URL": url}
    words = [*COMMAND, "topic", "delete", topic]
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    asked = b""
    while b"Continue?" not in asked:
        asked += os.read(ours, 1000)
    process.send_signal(stop)
    os.write(ours, b"y\n")
    assert process.wait(20) == 130
    os.close(ours)
    assert danube("topic", "describe", topic).code == 0


def ready(file: Path, broker: Started) -> str:
    """Where it listens, once it does."""
    deadline = monotonic() + 20
    while not file.exists():
        assert broker.process.poll() is None
        assert monotonic() < deadline
        sleep(0.01)  # another process writes it
    return str(json.loads(file.read_text())["listen"])


def test_a_broker_with_tls_is_reached_by_its_authority(tmp_path: Path, run: Danube, started: list[Started]) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = map(str, authority.sign())
    place = ("--data-dir", str(tmp_path / "data"), "--listen", "127.0.0.1:0", "--journal-file-bytes", "4194304")
    tls = ("--tls-certificate", certificate, "--tls-key", key, "--ready-file", str(tmp_path / "ready"))
    started.append(Started("standalone", *place, *tls, url=""))
    address = ready(tmp_path / "ready", started[0])

    url = f"danubes://{address}"
    assert run("namespace", "list", "--url", url, "--ca-file", str(authority.file)).code == 0
    refused = run("namespace", "list", "--url", url, "--ca-file", str(other.file))
    assert (refused.code, refused.err.count("\n")) == (4, 1)
    assert run("namespace", "list", "--url", f"danube://{address}").code == 4
    shown = run("config", "show", "--url", url, "--ca-file", str(authority.file), "-o", "json").json
    assert {row["setting"]: row["source"] for row in shown}["tls.certificate"] == "flag"
    assert run("config", "show", "--url", url, "--ca-file", str(other.file)).code == 4
    assert run("topic", "create", "orders", "--url", url, "--ca-file", str(authority.file)).code == 0
    flow = tmp_path / "flow.yaml"
    flow.write_text(f"name: copy\nsource: {{topic: orders, url: '{url}'}}\nsink: {{delta: {tmp_path}/table}}\n")
    flow.write_text(flow.read_text() + f"checkpoint: {tmp_path}/checkpoint\n")
    reset = ("pipeline", "reset", str(flow), "--to", "earliest", "--yes")  # of a broker that the file names
    assert run(*reset, "--ca-file", str(authority.file)).code == 0
    assert run(*reset, "--ca-file", str(other.file)).code == 4
    assert run(*reset).code == 4
    run("context", "add", "safe", "--url", url, "--ca-file", str(authority.file))
    assert run("namespace", "list").code == 0


def test_a_producer_says_that_the_brokers_disk_is_full_and_goes_on_when_it_has_room(
    run: Danube, topic: str, started: list[Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_beside() as broker:
        monkeypatch.setenv("DANUBE_URL", broker.url)
        run("topic", "create", topic)
        broker.fill_disk()
        producer = Started("produce", topic, url=broker.url)
        started.append(producer)
        producer.write(b"waits for room\n")
        said = producer.error_line().decode()
        assert said.startswith("danube: the broker's disk is full, nothing is published for now; trying again: ")
        assert producer.process.poll() is None
        broker.free_disk()
        out, err = producer.process.communicate(timeout=20)
        assert (producer.process.returncode, out, err) == (0, b"", b"1 message acknowledged\n")  # and it is said once
        assert run("consume", topic, "--from", "earliest", "-n", "1").out == b"waits for room\n"
