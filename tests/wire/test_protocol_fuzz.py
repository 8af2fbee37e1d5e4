"""S3: any bytes give `ProtocolError`, or commands that encode to the same bytes."""

from __future__ import annotations

from itertools import pairwise
from struct import pack
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import ProtocolError
from pydanube.base.limits import BATCH_BYTES_MAX, GRANTED_BYTES_MAX, OFFSET_MAX, PERMITS_MAX, POLICY_MICROSECONDS_MAX
from pydanube.wire.commands import (
    Ack,
    AckTimeout,
    Command,
    Grant,
    Limit,
    Nack,
    Published,
    Reply,
    RequestFrame,
    Reset,
    decode,
)
from pydanube.wire.frames import PREFACE, Frame, FrameKind, FrameReader, Side
from wire.protocol import COMMANDS, GREETING, TRAFFIC, frame_of, framed, joined, open_reader

INTERESTING = (0, 1, 4, 15, 16, 20, 255, 256, 4096, 4097, 1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
NAMES = sorted(COMMANDS)

numbers = st.integers(0, (1 << 64) - 1)
channels = st.integers(1, (1 << 32) - 1)
generations = st.integers(0, (1 << 63) - 1)
offsets = st.integers(0, OFFSET_MAX)
ranges = st.lists(st.tuples(offsets, offsets).map(lambda ends: (min(ends), max(ends))), min_size=1, max_size=20)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
words = st.sampled_from(INTERESTING).map(lambda word: pack("<I", word))
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=6,
)
objects = st.dictionaries(texts.filter(lambda name: name != "verb"), values, max_size=3)

commands: st.SearchStrategy[Command] = st.one_of(
    st.builds(RequestFrame, numbers, st.text("abc.", min_size=1, max_size=64), objects),
    st.builds(Grant, channels, st.integers(1, PERMITS_MAX), st.integers(0, GRANTED_BYTES_MAX)),
    st.builds(Ack, channels, numbers, generations, ranges, st.just(False)),
    st.builds(Ack, channels, numbers, generations, ranges.map(lambda some: some[:1]), st.booleans()),
    st.builds(Nack, channels, numbers, generations, ranges, st.integers(0, POLICY_MICROSECONDS_MAX), texts),
)
answers: st.SearchStrategy[Command] = st.one_of(
    st.builds(Reply, st.integers(1, (1 << 64) - 1), objects),
    st.builds(
        Published,
        channels,
        st.integers(1, (1 << 64) - 1),
        st.integers(-1, OFFSET_MAX),
        st.integers(0, 3),
        st.integers(0, 255),
    ),
    st.builds(Reset, channels, generations),
    st.builds(Limit, channels, st.none() | st.integers(0, BATCH_BYTES_MAX)),
    st.builds(AckTimeout, channels, st.none() | st.integers(1, POLICY_MICROSECONDS_MAX)),
)


def explore(frame: Frame) -> None:
    """Decodes the frame. Fails on an unexpected error, or if the command does not survive encoding and decoding."""
    try:
        command = decode(frame)
    except ProtocolError:
        return
    again = frame_of(command)
    assert again[:3] == frame[:3]
    assert decode(again) == command
    if frame.kind in BINARY:
        assert again.body == frame.body  # one meaning, one form


BINARY = {
    FrameKind.PUBLISH,
    FrameKind.PUBLISHED,
    FrameKind.DELIVER,
    FrameKind.GRANT,
    FrameKind.ACK,
    FrameKind.ACKED,
    FrameKind.NACK,
    FrameKind.RESET,
}
BINARY |= {FrameKind.LIMIT, FrameKind.ACK_TIMEOUT, FrameKind.PING, FrameKind.PONG, FrameKind.BATCHES}


def read_frames(reader: FrameReader, data: bytes) -> None:
    try:
        frames = reader.feed(data)
    except ProtocolError:
        frames = reader.before_fault
    for frame in frames:
        explore(frame)


@given(st.sampled_from(Side), st.binary(max_size=200))
def test_noise_instead_of_a_greeting(side: Side, data: bytes) -> None:
    read_frames(FrameReader(side), data)
    read_frames(FrameReader(side), PREFACE + data)


