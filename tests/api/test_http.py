"""HTTP/1.1 against a broker: keep-alive, pipelining, and peers that are slow, greedy or wrong."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import re
import socket
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pydanube
from api.http_client import Http, Reply, with_http
from pydanube.api.http import connection as connection_module
from pydanube.api.http.answer import Answer
from pydanube.api.http.errors import problem
from pydanube.api.http.face import HttpFace
from pydanube.api.http.operations import make_router
from pydanube.api.server import Server
from pydanube.base.addresses import HostPort
from pydanube.base.errors import DiskFailed, error_table
from pydanube.base.limits import HTTP_PIPELINED_BYTES_MAX, KIB, MIB
from pydanube.broker.door.session import Session
from pydanube.wire.http1 import HttpRequest

ORDERS = "/api/v1/topics/default/orders"


def the_http(server: Server) -> connection_module.HttpConnection:
    [doorway] = server._listener.connections
    assert isinstance(doorway._connection, connection_module.HttpConnection)
    return doorway._connection


async def until_reached(server: Server) -> None:
    """The first bytes are there."""
    while not any(each._connection is not None for each in server._listener.connections):  # noqa: ASYNC110
        await asyncio.sleep(0)


def test_requests_in_one_write_are_answered_in_their_order(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        http.send("PUT", ORDERS)
        for each in range(50):
            http.send("POST", f"{ORDERS}/messages", {"messages": [{"value": str(each)}]})
        http.send("GET", f"{ORDERS}/messages?limit=50", None, connection="close")
        http.send("GET", "/healthz")  # behind the end
        assert (await http.reply()).status == 201
        for each in range(50):
            assert (await http.reply()).json["messages"][0]["offset"] == each
        seen = (await http.reply()).json["messages"]
        assert [message["value"] for message in seen] == [str(each) for each in range(50)]
        assert await http.ended()

    with_http(tmp_path, story)


def test_a_body_that_waits_to_be_welcome_is_asked_for(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(
            f"POST {ORDERS}/messages HTTP/1.1\r\nHost: d\r\nExpect: 100-continue\r\n"
            "Content-Type: application/octet-stream\r\nContent-Length: 2\r\n\r\n".encode()
        )
        assert await http.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        http.writer.write(b"hi")
        assert (await http.reply()).status == 200

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (
            b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "http_request_invalid",
        ),
        (b"GET /" + b"a" * 10_000, "http_target_too_long"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 20_000, "http_head_too_large"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999\r\n\r\n", "http_body_too_large"),
        (b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", "http_unsupported"),
    ],
)
def test_a_broken_request_is_answered_and_the_connection_ends(tmp_path: Path, sent: bytes, code: str) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(sent)
        reply = await http.reply()
        assert (reply.json["code"], reply.status) == (code, error_table()[code].http_status)
        assert reply.headers["connection"] == "close"
        http.writer.write(b"x" * 1000)  # a client that does not listen gets its answer all the same
        assert await http.ended()
        assert server._http.held == 0

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    "sent", [b"GET / HT", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nslow", b"PUT / HTTP/1.1\r\n"]
)
def test_a_request_that_does_not_come_in_time_is_given_up(tmp_path: Path, sent: bytes) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(sent)
        await until_reached(server)
        the_http(server).too_slow()  # as its timer does
        reply = await http.reply()
        assert (reply.status, reply.json["code"]) == (408, "http_too_slow")
        assert await http.ended()

    with_http(tmp_path, story)


def test_the_time_of_a_request_begins_with_its_first_byte_and_ends_with_its_last(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("GET", "/healthz")
        connection = the_http(server)
        assert connection._timer is None
        http.writer.write(b"G")
        while connection._timer is None:  # noqa: ASYNC110 - a byte on its way through this loop
            await asyncio.sleep(0)
        timer = connection._timer
        http.writer.write(b"ET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await http.reply()).status == 200
        assert timer._work is None, "cancelled"
        assert connection._timer is None

    with_http(tmp_path, story)


def test_a_slow_first_body_is_no_slow_hello(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n")
        await until_reached(server)
        assert not server._listener.greeting

    with_http(tmp_path, story)


def test_whoever_does_not_read_its_answers_gets_no_more(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("POST", f"{ORDERS}/messages", b"x" * MIB)
        http.writer.transport.pause_reading()  # type: ignore[attr-defined]
        [doorway] = server._listener.connections
        request = f"GET {ORDERS}/messages HTTP/1.1\r\nHost: a\r\n\r\n".encode()
        largest = 0
        for _ in range(2000):
            http.writer.write(request * 10)
            await asyncio.sleep(0)
            largest = max(largest, doorway._transport.get_write_buffer_size())
        assert not the_http(server)._writable
        assert largest < 9 * MIB
        assert the_http(server)._reader.held < HTTP_PIPELINED_BYTES_MAX + 512 * KIB
        http.writer.transport.abort()

    with_http(tmp_path, story)


def test_bodies_of_all_connections_share_one_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "HTTP_BODIES_BYTES_MAX", MIB)

    async def story(server: Server, http: Http) -> None:
        others = [await Http.connect(server) for _ in range(3)]
        for each in others:
            each.writer.write(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 900000\r\n\r\n" + bytes(800_000))
        first = await asyncio.wait(
            {asyncio.ensure_future(each.reply()) for each in others}, return_when="FIRST_COMPLETED"
        )
        [done, *_] = first[0]
        assert (done.result().status, done.result().json["code"]) == (503, "http_busy")
        for each in first[1]:
            each.cancel()
        await asyncio.gather(*first[1], return_exceptions=True)
        assert (await http.ask("GET", "/healthz")).status == 200
        for each in others:
            each.writer.transport.abort()
        while len(server._listener.connections) > 1:  # noqa: ASYNC110 - sockets of this loop
            await asyncio.sleep(0)
        assert server._http.held == 0

    with_http(tmp_path, story)


def test_whoever_is_refused_and_gone_leaves_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It reset the connection, and the loop has not noticed yet."""

    def gone(transport: object) -> None:
        raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")

    async def story(server: Server, http: Http) -> None:
        http.writer.write(b"GET /")
        await until_reached(server)
        monkeypatch.setattr(type(the_http(server)._transport), "write_eof", gone)
        the_http(server).turns.left = 0.0  # others had it all: this one waits for its turn
        http.writer.write(b"a" * 10_000)
        assert (await http.reply()).json["code"] == "http_target_too_long"
        assert await http.ended()

    with_http(tmp_path, story)
    assert not caplog.records


