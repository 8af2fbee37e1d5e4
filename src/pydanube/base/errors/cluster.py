"""Errors of nodes that form a cluster."""

from __future__ import annotations

from typing import ClassVar

from pydanube.base.errors.root import DanubeError


class NotLeader(DanubeError):
    """Only the leader of the metadata can do this, and this node is not it."""

    blame = "environment"
    retriable = True
    help = "Try again: the leader is asked, or elected within a few seconds."


class MetadataUnavailable(DanubeError):
    """The metadata has no leader that answers: most of its nodes cannot be reached, or a new leader is being elected. A
    change that was asked for may have been made."""

    blame = "environment"
    retriable = True
    help = "Try again in a few seconds, and check that most nodes of the cluster run and reach each other."


class MembershipRefused(DanubeError):
    """This change of the cluster's members is not safe, or not possible now."""

    blame = "caller"
    help = "Wait until the last change is complete, and change one voter at a time."


class LogDiverged(DanubeError):
    """Two nodes have different metadata at the same place of the log. The node that notices it stops."""

    blame = "environment"
    help = (
        "Take the node out of the cluster, keep its data directory for examination, and add it again with an empty one."
    )


# -- links between nodes ---------------------------------------------------------------------------------------------


class PeerRefused(DanubeError):
    """Two nodes cannot work together, so one of them ended the connection, for a reason that this version does not
    know."""

    blame = "environment"
    help = "Read the log of the other node, which says why."
    reason: ClassVar[int] = 0  # its number on the wire

    @classmethod
    def of(cls, reason: int) -> PeerRefused:
        """The error that the other node gave as its reason."""
        found = next((each for each in cls.__subclasses__() if each.reason == reason), cls)
        return found(f"the other node refused this one ({found.code})")


class PeerProtocolError(PeerRefused):
    """The other node sent what the peer protocol forbids."""

    reason = 1
    help = "Check that the address belongs to a node and its peer port, and that all nodes have the same version."


class PeerFrameDamaged(PeerRefused):
    """A frame between two nodes does not match its checksum. It is discarded with its connection, and a new one is
    opened."""

    reason = 2
    retriable = True
    help = "Check the network between the nodes if it occurs more than once."


class PeerVersionUnsupported(PeerRefused):
    """The two nodes have no version of the peer protocol in common."""

    reason = 3
    help = "Upgrade the older node, one major version at a time."


class PeerSecretDiffers(PeerRefused):
    """The other node has not proved that it knows the cluster's secret."""

    reason = 4
    help = "Give both nodes the same secret file, and check that the address belongs to this cluster."


class PeerClusterDiffers(PeerRefused):
    """The other node belongs to another cluster, or to this one before it was restored or recovered."""

    reason = 5
    help = "Correct the addresses, or let the node join this cluster with an empty data directory."


class PeerIdentityDiffers(PeerRefused):
    """Another node than the expected one is at this address."""

    reason = 6
    help = "Check whether addresses were swapped, or a data directory was wiped or copied."


class PeerOutdated(PeerRefused):
    """A later start of the same node is already connected, so this one runs on a copy of its data directory."""

    reason = 7
    help = "Stop one of the two nodes, and let it join with an empty data directory."


class PeerMessageTooLarge(DanubeError):
    """A message to another node is larger than the peer protocol allows."""

    help = "Report it, with the message and the log around it."
