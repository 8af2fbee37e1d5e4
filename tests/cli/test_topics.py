"""`danube topic`, `subscription`, `namespace` and `top`: what is said is done, and what is only tried is not."""

from __future__ import annotations

import click
import pytest
import yaml

from cli.conftest import Danube


def test_a_topic_is_created_described_altered_and_deleted(danube: Danube, topic: str) -> None:
    assert danube("topic", "create", topic, "--partitions", "2", "--policy", "retention_seconds=7d").code == 0
    assert danube("topic", "create", topic).code == 1
    found = danube("topic", "describe", topic, "-o", "json").json
    assert (found["partitions"], found["policies"], found["messages"]) == (2, {"retention_seconds": 604_800}, 0)
    danube("topic", "alter", topic, "--partitions", "3", "--policy", "retention_seconds=none")
    found = yaml.safe_load(danube("topic", "describe", topic, "-o", "yaml").out)
    assert (found["partitions"], found["policies"]) == (3, {})
    assert danube("topic", "alter", topic).code == 2
    [row] = [line.split() for line in danube("topic", "list").lines if line.startswith(f"/default/{topic} ")]
    assert row[1:] == ["yes", "3", "fsynced"]
    [listed] = [each for each in danube("topic", "list", "--all", "-o", "json").json if each["topic"].endswith(topic)]
    assert (listed["partitions"], listed["reliable"], listed["durability"]) == (3, True, "fsynced")
    assert danube("topic", "delete", topic, "--yes").code == 0
    assert danube("topic", "describe", topic).code == 3


def test_a_topic_that_keeps_nothing_is_listed_as_such(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic, "--no-reliable")
    [row] = [line.split() for line in danube("topic", "list").lines if line.startswith(f"/default/{topic} ")]
    assert row[1:] == ["no", "0", "none"]
    assert danube("topic", "describe", topic, "-o", "json").json["durability"] == "none"


def test_truncating_and_peeking(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "10", "--key", "k", "-H", "a=b")
    assert (
        danube("topic", "truncate", topic, "--before", "4", "--dry-run").text
        == f"would delete 4 messages of /default/{topic}\n"
    )
    danube("topic", "truncate", topic, "--before", "4", "--yes")
    [message] = danube("topic", "peek", topic, "-o", "json").json
    assert (message["partition"], message["offset"], message["value"], message["key"]) == (None, 4, "5", "k")
    assert danube("topic", "describe", topic, "-o", "json").json["messages"] == 6
    assert len(danube("topic", "peek", topic, "-n", "50", "--from", "6").lines) == 1 + 4
    assert danube("topic", "truncate", topic, "--yes").text == f"deleted 6 messages of /default/{topic}\n"


