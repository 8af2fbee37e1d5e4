"""The next members of a cluster: one change at a time, and a voter only after it has the log."""

from __future__ import annotations

from pydanube.base.addresses import HostPort
from pydanube.base.errors import MembershipRefused
from pydanube.metadata.operations import AddMember, PromoteMember, RemoveMember
from pydanube.raft.entries import Member, Members
from pydanube.raft.node import Raft

BEHIND_MAX = 1024  # entries that a learner may lack when it becomes a voter


def next_members(raft: Raft, operation: AddMember | PromoteMember | RemoveMember) -> Members:
    """What the operation makes of the present ones; the same if it has been made. Raises `MembershipRefused`."""
    now, identity = raft.members, operation.identity
    found = now.get(identity)
    others = [each for each in now if each.identity != identity]
    match operation:
        case AddMember(_, address):
            _check(identity, address)
            return Members.of([*others, Member(identity, address, found is not None and found.voter)])
        case PromoteMember():
            if found is None:
                raise MembershipRefused(f"{identity} is not a member: add it first")
            leading = raft.leading
            match = 0 if leading is None else leading.match(identity)
            if not found.voter and (not match or match + BEHIND_MAX < raft.log.last.index):
                raise MembershipRefused(f"{identity} has entries up to {match} of {raft.log.last.index}")
            return Members.of([*others, Member(identity, found.address)])
        case RemoveMember():
            return Members.of(others)


def _check(identity: str, address: str) -> None:
    try:
        HostPort.parse(address)
        known = len(bytes.fromhex(identity)) == 16 and identity == identity.lower()
    except ValueError as error:
        raise MembershipRefused(f"node {identity!r} at {address!r}: {error}") from None
    if not known:
        raise MembershipRefused(f"{identity!r} is not the identity of a node")
