"""RFC 9113, sections 3 to 6 without streams and flow control: the preface, the shape of frames, the rules of each."""

from __future__ import annotations

import pytest

from pydanube.base.limits import HTTP2_CONNECTION_WINDOW_BYTES, HTTP2_STREAMS_MAX
from pydanube.wire.http2.events import DataReceived, RequestReceived
from pydanube.wire.http2.fields import block_of
from pydanube.wire.http2.frames import PREFACE, ErrorCode, FrameType, Setting, settings_of
from wire.http2.peer import (
    ACK,
    EMPTY_SETTINGS,
    END_HEADERS,
    END_STREAM,
    GET,
    OK_BLOCK,
    PADDED,
    POST,
    PRIORITISED,
    Peer,
    Sent,
    data,
    headers,
    number,
    raw,
    rst_stream,
    settings,
    window_update,
)

PING = raw(FrameType.PING, 0, 0, b"12345678")


# -- 3 and 4: starting, and frames -----------------------------------------------------------------------------------


def test_rfc9113_3_4_the_server_speaks_first_with_settings() -> None:
    peer = Peer(greeted=False)
    first, second = peer.heard()
    assert (first.kind, first.flags, first.stream) == (FrameType.SETTINGS, 0, 0)
    assert settings_of(first.payload)[Setting.MAX_CONCURRENT_STREAMS] == HTTP2_STREAMS_MAX
    assert second == Sent(FrameType.WINDOW_UPDATE, 0, 0, number(HTTP2_CONNECTION_WINDOW_BYTES - 65_535))


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n\r\nXX", b"DANUBE1\n", b"\x16\x03\x01"])
def test_rfc9113_3_4_another_preface_ends_the_connection(start: bytes) -> None:
    assert Peer(greeted=False).fails(start) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_3_4_the_preface_may_come_byte_by_byte() -> None:
    peer = Peer(greeted=False)
    for at in range(len(PREFACE)):
        assert peer.say(PREFACE[at : at + 1]) == []
    peer.say(EMPTY_SETTINGS)
    peer.is_alive()


@pytest.mark.parametrize("first", [PING, headers(1), raw(FrameType.SETTINGS, ACK, 0), raw(0xFA, 0, 0)])
def test_rfc9113_3_4_the_first_frame_is_settings(first: bytes) -> None:
    assert Peer(greeted=False).fails(PREFACE, first) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_4_1_the_reserved_bit_of_a_stream_is_ignored() -> None:
    peer = Peer()
    (event,) = peer.say(headers(1 | 1 << 31))
    assert event.stream == 1


def test_rfc9113_4_1_flags_without_a_meaning_are_ignored() -> None:
    peer = Peer()
    peer.say(
        raw(FrameType.PING, 0xFE, 0, b"12345678"),
        raw(FrameType.SETTINGS, 0xFE, 0),
        headers(1, end=False, flags=0xD2 | END_HEADERS),
    )
    assert [sent.kind for sent in peer.heard()] == [FrameType.PING, FrameType.SETTINGS]
    assert peer.say(data(1, b"x", flags=0xF6)) == [DataReceived(1, b"x", False)]


def test_rfc9113_4_1_unknown_types_are_ignored() -> None:
    peer = Peer()
    assert peer.say(raw(0x0A, 0xFF, 0, b"x"), raw(0xFA, 0xFF, 5, b"x" * 100)) == []
    peer.is_alive()


def test_rfc9113_4_2_frames_of_16384_bytes_are_accepted() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    assert peer.say(data(1, b"x" * 16_384)) == [DataReceived(1, b"x" * 16_384, False)]


@pytest.mark.parametrize("kind", [FrameType.DATA, FrameType.HEADERS, FrameType.SETTINGS, FrameType.PING, 0xFA])
def test_rfc9113_4_2_larger_frames_end_the_connection_before_they_are_received(kind: int) -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    header = (16_385).to_bytes(3, "big") + bytes([kind, 0]) + number(1)
    assert peer.fails(header) == ErrorCode.FRAME_SIZE_ERROR


