"""The port of links between nodes on the simulated network, through the bytes of the peer protocol.

Worse than real links: messages of one node overtake each other, and some arrive twice, or in a later life of the
receiver.
"""

from __future__ import annotations

from pydanube.base.addresses import HostPort
from pydanube.base.errors import PeerRefused
from pydanube.base.ids import NodeIdentity
from pydanube.ports.peers import PeerHost
from pydanube.sim.machine.network import SimEndpoint
from pydanube.storage.metadata.cluster import MESSAGES
from pydanube.wire.peer.frames import FrameDecoder, divide, encode_frame


class SimPeers:
    """Implements `Peers`. The host of an address is the name of a machine."""

    def __init__(self, endpoint: SimEndpoint, own: NodeIdentity, host: PeerHost) -> None:
        self._endpoint = endpoint
        self._own = own
        self._host = host
        self._names: dict[NodeIdentity, str] = {}
        endpoint.listen(self._receive)

    def connect(self, peer: NodeIdentity, address: HostPort) -> None:
        self._names[peer] = address.host

    def disconnect(self, peer: NodeIdentity) -> None:
        self._names.pop(peer, None)

    def send(self, peer: NodeIdentity, message: object, *, urgent: bool = False) -> None:
        name = self._names.get(peer)
        if name is not None:
            encoded, target = MESSAGES.encode(message), bytes.fromhex(peer)
            frames = [
                encode_frame(encoded.kind, encoded.request, target, body, flags)
                for flags, body in divide(encoded.parts)
            ]
            self._endpoint.send(name, (self._own, b"".join(frames)))

    def lost(self, peer: NodeIdentity) -> None:
        """The other process has died, and its system says so."""
        self._host.on_lost(peer, True)

    def _receive(self, _: str, message: object) -> None:
        assert isinstance(message, tuple)
        sender, frames = message
        decoder = FrameDecoder(bytes.fromhex(self._own), preface=False)
        decoder.open(MESSAGES.bounds)
        try:
            received = [MESSAGES.decode(frame) for frame in decoder.feed(frames)]
        except PeerRefused:
            return  # it was for the node whose disk was here before
        for each in received:
            self._host.on_message(sender, each)