def test_too_many_requests_at_a_time_are_refused_but_probes_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "HTTP_REQUESTS_MAX", 1)

    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        http.send("GET", f"{ORDERS}/messages?wait=20&offset=latest")
        while not server._http.serving:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other = await Http.connect(server)
        for probe in ("/healthz", "/readyz", "/metrics"):
            assert (await other.ask("GET", probe)).status == 200
        busy = await other.ask("GET", "/api/v1/broker")
        assert (busy.status, busy.json["code"], busy.headers["retry-after"]) == (503, "http_busy", "1")
        await other.close()

    with_http(tmp_path, story)


def test_a_broker_that_stops_does_not_wait_for_those_who_wait(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        http.send("GET", f"{ORDERS}/messages?wait=20&offset=latest")
        while not server._http.serving:  # noqa: ASYNC110
            await asyncio.sleep(0)
        async with asyncio.timeout(5):
            await server._listener.stop()
        assert await http.ended()
        assert (server._http.serving, server._http.held) == (0, 0)

    with_http(tmp_path, story)


def test_a_client_that_leaves_takes_its_request_with_it(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        await http.ask("PUT", ORDERS)
        other = await Http.connect(server)
        other.send("GET", f"{ORDERS}/messages?wait=20&offset=latest")
        while not server._http.serving:  # noqa: ASYNC110
            await asyncio.sleep(0)
        other.writer.transport.abort()
        while server._http.serving:  # noqa: ASYNC110
            await asyncio.sleep(0)

    with_http(tmp_path, story)


@pytest.mark.parametrize("method", ["BREW", "TRACE", "CONNECT", "X"])
def test_a_method_that_is_not_served_is_told_so(tmp_path: Path, method: str) -> None:
    async def story(server: Server, http: Http) -> None:
        refused = await http.ask(method, "/api/v1/broker")
        assert (refused.status, refused.json["code"]) == (501, "http_unsupported")
        assert method in refused.json["detail"]
        assert await http.ended()

    with_http(tmp_path, story)


def test_a_request_that_comes_byte_by_byte_is_known_as_one(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b"PROPFIND / HTTP/1.1\r\nHost: danube\r\n\r\n":
            http.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await http.reply()).status == 501

    with_http(tmp_path, story)


# -- by which name -----------------------------------------------------------------------------------------------------

OURS = [
    "127.0.0.1",
    "127.0.0.1:6650",
    "10.1.2.3:80",
    "[::1]:6650",
    "[::1]",
    "localhost:6650",
    "LOCALHOST.",
    "danube:6650",
]
THEIRS = ["evil.com", "evil.com:6650", "evil.com.", "127.0.0.1.evil.com:6650", "localhost.evil.com", "1.2.3.4.5"]


def test_a_broker_without_tls_answers_only_to_names_that_nobody_else_can_register(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        for host in (*OURS, "Danube.Example.org:6650"):
            assert (await http.ask("GET", "/api/v1/broker", host=host)).status == 200, host
        for host in THEIRS:
            for method, path in (("PUT", "/api/v1/namespaces/x"), ("GET", "/api/v1/namespaces"), ("GET", "/metrics")):
                refused = await http.ask(method, path, host=host, origin=f"http://{host}")
                assert (refused.status, refused.json["code"]) == (421, "http_host_refused"), host
        assert "x" not in (await http.ask("GET", "/api/v1/namespaces")).json["namespaces"]

    with_http(tmp_path, story, advertise=HostPort("danube.example.org", 6650))


def test_a_head_that_does_not_come_is_told_the_time_it_had(tmp_path: Path) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(b"GET /healthz HTTP/1.1\r\n")
        await until_reached(server)
        [doorway] = server._listener.connections
        doorway._too_slow()
        told = await http.reply()
        assert (told.status, told.json["detail"]) == (408, "the request did not arrive within 5 s")

    with_http(tmp_path, story)


NAMES = st.one_of(
    st.sampled_from(["default", "orders", "..", "%2e", "", "%", "a%2Fb"]),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=5),
)
ROUTES = st.sampled_from([route.template for route in make_router().routes])
PATHS = st.builds(
    lambda template, names: re.sub(r"\{\w+\}", lambda _: names.pop(), template), ROUTES, st.lists(NAMES, min_size=3)
)
BODIES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=10)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.one_of(st.sampled_from(["messages", "policies", "to", "start", "options", "value", "key"]), st.text()),
            inner,
            max_size=3,
        ),
    ),
    max_leaves=10,
)
REQUEST = st.tuples(st.sampled_from(["GET", "PUT", "POST", "PATCH", "DELETE", "OPTIONS"]), PATHS, BODIES)


