"""Times and sizes of consensus."""

from __future__ import annotations

from dataclasses import dataclass

from pydanube.base.limits import KIB, MIB


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times are in seconds. An election timeout is drawn between one and two times `election_seconds`."""

    election_seconds: float = 0.5
    heartbeat_seconds: float = 0.1
    abstain_seconds: float = 10.0  # after a failed or slow disk
    append_bytes: int = 256 * KIB  # of one message, unless a single entry is larger
    in_flight_max: int = 64  # unanswered messages with entries to one follower
    in_flight_bytes_max: int = 4 * MIB
    reads_waiting_max: int = 100_000  # for the next round of heartbeats
    write_bytes: int = 4 * MIB  # of one write; what is more goes with the next
    uncommitted_bytes_max: int = 32 * MIB  # proposals that are not committed yet
    kept_bytes: int = 16 * MIB  # of entries that a snapshot has too, for followers that lag behind
