"""What a target is: prepared on the driver, staged by tasks, committed on the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import randrange
from typing import TYPE_CHECKING, Any, Protocol

from pydanube.base.retry import Backoff
from pydanube.pipeline.targets.maintenance import NO_MAINTENANCE, Maintenance
from pydanube.pipeline.targets.mark import Mark, Verdict

if TYPE_CHECKING:
    import pyarrow as pa


CHANGE = "_change"  # a column that is not written: STRUCT<deleted BOOLEAN, timestamp TIMESTAMP, offset BIGINT>
CHANGE_FIELDS = ("deleted", "timestamp", "offset")
COMMITS_MAX = 20  # attempts; each that fails means that another writer's commit succeeded
RETRY = Backoff(0.1, 2.0)


def pause(tries: int) -> None:
    """Waits before another attempt at a commit for which another writer was faster; not before the first."""
    time.sleep(RETRY.after(tries, randrange))


def with_change(schema: pa.Schema) -> pa.Schema:
    """The schema with the column that says where rows were in the topic, and whether they delete."""
    import pyarrow as pa

    kinds = (pa.bool_(), pa.timestamp("us", "UTC"), pa.int64())
    kind = pa.struct(list(zip(CHANGE_FIELDS, kinds, strict=True)))
    return pa.schema([*(field for field in schema if field.name != CHANGE), pa.field(CHANGE, kind)])


def with_nulls(schema: pa.Schema) -> pa.Schema:
    """The schema of rows of which some delete: those have only a key, even if the table requires other columns."""
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


class Stager(Protocol):
    """One task's part of a batch. It is not visible until it is committed."""

    def add(self, rows: pa.RecordBatch) -> None: ...

    def finish(self) -> Any:
        """What the driver needs to commit it: a small value that can be pickled, or None if there were no rows."""
        ...

    def drop(self) -> None:
        """The task has failed: removes what it wrote, as far as that is quick. Never raises."""
        ...


class Target(Protocol):
    """Where rows go. It holds plain values and no connection, because it is copied to every task.

    It never holds credentials: these are resolved from the environment of the process that needs them.
    """

    @property
    def label(self) -> str:
        """How messages name it, such as `delta:/data/orders`."""
        ...

    @property
    def identity(self) -> str:
        """Where it is, in one spelling: of two targets with the same identity, one would skip the other's batches."""
        ...

    @property
    def takes_changes(self) -> bool:
        """Whether rows replace and delete others. If so, it stages rows with the column `_change`, if they have it."""
        return False

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        """On the driver, before the query starts: checks that rows fit and can be written, and changes nothing.

        Returns whether there is anything to prepare. Raises `SchemaMismatch`, `TableUnsupported`, `TargetRefused`,
        `TargetFailed`.
        """
        ...

    def prepare(self, schema: pa.Schema) -> None:
        """On the driver, after all targets were checked: creates the table if there is none, or adds columns.

        Raises what `check` does, and then leaves nothing incomplete.
        """
        ...

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> Stager:
        """In a task, or on the driver for tasks with few rows. `task` is unique to the attempt and can be part of a
        file name: the batch, a number and a random part, with dashes between them.
        """
        ...

    def remembered(self, now: Mark) -> Mark | None:
        """The last batch of the pipeline of `now` that it took, and where the input of that batch ended; None if it
        took none, or does not exist. Values of which it knows only the hash are those of `now` if they match. Changes
        nothing.
        """
        ...

    def commit(
        self, mark: Mark, schema: pa.Schema, parts: Sequence[Any], *, replace: bool, replaces: tuple[str, ...] = ()
    ) -> Verdict:
        """On the driver: makes all parts visible together with the mark, or nothing. `replace` is complete mode;
        `replaces` is for `judge`.

        However often it is called with the same mark, the rows are written once. Raises `SinkConflict`.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class TransactionalTarget(Target):
    """A table with a log of its changes. With `keys`, rows replace those that have the same values in these columns."""

    partition_by: tuple[str, ...] = ()
    merge_schema: bool = False
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    maintenance: Maintenance = NO_MAINTENANCE

    @property
    def takes_changes(self) -> bool:
        return bool(self.keys)
