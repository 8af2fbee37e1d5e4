"""The other nodes of a cluster, to which messages are sent without waiting. They may be slow, gone, or restarted.

Messages to one node arrive in their order, except that urgent ones overtake others. Any of them may be lost, and none
arrives twice. A sender that needs an answer numbers its requests and sets a time limit.
"""

from __future__ import annotations

from typing import Protocol

from pydanube.base.addresses import HostPort
from pydanube.base.ids import NodeIdentity


class PeerHost(Protocol):
    """What is told about peers. Its calls must be quick and must not raise."""

    def on_message(self, sender: NodeIdentity, message: object) -> None: ...

    def on_lost(self, peer: NodeIdentity, reset: bool) -> None:
        """The link to a peer has ended, and with it perhaps messages that were sent lately. With `reset`, the other
        side's system has ended it, as it does when the process dies; otherwise the peer was silent, or was refused."""


class Peers(Protocol):
    def connect(self, peer: NodeIdentity, address: HostPort) -> None:
        """From now on, keeps up a link to this node at this address, which replaces an earlier one."""

    def disconnect(self, peer: NodeIdentity) -> None:
        """Ends the link to this node, and forgets its address."""

    def send(self, peer: NodeIdentity, message: object, *, urgent: bool = False) -> None:
        """Returns at once. A message is dropped and counted if too many wait, or if no link can be made."""