@given(st.sampled_from(Side), st.binary(max_size=200))
def test_noise_instead_of_frames(side: Side, data: bytes) -> None:
    read_frames(open_reader(side), data)


@settings(max_examples=500)
@given(st.sampled_from(FrameKind), st.integers(0, 2), st.integers(0, 2), st.binary(max_size=200))
def test_noise_instead_of_a_body(kind: FrameKind, channel: int, request: int, body: bytes) -> None:
    explore(Frame(kind, channel, request, body))


@settings(max_examples=500)
@given(
    st.sampled_from(NAMES), st.lists(st.tuples(st.floats(0, 1), words | st.binary(min_size=1, max_size=8)), max_size=3)
)
def test_frames_changed_anywhere(name: str, changes: list[tuple[float, bytes]]) -> None:
    data = joined(COMMANDS[name].encode())
    for where, new in changes:
        at = int(where * (len(data) - 1))
        data = (data[:at] + new + data[at + len(new) :])[: len(data)]
    for side in Side:
        read_frames(open_reader(side), data)
    explore(Frame(data[4], int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:20], "little"), data[20:]))


@settings(max_examples=300)
@given(st.sampled_from(sorted(GREETING)), st.floats(0, 1), st.text('{}[]",:0e-\\utrue ', max_size=6))
def test_greetings_with_changed_json(name: str, where: float, new: str) -> None:
    frame = frame_of(GREETING[name])
    at = int(where * len(frame.body))
    explore(frame._replace(body=frame.body[:at] + new.encode() + frame.body[at:]))
    explore(frame._replace(body=frame.body[:at] + new.encode() + frame.body[at + len(new) :]))


@given(st.dictionaries(st.sampled_from(["version", "client", "features", "verb", "code", "blame"]), values))
def test_wrong_types_in_json(fields: dict[str, Any]) -> None:
    body = joined(Reply(1, fields).encode())[20:]
    for kind in (FrameKind.HELLO, FrameKind.WELCOME, FrameKind.REQUEST, FrameKind.ERROR, FrameKind.CLOSED):
        explore(Frame(kind, 0, 0, body))


def test_every_word_of_every_binary_frame_replaced_by_every_interesting_one() -> None:
    for command in COMMANDS.values():
        frame = frame_of(command)
        if frame.kind not in BINARY:
            continue
        for at in range(0, len(frame.body) - 3, 4):
            for word in INTERESTING:
                explore(frame._replace(body=frame.body[:at] + pack("<I", word) + frame.body[at + 4 :]))


@given(st.lists(commands, max_size=5), st.lists(st.integers(0, 3000), max_size=8))
def test_all_commands_of_clients_arrive_however_they_are_split(said: list[Command], cuts: list[int]) -> None:
    check_arrival(Side.BROKER, said, cuts)


@given(st.lists(answers, max_size=8), st.lists(st.integers(0, 3000), max_size=8))
def test_all_commands_of_brokers_arrive_however_they_are_split(said: list[Command], cuts: list[int]) -> None:
    check_arrival(Side.CLIENT, said, cuts)


def check_arrival(side: Side, said: list[Command], cuts: list[int]) -> None:
    data = b"".join(joined(command.encode()) for command in said)
    reader, found = open_reader(side), []
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        found += [decode(frame) for frame in reader.feed(data[start:end])]
    assert found == said
    assert not reader.midway


@given(st.sampled_from(Side), st.integers(0, 255), st.integers(0, (1 << 32) - 1), st.binary(max_size=40))
def test_any_kind_with_any_length(side: Side, kind: int, length: int, body: bytes) -> None:
    reader = open_reader(side)
    read_frames(reader, framed(kind, body, channel=1, length=length))
    known = {frame_of(command).kind for command in TRAFFIC[side].commands.values()} | {FrameKind.PONG}
    if kind not in known:
        assert reader.before_fault == []


@given(st.integers(0, (1 << 32) - 1))
def test_any_number_of_ranges(count: int) -> None:
    for head in (pack("<qII", 0, 0, count), pack("<qqI", 0, 0, count)):
        explore(Frame(FrameKind.ACK if len(head) == 16 else FrameKind.NACK, 1, 0, head + pack("<qq", 1, 2) * 3))
