"""The calls that Spark makes for a write: `write` runs in executors, at least once for each task; `commit` runs on the
driver, at the end.

Only what the successful attempts of all tasks have staged is committed. `abort` has nothing to do: what was staged and
not committed expires, and a commit that was decided is completed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pydanube.base.errors import OptionInvalid, SinkExpired
from pydanube.spark.batching import RowBatcher, TargetTopic
from pydanube.spark.broker_link import PATIENCE_SECONDS, BrokerLink, link_to
from pydanube.spark.committing import ANY_TOPIC, PLAIN, STREAM, Write, commit, identify, merged, source_end
from pydanube.spark.error_help import with_help
from pydanube.spark.sink_options import SinkOptions, check_append, check_columns
from pydanube.spark.staging import Refs, Stage, batches_of, find_target

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Staged(WriterCommitMessage):
    """What a task passes to the driver."""

    write: Write
    parts: dict[str, Refs] = field(default_factory=dict)


class _Writer:
    """What both kinds of writes have in common. Copied to every task."""

    def __init__(self, options: SinkOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._target = ANY_TOPIC if "topic" in columns else options.topic or ANY_TOPIC
        self._own = uuid4().hex

    def _link(self) -> BrokerLink:
        return link_to(self._options.url, self._options.ca_file, patience=PATIENCE_SECONDS)

    @with_help
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        context = TaskContext.get()
        assert context is not None
        return self.stage(iterator, context.getLocalProperty, context.partitionId())

    def stage(self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int) -> Staged:
        write = identify(self._options, self._target, property_of, self._own)
        link = self._link()

        def find(topic: str) -> TargetTopic:
            return link.wait(find_target(link.client, topic))

        turn = write.batch + partition  # so that small batches do not all go to the first partition
        batcher = RowBatcher(find, link.client.clock.wall, self._options.topic, turn=turn, codec=self._options.codec)
        return Staged(write, Stage(link, write.writer).put_all(batches_of(rows, batcher)))

    def _commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        staged = [each for each in messages if isinstance(each, Staged)]
        writes = {each.write for each in staged}
        if len(staged) < len(messages) or len(writes) > 1:
            raise SinkExpired("a task delivered nothing, or something that belongs to another write")
        parts = merged(each.parts for each in staged)
        for write in writes:
            if write.once == PLAIN and not parts:
                continue
            source = source_end(self._options.checkpoint, write.batch) if write.once == STREAM else ""
            link = self._link()
            link.wait(commit(link.client, write, parts, source))


class BatchWriter(_Writer, DataSourceArrowWriter):
    """`df.write.format("danube")`."""

    @with_help
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Spark also calls it if the commit succeeded and only its answer was lost, so it changes nothing."""


class StreamWriter(_Writer, DataSourceStreamArrowWriter):
    """`writeStream.format("danube")`. Spark creates one for each task and each commit."""

    def stage(self, rows: Iterator[pa.RecordBatch], property_of: Callable[[str], str | None], partition: int) -> Staged:
        staged = super().stage(rows, property_of, partition)
        assert staged.write.once == STREAM, "Spark does not say which batch of which query this is"
        return staged

    @with_help
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._commit(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Spark also calls it if the commit succeeded and only its answer was lost, so it changes nothing."""


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
