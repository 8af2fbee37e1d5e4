"""Frames: read from any stream of bytes, and refused by their header before a byte of the body is kept (S1)."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import BrokerProtocolError, ProtocolError
from pydanube.base.limits import (
    CONTROL_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_MIN,
    HELLO_FRAME_BYTES_MAX,
    KIB,
    MIB,
)
from pydanube.wire.frames import FRAME_HEADER_BYTES, PREFACE, Frame, FrameKind, FrameReader, Side, encode_frame
from wire.protocol import BY_CLIENT, GREETING, TRAFFIC, frame_of, framed, joined, open_reader

HELLO = joined(GREETING["hello"].encode())
WELCOME = joined(GREETING["welcome"].encode())
LIES = (1 << 31, (1 << 32) - 1, FRAME_BYTES_MAX, FRAME_BYTES_MAX - FRAME_HEADER_BYTES + 1)
each_side = pytest.mark.parametrize("side", Side)


def stream(side: Side) -> tuple[bytes, list[Frame]]:
    """The bytes of everything that this side may read, and the frames in them."""
    commands = TRAFFIC[side].commands.values()
    return b"".join(joined(command.encode()) for command in commands), [frame_of(command) for command in commands]


def read_all(reader: FrameReader, pieces: list[bytes]) -> tuple[list[Frame], str]:
    """All frames of the pieces, and the error at the end."""
    frames: list[Frame] = []
    for piece in pieces:
        try:
            frames += reader.feed(piece)
        except ProtocolError as fault:
            return frames + reader.before_fault, str(fault)
    return frames, ""


def read_strictly(reader: FrameReader, pieces: list[bytes]) -> list[Frame]:
    return [frame for piece in pieces for frame in reader.feed(piece)]


def cut_at(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


@contextmanager
def allocating_at_most(limit: int) -> Iterator[None]:
    """Counts all threads, also those that other tests left behind."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < limit


# -- any split gives the same frames ---------------------------------------------------------------------------------


@each_side
def test_frames_come_out_as_they_went_in(side: Side) -> None:
    data, frames = stream(side)
    reader = open_reader(side)
    assert reader.feed(data) == frames
    assert not reader.midway


@each_side
def test_bytes_one_by_one_give_the_same_frames(side: Side) -> None:
    data, frames = stream(side)
    assert read_all(open_reader(side), [data[at : at + 1] for at in range(len(data))]) == (frames, "")


@each_side
def test_a_cut_anywhere_gives_the_same_frames(side: Side) -> None:
    data, frames = stream(side)
    for at in range(len(data)):
        assert read_all(open_reader(side), [data[:at], data[at:]]) == (frames, "")


@given(st.sampled_from(Side), st.lists(st.integers(0, 2000), max_size=12), st.sampled_from([b"", b"\xff" * 40]))
def test_any_split_gives_the_same_frames_and_the_same_fault(side: Side, cuts: list[int], rubbish: bytes) -> None:
    data, frames = stream(side)
    data += rubbish
    whole = read_all(open_reader(side), [data])
    assert whole[0] == frames
    assert bool(whole[1]) == bool(rubbish)
    assert read_all(open_reader(side), cut_at(data, [min(cut, len(data)) for cut in cuts])) == whole


def test_a_greeting_may_come_in_any_pieces() -> None:
    data = PREFACE + HELLO
    for at in range(len(data)):
        reader = FrameReader(Side.BROKER)
        assert reader.midway
        assert read_all(reader, [data[:at], data[at:]]) == ([frame_of(GREETING["hello"])], "")
        assert not reader.midway


@pytest.mark.parametrize("most", [1, 2, 3])
def test_frames_may_be_asked_for_a_few_at_a_time(most: int) -> None:
    data, frames = stream(Side.BROKER)
    reader = open_reader(Side.BROKER)
    found = reader.feed(data[:-1], most)
    assert len(found) == most
    assert reader.more
    reader.keep(data[-1:])
    while reader.more:
        few = reader.feed(most=most)
        assert len(few) <= most
        found += few
    assert found == frames
    assert not reader.midway


