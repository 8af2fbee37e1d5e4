"""All messages of a topic as one DataFrame: sealed Parquet segments with Spark's own reader, the rest with the source.

Spark's reader is faster, because no row passes through Python, and it skips columns and row groups.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from pydanube.base.errors import OptionInvalid
from pydanube.operations.storage import SealedSegment
from pydanube.spark.broker_link import link_to
from pydanube.spark.columns import ALL, IN_SEGMENTS, ddl
from pydanube.spark.decode import decoded_columns
from pydanube.spark.offsets import Offsets, TopicOffsets, to_json
from pydanube.spark.options import Options
from pydanube.spark.plan import ObjectLocation, Range, ranges_between, with_stored
from pydanube.spark.sealed import find_segments
from pydanube.spark.topics import snapshot

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger(__name__)
SCHEMES = {"file": "file", "s3": "s3a", "gs": "gs", "gcs": "gs"}  # Danube's -> Hadoop's
GLOB = frozenset("{}[]*?\\")  # Spark would take them as a pattern
CHECKED = {"parquet.page.verify-checksum.enabled": "true"}


class SealedRange(NamedTuple):
    """The offsets from `begin` up to, but not including, `end` of one partition, which Spark's own reader reads from
    segments."""

    topic: str
    partition: int
    begin: int
    end: int
    segments: tuple[SealedSegment, ...]


def history(
    spark: SparkSession, topic: str, *, schema: str | None = None, native: bool | None = None, **options: str
) -> DataFrame:
    """All messages that the topic has now, from its first to its last; `schema` names the columns that are needed.

    `native=False` leaves Spark's own reader out; `native=True` is for folders that all executors of a cluster have.
    Options are those of the data source, `url` for one; those with a dot are given as `**{"tls.ca": ...}`.
    """
    given = {"topic": topic, **options}
    wanted = Options.of(given, streaming=False)
    if wanted.value is not None:
        if native:
            raise OptionInvalid(
                "value.format needs the data source: Spark's own reader (native=True) does not decode payloads"
            )
        native = False
    decoded = None if wanted.value is None else decoded_columns(wanted.value, quoted=True)
    shown = ddl(attributes=wanted.attributes, meta=wanted.meta, decoded=decoded) if schema is None else schema
    reader = spark.read.format("danube").schema(shown)
    link = link_to(wanted.url, wanted.ca_file)
    start, end, states = link.wait(snapshot(link.client, wanted))
    sealed: list[SealedRange] = []
    base = None
    if native is not False:
        ranges = ranges_between(start, end, states)
        found, location = link.wait(find_segments(link.client, wanted, ranges, states))
        for each in with_stored([tuple(ranges)], found)[0]:
            sealed += [] if (part := sealed_part(each)) is None else [part]
        base = _base(spark, location, sealed, native) if location is not None and sealed else None
    if base is not None:
        start = _behind(start, sealed)
    bounds = {"startingOffsets": json.dumps(to_json(start)), "endingOffsets": json.dumps(to_json(end))}
    others = {name: value for name, value in given.items() if not name.lower().startswith(("starting", "ending"))}
    frame = reader.options(**others, **bounds).load()
    if base is not None:
        for name in sorted({each.topic for each in sealed}):
            parts = [each for each in sealed if each.topic == name]
            frame = frame.unionByName(_native(spark, base, name, parts, frame.columns))
    return frame


def sealed_part(wanted: Range) -> SealedRange | None:
    """The beginning of the range that lies in segments. A gap ends it, because there may be messages in it."""
    at, segments = wanted.begin, []
    for segment in wanted.stored:
        if segment.first > at or at >= wanted.end:
            break
        segments.append(segment)
        at = min(segment.last + 1, wanted.end)
    return SealedRange(wanted.topic, wanted.partition, wanted.begin, at, tuple(segments)) if segments else None


def _behind(start: Offsets, sealed: Sequence[SealedRange]) -> Offsets:
    done = {(each.topic, each.partition): each.end for each in sealed}
    return {
        name: TopicOffsets(each.id, tuple(done.get((name, number), at) for number, at in enumerate(each.next)))
        for name, each in start.items()
    }


def _base(
    spark: SparkSession, location: ObjectLocation, sealed: Sequence[SealedRange], native: bool | None
) -> str | None:
    """The location as the JVM spells it, if the JVM can reach it."""
    parts = urlsplit(location.url)
    if parts.scheme not in SCHEMES or GLOB & set(unquote(parts.path)):
        return None
    base = f"{SCHEMES[parts.scheme]}://{parts.netloc}{unquote(parts.path).rstrip('/')}"
    try:
        if parts.scheme == "file" and native is None and not str(spark.sparkContext.master).startswith("local"):
            return None  # a folder that the driver has may be missing on executors
        jvm, session = spark._jvm, spark._jsparkSession
        assert jvm is not None
        path = jvm.org.apache.hadoop.fs.Path(f"{base}/{sealed[0].segments[0].key}")
        there = path.getFileSystem(session.sessionState().newHadoopConf()).exists(path)
    except Exception as error:  # any error of Java: no such file system, no credentials, no answer
        log.info("sealed messages are read through Python, because the JVM cannot reach %s: %s", parts.scheme, error)
        return None
    return base if there else None


def _native(
    spark: SparkSession, base: str, topic: str, parts: Sequence[SealedRange], names: Sequence[str]
) -> DataFrame:
    from pyspark.sql.functions import col, lit

    stored = {IN_SEGMENTS[name]: ALL[name] for name in names if name in IN_SEGMENTS} | {"offset": ALL["offset"]}
    schema = ", ".join(f"`{name}` {kind}" for name, kind in stored.items()) + f", `partition` {ALL['partition']}"
    paths = [f"{base}/{segment.key}" for part in parts for segment in part.segments]
    folder = paths[0].partition("/partition=")[0]  # the partition is in the path
    frame = spark.read.schema(schema).options(basePath=folder, **CHECKED).parquet(*paths)
    for part in parts:
        if part.begin > part.segments[0].first:
            frame = frame.where((col("partition") != part.partition) | (col("offset") >= part.begin))
        if part.end <= part.segments[-1].last:
            frame = frame.where((col("partition") != part.partition) | (col("offset") < part.end))
    implied = {"topic": lit(topic), "partition": col("partition")}
    return frame.select(*((implied[name] if name in implied else col(IN_SEGMENTS[name])).alias(name) for name in names))
