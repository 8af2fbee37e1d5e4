"""Dead letters that are published again over HTTP: which, to where, what is in the way, and what a failure leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from api.http_client import Http, with_http
from broker.door_world import served
from pydanube.api.server import Server
from pydanube.broker.serving import redrive as redrive_module
from pydanube.broker.topic.topic import Topic

DEFAULT = "/api/v1/topics/default"
DEAD = f"{DEFAULT}/dead"


def letter(origin: str | None, value: str, key: str | None = None, **attributes: str) -> dict[str, Any]:
    about = attributes if origin is None else {"x-original-topic": f"/default/{origin}", **attributes}
    return {"value": value, "attributes": about} | ({} if key is None else {"key": key})


async def prepared(http: Http, *letters: dict[str, Any]) -> None:
    for topic in ("orders", "bills", "dead"):
        await http.ask("PUT", f"{DEFAULT}/{topic}")
    assert (await http.ask("POST", f"{DEAD}/messages", {"messages": list(letters)})).status == 200


async def redrive(http: Http, **fields: Any) -> dict[str, Any]:
    reply = await http.ask("POST", f"{DEAD}/redrive", fields)
    assert reply.status == 200, reply
    assert (reply.json["refused"], reply.json["refusals"]) == (0, [])
    return {name: reply.json[name] for name in ("redriven", "targets", "left")}


async def values(http: Http, topic: str) -> list[str]:
    return [each["value"] for each in (await http.ask("GET", f"{DEFAULT}/{topic}/messages?limit=100")).json["messages"]]


async def subscriptions(http: Http) -> list[str]:
    found = (await http.ask("GET", f"{DEAD}/subscriptions")).json["subscriptions"]
    return [each["subscription"] for each in found]


def test_a_message_that_is_no_letter_is_left_and_in_nobodys_way(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, letter(None, "foreign"), letter("orders", "a"), letter(None, "too"), letter("bills", "b"))
        targets = {"/default/orders": 1, "/default/bills": 1}
        assert await redrive(http) == {"redriven": 2, "targets": targets, "left": 2}
        assert await redrive(http) == {"redriven": 0, "targets": {}, "left": 2}
        assert (await values(http, "orders"), await values(http, "bills")) == (["a"], ["b"])
        assert await redrive(http, to="/default/orders") == {
            "redriven": 2,
            "targets": {"/default/orders": 2},
            "left": 0,
        }
        assert await values(http, "orders") == ["a", "foreign", "too"]
        assert (await redrive(http, to="/default/orders"))["redriven"] == 0

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"to": "/default/none"}, "topic_not_found"),
        ({"to": "none"}, "name_invalid"),
        ({"to": ""}, "name_invalid"),
        ({"to": "/default/ticks"}, "topic_kind_differs"),
        ({"to": "/default/orders-part-3"}, "partition_missing"),
        ({"filter": {"key": 1}}, "request_invalid"),
        ({"limit": 0}, "request_invalid"),
    ],
)
def test_a_redrive_that_is_refused_leaves_nothing_behind(tmp_path: Path, fields: dict[str, Any], code: str) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, letter("gone", "a"))
        await http.ask("PUT", f"{DEFAULT}/ticks", {"reliable": False})
        for dry_run in (True, False):
            refused = await http.ask("POST", f"{DEAD}/redrive", {**fields, "dry_run": dry_run})
            assert refused.json["code"] == code
        assert await subscriptions(http) == []

    with_http(tmp_path, story)


def test_a_target_that_is_no_name_is_refused_although_there_is_nothing_to_publish(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", DEAD)
        for to in ("", "none"):
            refused = await http.ask("POST", f"{DEAD}/redrive", {"to": to})
            assert (refused.status, refused.json["code"]) == (400, "name_invalid")

    with_http(tmp_path, story)


def test_a_letter_whose_topic_is_gone_or_keeps_nothing_stays_and_is_named(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, letter("gone", "a"), letter("ticks", "b"), letter("orders", "c"))
        await http.ask("PUT", f"{DEFAULT}/ticks", {"reliable": False})
        for dry_run in (True, False):
            found = (await http.ask("POST", f"{DEAD}/redrive", {"dry_run": dry_run})).json
            assert (found["redriven"], found["refused"]) == (1, 2)
            assert [(each["offset"], each["topic"]) for each in found["refusals"]] == [
                (0, "/default/gone"),
                (1, "/default/ticks"),
            ]
            assert [each["error"].partition(":")[0] for each in found["refusals"]] == [
                "topic_not_found",
                "topic_kind_differs",
            ]
        assert await values(http, "orders") == ["c"]

    with_http(tmp_path, story)


def test_a_dry_run_says_how_many_would_go_where_and_changes_nothing(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, letter("orders", "a"), letter("bills", "b"), letter("orders", "c"), letter(None, "d"))
        would = {"redriven": 3, "targets": {"/default/orders": 2, "/default/bills": 1}, "left": 1}
        assert await redrive(http, dry_run=True) == would
        assert (await redrive(http, dry_run=True, limit=1))["targets"] == {"/default/orders": 1}
        assert (await subscriptions(http), await values(http, "orders")) == ([], [])
        assert (await redrive(http, limit=1))["redriven"] == 1
        assert (await redrive(http, dry_run=True))["redriven"] == 2  # with the subscription there too
        assert (await redrive(http))["targets"] == {"/default/bills": 1, "/default/orders": 1}
        assert await values(http, "orders") == ["a", "c"]

    with_http(tmp_path, story)


def test_a_dry_run_counts_all_letters_and_lists_as_many_targets_as_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redrive_module, "LISTED_MAX", 2)

    async def story(server: Server, http: Http) -> None:
        empty = [letter("orders", "") for _ in range(900)]
        await prepared(http, *empty, letter("bills", "b"), letter(None, "foreign"), letter("dead", "c"))
        await http.ask("POST", f"{DEAD}/messages", {"messages": [letter("orders", "d") for _ in range(700)]})
        would = await redrive(http, dry_run=True)
        assert would == {"redriven": 1602, "targets": {"/default/orders": 1600, "/default/bills": 1}, "left": 1}
        assert (await redrive(http, dry_run=True, limit=7))["redriven"] == 7
        assert (await redrive(http))["redriven"] == 500  # a page
        assert (await redrive(http, dry_run=True))["redriven"] == 1102
        assert (await redrive(http, dry_run=True, filter={"topic": "/default/bills"}))["redriven"] == 1

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"topic": "/default/bills"}, ["b"]),
        ({"subscription": "s"}, ["a", "b"]),
        ({"subscription": "s", "topic": "/default/orders"}, ["a"]),
        ({"reason": "out"}, ["a"]),
        ({"key": "k"}, ["c"]),
        ({"colour": "red"}, ["b"]),
        ({"colour": "blue"}, []),
    ],
)
def test_only_letters_that_are_asked_for_go(tmp_path: Path, wanted: dict[str, str], found: list[str]) -> None:
    async def story(server: Server, http: Http) -> None:
        told: dict[str, str] = {"x-original-subscription": "s", "x-failure-reason": "timed out"}
        await prepared(
            http,
            letter("orders", "a", **told),
            letter("bills", "b", colour="red", **{"x-original-subscription": "s"}),
            letter("orders", "c", key="k"),
        )
        assert (await redrive(http, filter=wanted))["redriven"] == len(found)
        assert sorted(await values(http, "orders") + await values(http, "bills")) == found
        assert (await redrive(http))["redriven"] == 3 - len(found)  # the others were left for another time
        assert len(await values(http, "orders") + await values(http, "bills")) == 3

    with_http(tmp_path, story)


def test_a_letter_goes_to_the_partition_of_its_key(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, *(letter("orders", str(each), key=str(each)) for each in range(20)))
        await http.ask("PUT", f"{DEFAULT}/wide", {"partitions": 3})
        done = await redrive(http, to="/default/wide")
        assert set(done["targets"]) == {f"/default/wide-part-{each}" for each in range(3)}
        direct = {"messages": [{"key": str(each), "value": str(each)} for each in range(20)]}
        await http.ask("POST", f"{DEFAULT}/wide/messages", direct)
        for each in range(3):
            there = await values(http, f"wide-part-{each}")
            assert there[: len(there) // 2] == there[len(there) // 2 :]

    with_http(tmp_path, story)


def test_letters_go_back_to_a_topic_that_has_forgotten_producers_and_leave_no_name_there(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await prepared(http, letter("orders", "a"), letter("orders", "b"))
        opened = await served(server._broker.door, "/default/orders")
        assert isinstance(opened.topic, Topic)
        opened.topic.state.producers.forgotten = 1
        assert (await redrive(http, limit=1))["redriven"] == 1
        assert (await redrive(http))["redriven"] == 1
        assert await values(http, "orders") == ["a", "b"]
        await opened.topic.tick()
        assert len(opened.topic.state.producers) == 0

    with_http(tmp_path, story)