def test_what_follows_welcome_in_the_same_bytes_is_read() -> None:
    data, frames = stream(Side.CLIENT)
    reader = FrameReader(Side.CLIENT)
    assert reader.feed(WELCOME + data) == [frame_of(GREETING["welcome"]), *frames]


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_a_reader_keeps_nothing_of_a_buffer_that_is_used_again(wrap: Callable[[bytes], bytes]) -> None:
    data, frames = stream(Side.BROKER)
    reader, found = open_reader(Side.BROKER), []
    for start in range(0, len(data), 37):
        buffer = bytearray(data[start : start + 37])
        found += reader.feed(wrap(buffer))
        buffer[:] = bytes(len(buffer))
    assert found == frames
    assert {type(frame.body) for frame in found} == {bytes}


def test_midway_tells_whether_the_stream_may_end() -> None:
    reader = open_reader(Side.BROKER)
    data = joined(BY_CLIENT["ack"].encode())
    for at in range(1, len(data)):
        assert reader.feed(data[at - 1 : at]) == []
        assert reader.midway
    assert len(reader.feed(data[-1:])) == 1
    assert not reader.midway


# -- who may send what, and when -------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n", b"PRI * HTTP/2.0\r\n", b"DANUBE2\n", b"\x00", HELLO])
def test_other_protocols_are_refused_at_the_first_wrong_byte(first: bytes) -> None:
    with pytest.raises(ProtocolError, match="preface"):
        FrameReader(Side.BROKER).feed(first)


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind != FrameKind.HELLO])
def test_a_client_sends_nothing_before_hello(kind: FrameKind) -> None:
    with pytest.raises(ProtocolError, match=r"before WELCOME|never sends"):
        FrameReader(Side.BROKER).feed(PREFACE + framed(kind))


@pytest.mark.parametrize("kind", FrameKind)
def test_a_client_sends_nothing_between_hello_and_welcome(kind: FrameKind) -> None:
    reader = FrameReader(Side.BROKER)
    with pytest.raises(ProtocolError, match=r"before WELCOME|never sends"):
        reader.feed(PREFACE + HELLO + framed(kind))
    assert reader.before_fault == [frame_of(GREETING["hello"])]


@pytest.mark.parametrize(
    "kind", [kind for kind in FrameKind if kind not in {FrameKind.WELCOME, FrameKind.ERROR, FrameKind.CLOSED}]
)
def test_a_broker_sends_only_errors_before_welcome(kind: FrameKind) -> None:
    with pytest.raises(BrokerProtocolError, match=r"before WELCOME|never sends"):
        FrameReader(Side.CLIENT).feed(framed(kind))


@pytest.mark.parametrize(("side", "kind"), [(side, kind) for side in Side for kind in TRAFFIC[side].other_kinds])
def test_a_kind_of_the_other_side_is_refused(side: Side, kind: FrameKind) -> None:
    with pytest.raises(ProtocolError, match=rf"never sends {kind.name}|{kind.name} must not come after WELCOME"):
        open_reader(side).feed(framed(kind))


@each_side
@pytest.mark.parametrize("kind", [0, max(FrameKind) + 1, 127, 255])
def test_an_unknown_kind_is_refused(side: Side, kind: int) -> None:
    with pytest.raises(ProtocolError, match=f"unknown frame kind {kind}"):
        open_reader(side).feed(framed(kind))


@each_side
@pytest.mark.parametrize("at", [5, 6, 7])
def test_reserved_fields_are_zero(side: Side, at: int) -> None:
    for bit in range(8):
        data = bytearray(framed(FrameKind.PING))
        data[at] = 1 << bit
        with pytest.raises(ProtocolError, match="reserved"):
            open_reader(side).feed(data)


@pytest.mark.parametrize("kind", [FrameKind.ERROR, FrameKind.CLOSED])
def test_only_welcome_opens_a_connection(kind: FrameKind) -> None:
    reader = FrameReader(Side.CLIENT)
    assert len(reader.feed(framed(kind))) == 1
    with pytest.raises(BrokerProtocolError, match="REPLY must not come before WELCOME"):
        reader.feed(framed(FrameKind.REPLY))


