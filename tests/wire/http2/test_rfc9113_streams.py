"""RFC 9113, sections 5.1, 5.4 and 6.8: the states of streams, errors, and how a connection is drained."""

from __future__ import annotations

import pytest

from pydanube.base.limits import HTTP2_STREAMS_FORGOTTEN_MAX, HTTP2_STREAMS_MAX
from pydanube.wire.http2.events import ConnectionEnded, DataReceived, RequestReceived, StreamReset
from pydanube.wire.http2.frames import NUMBER_MAX, ErrorCode, FrameType
from wire.http2.peer import (
    ACK,
    END_HEADERS,
    END_STREAM,
    GET,
    OK_BLOCK,
    POST,
    Peer,
    Sent,
    data,
    headers,
    number,
    raw,
    rst_stream,
    window_update,
)

TRAILERS = [(b"grpc-status", b"0")]


# -- 5.1: states -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "early", [data(1, b"x"), rst_stream(1), window_update(1, 1), data(2, b"x"), window_update(2, 1)]
)
def test_rfc9113_5_1_idle_streams_take_headers_only(early: bytes) -> None:
    assert Peer().fails(early) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("late", [data(1, b"x"), headers(1, TRAILERS), headers(1, GET)])
def test_rfc9113_5_1_half_closed_nothing_comes_after_the_end(late: bytes) -> None:
    peer = Peer()
    peer.say(headers(1))
    assert peer.resets(1, late) == ErrorCode.STREAM_CLOSED


@pytest.mark.parametrize("late", [rst_stream(1), window_update(1, 10), raw(FrameType.PRIORITY, 0, 1, bytes(5))])
def test_rfc9113_5_1_half_closed_and_closed_some_frames_still_pass(late: bytes) -> None:
    peer = Peer()
    peer.say(headers(1), headers(3))
    peer.server.respond(1, OK_BLOCK, end=True)
    peer.heard()
    assert peer.say(late) == []
    peer.is_alive()


def test_rfc9113_5_1_closed_by_both_ends_data_is_a_fault_of_its_stream() -> None:
    peer = Peer()
    peer.say(headers(1))
    peer.server.respond(1, OK_BLOCK, end=True)
    peer.heard()
    assert peer.resets(1, data(1, b"x")) == ErrorCode.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_both_ends_headers_are_a_fault_of_the_connection() -> None:
    peer = Peer()
    peer.say(headers(1))
    peer.server.respond(1, OK_BLOCK, end=True)
    assert peer.fails(headers(1)) == ErrorCode.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_the_client_it_may_not_continue() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False), rst_stream(1))
    assert peer.resets(1, data(1, b"x")) == ErrorCode.STREAM_CLOSED
    peer = Peer()
    assert peer.fails(headers(1, POST, end=False), rst_stream(1), headers(1, TRAILERS)) == ErrorCode.STREAM_CLOSED


def test_rfc9113_5_1_closed_by_us_frames_in_transit_are_ignored() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    peer.server.reset(1, ErrorCode.CANCEL)
    assert peer.heard() == [Sent(FrameType.RST_STREAM, 0, 1, number(ErrorCode.CANCEL))]
    assert peer.say(data(1, b"x" * 100), window_update(1, 5), headers(1, TRAILERS), rst_stream(1)) == []
    assert peer.heard() == []
    peer.is_alive()


def test_rfc9113_5_1_a_limited_number_of_closed_streams_is_remembered() -> None:
    peer = Peer()
    for stream in range(1, 2 * HTTP2_STREAMS_FORGOTTEN_MAX + 4, 2):
        peer.say(headers(stream, POST, end=False))
        peer.server.reset(stream, ErrorCode.CANCEL)
    peer.heard()
    assert peer.resets(1, data(1, b"x")) == ErrorCode.STREAM_CLOSED
    assert peer.say(data(5, b"x")) == []


