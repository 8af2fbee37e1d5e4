"""Consuming over HTTP: leases that are acknowledged, fail, end, are extended, and what a restart leaves of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import pydanube
from api.http_client import Http, Reply, with_http
from client.unreadable import poison
from pydanube.access.principals import ANONYMOUS, SYSTEM
from pydanube.api.http import face as face_module
from pydanube.api.server import Server
from pydanube.base.errors import ConsumerBusy, OffsetsDamaged
from pydanube.base.limits import KIB
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.door import leasing as leasing_module
from pydanube.broker.door.leasing import Key, Poll
from pydanube.broker.door.session import Origin
from pydanube.testing.clock import VirtualClock
from pydanube.wire.batch import build

ORDERS = "/api/v1/topics/default/orders"
SUB = f"{ORDERS}/subscriptions/workers"
RAW = "application/octet-stream"


async def make(http: Http, kind: str = "shared", messages: int = 0, partitions: int = 0, **failure: Any) -> None:
    assert (await http.ask("PUT", ORDERS, {"partitions": partitions})).status == 201
    options = {"failure": {"base_delay": 0, "max_delay": 0, **failure}}
    made = await http.ask("PUT", SUB, {"type": kind, "start": "earliest", "options": options})
    assert made.status == 201
    if messages:
        await publish(http, *(f"m{each}" for each in range(messages)))


async def publish(http: Http, *values: str, key: str | None = None) -> None:
    keyed = {} if key is None else {"key": key}
    sent = await http.ask("POST", f"{ORDERS}/messages", {"messages": [{"value": each, **keyed} for each in values]})
    assert sent.status == 200


async def receive(http: Http, query: str = "") -> list[dict[str, Any]]:
    found = await http.ask("POST", f"{SUB}/receive{query}")
    assert found.status == 200, found.body
    return list(found.json["messages"])


async def settle(http: Http, verb: str, *messages: dict[str, Any], query: str = "", **fields: Any) -> Reply:
    return await http.ask("POST", f"{SUB}/{verb}{query}", {"leases": [each["lease"] for each in messages], **fields})


def values(messages: list[dict[str, Any]]) -> list[str]:
    return [each["value"] for each in messages]


def with_clock(directory: Path, story: Callable[[Server, Http, VirtualClock], Awaitable[None]]) -> None:
    """The story moves time. Nothing ends by itself while it does not."""
    clock = VirtualClock()

    async def run(server: Server, http: Http) -> None:
        def moved() -> None:
            server.time_moved()

        clock.watch(moved)
        await story(server, http, clock)
        clock.unwatch(moved)

    with_http(directory, run, clock=clock)


def test_messages_are_received_acknowledged_and_do_not_come_again(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=5)
        first = await receive(http, "?limit=3")
        assert [(each["value"], each["offset"], each["attempt"], each["topic"]) for each in first] == [
            (f"m{each}", each, 0, "/default/orders") for each in range(3)
        ]
        rest = await receive(http)
        assert values(rest) == ["m3", "m4"]
        assert (await settle(http, "ack", *first, *rest)).json == {"acked": 5, "ended": []}
        described = (await http.ask("GET", SUB)).json
        assert (described["floor"], described["backlog"], described["consumers"]) == (5, 0, 0)
        assert await receive(http) == []

    with_http(tmp_path, story)


def test_a_consumer_that_comes_over_several_connections_is_shown_as_one(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"partitions": 2})
        await http.ask("PUT", SUB, {"type": "shared", "start": "earliest"})
        other = await Http.connect(server)
        for partition, connection in enumerate((http, other)):
            await http.ask("POST", f"{ORDERS}-part-{partition}/messages", {"messages": [{"value": "x"}]})
            await connection.ask("POST", f"{SUB}/receive?limit=1&consumer=c")
        [shown] = (await http.ask("GET", f"{SUB}/consumers")).json["consumers"]
        assert (shown["name"], shown["address"], sorted(shown["partitions"])) == ("c", "", [0, 1])
        await other.close()

    with_http(tmp_path, story)


def test_a_request_waits_for_a_message_and_gets_it_when_it_comes(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        waiting = await Http.connect(server)
        waiting.send("POST", f"{SUB}/receive?wait=20")
        face = server._http
        while not face.waiting:  # noqa: ASYNC110 - sockets of this loop
            await asyncio.sleep(0)
        await publish(http, "at last")
        assert values((await waiting.reply()).json["messages"]) == ["at last"]
        await waiting.close()

    with_http(tmp_path, story)


def test_one_message_as_bytes_with_its_facts_in_headers(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        assert (await http.ask("POST", f"{SUB}/receive", accept=RAW)).status == 204
        await http.ask("POST", f"{ORDERS}/messages?key=a%20b", b"\x00\xff\r\n")
        found = await http.ask("POST", f"{SUB}/receive", accept=RAW)
        assert (found.status, found.body, found.headers["content-type"]) == (200, b"\x00\xff\r\n", RAW)
        facts = {name: found.headers[f"danube-{name}"] for name in ("topic", "offset", "attempt", "key")}
        assert facts == {"topic": "/default/orders", "offset": "0", "attempt": "0", "key": "a%20b"}
        acked = await http.ask("POST", f"{SUB}/ack?lease={found.headers['danube-lease']}")
        assert acked.json == {"acked": 1, "ended": []}
        several = await http.ask("POST", f"{SUB}/receive?limit=2", accept=RAW)
        assert (several.status, several.json["code"]) == (400, "request_invalid")

    with_http(tmp_path, story)


def test_what_is_nacked_comes_again_and_says_so(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=2)
        found = await receive(http)
        assert (await settle(http, "nack", found[0], reason="no paper")).json == {"nacked": 1, "ended": []}
        [again] = await receive(http)
        assert (again["offset"], again["attempt"]) == (0, 1)
        assert again["lease"] != found[0]["lease"]
        twice = await settle(http, "nack", found[0])
        assert (twice.status, twice.json["code"]) == (409, "lease_ended")
        assert (await settle(http, "nack", found[0], found[1])).json == {"nacked": 1, "ended": [found[0]["lease"]]}

    with_http(tmp_path, story)


def test_a_lease_that_ends_lets_the_message_come_again(tmp_path: Path) -> None:
    async def story(server: Server, http: Http, clock: VirtualClock) -> None:
        await make(http, messages=3)
        short, long = await receive(http, "?limit=1&lease_seconds=10"), await receive(http, "?lease_seconds=60")
        clock.advance(9)
        assert await receive(http) == []
        clock.advance(2)
        [again] = await receive(http)
        assert (again["offset"], again["attempt"]) == (0, 1)
        assert (await settle(http, "extend", *short, query="?lease_seconds=5")).json["code"] == "lease_ended"
        assert (await settle(http, "extend", *long, query="?lease_seconds=600")).json == {"extended": 2, "ended": []}
        clock.advance(29)
        assert (await settle(http, "ack", again)).json["acked"] == 1
        clock.advance(500)
        assert await receive(http) == []
        clock.advance(200)
        assert values(await receive(http)) == ["m1", "m2"]

    with_clock(tmp_path, story)


def test_without_a_time_a_lease_has_that_of_the_subscription(tmp_path: Path) -> None:
    async def story(server: Server, http: Http, clock: VirtualClock) -> None:
        await make(http, messages=1, ack_timeout=5)
        assert len(await receive(http)) == 1
        clock.advance(4)
        assert await receive(http) == []
        clock.advance(2)
        assert len(await receive(http)) == 1

    with_clock(tmp_path, story)


def test_a_late_ack_counts(tmp_path: Path) -> None:
    async def story(server: Server, http: Http, clock: VirtualClock) -> None:
        await make(http, messages=1)
        found = await receive(http, "?lease_seconds=1")
        clock.advance(2)
        assert len(server._broker.door.leasing) == 0
        assert (await settle(http, "ack", *found)).json == {"acked": 1, "ended": []}
        assert await receive(http) == []

    with_clock(tmp_path, story)


def test_what_failed_too_often_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=1, max_redelivery_count=1)
        for _ in range(2):
            await settle(http, "nack", *(await receive(http)), reason="no paper")
        assert await receive(http) == []
        letters = (await http.ask("GET", "/api/v1/topics/default/orders-workers-dlq/messages?wait=10")).json["messages"]
        assert values(letters) == ["m0"]

    with_http(tmp_path, story)


def test_after_a_restart_messages_come_again_and_old_leases_can_still_be_acknowledged(tmp_path: Path) -> None:
    kept: list[dict[str, Any]] = []

    async def before(server: Server, http: Http) -> None:
        await make(http, messages=3)
        kept.extend(await receive(http))

    async def after(server: Server, http: Http) -> None:
        assert (await settle(http, "ack", kept[0])).json == {"acked": 1, "ended": []}
        assert (await settle(http, "nack", kept[1])).json["code"] == "lease_ended"
        assert values(await receive(http)) == ["m1", "m2"]
        assert (await settle(http, "nack", kept[1])).json["code"] == "lease_ended"  # another's now

    with_http(tmp_path, before)
    with_http(tmp_path, after)


def test_a_seek_and_a_subscription_made_anew_void_leases(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=2)
        found = await receive(http)
        await http.ask("POST", f"{SUB}/seek", {"to": "earliest"})
        assert (await settle(http, "ack", *found)).json["code"] == "lease_ended"
        again = await receive(http)
        assert values(again) == ["m0", "m1"]
        await http.ask("DELETE", SUB)
        assert (await settle(http, "ack", *again)).json["code"] == "subscription_not_found"
        assert len(server._broker.door.leasing) == 0
        await http.ask("PUT", SUB, {"type": "shared", "start": "earliest"})
        assert (await settle(http, "ack", *again)).json["code"] == "lease_ended"
        assert values(await receive(http)) == ["m0", "m1"]

    with_http(tmp_path, story)


@pytest.mark.parametrize("kind", ["exclusive", "failover"])
def test_an_ordered_subscription_goes_back_to_what_failed(tmp_path: Path, kind: str) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, kind, messages=4)
        found = await receive(http)
        assert values(found) == ["m0", "m1", "m2", "m3"]
        await settle(http, "ack", found[0])
        await settle(http, "nack", found[1])
        assert values(again := await receive(http)) == ["m1", "m2", "m3"]
        assert (await settle(http, "nack", found[3])).json["code"] == "lease_ended"
        assert (await settle(http, "ack", *again)).json["acked"] == 3

    with_http(tmp_path, story)


def test_an_exclusive_subscription_has_one_consumer_by_its_name(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, "exclusive", messages=2)
        mine = await receive(http, "?consumer=a&limit=1")
        other = await http.ask("POST", f"{SUB}/receive?consumer=b")
        assert (other.status, other.json["code"]) == (429, "consumer_busy")
        mine += await receive(http, "?consumer=a")
        await settle(http, "ack", *mine)
        assert await receive(http, "?consumer=b") == []

    with_http(tmp_path, story)


def test_a_consumer_that_was_refused_is_tried_again_by_whoever_comes_next(tmp_path: Path) -> None:
    """Also while those who were refused with it have not left yet: among many workers one always has not."""

    async def story(server: Server, http: Http) -> None:
        await make(http, "exclusive", messages=2)
        mine = await receive(http, "?consumer=a&limit=1")
        session = server._broker.door.session(ANONYMOUS, Origin("http"))
        key = Key(ANONYMOUS, parse_topic("/default/orders"), "workers", "b")
        sink = server._broker.door.leasing._sink(session, key)
        refused = Poll(1, None, 1, asyncio.get_running_loop().create_future())
        sink.enter(refused)
        with pytest.raises(ConsumerBusy):
            await refused.ready
        await settle(http, "ack", *mine)
        assert values(await receive(http, "?consumer=b")) == ["m1"]
        sink.leave(refused)

    with_http(tmp_path, story)


def test_one_damaged_partition_does_not_keep_a_request_from_waiting_for_the_others(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, partitions=2)
        topics = server._broker.door.topics
        real, damaged = topics._serve, ["/default/orders-part-0"]

        async def opened(principal: Any, name: TopicName, **named: Any) -> Any:
            if str(name) in damaged:
                raise OffsetsDamaged.between(0, 0, str(name))
            return await real(principal, name, **named)

        topics._serve = opened  # type: ignore[method-assign]
        begun = asyncio.get_running_loop().time()
        told = await http.ask("POST", f"{SUB}/receive?wait=1")
        assert told.json["code"] == "offsets_damaged"
        assert asyncio.get_running_loop().time() - begun >= 1
        waiting = asyncio.ensure_future(receive(http, "?wait=20"))
        while not server._broker.door.leasing._sinks:  # noqa: ASYNC110 - it does not tell, it is asked
            await asyncio.sleep(0.001)
        sound = (await real(SYSTEM, parse_topic("/default/orders-part-1"))).reliable
        await sound.publish(build([b"sound"], publish_time=1)).confirmed
        assert values(await waiting) == ["sound"]
        damaged.append("/default/orders-part-1")
        async with asyncio.timeout(10):
            told = await http.ask("POST", f"{SUB}/receive?wait=20&consumer=another")
        assert told.json["code"] == "offsets_damaged"

    with_http(tmp_path, story)


def test_a_batch_that_cannot_be_unpacked_fails_and_what_lies_behind_it_comes(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=1, max_redelivery_count=1, poison="drop")
        async with pydanube.connect("danube://{}:{}".format(*server.address)) as client:
            await poison(client, 2, "/default/orders")
        await publish(http, "m3")
        found: list[dict[str, Any]] = []
        while (await http.ask("GET", SUB)).json["backlog"]:
            messages = await receive(http)
            found += messages
            if messages:
                await settle(http, "ack", *messages)
        assert [(each["offset"], each["attempt"]) for each in found] == [(0, 0), (3, 0)]

    with_http(tmp_path, story)


def test_a_key_is_held_by_one_consumer_at_a_time(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, "key_shared")
        await publish(http, "first", "second", key="k")
        held = await receive(http, "?consumer=a&limit=1")
        assert await receive(http, "?consumer=b") == []
        await settle(http, "ack", *held)
        assert values(await receive(http, "?consumer=b")) == ["second"]

    with_http(tmp_path, story)


def test_all_partitions_are_received_from_and_no_more_than_asked_for(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, partitions=3)
        for key in range(30):
            await publish(http, f"m{key}", key=str(key))
        found: list[dict[str, Any]] = []
        while len(found) < 30:
            part = await receive(http, "?limit=4&lease_seconds=600")
            assert 1 <= len(part) <= 4
            found += part
        assert sorted(values(found)) == sorted(f"m{each}" for each in range(30))
        assert {each["attempt"] for each in found} == {0}  # what was given back has not failed
        one = [each for each in found if each["topic"] == "/default/orders-part-1"]
        assert one
        of_partition = f"{ORDERS}-part-1/subscriptions/workers/ack"
        refused = await http.ask("POST", of_partition, {"leases": [each["lease"] for each in found]})
        assert refused.json["code"] == "request_invalid"
        assert (await http.ask("POST", of_partition, {"leases": [each["lease"] for each in one]})).status == 200
        left = [each for each in found if each not in one]
        assert (await settle(http, "ack", *left)).json["acked"] == len(left)
        assert (await http.ask("GET", SUB)).json["backlog"] == 0

    with_http(tmp_path, story)


def test_a_seek_ends_leases_whose_consumer_leaves_with_the_last_of_them(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=2)
        held = await receive(http, "?consumer=a&limit=1") + await receive(http, "?consumer=b&limit=1")
        assert (await http.ask("POST", f"{SUB}/seek", {"to": "earliest"})).status == 200
        assert (await settle(http, "nack", *held)).json["code"] == "lease_ended"
        assert values(await receive(http)) == ["m0", "m1"]

    with_http(tmp_path, story)


def test_leases_are_of_their_own_subscription_only(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=1)
        [held] = await receive(http)
        other = f"{ORDERS}/subscriptions/other"
        assert (await http.ask("PUT", other, {})).status == 201
        for verb in ("nack", "extend?lease_seconds=60"):
            told = await http.ask("POST", f"{other}/{verb}", {"leases": [held["lease"]]})
            assert told.json["code"] == "lease_ended"
        assert (await settle(http, "ack", held)).json["acked"] == 1

    with_http(tmp_path, story)


def test_a_client_that_hangs_up_while_it_waits_takes_nothing_with_it(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        face = server._http
        gone = await Http.connect(server)
        gone.send("POST", f"{SUB}/receive?wait=20")
        while not face.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        gone.writer.transport.abort()
        while face.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await publish(http, "for others")
        [found] = await receive(http)
        assert (found["value"], found["attempt"]) == ("for others", 0)

    with_http(tmp_path, story)


def test_an_answer_ends_after_a_mebibyte_and_the_rest_has_not_failed(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        async with pydanube.connect(server.url) as client, client.producer("orders", compression="zstd") as producer:
            await producer.send_many([bytes([each]) * 300 * KIB for each in range(8)])
        found: list[dict[str, Any]] = []
        while len(found) < 8:
            part = await receive(http, "?limit=8")
            assert 1 <= len(part) <= 4
            found += part
        assert [(each["offset"], each["attempt"]) for each in found] == [(each, 0) for each in range(8)]
        assert len(found[7]["value"]) == 300 * KIB

    with_http(tmp_path, story)


def test_leases_and_requests_that_wait_have_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leasing_module, "LEASES_MAX", 3)
    monkeypatch.setattr(face_module, "WAITING_REQUESTS_MAX", 1)

    async def story(server: Server, http: Http) -> None:
        await make(http, messages=5)
        held = await receive(http, "?limit=3")
        full = await http.ask("POST", f"{SUB}/receive?limit=1")
        assert (full.status, full.json["code"], full.headers["retry-after"]) == (429, "too_many_leases", "1")
        await settle(http, "ack", *held)
        held = await receive(http, "?limit=2")
        waiting = await Http.connect(server)
        waiting.send("POST", f"{SUB}/receive?wait=20&limit=1")
        while not server._http.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        for path in (f"{SUB}/receive", f"{ORDERS}/messages?wait=1"):
            method = "POST" if path.endswith("receive") else "GET"
            busy = await http.ask(method, path)
            assert (busy.status, busy.json["code"]) == (503, "http_busy")
        assert (await http.ask("GET", "/api/v1/broker")).status == 200  # what does not wait is served
        samples = (await http.ask("GET", "/metrics")).body
        assert b"danube_http_leases 2\n" in samples
        assert b"danube_http_requests_waiting 1\n" in samples
        waiting.writer.transport.abort()

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("POST", "/receive?limit=0", None, "request_invalid"),
        ("POST", "/receive?limit=1001", None, "request_invalid"),
        ("POST", "/receive?wait=21", None, "request_invalid"),
        ("POST", "/receive?lease_seconds=0", None, "request_invalid"),
        ("POST", f"/receive?consumer={'c' * 300}", None, "request_invalid"),
        ("GET", "/receive", None, "method_not_allowed"),
        ("POST", "/ack", None, "request_invalid"),
        ("POST", "/ack", {"leases": []}, "request_invalid"),
        ("POST", "/ack", {"leases": [1]}, "request_invalid"),
        ("POST", "/ack", {"leases": ["1.1..0.0.1"] * 1001}, "request_invalid"),
        ("POST", "/ack", {"leases": ["x" * 10_000]}, "request_invalid"),
        ("POST", "/ack?lease=1.1..0.-1.1", None, "request_invalid"),
        ("POST", "/ack?lease=1.1.7.0.0.1", None, "partition_missing"),
        ("POST", "/ack?lease=1.1..0.0.1", {"leases": ["1.1..0.0.1"]}, "request_invalid"),
        ("POST", "/ack?lease=99.99..0.0.1", None, "lease_ended"),
        ("POST", "/nack?lease=1.1..0.0.1", None, "lease_ended"),
        ("POST", "/extend?lease=1.1..0.0.1", None, "request_invalid"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, method: str, path: str, body: Any, code: str) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        assert (await http.ask(method, SUB + path, body)).json["code"] == code

    with_http(tmp_path, story)


def test_an_ack_beyond_the_end_is_refused(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=1)
        [found] = await receive(http)
        mark, offset = found["lease"].split(".")[:2], 1
        forged = f"{'.'.join(mark)}..0.{offset}.1"
        assert (await http.ask("POST", f"{SUB}/ack?lease={forged}")).json["code"] == "offset_not_confirmed"

    with_http(tmp_path, story)


def test_nothing_is_received_without_a_subscription_or_from_a_topic_that_keeps_nothing(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS, {"reliable": False})
        assert (await http.ask("POST", f"{SUB}/receive")).json["code"] == "not_reliable"
        other = "/api/v1/topics/default/other/subscriptions/s/receive"
        assert (await http.ask("POST", other)).json["code"] == "topic_not_found"
        await http.ask("PUT", "/api/v1/topics/default/other")
        assert (await http.ask("POST", other)).json["code"] == "subscription_not_found"
        assert server._http.waiting == 0

    with_http(tmp_path, story)


def test_a_topic_that_is_deleted_ends_those_who_wait(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http, messages=1)
        await receive(http)
        waiting = await Http.connect(server)
        waiting.send("POST", f"{SUB}/receive?wait=20")
        while not server._http.waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await http.ask("DELETE", ORDERS)
        assert (await waiting.reply()).json["code"] == "topic_not_found"
        assert len(server._broker.door.leasing) == 0
        await waiting.close()

    with_http(tmp_path, story)


@asynccontextmanager
async def crowd(server: Server, count: int) -> AsyncIterator[list[Http]]:
    clients = [await Http.connect(server) for _ in range(count)]
    try:
        yield clients
    finally:
        for each in clients:
            await each.close()


def test_many_who_wait_share_what_comes_and_nobody_gets_anything_twice(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await make(http)
        async with crowd(server, 20) as clients:
            for each in clients:
                each.send("POST", f"{SUB}/receive?wait=20&limit=2")
            while server._http.waiting < 20:  # noqa: ASYNC110
                await asyncio.sleep(0)
            await publish(http, *(f"m{each}" for each in range(40)))
            found = [message for each in clients for message in (await each.reply()).json["messages"]]
        left = 40 - len(found)
        found += await receive(http, f"?limit={left}") if left else []
        assert sorted(each["offset"] for each in found) == list(range(40))
        assert {each["attempt"] for each in found} == {0}

    with_http(tmp_path, story)
