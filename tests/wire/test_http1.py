"""HTTP/1.1 requests: what is accepted, what is refused and how, and that limits apply before anything is kept."""

from __future__ import annotations

import re
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import DanubeError, error_table
from pydanube.base.limits import (
    HTTP_BODY_BYTES_MAX,
    HTTP_CHUNK_LINE_BYTES_MAX,
    HTTP_HEAD_BYTES_MAX,
    HTTP_HEADERS_MAX,
    HTTP_LINE_BYTES_MAX,
)
from pydanube.wire.http1 import HttpRequest, RequestReader, response

FAULTS = {
    "http_request_invalid",
    "http_target_too_long",
    "http_head_too_large",
    "http_body_too_large",
    "http_unsupported",
}


def read(*pieces: bytes) -> list[HttpRequest]:
    reader = RequestReader()
    found: list[HttpRequest] = []
    for piece in pieces:
        reader.feed(piece)
        while (request := reader.next()) is not None:
            found.append(request)
    return found


def fault(*pieces: bytes) -> str:
    with pytest.raises(DanubeError) as refused:
        read(*pieces)
    return refused.value.code


def get(*headers: str, line: str = "GET / HTTP/1.1", host: str = "Host: a") -> bytes:
    return "\r\n".join([line, *([host] if host else []), *headers, "", ""]).encode("latin-1")


# -- conversations -----------------------------------------------------------------------------------------------------


def test_a_request_is_its_method_target_headers_and_body() -> None:
    [request] = read(get("X-One:  two words\t", "Content-Length: 4", line="PUT /a?b=c HTTP/1.1") + b"body")
    assert request == HttpRequest(
        "PUT", "/a?b=c", {"host": "a", "x-one": "two words", "content-length": "4"}, b"body", keep_alive=True
    )


CONVERSATION = (
    get("Content-Length: 3", line="POST /one HTTP/1.1")
    + b"abc"
    + get("Transfer-Encoding: chunked", line="PUT /two HTTP/1.1")
    + b"3\r\nabc\r\n0A;name=value\r\n0123456789\r\n0\r\nTrailer: x\r\n\r\n"
    + b"\r\n"  # which some clients send after a body
    + get("Connection: close", line="GET /three HTTP/1.1")
    + get(line="GET /four HTTP/1.0", host="")
)
REQUESTS = [
    ("POST", "/one", b"abc", True),
    ("PUT", "/two", b"abc0123456789", True),
    ("GET", "/three", b"", False),
    ("GET", "/four", b"", False),
]


@given(st.lists(st.integers(0, len(CONVERSATION)), max_size=20).map(lambda cuts: sorted({0, *cuts, len(CONVERSATION)})))
def test_requests_are_the_same_however_the_bytes_are_cut(cuts: list[int]) -> None:
    found = read(*(CONVERSATION[first:last] for first, last in pairwise(cuts)))
    assert [(each.method, each.target, each.body, each.keep_alive) for each in found] == REQUESTS


def test_byte_by_byte_too() -> None:
    found = read(*(bytes([byte]) for byte in CONVERSATION))
    assert [(each.method, each.target, each.body, each.keep_alive) for each in found] == REQUESTS


def test_repeated_headers_are_joined() -> None:
    [request] = read(get("Accept: a", "accept: b"))
    assert request.headers["accept"] == "a, b"


def test_a_client_that_expects_100_continue_gets_it_once() -> None:
    reader = RequestReader()
    reader.feed(get("Expect: 100-continue", "Content-Length: 2", line="PUT / HTTP/1.1"))
    assert reader.next() is None
    assert reader.in_body
    assert [reader.wants_continue(), reader.wants_continue()] == [True, False]
    reader.feed(b"ok")
    request = reader.next()
    assert request is not None
    assert request.body == b"ok"
    assert not reader.started