def test_rfc9113_5_1_headers_of_a_stream_that_we_closed_still_reach_the_header_table() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    peer.server.reset(1, ErrorCode.CANCEL)
    assert peer.say(headers(1, b"\x40\x01a\x01b")) == []  # into the table, as its first entry
    (event,) = peer.say(headers(3, b"\x82\x86\x84\xbe"))
    assert isinstance(event, RequestReceived)
    assert dict(event.head.fields) == {b"a": b"b"}


def test_rfc9113_5_1_1_stream_ids_must_grow() -> None:
    peer = Peer()
    peer.say(headers(5))
    assert peer.fails(headers(3)) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_5_1_1_a_client_has_odd_stream_ids() -> None:
    assert Peer().fails(headers(2)) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_5_1_1_ids_may_be_skipped_and_are_then_closed() -> None:
    peer = Peer()
    assert [event.stream for event in peer.say(headers(1), headers(9), headers(NUMBER_MAX))] == [1, 9, NUMBER_MAX]
    assert peer.resets(5, data(5, b"x")) == ErrorCode.STREAM_CLOSED


def test_rfc9113_5_1_2_too_many_streams_are_refused_and_the_others_continue() -> None:
    peer = Peer()
    for stream in range(1, 2 * HTTP2_STREAMS_MAX, 2):
        assert len(peer.say(headers(stream))) == 1
    one_more = 2 * HTTP2_STREAMS_MAX + 1
    assert peer.resets(one_more, headers(one_more, b"\x82\x86\x84\x40\x01a\x01b")) == ErrorCode.REFUSED_STREAM
    peer.server.respond(1, OK_BLOCK, end=True)
    (event,) = peer.say(headers(one_more + 2, b"\x82\x86\x84\xbe"))
    assert isinstance(event, RequestReceived)
    assert dict(event.head.fields) == {b"a": b"b"}, "a refused block still changes the table"


# -- 5.4: errors -----------------------------------------------------------------------------------------------------


def test_rfc9113_5_4_1_a_connection_error_says_which_stream_was_the_last() -> None:
    peer = Peer()
    events = peer.say(headers(7), data(0, b"x"), headers(9))
    assert [type(event) for event in events] == [RequestReceived, ConnectionEnded]
    goaway = peer.heard()[-1]
    assert goaway.payload[:8] == number(7) + number(ErrorCode.PROTOCOL_ERROR)
    peer.server.respond(7, OK_BLOCK, end=True)
    peer.server.drain()
    assert peer.heard() == []


def test_rfc9113_5_4_2_a_stream_error_is_reported_to_the_host_and_leaves_others_alone() -> None:
    peer = Peer()
    peer.say(headers(1), headers(3))
    peer.heard()
    assert peer.say(window_update(1, 0)) == [StreamReset(1, ErrorCode.PROTOCOL_ERROR)]
    peer.server.respond(1, OK_BLOCK)
    peer.server.send_data(1, b"x")
    peer.server.send_trailers(1, OK_BLOCK)
    peer.server.answer(1, OK_BLOCK, b"x", OK_BLOCK)
    peer.server.reset(1, ErrorCode.CANCEL)
    peer.server.data_consumed(1, 5)
    peer.server.expect(1, 5)
    peer.server.answer(3, OK_BLOCK, b"x", OK_BLOCK)
    assert [(sent.kind, sent.stream) for sent in peer.heard()] == [(3, 1), (1, 3), (0, 3), (1, 3)]


def test_rfc9113_6_4_a_reset_by_the_client_ends_its_stream() -> None:
    peer = Peer()
    peer.say(headers(1))
    assert peer.say(rst_stream(1)) == [StreamReset(1, ErrorCode.CANCEL)]
    assert peer.server.streams == 0
    peer.server.respond(1, OK_BLOCK)
    assert peer.heard() == []


# -- 8.1: one request, one answer ------------------------------------------------------------------------------------


def test_rfc9113_8_1_a_whole_request_is_one_event() -> None:
    peer = Peer()
    events = peer.say(headers(1, POST, end=False), data(1, b"hello", end=True), headers(3, GET))
    assert [(type(event), event.stream) for event in events] == [(RequestReceived, 1), (RequestReceived, 3)]
    first = events[0]
    assert isinstance(first, RequestReceived)
    assert (first.head.method, first.head.path, first.data, first.ended) == (b"POST", b"/s/m", b"hello", True)


