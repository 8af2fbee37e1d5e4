"""`-o`: every command says what it did to programs too, and what goes on and on comes piece by piece."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
import yaml

from cli.conftest import Danube
from pydanube.cli.main import danube as root
from pydanube.cli.reference import walk

WITHOUT_RESULT = {"danube standalone", "danube completion"}  # a broker, and a script for a shell
LEAVES = [
    each
    for each in walk(click.Context(root, info_name="danube"))
    if not isinstance(each.command, click.Group) and each.command_path not in WITHOUT_RESULT
]


@pytest.mark.parametrize("context", LEAVES, ids=lambda each: each.command_path)
def test_every_command_knows_table_json_and_yaml(context: click.Context) -> None:
    [option] = [each for each in context.command.params if "-o" in each.opts]
    assert isinstance(option.type, click.Choice)
    assert {"table", "json", "yaml"} <= set(option.type.choices)


def test_what_was_produced_is_said_in_a_sentence_or_in_fields(danube: Danube, topic: str) -> None:
    said = danube("produce", topic, stdin=b"1\n2\n")
    assert (said.out, said.err) == (b"", "2 messages acknowledged\n")
    counted = danube("produce", topic, "-o", "json", stdin=b"1\n2\n3\n")
    assert counted.err == ""
    assert (counted.json["topic"], counted.json["messages"]) == (f"/default/{topic}", 3)
    assert counted.json["messages_per_second"] > 0
    assert yaml.safe_load(danube("produce", topic, "-o", "yaml", stdin=b"1\n").out)["messages"] == 1
    assert danube("produce", topic, "-o", "json", "-q", stdin=b"1\n").out == b""


def test_a_file_and_its_summary_do_not_mix(danube: Danube, topic: str, tmp_path: Path) -> None:
    danube("produce", topic, stdin=b"1\n2\n")
    file = str(tmp_path / "topic.jsonl")
    exported = danube("export", topic, file, "-o", "json").json
    assert (exported["file"], exported["messages"]) == (file, 2)
    both = danube("export", topic, "-", "--format", "jsonl", "-o", "json")
    assert [json.loads(line)["value"] for line in both.lines] == ["1", "2"]
    assert json.loads(both.err)["messages"] == 2
    assert danube("import", topic, file, "-o", "json").json["messages"] == 2


def test_an_import_that_fails_still_says_how_far_it_came(danube: Danube, topic: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.jsonl").write_text('{"value": "1"}\nnope\n')
    ended = danube("import", topic, str(tmp_path / "wrong.jsonl"), "-o", "yaml")
    assert ended.code == 1
    assert yaml.safe_load(ended.out)["messages"] == 1
    assert "row 2: not valid JSON" in ended.err


@pytest.mark.parametrize("command", ["top --namespace default --lines 1000", "subscription lag TOPIC --watch"])
def test_what_goes_on_is_a_line_of_json_or_a_document_of_yaml_each_time(
    danube: Danube, topic: str, command: str
) -> None:
    danube("produce", topic, stdin=b"1\n")
    danube("subscription", "create", topic, "s", "--from", "earliest")
    words = [topic if word == "TOPIC" else word for word in command.split()]
    rounds = ("--every", "1ms", "--count", "3")
    of_json = [json.loads(line) for line in danube(*words, *rounds, "-o", "json").lines]
    of_yaml = list(yaml.safe_load_all(danube(*words, *rounds, "-o", "yaml").out))
    for looks in (of_json, of_yaml):
        assert len(looks) == 3
        assert all(f"/default/{topic}" in [row["topic"] for row in rows] for rows in looks)


def test_consumed_messages_are_documents_of_yaml(danube: Danube, topic: str) -> None:
    danube("produce", topic, "-k", "key", stdin="grüße\n- no: yaml\n".encode())
    ended = danube("consume", topic, "--from", "earliest", "-e", "-o", "yaml")
    first, second = yaml.safe_load_all(ended.out)
    assert (first["key"], first["value"], first["offset"]) == ("key", "grüße", 0)
    assert second["value"] == "- no: yaml"
