"""Spark looks for data sources in packages named `pyspark_*`: here it finds `danube_tables`, the sink of pipelines."""

from pydanube.pipeline.query.writer import TablesSink as DefaultSource

__all__ = ["DefaultSource"]
