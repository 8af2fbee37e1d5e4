"""What commands print as JSON is the broker's typed answer, field for field."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import pydanube.sync
from cli.conftest import Danube
from pydanube.cli.shell.values import shown_time
from pydanube.operations.namespaces import DescribeNamespace
from pydanube.operations.sinks import BeginSink


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[pydanube.sync.Client]:
    with pydanube.sync.connect(url) as client:
        client.admin.create_namespace("answers", policies={"topics_max": 9})
        client.admin.create_topic("/answers/wide", partitions=2, policies={"ttl_seconds": 60})
        client.admin.create_topic("/answers/loud", reliable=False)
        client.admin.create_subscription("/answers/wide", "s", type="shared", start="earliest")
        with client.producer("/answers/wide") as producer:
            producer.send(b"one").result()
        client.report_pipeline(
            "answers", "run-1", info={"host": "here", "started": 7}, state="running", lines=["begun"]
        )
        client.ask(BeginSink("query", "/answers/wide"))
        with client.consumer("/answers/wide", subscription="s", type="shared"):
            yield client


def fields(answers: Any) -> Any:
    return [each.to_fields() for each in answers] if isinstance(answers, list) else answers.to_fields()


@pytest.mark.parametrize(
    ("command", "method", "arguments"),
    [
        ("topic list --namespace answers", "topic_records", ("answers",)),
        ("subscription explain /answers/wide s", "explanations", ("/answers/wide", "s")),
        ("subscription list /answers/wide", "subscriptions", ("/answers/wide",)),
        ("subscription describe /answers/wide s", "describe_subscription", ("/answers/wide", "s")),
        ("subscription consumers /answers/wide s", "consumers", ("/answers/wide", "s")),
        ("topic alter /answers/wide --policy ttl_seconds=60s", "alter_topic", ("/answers/wide",)),
    ],
)
def test_json_is_the_answer(
    danube: Danube, client: pydanube.sync.Client, command: str, method: str, arguments: tuple[str, ...]
) -> None:
    printed = danube(*command.split(), "-o", "json").json
    expected = fields(getattr(client.admin, method)(*arguments))
    for each in printed + expected if isinstance(printed, list) else [printed, expected]:
        each.pop("backlog_seconds", None)  # grows meanwhile
    assert printed == expected
    assert danube(*command.split(), "-o", "yaml").code == 0


def test_json_has_the_answer_and_what_the_command_adds(danube: Danube, client: pydanube.sync.Client) -> None:
    admin, wide = client.admin, "/answers/wide"

    def printed(command: str) -> Any:
        return danube(*command.split(), "-o", "json").json

    used = fields(admin.storage_usage(wide))
    total = {name: each for name, each in used.items() if name != "topic"}
    assert printed(f"storage usage {wide}") == {
        "status": fields(admin.storage_status()),
        "topics": [used],
        "total": total,
    }
    [lag] = printed(f"subscription lag {wide}")
    assert lag.keys() == {"topic", "done", *fields(admin.subscriptions(wide))[0]}
    assert printed("namespace describe answers") == {**fields(client.ask(DescribeNamespace("answers"))), "topics": 2}
    assert printed(f"topic describe {wide}") == {**fields(admin.describe_topic(wide)), "messages": 1}
    assert printed("namespace list") == admin.namespaces()
    assert printed("sink list") == fields(client.admin.sinks())


def test_times_are_text_only_for_people(danube: Danube, client: pydanube.sync.Client) -> None:
    admin = client.admin

    def printed(command: str) -> Any:
        return danube(*command.split(), "-o", "json").json

    known = fields(admin.pipeline("answers"))
    assert printed("pipeline status answers") == known
    assert known in printed("pipeline list")
    assert shown_time(7) in danube("pipeline", "status", "answers").text
    [line] = fields(admin.pipeline_logs("answers"))["lines"]
    assert printed("pipeline logs answers") == [line]
    assert danube("pipeline", "logs", "answers").text == f"{shown_time(line['time'])} begun\n"
    [mine] = [each for each in fields(admin.connections()) if each["consumers"] == 2]
    assert mine in printed("connection list")
    began, found = fields(admin.status())["started"], printed("status --over 1ms")
    assert (found["started"], found["broker"]) == (began, danube("context", "show", "-o", "json").json["url"])