def test_a_table_shows_what_is_no_text_with_escapes(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--key", "k", stdin=b"\xff\x00\x1b[31m\n")
    assert r"\xff\x00\x1b[31m" in danube("topic", "peek", topic).text
    [row] = danube("topic", "peek", topic, "-o", "json").json
    assert (row["value_base64"], "value" in row) == ("/wAbWzMxbQ==", False)


def test_durations_have_a_unit_where_people_read_them(danube: Danube, topic: str) -> None:
    danube("topic", "create", topic)
    danube("subscription", "create", topic, "s", "--option", "failure.ack_timeout=90s")
    rows = dict(line.split() for line in danube("subscription", "describe", topic, "s").lines if "." in line)
    assert rows["options.failure.ack_timeout"] == "90s"
    assert rows["options.failure.base_delay"] == "1s"
    assert rows["options.failure.max_delay"] == "1m"
    changed = danube("subscription", "alter", topic, "s", "--option", "failure.ack_timeout=250ms").text
    assert "250ms" in changed


@pytest.mark.parametrize(
    ("verb", "said"),
    [
        (["topic", "delete", "T"], "would delete /default/T with 3 messages ("),
        (["topic", "truncate", "T"], "would delete 3 messages of /default/T"),
        (
            ["subscription", "seek", "T", "s", "--to", "latest"],
            "now at 0 with 3 messages to do, to latest",
        ),
        (["subscription", "seek", "T", "s", "--to", "1"], "to 1, which leaves 2 messages to do"),
        (
            ["subscription", "seek", "T", "s", "--to", "2100-01-01T00:00:00Z"],
            "to 2100-01-01T00:00:00Z, which leaves 0 messages to do",
        ),
        (
            ["subscription", "skip", "T", "s", "--count", "2"],
            "the next 2 messages of s, which has 3 messages to do",
        ),
        (["subscription", "skip", "T", "s", "--before", "2"], "would skip the next 2 messages of s"),
        (["subscription", "delete", "T", "s"], "would delete s of /default/T with 3 messages to do and 0 consumers"),
    ],
)
def test_a_dry_run_says_numbers_and_does_nothing(danube: Danube, topic: str, verb: list[str], said: str) -> None:
    danube("produce", topic, stdin=b"1\n2\n3\n")
    danube("subscription", "create", topic, "s", "--from", "earliest")
    before = danube("subscription", "describe", topic, "s", "-o", "json").json
    del before["backlog_seconds"]  # which grows by itself
    command = [topic if word == "T" else word for word in verb]
    said = said.replace("/T", f"/{topic}")

    refused = danube(*command)
    assert refused.code == 2
    assert "not a terminal, so pass --yes to confirm" in refused.err
    tried = danube(*command, "--dry-run")
    assert tried.code == 0
    assert said in tried.text
    assert danube(*command, "--dry-run", "-o", "json").json["dry_run"] is True
    assert danube("subscription", "describe", topic, "s", "-o", "json").json.items() >= before.items()
    assert danube(*command, "--yes").code == 0
    after = danube("subscription", "describe", topic, "s", "-o", "json")
    assert after.code == 3 or not after.json.items() >= before.items()


def test_somebody_at_a_terminal_is_asked(danube: Danube, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    danube("topic", "create", topic)
    asked: list[str] = []

    def confirm(text: str, **options: object) -> bool:
        asked.append(text)
        raise click.Abort

    monkeypatch.setattr("click.confirm", confirm)
    monkeypatch.setattr("pydanube.cli.shell.output.stdin_is_terminal", lambda: True)
    assert danube("topic", "delete", topic).code == 130
    assert asked == [f"This will delete /default/{topic} with 0 messages (0 B) and 0 subscriptions. Continue?"]
    assert danube("topic", "describe", topic).code == 0


def test_a_subscription_from_its_creation_to_its_end(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "10")
    create = ("subscription", "create", topic, "s", "--type", "shared", "--from", "earliest")
    assert danube(*create, "--option", "failure.ack_timeout=1m", "--dead-letter-topic", "dead").code == 0
    found = danube("subscription", "describe", topic, "s", "-o", "json").json
    assert found["options"]["failure"]["ack_timeout"] == 60
    assert found["options"]["failure"]["dead_letter_topic"] == "/default/dead"
    danube("subscription", "alter", topic, "s", "--option", "failure.max_redelivery_count=9")
    changed = danube("subscription", "describe", topic, "s", "-o", "json").json["options"]["failure"]
    assert (changed["max_redelivery_count"], changed["ack_timeout"]) == (9, 60)
    assert danube("subscription", "skip", topic, "s", "--count", "3", "--yes").text == "skipped 3 messages of s\n"
    explained = danube("subscription", "explain", topic, "s", "-o", "json").json
    assert explained["explanations"][0]["offset"] == 3
    assert explained["sentence"]
    moved = danube("subscription", "seek", topic, "s", "--to", "8", "--yes")
    assert moved.text == f"s of /default/{topic} is at 8, with 2 messages to do\n"
    assert danube("subscription", "list", topic, "-o", "json").json[0]["backlog"] == 2
    assert danube("subscription", "delete", topic, "s", "--yes").code == 0
    assert danube("subscription", "describe", topic, "s").code == 3
    assert danube("subscription", "delete", topic, "s", "--yes").code == 3


def test_lag_puts_the_farthest_behind_first(danube: Danube, topic: str) -> None:
    danube("produce", topic, "--value", "{n}", "--count", "10")
    danube("subscription", "create", topic, "near", "--from", "9")
    danube("subscription", "create", topic, "far", "--from", "earliest")
    assert [
        (row["subscription"], row["backlog"]) for row in danube("subscription", "lag", topic, "-o", "json").json
    ] == [
        ("far", 10),
        ("near", 1),
    ]
    [far, near] = danube("subscription", "lag", topic, "-o", "json").json
    assert far["backlog_seconds"] >= near["backlog_seconds"] > 0
    watched = danube("subscription", "lag", topic, "--watch", "--every", "1ms", "--count", "3")
    assert watched.text.count(" far ") == 3
    assert "acked per second" in watched.text
    assert f"/default/{topic}" in danube("subscription", "lag").text


def test_a_namespace_and_its_policies(danube: Danube) -> None:
    assert danube("namespace", "create", "shop", "--policy", "retention_bytes=1GiB").code == 0
    assert danube("namespace", "create", "shop").code == 1
    assert "shop" in danube("namespace", "list", "-o", "json").json
    danube("namespace", "alter", "shop", "--policy", "topics_max=1", "--policy", "retention_bytes=none")
    assert danube("namespace", "describe", "shop", "-o", "json").json == {
        "namespace": "shop",
        "topics": 0,
        "policies": {"topics_max": 1},
    }
    danube("topic", "create", "/shop/orders")
    for way in ("--dry-run", "--yes"):
        refused = danube("namespace", "delete", "shop", way)
        assert (refused.code, refused.text) == (1, "")
        assert "has topics: 1 (" in refused.err
    danube("topic", "delete", "/shop/orders", "--yes")
    assert danube("namespace", "delete", "shop", "--yes").code == 0


def test_top_measures_between_two_looks(danube: Danube, topic: str) -> None:
    danube("produce", topic, stdin=b"1\n")
    ended = danube(
        "top", "--namespace", "default", "--every", "1ms", "--count", "2", "--sort", "name", "--lines", "1000"
    )
    rows = [line.split() for line in ended.lines if line.startswith(f"/default/{topic} ")]
    assert [row[1] for row in rows] == ["-", "0"]
    assert danube("top", "--namespace", "not-there", "--count", "1").code == 3


def test_bench_uses_several_clients_and_counts_latency_from_when_a_message_was_due(danube: Danube, topic: str) -> None:
    several = ("--count", "300", "--producers", "3", "--batch", "10", "--rate", "3000", "--in-flight", "1")
    published = danube("bench", "publish", topic, *several, "-o", "json").json
    assert published["messages"] == 300
    assert published["seconds"] >= 0.08  # the last batch is due after 0.1 s
    assert published["p50_ms"] > 0
    consumed = danube("bench", "consume", topic, "--count", "300", "--consumers", "3", "-o", "json").json
    assert consumed["messages"] == 300
    assert "p50_ms" not in consumed  # all of them were stored before: they have an age, and no latency


def test_bench_says_rates_and_percentiles(danube: Danube, topic: str) -> None:
    published = danube("bench", "publish", topic, "--count", "5000", "--size", "10", "-o", "json").json
    assert published["messages"] == 5000
    assert published["messages_per_second"] > 0
    assert 0 < published["p50_ms"] <= published["p99_ms"] <= published["max_ms"]
    consumed = danube("bench", "consume", topic, "--count", "5000", "-o", "json").json
    assert consumed["messages"] == 5000
    assert danube("subscription", "list", topic, "-o", "json").json == []
