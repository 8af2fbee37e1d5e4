"""A topic as a target: rows become messages, which are staged and committed like those of Spark's topic sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pydanube.base.errors import OptionInvalid, SchemaMismatch, SinkConflict, TargetRefused, TopicExists
from pydanube.operations.sinks import ForgetSink
from pydanube.pipeline.targets.mark import Mark, Verdict
from pydanube.pipeline.targets.target import Target
from pydanube.spark.broker_link import PATIENCE_SECONDS, BrokerLink, link_to
from pydanube.spark.committing import STREAM, Write, batcher_of, commit, merged, topic_exists
from pydanube.spark.options import whole_name
from pydanube.spark.staging import Refs, Stage, Writer, find_target

if TYPE_CHECKING:
    import pyarrow as pa

EVENT_TIME = "event_time"


@dataclass(frozen=True)
class TopicTarget(Target):
    """`key` and `value` are columns; without `value`, the payload is the JSON of all columns. A topic that does not
    exist is created with `partitions`, or without any by the first commit.
    """

    topic: str
    url: str
    ca: str | None = None
    key: str | None = None
    value: str | None = None
    partitions: int | None = None

    @property
    def label(self) -> str:
        return f"topic:{self.topic}"

    @property
    def identity(self) -> str:
        return f"{self.url.rstrip('/')}|{whole_name(self.topic)}"

    def prepare(self, schema: pa.Schema) -> None:
        if self.check(schema):
            link = self._link()
            with suppress(TopicExists):  # another writer was faster
                link.wait(link.client.admin.create_topic(whole_name(self.topic), partitions=self.partitions or 0))

    def check(self, schema: pa.Schema, *, replace: bool = False) -> bool:
        """Asks the broker too, because a topic that stores nothing is refused."""
        import pyarrow as pa

        if replace:
            raise OptionInvalid(f"{self.label} can only be appended to: complete mode would take back what was read")
        for role, name in (("key", self.key), ("value", self.value)):
            if name is None:
                continue
            if name not in schema.names:
                raise SchemaMismatch(f"{self.label}: {role} names {name[:100]}, which is not a column of the rows")
            kind = schema.field(name).type
            texts = pa.types.is_string(kind) or pa.types.is_binary(kind)
            if not texts and (role == "value" or pa.types.is_nested(kind)):
                raise SchemaMismatch(
                    f"{self.label}: {role} must be STRING or BINARY, but {name[:100]} is {kind}: cast it"
                )
        if self.value is None:
            from pydanube.pipeline.targets.files.json_rows import check_types

            check_types(schema)
        link = self._link()
        link.wait(find_target(link.client, whole_name(self.topic)))
        return self.partitions is not None and not link.wait(topic_exists(link.client, whole_name(self.topic)))

    def open(self, mark: Mark, schema: pa.Schema, task: str) -> TopicStager:
        return TopicStager(self, self._link(), self._write(mark), int(task.split("-")[1]) if "-" in task else 0)

    def commit(
        self,
        mark: Mark,
        schema: pa.Schema,
        parts: Sequence[Mapping[str, Refs]],
        *,
        replace: bool,
        replaces: tuple[str, ...] = (),
    ) -> Verdict:
        if replace:
            raise TargetRefused(
                f"{self.label} can only be appended to: complete mode would take back what others have read"
            )
        found = merged(parts)
        if not found:
            return Verdict.NEW  # nothing to remember: the next batch is newer in any case
        link = self._link()
        write = self._write(mark)
        try:
            return Verdict(link.wait(commit(link.client, write, found, mark.source)))
        except SinkConflict:
            if not replaces:
                raise
        for query in replaces:
            link.wait(link.client.ask(ForgetSink(*write.writer._replace(query=query))))
        return Verdict(link.wait(commit(link.client, write, found, mark.source)))

    def remembered(self, now: Mark) -> Mark | None:
        """The newest writer to the topic under the pipeline's name."""
        link, own = self._link(), self._write(now).writer
        found = link.wait(link.client.admin.sinks())
        known = [each for each in found if (each.target, each.name) == (own.target, own.name)]
        last = max(known, key=lambda each: each.committed, default=None)
        if last is None:
            return None
        return replace(now, query=last.query, run=last.run, source=last.source, batch=last.batch)

    def rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as columns of messages."""
        import pyarrow as pa

        columns: dict[str, pa.Array] = {}
        if self.value is None:
            from pydanube.pipeline.targets.files.json_rows import json_of

            columns["value"] = json_of(rows)
        else:
            columns["value"] = rows.column(self.value)
        if self.key is not None:
            key = rows.column(self.key)
            plain = pa.types.is_string(key.type) or pa.types.is_binary(key.type)
            columns["key"] = key if plain else key.cast(pa.string())
        if EVENT_TIME in rows.schema.names:
            time = rows.column(EVENT_TIME)
            if pa.types.is_timestamp(time.type) and time.type.tz is not None:
                columns[EVENT_TIME] = time
        return pa.RecordBatch.from_pydict(columns)

    def _link(self) -> BrokerLink:
        return link_to(self.url, self.ca, patience=PATIENCE_SECONDS)

    def _write(self, mark: Mark) -> Write:
        writer = Writer(mark.query, whole_name(self.topic), f"pipeline {mark.key}")
        return Write(writer, STREAM, mark.run, mark.batch)


class TopicStager:
    """One task's rows. What is staged and never committed expires in the hidden topic."""

    def __init__(self, target: TopicTarget, link: BrokerLink, write: Write, partition: int) -> None:
        self._target = target
        self._stage = Stage(link, write.writer)
        self._batcher = batcher_of(link, write, partition, write.writer.target)

    def add(self, rows: pa.RecordBatch) -> None:
        for batch in self._batcher.add(self._target.rows(rows)):
            self._stage.put(batch)

    def finish(self) -> dict[str, Refs] | None:
        try:
            for batch in self._batcher.rest():
                self._stage.put(batch)
            return self._stage.finish() or None
        finally:
            self._stage.close()

    def drop(self) -> None:
        with suppress(Exception):
            self._stage.close()
