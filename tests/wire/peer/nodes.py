"""Nodes, messages and connections without sockets, for tests of the peer protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydanube.base.errors import PeerRefused
from pydanube.base.ids import NodeIdentity
from pydanube.metadata.operations import (
    AddMember,
    Barrier,
    EndSession,
    KeepAlive,
    OpenSession,
    PromoteMember,
    RemoveMember,
    Transact,
    TransferLead,
)
from pydanube.metadata.records import Repeat
from pydanube.raft.entries import EntryKind, Member, Point, next_entry
from pydanube.raft.messages import Alive, Append, Appended, AskVote, Heartbeat, TakeLead, Vote
from pydanube.wire.peer.connection import PeerConnection
from pydanube.wire.peer.frames import FrameDecoder, encode_frame
from pydanube.wire.peer.hello import Node, Role
from pydanube.wire.peer.messages import CONSENSUS, Codec, Encoded, MessageTable
from pydanube.wire.peer.metadata import (
    METADATA,
    MemberAddresses,
    MetadataAnswer,
    MetadataRequest,
    SnapshotPart,
    SnapshotTaken,
)
from pydanube.wire.peer.outbox import Outbox

SECRET = b"a secret for tests only"
CLUSTER = "c0" * 16
ANNA = Node(NodeIdentity("aa" * 16), CLUSTER, 2, 7, 1)
BERT = Node(NodeIdentity("bb" * 16), CLUSTER, 2, 9, 3)
OWN = bytes.fromhex(BERT.identity)
NONCES = {Role.DIALLER: bytes(range(32)), Role.ACCEPTOR: bytes(range(100, 132))}
POINT = Point(41, 3, bytes(range(16)))
FIRST = next_entry(POINT, 4, EntryKind.NOTHING, b"")
SECOND = next_entry(FIRST.point, 4, EntryKind.DATA, b"a record")

MESSAGES: dict[str, Any] = {
    "ask for a vote": AskVote(4, POINT),
    "trial of a transfer": AskVote(4, POINT, trial=True, transfer=True),
    "vote": Vote(4, True),
    "refused trial": Vote(5, False, trial=True),
    "probe": Append(4, POINT, (), 40),
    "append": Append(4, POINT, (FIRST, SECOND), 41),
    "appended": Appended(4, True, 43),
    "lacking": Appended(4, False, 39, 2),
    "heartbeat": Heartbeat(4, 1_000_000, 43),
    "alive": Alive(4, 1_000_000),
    "take the lead": TakeLead(4),
    "transaction": MetadataRequest(
        1, 4, Transact((("a", 0),), (("a", b"1"), ("b", None)), 7, True, "c/", Repeat(7, 2, 1))
    ),
    "barrier": MetadataRequest(2, 4, Barrier()),
    "open session": MetadataRequest(3, 4, OpenSession(1.5)),
    "keep alive": MetadataRequest(4, 4, KeepAlive(7)),
    "end session": MetadataRequest(5, 4, EndSession(7)),
    "add member": MetadataRequest(6, 4, AddMember(ANNA.identity, "anna:7650")),
    "promote member": MetadataRequest(7, 4, PromoteMember(ANNA.identity)),
    "remove member": MetadataRequest(8, 4, RemoveMember(ANNA.identity)),
    "transfer": MetadataRequest(9, 4, TransferLead(ANNA.identity)),
    "answer": MetadataAnswer(1, 43),
    "refusal": MetadataAnswer(1, code="metadata_conflict", text="'a' has version 1, not 0"),
    "part of a snapshot": SnapshotPart(1, 4, POINT, 10, 6, b"rows"),
    "taken": SnapshotTaken(1, 10),
    "addresses": MemberAddresses((Member(ANNA.identity, "anna:7650"), Member(BERT.identity, "bert:7650", False))),
}


@dataclass(frozen=True, slots=True)
class Question:
    """A request for tests."""

    number: int
    text: bytes


def _question(body: bytes, request: int) -> Question:
    return Question(request, body)


QUESTION = Codec(200, Question, lambda question: [question.text], _question, 1000, request="number")
TABLE = MessageTable([*CONSENSUS, *METADATA])
WIDER = MessageTable([*CONSENSUS, *METADATA, QUESTION])


def framed(kind: int, body: bytes = b"", *, request: int = 0, flags: int = 0, target: bytes = OWN) -> bytes:
    return encode_frame(kind, request, target, body, flags)


def open_decoder() -> FrameDecoder:
    decoder = FrameDecoder(OWN, preface=False)
    decoder.open(TABLE.bounds)
    return decoder


def encoded(message: object, table: MessageTable = TABLE) -> Encoded:
    return table.encode(message)


def frames_of(*messages: object, table: MessageTable = TABLE) -> bytes:
    """All bytes of these messages to Bert."""
    outbox = Outbox(BERT.identity)
    for message in messages:
        assert outbox.put(table.encode(message))
    return b"".join(outbox.take(1 << 40))


class End:
    """One end of a connection: what it received, and why it ended."""

    def __init__(
        self,
        role: Role,
        node: Node,
        *,
        secret: bytes = SECRET,
        expected: str = "",
        binding: bytes = b"",
        table: MessageTable = TABLE,
        nonce: bytes | None = None,
    ) -> None:
        number = NONCES[role] if nonce is None else nonce
        self.core = PeerConnection(role, node, secret, number, table, expected=expected, binding=binding)
        self.messages: list[Any] = []
        self.error: PeerRefused | None = None
        self.said = b""  # everything that it sent

    def receive(self, data: bytes) -> None:
        if self.error is not None:
            return
        try:
            self.messages.extend(self.core.receive(data))
        except PeerRefused as error:
            self.error = error

    def take(self) -> bytes:
        data = self.core.take_outgoing()
        self.said += data
        return data


def dialler(node: Node = ANNA, *, expected: str = BERT.identity, **options: Any) -> End:
    return End(Role.DIALLER, node, expected=expected, **options)


def acceptor(node: Node = BERT, **options: Any) -> End:
    return End(Role.ACCEPTOR, node, **options)


def exchange(one: End, other: End) -> tuple[End, End]:
    """Carries everything between the two until both are silent."""
    while (data := one.take()) + (back := other.take()):
        other.receive(data)
        one.receive(back)
    return one, other


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for at in range(len(edges) - 1):
        yield data[edges[at] : edges[at + 1]]
