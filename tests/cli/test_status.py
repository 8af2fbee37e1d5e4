"""`danube status`, `version`, `connection list` and `subscription consumers`: who is there, and how it goes."""

from __future__ import annotations

import pytest

from cli.conftest import Danube
from pydanube import __version__, sync
from pydanube.base.limits import SECOND


def test_status_is_one_screen_and_says_what_is_wrong(danube: Danube, url: str, topic: str) -> None:
    danube("produce", topic, "1")
    for name in ("s", "t"):
        danube(
            "subscription", "create", topic, name, "--from", "earliest", "--option", "failure.max_redelivery_count=0"
        )
    with (
        sync.connect(url) as client,
        client.consumer(topic, subscription="s", create=False) as consumer,
        client.consumer(topic, subscription="t", create=False) as other,
    ):
        for each in (consumer, other):
            each.nack(each.receive(5))
        while any(client.admin.describe_subscription(topic, name)["blocked"] is None for name in ("s", "t")):
            pass
        ended = danube("status", "--over", "10ms", "-o", "json")
        shown = danube("status", "--over", "10ms")
    found = ended.json
    assert ended.code == shown.code == 1
    told = f"subscription s of /default/{topic} is blocked at offset 0; see `danube subscription explain"
    assert any(each.startswith(told) for each in found["wrong"])
    assert all(any(told.replace(" s ", f" {name} ") in line for line in shown.lines) for name in ("s", "t"))
    assert "\\n" not in shown.text  # each on a line of its own
    assert found["version"] == f"danube {__version__}"
    assert found["uptime_seconds"] == (found["now"] - found["started"]) // SECOND
    assert min(found["topics"], found["consumers"], found["connections"] - 1, found["backlog"]) >= 1
    assert f"danube {__version__} at danube://" in shown.text
    danube("topic", "delete", topic, "--yes")


def test_status_counts_messages_per_second(danube: Danube, url: str, topic: str) -> None:
    with sync.connect(url) as client, client.producer(topic) as producer:
        before = client.admin.status()
        producer.send_many([b"x"] * 50).result()
        after = client.admin.status()
    assert after["messages_in"] - before["messages_in"] == 50
    assert after["started"] == before["started"] < after["now"]


def test_version_is_that_of_the_command_and_of_the_broker(danube: Danube, run: Danube) -> None:
    assert danube("version", "-o", "json").json["broker"] == f"danube {__version__}"
    away = run("version", "--url", "danube://127.0.0.1:1")
    assert away.code == 0
    assert __version__ in away.text
    assert "does not answer" in away.text


def test_connections_are_listed_with_what_they_hold(danube: Danube, url: str, topic: str) -> None:
    with sync.connect(url) as client, client.producer(topic), client.consumer(topic, subscription="s"):
        rows = danube("connection", "list", "-o", "json").json
        assert client.admin.connections()[0]["number"] == rows[0]["number"]
    numbers = [each["number"] for each in rows]
    assert numbers == sorted(numbers)
    [ours] = [each for each in rows if (each["producers"], each["consumers"]) == (1, 1)]
    assert (ours["protocol"], ours["client"]) == ("native", f"pydanube {__version__}")
    assert ours["address"].startswith("127.0.0.1:")
    assert "native" in danube("connection", "list").text


@pytest.mark.parametrize("partitions", [0, 3])
def test_consumers_of_a_subscription_are_members_with_their_partitions(
    danube: Danube, url: str, topic: str, partitions: int
) -> None:
    danube("topic", "create", topic, "--partitions", str(partitions))
    options = {"subscription": "s", "type": "failover"}
    with (
        sync.connect(url) as client,
        client.consumer(topic, name="first", **options),
        client.consumer(topic, name="second", **options),
    ):
        first, second = danube("subscription", "consumers", topic, "s", "-o", "json").json
        shown = danube("subscription", "consumers", topic, "s").lines
    assert (first["name"], second["name"]) == ("first", "second")
    assert first["address"] == second["address"] != ""
    assert first["partitions"] == second["partitions"] == list(range(partitions))
    assert first["active"]
    assert sorted(first["active_partitions"] + second["active_partitions"]) == list(range(partitions))
    if not partitions:
        assert not second["active"]
    assert shown[0].split()[:2] == ["name", "address"]
    assert danube("subscription", "consumers", topic, "s", "-o", "json").json == []
    assert danube("subscription", "consumers", topic, "unknown").code == 3


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("stats", "status"),
        ("groups", "subscription"),
        ("topic ls", "list"),
        ("topic rm", "delete"),
        ("dlq pek", "peek"),
    ],
)
def test_names_of_other_systems_lead_to_ours(run: Danube, line: str, meant: str) -> None:
    ended = run(*line.split())
    assert ended.code == 2
    assert f"did you mean {meant}?" in ended.err
