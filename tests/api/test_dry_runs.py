"""What is refused before anything happens: dry runs as the deed itself, and partitions where only a topic will do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.frame_client import Client
from api.http_client import Http, with_http
from api.test_native import TOPIC, run
from pydanube.api.server import Server

WIDE = "/default/wide"
PART = f"{WIDE}-part-0"


async def prepared(server: Server) -> Client:
    """A topic of five messages and one of two partitions, with a subscription each; `shop` has a topic."""
    client = await Client.connect(server.address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    await client.publish(1, *(b"%d" % number for number in range(5)))
    await client.ask("topic.create", topic=WIDE, partitions=2)
    for topic in (TOPIC, WIDE):
        await client.ask("subscription.create", topic=topic, subscription="s", start="earliest")
    await client.ask("namespace.create", namespace="shop")
    await client.ask("topic.create", topic="/shop/orders")
    await client.ask("namespace.create", namespace="empty")
    return client


async def standing(client: Client) -> list[dict[str, Any]]:
    found = [await client.ask("namespace.list"), await client.ask("topic.list")]
    for topic in (TOPIC, WIDE):
        described = await client.ask("subscription.describe", topic=topic, subscription="s")
        described["backlog_seconds"] = None  # which goes on
        found += [await client.ask("topic.describe", topic=topic), described]
    return found


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("subscription.skip", {"topic": WIDE, "subscription": "s", "count": 1}),
        ("subscription.skip", {"topic": TOPIC, "subscription": "s", "offset": 6}),
        ("subscription.skip", {"topic": TOPIC, "subscription": "none", "count": 1}),
        ("subscription.seek", {"topic": TOPIC, "subscription": "s", "to": 99_999}),
        ("subscription.seek", {"topic": TOPIC, "subscription": "s", "to": "nowhere"}),
        ("subscription.seek", {"topic": WIDE, "subscription": "s", "to": 1}),
        ("subscription.delete", {"topic": PART, "subscription": "s"}),
        ("subscription.delete", {"topic": TOPIC, "subscription": "none"}),
        ("topic.truncate", {"topic": TOPIC, "before": 60_000}),
        ("topic.truncate", {"topic": WIDE, "before": 0}),
        ("topic.delete", {"topic": PART}),
        ("topic.delete", {"topic": "/default/none"}),
        ("namespace.delete", {"namespace": "default"}),
        ("namespace.delete", {"namespace": "system"}),
        ("namespace.delete", {"namespace": "shop"}),
        ("namespace.delete", {"namespace": "none"}),
    ],
)
def test_a_dry_run_is_refused_as_the_deed_is(tmp_path: Path, verb: str, fields: dict[str, Any]) -> None:
    async def life(server: Server) -> None:
        client = await prepared(server)
        before = await standing(client)
        rehearsed = await client.refused(verb, **fields, dry_run=True)
        assert rehearsed == await client.refused(verb, **fields)
        assert await standing(client) == before

    run(tmp_path, life)


@pytest.mark.parametrize(
    ("verb", "fields", "answer"),
    [
        ("subscription.skip", {"topic": TOPIC, "subscription": "s", "count": 3}, {"skipped": 3}),
        ("subscription.skip", {"topic": TOPIC, "subscription": "s", "count": 9}, {"skipped": 5}),
        ("subscription.skip", {"topic": TOPIC, "subscription": "s", "offset": 2}, {"skipped": 2}),
        ("subscription.skip", {"topic": TOPIC, "subscription": "s", "offset": 0}, {"skipped": 0}),
        ("subscription.seek", {"topic": TOPIC, "subscription": "s", "to": 4}, {"floor": 0}),
        ("subscription.seek", {"topic": WIDE, "subscription": "s", "to": "latest"}, {"floors": [0, 0]}),
        ("subscription.delete", {"topic": WIDE, "subscription": "s"}, {}),
        ("topic.truncate", {"topic": TOPIC, "before": 4}, {"messages": 4}),
        ("topic.truncate", {"topic": TOPIC}, {"messages": 5}),
        ("topic.delete", {"topic": WIDE}, {}),
        ("namespace.delete", {"namespace": "empty"}, {}),
    ],
)
def test_a_dry_run_says_what_would_be_and_changes_nothing(
    tmp_path: Path, verb: str, fields: dict[str, Any], answer: dict[str, Any]
) -> None:
    async def life(server: Server) -> None:
        client = await prepared(server)
        before = await standing(client)
        rehearsed = await client.ask(verb, **fields, dry_run=True)
        assert {name: rehearsed[name] for name in answer} == answer
        assert await standing(client) == before
        done = await client.ask(verb, **fields)
        assert verb == "subscription.seek" or done == rehearsed

    run(tmp_path, life)


@pytest.mark.parametrize(
    ("verb", "fields"),
    [
        ("topic.delete", {"topic": PART}),
        ("topic.alter", {"topic": PART, "partitions": 3}),
        ("subscription.create", {"topic": PART, "subscription": "t"}),
        ("subscription.delete", {"topic": PART, "subscription": "s"}),
    ],
)
def test_what_is_done_to_a_whole_topic_is_not_done_to_a_partition(
    tmp_path: Path, verb: str, fields: dict[str, Any]
) -> None:
    async def life(server: Server) -> None:
        client = await prepared(server)
        before = await standing(client)
        assert await client.refused(verb, **fields) == "request_invalid"
        assert await standing(client) == before

    run(tmp_path, life)


def test_over_http_too_a_partition_is_not_deleted_alone_and_dry_runs_change_nothing(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        wide, part = "/api/v1/topics/default/wide", "/api/v1/topics/default/wide-part-0"
        await http.ask("PUT", wide, {"partitions": 2})
        await http.ask("PUT", f"{wide}/subscriptions/s")
        for method, path, body in (
            ("DELETE", part, None),
            ("DELETE", f"{part}?dry_run=true", None),
            ("PATCH", part, {"partitions": 3}),
            ("PUT", f"{part}/subscriptions/t", None),
            ("DELETE", f"{part}/subscriptions/s", None),
        ):
            refused = await http.ask(method, path, body)
            assert (refused.status, refused.json["code"]) == (400, "request_invalid"), (method, path)
            assert "/default/wide" in refused.json["detail"]
        for path in (wide, f"{wide}/subscriptions/s", "/api/v1/namespaces/default"):
            status = 400 if "namespaces" in path else 204
            assert (await http.ask("DELETE", f"{path}?dry_run=true")).status == status
        assert (await http.ask("POST", f"{wide}/truncate", {"dry_run": True})).json == {"messages": 0}
        found = (await http.ask("GET", wide)).json
        assert (found["partitions"], found["subscriptions"]) == (2, 1)

    with_http(tmp_path, story)


def test_a_partition_that_is_not_there_is_named_with_those_that_are(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", "/api/v1/topics/default/wide", {"partitions": 3})
        await http.ask("PUT", "/api/v1/topics/default/plain")

        async def detail(topic: str) -> str:
            refused = await http.ask("GET", f"/api/v1/topics/default/{topic}/bounds")
            assert refused.json["code"] == "partition_missing"
            return str(refused.json["detail"])

        assert (
            await detail("wide")
            == "/default/wide is partitioned; name one partition, /default/wide-part-0 to /default/wide-part-2"
        )
        assert await detail("wide-part-9") == "/default/wide has no partition 9: its partitions are 0 to 2"
        assert await detail("plain-part-0") == "/default/plain has no partition 0: it has no partitions"

    with_http(tmp_path, story)


def test_a_topic_that_keeps_nothing_says_so(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        path = "/api/v1/topics/default/ticks"
        assert (await http.ask("PUT", path, {"reliable": False})).json["durability"] == "none"
        assert (await http.ask("GET", path)).json["durability"] == "none"
        await http.ask("PUT", f"{path}/subscriptions/s")
        refused = await http.ask("GET", f"{path}/subscriptions/s/explain?offset=0")
        assert refused.json["code"] == "not_reliable"
        assert "not reliable" in refused.json["detail"]

    with_http(tmp_path, story)
