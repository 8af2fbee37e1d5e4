"""Readers of the data source driven as Spark drives them, and topics filled for them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit

import pydanube.sync
from pydanube.spark.options import Options
from pydanube.spark.source import BatchReader, StreamReader

NAMES = ("partition", "offset", "value")
Row = tuple[int, int, bytes | None]


class Readers:
    """Makes readers of one topic; what they hand out is read as an executor would, on a copy."""

    def __init__(self, url: str, topic: str) -> None:
        self.url = url
        self.topic = topic

    def _options(self, given: dict[str, str], *, streaming: bool) -> Options:
        named = {} if {"topic", "topicPattern"} & given.keys() else {"topic": self.topic}
        return Options.of({"url": self.url} | named | given, streaming=streaming)

    def batch(self, **given: str) -> BatchReader:
        return BatchReader(self._options(given, streaming=False), NAMES)

    def stream(self, **given: str) -> StreamReader:
        return StreamReader(self._options({"startingOffsets": "earliest"} | given, streaming=True), NAMES)


def rows(reader: BatchReader | StreamReader, partitions: Sequence[InputPartition]) -> list[Row]:
    found: list[Row] = []
    for partition in partitions:
        copy, task = pickle.loads(pickle.dumps((reader, partition)))
        for batch in copy.read(task):
            found += [(each["partition"], each["offset"], each["value"]) for each in batch.to_pylist()]
    return found


def all_rows(reader: BatchReader) -> list[Row]:
    return rows(reader, reader.partitions())


class Query:
    """A stream reader with its checkpoint."""

    def __init__(self, reader: StreamReader, start: dict[str, Any] | None = None) -> None:
        self.reader = reader
        self.at = reader.initialOffset() if start is None else start

    def plan(self, limit: ReadLimit | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        return self.at, self.reader.latestOffset(self.at, limit or self.reader.getDefaultReadLimit())

    def trigger(self, limit: ReadLimit | None = None) -> list[Row]:
        """One batch: planned, read and committed."""
        start, end = self.plan(limit)
        found = rows(self.reader, self.reader.partitions(start, end)) if end != start else []
        self.at = end
        return found

    def everything(self) -> list[Row]:
        return self.trigger(ReadAllAvailable())

    def until_done(self) -> list[list[Row]]:
        """Batches until there is nothing new."""
        found = []
        while True:
            start, end = self.plan()
            if start == end:
                return found
            found.append(self.trigger())


def fill(
    client: pydanube.sync.Client, topic: str, values: Iterable[bytes], *, partitions: int = 0, **more: Any
) -> None:
    """Publishes; makes the topic if it is not there."""
    if topic not in client.admin.topics("default"):
        client.admin.create_topic(topic, partitions=partitions)
    with client.producer(topic) as producer:
        producer.send_many(list(values)).result()


def singly(client: pydanube.sync.Client, topic: str, values: Iterable[bytes]) -> None:
    """Each message in a batch of its own."""
    with client.producer(topic) as producer:
        for value in values:
            producer.send(value).result()


def values_of(found: Iterable[Row]) -> list[bytes]:
    return sorted(value or b"" for _, _, value in found)


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%06d" % number for number in range(first, last + 1)]
