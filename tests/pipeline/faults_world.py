"""The sink of pipelines driven as Spark drives it, without Spark: batches, drivers that die amid a commit, and others
that come too late.
"""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import pydanube.sync
from pipeline.iceberg_world import Lake
from pydanube.pipeline.query.writer import DEAD, Staged, TablesStreamWriter, letter_schema
from pydanube.pipeline.spec.plan import Plan
from pydanube.pipeline.targets.mark import Verdict
from pydanube.spark.committing import BATCH, GROUP, QUERY

BATCH_ROWS, TASKS = 12, 3
BAD = 5  # every fifth row is no good
QUERY_ID = str(uuid4())
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_LETTER = pa.struct(list(letter_schema())[:-1])


class Died(BaseException):
    """What happens to a process: nothing in it handles that."""


@dataclass
class Dying:
    """A target whose process dies when so many commits are left to it, of all the targets of a sink."""

    inner: Any
    life: list[int]

    def commit(self, *given: Any, **more: Any) -> Verdict:
        if not self.life[0]:
            raise Died
        self.life[0] -= 1
        found: Verdict = self.inner.commit(*given, **more)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@dataclass
class Attempt:
    """A batch as one driver has it staged."""

    batch: int
    writer: TablesStreamWriter
    messages: list[Staged]


@dataclass
class Pipeline:
    """Targets by their kinds, in the order in which they are committed; dead letters, of the first kind, before them.

    A batch is done when a driver has committed it everywhere and logged it; until then it is repeated.
    """

    folder: Path
    kinds: Sequence[str]
    url: str = ""
    random: Random = field(default_factory=lambda: Random(1))
    logged: int = -1

    def __post_init__(self) -> None:
        (self.folder / "checkpoint" / "offsets").mkdir(parents=True)
        self._lake = Lake(self.folder, "lake.good")
        self.driver().prepare()

    def _spec(self, kind: str, name: str) -> dict[str, Any]:
        if kind == "iceberg":
            return self._lake.spec() if name == "good" else Lake(self.folder, f"lake.{name}").spec()
        if kind == "topic":
            return {"kind": "topic", "topic": f"/default/{self.folder.name}", "url": self.url, "key": "name"}
        return {"kind": kind, "uri": str(self.folder / f"{kind}-{name}")}

    @property
    def steps(self) -> int:
        """Commits of a batch."""
        return 1 + len(self.kinds)

    def driver(self) -> TablesStreamWriter:
        specs = tuple(self._spec(kind, "good") for kind in self.kinds)
        plan = Plan("faults", specs, dead_letters=self._spec(self.kinds[0], "dead"))
        checkpoint = str(self.folder / "checkpoint")
        return TablesStreamWriter(plan, SCHEMA, dead=True, change=False, replace=False, checkpoint=checkpoint)

    def attempt(self, batch: int) -> Attempt:
        """A driver of a new run, with the batch staged: the same rows, but in another order and other tasks."""
        file = self.folder / "checkpoint" / "offsets" / str(batch)
        file.write_text(f"v1\n{{}}\n{json.dumps({'t': {'0': (batch + 1) * BATCH_ROWS}})}\n")
        ids = list(range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS))
        self.random.shuffle(ids)
        writer, run = self.driver(), str(uuid4())
        tasks: list[list[int]] = [[] for _ in range(TASKS)]
        for number in ids:
            self.random.choice(tasks).append(number)
        told = {QUERY: QUERY_ID, BATCH: str(batch), GROUP: run}
        messages = [pickle.loads(pickle.dumps(writer)).stage(rows(task), told.get, at) for at, task in enumerate(tasks)]
        return Attempt(batch, writer, pickle.loads(pickle.dumps(messages)))

    def commit(self, attempt: Attempt) -> None:
        """All of it, and it is logged."""
        attempt.writer.commit(list(attempt.messages), attempt.batch)
        self.logged = attempt.batch

    def die(self, attempt: Attempt, steps: int) -> None:
        """The driver lives for so many steps of the commit, and not until it is logged."""
        writer, life = copy(attempt.writer), [steps]
        writer._targets = [Dying(target, life) for target in writer._targets]
        writer._letters = Dying(writer._letters, life)
        with suppress(Died):
            writer.commit(list(attempt.messages), attempt.batch)

    # -- what is there -------------------------------------------------------------------------------------------------

    def found(self) -> Iterator[tuple[str, Counter[int]]]:
        """Ids of rows in each target, and of dead letters."""
        for kind in self.kinds:
            yield kind, Counter(each["id"] for each in self._content(kind, "good"))
        letters = self._content(self.kinds[0], "dead")
        yield "dead letters", Counter(int(each["value"]) for each in letters)

    def _content(self, kind: str, name: str) -> list[dict[str, Any]]:
        if kind == "iceberg":
            return Lake(self.folder, f"lake.{name}").content()
        if kind == "delta":
            return DeltaTable(str(self.folder / f"delta-{name}")).to_pyarrow_table().to_pylist()
        if kind == "parquet":
            found = [pq.read_table(each) for each in (self.folder / f"parquet-{name}").glob("*.parquet")]
            return [row for each in found for row in each.to_pylist()]
        with pydanube.sync.connect(self.url) as client:
            payloads = client.read_arrow(f"/default/{self.folder.name}").column("payload")
        return [json.loads(each) for each in payloads.to_pylist()]

    def check(self) -> None:
        """Of every batch that is logged all rows are everywhere, of the next one all or none; and none is twice."""
        for name, ids in self.found():
            good = name != "dead letters"
            done = expected(range(self.logged + 1), good=good)
            next_one = expected([self.logged + 1], good=good)
            assert ids in (done, done + next_one), name


def rows(ids: Iterable[int]) -> Iterator[pa.RecordBatch]:
    ids = list(ids)
    letters = [
        {"topic": "/default/t", "partition": 0, "offset": each, "value": b"%d" % each, "error": "bad"}
        if each % BAD == 0
        else None
        for each in ids
    ]
    good = [pa.array(ids, pa.int64()), pa.array([f"n{each}" for each in ids], pa.string())]
    schema = pa.schema([*SCHEMA, pa.field(DEAD, _LETTER)])
    table = pa.RecordBatch.from_arrays([*good, pa.array(letters, _LETTER)], schema=schema)
    yield table.slice(0, len(ids) // 2)
    yield table.slice(len(ids) // 2)


def expected(batches: Iterable[int], *, good: bool) -> Counter[int]:
    ids = (number for batch in batches for number in range(batch * BATCH_ROWS, (batch + 1) * BATCH_ROWS))
    return Counter(number for number in ids if (number % BAD != 0) is good)
