"""`danube pipeline` as far as no Spark is needed: files that are wrong, what the broker knows, and resets."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import pydanube.sync
from cli.conftest import Danube, danube, run
from pydanube.base.errors import SubscriptionNotFound
from pydanube.pipeline.run.checkpoint import open_checkpoint, peek
from pydanube.pipeline.run.preflight import check
from pydanube.pipeline.spec.flow import Flow
from pydanube.spark.broker_link import BrokerLink
from pydanube.spark.options import Options
from pydanube.spark.topics import describe_topics, offsets_at

__all__ = ["danube", "run"]
FLOW = """
name: {name}
source: {{topic: {topic}}}
sink: {{delta: {folder}/table}}
checkpoint: {folder}/checkpoint
"""


@pytest.fixture
def file(tmp_path: Path, topic: str) -> Path:
    path = tmp_path / "flow.yaml"
    path.write_text(FLOW.format(name=topic.split("/")[-1], topic=topic, folder=tmp_path))
    return path


def published(client: pydanube.sync.Client, topic: str, count: int = 10) -> None:
    client.admin.create_topic(topic)
    publish(client, topic, count)


def publish(client: pydanube.sync.Client, topic: str, count: int) -> None:
    with client.producer(topic) as producer:
        for number in range(count):
            producer.send(str(number).encode())
        producer.flush()


# -- run: what is told before Spark starts -----------------------------------------------------------------------------


def test_a_missing_topic_is_told_at_once_and_nothing_is_begun(danube: Danube, file: Path, topic: str) -> None:
    began = time.monotonic()
    ended = danube("pipeline", "run", str(file))
    assert ended.code == 3
    assert ended.err == f"danube: topic {topic} does not exist (Create it with `danube topic create`.)\n"
    assert time.monotonic() - began < 5  # a JVM alone takes longer on a machine that is busy
    assert not (file.parent / "table").exists()
    assert not (file.parent / "checkpoint").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("sinks: {delta: x}", "sink"),
        ("trigger: often", "trigger: must be a duration"),
        ("name: [", "line"),
    ],
)
def test_a_wrong_file_is_one_line(danube: Danube, file: Path, change: str, said: str) -> None:
    file.write_text(file.read_text() + change)
    for verb in (["run"], ["validate"], ["reset", "--to", "earliest", "--yes"], ["explain"]):
        ended = danube("pipeline", verb[0], str(file), *verb[1:])
        assert ended.code == 2
        assert ended.err.count("\n") == 1
        assert str(file) in ended.err
        assert said in ended.err


def test_a_file_that_is_not_there(danube: Danube, tmp_path: Path) -> None:
    ended = danube("pipeline", "run", str(tmp_path / "none.yaml"))
    assert (ended.code, ended.err.count("\n")) == (2, 1)


def test_places_of_one_machine_are_refused_on_a_cluster(danube: Danube, file: Path) -> None:
    for arguments in (["run", "--master", "spark://cluster:7077"], ["validate", "--master", "spark://cluster:7077"]):
        ended = danube("pipeline", arguments[0], str(file), *arguments[1:])
        assert ended.code == 2
        assert "is a separate folder on each machine" in ended.err


def test_master_and_remote_are_one_too_many(danube: Danube, file: Path) -> None:
    ended = danube("pipeline", "run", str(file), "--master", "local", "--remote", "sc://x")
    assert ended.code == 2
    assert "pass either" in ended.err


def test_a_broker_that_is_away_is_told_before_spark_starts(run: Danube, file: Path) -> None:
    ended = run("pipeline", "run", str(file), "--url", "danube://127.0.0.1:1")
    assert ended.code == 4
    assert ended.err.startswith("danube: danube://127.0.0.1:1: ")


def test_a_name_that_runs_elsewhere_is_refused(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    report(client, topic.split("/")[-1], state="running", host="elsewhere")
    ended = danube("pipeline", "run", str(file))
    assert ended.code == 1
    assert "runs on elsewhere" in ended.err
    assert not (file.parent / "table").exists()
    report(client, topic.split("/")[-1], state="stopped")


def test_a_checkpoint_in_use_is_refused(danube: Danube, client: pydanube.sync.Client, file: Path, topic: str) -> None:
    published(client, topic)
    with open_checkpoint(str(file.parent / "checkpoint"), topic.split("/")[-1]):
        for verb in (["run"], ["reset", "--to", "latest", "--yes"]):
            ended = danube("pipeline", verb[0], str(file), *verb[1:])
            assert ended.code == 1
            assert "is in use by process" in ended.err


def test_no_java_is_one_sentence(danube: Danube, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.spark.launch._homes", lambda: iter(()))
    ended = danube("pipeline", "run", str(file))
    assert ended.code == 1
    assert ended.err.startswith("danube: Spark needs Java 17 or newer and found none")


def test_a_package_that_is_missing_is_one_sentence(danube: Danube, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pydanube.cli.commands.pipeline_files.find_spec", lambda name: None)
    ended = danube("pipeline", "run", str(file))
    assert (
        ended.err == "danube: pipelines needs pyspark, which is not installed (Run pip install 'pydanube[pipeline]'.)\n"
    )


def test_the_help_of_the_command_loads_no_spark() -> None:
    code = "import sys; from pydanube.cli.main import main; main(['pipeline', 'run', '--help']); "
    code += "print('loaded', [name for name in ('pyspark', 'pyarrow', 'deltalake') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("loaded []\n")


# -- validate ----------------------------------------------------------------------------------------------------------


def test_validate_says_what_was_checked(danube: Danube, client: pydanube.sync.Client, file: Path, topic: str) -> None:
    published(client, topic)
    found = danube("pipeline", "validate", str(file), "-o", "json").json
    assert found["pipeline"] == topic.split("/")[-1]
    assert f"source: topic {topic}, 1 topics with 10 messages" in found["checked"]
    assert any(each.startswith("checkpoint: ") and each.endswith("none yet") for each in found["checked"])
    assert found["not_checked"] == ["SQL and columns", "tables"]
    shown = danube("pipeline", "validate", str(file))
    assert shown.lines[0] == f"{topic.split('/')[-1]} is valid"
    assert not (file.parent / "checkpoint").exists()


def test_validate_without_a_broker_says_so(run: Danube, file: Path) -> None:
    found = run("pipeline", "validate", str(file), "--url", "danube://127.0.0.1:1", "-o", "json")
    assert found.code == 0
    assert any(each.startswith("topics, because the broker does not answer") for each in found.json["not_checked"])


def test_validate_warns_of_a_checkpoint_that_spark_cannot_write(run: Danube, file: Path) -> None:
    file.write_text(file.read_text().replace(f"checkpoint: {file.parent}/checkpoint", "checkpoint: s3://bucket/x"))
    found = run("pipeline", "validate", str(file), "--url", "danube://127.0.0.1:1", "-o", "json").json
    assert any("hadoop-aws" in each for each in found["warnings"])


def test_validate_takes_a_connect_server_and_no_nonsense(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    found = danube("pipeline", "validate", str(file), "--remote", "sc://localhost:15002", "-o", "json").json
    assert "packages: all installed" in found["checked"]
    ended = danube("pipeline", "validate", str(file), "--remote", "sc://elsewhere:15002")
    assert "sc://elsewhere:15002 has several" in ended.err
    assert danube("pipeline", "validate", str(file), "--remote", "sc://x", "--master", "yarn").code == 2
    for verb in ("validate", "run"):
        ended = danube("pipeline", verb, str(file), "--master", "nonsense")
        assert (ended.code, ended.err.count("\n")) == (2, 1)
        assert "'nonsense' is not a master; use local[4], spark://host:7077, yarn" in ended.err


@pytest.mark.parametrize("kept", ["no", "topic", "namespace", "subscription"])
def test_it_is_told_that_what_is_read_may_go_if_that_is_asked_for(
    danube: Danube, client: pydanube.sync.Client, url: str, file: Path, topic: str, kept: str
) -> None:
    name = topic.split("/")[-1]
    whole = f"/{name}/orders"
    client.admin.create_namespace(name, policies={"retention_bytes": 1000} if kept == "namespace" else None)
    client.admin.create_topic(whole, policies={"retention_seconds": 60} if kept == "topic" else None)
    more = "" if kept == "subscription" else ", release: true"
    file.write_text(file.read_text().replace(f"topic: {topic}", f"topic: {whole}{more}"))
    said = (
        f"release: messages that this pipeline has read may be deleted from {whole}, which has neither "
        "retention_seconds nor retention_bytes"
    )
    found = danube("pipeline", "validate", str(file), "-o", "json").json
    assert (said in found["warnings"]) == (kept == "no")
    assert check(Flow.load(file), url, begun=True, start=None).warnings == []


# -- what the broker knows ---------------------------------------------------------------------------------------------


def report(client: pydanube.sync.Client, name: str, *, state: str, host: str = "here", **facts: Any) -> None:
    client.report_pipeline(
        name,
        "run-1",
        info={"host": host, "started": 1_800_000_000_000_000, "sinks": ["delta:/lake/a"]},
        state=state,
        progress={"rows": 1_200, "rows_per_second": 30.5, "lag_rows": 7, "lag_seconds": 1.5, "restarts": 0},
        **facts,
    )


def test_list_and_status_tell_what_was_reported(danube: Danube, client: pydanube.sync.Client, topic: str) -> None:
    name = topic.split("/")[-1]
    report(client, name, state="running")
    (found,) = [each for each in danube("pipeline", "list", "-o", "json").json if each["pipeline"] == name]
    assert (found["state"], found["progress"]["rows"]) == ("running", 1_200)
    assert found["info"]["started"] == 1_800_000_000_000_000
    assert "2027-01-15T08:00:00.000000Z" in danube("pipeline", "status", name).text
    (line,) = [each for each in danube("pipeline", "list").lines if each.startswith(name)]
    assert line.split() == [name, "running", "1200", "30.5", "7", "1.5", "0", "here", "-"]
    assert danube("pipeline", "status", name).code == 0
    report(client, name, state="failed", cause="no space left on device")
    failed = danube("pipeline", "status", name, "-o", "json")
    assert (failed.code, failed.json["cause"]) == (1, "no space left on device")


def test_a_pipeline_that_nobody_knows(danube: Danube) -> None:
    for verb in ("status", "logs", "stop", "restart"):
        ended = danube("pipeline", verb, "nobody")
        assert (ended.code, ended.err.count("\n")) == (3, 1)


def test_logs_are_those_of_the_broker(danube: Danube, client: pydanube.sync.Client, topic: str) -> None:
    name = topic.split("/")[-1]
    report(client, name, state="stopped", lines=["one", "two\x1b[2J"])
    shown = danube("pipeline", "logs", name, "--follow")  # it has ended: nothing to follow
    assert [line.split(" ", 1)[1] for line in shown.lines] == ["one", "two [2J"]
    [line] = danube("pipeline", "logs", name, "--follow", "-o", "json").lines
    assert json.loads(line) == danube("pipeline", "logs", name, "-o", "json").json
    assert [each["text"] for each in danube("pipeline", "logs", name, "-o", "json").json] == ["one", "two [2J"]


def test_orders_reach_the_runner(danube: Danube, client: pydanube.sync.Client, topic: str) -> None:
    name = topic.split("/")[-1]
    report(client, name, state="running")
    assert danube("pipeline", "restart", name).text == (
        f"told {name} to restart; see `danube pipeline logs {name}` for whether it accepted its file\n"
    )
    assert client.admin.pipeline(name)["order"] == "restart"
    ended = danube("pipeline", "stop", name, "--wait", "--timeout", "1s")
    assert ended.code == 1
    assert "did not stop within 1 seconds" in ended.err
    report(client, name, state="stopped")
    assert danube("pipeline", "stop", name, "--wait").text == f"{name} has stopped\n"
    assert danube("pipeline", "restart", name).code == 1


# -- reset -------------------------------------------------------------------------------------------------------------


def ran(file: Path, name: str, client: pydanube.sync.Client, topic: str, upto: int, *, subscribed: bool = True) -> None:
    """As a run leaves it: a checkpoint after two batches, and the subscription where they end."""
    number = client.admin.describe_topic(topic)["id"]
    with open_checkpoint(str(file.parent / "checkpoint"), name) as checkpoint:
        checkpoint.begin("d", {})
        location = Path(checkpoint.location)
    for batch, end in enumerate((1, upto)):
        for folder in ("offsets", "commits"):
            (location / folder).mkdir(parents=True, exist_ok=True)
            (location / folder / str(batch)).write_text(
                "v1\n{}\n" + json.dumps({topic: {"id": number, "0": end}}) if folder == "offsets" else "v1\n{}"
            )
    (location / "metadata").write_text('{"id": "8a06ee86-f454-4d0e-ae58-5de43bffaa7b"}')
    if subscribed:
        client.admin.create_subscription(topic, name, start=upto)


def test_a_reset_says_what_is_written_again_and_moves_the_subscription(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    name = topic.split("/")[-1]
    published(client, topic)
    ran(file, name, client, topic, upto=8)
    said = f"8 rows that were already written will be written again to delta:{file.parent}/table"
    dry = danube("pipeline", "reset", str(file), "--to", "earliest", "--dry-run")
    assert dry.text == f"would restart {name} at earliest: {said}\n"
    assert client.admin.describe_subscription(topic, name)["backlog"] == 2
    refused = danube("pipeline", "reset", str(file), "--to", "earliest")
    assert refused.code == 2
    assert "pass --yes" in refused.err
    done = danube("pipeline", "reset", str(file), "--to", "earliest", "--yes", "-o", "json").json
    assert done == {
        "pipeline": name,
        "to": "earliest",
        "again": 8,
        "skipped": 0,
        "gone": 0,
        "dry_run": False,
        "replaces": ["8a06ee86-f454-4d0e-ae58-5de43bffaa7b"],
        "generation": 1,
    }
    assert client.admin.describe_subscription(topic, name)["backlog"] == 10
    with open_checkpoint(str(file.parent / "checkpoint"), name) as checkpoint:
        number = client.admin.describe_topic(topic)["id"]
        assert json.loads(checkpoint.record.start or "") == {topic: {"id": number, "0": 0}, "*": -2}
        assert not checkpoint.begun


def test_a_reset_takes_the_place_of_a_query_whose_checkpoint_is_lost(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    lost = "8a06ee86-f454-4d0e-ae58-5de43bffaa7b"
    done = danube("pipeline", "reset", str(file), "--to", "latest", "--replaces", lost, "--yes", "-o", "json").json
    assert done["replaces"] == [lost]
    with open_checkpoint(str(file.parent / "checkpoint"), topic.split("/")[-1]) as checkpoint:
        assert checkpoint.record.replaces == (lost,)


def test_a_reset_forward_says_what_is_skipped(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    ran(file, topic.split("/")[-1], client, topic, upto=8)
    text = danube("pipeline", "reset", str(file), "--to", "latest", "--dry-run").text
    assert text.endswith("2 unread rows will be skipped\n")
    offsets = json.dumps({topic: {"0": 3}})
    found = danube("pipeline", "reset", str(file), "--to", offsets, "--yes", "-o", "json").json
    assert (found["again"], found["skipped"]) == (5, 0)
    assert client.admin.describe_subscription(topic, topic.split("/")[-1])["backlog"] == 7


@pytest.mark.parametrize("place", ["latest", "0s"])
def test_a_reset_is_to_where_that_was_when_it_was_said(
    danube: Danube, client: pydanube.sync.Client, url: str, file: Path, topic: str, place: str
) -> None:
    name = topic.split("/")[-1]
    client.admin.create_topic(topic, partitions=2)
    publish(client, f"{topic}-part-0", 4)
    ran(file, name, client, topic, upto=4, subscribed=False)
    publish(client, f"{topic}-part-1", 3)
    done = danube("pipeline", "reset", str(file), "--to", place, "--yes")
    assert done.text.endswith("3 unread rows will be skipped\n"), "of a partition that is new to it"
    assert "will restart at the current end on" in done.text or place != "latest"
    client.admin.alter_topic(topic, partitions=3)
    for partition in range(3):
        publish(client, f"{topic}-part-{partition}", 5)
    assert begins(url, file) == {topic: (4, 3, 0)}


def test_a_topic_that_came_after_a_reset_is_read_from_its_first(
    danube: Danube, client: pydanube.sync.Client, url: str, file: Path, topic: str
) -> None:
    published(client, topic)
    file.write_text(file.read_text().replace(f"topic: {topic}", f"pattern: {topic}*"))
    assert danube("pipeline", "reset", str(file), "--to", "latest", "--yes").code == 0
    published(client, f"{topic}-more")
    assert begins(url, file) == {topic: (10,), f"{topic}-more": (0,)}
    client.admin.delete_topic(topic)
    ended = danube("pipeline", "run", str(file))
    assert f"the reset position names {topic}, which this query does not read" in ended.err


def test_a_reset_says_what_is_gone(danube: Danube, client: pydanube.sync.Client, file: Path, topic: str) -> None:
    client.admin.create_topic(topic, policies={"retention_seconds": 1})
    publish(client, topic, 10)
    ran(file, topic.split("/")[-1], client, topic, upto=10)
    until = time.monotonic() + 60
    while client.admin.describe_topic(topic)["firsts"] != [10]:
        assert time.monotonic() < until
        time.sleep(0.1)
    said = "nothing will be written again or skipped; the topic no longer holds 10 earlier messages\n"
    assert danube("pipeline", "reset", str(file), "--to", "earliest", "--dry-run").text.endswith(said)
    publish(client, topic, 3)
    found = danube("pipeline", "reset", str(file), "--to", "earliest", "--yes", "-o", "json").json
    assert (found["again"], found["skipped"], found["gone"]) == (0, 0, 10)


def begins(url: str, file: Path) -> dict[str, tuple[int, ...]]:
    """Where the next run would, by topic and partition."""
    flow = Flow.load(file)
    record, begun, _ = peek(flow.checkpoint, flow.name)
    assert not begun
    options = Options.of(flow.source.options(flow, url, record.start), streaming=True)
    link = BrokerLink(options.url, None)
    link.open(5)
    try:
        states = link.wait(describe_topics(link.client, options))
        found = link.wait(offsets_at(link.client, states, options.starting, "startingOffsets"))
    finally:
        link.close()
    return {name: each.next for name, each in found.items()}


def test_files_are_only_reset_to_their_beginning(danube: Danube, file: Path, tmp_path: Path) -> None:
    source = f"source: {{files: {tmp_path}/in, format: json, schema: id BIGINT}}\n"
    file.write_text(source + re.sub("source: .*", "", file.read_text()))
    ended = danube("pipeline", "reset", str(file), "--to", "latest", "--yes")
    assert ended.code == 2
    assert "can only be read again from its beginning: use earliest" in ended.err
    assert danube("pipeline", "reset", str(file), "--to", "earliest", "--yes").code == 0


@pytest.mark.parametrize("place", ["sometime", "-5", "{", '{"x": 1}', '{"other": {"0": 1}}', "5 oclock"])
def test_a_place_that_is_none_is_refused(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str, place: str
) -> None:
    published(client, topic)
    ended = danube("pipeline", "reset", str(file), "--to", place, "--yes")
    assert ended.code in (1, 2)
    assert ended.err.count("\n") == 1
    assert not (file.parent / "checkpoint/pipeline.json").exists()
    with pytest.raises(SubscriptionNotFound):
        client.admin.describe_subscription(topic, topic.split("/")[-1])


def test_a_pipeline_that_runs_is_not_reset(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    report(client, topic.split("/")[-1], state="running", host="elsewhere")
    ended = danube("pipeline", "reset", str(file), "--to", "earliest", "--yes")
    assert ended.code == 1
    assert "runs on elsewhere, as run run-1 (Stop it with" in ended.err


def test_a_checkpoint_that_only_spark_writes_is_reset_by_the_record_that_the_broker_keeps(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    published(client, topic)
    command = ("pipeline", "reset", str(file), "--to", "earliest", "--yes", "--checkpoint", "hdfs://host/x")
    assert danube(*command, "-o", "json").json["generation"] == 1
    assert danube(*command, "-o", "json").json["generation"] == 2
    ended = danube("pipeline", "reset", str(file), "--to", "tables", "--yes", "--checkpoint", "hdfs://host/x")
    assert (ended.code, "no target remembers a batch of" in ended.err) == (2, True)


# -- redrive -----------------------------------------------------------------------------------------------------------


def started(client: pydanube.sync.Client, name: str, host: str, file: Path | None) -> None:
    told = {"host": host, "file": None if file is None else str(file)}
    client.report_pipeline(name, "run-1", info={each: fact for each, fact in told.items() if fact}, state="running")


def test_a_pipeline_is_redriven_by_the_name_it_reports_under(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    decoded = f"{{topic: {topic}, format: json, schema: 'id long'}}\ndead_letters: {{parquet: {file.parent}/dead}}"
    file.write_text(file.read_text().replace(f"{{topic: {topic}}}", decoded))
    name = topic.split("/")[-1]
    published(client, topic)
    started(client, name, socket.gethostname(), file)
    by_name = danube("pipeline", "redrive", name, "--dry-run", "-o", "json")
    assert by_name.json["pipeline"] == name, by_name.err
    assert by_name.json == danube("pipeline", "redrive", str(file), "--dry-run", "-o", "json").json


def test_whoever_redrives_by_name_elsewhere_is_told_where_the_file_is(
    danube: Danube, client: pydanube.sync.Client, file: Path, topic: str
) -> None:
    name = topic.split("/")[-1]
    unknown = danube("pipeline", "redrive", name, "--yes")
    assert (unknown.code, "does not exist" in unknown.err) == (3, True)
    started(client, name, "worker-7", file)
    assert f"{name} was started with {file} on worker-7" in danube("pipeline", "redrive", name, "--yes").err
    started(client, name, "worker-7", None)
    assert f"{name} was not started with a file" in danube("pipeline", "redrive", name, "--yes").err
