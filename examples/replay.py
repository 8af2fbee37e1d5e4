"""An import that can be killed and restarted at any time, and a consumer that rewinds and reads everything again.

The program numbers its messages, so the broker recognises those already published. Run it twice: the second run
publishes nothing new. Needs a broker (`make run`), at DANUBE_URL or on this machine.
"""

from __future__ import annotations

import asyncio
import os

import pydanube
from pydanube.client import Client

URL = os.environ.get("DANUBE_URL", "danube://127.0.0.1:6650")
TOPIC = "/default/example-readings"
READINGS = [b"%d degrees" % (15 + hour % 12) for hour in range(24)]


async def load(client: Client) -> None:
    async with client.producer(TOPIC, name="thermometer") as producer:
        print("published so far:", 0 if producer.last_sequence is None else producer.last_sequence + 1)
        receipts = await producer.send_many(READINGS, sequence=0)
        print("repeated:", sum(receipt.duplicate for receipt in receipts))


async def average(client: Client) -> None:
    async with client.consumer(TOPIC, subscription="average", start="earliest") as consumer:
        await consumer.seek("earliest")  # even if everything was acknowledged before
        messages = await consumer.fetch(len(READINGS), timeout=10)
        degrees = [int((message.payload or b"0").split()[0]) for message in messages]
        await consumer.ack_all(messages[-1])
        print(f"{len(degrees)} readings, {sum(degrees) / len(degrees):.1f} degrees on average")


async def main() -> None:
    async with pydanube.connect(URL) as client:
        await load(client)
        await average(client)
        async with client.reader(TOPIC, start=len(READINGS) - 1) as reader:  # without a subscription
            print("the last one:", (await reader.receive(timeout=10)).payload)


if __name__ == "__main__":
    asyncio.run(main())
