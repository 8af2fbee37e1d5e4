"""A driver that copies one topic to another and ends when all is there. Run, and killed, by test_sink_kills.py.

`python topic_to_topic.py URL SOURCE TARGET CHECKPOINT RECORDS`, the last for each trigger. Keys are redrawn whenever
a batch is repeated, so its rows fall otherwise.
"""

from __future__ import annotations

import sys

import pydanube.spark

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.level=ERROR"
CONFIG = {"spark.driver.memory": "1g", "spark.driver.extraJavaOptions": QUICK, "spark.log.level": "ERROR"}


def main(url: str, source: str, target: str, checkpoint: str, records: str) -> None:
    spark = pydanube.spark.session("topic-to-topic", "local[2]", config=CONFIG)
    reader = spark.readStream.format("danube").options(url=url, topic=source, startingOffsets="earliest")
    loaded = reader.options(maxRecordsPerTrigger=records, minPartitions="2", subscription="copy").load()
    writer = loaded.selectExpr("value", "string(rand()) key").writeStream.format("danube")
    writer = writer.options(url=url, topic=target, checkpointLocation=checkpoint)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
