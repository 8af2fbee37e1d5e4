"""What happened to the metadata in a run: the log that nodes replayed, and what clients were told."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.metadata.records import Record, SessionEnded
from pydanube.metadata.state import MetadataState
from pydanube.raft.entries import Point
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.loop import Process
from pydanube.sim.metadata.linear import Read, Write, complaints
from pydanube.sim.world.history import History

COMPLAINTS_MAX = 5  # of one run; one mistake makes many


@dataclass(slots=True)
class Belief:
    """An owner's belief in its session: until then on its clock, as long as its process lives."""

    process: Process
    clock: SimClock
    until: float

    @property
    def holds(self) -> bool:
        return self.process.alive and self.clock.monotonic() < self.until


@dataclass
class MetadataHistory:
    """All nodes share it. The first one that replays an entry says what it is; the others must replay the same."""

    history: History
    chains: dict[int, bytes] = field(default_factory=dict)  # by index
    truth: MetadataState = field(default_factory=MetadataState)
    log: list[tuple[int, list[tuple[str, bytes | None]]]] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    reads: list[Read] = field(default_factory=list)
    beliefs: dict[int, Belief] = field(default_factory=dict)  # by session
    _ended: dict[int, None] = field(default_factory=dict)
    _events: int = 0

    def event(self) -> int:
        self._events += 1
        return self._events

    def replayed(self, node: str, point: Point, record: Record | None) -> None:
        self.same(node, point)
        if point.index <= self.truth.revision:
            return
        changed = self.truth.replay(point.index, record)
        if changed:
            entries = [(change.key, None if change.entry is None else change.entry.value) for change in changed]
            self.log.append((point.index, entries))
        if isinstance(record, SessionEnded):
            self._ended[record.session] = None
            self._check_belief(record.session)

    def same(self, node: str, point: Point) -> None:
        """I6: nodes with the same index have the same log up to there."""
        known = self.chains.setdefault(point.index, point.chain)
        self.history.check(known == point.chain, "I6", f"{node} has another log up to {point.index}")

    def believe(self, session: int, belief: Belief) -> None:
        self.beliefs[session] = belief
        self._check_belief(session)

    def _check_belief(self, session: int) -> None:
        belief = self.beliefs.get(session)
        if belief is not None and session in self._ended:
            self.history.check(not belief.holds, "I5", f"session {session} has ended, and its owner believes in it")

    def check(self) -> None:
        found = complaints(self.log, self.writes, self.reads)
        for _, sentence in zip(range(COMPLAINTS_MAX), found, strict=False):
            self.history.check(False, "I6", sentence)
