"""Writes that happen exactly once: what is remembered about each writer, and how its next batch is judged (§32, §33).
Pure.

A writer stages its rows in a hidden topic, and then asks for a batch to be committed. The decision names everything
that was staged; once it is durable, the batch will be written, even if another process has to finish it. A batch that
was committed before is done.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple

from pydanube.base.errors import MetadataDamaged, RequestInvalid, SinkConflict
from pydanube.base.limits import (
    SECOND,
    SINK_KEPT_SECONDS,
    SINK_KEPT_SECONDS_MIN,
    SINK_PARTS_MAX,
    SINK_REFS_MAX,
    SINK_REPEATS_MAX,
    SINK_TEXT_BYTES_MAX,
    SINKS_MAX,
)
from pydanube.topic.sink_inputs import reads_again, same, short


class Verdict(Enum):
    NEW = "new"
    DONE = "done"  # it already exists; what was staged for it is not needed


class Once(Enum):
    """How the batches of a writer are numbered."""

    STREAM = "stream"  # a query's checkpoint: each run continues where the last one stopped, or repeats its last batch
    VERSION = "version"  # by an application's own rising versions: a lower one is done
    PLAIN = "plain"  # batches are not numbered; each write is independent


@dataclass(frozen=True, slots=True)
class SinkKey:
    """A writer: one query, one target topic (or those that its rows name), and one name."""

    query: str
    target: str
    name: str = ""

    def __post_init__(self) -> None:
        for text in (self.query, self.target, self.name):
            if len(text.encode(errors="replace")) > SINK_TEXT_BYTES_MAX:
                raise RequestInvalid(f"a writer's names must have at most {SINK_TEXT_BYTES_MAX} bytes")
        if not self.query or not self.target:
            raise RequestInvalid("a writer must have a query and a target")

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([self.query, self.target, self.name]).encode()).hexdigest()[:32]


class SinkRequest(NamedTuple):
    """A request to commit a batch. The message at offset `decision` names what was staged for it."""

    once: Once
    run: str
    batch: int
    source: str  # where its input ends, as the engine describes it; "" if unknown
    decision: int


class Part(NamedTuple):
    """How many rows of a batch are for one topic or partition. Its owner decides at which offsets."""

    partition: str
    topic: int  # its id: a topic that was deleted and created again gets nothing
    rows: int
    first: int | None = None  # where they begin, in decisions of versions that named it

    @classmethod
    def decode(cls, found: list[Any]) -> Part:
        if len(found) == 4:  # from a version that decided where the rows begin
            partition, topic, first, rows = found
            return cls(str(partition), int(topic), int(rows), int(first))
        partition, topic, rows = found
        return cls(str(partition), int(topic), int(rows))


class Repeat(NamedTuple):
    """A run that sent a batch which was already committed, and the decision that it sent."""

    run: str
    decision: int


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The last batch that was decided for a writer."""

    key: SinkKey
    once: Once
    run: str
    batch: int
    source: str
    decision: int
    committed: bool = False
    parts: tuple[Part, ...] = ()  # until it is committed
    topic: int | None = None  # the id of its target; None if rows name theirs, or it did not exist yet
    repeats: tuple[Repeat, ...] = ()  # the last runs that sent this batch again
    time: int = 0  # when it was decided or last repeated, in microseconds; 0 means long ago

    def finished(self) -> SinkRecord:
        return replace(self, committed=True, parts=())

    def decision_of(self, run: str) -> int | None:
        """The decision that this run sent with its first write of the batch; None if it has not sent it."""
        if run == self.run:
            return self.decision
        return next((each.decision for each in self.repeats if each.run == run), None)

    def repeated(self, request: SinkRequest) -> SinkRecord:
        """The record with a run that was answered `done`: a second, different write by that run is a conflict."""
        if request.once is not Once.STREAM or self.decision_of(request.run) is not None:
            return self
        repeat = Repeat(request.run, request.decision)
        return replace(self, repeats=(*self.repeats, repeat)[-SINK_REPEATS_MAX:])

    def encode(self) -> bytes:
        fields = {
            "query": self.key.query,
            "target": self.key.target,
            "name": self.key.name,
            "once": self.once.value,
            "run": self.run,
            "batch": self.batch,
            "source": self.source,
            "decision": self.decision,
            "committed": self.committed,
            "parts": [(each.partition, each.topic, each.rows) for each in self.parts],
            "topic": self.topic,
            "repeats": self.repeats,
            "time": self.time,
        }
        return json.dumps(fields, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> SinkRecord:
        try:
            found = json.loads(data)
            return cls(
                SinkKey(found["query"], found["target"], found["name"]),
                Once(found["once"]),
                found["run"],
                int(found["batch"]),
                found["source"],
                int(found["decision"]),
                bool(found["committed"]),
                tuple(map(Part.decode, found["parts"])),
                None if found.get("topic") is None else int(found["topic"]),
                tuple(Repeat(str(run), int(decision)) for run, decision in found.get("repeats", ())),
                int(found.get("time", 0)),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise MetadataDamaged(f"the record of a writer cannot be read: {error!r}") from None


def overdue(records: Iterable[SinkRecord], now: int, coming: int = 1) -> list[SinkRecord]:
    """The records that can be forgotten: finished long ago, or less long ago if `coming` more would be too many."""
    known = list(records)
    finished = sorted((each for each in known if each.committed), key=lambda each: each.time)
    beyond = len(known) + coming - SINKS_MAX
    ages = (SINK_KEPT_SECONDS_MIN if rank < beyond else SINK_KEPT_SECONDS for rank in range(len(finished)))
    return [each for each, age in zip(finished, ages, strict=True) if each.time < now - age * SECOND]


def judge(
    record: SinkRecord | None, request: SinkRequest, others: Iterable[SinkRecord] = (), *, query: str = "a query"
) -> Verdict:
    """Whether the batch is new or done; `SinkConflict` if neither. `others` are writers with this target and name."""
    if record is None:
        for other in others:
            if request.once is Once.STREAM and reads_again(request.source, other.source):
                raise SinkConflict(_begins_anew(query, request, other))
        return Verdict.NEW
    if request.batch > record.batch:
        return Verdict.NEW
    if request.once is Once.VERSION:
        return Verdict.DONE
    if request.batch < record.batch:
        raise SinkConflict(
            f"run {request.run} sent batch {request.batch}, but run {record.run} has already committed batch "
            f"{record.batch} up to {short(record.source)}: is the checkpoint an old copy, or was it wiped?"
        )
    before = record.decision_of(request.run)
    if before == request.decision:
        return Verdict.DONE
    if before is not None:
        raise SinkConflict(
            f"batch {request.batch} of run {request.run} was written a second time with different content: "
            "give each write in a foreachBatch its own writeName"
        )
    if request.source and record.source and not same(request.source, record.source):
        raise SinkConflict(
            f"batch {request.batch} ends at {short(request.source)} in run {request.run}, but at "
            f"{short(record.source)} in run {record.run}: was the checkpoint copied?"
        )
    return Verdict.DONE


def _begins_anew(query: str, request: SinkRequest, other: SinkRecord) -> str:
    """The error message, with the important part first, because long messages are cut."""
    return (
        f"query {query} (run {request.run}) starts over and reads what query {other.key.query} (run {other.run}) has "
        f"already written to {other.key.target}: was its checkpoint wiped? If these are two queries, give one a "
        f"writeName; to write again, run `danube sink forget` for the other. This one has reached "
        f"{short(request.source)}, the other {short(other.source)}"
    )


# -- what a decision names ---------------------------------------------------------------------------------------------


class Ref(NamedTuple):
    """Staged messages, by their first and last offset in the staging topic."""

    first: int
    last: int

    @property
    def rows(self) -> int:
        return self.last - self.first + 1


def read_decision(payload: bytes | None) -> dict[str, list[Ref]]:
    """The refs of every topic or partition, in the order of writing; `RequestInvalid` if it is not a decision."""
    try:
        found = json.loads(payload or b"")
        parts = {
            str(partition): [Ref(*map(_offset, ref)) for ref in refs] for partition, refs in found["parts"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RequestInvalid(f"that message is not a decision: {error!r}") from None
    if len(parts) > SINK_PARTS_MAX or sum(map(len, parts.values())) > SINK_REFS_MAX:
        raise RequestInvalid(f"a batch must have at most {SINK_PARTS_MAX} partitions and {SINK_REFS_MAX} refs")
    if any(ref.first > ref.last for refs in parts.values() for ref in refs):
        raise RequestInvalid("a ref ends before it begins")
    return {partition: refs for partition, refs in parts.items() if refs}


def _offset(value: object) -> int:
    if type(value) is not int or value < 0:
        raise TypeError(f"{value!r} is not a valid offset")
    return value
