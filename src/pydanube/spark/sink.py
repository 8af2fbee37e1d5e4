"""The calls that Spark makes for a write: `write` runs in executors, at least once for each task; `commit` runs on the
driver, at the end.

Only what the successful attempts of all tasks have staged is committed. `abort` has nothing to do: what was staged and
not committed expires, and a commit that was decided is completed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.base.errors import OptionInvalid, SinkExpired
from pydanube.spark.broker_link import PATIENCE_SECONDS, BrokerLink, link_to
from pydanube.spark.committing import ANY_TOPIC, PLAIN, STREAM, Write, batcher_of, commit, identify, merged, source_end
from pydanube.spark.error_help import with_help
from pydanube.spark.sink_options import SinkOptions, check_append, check_columns
from pydanube.spark.staging import Refs, Stage, batches_of

if TYPE_CHECKING:
    import pyarrow as pa

Message = TypeVar("Message", bound=WriterCommitMessage)


class TaskWriter(ABC):
    """The calls of Spark that are the same for batches and streams, and for every format that is written in tasks."""

    @with_help
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        return self.stage(iterator, context.getLocalProperty, context.partitionId())

    @abstractmethod
    def stage(
        self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int
    ) -> WriterCommitMessage:
        """Stages the rows of a task. Properties are those of Spark's job."""

    @with_help
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:
        """Spark has the number of the batch only for a stream."""
        self.commit_all(messages)

    @abstractmethod
    def commit_all(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int | None = None) -> None:  # noqa: B027
        """Spark also calls it if the commit succeeded and only its answer was lost, so it changes nothing."""


def of_one_write(
    messages: Sequence[WriterCommitMessage | None], kind: type[Message], write_of: Callable[[Message], Hashable]
) -> list[Message]:
    """The messages of all tasks. Raises `SinkExpired` unless all delivered something for the same write."""
    staged = [each for each in messages if isinstance(each, kind)]
    if len(staged) < len(messages) or len({write_of(each) for each in staged}) > 1:
        raise SinkExpired("a task delivered nothing, or something that belongs to another write")
    return staged


@dataclass
class Staged(WriterCommitMessage):
    """What a task passes to the driver."""

    write: Write
    parts: dict[str, Refs] = field(default_factory=dict)


class _Writer(TaskWriter):
    """Copied to every task."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._target = ANY_TOPIC if "topic" in columns else options.topic or ANY_TOPIC
        self._own = uuid4().hex

    def _link(self) -> BrokerLink:
        return link_to(self._options.url, self._options.ca_file, patience=PATIENCE_SECONDS)

    def stage(self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int) -> Staged:
        write = identify(self._options, self._target, property_of, self._own)
        link = self._link()
        batcher = batcher_of(link, write, partition, self._options.topic, self._options.codec)
        return Staged(write, Stage(link, write.writer).put_all(batches_of(rows, batcher)))

    def commit_all(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = of_one_write(messages, Staged, lambda each: each.write)
        parts = merged(each.parts for each in staged)
        if not staged or (staged[0].write.once == PLAIN and not parts):
            return
        write = staged[0].write
        source = source_end(self._options.checkpoint, write.batch) if write.once == STREAM else ""
        link = self._link()
        link.wait(commit(link.client, write, parts, source))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("danube")`."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`writeStream.format("danube")`. Spark creates one for each task and each commit."""

    def stage(self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int) -> Staged:
        staged = super().stage(rows, property_of, partition)
        assert staged.write.once == STREAM, "Spark does not say which batch of which query this is"
        return staged


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    return BatchWriter(*_checked(given, schema, overwrite))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    options, columns = _checked(given, schema, overwrite)
    if options.application is not None:
        raise OptionInvalid("txnAppId and txnVersion work only with batch writes: a stream numbers its batches itself")
    if not options.checkpoint:
        raise OptionInvalid(
            "set option('checkpointLocation', ...) to the location of the checkpoint: a sink does not see the "
            "session's settings, and without the location it cannot detect a checkpoint that was copied or wiped"
        )
    return StreamWriter(options, columns)


def _checked(given: Mapping[str, str], schema: StructType, overwrite: bool) -> tuple[SinkOptions, tuple[str, ...]]:
    check_append(overwrite=overwrite)
    options = SinkOptions.of(given)
    return options, check_columns(
        ((field.name, field.dataType.simpleString()) for field in schema.fields), options.topic
    )
