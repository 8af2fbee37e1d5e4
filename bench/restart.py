"""What a restart with many topics costs: transactions of the metadata, and the time until all topics are open.

    python bench/restart.py [TOPICS]

Once after a clean stop, and once after a crash, when every topic has two ledgers that must be recovered.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, process_time

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.broker.standalone import Broker, StandaloneSettings
from pydanube.topic.records import SubscriptionKind
from pydanube.wire.batch import build

TOPICS = 1_000
BATCH = build([b"x" * 100] * 10, publish_time=1)


def revision(broker: Broker) -> int:
    return broker.door.directory.store.revision


async def opened(directory: str) -> Broker:
    broker = Broker(StandaloneSettings(Path(directory)))
    await broker.open()
    return broker


async def fill(directory: str, count: int) -> Broker:
    broker = await opened(directory)
    for number in range(count):
        each = await broker.door.topics.open(SYSTEM, Action.TOPIC_SERVE, f"/default/t{number}", create=True)
        await each.reliable.publish(BATCH).confirmed
        await each.reliable.subscribe("s", SubscriptionKind.SHARED, start="earliest")
    return broker


async def restart(directory: str) -> None:
    start, cpu = perf_counter(), process_time()
    broker = await opened(directory)
    up, before = perf_counter() - start, revision(broker)
    broker.door.reopen()
    assert broker.door._reopening is not None
    await broker.door._reopening
    took, used = perf_counter() - start, process_time() - cpu
    count = len(broker.door.topics.opened())
    print(
        f"{count} topics open after {took:.2f} s ({used:.2f} s of processor time), listening after {up:.2f} s; "
        f"{revision(broker) - STARTED} transactions in all, {revision(broker) - before} of them after that"
    )
    await broker.close()


STARTED = 0  # the revision at the last stop


async def main(phase: str, directory: str, count: int) -> None:
    global STARTED
    note = Path(directory).parent / "revision"
    if phase == "restart":
        STARTED = int(note.read_text())
        return await restart(directory)
    broker = await fill(directory, count)
    if phase == "stop":
        await broker.close()
    note.write_text(str(revision(broker)))
    os._exit(0)


def run(count: int) -> None:
    for phase in ("stop", "crash"):
        with tempfile.TemporaryDirectory() as scratch:
            directory = f"{scratch}/data"
            for each in (phase, "restart"):
                subprocess.run([sys.executable, __file__, each, directory, str(count)], check=True, stdout=sys.stdout)
        print(f"... after a {phase}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 3:
        asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    else:
        run(int(sys.argv[1]) if len(sys.argv) > 1 else TOPICS)
