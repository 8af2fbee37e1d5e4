"""A driver on a cluster, in a process of its own: reads a topic, writes it to another, and prints what it saw.

python cluster_driver.py MASTER PYTHON URL CA TOPIC COPY
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pyspark.sql.functions import count, expr
from pyspark.sql.functions import sum as total

import pydanube.spark
from pydanube.spark.launch import wrapped

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.driver.extraJavaOptions": QUICK,
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "1",
}


def main(master: str, python: str, url: str, authority: str, topic: str, copy: str) -> None:
    spark = pydanube.spark.session("danube-cluster", master, python=wrapped(python), config=SETTINGS)

    def look(_: Iterator[Any]) -> Iterator[Any]:
        import os
        import sys

        import pyarrow

        import pydanube as found

        told = [sys.executable, found.__file__, os.environ.get("AWS_SECRET_ACCESS_KEY", "")]
        yield pyarrow.RecordBatch.from_pydict({"told": told})

    def read(**options: str) -> list[int]:
        given = {"url": url, "tls.ca": authority, "topic": topic} | options
        frame = spark.read.format("danube").options(**given).schema("value BINARY, key BINARY").load()
        [row] = frame.agg(count("*"), total(expr("cast(cast(value as string) as bigint)"))).collect()
        return list(row)

    try:
        found: dict[str, Any] = {"direct": read(), "partly": read(**{"objects.url": "file:///nowhere"})}
        found["told"] = [row.told for row in spark.range(0, 1, 1, 1).mapInArrow(look, "told STRING").collect()]
        given = {"url": url, "tls.ca": authority}
        frame = spark.read.format("danube").options(topic=topic, **given).schema("value BINARY, key BINARY").load()
        frame.write.format("danube").options(topic=copy, **given).mode("append").save()
        found["copied"] = read(topic=copy)
        print(json.dumps(found))
    finally:
        spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
