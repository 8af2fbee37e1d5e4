"""Spark looks for data sources in packages named `pyspark_*`: here it finds `danube`, without registration."""

from pydanube.spark.source import DanubeSource as DefaultSource

__all__ = ["DefaultSource"]
