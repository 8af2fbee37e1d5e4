"""Random bytes: only typed outcomes, the same however the bytes are split, within all limits."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.wire.http2.events import ConnectionEnded, DataReceived, Event, RequestReceived, StreamReset
from pydanube.wire.http2.fields import block_of
from pydanube.wire.http2.frames import PREFACE
from wire.http2.bounds import check_bounds
from wire.http2.peer import EMPTY_SETTINGS, GET, OK_BLOCK, POST, Peer, data, headers, raw

GREETING = PREFACE + EMPTY_SETTINGS

START = b"\x82\x86\x84"  # GET, http, /

small = st.integers(0, 9)
numbers = small | st.integers(0, (1 << 31) - 1)
payloads = (
    st.binary(max_size=40)
    | st.sampled_from([block_of(GET), block_of(POST), START + b"\x40\x01a\x01b", START + b"\xbe", b"\x20" + START])
    | numbers.map(lambda number: number.to_bytes(4, "big"))
    | st.sampled_from([5, 8, 16, 255, 5_000, 16_384]).map(bytes)
)
frames = st.builds(raw, st.integers(0, 10), st.sampled_from([0, 1, 4, 5, 8, 9, 0x2D, 255]), numbers, payloads)
likely = st.one_of(
    st.builds(headers, small, st.sampled_from([GET, POST]), end=st.booleans()),
    st.builds(data, small, st.binary(max_size=30), end=st.booleans()),
    st.builds(raw, st.sampled_from([2, 3, 4, 6, 8, 9]), st.sampled_from([0, 1, 4]), small, payloads),
)
conversations = st.lists(likely | frames, max_size=30).map(b"".join)


def listen(peer: Peer, pieces: list[bytes], *, answers: bool = False) -> list[Event]:
    """All events of a host that answers complete requests, or does nothing."""
    found: list[Event] = []
    for piece in pieces:
        events = peer.say(piece)
        found += events
        for event in events:
            if answers and isinstance(event, RequestReceived | DataReceived) and event.ended:
                peer.server.answer(event.stream, OK_BLOCK, b"answer", OK_BLOCK)
        check_bounds(peer)
    assert all(isinstance(event, RequestReceived | DataReceived | StreamReset | ConnectionEnded) for event in found)
    assert [isinstance(event, ConnectionEnded) for event in found].count(True) == peer.server.ended
    assert not peer.server.ended or isinstance(found[-1], ConnectionEnded)
    peer.heard()
    return found


def story(events: list[Event]) -> dict[int, list[Any]]:
    """What happened on each stream, however its data was split."""
    streams: dict[int, list[Any]] = {}
    for event in events:
        seen = streams.setdefault(event.stream, [])
        match event:
            case RequestReceived(_, head, body, ended):
                seen += [head, body, ended]
            case DataReceived(_, body, ended):
                seen[1:] = [seen[1] + body, ended]
            case StreamReset(_, code):
                seen.append(code)
            case ConnectionEnded(_, error):
                seen += [error.error_code, error.reason]
    return streams


@given(st.binary(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_bytes_have_a_typed_outcome(noise: bytes) -> None:
    listen(Peer(greeted=False), [noise])
    listen(Peer(), [noise])


@given(conversations)
@settings(max_examples=300, deadline=None)
def test_any_frames_have_a_typed_outcome(said: bytes) -> None:
    listen(Peer(), [said], answers=True)


@given(conversations, st.lists(st.integers(0, 1_000), max_size=6))
@settings(max_examples=200, deadline=None)
def test_frames_mean_the_same_however_they_are_cut(said: bytes, cuts: list[int]) -> None:
    whole, cut = Peer(greeted=False), Peer(greeted=False)
    said = GREETING + said
    places = [0, *sorted(place for place in cuts if place < len(said)), len(said)]
    first = listen(whole, [said])
    second = listen(cut, [said[start:stop] for start, stop in pairwise(places)])
    assert story(first) == story(second)
    assert whole.written == cut.written


@given(conversations, st.integers(0, 400), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_flipped_bit_has_a_typed_outcome(said: bytes, place: int, bit: int) -> None:
    damaged = bytearray(GREETING + said)
    damaged[place % len(damaged)] ^= 1 << bit
    listen(Peer(greeted=False), [bytes(damaged)], answers=True)
