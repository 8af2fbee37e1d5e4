"""`danube schema` from a file to a difference, as people and scripts use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Danube

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
WIDER = {**ORDER, "fields": [*ORDER["fields"], {"name": "note", "type": "string", "default": ""}]}
BROKEN = {**ORDER, "fields": [{"name": "id", "type": "string"}]}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    for name, definition in (("order", ORDER), ("wider", WIDER), ("broken", BROKEN)):
        (tmp_path / f"{name}.avsc").write_text(json.dumps(definition))
    return tmp_path


def test_a_subject_from_its_first_version_to_its_end(danube: Danube, files: Path) -> None:
    done = danube("schema", "register", "cli-orders", str(files / "order.avsc"), "--tag", "core")
    assert done.text.startswith("registered version 1 of cli-orders, schema id ")
    assert danube("schema", "register", "cli-orders", str(files / "order.avsc")).text.startswith("already registered")
    assert danube("schema", "check", "cli-orders", str(files / "wider.avsc")).text == "compatible\n"
    refused = danube("schema", "check", "cli-orders", str(files / "broken.avsc"))
    assert refused.code == 1
    assert "the reader expects string, and long was written" in refused.text
    assert danube("schema", "register", "cli-orders", str(files / "broken.avsc")).code == 1
    assert danube("schema", "register", "cli-orders", str(files / "wider.avsc")).code == 0
    listed = danube("schema", "list", "--start", "cli-o")
    assert "cli-orders" in listed.text
    assert len(danube("schema", "versions", "cli-orders", "-o", "json").json) == 2
    printed = danube("schema", "get", "cli-orders", "--version", "1", "--definition")
    assert json.loads(printed.text) == ORDER
    difference = danube("schema", "diff", "cli-orders", "1", "2").text
    assert '+      "name": "note"' in difference
    assert "breaks" not in difference
    assert danube("schema", "set-mode", "full", "cli-orders").text == "the compatibility mode of cli-orders is full\n"
    backwards = danube("schema", "diff", "cli-orders", "2", "1").text
    assert "no difference" not in backwards
    assert danube("schema", "set-mode", "inherit", "cli-orders").text.endswith("is backward\n")
    assert (
        danube("schema", "delete", "cli-orders", "--version", "1", "--yes").text == "deleted version 1 of cli-orders\n"
    )
    gone = danube("schema", "delete", "cli-orders", "--yes", "-o", "json").json
    assert gone == {"versions": [2], "subject": "cli-orders", "dry_run": False}
    assert danube("schema", "get", "cli-orders").code == 3


def test_definitions_come_from_stdin_with_references(danube: Danube, files: Path) -> None:
    line = json.dumps({"type": "record", "name": "Line", "fields": []}).encode()
    assert danube("schema", "register", "cli-line", "-", "--type", "avro", stdin=line).code == 0
    order = json.dumps({**ORDER, "fields": [{"name": "line", "type": "Line"}]}).encode()
    arguments = ("schema", "register", "cli-order", "-", "--type", "avro", "--reference", "Line=cli-line:1")
    assert danube(*arguments, stdin=order).code == 0
    assert danube("schema", "delete", "cli-line", "--yes").code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x"], "pass a file with the definition"),
        (["x", "ORDER.txt"], "the type of"),
        (["x", "ORDER.avsc", "--reference", "Line"], "must look like NAME=SUBJECT:VERSION"),
        (["x", "BINARY.avsc"], "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_sent(
    danube: Danube, tmp_path: Path, arguments: list[str], said: str
) -> None:
    (tmp_path / "ORDER.txt").write_text("{}")
    (tmp_path / "ORDER.avsc").write_text('"long"')
    (tmp_path / "BINARY.avsc").write_bytes(b"\xff")
    done = danube("schema", "register", *(str(tmp_path / each) if "." in each else each for each in arguments))
    assert done.code == 2
    assert said in done.err
