"""The mark of a batch, and whether a target already has that batch. Pure.

Each target records, in the same commit as the rows, the mark of the last batch that a pipeline wrote to it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from pydanube.base.errors import SinkConflict

SHOWN_CHARACTERS = 200
DEAD_LETTERS = "~dead"  # follows the name of a pipeline, which cannot contain ~


class Verdict(Enum):
    NEW = "new"
    DONE = "done"  # the target has it; what was staged for it is not needed


@dataclass(frozen=True, slots=True)
class Mark:
    """A batch of a pipeline. A query has one checkpoint, and each start of it is a run."""

    pipeline: str  # its name, which identifies it to a target
    query: str
    run: str
    batch: int
    source: str = ""  # where its input ends, as in Spark's checkpoint; "" if that cannot be read
    dead: bool = False  # dead letters of the batch, not its rows

    @property
    def key(self) -> str:
        """The key under which a target remembers it. Rows and dead letters have different ones, in case they share a
        table.
        """
        return self.pipeline + (DEAD_LETTERS if self.dead else "")


def dead_letters(mark: Mark) -> Mark:
    return replace(mark, dead=True)


def judge(last: Mark | None, now: Mark, replaces: tuple[str, ...] = ()) -> Verdict:
    """`last` is what the target remembers; `replaces` are queries that this one intentionally takes over from.

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
