"""The follower's side of replication: it makes its log equal to the leader's, and says so once that is durable."""

from __future__ import annotations

from pydanube.base.errors import LogDiverged
from pydanube.raft.entries import Entry, Point, follows
from pydanube.raft.messages import Alive, Append, Appended, Heartbeat
from pydanube.raft.state import NodeState


class Following:
    def __init__(self, state: NodeState) -> None:
        self._state = state

    def heartbeat(self, leader: str, message: Heartbeat) -> None:
        self._state.log.commit(min(message.committed, self._state.log.last.index))
        self._state.send(leader, Alive(message.term, message.round))

    def append(self, leader: str, message: Append) -> None:
        state, log = self._state, self._state.log
        before, entries = message.before, list(message.entries)
        if before.index < log.committed:  # an old message, or one that begins in what a snapshot has
            known = log.committed - before.index
            if len(entries) < known:
                state.send_when_durable(leader, Appended(message.term, True, log.committed))
                return
            before, entries = entries[known - 1].point, entries[known:]
        if before.index > log.committed and not log.has(before):
            index, term = log.nearest(before.index, before.term)
            state.send(leader, Appended(message.term, False, index, term))
            return
        self.check_equal(before, log.point(before.index))
        last = entries[-1].index if entries else before.index
        new = self._unknown(entries)
        if new:
            self._check_chain(log.last, new)
            state.append(new)
        log.commit(min(message.committed, last))
        state.send_when_durable(leader, Appended(message.term, True, last))

    def _unknown(self, entries: list[Entry]) -> list[Entry]:
        """Those that are not in the log yet, after cutting off whatever differs from them."""
        for at, entry in enumerate(entries):
            found = self._state.log.point(entry.index)
            if found is None:
                return entries[at:]
            if found.term != entry.term:
                self._state.cut_after(entry.index - 1)
                return entries[at:]
            self.check_equal(entry.point, found)
        return []

    def check_equal(self, theirs: Point, ours: Point | None) -> None:
        if theirs != ours:
            raise LogDiverged(f"entry {theirs.index} of term {theirs.term} differs between nodes")

    def _check_chain(self, before: Point, entries: list[Entry]) -> None:
        for entry in entries:
            if not follows(before, entry):
                raise LogDiverged(f"entry {entry.index} of term {entry.term} is not what its leader wrote")
            before = entry.point