def test_a_client_that_did_not_wait_gets_no_100_continue() -> None:
    reader = RequestReader()
    reader.feed(get("Expect: 100-continue", "Content-Length: 2", line="PUT / HTTP/1.1") + b"o")
    assert reader.next() is None
    assert not reader.wants_continue()


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        get("Content-Length: 3", "Transfer-Encoding: chunked")
        + b"0\r\n\r\n",  # a proxy and the server may read it differently
        get("Transfer-Encoding: chunked", "Content-Length: 3") + b"0\r\n\r\n",
        get("Content-Length: 3", "Content-Length: 4") + b"abcd",
        get("Content-Length: 3", "content-length: 3") + b"abc",
        get("Content-Length: 3, 3") + b"abc",
        get("Content-Length: +3") + b"abc",
        get("Content-Length: -3") + b"abc",
        get("Content-Length: 0x3") + b"abc",
        get("Content-Length: \xb2") + b"ab",
        get("Content-Length: ") + b"ab",
        get("Content-Length: 1" + "0" * 30),
        get("Content-Length : 3") + b"abc",
        get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        get("Transfer-Encoding: chunked", line="GET / HTTP/1.0") + b"0\r\n\r\n",
        get("X: a\r\n folded"),
        get("X: a\r\n\tfolded"),
        get("X: a\nY: b"),
        get("X: a\rY: b"),
        get("X: a\x00b"),
        get("X y: b"),
        get(": b"),
        get("no colon"),
        get("Host: b"),
        get(host=""),
        get(line="GET /"),
        get(line="GET  / HTTP/1.1"),
        get(line="GET / HTTP/1.1 "),
        get(line=" GET / HTTP/1.1"),
        get(line="GET /a b HTTP/1.1"),
        get(line="GET /\xe4 HTTP/1.1"),
        get(line="GET /\x7f HTTP/1.1"),
        get(line="GET / HTTP/2.0"),
        get(line="GET / http/1.1"),
        get(line="G\xcbT / HTTP/1.1"),
        b"GET / HTTP/1.1\nHost: a\n\n",
        b"GET / HTTP/1.1\r\nHost: a\n",
    ],
    ids=lambda data: repr(data[:60]),
)
def test_ambiguous_requests_are_refused(data: bytes) -> None:
    assert fault(data) == "http_request_invalid"


@pytest.mark.parametrize(
    "chunks",
    [
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n0\r\n\r\n",
        b"3 \r\nabc\r\n0\r\n\r\n",
        b"0x3\r\nabc\r\n0\r\n\r\n",
        b"+3\r\nabc\r\n0\r\n\r\n",
        b"-1\r\nabc\r\n0\r\n\r\n",
        b"\r\nabc\r\n0\r\n\r\n",
        b"3;a=\x00\r\nabc\r\n0\r\n\r\n",
        b"100000000\r\n",
        b"0\r\nbad trailer\r\n\r\n",
        b"3;" + b"a" * HTTP_CHUNK_LINE_BYTES_MAX,
    ],
)
def test_chunks_have_exactly_the_announced_size(chunks: bytes) -> None:
    assert fault(get("Transfer-Encoding: chunked"), chunks) == "http_request_invalid"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (get(line="BREW / HTTP/1.1"), "http_unsupported"),
        (get("Transfer-Encoding: gzip, chunked"), "http_unsupported"),
        (get("Transfer-Encoding: xchunked"), "http_unsupported"),
        (get("Expect: miracles"), "http_unsupported"),
        (get(f"Content-Length: {HTTP_BODY_BYTES_MAX + 1}"), "http_body_too_large"),
        (get("Transfer-Encoding: chunked") + b"%x\r\n" % (HTTP_BODY_BYTES_MAX + 1), "http_body_too_large"),
        (b"GET /" + b"a" * HTTP_LINE_BYTES_MAX, "http_target_too_long"),
        (get(line=f"GET /{'a' * HTTP_LINE_BYTES_MAX} HTTP/1.1"), "http_target_too_long"),
        (get(*[f"X-{number}: 1" for number in range(HTTP_HEADERS_MAX)]), "http_head_too_large"),
        (get("X: " + "a" * HTTP_HEAD_BYTES_MAX), "http_head_too_large"),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * HTTP_HEAD_BYTES_MAX, "http_head_too_large"),
        (get("Transfer-Encoding: chunked") + b"0\r\nX: " + b"a" * HTTP_HEAD_BYTES_MAX, "http_head_too_large"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:40]),
)
def test_requests_beyond_a_limit_or_unsupported_get_their_own_error(data: bytes, code: str) -> None:
    assert fault(data) == code