@pytest.mark.parametrize(
    "between",
    [PING, data(1, b"x"), headers(3), raw(FrameType.CONTINUATION, 4, 3), raw(0xFA, 0, 0), window_update(0, 1)],
)
def test_rfc9113_4_3_a_header_block_is_not_interrupted(between: bytes) -> None:
    block = block_of(GET)
    peer = Peer()
    assert peer.fails(headers(1, block[:3], flags=0), between) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_4_3_1_a_smaller_header_table_is_acknowledged_in_the_next_header_block() -> None:
    peer = Peer()
    peer.say(headers(1), headers(3), settings((Setting.HEADER_TABLE_SIZE, 0)))
    peer.heard()
    peer.server.respond(1, OK_BLOCK, end=True)
    peer.server.answer(3, OK_BLOCK, b"x", OK_BLOCK)
    sent = [frame.payload for frame in peer.heard()]
    assert sent == [b"\x20" + OK_BLOCK, OK_BLOCK, b"x", OK_BLOCK]


def test_rfc9113_4_3_1_a_whole_answer_acknowledges_it_too() -> None:
    peer = Peer()
    peer.say(headers(1), settings((Setting.HEADER_TABLE_SIZE, 100)))
    peer.heard()
    peer.server.answer(1, OK_BLOCK, b"x", OK_BLOCK)
    assert [frame.payload for frame in peer.heard()] == [b"\x20" + OK_BLOCK, b"x", OK_BLOCK]


# -- 6.1 to 6.3: DATA, HEADERS, PRIORITY -----------------------------------------------------------------------------


def test_rfc9113_6_1_data_belongs_to_a_stream() -> None:
    assert Peer().fails(data(0, b"x")) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_6_1_padding_is_removed() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    assert peer.say(data(1, b"\x03abc\0\0\0", flags=PADDED)) == [DataReceived(1, b"abc", False)]
    assert peer.say(data(1, b"\x03\0\0\0", flags=PADDED, end=True)) == [DataReceived(1, b"", True)]


@pytest.mark.parametrize("payload", [b"\x01", b"\x04abc", b"\xff" + b"x" * 254])
def test_rfc9113_6_1_padding_as_long_as_the_frame_ends_the_connection(payload: bytes) -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    assert peer.fails(data(1, payload, flags=PADDED)) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_6_2_headers_belong_to_a_stream() -> None:
    assert Peer().fails(headers(0)) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(headers(0, flags=0)) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_6_2_padding_and_priority_are_removed() -> None:
    block = block_of(GET)
    peer = Peer()
    (event,) = peer.say(
        headers(1, b"\x02" + b"\x80\0\0\x03\x10" + block + b"\0\0", flags=END_HEADERS | PADDED | PRIORITISED)
    )
    assert isinstance(event, RequestReceived)
    assert event.head.path == b"/"