def test_a_refusal_distinguishes_never_from_not_now() -> None:
    with pytest.raises(ProtocolError, match="HELLO must not come after WELCOME"):
        open_reader(Side.BROKER).feed(framed(FrameKind.HELLO))
    with pytest.raises(BrokerProtocolError, match="a broker never sends PUBLISH"):
        open_reader(Side.CLIENT).feed(framed(FrameKind.PUBLISH))
    with pytest.raises(ProtocolError, match="REQUEST must not come before WELCOME"):
        FrameReader(Side.BROKER).feed(PREFACE + framed(FrameKind.REQUEST))
    with pytest.raises(ProtocolError, match="a client never sends DELIVER"):
        FrameReader(Side.BROKER).feed(PREFACE + framed(FrameKind.DELIVER))


def test_a_protocol_error_says_whose_fault_it_is() -> None:
    faults = {}
    for side in Side:
        with pytest.raises(ProtocolError) as caught:
            open_reader(side).feed(framed(99))
        faults[side] = caught.value.blame
    assert faults == {Side.BROKER: "caller", Side.CLIENT: "server"}


def test_a_broken_stream_stays_broken() -> None:
    reader = open_reader(Side.BROKER)
    ping = framed(FrameKind.PING)
    with pytest.raises(ProtocolError) as first:
        reader.feed(ping + framed(99) + ping)
    assert [frame.kind for frame in reader.before_fault] == [FrameKind.PING]
    with pytest.raises(ProtocolError) as second:
        reader.feed(ping)
    assert (type(second.value), second.value.args) == (type(first.value), first.value.args)


# -- lengths that lie ------------------------------------------------------------------------------------------------


@each_side
@pytest.mark.parametrize("split", [1, 19, 20])
def test_a_length_beyond_its_kind_is_refused_with_the_header(side: Side, split: int) -> None:
    for kind in {frame_of(command).kind for command in TRAFFIC[side].commands.values()}:
        for lie in LIES:
            data = framed(kind, length=lie)
            reader = open_reader(side)
            with allocating_at_most(MIB), pytest.raises(ProtocolError, match=f"a body of {lie} bytes"):
                read_strictly(reader, [data[:split], data[split:] + b"x"])


BOUNDS = [
    (Side.BROKER, FrameKind.REQUEST, CONTROL_BYTES_MAX),
    (Side.BROKER, FrameKind.PUBLISH, FRAME_BYTES_MAX - FRAME_HEADER_BYTES),
    (Side.BROKER, FrameKind.GRANT, 8),
    (Side.BROKER, FrameKind.ACK, 16 + 16 * 4096),
    (Side.BROKER, FrameKind.NACK, 20 + 16 * 4096 + 1000),
    (Side.BROKER, FrameKind.PING, 0),
    (Side.CLIENT, FrameKind.PUBLISHED, 10),
    (Side.CLIENT, FrameKind.DELIVER, FRAME_BYTES_MAX - FRAME_HEADER_BYTES),
    (Side.CLIENT, FrameKind.ACKED, 0),
    (Side.CLIENT, FrameKind.RESET, 8),
    (Side.CLIENT, FrameKind.REPLY, CONTROL_BYTES_MAX),
    (Side.CLIENT, FrameKind.BATCHES, FRAME_BYTES_MAX - FRAME_HEADER_BYTES),
]


@pytest.mark.parametrize(("side", "kind", "most"), BOUNDS)
def test_each_kind_has_its_largest_body(side: Side, kind: FrameKind, most: int) -> None:
    assert [len(frame.body) for frame in open_reader(side).feed(framed(kind, bytes(most)))] == [most]
    with pytest.raises(ProtocolError, match=f"the maximum is {most}"):
        open_reader(side).feed(framed(kind, length=most + 1))


def test_before_welcome_a_frame_has_four_kibibytes() -> None:
    most = HELLO_FRAME_BYTES_MAX - FRAME_HEADER_BYTES
    assert len(FrameReader(Side.BROKER).feed(PREFACE + framed(FrameKind.HELLO, bytes(most)))) == 1
    for lie in (most + 1, CONTROL_BYTES_MAX, *LIES):
        with pytest.raises(ProtocolError, match=f"the maximum is {most}"):
            FrameReader(Side.BROKER).feed(PREFACE + framed(FrameKind.HELLO, length=lie))
        with pytest.raises(BrokerProtocolError, match=f"the maximum is {most}"):
            FrameReader(Side.CLIENT).feed(framed(FrameKind.WELCOME, length=lie))


