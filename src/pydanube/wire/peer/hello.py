"""The greeting of two nodes: hello and hello, proof and proof. Afterwards each knows who the other one is.

A proof is an HMAC of both hellos under the cluster's secret, so the secret itself is never sent, and a recorded or
returned proof is worth nothing. Apart from the version, nothing is judged before the other side has proved itself.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from struct import Struct
from typing import Self

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
from pydanube.base.limits import PEER_SECRET_BYTES_MAX, PEER_SECRET_BYTES_MIN
from pydanube.wire.peer.frames import IDENTITY_BYTES, NO_TARGET, PREFACE, Frame, FrameKind, encode_frame

VERSIONS = (1, 1)  # the oldest and the newest that this code speaks
NONCE_BYTES = 32
NO_CLUSTER = ""  # of a node that has not joined one
_NO_CLUSTER = bytes(IDENTITY_BYTES)
_VERSIONS = Struct("<HH")  # the first bytes of a hello in every version
_HELLO = Struct("<HHI16s16sQQ32s")
_LABEL = b"danube peer proof 1"


class Role(Enum):
    """The ends of a connection. A proof names its maker's, so that it cannot be sent back as an answer."""

    DIALLER = b"D"
    ACCEPTOR = b"A"


@dataclass(frozen=True, slots=True)
class Node:
    """What a node says about itself."""

    identity: NodeIdentity
    cluster: str = NO_CLUSTER  # 32 hexadecimal digits
    incarnation: int = 0  # of the cluster; rises when it is restored or recovered
    boot: int = 0  # rises with every start of the node
    feature_level: int = 0

    def encode(self, nonce: bytes) -> bytes:
        """The body of its hello."""
        cluster = bytes.fromhex(self.cluster) or _NO_CLUSTER
        identity = bytes.fromhex(self.identity)
        return _HELLO.pack(*VERSIONS, self.feature_level, cluster, identity, self.incarnation, self.boot, nonce)

    @classmethod
    def decode(cls, body: bytes) -> Self:
        """Later versions may append fields, which are not read but are covered by the proofs."""
        if len(body) < _HELLO.size:
            raise PeerProtocolError(f"a hello has {len(body)} bytes, fewer than {_HELLO.size}")
        _, _, feature_level, cluster, identity, incarnation, boot, _ = _HELLO.unpack_from(body)
        if identity == NO_TARGET:
            raise PeerProtocolError("a hello names no node")
        named = NO_CLUSTER if cluster == _NO_CLUSTER else cluster.hex()
        return cls(NodeIdentity(identity.hex()), named, incarnation, boot, feature_level)


def check_secret(secret: bytes) -> None:
    if not PEER_SECRET_BYTES_MIN <= len(secret) <= PEER_SECRET_BYTES_MAX:
        raise ConfigInvalid(
            f"the cluster's secret must have {PEER_SECRET_BYTES_MIN} to {PEER_SECRET_BYTES_MAX} bytes, "
            f"got {len(secret)}"
        )


