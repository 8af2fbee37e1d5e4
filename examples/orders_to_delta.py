"""From a topic to a Delta table: what each customer orders in each minute, written exactly once.

Publishes ten minutes of orders, writes all complete minutes, and shows the table. Run it again: it continues where
it stopped. `orders_by_minute.yaml` declares the same pipeline for `danube pipeline run`.
Needs Java and a broker (`make run`), at DANUBE_URL or on this machine. The table is created in ./lake.
"""

from __future__ import annotations

import json
import os
import time

from deltalake import DeltaTable

import pydanube.sync
from pydanube.pipeline import topic

URL = os.environ.get("DANUBE_URL", "danube://127.0.0.1:6650")
TOPIC = "/default/example-orders"
MINUTES, SECONDS_BETWEEN = 10, 5


def publish() -> None:
    """Publishes the orders of the last ten minutes, one every five seconds, with the time at which each happened."""
    begin = int(time.time()) // 60 * 60 - MINUTES * 60
    with pydanube.sync.connect(URL) as client, client.producer(TOPIC) as producer:
        for at in range(begin, begin + MINUTES * 60, SECONDS_BETWEEN):
            number = at // SECONDS_BETWEEN
            order = {"id": number, "customer": ("ann", "bob", "cy")[number % 3], "amount": 1.5 + number % 7}
            producer.send(json.dumps(order).encode(), event_time=at * 1_000_000)
        producer.flush()


pipeline = (
    topic(TOPIC, schema="id BIGINT, customer STRING, amount DOUBLE", expect=["amount > 0"])
    .watermark("1 minute")
    .deduplicate("id")
    .aggregate("1 minute", by="customer", orders="count(*)", total="sum(amount)")
    .to_delta("lake/orders_by_minute", partition_by="customer")
    .dead_letters(delta="lake/dead_letters")
)


def main() -> None:
    publish()
    outcome = pipeline.run("orders-by-minute", url=URL, available_now=True, checkpoint="lake/checkpoint")
    print(f"{outcome.how} after {outcome.progress.batches} batches; complete minutes:")
    table = DeltaTable("lake/orders_by_minute").to_pyarrow_table()
    for row in table.sort_by([("window_start", "ascending"), ("customer", "ascending")]).to_pylist():
        print(f"{row['window_start']:%H:%M} {row['customer']:4} {row['orders']:2} orders {row['total']:6.2f}")


if __name__ == "__main__":
    main()
