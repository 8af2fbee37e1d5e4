"""Requests to storage nodes and their answers: bytes and back, their golden form, and what any other bytes give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydanube.base.durability import Durability
from pydanube.base.errors import PeerMessageTooLarge, PeerProtocolError
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import OFFSET_MAX, PEER_ERROR_TEXT_BYTES_MAX
from pydanube.ports.storage import LedgerState, LedgerStatus
from pydanube.storage.node.messages import NODE_MESSAGES
from pydanube.storage.node.remote import OPERATIONS, NodeReply, NodeRequest
from pydanube.wire.batch import build
from pydanube.wire.peer.frames import Frame

GOLDEN = Path(__file__).parent / "golden/node-messages.txt"
SESSION, NODE = "0123456789abcdef", NodeIdentity("00112233445566778899aabbccddeeff")
BATCH = build([b"a", b"bc"], publish_time=7, keys=["k", None]).stamped(40, 3, 1_800_000_000_000_000)
STATUS = LedgerStatus(
    LedgerId(9), Epoch(3), LedgerState.FENCED, Durability.BUFFERED, 41, 39, 42, True, False, 1234, OFFSET_MAX, 17
)
ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "create": (9, 3, Durability.BUFFERED),
    "append": (9, 3, BATCH, -1),
    "read": (9, 40, 1 << 20),
    "find_next": (9, 41),
    "find_intact": (9, 41),
    "fence": (9, 4),
    "seal": (9, 4, -1),
    "delete": (9,),
    "list": (),
}
VALUES: dict[str, Any] = {
    "create": None,
    "append": None,
    "read": [BATCH, BATCH],
    "find_next": 40,
    "find_intact": 40,
    "fence": STATUS,
    "seal": None,
    "delete": None,
    "list": [STATUS, STATUS],
}
MESSAGES: dict[str, NodeRequest | NodeReply] = {
    **{f"request to {name}": NodeRequest(SESSION, 5, name, given) for name, given in ARGUMENTS.items()},
    **{f"answer to {name}": NodeReply(SESSION, 5, NODE, "", value, name) for name, value in VALUES.items()},
    "refusal": NodeReply(SESSION, 5, NODE, "ledger_fenced", "epoch 4 owns ledger 9", "append"),
}


def frame_of(message: object) -> Frame:
    found = NODE_MESSAGES.encode(message)
    return Frame(found.kind, found.request, b"", b"".join(found.parts))


def test_there_is_a_message_for_each_operation() -> None:
    assert set(ARGUMENTS) == set(VALUES) == OPERATIONS


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_comes_back_as_it_was(name: str) -> None:
    assert NODE_MESSAGES.decode(frame_of(MESSAGES[name])) == MESSAGES[name]


def test_messages_have_their_golden_form() -> None:
    golden = dict(line.split(": ") for line in GOLDEN.read_text("utf-8").splitlines())
    assert golden == {name: frame_of(message).body.hex() for name, message in MESSAGES.items()}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_that_is_cut_off_or_too_long_is_refused_or_another_message(name: str) -> None:
    """What is left of an error's text or of a list is a message too; nothing else is, and no other error is raised."""
    frame = frame_of(MESSAGES[name])
    for body in (*(frame.body[:end] for end in range(len(frame.body))), frame.body + b"\0"):
        try:
            found = NODE_MESSAGES.decode(frame._replace(body=body))
        except PeerProtocolError:
            continue
        assert frame_of(found).body == body
        assert name in ("refusal", "answer to read", "answer to list")


@given(st.sampled_from((64, 65)), st.binary(max_size=200))
@settings(max_examples=300)
def test_any_bytes_are_a_message_or_refused(kind: int, body: bytes) -> None:
    try:
        NODE_MESSAGES.decode(Frame(kind, 1, b"", body))
    except PeerProtocolError:
        return


@pytest.mark.parametrize("name", ["request to append", "answer to read", "answer to fence"])
def test_no_flipped_bit_raises_anything_else(name: str) -> None:
    frame = frame_of(MESSAGES[name])
    for at in range(len(frame.body)):
        body = frame.body[:at] + bytes([frame.body[at] ^ 0x80]) + frame.body[at + 1 :]
        try:
            NODE_MESSAGES.decode(frame._replace(body=body))
        except PeerProtocolError:
            continue


def test_the_text_of_an_error_is_bounded() -> None:
    long = NodeReply(SESSION, 5, NODE, "disk_failed", "ä" * PEER_ERROR_TEXT_BYTES_MAX, "read")
    found = NODE_MESSAGES.decode(frame_of(long))
    assert found.value == "ä" * (PEER_ERROR_TEXT_BYTES_MAX // 2)


def test_a_list_of_more_ledgers_than_fit_is_refused() -> None:
    many = NodeReply(SESSION, 5, NODE, "", [STATUS] * 250_000, "list")
    with pytest.raises(PeerMessageTooLarge):
        NODE_MESSAGES.encode(many)
