"""RFC 9113, section 10.5: actions that are cheap for a client and expensive for a server are limited."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from pydanube.base.limits import (
    HTTP2_CONTINUATIONS_MAX,
    HTTP2_HEADER_BLOCK_BYTES_MAX,
    HTTP2_IDLE_FRAMES_MAX,
    HTTP2_IDLE_FRAMES_PER_SECOND,
    HTTP2_RESETS_MAX,
    HTTP2_RESETS_PER_SECOND,
    HTTP2_STREAMS_MAX,
    MIB,
    SECOND,
)
from pydanube.wire.http2.allowance import Allowance
from pydanube.wire.http2.events import ConnectionEnded
from pydanube.wire.http2.frames import ErrorCode, FrameType
from wire.http2.peer import ACK, OK_BLOCK, POST, Peer, data, headers, raw, rst_stream, settings, window_update

IDLE: dict[str, Callable[[int], bytes]] = {
    "PING": lambda _: raw(FrameType.PING, 0, 0, b"12345678"),
    "PING ack": lambda _: raw(FrameType.PING, ACK, 0, b"12345678"),
    "SETTINGS": lambda _: settings((4, 100)),
    "SETTINGS ack": lambda _: raw(FrameType.SETTINGS, ACK, 0),
    "PRIORITY": lambda at: raw(FrameType.PRIORITY, 0, at + 1, bytes(5)),
    "empty DATA": lambda _: data(1),
    "DATA of padding": lambda _: data(1, b"\x01\0", flags=8),
    "GOAWAY": lambda _: raw(FrameType.GOAWAY, 0, 0, bytes(8)),
    "unknown": lambda _: raw(0xFA, 0, 0),
}
RESETS: dict[str, Callable[[int], bytes]] = {
    "rapid reset": lambda at: headers(at) + rst_stream(at),
    "made you reset: a window of nothing": lambda at: headers(at) + window_update(at, 0),
    "made you reset: data after the end": lambda at: headers(at) + data(at, b"x"),
    "made you reset: malformed": lambda at: headers(at, [(b"x", b"y")]),
    "late RST_STREAM": lambda at: headers(at) + rst_stream(at) + rst_stream(at),
}


def frames_until_the_end(peer: Peer, make: Callable[[int], bytes], most: int) -> int:
    """How many of these frames the connection survives."""
    for at in range(most):
        events = peer.say(make(2 * at + 3))
        if events and isinstance(events[-1], ConnectionEnded):
            assert events[-1].error.error_code == ErrorCode.ENHANCE_YOUR_CALM
            return at
        peer.heard()
    return most


@pytest.mark.parametrize("name", IDLE)
def test_rfc9113_10_5_a_flood_of_frames_that_carry_nothing_ends_the_connection(name: str) -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    survived = frames_until_the_end(peer, IDLE[name], 2 * HTTP2_IDLE_FRAMES_MAX)
    assert HTTP2_IDLE_FRAMES_MAX - 10 < survived <= HTTP2_IDLE_FRAMES_MAX


@pytest.mark.parametrize("name", RESETS)
def test_rfc9113_10_5_a_flood_of_resets_ends_the_connection(name: str) -> None:
    survived = frames_until_the_end(Peer(), RESETS[name], 2 * HTTP2_RESETS_MAX)
    assert HTTP2_RESETS_MAX // 2 <= survived <= HTTP2_RESETS_MAX


def test_a_client_may_ping_and_cancel_forever_at_a_moderate_rate() -> None:
    peer = Peer()
    for at in range(2 * HTTP2_RESETS_MAX):
        peer.now += SECOND // HTTP2_RESETS_PER_SECOND
        peer.say(headers(2 * at + 1), rst_stream(2 * at + 1))
    for _ in range(2 * HTTP2_IDLE_FRAMES_MAX):
        peer.now += SECOND // HTTP2_IDLE_FRAMES_PER_SECOND
        peer.say(raw(FrameType.PING, 0, 0, b"12345678"))
    peer.is_alive()


def test_a_client_may_ping_for_each_frame_of_data_that_it_gets() -> None:
    peer = Peer()
    peer.say(window_update(0, MIB), window_update(0, MIB), headers(1))
    for _ in range(2 * HTTP2_IDLE_FRAMES_MAX):
        peer.server.send_data(1, b"x")
        peer.say(raw(FrameType.PING, 0, 0, b"12345678"), window_update(1, 1))
    peer.is_alive()


def test_a_client_that_leaves_may_cancel_everything_at_once() -> None:
    peer = Peer()
    streams = range(1, 2 * HTTP2_STREAMS_MAX, 2)
    peer.say(*(headers(stream) for stream in streams))
    assert len(peer.say(*(rst_stream(stream) for stream in streams))) == HTTP2_STREAMS_MAX
    peer.is_alive()


def test_a_clock_that_runs_backwards_does_not_reduce_an_allowance() -> None:
    allowance = Allowance(2, 1)
    assert allowance.take(10 * SECOND)
    assert allowance.take(0)


def test_an_allowance_does_not_grow_when_the_clock_runs_backwards() -> None:
    allowance = Allowance(1, 1)
    assert allowance.take(10 * SECOND)
    assert not allowance.take(10 * SECOND)
    assert not allowance.take(0)
    assert not allowance.take(10 * SECOND)
    assert allowance.take(11 * SECOND)
    assert not allowance.take(11 * SECOND + 1)


def test_rfc9113_10_5_empty_continuations_are_limited() -> None:
    peer = Peer()
    peer.say(headers(1, b"\x82", flags=0), *[raw(FrameType.CONTINUATION, 0, 1)] * HTTP2_CONTINUATIONS_MAX)
    assert peer.fails(raw(FrameType.CONTINUATION, 0, 1)) == ErrorCode.ENHANCE_YOUR_CALM


def test_rfc9113_10_5_a_header_block_is_limited() -> None:
    peer = Peer()
    piece = b"\x00\x01a\x01b" * 3_000
    count = HTTP2_HEADER_BLOCK_BYTES_MAX // len(piece)
    peer.say(headers(1, piece, flags=0), *[raw(FrameType.CONTINUATION, 0, 1, piece)] * (count - 1))
    assert not peer.server.ended
    assert peer.fails(raw(FrameType.CONTINUATION, 0, 1, piece)) == ErrorCode.ENHANCE_YOUR_CALM


def test_a_client_that_asks_and_never_reads_holds_bounded_memory() -> None:
    peer = Peer()
    peer.say(settings((4, 0)))
    answer = bytes(100_000)
    tracemalloc.start()
    try:
        for stream in range(1, 2 * 4_000, 2):
            for event in peer.say(headers(stream)):
                peer.server.answer(event.stream, OK_BLOCK, bytes(answer), OK_BLOCK)
            peer.server.take_output()
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 24 * MIB


def test_one_byte_at_a_time_costs_no_more_than_a_frame_of_memory() -> None:
    peer = Peer()
    peer.say(headers(1, POST, end=False))
    frame = data(1, bytes(16_384))
    for at in range(len(frame) - 1):
        assert peer.say(frame[at : at + 1]) == []
    (event,) = peer.say(frame[-1:])
    assert event.stream == 1
