"""Frames of the peer protocol: refused by their header before a byte of the body is kept (S1), and checked (S3)."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import PeerFrameDamaged, PeerIdentityDiffers, PeerProtocolError
from pydanube.base.limits import KIB, MIB, PEER_FRAME_BODY_BYTES_MAX, PEER_MESSAGE_BYTES_MAX
from pydanube.wire.peer.frames import (
    GREETING,
    HEADER_BYTES,
    LAST,
    NO_TARGET,
    PART,
    PREFACE,
    Frame,
    FrameDecoder,
    FrameKind,
    divide,
)
from wire.peer.nodes import OWN, TABLE, framed, open_decoder, pieces

APPEND, HEARTBEAT, UNKNOWN_KIND = 18, 20, 77
FULL = bytes(PEER_FRAME_BODY_BYTES_MAX)


def with_length(frame: bytes, length: int) -> bytes:
    return length.to_bytes(4, "little") + frame[4:]


def read(data: bytes) -> list[Frame]:
    return list(open_decoder().feed(data))


def test_frames_come_out_as_they_went_in() -> None:
    data = framed(APPEND, b"entries", request=7) + framed(HEARTBEAT) + framed(FrameKind.PING)
    assert read(data) == [
        Frame(APPEND, 7, OWN, b"entries"),
        Frame(HEARTBEAT, 0, OWN, b""),
        Frame(FrameKind.PING, 0, OWN, b""),
    ]


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(0, 3000), max_size=10))
def test_frames_do_not_depend_on_how_bytes_arrive(bodies: list[bytes], cuts: list[int]) -> None:
    data = b"".join(framed(APPEND, body) for body in bodies)
    decoder = open_decoder()
    assert [frame.body for piece in pieces(data, cuts) for frame in decoder.feed(piece)] == bodies


@given(st.lists(st.integers(0, 200 * KIB), max_size=6))
def test_a_long_message_is_divided_and_joined(sizes: list[int]) -> None:
    parts = [bytes([at + 1]) * size for at, size in enumerate(sizes)]
    frames = [(flags, body) for flags, body in divide(parts)]
    assert all(len(body) == PEER_FRAME_BODY_BYTES_MAX for flags, body in frames if flags == PART)
    assert [flags & LAST for flags, _ in frames if flags] in ([], [0] * (len(frames) - 1) + [LAST])
    data = b"".join(framed(APPEND, body, flags=flags) for flags, body in frames)
    assert [frame.body for frame in read(data)] == [b"".join(parts)]


def test_a_short_message_arrives_between_the_parts_of_a_long_one() -> None:
    data = framed(APPEND, FULL, flags=PART) + framed(HEARTBEAT, b"now") + framed(APPEND, b"end", flags=PART | LAST)
    assert [(frame.kind, len(frame.body)) for frame in read(data)] == [(HEARTBEAT, 3), (APPEND, len(FULL) + 3)]


@pytest.mark.parametrize("length", [PEER_FRAME_BODY_BYTES_MAX + 1, 1 << 24, 1 << 31, (1 << 32) - 1])
@pytest.mark.parametrize("kind", [APPEND, UNKNOWN_KIND])
def test_a_length_is_refused_with_its_header(kind: int, length: int) -> None:
    header = with_length(framed(kind), length)[:HEADER_BYTES]
    tracemalloc.start()
    with pytest.raises(PeerProtocolError, match="the maximum"):
        read(header)
    assert tracemalloc.get_traced_memory()[1] < 64 * KIB
    tracemalloc.stop()


@pytest.mark.parametrize(("kind", "bound"), sorted(TABLE.bounds.items()))
def test_a_message_is_bounded_by_its_kind(kind: int, bound: int) -> None:
    if bound < PEER_FRAME_BODY_BYTES_MAX:
        assert len(read(framed(kind, bytes(bound)))) == 1
        with pytest.raises(PeerProtocolError, match=f"the maximum is {bound}"):
            read(with_length(framed(kind), bound + 1))


def test_parts_are_bounded_together_before_the_last_one_is_kept() -> None:
    decoder = open_decoder()
    part = framed(APPEND, FULL, flags=PART)
    for _ in range(PEER_MESSAGE_BYTES_MAX // PEER_FRAME_BODY_BYTES_MAX):
        assert list(decoder.feed(part)) == []
    with pytest.raises(PeerProtocolError, match="the maximum"):
        list(decoder.feed(part[:HEADER_BYTES]))


def test_parts_of_an_unknown_kind_are_not_kept() -> None:
    decoder, part = open_decoder(), framed(UNKNOWN_KIND, FULL, flags=PART, request=3)
    tracemalloc.start()
    for _ in range(100):
        assert list(decoder.feed(part)) == []
    assert tracemalloc.get_traced_memory()[0] < 1 * MIB
    tracemalloc.stop()
    assert list(decoder.feed(framed(UNKNOWN_KIND, b"x", flags=PART | LAST, request=3))) == [
        Frame(UNKNOWN_KIND, 3, OWN, b"")
    ]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (framed(APPEND, b"x", flags=LAST), "flags 0x2"),
        (framed(APPEND, b"x", flags=4), "flags 0x4"),
        (framed(FrameKind.PING, flags=PART), "flags 0x1"),
        (framed(APPEND)[:6] + b"\x01\x00" + framed(APPEND)[8:], "reserved bits 0x1"),
        (framed(APPEND, b"short", flags=PART), "a part of kind 18 has 5 bytes"),
        (framed(APPEND, FULL, flags=PART) + framed(APPEND, flags=PART | LAST), "a part of kind 18 has 0 bytes"),
        (framed(APPEND, b"x", flags=PART | LAST), "without a first one"),
        (framed(APPEND, FULL, flags=PART) + framed(UNKNOWN_KIND, FULL, flags=PART), "between those of kind 18"),
        (framed(APPEND, FULL, flags=PART) + framed(APPEND, FULL, flags=PART, request=1), "between those of kind 18"),
        (framed(FrameKind.HELLO), "kind 1 must not come now"),
        (framed(9), "kind 9 must not come now"),
        (framed(FrameKind.PING, b"x"), "the maximum is 0"),
    ],
)
def test_a_frame_that_breaks_a_rule_is_the_fault_of_its_sender(data: bytes, complaint: str) -> None:
    with pytest.raises(PeerProtocolError, match=complaint):
        read(data)


@given(st.integers(0, 8 * (HEADER_BYTES + 9) - 1))
def test_every_changed_bit_is_noticed(bit: int) -> None:
    data = bytearray(framed(APPEND, b"a record!", request=5))
    data[bit // 8] ^= 1 << bit % 8
    decoder = open_decoder()
    try:
        assert list(decoder.feed(bytes(data))) == []  # a longer body may be announced, and does not arrive
        assert list(decoder.feed(bytes(1 << 24))) == []
    except (PeerFrameDamaged, PeerProtocolError):
        return
    pytest.fail("it was taken")


def test_a_frame_for_another_node_is_refused() -> None:
    with pytest.raises(PeerIdentityDiffers, match="arrived at node"):
        read(framed(HEARTBEAT, target=bytes(15) + b"x"))


def test_nothing_but_a_greeting_is_read_before_it_is_complete() -> None:
    for kind in range(256):
        decoder = FrameDecoder(OWN, preface=False)
        if kind in GREETING:
            assert len(list(decoder.feed(framed(kind, b"1")))) == 1
            with pytest.raises(PeerProtocolError, match="the maximum"):
                list(decoder.feed(framed(kind, bytes(GREETING[kind] + 1))[:HEADER_BYTES]))
        else:
            with pytest.raises(PeerProtocolError, match="must not come now"):
                list(decoder.feed(framed(kind)[:HEADER_BYTES]))


@pytest.mark.parametrize("first", [b"DANUBE1\n", b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"x"])
def test_another_protocol_is_recognised(first: bytes) -> None:
    with pytest.raises(PeerProtocolError, match="preface"):
        list(FrameDecoder(OWN, preface=True).feed(first))


def test_the_preface_may_arrive_in_pieces() -> None:
    decoder = FrameDecoder(OWN, preface=True)
    hello = framed(FrameKind.HELLO, b"hello", target=NO_TARGET)
    frames = [frame for byte in PREFACE + hello for frame in decoder.feed(bytes([byte]))]
    assert [frame.body for frame in frames] == [b"hello"]
