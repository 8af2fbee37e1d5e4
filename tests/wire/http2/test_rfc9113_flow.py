"""RFC 9113, sections 5.2 and 6.9: flow control both ways. A client that does not read only stalls itself."""

from __future__ import annotations

import pytest

from pydanube.base.limits import (
    HTTP2_CONNECTION_WINDOW_BYTES,
    HTTP2_QUEUE_BYTES_MAX,
    HTTP2_RESERVED_BYTES_MAX,
    HTTP2_STREAM_QUEUE_BYTES_MAX,
    MIB,
)
from pydanube.wire.http2.events import StreamReset
from pydanube.wire.http2.frames import NUMBER_MAX, ErrorCode, FrameType, Setting
from wire.http2.peer import (
    END_STREAM,
    OK_BLOCK,
    PADDED,
    POST,
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

WINDOW = 65_535
FRAME = 16_384


def uploading(peer: Peer, *streams: int) -> None:
    """Sends requests whose bodies follow later."""
    peer.say(*(headers(stream, POST, end=False) for stream in streams))
    peer.heard()


def bodies(sent: list[Sent]) -> dict[int, bytes]:
    """The data of each stream."""
    found: dict[int, bytes] = {}
    for frame in sent:
        if frame.kind == FrameType.DATA:
            found[frame.stream] = found.get(frame.stream, b"") + frame.payload
    return found


def fill(peer: Peer, stream: int, size: int) -> list[Sent]:
    """Sends a body of `size` bytes, in frames."""
    while size:
        peer.say(data(stream, bytes(min(size, FRAME))))
        size -= min(size, FRAME)
    return peer.heard()


# -- what we send ----------------------------------------------------------------------------------------------------


def test_rfc9113_5_2_1_nothing_is_sent_beyond_the_windows() -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.server.send_data(1, bytes(100_000))
    sent = peer.heard()
    assert [len(frame.payload) for frame in sent] == [FRAME] * 3 + [WINDOW - 3 * FRAME]
    peer.say(window_update(1, 100))
    assert peer.heard() == [], "the connection's window is used up too"
    peer.say(window_update(0, 60))
    assert [len(frame.payload) for frame in peer.heard()] == [60]
    peer.say(window_update(0, WINDOW), window_update(1, WINDOW))
    assert sum(len(frame.payload) for frame in peer.heard()) == 100_000 - WINDOW - 60


def test_rfc9113_5_2_1_whole_answers_use_up_the_connections_window() -> None:
    peer = Peer()
    peer.say(*(headers(stream) for stream in (1, 3, 5, 7)))
    peer.heard()
    for stream in (1, 3, 5, 7):
        peer.server.answer(stream, OK_BLOCK, bytes(FRAME), OK_BLOCK)
    assert sum(len(frame.payload) for frame in peer.heard() if frame.kind == FrameType.DATA) == WINDOW
    assert peer.server.streams == 1


def test_rfc9113_6_9_1_the_end_follows_the_queued_data() -> None:
    peer = Peer()
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 2)), headers(1), headers(3), headers(5))
    peer.heard()
    peer.server.answer(1, OK_BLOCK, b"abc", OK_BLOCK)
    peer.server.send_data(3, b"abc", end=True)
    peer.server.send_data(5, b"abc")
    peer.server.send_data(5, b"", end=True)
    assert [frame.kind for frame in peer.heard()] == [1, 0, 0, 0]
    peer.server.send_data(1, b"after the end")
    peer.server.send_trailers(3, OK_BLOCK)
    assert peer.server.streams == 3
    peer.say(window_update(1, 1), window_update(3, 1), window_update(5, 1))
    sent = peer.heard()
    assert [(frame.stream, frame.kind, frame.flags & END_STREAM) for frame in sent] == [
        (1, FrameType.DATA, 0),
        (1, FrameType.HEADERS, 1),
        (3, FrameType.DATA, 1),
        (5, FrameType.DATA, 1),
    ]
    assert peer.server.streams == 0


