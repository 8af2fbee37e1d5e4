"""The data source that Spark finds as `danube`: batch reads and streams. Only the calls that Spark makes are here;
those for writes are in `sink`.

The driver plans and knows the broker's state. `read` runs in executors, on a copy, which knows only its ranges.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pydanube.base.errors import ColumnInvalid, DanubeError, TopicNotFound
from pydanube.base.limits import NEWS_PARTITIONS_MAX
from pydanube.operations.topics import AwaitMessages
from pydanube.spark.broker_link import PATIENCE_SECONDS, BrokerLink, link_to
from pydanube.spark.columns import WATERMARK, check_schema, ddl
from pydanube.spark.decode import decoded_columns
from pydanube.spark.durable import sync_checkpoint
from pydanube.spark.error_help import iterate_with_help, with_help
from pydanube.spark.fetch import read_job
from pydanube.spark.limits import Limits
from pydanube.spark.offsets import Offsets, TopicOffsets, as_it_began, begun, from_json, going_on, to_json
from pydanube.spark.options import Options, schema_options
from pydanube.spark.plan import Job, Range, States, ranges_between, split, with_stored
from pydanube.spark.sealed import find_segments
from pydanube.spark.sink import BatchWriter, StreamWriter, batch_writer, stream_writer
from pydanube.spark.subscription import SubscriptionProgress
from pydanube.spark.topics import check_known, describe_topics, latest, loss_handler, offsets_at, snapshot, warn_if_none
from pydanube.spark.watermark import late_watermark

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)
DELETIONS_MAX = 10  # of topics, while one trigger is planned
IDLE_SECONDS = 0.5  # that a trigger waits for new messages; a stop and other sources wait for it


class DanubeSource(DataSource):
    """`format("danube")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "danube"

    @with_help
    def schema(self) -> str:
        shown = schema_options(self.options)
        decoded = None if shown.value is None else decoded_columns(shown.value, quoted=True)
        return ddl(attributes=shown.attributes, meta=shown.meta, decoded=decoded, watermark=shown.watermark)

    @with_help
    def reader(self, schema: StructType) -> BatchReader:
        options = Options.of(self.options, streaming=False)
        return BatchReader(options, _names(schema, options))

    @with_help
    def streamReader(self, schema: StructType) -> StreamReader:
        options = Options.of(self.options, streaming=True)
        return StreamReader(options, _names(schema, options))

    @with_help
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    @with_help
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return stream_writer(self.options, schema, overwrite=overwrite)


def _names(schema: StructType, options: Options) -> tuple[str, ...]:
    for field, plain in zip(schema.fields, schema.toNullable().fields, strict=True):
        if field != plain:  # otherwise every task would fail, without naming the column
            raise ColumnInvalid(f"the column {field.name[:100]} must be nullable for Spark: leave NOT NULL out")
    decoded = None if options.value is None else decoded_columns(options.value, quoted=False)
    more = (decoded or {}) | (WATERMARK if options.watermark_of is not None else {})
    return check_schema(((field.name, field.dataType.simpleString()) for field in schema.fields), more)


def _partitions(
    link: BrokerLink, ranges: Sequence[Range], states: States, options: Options, watermark: int | None = None
) -> list[InputPartition]:
    sealed, objects = link.wait(find_segments(link.client, options, ranges, states))
    cores = options.cores or os.cpu_count() or 1
    tasks = with_stored(split(ranges, states, options.tasks_min, cores), sealed)
    return [InputPartition(Job(task, objects, watermark)) for task in tasks]


@with_help
def _read(options: Options, names: Sequence[str], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Spark calls it once even for a plan without tasks."""
    job: Job | None = partition.value
    return iterate_with_help(read_job(options, names, job)) if job else iter(())


class BatchReader(DataSourceReader):
    """Reads a snapshot, which is taken when it is planned, again for every action on the same DataFrame."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names

    @with_help
    def partitions(self) -> Sequence[InputPartition]:
        link = link_to(self._options.url, self._options.ca_file)
        start, end, states = link.wait(snapshot(link.client, self._options))
        return _partitions(link, ranges_between(start, end, states), states, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._names, partition)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as its query, on the driver. Executors have only the parts that `read` needs."""

    def __init__(self, options: Options, names: tuple[str, ...]) -> None:
        self._options = options
        self._names = names
        self._lost = loss_handler(options.fail_on_data_loss)
        self._progress: SubscriptionProgress | None = None
        self._target: Offsets | None = None  # the end for Trigger.AvailableNow
        self._warned = False
        self._synced: Offsets | None = None  # the start of the batch for which the checkpoint was synced
        self._seen: Offsets | None = None  # the ends when topics were last described
        self._states: States = {}  # the topics when they were last described

    def __getstate__(self) -> dict[str, Any]:
        return {"_options": self._options, "_names": self._names}

    @property
    def _link(self) -> BrokerLink:
        return link_to(self._options.url, self._options.ca_file, patience=PATIENCE_SECONDS)

    @with_help
    def initialOffset(self) -> dict[str, Any]:
        """Called until the first batch is committed. Later, the starting options have no effect."""
        return to_json(begun(self._link.wait(self._begin())))

    async def _begin(self) -> Offsets:
        client = self._link.client
        states = await describe_topics(client, self._options)
        warn_if_none(self._options, states)
        start = await offsets_at(client, states, self._options.starting, "startingOffsets")
        check_known(start, states, self._lost)
        return start

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark has no limit on both rows and bytes. The limit on bytes is applied here, except with
        `ReadAllAvailable`."""
        if self._options.records_max is not None:
            return ReadMaxRows(self._options.records_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    @with_help
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """How far the next batch goes, in confirmed offsets. Everything before `start` is processed."""
        return to_json(self._link.wait(self._advance(from_json(start), limit)))

    async def _advance(self, start: Offsets, limit: ReadLimit) -> Offsets:
        for _ in range(DELETIONS_MAX):
            try:
                end = await self._next(start, limit)
                if self._target is not None or not await self._waited(start, end):
                    return end
                return await self._next(start, limit)
            except TopicNotFound as error:  # it was deleted after topics were described
                self._lost(f"deleted while the next batch was planned: {error}")
        return await self._next(start, limit)

    async def _waited(self, start: Offsets, end: Offsets) -> bool:
        """Waits a short time for new data if there is none. Spark would otherwise call again at once. It cannot stop
        the query during the call, so the time must be short."""
        partitions = {
            self._states[name].partition_name(number): offset
            for name, each in end.items()
            for number, offset in enumerate(each.next)
        }
        idle = all(name in start and start[name].next == each.next for name, each in end.items())
        if not idle or not 0 < len(partitions) <= NEWS_PARTITIONS_MAX:
            return False
        with suppress(DanubeError):  # the next call gets the error
            await self._link.client.ask(AwaitMessages(partitions, milliseconds=int(1_000 * IDLE_SECONDS)))
            return True
        return False

    async def _next(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """An absent topic existed when the query began. `check_known` decides whether that is an error."""
        client, options = self._link.client, self._options
        states = await describe_topics(client, options, absent_ok=True)
        check_known(start, states, self._lost)
        await self._hold(start, states)
        self._seen, self._states = latest(states), states
        end = _not_before(start, self._seen if self._target is None else _at_most(self._target, self._seen))
        if not isinstance(limit, ReadAllAvailable):
            records = limit.max_rows if isinstance(limit, ReadMaxRows) else None
            end = await Limits(client, states, start, end).within(records, options.bytes_max)
        return going_on(start, end, {name: state.firsts for name, state in states.items()})

    async def _hold(self, start: Offsets, states: States) -> None:
        if self._options.subscription is None:
            if not self._warned:
                log.warning(
                    "without the option `subscription`, messages may be deleted before this query has read them"
                )
            self._warned = True
            return
        if self._progress is None:
            name, release, idle = self._options.subscription, self._options.release, self._options.idle_seconds
            self._progress = SubscriptionProgress(self._link.client, name, release=release, idle_seconds=idle)
        if start != self._synced:
            await asyncio.to_thread(sync_checkpoint, self._options.sync_checkpoint)
            self._synced = start
        await self._progress.reached(start, states)

    @with_help
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._link.wait(self._newest())

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Spark calls it for the lag in the query's progress."""
        return None if self._seen is None else to_json(self._seen)

    async def _newest(self) -> Offsets:
        return latest(await describe_topics(self._link.client, self._options, absent_ok=True))

    @with_help
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the same ranges for the same offsets, whenever it is called."""
        after = from_json(end)
        before = as_it_began(from_json(start), after)
        states = self._link.wait(describe_topics(self._link.client, self._options, absent_ok=True))
        check_known(before, states, self._lost)
        check_known({name: each for name, each in after.items() if name not in before}, states, _nothing)
        checkpoint = self._options.watermark_of
        watermark = None if checkpoint is None else late_watermark(checkpoint, end)
        return _partitions(self._link, ranges_between(before, after, states), states, self._options, watermark)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._names, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark calls it late, and not for the last batch. The start of `latestOffset` has the same information."""

    @with_help
    def stop(self) -> None:
        if self._progress is not None:
            self._link.wait(self._progress.close())


def _nothing(_: str) -> None:
    """Ignores lost messages: a topic that is new to the query was never promised any that were deleted before."""


def _not_before(start: Offsets, end: Offsets) -> Offsets:
    """The offsets, but never less than before, even if the broker lost messages."""
    found: Offsets = {}
    for name, ends in end.items():
        known = start[name].next if name in start else ()
        rest = ends.next[len(known) :]
        found[name] = TopicOffsets(ends.id, (*map(max, known, ends.next), *rest))
    return found


def _at_most(target: Offsets, end: Offsets) -> Offsets:
    """The offsets up to the target: excludes messages, partitions and topics that are newer than it."""
    return {
        name: TopicOffsets(ends.id, tuple(map(min, ends.next, target[name].next)))
        for name, ends in end.items()
        if name in target and target[name].id == ends.id
    }
