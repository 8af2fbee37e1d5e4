"""Which batch of which pipeline this is, and whether it is new, done or neither. Pure.

Each target remembers, in the same commit as the rows, the last batch that a pipeline wrote to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pydanube.base.errors import SinkConflict

SHOWN_CHARACTERS = 200
DEAD_LETTERS = "~dead"  # behind the name of a pipeline, which has no ~


class Verdict(Enum):
    NEW = "new"
    DONE = "done"  # it already exists; what was staged for it is not needed


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch of a pipeline. A checkpoint is one query; each start of it is one run."""

    pipeline: str  # its name: what a target knows it by
    query: str
    run: str
    batch: int
    source: str = ""  # where its input ends, as Spark's checkpoint says it; "" if that cannot be read
    dead: bool = False  # dead letters of the batch, not its rows

    @property
    def key(self) -> str:
        """What a target remembers it by: rows and dead letters do not stand for each other, should they ever meet."""
        return self.pipeline + (DEAD_LETTERS if self.dead else "")


def dead_letters(mark: Mark) -> Mark:
    return replace(mark, dead=True)


def judge(last: Mark | None, now: Mark, replaces: tuple[str, ...] = ()) -> Verdict:
    """`last` is what the target remembers; `replaces` are queries in whose place this one was put on purpose.

    Raises `SinkConflict` for a checkpoint that was wiped, or copied and used twice.
    """
    if last is None or (last.query != now.query and last.query in replaces):
        return Verdict.NEW
    if last.query != now.query:
        raise SinkConflict(
            f"the pipeline {now.pipeline} runs query {now.query}, but query {last.query} has already written up to "
            f"batch {last.batch}{_where(last)} here: was its checkpoint wiped or moved? To start over on purpose, run "
            "`danube pipeline reset --replaces`"
        )
    if now.batch > last.batch:
        return Verdict.NEW
    if now.batch < last.batch or (now.source and last.source and now.source != last.source):
        raise SinkConflict(
            f"run {now.run} sent batch {now.batch}{_where(now)}, but run {last.run} has already written batch "
            f"{last.batch}{_where(last)}: does another pipeline use a copy of the checkpoint, or is its end lost? "
            "To continue from the position of the targets, run `danube pipeline reset --to tables`"
        )
    return Verdict.DONE


def _where(mark: Mark) -> str:
    return f" (to {mark.source[:SHOWN_CHARACTERS]})" if mark.source else ""
