"""Messages between nodes: bytes and back, their golden form, and what any other bytes give (S3)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.errors import PeerMessageTooLarge, PeerProtocolError, PeerRefused
from pydanube.metadata.operations import AddMember, KeepAlive, Operation, Transact
from pydanube.raft.entries import Entry, Member, Point
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, TakeLead, Vote
from pydanube.wire.peer.frames import PREFACE, Frame, FrameKind
from pydanube.wire.peer.messages import CONSENSUS, Codec, MessageTable, UnknownRequest
from pydanube.wire.peer.metadata import (
    METADATA,
    MemberAddresses,
    MetadataAnswer,
    MetadataRequest,
    SnapshotPart,
    SnapshotTaken,
)
from wire.peer.nodes import (
    ANNA,
    MESSAGES,
    OWN,
    QUESTION,
    TABLE,
    WIDER,
    End,
    Question,
    acceptor,
    dialler,
    encoded,
    exchange,
    framed,
    frames_of,
    pieces,
)

GOLDEN = Path(__file__).parents[1] / "golden/peer-protocol.txt"

numbers = st.integers(0, (1 << 64) - 1)
chains = st.binary(min_size=16, max_size=16)
requests = st.integers(1, (1 << 64) - 1)
checks = st.tuples(st.text(), numbers)
changes = st.tuples(st.text(), st.none() | st.binary())
points = st.builds(Point, numbers, numbers, chains)
entries = st.builds(Entry, numbers, numbers, st.integers(0, 255), st.binary(max_size=100), chains)
messages = st.one_of(
    st.builds(AskVote, numbers, points, st.booleans(), st.booleans()),
    st.builds(Vote, numbers, st.booleans(), st.booleans()),
    st.builds(Append, numbers, points, st.lists(entries, max_size=4).map(tuple), numbers),
    st.builds(Appended, numbers, st.booleans(), numbers, numbers),
    st.builds(Heartbeat, numbers, numbers, numbers),
    st.builds(Alive, numbers, numbers),
    st.builds(TakeLead, numbers),
    st.builds(
        MetadataRequest,
        requests,
        numbers,
        st.one_of(
            st.builds(Transact, st.lists(checks).map(tuple), st.lists(changes).map(tuple), numbers, st.booleans()),
            st.builds(KeepAlive, numbers),
            st.builds(AddMember, st.text(), st.text()),
        ),
    ),
    st.builds(MetadataAnswer, requests, numbers, st.text(max_size=20), st.text(max_size=20)),
    st.builds(
        SnapshotPart,
        requests,
        numbers,
        points,
        st.integers(200, 1 << 20),
        st.integers(0, 100),
        st.binary(min_size=1, max_size=99),
    ),
    st.builds(SnapshotTaken, requests, numbers),
    st.builds(MemberAddresses, st.lists(st.builds(Member, st.text(), st.text(), st.booleans())).map(tuple)),
)


def body_of(message: object) -> tuple[int, bytes]:
    found = encoded(message)
    return found.kind, b"".join(found.parts)


def opened() -> tuple[End, End]:
    return exchange(dialler(), acceptor())


def golden_frames() -> dict[str, bytes]:
    anna, bert = opened()
    return {
        "greeting of the dialler": anna.said,
        "greeting of the acceptor": bert.said,
        "refused because of the secret": framed(FrameKind.REFUSED, b"\4"),
        "ping": framed(FrameKind.PING),
        "pong": framed(FrameKind.PONG),
        "unknown request": framed(FrameKind.UNKNOWN, b"\xc8", request=5),
        **{name: frames_of(message) for name, message in MESSAGES.items()},
    }


# -- bytes and back ----------------------------------------------------------------------------------------------------


def test_every_message_has_an_example() -> None:
    assert {codec.type for codec in CONSENSUS + METADATA} == {type(message) for message in MESSAGES.values()}
    assert {codec.type for codec in CONSENSUS} == {AskVote, Vote, Append, Appended, Heartbeat, Alive, TakeLead}
    asked = {type(message.operation) for message in MESSAGES.values() if isinstance(message, MetadataRequest)}
    assert asked == set(get_args(Operation))


@given(messages)
def test_a_message_comes_back_as_it_was(message: Any) -> None:
    kind, request, parts = encoded(message)
    assert TABLE.decode(Frame(kind, request, OWN, b"".join(parts))) == message


@given(st.lists(messages, max_size=5), st.lists(st.integers(0, 2000), max_size=6))
def test_messages_arrive_however_they_are_split(said: list[Any], cuts: list[int]) -> None:
    _, bert = opened()
    for piece in pieces(frames_of(*said), cuts):
        bert.receive(piece)
    assert bert.error is None
    assert bert.messages == said


def test_the_data_of_entries_is_not_copied_before_it_is_framed() -> None:
    data = bytes(1000)
    append = Append(1, Point(), (Entry(1, 1, 1, data, bytes(16)),), 0)
    assert any(part is data for part in encoded(append).parts)


def test_messages_have_the_bytes_of_the_golden_file() -> None:
    lines = (line.split(": ") for line in GOLDEN.read_text("utf-8").splitlines())
    assert {name: bytes.fromhex(text) for name, text in lines} == golden_frames()


def test_the_golden_file_is_read() -> None:
    found = dict(line.split(": ") for line in GOLDEN.read_text("utf-8").splitlines())
    _, bert = opened()
    for name in MESSAGES:
        bert.receive(bytes.fromhex(found[name]))
    assert bert.messages == list(MESSAGES.values())
    again = acceptor()
    again.receive(bytes.fromhex(found["greeting of the dialler"]))
    assert again.core.peer == ANNA


def test_a_message_that_is_too_large_is_not_sent() -> None:
    with pytest.raises(PeerMessageTooLarge, match="the maximum is 1000"):
        WIDER.encode(Question(1, bytes(1001)))


def test_two_messages_cannot_have_one_kind() -> None:
    with pytest.raises(AssertionError, match="two messages have the kind 200"):
        MessageTable([QUESTION, Codec(200, int, lambda _: [], lambda body, request: 0)])


# -- requests that a node does not know --------------------------------------------------------------------------------


def test_a_request_of_an_unknown_kind_is_answered_as_such_and_the_link_lives() -> None:
    anna, bert = exchange(dialler(table=WIDER), acceptor())
    bert.receive(frames_of(Question(5, b"?"), MESSAGES["heartbeat"], table=WIDER))
    exchange(anna, bert)
    assert anna.messages == [UnknownRequest(5, 200)]
    assert bert.messages == [MESSAGES["heartbeat"]]
    assert (anna.error, bert.error) == (None, None)


def test_a_notice_of_an_unknown_kind_is_dropped_and_counted() -> None:
    _, bert = opened()
    bert.receive(frames_of(Question(0, b"!"), table=WIDER))
    assert (bert.core.unknown, bert.messages, bert.error) == (1, [], None)
    assert bert.take() == b""


def test_a_request_keeps_its_number() -> None:
    _, bert = exchange(dialler(table=WIDER), acceptor(table=WIDER))
    bert.receive(frames_of(Question(5, b"?"), table=WIDER))
    assert bert.messages == [Question(5, b"?")]


def test_a_ping_is_answered() -> None:
    anna, bert = opened()
    anna.core.ping()
    exchange(anna, bert)
    assert anna.core.pongs == 1


# -- any bytes ---------------------------------------------------------------------------------------------------------


def explore(data: bytes, end: End) -> None:
    """Whatever arrives: messages that encode to the same bytes, or a refusal that says whose fault it is."""
    end.receive(data)
    assert end.error is None or end.error.blame == "environment"
    for message in end.messages:
        if not isinstance(message, UnknownRequest):
            kind, body = body_of(message)
            assert TABLE.decode(Frame(kind, 0, OWN, body)) == message


@given(st.binary(max_size=300))
def test_noise_instead_of_a_greeting(data: bytes) -> None:
    explore(data, acceptor())
    explore(PREFACE + data, acceptor())
    explore(data, dialler())


@given(st.binary(max_size=300))
def test_noise_instead_of_frames(data: bytes) -> None:
    explore(data, opened()[1])


@settings(max_examples=500)
@given(st.integers(0, 255), st.sampled_from([0, 0, 0, 1, 2, 3, 255]), st.integers(0, 2), st.binary(max_size=200))
def test_noise_instead_of_a_body(kind: int, flags: int, request: int, body: bytes) -> None:
    explore(framed(kind, body, flags=flags, request=request), opened()[1])


@settings(max_examples=500)
@given(
    st.sampled_from(sorted(MESSAGES)),
    st.lists(st.tuples(st.floats(0, 1), st.binary(min_size=1, max_size=8)), min_size=1, max_size=3),
    st.integers(-5, 5),
)
def test_bodies_changed_anywhere_and_with_a_right_checksum(
    name: str, changes: list[tuple[float, bytes]], more: int
) -> None:
    kind, body = body_of(MESSAGES[name])
    for where, new in changes:
        at = int(where * (len(body) - 1))
        body = (body[:at] + new + body[at + len(new) :])[: len(body)]
    explore(framed(kind, body[:more] if more < 0 else body + bytes(more)), opened()[1])


@given(st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_any_number_of_entries_with_any_length(count: int, length: int) -> None:
    kind, body = body_of(MESSAGES["append"])
    head = bytearray(body)
    head[48:52] = count.to_bytes(4, "little")
    head[84:88] = length.to_bytes(4, "little")
    explore(framed(kind, bytes(head)), opened()[1])


@pytest.mark.parametrize("name", MESSAGES)
def test_a_body_that_is_cut_or_longer_is_refused(name: str) -> None:
    kind, body = body_of(MESSAGES[name])
    for wrong in (*(body[:end] for end in range(len(body))), body + b"\0"):
        with pytest.raises(PeerProtocolError):
            TABLE.decode(Frame(kind, 0, OWN, wrong))


def test_a_message_that_answers_nothing_must_not_have_a_request_number() -> None:
    kind, body = body_of(MESSAGES["alive"])
    with pytest.raises(PeerProtocolError, match="request number"):
        TABLE.decode(Frame(kind, 1, OWN, body))


@pytest.mark.parametrize("data", [framed(FrameKind.UNKNOWN, b"", request=1), framed(FrameKind.UNKNOWN, b"x")])
def test_an_answer_about_an_unknown_request_names_it(data: bytes) -> None:
    _, bert = opened()
    bert.receive(data)
    assert isinstance(bert.error, PeerRefused)
