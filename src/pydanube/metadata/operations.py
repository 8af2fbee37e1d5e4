"""What a node asks of the metadata: the operations that only the leader decides, as values that can be sent to it."""

from __future__ import annotations

import msgspec

from pydanube.metadata.records import NO_SESSION, Check, Repeat, RequestedChange


class Transact(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """See `ports/metadata.py`."""

    checks: tuple[Check, ...]
    changes: tuple[RequestedChange, ...]
    session: int = NO_SESSION
    reserve: bool = False
    empty: str = ""
    repeat: Repeat | None = None


class Barrier(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Asks for the revision that has everything decided before the question."""


class OpenSession(msgspec.Struct, frozen=True, array_like=True, tag=3):
    seconds: float


class KeepAlive(msgspec.Struct, frozen=True, array_like=True, tag=4):
    session: int


class EndSession(msgspec.Struct, frozen=True, array_like=True, tag=5):
    session: int


class AddMember(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """Adds a learner, or changes the address of a member."""

    identity: str
    address: str


class PromoteMember(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """Makes a learner a voter."""

    identity: str


class RemoveMember(msgspec.Struct, frozen=True, array_like=True, tag=8):
    identity: str


class TransferLead(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """Hands the lead over to this voter."""

    identity: str


MemberOperation = AddMember | PromoteMember | RemoveMember | TransferLead
Operation = Transact | Barrier | OpenSession | KeepAlive | EndSession | MemberOperation


def may_repeat(operation: Operation) -> bool:
    """Whether asking again after a lost answer does no more than asking once. A session that no one learned of ends by
    itself."""
    return not isinstance(operation, Transact) or operation.repeat is not None