def test_rfc9113_6_9_1_an_empty_frame_needs_no_window() -> None:
    peer = Peer()
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 5)), headers(1), headers(3))
    peer.server.send_data(3, b"abcde")
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 0)))
    peer.heard()
    peer.server.send_data(1, b"", end=True)
    peer.server.send_data(3, b"", end=True)
    assert [(frame.stream, frame.payload, frame.flags) for frame in peer.heard()] == [(1, b"", 1), (3, b"", 1)]


def test_rfc9113_6_9_2_a_new_initial_window_moves_open_streams_below_zero_and_up_again() -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.server.send_data(1, bytes(60_000))
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 10_000)))
    peer.heard()
    peer.server.send_data(1, b"x" * 10)
    peer.say(window_update(1, 50_000))  # now at zero
    assert bodies(peer.heard()) == {}
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 10_003)))
    assert bodies(peer.heard()) == {1: b"xxx"}
    peer.say(window_update(1, 1))
    assert bodies(peer.heard()) == {1: b"x"}


def test_rfc9113_6_9_2_a_window_that_shrinks_stops_a_stream_that_waited_for_the_connection() -> None:
    peer = Peer()
    uploading(peer, 1, 3)
    peer.server.send_data(3, bytes(100))
    peer.server.send_data(1, bytes(WINDOW))
    peer.server.send_data(3, b"abcdef")
    peer.say(settings((Setting.INITIAL_WINDOW_SIZE, 10)))
    peer.heard()
    peer.say(window_update(0, 100))
    assert peer.heard() == []
    peer.say(window_update(3, 92))
    assert bodies(peer.heard()) == {3: b"ab"}


@pytest.mark.parametrize("stream", [0, 1])
def test_rfc9113_6_9_a_window_does_not_grow_by_zero(stream: int) -> None:
    peer = Peer()
    uploading(peer, 1)
    ends = peer.resets if stream else lambda _, *parts: peer.fails(*parts)
    assert ends(stream, window_update(stream, 0)) == ErrorCode.PROTOCOL_ERROR


@pytest.mark.parametrize("stream", [0, 1])
def test_rfc9113_6_9_1_a_window_stays_below_2_gib(stream: int) -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.say(window_update(stream, NUMBER_MAX - WINDOW))
    peer.is_alive()
    ends = peer.resets if stream else lambda _, *parts: peer.fails(*parts)
    assert ends(stream, window_update(stream, 1)) == ErrorCode.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_2_settings_may_not_push_a_window_beyond_2_gib() -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.say(window_update(1, 1))
    assert peer.fails(settings((Setting.INITIAL_WINDOW_SIZE, NUMBER_MAX))) == ErrorCode.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_window_update_has_four_bytes() -> None:
    assert Peer().fails(raw(FrameType.WINDOW_UPDATE, 0, 0, b"\0\0\x01")) == ErrorCode.FRAME_SIZE_ERROR


def test_streams_that_wait_for_the_connection_take_turns() -> None:
    peer = Peer()
    uploading(peer, 1, 3, 5)
    peer.server.send_data(1, bytes(WINDOW))  # the window of the connection is used up
    peer.say(window_update(1, MIB))
    for stream in (1, 3, 5):
        peer.server.send_data(stream, bytes(3 * FRAME))
    peer.heard()
    peer.say(window_update(0, 4 * FRAME))
    assert [frame.stream for frame in peer.heard()] == [1, 3, 5, 1]
    peer.say(window_update(0, 4 * FRAME))
    assert [frame.stream for frame in peer.heard()] == [3, 5, 1, 3]


# -- slow readers ----------------------------------------------------------------------------------------------------


