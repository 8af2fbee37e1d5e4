"""A work queue: three workers share the jobs, a failed job is delivered again, and none is done twice.

Needs a broker (`make run`), at DANUBE_URL or on this machine.
"""

from __future__ import annotations

import asyncio
import os

import pydanube
from pydanube.client import Client

URL = os.environ.get("DANUBE_URL", "danube://127.0.0.1:6650")
TOPIC = "/default/example-jobs"
JOBS = 12


async def work(client: Client, worker: str, done: asyncio.Queue[str]) -> None:
    retry_soon = {"failure": {"base_delay": 0.01}}  # seconds
    async with client.consumer(
        TOPIC, subscription="workers", type="shared", start="earliest", prefetch=1, options=retry_soon
    ) as jobs:
        async for job in jobs:
            name = (job.payload or b"").decode()
            if name.endswith("7") and not job.redelivery_count:
                print(f"{worker}: {name} fails")
                jobs.nack(job, reason="the printer is out of paper")
                continue
            await jobs.ack(job)  # on disk: this job is not delivered again
            print(f"{worker}: {name} is done")
            done.put_nowait(name)


async def main() -> None:
    async with pydanube.connect(URL) as client:
        done: asyncio.Queue[str] = asyncio.Queue()
        workers = [asyncio.create_task(work(client, f"worker {number}", done)) for number in (1, 2, 3)]
        async with client.producer(TOPIC) as producer:
            await producer.send_many([b"job %d" % number for number in range(JOBS)])
        finished = [await done.get() for _ in range(JOBS)]
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        print(f"{len(finished)} jobs, {len(set(finished))} different ones")


if __name__ == "__main__":
    asyncio.run(main())
