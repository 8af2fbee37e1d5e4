"""`danube sink`: who writes exactly once, and forgetting one."""

from __future__ import annotations

import json

import pytest

import pydanube.sync
from cli.conftest import Danube
from pydanube.operations.sinks import BeginSink, CommitSink


@pytest.fixture
def written(url: str, topic: str) -> str:
    """A query that has committed its batch 7, which had no rows; its id."""
    writer = {"query": f"query-{topic}", "target": f"/default/{topic}", "name": "second"}
    with pydanube.sync.connect(url) as client:
        begun = client.ask(BeginSink(**writer))
        with client.producer(begun.staging) as producer:
            decision = producer.send(json.dumps({"parts": {}}).encode()).result().offset
        assert client.ask(CommitSink(**writer, run="a run", batch=7, decision=decision)).verdict == "new"
    return writer["query"]


def test_writers_are_listed_and_forgotten(danube: Danube, topic: str, written: str) -> None:
    def mine() -> list[dict[str, object]]:
        return [each for each in danube("sink", "list", "-o", "json").json if each["query"] == written]

    [found] = mine()
    assert (found["target"], found["name"], found["batch"], found["committed"]) == (
        f"/default/{topic}",
        "second",
        7,
        True,
    )
    assert written in danube("sink", "list").text
    ask_dry_run = danube("sink", "forget", written, topic, "--name", "second", "--dry-run")
    assert ask_dry_run.text == f"would forget what {written} has written to /default/{topic}\n"
    assert mine()
    done = danube("sink", "forget", written, topic, "--name", "second", "--yes")
    assert (done.code, mine()) == (0, [])


def test_a_writer_that_is_not_known_is_not_forgotten(danube: Danube, written: str) -> None:
    for target in ("other", "*"):
        refused = danube("sink", "forget", written, target, "--yes")
        assert refused.code != 0
        assert "no writer" in refused.err