def test_many_small_chunks_do_not_evade_the_limit() -> None:
    reader = RequestReader()
    reader.feed(get("Transfer-Encoding: chunked"))
    chunk = b"10000\r\n" + bytes(1 << 16) + b"\r\n"
    for _ in range(HTTP_BODY_BYTES_MAX >> 16):
        reader.feed(chunk)
        assert reader.next() is None
    reader.feed(chunk)
    with pytest.raises(error_table()["http_body_too_large"]):
        reader.next()
    assert reader.held <= HTTP_BODY_BYTES_MAX + len(chunk)


def test_the_largest_request_is_accepted() -> None:
    line = f"GET /{'a' * (HTTP_LINE_BYTES_MAX - 14)} HTTP/1.1"
    assert len(line) == HTTP_LINE_BYTES_MAX
    headers = [f"X-{number}: 1" for number in range(HTTP_HEADERS_MAX - 2)]
    [request] = read(get(*headers, f"Content-Length: {HTTP_BODY_BYTES_MAX}", line=line) + bytes(HTTP_BODY_BYTES_MAX))
    assert len(request.body) == HTTP_BODY_BYTES_MAX


@pytest.mark.parametrize("end", ["", "y", "\x01"])
@pytest.mark.parametrize("begin", ["a:", "a: x", "a", ""])
@pytest.mark.parametrize("run", [" ", "\t", " \t", "x ", "a", ":"])
def test_a_header_is_read_in_linear_time(begin: str, run: str, end: str) -> None:
    """However many blanks are in it, whether or not it is valid, and also in trailers."""
    line = begin + run * ((HTTP_HEAD_BYTES_MAX - 100) // len(run)) + end
    since = process_time()
    for pieces in ([get(line)], [get("Transfer-Encoding: chunked"), f"0\r\n{line}\r\n\r\n".encode("latin-1")]):
        try:
            assert len(read(*pieces)) == 1
        except error_table()["http_request_invalid"]:
            pass
    assert process_time() - since < 0.1


def test_blanks_within_a_header_are_kept_and_those_around_it_are_not() -> None:
    [request] = read(get("X: \t a \t b \t ", "Y: \t "))
    assert (request.headers["x"], request.headers["y"]) == ("a \t b", "")


# -- noise -------------------------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\n",
        b"POST /x HTTP/1.0\r\n",
        b"Host: a\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 0\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"\n",
        b"\r",
        b" ",
        b"5\r\n",
        b"0\r\n\r\n",
        b"hello",
        b"a" * 9000,
    ]
)


@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=30))
def test_any_bytes_give_requests_or_a_known_error(pieces: list[bytes]) -> None:
    reader = RequestReader()
    try:
        for piece in pieces:
            reader.feed(piece)
            while (request := reader.next()) is not None:
                assert re.fullmatch(r"[\x21-\x7e]+", request.target)
            reader.wants_continue()
            assert reader.held <= HTTP_HEAD_BYTES_MAX + HTTP_BODY_BYTES_MAX
    except tuple(error_table()[code] for code in FAULTS):
        pass


# -- answers -----------------------------------------------------------------------------------------------------------


def test_a_response_has_its_length_and_says_whether_the_connection_stays_open() -> None:
    assert response(404, b"no", "text/plain", {"Allow": "GET"}, keep_alive=False) == (
        b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 2\r\nAllow: GET\r\n"
        b"Connection: close\r\n\r\nno"
    )
    head = response(200, b"ok", "text/plain", keep_alive=True, body=False)
    assert head.endswith(b"Content-Length: 2\r\nConnection: keep-alive\r\n\r\n")
    assert b"Content-Length" not in response(204, b"", "text/plain", keep_alive=True)
