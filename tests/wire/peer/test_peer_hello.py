"""The greeting of two nodes: who gets in, who does not, and what each side may say about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.errors import (
    ConfigInvalid,
    PeerClusterDiffers,
    PeerIdentityDiffers,
    PeerProtocolError,
    PeerRefused,
    PeerSecretDiffers,
    PeerVersionUnsupported,
)
from pydanube.base.ids import NodeIdentity
from pydanube.wire.peer import hello
from pydanube.wire.peer.frames import PREFACE, FrameKind
from pydanube.wire.peer.hello import Node, check_secret
from wire.peer.nodes import ANNA, BERT, CLUSTER, MESSAGES, SECRET, End, acceptor, dialler, exchange, framed, frames_of

OTHER = NodeIdentity("cc" * 16)
JOINING = replace(ANNA, cluster="", incarnation=0)


def refusals(end: End) -> list[int]:
    """The reasons that it gave."""
    found, data = [], end.said.removeprefix(PREFACE)
    while data:
        length, kind = int.from_bytes(data[:4], "little"), data[4]
        if kind == FrameKind.REFUSED:
            found.append(data[36])
        data = data[36 + length :]
    return found


def test_two_nodes_know_each_other_afterwards() -> None:
    anna, bert = exchange(dialler(), acceptor())
    assert (anna.error, bert.error) == (None, None)
    assert (anna.core.peer, bert.core.peer) == (BERT, ANNA)


def test_a_node_without_a_cluster_is_let_in_and_so_are_two_of_them() -> None:
    for one, other in ((JOINING, BERT), (BERT, JOINING), (JOINING, replace(BERT, cluster="", incarnation=9))):
        left, right = exchange(dialler(one, expected=other.identity), acceptor(other))
        assert (left.core.peer, right.core.peer) == (other, one)


def test_a_node_may_ask_who_is_there_and_nothing_more() -> None:
    anna, bert = exchange(dialler(expected=""), acceptor())
    assert anna.core.peer == BERT
    assert bert.core.is_introduction
    bert.receive(frames_of(MESSAGES["heartbeat"]))
    assert (bert.messages, bert.core.unknown) == ([], 1)


REFUSED: list[tuple[str, dict[str, Any], dict[str, Any], type[PeerRefused]]] = [
    ("secret", {}, {"secret": b"another secret, for tests"}, PeerSecretDiffers),
    ("cluster", {"node": replace(ANNA, cluster="d0" * 16)}, {}, PeerClusterDiffers),
    ("incarnation", {"node": replace(ANNA, incarnation=1)}, {}, PeerClusterDiffers),
    ("identity", {"expected": OTHER}, {}, PeerIdentityDiffers),
    ("itself", {"node": replace(BERT, boot=1)}, {}, PeerIdentityDiffers),
    ("binding", {"binding": b"one TLS connection"}, {"binding": b"another one"}, PeerSecretDiffers),
    ("no binding", {"binding": b"one TLS connection"}, {}, PeerSecretDiffers),
]
each_refusal = pytest.mark.parametrize(("dials", "accepts", "kind"), [case[1:] for case in REFUSED])


@each_refusal
def test_both_sides_know_why_they_cannot_work_together(
    dials: dict[str, Any], accepts: dict[str, Any], kind: type[PeerRefused]
) -> None:
    anna, bert = exchange(dialler(**dials), acceptor(**accepts))
    assert (type(anna.error), type(bert.error)) == (kind, kind)
    assert anna.core.peer is None
    assert bert.core.peer is None
    assert kind.help.endswith(".")


@pytest.mark.parametrize("theirs", [(2, 3), (0, 0), (3, 1)])
@pytest.mark.parametrize("newer", ["dialler", "acceptor"])
def test_a_node_of_another_version_is_refused_on_both_sides(
    newer: str, theirs: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def speak(who: str) -> None:
        monkeypatch.setattr(hello, "VERSIONS", theirs if who == newer else (1, 1))

    speak("dialler")
    anna = dialler()
    speak("acceptor")
    bert = acceptor()
    bert.receive(anna.take())
    speak("dialler")
    anna.receive(bert.take())
    for end in (anna, bert):
        assert isinstance(end.error, PeerVersionUnsupported)
        assert f"{theirs[0]} to {theirs[1]}" in str(end.error)
    assert refusals(bert) == [PeerVersionUnsupported.reason]


def test_two_versions_agree_on_the_newest_that_both_speak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello, "VERSIONS", (1, 4))
    anna = dialler()
    monkeypatch.undo()
    bert = acceptor()
    bert.receive(anna.take())
    monkeypatch.setattr(hello, "VERSIONS", (1, 4))
    exchange(anna, bert)
    assert (anna.core.version, bert.core.version) == (1, 1)
    assert (anna.core.peer, bert.core.peer) == (BERT, ANNA)


def test_later_versions_may_say_more_in_a_hello() -> None:
    anna, bert = dialler(), acceptor()
    anna.core._handshake._own_body += b"what later versions add"
    anna.core._outgoing[1] = framed(FrameKind.HELLO, anna.core._handshake._own_body)
    exchange(anna, bert)
    assert (anna.core.peer, bert.core.peer) == (BERT, ANNA)


# -- those who do not know the secret ----------------------------------------------------------------------------------


@given(
    st.sampled_from([CLUSTER, "d0" * 16, ""]),
    st.integers(0, 3),
    st.sampled_from([ANNA.identity, BERT.identity, OTHER]),
    st.sampled_from(["", BERT.identity, OTHER]),
)
def test_without_the_secret_nothing_else_is_found_out(
    cluster: str, incarnation: int, identity: NodeIdentity, expected: str
) -> None:
    stranger = dialler(Node(identity, cluster, incarnation), expected=expected, secret=b"guessed by a stranger")
    _, bert = exchange(stranger, acceptor())
    assert isinstance(bert.error, PeerSecretDiffers)
    assert refusals(bert) == [PeerSecretDiffers.reason]


def test_the_secret_is_never_sent() -> None:
    anna, bert = exchange(dialler(), acceptor())
    assert SECRET not in anna.said + bert.said


def test_recorded_bytes_open_nothing() -> None:
    anna, _ = exchange(dialler(), acceptor())
    bert = acceptor(nonce=b"another nonce of the same length")
    bert.receive(anna.said)
    assert isinstance(bert.error, PeerSecretDiffers)
    assert bert.core.peer is None


def test_recorded_answers_open_nothing() -> None:
    _, bert = exchange(dialler(), acceptor())
    anna = dialler(nonce=b"another nonce of the same length")
    anna.receive(bert.said)
    assert isinstance(anna.error, PeerSecretDiffers)


def test_a_proof_that_is_sent_back_opens_nothing() -> None:
    """A stranger returns the dialler's own hello and proof, under its own name."""
    anna = dialler(expected=OTHER)
    body = anna.take().removeprefix(PREFACE)[36:]
    returned = body[:24] + bytes.fromhex(OTHER) + body[40:]
    anna.receive(framed(FrameKind.HELLO, returned, target=bytes.fromhex(ANNA.identity)))
    proof = anna.take()[36:]
    anna.receive(framed(FrameKind.PROOF, proof, target=bytes.fromhex(ANNA.identity)))
    assert isinstance(anna.error, PeerSecretDiffers)
    assert anna.core.peer is None