class Handshake:
    """One side of a greeting. `outgoing` is what it has to send, also after an error, which ends the connection.

    `expected` is the node that the dialler wants to reach; an empty one greets any node. `binding` identifies the TLS
    connection, so that a proof is worth nothing on another one.
    """

    def __init__(
        self, role: Role, own: Node, secret: bytes, nonce: bytes, *, expected: str = "", binding: bytes = b""
    ) -> None:
        self.peer: Node | None = None  # once it has proved itself
        self.version = 0  # that both speak
        self.target = bytes.fromhex(expected) or NO_TARGET  # that the dialler expects
        self.outgoing: list[bytes] = []
        self._role = role
        self._own = own
        self._secret = secret
        self._binding = binding
        self._own_body = own.encode(nonce)
        self._peer_body = b""
        self._claimed = NO_TARGET  # the identity in the other side's hello
        self._receive: Callable[[Frame], None] = self._on_hello
        if role is Role.DIALLER:
            self.outgoing += PREFACE, encode_frame(FrameKind.HELLO, 0, self.target, self._own_body)

    def receive(self, frame: Frame) -> None:
        """Raises `PeerRefused` if the two cannot work together."""
        self._receive(frame)

    def refusal(self, error: PeerRefused) -> bytes:
        """Tells the other side why the connection ends: a number, so that it cannot write into the log there."""
        return encode_frame(FrameKind.REFUSED, 0, self._claimed, bytes((error.reason,)))

    def _on_hello(self, frame: Frame) -> None:
        if frame.kind != FrameKind.HELLO:
            raise PeerProtocolError(f"a frame of kind {frame.kind} came before a hello")
        self._agree(frame.body)
        claimed = Node.decode(frame.body)
        self._peer_body, self._claimed = frame.body, bytes.fromhex(claimed.identity)
        if self._role is Role.ACCEPTOR:
            self.target = frame.target
            self.outgoing.append(encode_frame(FrameKind.HELLO, 0, self._claimed, self._own_body))
        elif frame.target != bytes.fromhex(self._own.identity):
            raise PeerProtocolError("the answer to a hello is for another node")
        else:
            self.outgoing.append(self._proof_frame())
        self._receive = self._on_proof

    def _agree(self, body: bytes) -> None:
        """Takes the newest version that both speak."""
        if len(body) < _VERSIONS.size:
            raise PeerProtocolError(f"a hello has only {len(body)} bytes")
        oldest, newest = _VERSIONS.unpack_from(body)
        self.version = min(newest, VERSIONS[1])
        if self.version < max(oldest, VERSIONS[0]):
            if self._role is Role.ACCEPTOR:  # so that the other side can say so too
                self.outgoing.append(encode_frame(FrameKind.HELLO, 0, NO_TARGET, self._own_body))
            raise PeerVersionUnsupported(
                f"the other node speaks versions {oldest} to {newest}, this one {VERSIONS[0]} to {VERSIONS[1]}"
            )

    def _on_proof(self, frame: Frame) -> None:
        if frame.kind != FrameKind.PROOF:
            raise PeerProtocolError(f"a frame of kind {frame.kind} came instead of a proof")
        other = Role.ACCEPTOR if self._role is Role.DIALLER else Role.DIALLER
        if not hmac.compare_digest(frame.body, self._proof(other)):
            raise PeerSecretDiffers("the other node has not proved that it knows the cluster's secret")
        if self._role is Role.ACCEPTOR:  # also if they do not belong together, so that both can log why
            self.outgoing.append(self._proof_frame())
        peer = Node.decode(self._peer_body)
        self._judge(peer)
        self.peer = peer
        self._receive = self._on_more

    def _on_more(self, frame: Frame) -> None:
        raise PeerProtocolError(f"a frame of kind {frame.kind} came after the greeting")

    def _proof_frame(self) -> bytes:
        return encode_frame(FrameKind.PROOF, 0, self._claimed, self._proof(self._role))

    def _proof(self, maker: Role) -> bytes:
        """Covers both hellos, so nothing in them can be changed on the way."""
        hellos = (self._own_body, self._peer_body)
        dialled, accepted = hellos if self._role is Role.DIALLER else reversed(hellos)
        parts = (_LABEL, maker.value, self._binding, self.target, dialled, accepted)
        text = b"".join(len(part).to_bytes(4, "little") + part for part in parts)
        return hmac.digest(self._secret, text, "sha256")

    def _judge(self, peer: Node) -> None:
        """Both sides come to the same result, so each can log it."""
        own = self._own
        if peer.identity == own.identity:
            raise PeerIdentityDiffers(f"node {own.identity} reached itself, or a copy of its data directory")
        reached = peer.identity if self._role is Role.DIALLER else own.identity
        if self.target not in (NO_TARGET, bytes.fromhex(reached)):
            raise PeerIdentityDiffers(f"node {self.target.hex()} was expected at this address; {reached} is here")
        if not (peer.cluster and own.cluster):
            return
        if peer.cluster != own.cluster:
            raise PeerClusterDiffers(
                f"node {peer.identity} belongs to cluster {peer.cluster}, this node to {own.cluster}"
            )
        if peer.incarnation != own.incarnation:
            raise PeerClusterDiffers(
                f"node {peer.identity} has incarnation {peer.incarnation} of the cluster, this node {own.incarnation}"
            )
