"""What jobs asked for and were told, what readers saw of it, and whether each batch is there once and whole (I12)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydanube.sim.world.history import History
from pydanube.topic.sinks import Once, Request, SinkKey, Verdict

ZOMBIES_MAX = 4  # requests of runs that are over, kept for each writer
Row = tuple[int, bytes]  # offset, payload


@dataclass(slots=True)
class WriterMemory:
    """One job over all its runs, as its checkpoint and an observer know it."""

    name: str
    key: SinkKey
    once: Once
    places: tuple[str, ...]
    batch: int = 0  # the next one
    runs: int = 0
    attempts: dict[int, list[dict[str, list[bytes]]]] = field(default_factory=dict)  # content by place, by batch
    new: dict[int, None] = field(default_factory=dict)  # batches that were answered with NEW
    told: dict[int, None] = field(default_factory=dict)  # batches that were answered
    zombies: list[Request] = field(default_factory=list)
    seconds: list[Request] = field(default_factory=list)  # other writes of batches that a run was answered for

    @property
    def wiped(self) -> SinkKey:
        """The query that starts over, with a new checkpoint and the same input."""
        return replace(self.key, query=f"{self.key.query} again")

    def asks(self, request: Request) -> None:
        """The caller may be gone when the answer comes, and the request may come again."""
        self.zombies.append(request)
        del self.zombies[:-ZOMBIES_MAX]

    def payload(self, batch: int, row: int, tag: str, pad: int) -> bytes:
        return f"{self.name}/{batch}/{row}/{tag}/{'.' * pad}".encode()


class SinkHistory:
    """Records, and checks what can be checked at once; `final` does the rest."""

    def __init__(self, history: History) -> None:
        self.writers: dict[str, WriterMemory] = {}
        self._history = history
        self._ends: dict[str, dict[int, None]] = {}  # where a partition was seen to end
        self._highest: dict[str, int] = {}

    def ends_at(self, place: str, end: int) -> None:
        """Everything below could be seen, and nothing else."""
        before = self._highest.get(place, 0)
        self._history.check(end >= before, "I2", f"{place} ended at {before}, and later at {end}")
        self._highest[place] = max(end, before)
        self._ends.setdefault(place, {})[end] = None

    def saw(self, place: str, offset: int, payload: bytes, end: int) -> None:
        self._history.see(place, offset, payload)
        self._history.check(offset < end, "I12", f"{place}: offset {offset} was shown before it could be seen")

    def answered(self, writer: WriterMemory, batch: int, verdict: Verdict) -> None:
        if verdict is Verdict.NEW:
            fresh = batch not in writer.told and batch not in writer.new
            self._history.check(fresh, "I12", f"{writer.name}: batch {batch} was there, and is taken for a new one")
            writer.new[batch] = None
        writer.told[batch] = None

    def refused(self, writer: WriterMemory, what: str, verdict: Verdict) -> None:
        """It was not: its rows are lost, or there twice."""
        self._history.check(False, "I12", f"{writer.name}: {what} was told {verdict.value}")

    def final(self, found: dict[str, list[Row]]) -> None:
        """`found` is all that can be read in the end, by place."""
        for place, rows in found.items():
            payloads = [payload for _, payload in rows]
            if len(set(payloads)) != len(payloads):
                twice = next(payload for payload in payloads if payloads.count(payload) > 1)
                self._history.check(False, "I12", f"{place}: {twice[:32]!r} was written twice")
        for writer in self.writers.values():
            self._check_writer(writer, found)

    def _check_writer(self, writer: WriterMemory, found: dict[str, list[Row]]) -> None:
        batches: dict[int, dict[str, list[int]]] = {}  # positions of its rows, by batch and place
        for place, rows in found.items():
            for position, (_, payload) in enumerate(rows):
                name, *rest = payload.split(b"/")
                if name.decode() == writer.name:
                    batches.setdefault(int(rest[0]), {}).setdefault(place, []).append(position)
        for batch in writer.attempts:
            self._check_batch(writer, batch, batches.get(batch, {}), found)

    def _check_batch(
        self, writer: WriterMemory, batch: int, there: dict[str, list[int]], found: dict[str, list[Row]]
    ) -> None:
        check, label = self._history.check, f"{writer.name}: batch {batch}"
        content = {place: [found[place][position][1] for position in positions] for place, positions in there.items()}
        if content or batch in writer.told:
            check(content in writer.attempts[batch], "I12", f"{label} is not what one attempt staged")
        for place, positions in there.items():
            first, last = positions[0], positions[-1]
            between = {found[place][at][1].split(b"/")[0].decode() for at in range(first, last + 1)} - {writer.name}
            jobs = sorted(between & self.writers.keys())
            check(not jobs, "I12", f"{label}: rows of {jobs[:1]} stand between its rows in {place}")
            inside = range(found[place][first][0] + 1, found[place][last][0] + 1)
            parted = [end for end in self._ends.get(place, {}) if end in inside]
            check(not parted, "I12", f"{label}: {place} was seen to end at {parted[:3]}, within the batch")
