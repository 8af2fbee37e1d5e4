"""The broker and the one Spark session of the process, as the tests of the Spark source have them."""

from __future__ import annotations

from spark.conftest import active, client, java, spark, topic, url

__all__ = ["active", "client", "java", "spark", "topic", "url"]
