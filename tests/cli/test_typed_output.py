"""Every command, run with `-o json`: it prints one of the structs that it claims to print, with exactly its fields."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

import pydanube.sync
from cli.conftest import Danube
from pydanube.cli.main import danube as root
from pydanube.cli.reference import walk
from pydanube.cli.shell.output import OutputOption
from pydanube.operations.sinks import BeginSink, CommitSink
from pydanube.testing.broker import broker_thread

WITHOUT_RESULT = {"standalone", "completion"}  # a broker, and a script for a shell
COMMANDS = {
    context.command_path.removeprefix("danube "): context.command
    for context in walk(click.Context(root, info_name="danube"))
    if not isinstance(context.command, click.Group)
}
OUTPUTS = {
    path: option for path, command in COMMANDS.items() for option in command.params if isinstance(option, OutputOption)
}
# What to run. TOPIC has three messages and the subscription s, NAME is its name and that of a pipeline that runs.
# DIR is a folder with the file of a pipeline. The answers of commands that only prepare others are not looked at.
BIND = "security bindings put NAME --principal user:alice --role producer --topic TOPIC"
RUNS: dict[str, list[str]] = {
    "produce": ["produce TOPIC hello"],
    "consume": ["consume TOPIC --from earliest -n 1", "consume TOPIC -s s -n 1"],
    "topic create": ["topic create TOPIC-2 --policy ttl_seconds=1d"],
    "topic list": ["topic list"],
    "topic describe": ["topic describe TOPIC"],
    "topic alter": ["topic alter TOPIC --policy ttl_seconds=1d"],
    "topic delete": ["topic delete TOPIC --dry-run", "topic delete TOPIC --yes"],
    "topic truncate": ["topic truncate TOPIC --dry-run", "topic truncate TOPIC --yes"],
    "topic peek": ["topic peek TOPIC -n 2"],
    "topic table": ["topic alter TOPIC --policy table=delta", "topic table TOPIC"],
    "subscription create": ["subscription create TOPIC t", "subscription create TOPIC s"],
    "subscription list": ["subscription list TOPIC"],
    "subscription describe": ["subscription describe TOPIC s"],
    "subscription alter": ["subscription alter TOPIC s --option failure.ack_timeout=1m"],
    "subscription seek": [
        *(f"subscription seek TOPIC s --to {to} --dry-run" for to in ("latest", "1", "10m")),
        "subscription seek TOPIC s --to latest --yes",
    ],
    "subscription skip": ["subscription skip TOPIC s --count 1 --dry-run", "subscription skip TOPIC s --count 1 --yes"],
    "subscription delete": ["subscription delete TOPIC s --dry-run", "subscription delete TOPIC s --yes"],
    "subscription consumers": ["subscription consumers TOPIC held"],
    "subscription explain": ["subscription explain TOPIC s", "subscription explain TOPIC s --offset 1"],
    "subscription lag": ["subscription lag TOPIC", "subscription lag TOPIC --watch --count 1"],
    "namespace create": ["namespace create NAME --policy topics_max=9"],
    "namespace list": ["namespace list"],
    "namespace describe": ["namespace describe default"],
    "namespace alter": ["namespace create NAME", "namespace alter NAME --policy topics_max=9"],
    "namespace delete": ["namespace create NAME", "namespace delete NAME --dry-run", "namespace delete NAME --yes"],
    "schema register": ["schema register NAME --type string"],
    "schema get": ["schema register NAME --type string", "schema get NAME"],
    "schema list": ["schema register NAME --type string", "schema list"],
    "schema versions": ["schema register NAME --type string", "schema versions NAME"],
    "schema check": ["schema register NAME --type string", "schema check NAME --type string"],
    "schema delete": [
        "schema register NAME --type string",
        "schema delete NAME --dry-run",
        "schema delete NAME --yes",
    ],
    "schema set-mode": ["schema register NAME --type string", "schema set-mode full NAME"],
    "schema diff": ["schema register NAME --type string", "schema diff NAME 1 1"],
    "dlq peek": ["dlq peek TOPIC"],
    "dlq redrive": ["dlq redrive TOPIC --dry-run", "dlq redrive TOPIC --yes"],
    "storage usage": ["storage usage TOPIC", "storage usage"],
    "storage segments": ["storage upload TOPIC", "storage segments TOPIC"],
    "storage verify": ["storage upload TOPIC", "storage verify TOPIC"],
    "storage salvage": ["storage salvage TOPIC --dry-run"],
    "storage upload": ["storage upload TOPIC", "storage upload TOPIC"],
    "storage forget-node": [f"storage forget-node --data-dir DIR/lost {how}" for how in ("--dry-run", "--yes")],
    "pipeline list": ["pipeline list"],
    "pipeline status": ["pipeline status NAME"],
    "pipeline logs": ["pipeline logs NAME"],
    "pipeline stop": ["pipeline stop NAME"],
    "pipeline restart": ["pipeline restart NAME"],
    "pipeline forget": ["pipeline forget ended --dry-run", "pipeline forget ended --yes"],
    "pipeline run": ["pipeline run DIR/flow.yaml"],
    "pipeline validate": ["pipeline validate DIR/flow.yaml"],
    "pipeline explain": ["pipeline explain DIR/flow.yaml"],
    "pipeline reset": [f"pipeline reset DIR/flow.yaml --to latest {how}" for how in ("--dry-run", "--yes")],
    "pipeline redrive": [f"pipeline redrive DIR/flow.yaml {how}" for how in ("--dry-run", "--yes")],
    "pipeline lakehouse": ["pipeline lakehouse --topic TOPIC --to delta:DIR/lake --checkpoint DIR/c"],
    "sink list": ["sink list"],
    "sink forget": ["sink forget query-NAME TOPIC --dry-run", "sink forget query-NAME TOPIC --yes"],
    "backup create": ["backup create DIR/backup"],
    "backup verify": ["backup create DIR/backup", "backup verify DIR/backup"],
    "backup restore": ["backup create DIR/backup", "backup restore DIR/backup DIR/data --take-over-objects"],
    "export": ["export TOPIC DIR/topic.jsonl"],
    "import": ["export TOPIC DIR/topic.jsonl", "import TOPIC DIR/topic.jsonl"],
    "status": ["status --over 1ms"],
    "connection list": ["connection list"],
    "top": ["top --count 1"],
    "bench publish": ["bench publish TOPIC -n 10"],
    "bench consume": ["bench consume TOPIC -n 3"],
    "config show": ["config show", "config show --data-dir x"],
    "doctor": ["doctor"],
    "context add": ["context add NAME --url danube://127.0.0.1:1"],
    "context use": ["context add NAME --url danube://127.0.0.1:1", "context use NAME"],
    "context list": ["context add NAME --url danube://127.0.0.1:1", "context list"],
    "context show": ["context show"],
    "context delete": [
        "context add NAME --url danube://127.0.0.1:1",
        "context delete NAME --dry-run",
        "context delete NAME --yes",
    ],
    "version": ["version"],
    "security whoami": ["security whoami"],
    "security can-i": ["security can-i topic.publish TOPIC"],
    "security roles list": ["security roles list"],
    "security roles describe": ["security roles describe admin"],
    "security roles put": ["security roles put NAME --permission Produce"],
    "security roles delete": [
        "security roles put NAME",
        "security roles delete NAME --dry-run",
        "security roles delete NAME --yes",
    ],
    "security bindings list": [BIND, "security bindings list"],
    "security bindings describe": [BIND, "security bindings describe NAME"],
    "security bindings put": [BIND],
    "security bindings delete": [
        BIND,
        "security bindings delete NAME --dry-run",
        "security bindings delete NAME --yes",
    ],
    "security tokens create": [
        "security tokens create alice --secret-file DIR/secret",
        "security tokens create alice --secret-file DIR/secret --out DIR/alice.jwt",
    ],
    "security tokens validate": [
        "security tokens create alice --secret-file DIR/secret --out DIR/alice.jwt",
        "security tokens validate DIR/alice.jwt --secret-file DIR/secret",
    ],
}
FLOW = """
name: {name}
source: {{topic: {topic}, format: json, schema: id INT}}
sink: {{delta: {folder}/table}}
dead_letters: {{topic: {topic}-dead}}
checkpoint: {folder}/checkpoint
"""


@pytest.fixture(scope="module")
def tiered_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with broker_thread(objects=f"file://{tmp_path_factory.mktemp('objects')}") as url:
        yield url


@pytest.fixture(scope="module")
def client(tiered_url: str) -> Iterator[pydanube.sync.Client]:
    with pydanube.sync.connect(tiered_url) as client:
        yield client


@pytest.fixture
def typed(
    run: Danube,
    tiered_url: str,
    client: pydanube.sync.Client,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Callable[[str], Any]]:
    """Runs a command on what `RUNS` names, and returns what it prints as JSON."""
    name = topic[-40:].strip("-")
    whole = f"/default/{name}"
    client.admin.create_topic(whole)
    client.admin.create_topic(f"{whole}-dead")
    for subscription in ("s", "held"):
        client.admin.create_subscription(whole, subscription, start="earliest")
    with client.producer(whole) as producer:
        producer.send(b"text", key="k", attributes={"a": "b"}, event_time=7).result()
        producer.send_many([b"\xff", b"more"]).result()
    for pipeline, state in ((name, "running"), ("ended", "stopped")):
        client.report_pipeline(pipeline, "run-1", info={"host": "here", "started": 7}, state=state, lines=["begun"])
    commit(client, f"query-{name}", whole)
    (tmp_path / "flow.yaml").write_text(FLOW.format(name=f"{name}-flow", topic=whole, folder=tmp_path))
    (tmp_path / "secret").write_text("x" * 32)
    without_spark(monkeypatch)
    monkeypatch.setenv("DANUBE_URL", tiered_url)

    def typed(command: str) -> Any:
        if "DIR/lost" in command and not (tmp_path / "lost").exists():
            with broker_thread(tmp_path / "lost"):
                pass
            shutil.rmtree(tmp_path / "lost" / "node")
        known = {"TOPIC": whole, "NAME": name, "DIR": str(tmp_path)}
        words = command.split()
        for short, long in known.items():
            words = [word.replace(short, long) for word in words]
        ended = run(*words, "-o", "json")
        assert ended.out, ended.err
        return ended.json

    with client.consumer(whole, subscription="held"):
        yield typed


def commit(client: pydanube.sync.Client, query: str, target: str) -> None:
    """A writer whose first batch had no rows."""
    with client.producer(client.ask(BeginSink(query, target)).staging) as producer:
        decision = producer.send(json.dumps({"parts": {}}).encode()).result().offset
    client.ask(CommitSink(query, target, batch=0, decision=decision))


def without_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting it takes seconds, and what it answers is not the point here."""
    from pydanube.pipeline.query import build, session
    from pydanube.pipeline.query.progress import Progress
    from pydanube.pipeline.run.runner import Outcome, Runner

    monkeypatch.setattr("pydanube.cli.commands.pipeline_files.check_spark", lambda flow, remote: None)
    monkeypatch.setattr(Runner, "run", lambda self: Outcome("finished", Progress()))
    monkeypatch.setattr(session.Sessions, "get", lambda self, settings: None)
    monkeypatch.setattr(build, "explain", lambda spark, flow, url: "a plan")