@pytest.mark.parametrize(
    ("flags", "payload", "code"),
    [
        (PADDED, b"\x05abcd", ErrorCode.PROTOCOL_ERROR),
        (PADDED, b"", ErrorCode.FRAME_SIZE_ERROR),
        (PRIORITISED, b"\0\0\0\0", ErrorCode.FRAME_SIZE_ERROR),
        (PADDED | PRIORITISED, b"\x01\0\0\0\0\0", ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_rfc9113_6_2_too_much_padding_ends_the_connection(flags: int, payload: bytes, code: ErrorCode) -> None:
    assert Peer().fails(headers(1, payload, flags=END_HEADERS | flags)) == code


def test_rfc9113_6_3_priority_is_read_and_ignored_in_any_state() -> None:
    peer = Peer()
    peer.say(headers(1))
    peer.server.respond(1, OK_BLOCK, end=True)
    peer.heard()
    for stream in (1, 3, 2, 101):
        assert peer.say(raw(FrameType.PRIORITY, 0, stream, b"\0\0\0\x01\x10")) == []
    peer.is_alive()


def test_rfc9113_6_3_priority_of_no_stream_or_of_another_size_ends_the_connection() -> None:
    assert Peer().fails(raw(FrameType.PRIORITY, 0, 0, b"\0\0\0\x01\x10")) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(raw(FrameType.PRIORITY, 0, 1, b"\0\0\0\x01")) == ErrorCode.FRAME_SIZE_ERROR


# -- 6.4 to 6.8 and 6.10 ---------------------------------------------------------------------------------------------


def test_rfc9113_6_4_rst_stream_of_no_stream_idle_stream_or_wrong_size_ends_the_connection() -> None:
    assert Peer().fails(rst_stream(0)) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(rst_stream(1)) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(headers(1), raw(FrameType.RST_STREAM, 0, 1, b"\0\0\0")) == ErrorCode.FRAME_SIZE_ERROR


def test_rfc9113_6_5_settings_are_acknowledged_in_order() -> None:
    peer = Peer()
    peer.say(settings((Setting.MAX_CONCURRENT_STREAMS, 5)), PING, settings())
    assert [(sent.kind, sent.flags) for sent in peer.heard()] == [(4, ACK), (6, ACK), (4, ACK)]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (raw(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (raw(FrameType.SETTINGS, 0, 0, b"\0\x01\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (raw(FrameType.SETTINGS, ACK, 0, b"\0\x01\0\0\0\0"), ErrorCode.FRAME_SIZE_ERROR),
        (settings((Setting.ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (settings((Setting.INITIAL_WINDOW_SIZE, 1 << 31)), ErrorCode.FLOW_CONTROL_ERROR),
        (settings((Setting.MAX_FRAME_SIZE, 16_383)), ErrorCode.PROTOCOL_ERROR),
        (settings((Setting.MAX_FRAME_SIZE, 1 << 24)), ErrorCode.PROTOCOL_ERROR),
    ],
)
def test_rfc9113_6_5_2_bad_settings_end_the_connection(bad: bytes, code: ErrorCode) -> None:
    assert Peer().fails(bad) == code


def test_rfc9113_6_5_2_unknown_settings_are_ignored_and_the_last_of_two_counts() -> None:
    peer = Peer()
    peer.say(settings((0xABCD, 7), (Setting.INITIAL_WINDOW_SIZE, 1), (Setting.INITIAL_WINDOW_SIZE, 3)), headers(1))
    peer.heard()
    peer.server.send_data(1, b"abcdef")
    assert [sent.payload for sent in peer.heard()] == [b"abc"]


def test_rfc9113_6_6_a_client_cannot_push() -> None:
    assert Peer().fails(headers(1), raw(FrameType.PUSH_PROMISE, END_HEADERS, 1, number(2))) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_6_7_ping_comes_back_and_its_echo_does_not() -> None:
    peer = Peer()
    peer.say(PING, raw(FrameType.PING, ACK, 0, b"87654321"))
    assert peer.heard() == [Sent(FrameType.PING, ACK, 0, b"12345678")]
    peer.server.ping()
    assert [sent.kind for sent in peer.heard()] == [FrameType.PING]


def test_rfc9113_6_7_ping_of_a_stream_or_of_another_size_ends_the_connection() -> None:
    assert Peer().fails(raw(FrameType.PING, 0, 1, b"12345678")) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(raw(FrameType.PING, 0, 0, b"1234567")) == ErrorCode.FRAME_SIZE_ERROR


def test_rfc9113_6_8_a_clients_goaway_lets_its_streams_end() -> None:
    peer = Peer()
    peer.say(headers(1), raw(FrameType.GOAWAY, 0, 0, number(0) + number(0) + b"bye"))
    peer.server.respond(1, OK_BLOCK, end=True)
    assert peer.heard() == [Sent(FrameType.HEADERS, END_HEADERS | END_STREAM, 1, OK_BLOCK)]


def test_rfc9113_6_8_goaway_of_a_stream_or_too_short_ends_the_connection() -> None:
    assert Peer().fails(raw(FrameType.GOAWAY, 0, 1, bytes(8))) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(raw(FrameType.GOAWAY, 0, 0, bytes(7))) == ErrorCode.FRAME_SIZE_ERROR


def test_rfc9113_6_10_a_block_may_come_in_pieces_and_keeps_the_flags_of_its_headers() -> None:
    block = block_of(GET)
    pieces = [raw(FrameType.CONTINUATION, 0, 1, block[at : at + 3]) for at in range(3, len(block), 3)]
    peer = Peer()
    assert peer.say(headers(1, block[:3], flags=0), *pieces) == []
    (event,) = peer.say(raw(FrameType.CONTINUATION, END_HEADERS, 1))
    assert isinstance(event, RequestReceived)
    assert (event.stream, event.ended, event.head.path) == (1, True, b"/")


def test_rfc9113_6_10_continuation_of_nothing_ends_the_connection() -> None:
    block = raw(FrameType.CONTINUATION, END_HEADERS, 1, block_of(GET))
    assert Peer().fails(block) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(headers(1, end=False), block) == ErrorCode.PROTOCOL_ERROR
    assert Peer().fails(headers(1, end=False), data(1, b"x"), block) == ErrorCode.PROTOCOL_ERROR
