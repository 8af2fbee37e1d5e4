"""What the command line says of damage on disk: messages by their offsets, state by what is left of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import pydanube.sync
from cli.conftest import Danube
from pydanube.base.limits import BLOCK_BYTES
from pydanube.testing.broker import broker_beside

Damaged = Callable[[bytes], Danube]


@pytest.fixture
def damaged(run: Danube, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Damaged]:
    """Runs commands against a broker in whose files the blocks with some content were overwritten.

    It has two topics, each with two subscriptions that were made before its messages.
    """
    data_dir = tmp_path / "data"
    with broker_beside(data_dir) as beside, pydanube.sync.connect(beside.url) as client:
        for topic in "ab":
            client.admin.create_topic(f"/default/{topic}")
            for name in ("early", "late"):
                client.admin.create_subscription(topic, f"{name}-of-{topic}", type="shared", start="earliest")
            with client.producer(topic) as producer:
                for number in range(4):
                    producer.send(f"payload-{topic}-{number}".encode()).result()
    with ExitStack() as ends:

        def start(content: bytes) -> Danube:
            for file in (data_dir / "node").glob("journal-*.log"):
                if (at := file.read_bytes().find(content)) >= 0:
                    with file.open("r+b") as opened:
                        opened.seek(at // BLOCK_BYTES * BLOCK_BYTES)
                        opened.write(b"\xa5" * BLOCK_BYTES)
            monkeypatch.setenv("DANUBE_URL", ends.enter_context(broker_beside(data_dir)).url)
            return run

        yield start


def test_damaged_messages_are_named_by_their_offsets_everywhere(damaged: Damaged) -> None:
    danube = damaged(b"payload-a-2")
    ended = danube("storage", "salvage", "a", "--dry-run")
    assert (ended.code, ended.lines[-1]) == (1, "would give up 1 message")
    described = danube("topic", "describe", "a").lines
    assert [line.split(maxsplit=1)[1].strip() for line in described if line.startswith("damaged")] == ["offset 2"]
    skipped = danube("subscription", "skip", "a", "early-of-a", "--before", "2", "--yes")
    assert skipped.code == 0, skipped.err
    said = "/default/a: offset 2 is damaged on disk; see `danube storage salvage /default/a --dry-run`"
    explained = danube("subscription", "explain", "a", "early-of-a").text
    assert f"offset 2: The next message cannot be read: {said}. Restore" in explained
    assert not explained.rstrip().endswith("..")
    assert said in danube("subscription", "describe", "a", "early-of-a").text.replace("\n", " ").replace("  ", "")
    found = {row["check"]: row for row in danube("doctor", "-o", "json").json}
    assert (found["damage"]["result"], found["damage"]["found"]) == ("fail", "/default/a is damaged on disk")
    ended = danube("storage", "salvage", "a", "--yes")
    assert (ended.code, ended.lines[-1]) == (0, "gave up 1 message")
    assert danube("topic", "describe", "a", "-o", "json").json["damaged"] == []


def test_of_damaged_state_it_says_which_subscriptions_are_left(damaged: Damaged) -> None:
    danube = damaged(b"late-of-b")
    refused = danube("produce", "b", "--value", "x")
    assert refused.code
    assert (
        "the state of /default/b is damaged on disk; see `danube storage salvage /default/b --dry-run`" in refused.err
    )
    ended = danube("storage", "salvage", "b", "--dry-run")
    assert (ended.code, ended.lines[-1]) == (1, "would give up the damaged part of the state of /default/b")
    assert "it has 1 subscription: early-of-b (done up to offset 0)" in ended.err
    ended = danube("storage", "salvage", "b", "--yes")
    assert (ended.code, ended.lines[-1]) == (0, "gave up the damaged part of the state of /default/b")
    assert [row["subscription"] for row in danube("subscription", "list", "b", "-o", "json").json] == ["early-of-b"]
