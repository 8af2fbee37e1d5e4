"""What nodes say to each other. All are plain values; `wire/peer` has their bytes."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.raft.entries import Entry, Point


@dataclass(frozen=True, slots=True)
class AskVote:
    """Asks for a vote. With `trial`, it only asks whether there would be one, and no term changes."""

    term: int
    last: Point
    trial: bool = False
    transfer: bool = False  # the leader itself asked for this election


@dataclass(frozen=True, slots=True)
class Vote:
    """The answer. For a trial, `term` is the one that was asked about if it is granted."""

    term: int
    granted: bool
    trial: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Entries that follow `before`. The receiver accepts them only if it has exactly that entry."""

    term: int
    before: Point
    entries: tuple[Entry, ...]
    committed: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Everything up to `index` is on the sender's disk and equal to the leader's log; or it lacks `before`.

    Then `index` and `entry_term` name an entry that it may have in common with the leader.
    """

    term: int
    accepted: bool
    index: int
    entry_term: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The leader lives. `round` is repeated in the answer, which proves that it was the leader in that round."""

    term: int
    round: int
    committed: int  # of what the receiver is known to have


@dataclass(frozen=True, slots=True)
class Alive:
    term: int
    round: int


@dataclass(frozen=True, slots=True)
class TakeLead:
    """The receiver has everything: it must start an election at once."""

    term: int


Message = AskVote | Vote | Append | Appended | Heartbeat | Alive | TakeLead