def differences(printed: Any, kind: Any) -> str | None:
    """What keeps the JSON from being a value of the type; None if it is one, with all of its fields and no others."""
    try:
        read = msgspec.convert(printed, kind)
    except msgspec.ValidationError as error:
        return str(error)
    again = msgspec.to_builtins(read)
    return None if again == printed else f"{printed} is not {again}"


@pytest.mark.parametrize("path", OUTPUTS)
def test_a_command_prints_the_structs_that_it_claims_to_print(path: str, typed: Callable[[str], Any]) -> None:
    claimed, seen = list(OUTPUTS[path].prints), set[int]()
    assert claimed
    for command in RUNS[path]:
        printed = typed(command)
        if command.startswith(path):
            assert printed != [], "an empty list shows nothing"
            found = {number: differences(printed, kind) for number, kind in enumerate(claimed)}
            fitting = {number for number, difference in found.items() if difference is None}
            assert fitting, f"{command}: {found}"
            seen |= fitting
    assert len(seen) == len(claimed), "a struct is never printed"


def test_every_command_says_what_it_prints() -> None:
    assert COMMANDS.keys() - WITHOUT_RESULT == OUTPUTS.keys() == RUNS.keys()


def test_a_field_too_many_or_too_few_is_found() -> None:
    class Pair(msgspec.Struct):
        left: int
        right: int | msgspec.UnsetType = msgspec.UNSET

    assert differences({"left": 1, "right": 2}, Pair) is None
    assert differences([{"left": 1}], list[Pair]) is None
    assert "missing" in str(differences([{"right": 1}], list[Pair]))
    assert "is not" in str(differences({"left": 1, "other": 2}, Pair))
    assert differences(json.loads('{"left": "1"}'), Pair) is not None
