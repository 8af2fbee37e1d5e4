"""The requests of jobs and their answers, what readers saw, and whether each batch exists once and whole (I12)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pydanube.sim.world.history import History
from pydanube.topic.sinks import Once, SinkKey, SinkRequest, Verdict

ZOMBIES_MAX = 4  # requests of finished runs that are kept for each writer
Row = tuple[int, bytes]  # offset, payload


@dataclass(slots=True)
class WriterMemory:
    """One job across all its runs, as its checkpoint and an observer see it."""

    name: str
    key: SinkKey
    once: Once
    partitions: tuple[str, ...]
    batch: int = 0  # the next batch
    runs: int = 0
    attempts: dict[int, list[dict[str, list[bytes]]]] = field(default_factory=dict)  # content by partition, by batch
    new: dict[int, None] = field(default_factory=dict)  # batches that were answered with NEW
    answered: dict[int, None] = field(default_factory=dict)  # batches that were answered
    zombies: list[SinkRequest] = field(default_factory=list)
    second_writes: list[SinkRequest] = field(
        default_factory=list
    )  # further writes of batches that were already answered

    @property
    def wiped(self) -> SinkKey:
        """The same query started over, with a new checkpoint and the same input."""
        return replace(self.key, query=f"{self.key.query} again")

    def remember(self, request: SinkRequest) -> None:
        """Keeps a request: it may be sent again, long after its run has ended."""
        self.zombies.append(request)
        del self.zombies[:-ZOMBIES_MAX]

    def payload(self, batch: int, row: int, tag: str, pad: int) -> bytes:
        return f"{self.name}/{batch}/{row}/{tag}/{'.' * pad}".encode()


class SinkHistory:
    """Records events and checks what it can at once; `check_final` does the rest."""

    def __init__(self, history: History) -> None:
        self.writers: dict[str, WriterMemory] = {}
        self._history = history
        self._ends: dict[str, dict[int, None]] = {}  # where a partition was seen to end
        self._highest: dict[str, int] = {}

    def ends_at(self, partition: str, end: int) -> None:
        """A client saw that the partition ends here: everything below is visible, and nothing else."""
        before = self._highest.get(partition, 0)
        self._history.check(end >= before, "I2", f"{partition} ended at {before}, and later at {end}")
        self._highest[partition] = max(end, before)
        self._ends.setdefault(partition, {})[end] = None

    def hides(self, partition: str, hidden_from: int | None, began: int | None) -> None:
        """What is hidden must follow from the state log alone: another owner would show the rest."""
        self._history.check(
            hidden_from == began, "I12", f"{partition} is hidden from {hidden_from}, but is filled from {began}"
        )

    def saw(self, partition: str, offset: int, payload: bytes, end: int) -> None:
        self._history.see(partition, offset, payload)
        self._history.check(offset < end, "I12", f"{partition}: offset {offset} was shown before it could be seen")

    def answered(self, writer: WriterMemory, batch: int, verdict: Verdict) -> None:
        if verdict is Verdict.NEW:
            fresh = batch not in writer.answered and batch not in writer.new
            self._history.check(fresh, "I12", f"{writer.name}: batch {batch} already existed, but counts as new")
            writer.new[batch] = None
        writer.answered[batch] = None

    def check_refused(self, writer: WriterMemory, what: str, verdict: Verdict) -> None:
        """A request that had to be refused was not: its rows are lost, or written twice."""
        self._history.check(False, "I12", f"{writer.name}: {what} was answered with {verdict.value}")

    def check_final(self, found: dict[str, list[Row]]) -> None:
        """`found` is all that can be read in the end, by partition."""
        for partition, rows in found.items():
            payloads = [payload for _, payload in rows]
            if len(set(payloads)) != len(payloads):
                twice = next(payload for payload in payloads if payloads.count(payload) > 1)
                self._history.check(False, "I12", f"{partition}: {twice[:32]!r} was written twice")
        for writer in self.writers.values():
            self._check_writer(writer, found)

    def _check_writer(self, writer: WriterMemory, found: dict[str, list[Row]]) -> None:
        batches: dict[int, dict[str, list[int]]] = {}  # positions of its rows, by batch and partition
        for partition, rows in found.items():
            for position, (_, payload) in enumerate(rows):
                name, *rest = payload.split(b"/")
                if name.decode() == writer.name:
                    batches.setdefault(int(rest[0]), {}).setdefault(partition, []).append(position)
        for batch in writer.attempts:
            self._check_batch(writer, batch, batches.get(batch, {}), found)

    def _check_batch(
        self, writer: WriterMemory, batch: int, there: dict[str, list[int]], found: dict[str, list[Row]]
    ) -> None:
        check, label = self._history.check, f"{writer.name}: batch {batch}"
        content = {name: [found[name][position][1] for position in positions] for name, positions in there.items()}
        if content or batch in writer.answered:
            check(content in writer.attempts[batch], "I12", f"{label} differs from what any attempt staged")
        for partition, positions in there.items():
            first, last = positions[0], positions[-1]
            between = {found[partition][at][1].split(b"/")[0].decode() for at in range(first, last + 1)} - {writer.name}
            jobs = sorted(between & self.writers.keys())
            check(not jobs, "I12", f"{label}: rows of {jobs[:1]} stand between its rows in {partition}")
            inside = range(found[partition][first][0] + 1, found[partition][last][0] + 1)
            parted = [end for end in self._ends.get(partition, {}) if end in inside]
            check(not parted, "I12", f"{label}: {partition} was seen to end at {parted[:3]}, within the batch")
