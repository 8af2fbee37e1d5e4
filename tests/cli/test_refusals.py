"""What a command does not take: it says so, does nothing, and its dry run says the same."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from cli.conftest import Danube
from pydanube.cli.messages.text import PUBLISHED


@pytest.fixture
def partitioned(danube: Danube, topic: str) -> str:
    """With three partitions, and the subscription `s`."""
    danube("topic", "create", topic, "--partitions", "3")
    danube("subscription", "create", topic, "s", "--from", "earliest")
    return topic


# -- a dry run promises nothing that is then refused ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        ("subscription skip T s --count 1", 2, "needs a single partition"),
        ("subscription skip T-part-0 s --before 9", 1, "(Use a smaller offset.)"),
        ("subscription seek T s --to 1", 2, "needs a single partition"),
        ("subscription seek T-part-0 s --to 99999", 1, "(Use a smaller offset.)"),
        ("subscription delete T-part-0 s", 2, "use the whole topic, /default/T"),
        ("topic truncate T --before 1", 2, "needs a single partition"),
        ("topic truncate T-part-0 --before 60000", 1, "(Use a smaller offset.)"),
        ("topic delete T-part-0", 2, "use the whole topic, /default/T"),
        ("namespace delete default", 2, "built in"),
        ("namespace delete system", 2, "built in"),
    ],
)
def test_a_dry_run_is_refused_as_the_deed_is(
    danube: Danube, partitioned: str, command: str, code: int, said: str
) -> None:
    words = command.replace("T", partitioned).split()
    for way in ("--dry-run", "--yes"):
        refused = danube(*words, way)
        assert (refused.code, refused.text) == (code, "")
        assert said.replace("T", partitioned) in refused.err
    assert danube("topic", "describe", partitioned, "-o", "json").json["subscriptions"] == 1


def test_what_keeps_nothing_is_not_truncated_sought_or_skipped(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic, "--no-reliable")
    danube("subscription", "create", topic, "s")
    for command in (
        ("topic", "truncate", topic, "--dry-run"),
        ("subscription", "seek", topic, "s", "--to", "earliest", "--dry-run"),
        ("subscription", "skip", topic, "s", "--count", "1", "--dry-run"),
        ("subscription", "explain", topic, "s"),
        ("topic", "peek", topic),
        ("consume", topic, "--from", "earliest", "-e"),
    ):
        refused = danube(*command)
        assert (refused.code, refused.text) == (1, "")
        assert "not reliable" in refused.err
    at_its_end = danube("consume", topic, "-e")
    assert (at_its_end.code, at_its_end.err) == (
        0,
        f"danube: /default/{topic} is not reliable: it stores nothing, so there is nothing to print\n",
    )


# -- places ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["-1", "-5"])
def test_no_place_is_before_the_first(danube: Danube, partitioned: str, place: str) -> None:
    part = f"{partitioned}-part-0"
    for command in (
        ["topic", "peek", part, "--from"],
        ["consume", part, "-e", "--from"],
        ["export", part, "-", "--to"],
    ):
        refused = danube(*command, place)
        assert refused.code == 2
        assert f"an offset must be 0 or greater, got {place}" in refused.err


def test_a_partition_that_is_not_there_is_named(danube: Danube, partitioned: str) -> None:
    danube("topic", "create", f"{partitioned}-plain")
    for command in (["topic", "peek"], ["consume", "-e"], ["export", "-o", "json"]):
        file = ["-", "--format", "csv"] if command[0] == "export" else []
        missing = danube(*command, partitioned, *file, "--partition", "9")
        assert missing.code == 3
        assert "has no partition 9: it has 3 partitions, from 0 on" in missing.err
        missing = danube(*command, f"{partitioned}-plain", *file, "--partition", "0")
        assert missing.code == 3
        assert "it is not partitioned" in missing.err


def test_an_offset_of_a_partitioned_topic_needs_a_partition(danube: Danube, partitioned: str) -> None:
    assert danube("consume", partitioned, "--offset", "0", "-e").code == 2
    assert danube("consume", partitioned, "--offset", "0", "-e", "-p", "1").code == 0
    assert danube("subscription", "create", partitioned, "new", "--from", "0").code == 2
    assert danube("subscription", "create", f"{partitioned}-part-0", "new").code == 2


# -- subscriptions that are there --------------------------------------------------------------------------------------


def test_a_subscription_that_is_there_is_not_created_and_what_differs_is_said(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic)
    create = ("subscription", "create", topic, "s", "--option", "failure.ack_timeout=1m")
    assert danube(*create, "-o", "json").json["created"] is True
    again = danube(*create)
    assert (again.text, again.err) == (f"s of /default/{topic} already exists; nothing changed\n", "")
    other = danube("subscription", "create", topic, "s", "--from", "earliest", "--option", "failure.poison=drop")
    assert other.code == 0
    assert "failure.poison stays block, not drop (Use `danube subscription alter`.)" in other.err
    assert "the subscription stays at 0 (Use `danube subscription seek`.)" in other.err
    assert danube("subscription", "create", topic, "s", "-o", "json").json["created"] is False


def test_consuming_goes_on_where_a_subscription_is_and_as_what_it_is(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"1\n2\n")
    danube("subscription", "create", topic, "s", "--type", "shared", "--from", "1")
    continued = danube("consume", topic, "-s", "s", "--from", "earliest", "-e")
    assert (continued.code, continued.lines) == (0, ["2"])
    assert "subscription s exists; continuing at offset 1" in continued.err
    assert danube("consume", topic, "-s", "s", "-e", "--type", "failover").code == 1


def test_consuming_one_partition_makes_no_subscription_in_it_alone(danube: Danube, partitioned: str) -> None:
    for command in (["consume", partitioned, "-p", "0"], ["consume", f"{partitioned}-part-0"]):
        assert danube(*command, "-e", "-s", "s").code == 0
        refused = danube(*command, "-e", "-s", "new")
        assert refused.code == 3
        assert "a new one is created for the whole topic" in refused.err
    assert danube("topic", "describe", partitioned, "-o", "json").json["subscriptions"] == 1


def test_consuming_makes_no_topic(danube: Danube, topic: str) -> None:
    for options in ([], ["-s", "s"]):
        assert danube("consume", topic, "-e", *options).code == 3
        assert danube("topic", "describe", topic).code == 3


# -- messages ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"foo": 1}', "unknown field 'foo' in a message; known fields: key, key_base64, value"),
        (b'{"value": "1", "kye": "k"}', "unknown field 'kye' in a message"),
        (b'{"value": "1", "data_encoding": "base64"}', "unknown field 'data_encoding' in a message"),
        (b'{"key": "k"}', "value (or payload) is missing"),
        (b"{}", "value (or payload) is missing"),
        (b'{"value": "1", "value_base64": "MQ=="}', "a message cannot have both value and value_base64"),
    ],
)
def test_json_that_says_no_payload_publishes_nothing(danube: Danube, topic: str, line: bytes, said: str) -> None:
    ended = danube("produce", topic, "--json", stdin=line)
    assert ended.code == 2
    assert f"line 1: {said}" in ended.err
    assert danube("topic", "describe", topic, "-o", "json").json["ends"] == [0]


def test_what_was_consumed_as_json_can_be_produced(danube: Danube, topic: str) -> None:
    sent = [
        {"value": "text", "key": "k", "attributes": {"a": "b", "ü": ""}, "event_time": 1_700_000_000_123_456},
        {"value_base64": "/wA=", "key_base64": "/w==", "event_time": 0},
        {"value": "", "key": "", "delivery_time": 4_000_000_000_654_321},
        {"value": None},
    ]
    danube("produce", topic, "--json", stdin="\n".join(map(json.dumps, sent)).encode())
    first = danube("consume", topic, "--from", "earliest", "-e", "-o", "json")
    assert danube("produce", topic, "--json", stdin=first.out).code == 0
    again = danube("consume", topic, "--from", "4", "-e", "-o", "json")

    def published(line: str) -> dict[str, Any]:
        return {name: each for name, each in json.loads(line).items() if name in PUBLISHED}

    assert [*map(published, again.lines)] == [*map(published, first.lines)]
    assert all(got.items() >= given.items() for got, given in zip(map(published, again.lines), sent, strict=True))


def test_a_message_is_the_same_json_in_the_command_line_and_over_http(danube: Danube, url: str, topic: str) -> None:
    danube("topic", "create", topic, "--partitions", "2")
    danube("produce", topic, "-k", "k", "-H", "a=b", stdin=b"1\n\xff\n")
    [partition] = {
        json.loads(line)["topic"] for line in danube("consume", topic, "--from", "earliest", "-e", "-o", "json").lines
    }
    peeked = url.replace("danube://", "http://") + f"/api/v1/topics{partition}/messages"
    with urlopen(peeked) as answer:
        over_http = json.load(answer)["messages"]
    assert len(over_http) == 2
    shown = danube("consume", partition, "--from", "earliest", "-e", "-o", "json").lines
    assert [*map(json.loads, shown)] == over_http
    with_partition = [{**each, "partition": int(partition[-1])} for each in over_http]
    assert danube("topic", "peek", topic, "-n", "2", "-o", "json").json == with_partition
    lines = "\n".join(map(json.dumps, with_partition)).encode()
    assert danube("produce", f"{topic}-2", "--json", stdin=lines).code == 0
    assert danube("consume", f"{topic}-2", "--from", "earliest", "-e").out == b"1\n\xff\n"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("wrong.csv", "a,b\n1,2\n", "the column payload (or value) is missing; the columns are a, b"),
        ("wrong.csv", "key,value\na\n", "row 1: value (or payload) is missing"),
        ("wrong.jsonl", '{"foo": 1}\n', "row 1: value (or payload) is missing"),
    ],
)
def test_a_file_without_payloads_is_not_imported(
    danube: Danube, topic: str, tmp_path: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    ended = danube("import", topic, str(tmp_path / name))
    assert ended.code == 1
    assert said in ended.err
    assert "0 messages imported" in ended.err


def test_an_empty_cell_of_a_file_by_hand_is_an_empty_payload(danube: Danube, topic: str, tmp_path: Path) -> None:
    (tmp_path / "hand.csv").write_text("key,value\na,\n")
    assert danube("import", topic, str(tmp_path / "hand.csv")).code == 0
    assert danube("topic", "peek", topic, "-o", "json").json[0]["value"] == ""


def test_a_separator_has_a_character(danube: Danube, topic: str) -> None:
    ended = danube("produce", topic, "-K", "", stdin=b"1\n")
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert "must not be empty" in ended.err


# -- files that are there ----------------------------------------------------------------------------------------------


def test_a_file_that_is_there_is_replaced_only_by_force(danube: Danube, topic: str, tmp_path: Path) -> None:
    danube("produce", topic, stdin=b"1\n")
    file = tmp_path / "topic.csv"
    file.write_text("mine")
    refused = danube("export", topic, str(file))
    assert (refused.code, file.read_text()) == (1, "mine")
    assert "already exists (Choose another name, or pass --force.)" in refused.err
    assert danube("export", topic, str(file), "--force").code == 0
    assert "mine" not in file.read_text()


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_what_is_behind_a_link_is_not_written(danube: Danube, topic: str, tmp_path: Path, force: list[str]) -> None:
    danube("produce", topic, stdin=b"1\n")
    victim, there, dangling = tmp_path / "victim", tmp_path / "there.jsonl", tmp_path / "dangling.jsonl"
    victim.write_text("precious")
    there.symlink_to(victim)
    dangling.symlink_to(tmp_path / "nowhere")
    for link in (there, dangling):
        refused = danube("export", topic, str(link), *force)
        assert refused.code == 1
        assert "is a symbolic link (Use the path of the file itself, or delete the link first.)" in refused.err
        assert link.is_symlink()
    assert victim.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_is_written_to_and_stays(danube: Danube, topic: str, tmp_path: Path) -> None:
    danube("produce", topic, stdin=b"1\n2\n")
    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.extend(pipe.read_text().splitlines()))
    reader.start()
    assert danube("export", topic, str(pipe)).code == 0
    reader.join(10)
    assert len(read) == 2
    assert pipe.is_fifo()


@pytest.mark.parametrize(
    ("said", "meant"),
    [("pub", "produce"), ("sub", "consume"), ("topics", "topic"), ("consumme", "consume"), ("server", "standalone")],
)
def test_a_command_that_is_not_there_names_the_nearest(run: Danube, said: str, meant: str) -> None:
    ended = run(said, "orders")
    assert (ended.code, ended.out) == (2, b"")
    assert f"unknown command {said!r}; did you mean {meant}?" in ended.err


def test_a_command_like_no_other_names_none(run: Danube) -> None:
    ended = run("xyzzy")
    assert (ended.code, ended.err) == (2, "danube: unknown command 'xyzzy' (See `danube --help`.)\n")


@pytest.mark.parametrize("options", [[], ["--key-separator", ":"], ["--rate", "1000"]])
def test_a_line_that_is_too_large_for_the_topic_is_named_and_those_before_it_are_published(
    danube: Danube, topic: str, options: list[str]
) -> None:
    danube("topic", "create", topic, "--policy", "message_bytes_max=10")
    refused = danube("produce", topic, *options, stdin=b"k:one\nk:two\nk:" + b"x" * 20 + b"\nk:four\n")
    assert refused.code == 1
    assert "2 messages acknowledged" in refused.err
    assert "line 3: " in refused.err
    assert "at most 10 bytes" in refused.err


def test_a_row_that_is_too_large_for_the_topic_is_named_and_those_before_it_are_imported(
    danube: Danube, topic: str, tmp_path: Path
) -> None:
    danube("topic", "create", topic, "--policy", "message_bytes_max=10")
    file = tmp_path / "rows.jsonl"
    file.write_text('{"value": "one"}\n{"value": "' + "x" * 20 + '"}\n{"value": "three"}\n')
    refused = danube("import", topic, str(file))
    assert refused.code == 1
    assert "1 message imported" in refused.err
    assert "row 2: " in refused.err