def test_a_stream_that_is_not_read_is_bounded_and_does_not_stall_others() -> None:
    peer = Peer()
    peer.say(window_update(0, 100 * MIB))
    uploading(peer, 1, 3)
    given = 0
    while peer.server.room(1):
        peer.server.send_data(1, bytes(10_000))
        given += 10_000
    assert given - WINDOW <= HTTP2_STREAM_QUEUE_BYTES_MAX + 10_000
    peer.heard()
    assert peer.server.room(3) > 0
    peer.server.send_data(3, b"quick")
    assert bodies(peer.heard()) == {3: b"quick"}


def test_a_stream_that_was_full_is_named_when_half_of_it_is_read() -> None:
    peer = Peer()
    peer.say(window_update(0, 100 * MIB))
    uploading(peer, 1)
    peer.server.send_data(1, bytes(WINDOW + HTTP2_STREAM_QUEUE_BYTES_MAX))
    assert peer.server.room(1) == 0
    peer.say(window_update(1, HTTP2_STREAM_QUEUE_BYTES_MAX // 2 - 1))
    assert peer.server.take_woken() == []
    peer.say(window_update(1, 1))
    assert peer.server.take_woken() == [1]
    assert peer.server.take_woken() == []
    assert peer.server.room(1) == HTTP2_STREAM_QUEUE_BYTES_MAX // 2


def test_all_streams_together_are_bounded_and_named_when_there_is_room() -> None:
    peer = Peer()
    streams = list(range(1, 2 * 70, 2))
    uploading(peer, *streams)
    for stream in streams:
        if peer.server.room(stream):
            peer.server.send_data(stream, bytes(HTTP2_STREAM_QUEUE_BYTES_MAX))
    full = [stream for stream in streams if not peer.server.room(stream)]
    assert full == streams
    peer.server.answer(streams[-1], OK_BLOCK, b"x", OK_BLOCK)
    assert peer.heard()[-1] == Sent(FrameType.RST_STREAM, 0, streams[-1], number(ErrorCode.ENHANCE_YOUR_CALM))
    gone = HTTP2_QUEUE_BYTES_MAX // 2 // HTTP2_STREAM_QUEUE_BYTES_MAX + 2
    for stream in streams[:gone]:
        peer.server.reset(stream, ErrorCode.CANCEL)
    woken = peer.server.take_woken()
    assert woken == streams[-5:-1]
    assert all(peer.server.room(stream) for stream in woken)


def test_the_queue_of_a_closed_stream_is_dropped() -> None:
    peer = Peer()
    uploading(peer, 1, 3)
    peer.server.send_data(1, bytes(WINDOW))
    peer.server.send_data(3, b"waits")
    peer.heard()
    assert peer.say(rst_stream(3)) == [StreamReset(3, ErrorCode.CANCEL)]
    peer.say(window_update(0, MIB))
    assert peer.heard() == []


def test_a_full_socket_is_treated_like_a_slow_reader() -> None:
    peer = Peer()
    uploading(peer, 1, 3)
    peer.server.pause()
    peer.server.send_data(1, b"one")
    peer.server.answer(3, OK_BLOCK, b"three", OK_BLOCK)
    assert bodies(peer.heard()) == {}
    peer.is_alive()
    peer.server.resume()
    assert bodies(peer.heard()) == {1: b"one", 3: b"three"}
    assert peer.server.streams == 1


# -- what we receive -------------------------------------------------------------------------------------------------


def test_rfc9113_5_2_more_than_a_streams_window_ends_the_stream() -> None:
    peer = Peer()
    uploading(peer, 1)
    assert fill(peer, 1, WINDOW) == []
    assert peer.resets(1, data(1, b"x")) == ErrorCode.FLOW_CONTROL_ERROR


def test_rfc9113_6_9_the_connections_window_is_returned_on_receipt() -> None:
    peer = Peer()
    sent: list[Sent] = []
    for stream in range(1, 2 * (HTTP2_CONNECTION_WINDOW_BYTES // 2 // WINDOW + 2), 2):
        uploading(peer, stream)
        sent += fill(peer, stream, WINDOW)
    assert [(frame.kind, frame.stream) for frame in sent] == [(FrameType.WINDOW_UPDATE, 0)]
    assert int.from_bytes(sent[0].payload, "big") > HTTP2_CONNECTION_WINDOW_BYTES // 2


def test_rfc9113_6_9_data_of_closed_streams_counts_for_the_connection() -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.server.reset(1, ErrorCode.CANCEL)
    peer.heard()
    sent = fill(peer, 1, HTTP2_CONNECTION_WINDOW_BYTES // 2 + FRAME)
    assert [(frame.kind, frame.stream) for frame in sent] == [(FrameType.WINDOW_UPDATE, 0)]


def test_rfc9113_6_9_consumed_data_is_returned_in_large_pieces() -> None:
    peer = Peer()
    uploading(peer, 1)
    fill(peer, 1, 60_000)
    peer.server.data_consumed(1, 30_000)
    assert peer.heard() == []
    peer.server.data_consumed(1, 30_000)
    assert peer.heard() == [Sent(FrameType.WINDOW_UPDATE, 0, 1, number(60_000))]


def test_rfc9113_6_9_a_request_that_has_ended_needs_no_window() -> None:
    peer = Peer()
    uploading(peer, 1)
    fill(peer, 1, 60_000)
    peer.say(data(1, end=True))
    peer.server.data_consumed(1, 60_000)
    assert peer.heard() == []


def test_rfc9113_6_1_padding_counts_and_is_given_back() -> None:
    peer = Peer()
    uploading(peer, 1)
    padded = data(1, b"\xff" + b"x" + bytes(255), flags=PADDED)
    updates = 0
    for _ in range(2_000):  # half a megabyte, of which 2,000 bytes are held
        peer.say(padded)
        updates += len(peer.heard())
    assert not peer.server.ended
    assert 10 < updates < 30
    assert peer.server.streams == 1


def test_a_large_message_is_given_room_for_all_of_it() -> None:
    peer = Peer()
    uploading(peer, 1)
    peer.server.expect(1, 1_000)
    assert peer.heard() == [], "it fits"
    peer.server.expect(1, MIB)
    assert peer.heard() == [Sent(FrameType.WINDOW_UPDATE, 0, 1, number(MIB - WINDOW))]
    assert fill(peer, 1, MIB) == []
    assert peer.resets(1, data(1, b"x")) == ErrorCode.FLOW_CONTROL_ERROR


def test_large_messages_that_do_not_fit_together_come_one_after_the_other() -> None:
    peer = Peer()
    size = HTTP2_RESERVED_BYTES_MAX // 3
    streams = [1, 3, 5, 7, 9]
    uploading(peer, *streams)
    for stream in streams:
        peer.server.expect(stream, size + WINDOW)
        peer.server.expect(stream, size + WINDOW)
    assert [frame.stream for frame in peer.heard()] == [1, 3, 5]
    peer.say(rst_stream(7))
    fill(peer, 3, FRAME)
    peer.server.data_consumed(3, FRAME)
    assert peer.heard() == [], "a part of it is not enough"
    peer.server.answer(1, OK_BLOCK, b"", OK_BLOCK)
    assert [frame.stream for frame in peer.heard() if frame.kind == FrameType.WINDOW_UPDATE] == [9]


def test_reserved_room_is_free_when_the_message_is_consumed() -> None:
    peer = Peer()
    uploading(peer, 1, 3)
    peer.server.expect(1, HTTP2_RESERVED_BYTES_MAX)
    peer.server.expect(3, HTTP2_RESERVED_BYTES_MAX)
    assert [frame.stream for frame in peer.heard()] == [1]
    fill(peer, 1, HTTP2_RESERVED_BYTES_MAX)
    peer.server.data_consumed(1, HTTP2_RESERVED_BYTES_MAX)
    granted = [(frame.stream, int.from_bytes(frame.payload, "big")) for frame in peer.heard()]
    assert sorted(granted) == [(1, WINDOW), (3, HTTP2_RESERVED_BYTES_MAX - WINDOW)]