def test_a_node_whose_bytes_are_carried_back_to_it_recognises_itself() -> None:
    """A stranger connects both ends of one node, so all proofs are right."""
    one, other = exchange(dialler(ANNA, expected=""), acceptor(ANNA))
    assert isinstance(one.error, PeerIdentityDiffers)
    assert isinstance(other.error, PeerIdentityDiffers)


@given(st.integers(0, 87), st.integers(0, 7), st.booleans())
def test_nothing_in_a_hello_can_be_changed_on_the_way(at: int, bit: int, back: bool) -> None:
    """Someone between the two changes one bit, and corrects the checksum."""
    anna, bert = dialler(), acceptor()
    said = anna.take()
    bert.receive(said if back else PREFACE + changed(said.removeprefix(PREFACE), at, bit))
    answer = bert.take()
    anna.receive(changed(answer, at, bit) if back and len(answer) > 100 else answer)
    exchange(anna, bert)
    assert anna.core.peer is None
    assert bert.core.peer is None


def test_the_node_that_a_hello_is_for_cannot_be_changed_on_the_way() -> None:
    anna, bert = dialler(expected=OTHER), acceptor()
    said = anna.take().removeprefix(PREFACE)
    bert.receive(PREFACE + framed(FrameKind.HELLO, said[36:]))
    exchange(anna, bert)
    assert isinstance(bert.error, PeerSecretDiffers)


def changed(frame: bytes, at: int, bit: int) -> bytes:
    body = bytearray(frame[36 : 36 + int.from_bytes(frame[:4], "little")])
    body[at] ^= 1 << bit
    return framed(frame[4], bytes(body), target=frame[16:32])


# -- frames that must not come -----------------------------------------------------------------------------------------


def test_a_greeting_has_an_order() -> None:
    first = framed(FrameKind.HELLO, ANNA.encode(bytes(32)))
    proof = framed(FrameKind.PROOF, bytes(32))
    for data, complaint in (
        (proof, "before a hello"),
        (first + first, "instead of a proof"),
        (framed(FrameKind.PROOF), "before a hello"),
        (framed(FrameKind.HELLO, b"\1\0"), "only 2 bytes"),
        (framed(FrameKind.HELLO, b"\1\0\1\0"), "fewer than 88"),
        (framed(FrameKind.HELLO, replace(ANNA, identity=NodeIdentity("00" * 16)).encode(bytes(32))), "names no node"),
    ):
        bert = acceptor()
        bert.receive(PREFACE + data)
        assert isinstance(bert.error, PeerProtocolError)
        assert complaint in str(bert.error)


def test_a_second_hello_ends_an_open_link() -> None:
    _, bert = exchange(dialler(), acceptor())
    bert.receive(framed(FrameKind.HELLO, ANNA.encode(bytes(32))))
    assert isinstance(bert.error, PeerProtocolError)


def test_a_reason_of_a_later_version_is_still_a_refusal() -> None:
    anna = dialler()
    anna.receive(framed(FrameKind.REFUSED, b"\xfe", target=bytes(16)))
    assert type(anna.error) is PeerRefused


def test_reasons_are_numbered_once() -> None:
    reasons = [kind.reason for kind in (PeerRefused, *PeerRefused.__subclasses__())]
    assert sorted(reasons) == sorted(set(reasons))


@pytest.mark.parametrize("size", [0, 15, 4097])
def test_a_secret_that_can_be_guessed_is_refused(size: int) -> None:
    with pytest.raises(ConfigInvalid, match="16 to 4096 bytes"):
        check_secret(bytes(size))