@settings(max_examples=20, deadline=None)
@given(st.lists(REQUEST, min_size=10, max_size=40))
def test_whatever_is_asked_gets_an_answer_of_the_table(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[str, str, object]]
) -> None:
    async def story(server: Server, http: Http) -> None:
        for method, path, body in requests:
            try:
                content = json.dumps(body).encode()
            except ValueError:
                continue
            reply: Reply = await http.ask(method, path, content, content_type="application/json")
            if reply.status >= 400:
                assert reply.json["status"] == reply.status
                assert reply.status < 500, reply
            if reply.headers["connection"] == "close":
                await http.close()
                http.reader, http.writer = await asyncio.open_connection(*server.address)

    with_http(tmp_path_factory.mktemp("noise"), story)


def test_requests_behind_one_another_are_served_one_in_a_turn_so_that_others_come_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, served = HttpFace.answer, []

    async def noted(face: HttpFace, request: HttpRequest, session: Session) -> Answer:
        served.append(request.target)
        return await answer(face, request, session)

    monkeypatch.setattr(HttpFace, "answer", noted)

    async def story(server: Server, http: Http) -> None:
        other = await Http.connect(server)
        for _ in range(500):
            http.send("GET", "/healthz")
        while len(served) < 10:  # noqa: ASYNC110 - sockets of this loop
            await asyncio.sleep(0)
        other.send("GET", "/metrics")
        assert (await other.reply()).status == 200
        assert served.index("/metrics") < 250
        for _ in range(500):
            assert (await http.reply()).status == 200
        await other.close()

    with_http(tmp_path, story)


@pytest.mark.parametrize(
    ("said", "answered"),
    [
        (b"hello\r\n", b"Danube speaks"),
        (b"INVALID CONNECTION PREFACE\r\n\r\n", b""),
        (b"PRI * HTTP/3.0\r\n\r\n", b""),
        (b"BREW /pot HTTP/1.1\r\nHost: danube\r\n\r\n", b"HTTP/1.1 501"),
    ],
)
def test_what_is_no_protocol_of_this_port_is_told_so_in_words_only_where_nobody_takes_them_for_frames(
    tmp_path: Path, said: bytes, answered: bytes
) -> None:
    async def story(server: Server, http: Http) -> None:
        http.writer.write(said)
        found = await asyncio.wait_for(http.reader.read(), 10)
        assert found.startswith(answered)
        assert bool(found) == bool(answered)

    with_http(tmp_path, story)


def test_a_path_whose_name_is_not_utf_8_can_be_told(tmp_path: Path) -> None:
    """In the settings, and in errors of the disk, which ended their connections without an answer."""
    directory = tmp_path / os.fsdecode(b"d\xff")

    async def story(server: Server, http: Http) -> None:
        reply = await http.ask("GET", "/api/v1/config")
        assert (reply.status, reply.json["data_dir"]) == (200, f"{tmp_path}/d?")
        async with pydanube.connect(server.url) as client:
            assert (await client.admin.settings()).data_dir == f"{tmp_path}/d?"
        answer = problem(DiskFailed(f"{directory}: input/output error"))
        assert json.loads(answer.content)["detail"] == f"{tmp_path}/d?: input/output error"

    with_http(directory, story)