def test_a_broker_may_allow_less() -> None:
    reader = FrameReader(Side.BROKER, FRAME_BYTES_MIN)
    reader.feed(PREFACE + HELLO)
    reader.welcome()
    most = FRAME_BYTES_MIN - FRAME_HEADER_BYTES
    assert len(reader.feed(framed(FrameKind.PUBLISH, bytes(most)))) == 1
    with pytest.raises(ProtocolError, match=f"the maximum is {most}"):
        reader.feed(framed(FrameKind.PUBLISH, length=most + 1))


@pytest.mark.parametrize("frame_bytes_max", [0, FRAME_BYTES_MIN - 1, FRAME_BYTES_MAX + 1])
def test_a_reader_with_an_impossible_limit_is_refused(frame_bytes_max: int) -> None:
    with pytest.raises(ValueError):
        FrameReader(Side.BROKER, frame_bytes_max)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_an_announced_body_takes_only_the_memory_of_what_was_received() -> None:
    header = framed(FrameKind.PUBLISH, length=FRAME_BYTES_MAX - FRAME_HEADER_BYTES)
    reader = open_reader(Side.BROKER)
    with allocating_at_most(MIB):
        assert reader.feed(header) == []
        for _ in range(10_000):
            assert reader.feed(b"x") == []


@pytest.mark.parametrize("piece", [64 * KIB, 256 * KIB, 8 * MIB])
@pytest.mark.parametrize("wrap", [bytes, memoryview])
def test_a_large_body_is_copied_once(piece: int, wrap: Callable[[bytes], bytes]) -> None:
    data = framed(FrameKind.PUBLISH, bytes(4 * MIB), channel=1)
    pieces = [wrap(data[at : at + piece]) for at in range(0, len(data), piece)]
    reader = open_reader(Side.BROKER)
    with allocating_at_most(5 * MIB):
        frames = [frame for each in pieces for frame in reader.feed(each)]
    assert [len(frame.body) for frame in frames] == [4 * MIB]


def test_a_frame_is_encoded_without_a_copy_of_its_parts() -> None:
    parts = bytes(MIB), memoryview(bytes(MIB))
    encoded = encode_frame(FrameKind.PUBLISH, 1, 2, *parts)
    assert all(given is kept for given, kept in zip(parts, encoded[1:], strict=True))
    assert open_reader(Side.BROKER).feed(joined(encoded)) == [Frame(FrameKind.PUBLISH, 1, 2, bytes(2 * MIB))]


@pytest.mark.parametrize(("kind", "blame"), [(FrameKind.PUBLISH, "caller"), (FrameKind.DELIVER, "server")])
def test_a_frame_that_is_too_long_is_not_encoded(kind: FrameKind, blame: str) -> None:
    with pytest.raises(ProtocolError, match="does not fit") as caught:
        encode_frame(kind, 1, 0, bytes(FRAME_BYTES_MAX - FRAME_HEADER_BYTES), b"x")
    assert caught.value.blame == blame


def test_a_skipped_frame_is_not_kept_and_the_next_one_is_read() -> None:
    reader = open_reader(Side.BROKER)
    publish, ping = framed(FrameKind.PUBLISH, body=b"x" * 1000, channel=3, request=4), framed(FrameKind.PING)
    assert (reader.held, reader.unfinished) == (0, None)
    assert [frame.kind for frame in reader.feed(ping + publish[:500])] == [FrameKind.PING]
    assert reader.unfinished == (FrameKind.PUBLISH, 3, 4)
    assert reader.held == 500 - FRAME_HEADER_BYTES
    reader.skip()
    for at in range(500, len(publish), 100):
        assert reader.held == 0
        assert reader.feed(publish[at : at + 100]) == []
    assert (reader.held, reader.unfinished, reader.midway) == (0, None, False)
    assert [frame.kind for frame in reader.feed(publish[:500])] == []
    assert [len(frame.body) for frame in reader.feed(publish[500:] + ping)] == [1000, 0]
