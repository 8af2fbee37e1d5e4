"""Everything a topic has, as one DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def history(spark: SparkSession, topic: str, *, schema: str | None = None, **options: str) -> DataFrame:
    """All messages that the topic has now, from its first to its last; `schema` names the columns that are needed.

    Options are those of the data source, `url` for one; those of `tls.ca` are given as `**{"tls.ca": ...}`.
    """
    reader = spark.read.format("danube").options(topic=topic, **options)
    return (reader if schema is None else reader.schema(schema)).load()
