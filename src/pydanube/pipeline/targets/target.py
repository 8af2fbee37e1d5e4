"""What every target does: prepared on the driver, staged by tasks, committed on the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from random import randrange
from typing import TYPE_CHECKING, Any, Protocol

from pydanube.base.retry import Backoff
from pydanube.pipeline.targets.mark import Mark, Verdict

if TYPE_CHECKING:
    import pyarrow as pa


CHANGE = "_change"  # a column that is not written: STRUCT<deleted BOOLEAN, timestamp TIMESTAMP, offset BIGINT>
CHANGE_FIELDS = ("deleted", "timestamp", "offset")
RETRY = Backoff(0.1, 2.0)


def pause(tries: int) -> None:
    """Before a commit is tried again that others were faster than; not before the first."""
    time.sleep(RETRY.after(tries, randrange))


def with_change(schema: pa.Schema) -> pa.Schema:
    """Of rows that say where they were in the topic, and whether they delete."""
    import pyarrow as pa

    kinds = (pa.bool_(), pa.timestamp("us", "UTC"), pa.int64())
    kind = pa.struct(list(zip(CHANGE_FIELDS, kinds, strict=True)))
    return pa.schema([*(field for field in schema if field.name != CHANGE), pa.field(CHANGE, kind)])


def with_nulls(schema: pa.Schema) -> pa.Schema:
    """Of rows among which some delete: these have nothing but their key, whatever the table wants of others."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


class Stager(Protocol):
    """One task's part of a batch. Nothing of it is seen until it is committed."""

    def add(self, rows: pa.RecordBatch) -> None: ...

    def finish(self) -> Any:
        """What the driver needs to commit it: a small value that can be pickled; None if there were no rows."""
        ...

    def drop(self) -> None:
        """The task failed: what it wrote is taken away, as far as that is quickly done. Never raises."""
        ...


class Target(Protocol):
    """Where rows go. Holds values only, no connection: it is copied to the driver's workers and to every task.

    Credentials are never in it; who needs them resolves them from the environment where it runs.
    """

    @property
    def label(self) -> str:
        """How messages name it, as `delta:/data/orders`."""
        ...

    @property
    def identity(self) -> str:
        """Where it is, however that is written: two that have the same one would hide each other's batches."""
        ...

    @property
    def takes_changes(self) -> bool:
        """Whether rows replace and delete others: then what it stages has the column `_change`, if rows have it."""
        return False

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        """On the driver, before the query starts: whether rows fit, and can be written. Nothing of it stays.

        Returns whether there is anything to prepare. Raises `SchemaMismatch`, `TableUnsupported`, `TargetRefused`,
        `TargetFailed`.
        """
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """On the driver, after the check of all targets: makes the table if there is none, or adds columns.

        Raises what `check` does; nothing is half made.
        """
        ...

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> Stager:
        """In a task, or on the driver for tasks with few rows. `task` is unique to the attempt, and fit for the name of
        a file: the batch, a number and something that nobody had before, with dashes between."""
        ...

    def remembered(self, now: Mark) -> Mark | None:
        """The last batch of the pipeline of `now` that it took, and where that one's input ended; None if it took none,
        or is not there. What it knows only the hash of is as in `now`, where that is the same. Nothing is changed.
        """
        ...

    def commit(
        self, mark: Mark, schema: pa.Schema, parts: Sequence[Any], *, replace: bool, replaces: tuple[str, ...] = ()
    ) -> Verdict:
        """On the driver: all parts become visible, with the mark, or nothing does. `replace` is complete mode;
        `replaces` is for `judge`.

        However often it is called with the same mark, its rows are there once. Raises `SinkConflict`.
        """
        ...
