"""RFC 9113, section 8: what makes a request malformed. A malformed request is an error of its stream."""

from __future__ import annotations

import pytest

from pydanube.wire.http2.events import RequestReceived
from pydanube.wire.http2.fields import Head
from pydanube.wire.http2.frames import ErrorCode
from wire.http2.peer import GET, POST, Fields, Peer, data, headers

METHOD, SCHEME, PATH, AUTHORITY = GET


def request(fields: Fields) -> Head:
    (event,) = Peer().say(headers(1, fields))
    assert isinstance(event, RequestReceived)
    return event.head


def refused(fields: Fields) -> ErrorCode:
    return Peer().resets(1, headers(1, fields))


def test_rfc9113_8_3_1_a_request_has_its_parts() -> None:
    head = request([*POST, (b"te", b"trailers"), (b"x", b"1"), (b"x", b"2"), (b"cookie", b"a=1"), (b"cookie", b"b=2")])
    assert (head.method, head.path, head.authority) == (b"POST", b"/s/m", b"a")
    assert dict(head.fields) == {b"te": b"trailers", b"x": b"1, 2", b"cookie": b"a=1; b=2"}


@pytest.mark.parametrize(
    "field",
    [
        (b"Upper", b"x"),
        (b"", b"x"),
        (b"with space", b"x"),
        (b"nul\0", b"x"),
        (b"del\x7f", b"x"),
        (b"high\xc3", b"x"),
        (b"co:lon", b"x"),
        (b"x", b"nul\0"),
        (b"x", b"line\n"),
        (b"x", b"line\r"),
        (b"x", b" leading"),
        (b"x", b"trailing\t"),
    ],
)
def test_rfc9113_8_2_1_a_field_is_valid(field: tuple[bytes, bytes]) -> None:
    assert refused([*GET, field]) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_8_2_1_values_may_hold_other_bytes_and_inner_spaces() -> None:
    assert request([*GET, (b"x", b"a b\tc\xff"), (b"y", b"")]).fields == {b"x": b"a b\tc\xff", b"y": b""}


@pytest.mark.parametrize(
    "field",
    [
        (b"connection", b"close"),
        (b"proxy-connection", b"x"),
        (b"keep-alive", b"x"),
        (b"transfer-encoding", b"chunked"),
        (b"upgrade", b"h2c"),
        (b"te", b"gzip"),
        (b"te", b"trailers, gzip"),
    ],
)
def test_rfc9113_8_2_2_fields_of_connections_are_not_for_http2(field: tuple[bytes, bytes]) -> None:
    assert refused([*GET, field]) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [(b"x", b"y"), *GET],
        [METHOD, (b"x", b"y"), SCHEME, PATH],
        [*GET, (b":status", b"200")],
        [*GET, (b":protocol", b"websocket")],
        [*GET, (b":", b"x")],
        [*GET, METHOD],
        [*GET, PATH],
        [*GET, (b":authority", b"a")],
    ],
)
def test_rfc9113_8_3_pseudo_fields_are_known_come_once_and_first(fields: Fields) -> None:
    assert refused(fields) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [SCHEME, PATH],
        [METHOD, PATH],
        [METHOD, SCHEME],
        [METHOD, SCHEME, (b":path", b"")],
        [METHOD, SCHEME, (b":path", b"no-slash")],
        [METHOD, (b":scheme", b""), PATH],
        [(b":method", b""), SCHEME, PATH],
        [METHOD, SCHEME, PATH, (b":authority", b"me@a")],
        [METHOD, SCHEME, PATH, (b":authority", b"a\0")],
        [*GET, (b"host", b"b")],
    ],
)
def test_rfc9113_8_3_1_method_scheme_path_and_authority_are_valid(fields: Fields) -> None:
    assert refused(fields) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_8_3_1_the_host_stands_for_a_missing_authority() -> None:
    assert request([METHOD, SCHEME, PATH, (b"host", b"b")]).authority == b"b"
    assert request([*GET, (b"host", b"A")]).authority == b"a"
    assert request([(b":method", b"OPTIONS"), SCHEME, (b":path", b"*")]).path == b"*"


def test_rfc9113_8_5_connect_has_an_authority_and_nothing_else() -> None:
    assert request([(b":method", b"CONNECT"), AUTHORITY]).method == b"CONNECT"
    assert refused([(b":method", b"CONNECT")]) == ErrorCode.PROTOCOL_ERROR
    assert refused([(b":method", b"CONNECT"), AUTHORITY, PATH]) == ErrorCode.PROTOCOL_ERROR
    assert refused([(b":method", b"CONNECT"), AUTHORITY, SCHEME, PATH]) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("trailers", [[(b":path", b"/")], [(b"Upper", b"x")], [(b"connection", b"x")]])
def test_rfc9113_8_1_trailers_are_valid_fields_without_pseudo_fields(trailers: Fields) -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    assert peer.resets(1, headers(1, trailers)) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize(
    "parts",
    [
        (headers(1, [*POST, (b"content-length", b"3")]),),
        (headers(1, [*POST, (b"content-length", b"3")], end=False), data(1, b"ab", end=True)),
        (headers(1, [*POST, (b"content-length", b"3")], end=False), data(1, b"abcd")),
        (headers(1, [*POST, (b"content-length", b"3")], end=False), data(1, b"ab"), headers(1, [(b"x", b"y")])),
        (headers(1, [*POST, (b"content-length", b"x")]),),
        (headers(1, [*POST, (b"content-length", b"-1")]),),
        (headers(1, [*POST, (b"content-length", b"3"), (b"content-length", b"4")]),),
    ],
)
def test_rfc9113_8_1_1_a_body_is_as_long_as_it_was_announced(parts: tuple[bytes, ...]) -> None:
    assert Peer().resets(1, *parts) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_8_1_1_an_announced_body_may_come_in_pieces() -> None:
    peer = Peer()
    peer.say(headers(1, [*POST, (b"content-length", b"3")], end=False), data(1, b"ab"), data(1, b"c"))
    assert [event[1:] for event in peer.say(data(1, b"", end=True))] == [(b"", True)]
    assert peer.say(headers(3, [*POST, (b"content-length", b"0")]))[0].stream == 3


def test_rfc9113_8_1_1_a_malformed_request_leaves_the_header_table_in_order() -> None:
    peer = Peer()
    peer.resets(1, headers(1, b"\x82\x86\x84\x40\x01a\x01b\x40\x01X\x01y"))
    (event,) = peer.say(headers(3, b"\x82\x86\x84\xbf"))
    assert isinstance(event, RequestReceived)
    assert dict(event.head.fields) == {b"a": b"b"}