def test_rfc9113_8_1_requests_may_be_interleaved() -> None:
    peer = Peer()
    events = peer.say(headers(1, POST, end=False), headers(3, POST, end=False), data(1, b"a"), data(3, b"b", end=True))
    assert events[2:] == [DataReceived(1, b"a", False), DataReceived(3, b"b", True)]
    assert peer.say(data(1, b"c", end=True)) == [DataReceived(1, b"c", True)]


def test_rfc9113_8_1_trailers_end_a_request() -> None:
    peer = Peer()
    (event,) = peer.say(headers(1, POST, end=False), headers(1, TRAILERS))
    assert isinstance(event, RequestReceived)
    assert (event.data, event.ended) == (b"", True)
    peer.say(headers(3, POST, end=False), data(3, b"x"))
    assert peer.say(headers(3, TRAILERS)) == [DataReceived(3, b"", True)]


def test_rfc9113_8_1_trailers_without_an_end_are_malformed() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    assert peer.resets(1, headers(1, TRAILERS, end=False)) == ErrorCode.PROTOCOL_ERROR


def test_rfc9113_8_1_an_answer_is_headers_data_and_trailers() -> None:
    peer = Peer()
    peer.say(headers(1), headers(3))
    peer.server.respond(1, OK_BLOCK)
    peer.server.send_data(1, b"abc")
    peer.server.send_trailers(1, b"\x00\x01a\x01b")
    peer.server.answer(3, OK_BLOCK, b"abc", b"\x00\x01a\x01b")
    sent = peer.heard()
    expected = [(1, END_HEADERS, OK_BLOCK), (0, 0, b"abc"), (1, END_HEADERS | END_STREAM, b"\x00\x01a\x01b")]
    assert [(frame.kind, frame.flags, frame.payload) for frame in sent] == expected * 2
    assert [frame.stream for frame in sent] == [1, 1, 1, 3, 3, 3]
    assert peer.server.streams == 0


def test_rfc9113_8_1_a_client_that_is_answered_before_its_end_is_told_to_stop() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    peer.server.respond(1, OK_BLOCK, end=True)
    assert [(sent.kind, sent.flags) for sent in peer.heard()] == [(1, END_HEADERS | END_STREAM), (3, 0)]
    assert peer.say(data(1, b"late", end=True)) == []
    assert peer.heard() == []


# -- 6.8: draining ---------------------------------------------------------------------------------------------------


def drained_after(peer: Peer) -> bytes:
    """Starts to drain, and returns the PING whose echo completes the first step."""
    peer.server.drain()
    goaway, ping = peer.heard()
    assert goaway == Sent(FrameType.GOAWAY, 0, 0, number(NUMBER_MAX) + number(ErrorCode.NO_ERROR))
    return raw(FrameType.PING, ACK, 0, ping.payload)


def test_rfc9113_6_8_requests_in_transit_when_we_drain_are_served() -> None:
    peer = Peer()
    peer.say(headers(1))
    echo = drained_after(peer)
    assert len(peer.say(headers(3), echo)) == 1
    assert peer.heard() == [Sent(FrameType.GOAWAY, 0, 0, number(3) + number(ErrorCode.NO_ERROR))]
    assert not peer.server.drained
    for stream in (1, 3):
        peer.server.answer(stream, OK_BLOCK, b"x", OK_BLOCK)
    assert peer.server.drained


def test_rfc9113_6_8_streams_after_the_last_goaway_are_refused() -> None:
    peer = Peer()
    echo = drained_after(peer)
    peer.say(echo)
    assert peer.server.drained
    peer.heard()
    assert peer.resets(1, headers(1)) == ErrorCode.REFUSED_STREAM


def test_rfc9113_6_8_draining_twice_is_draining_once() -> None:
    peer = Peer()
    echo = drained_after(peer)
    peer.server.drain()
    peer.say(echo, echo)
    assert [sent.kind for sent in peer.heard()] == [FrameType.GOAWAY]
