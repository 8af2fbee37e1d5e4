"""A broker under load for as long as you like, with faults: `make soak MINUTES=60`.

Two producers publish at 70 % of the rate that the machine can sustain, while consumers of all four subscription types
read and acknowledge. In the first half the broker process is killed, stopped cleanly and paused at random; the second
half has only pauses, so that the memory of one process can be watched. At the end everything is drained and checked:

- every message with a receipt reached every subscription, and is stored once;
- no message was delivered again after its ack was confirmed;
- messages with the same key were delivered in order, where the subscription type guarantees it;
- the broker's memory did not grow steadily (checked in runs of at least 20 minutes).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pydanube
from api.broker_process import BrokerProcess
from pydanube.base.errors import DanubeError
from pydanube.client import Client, Consumer, Producer

TOPIC = "/default/soak"
KINDS = {"exclusive": 1, "shared": 2, "failover": 2, "key_shared": 2}  # and how many consumers each has
ORDERED = frozenset(KINDS) - {"shared"}
PRODUCERS = 2
KEYS = 50  # a multiple of PRODUCERS: a key has one producer
PAYLOAD_BYTES = 256
IN_FLIGHT_MAX = 2_000  # messages of a producer without a receipt
CALIBRATION_SECONDS = 10.0
LOAD = 0.7
FAULT_SECONDS = (10.0, 40.0)
PAUSE_SECONDS = (1.0, 5.0)
SAMPLE_SECONDS = 5.0
DRAIN_SECONDS_MAX = 300.0
JUDGED_SECONDS_MIN = 600.0  # memory is judged over at least this long
CREEP_MAX = 0.1  # of the mean, over the time it is watched
SENT, CONFIRMED = 1, 2  # flags of a message; of a subscription SENT means that it arrived


@dataclass
class Seen:
    """What clients have observed, with one byte of flags for each message."""

    published: bytearray = field(default_factory=bytearray)
    arrived: dict[str, bytearray] = field(default_factory=lambda: {kind: bytearray() for kind in KINDS})
    newest: dict[str, list[int]] = field(default_factory=lambda: {kind: [-1] * KEYS for kind in KINDS})
    receipts: int = 0
    wrong: list[str] = field(default_factory=list)

    def arrive(self, kind: str, numbers: list[int]) -> None:
        flags, newest = self.arrived[kind], self.newest[kind]
        flags.extend(bytes(max(0, max(numbers) + 1 - len(flags))))
        for number in numbers:
            if flags[number] & CONFIRMED:
                self.wrong.append(f"{kind}: message {number} was delivered again after its ack was confirmed")
            if not flags[number]:
                key = number % KEYS
                if kind in ORDERED and number < newest[key]:
                    self.wrong.append(f"{kind}: message {number} was delivered after {newest[key]} of the same key")
                newest[key] = max(newest[key], number)
            flags[number] |= SENT

    def confirm(self, kind: str, numbers: list[int]) -> None:
        for number in numbers:
            self.arrived[kind][number] |= CONFIRMED

    def receipt(self, number: int) -> None:
        self.published.extend(bytes(max(0, number + 1 - len(self.published))))
        self.published[number] = SENT
        self.receipts += 1

    def missing(self, kind: str) -> list[int]:
        flags = self.arrived[kind]
        return [n for n, sent in enumerate(self.published) if sent and not (n < len(flags) and flags[n])]


@dataclass
class Pace:
    """Messages per second of each producer; 0 is as fast as possible."""

    rate: float = 0.0
    stopped: bool = False


async def produce(producer: Producer, number: int, seen: Seen, pace: Pace) -> None:
    room = asyncio.Semaphore(IN_FLIGHT_MAX)
    due = time.monotonic()
    waiting: set[asyncio.Task[None]] = set()

    async def settle(sent: int) -> None:
        try:
            await producer.send(payload_of(sent), key=b"k%d" % (sent % KEYS))
            seen.receipt(sent)
        except DanubeError as error:
            seen.wrong.append(f"message {sent} was not stored: {error}")
        finally:
            room.release()

    while not pace.stopped:
        await room.acquire()
        task = asyncio.create_task(settle(number))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        number += PRODUCERS
        if pace.rate:
            due = max(due + 1 / pace.rate, time.monotonic() - 1)  # an outage causes a burst of one second at most
            if due > time.monotonic():
                await asyncio.sleep(due - time.monotonic())
    await asyncio.gather(*waiting)


def payload_of(number: int) -> bytes:
    return number.to_bytes(8, "big").ljust(PAYLOAD_BYTES, b".")


async def consume(consumer: Consumer, kind: str, seen: Seen) -> None:
    acks: set[asyncio.Task[None]] = set()

    async def confirm(batch: pydanube.MessageBatch, numbers: list[int]) -> None:
        try:
            await consumer.ack(batch)
        except DanubeError:
            return  # the message will be delivered again
        seen.confirm(kind, numbers)

    async for batch in consumer.batches():
        numbers = [int.from_bytes(payload[:8], "big") for payload in batch.payloads if payload is not None]
        seen.arrive(kind, numbers)
        task = asyncio.create_task(confirm(batch, numbers))
        acks.add(task)
        task.add_done_callback(acks.discard)


async def disturb(broker: BrokerProcess, until: float, kinds: tuple[str, ...], log: list[str]) -> None:
    draw = random.Random()
    while (wait := draw.uniform(*FAULT_SECONDS)) < until - time.monotonic():
        await asyncio.sleep(wait)
        kind = draw.choice(kinds)
        log.append(kind)
        if kind == "pause":
            os.kill(broker.pid, signal.SIGSTOP)
            await asyncio.sleep(draw.uniform(*PAUSE_SECONDS))
            os.kill(broker.pid, signal.SIGCONT)
        else:
            await asyncio.to_thread(broker.end, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            await broker.start()
    await asyncio.sleep(max(0.0, until - time.monotonic()))


def memory_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def watch(broker: BrokerProcess, seen: Seen, samples: list[tuple[float, float]]) -> None:
    begun, before = time.monotonic(), seen.receipts
    while True:
        await asyncio.sleep(SAMPLE_SECONDS)
        passed, rate = time.monotonic() - begun, (seen.receipts - before) / SAMPLE_SECONDS
        before = seen.receipts
        samples.append((passed, memory_mib(broker.pid)))
        print(f"{passed:7.0f} s {rate:10,.0f} messages/s {samples[-1][1]:8.0f} MiB", flush=True)


async def drain(client: Client, seen: Seen, tasks: list[asyncio.Task[None]]) -> None:
    deadline = time.monotonic() + DRAIN_SECONDS_MAX
    missing = {kind: seen.missing(kind) for kind in KINDS}
    while any(missing.values()) and time.monotonic() < deadline and not any(task.done() for task in tasks):
        await asyncio.sleep(1)
        missing = {kind: seen.missing(kind) for kind in KINDS}
    for kind, numbers in missing.items():
        if numbers:
            seen.wrong.append(f"{kind}: {len(numbers)} messages with a receipt never arrived, such as {numbers[0]}")
    end, stored = int((await client.admin.describe_topic(TOPIC))["end"]), sum(1 for flag in seen.published if flag)
    if end != stored:
        seen.wrong.append(f"{end} messages are stored, but {stored} were sent")


def creep(samples: list[tuple[float, float]]) -> str:
    """Describes how the memory of one process developed; raises if it grew steadily."""
    if len(samples) < 2:
        return "not watched for long enough"
    times, sizes = zip(*samples, strict=True)
    passed = times[-1] - times[0]
    slope = statistics.linear_regression(times, sizes).slope * passed
    text = f"{min(sizes):.0f} to {max(sizes):.0f} MiB over {passed:.0f} s, trend {slope:+.1f} MiB"
    if passed >= JUDGED_SECONDS_MIN and slope > CREEP_MAX * statistics.mean(sizes):
        raise AssertionError(f"memory grows steadily: {text}")
    return text


async def soak(directory: Path, seconds: float, rate: float) -> list[str]:
    broker, seen, pace, faults = BrokerProcess(directory, keep_port=True), Seen(), Pace(rate / PRODUCERS), list[str]()
    host, port = await broker.start()
    async with AsyncExitStack() as stack:
        stack.callback(broker.end, signal.SIGTERM)
        client = await stack.enter_async_context(pydanube.connect(f"danube://{host}:{port}"))
        tasks = []
        for kind, count in KINDS.items():
            for _ in range(count):
                consumer = client.consumer(TOPIC, subscription=kind, type=kind, start="earliest")
                await stack.enter_async_context(consumer)
                tasks.append(asyncio.create_task(consume(consumer, kind, seen)))
        senders = []
        for number in range(PRODUCERS):
            producer = await stack.enter_async_context(client.producer(TOPIC, name=f"soak-{number}"))
            senders.append(asyncio.create_task(produce(producer, number, seen, pace)))
        if not rate:
            await asyncio.sleep(CALIBRATION_SECONDS)
            pace.rate = LOAD * seen.receipts / CALIBRATION_SECONDS / PRODUCERS
        print(f"{pace.rate * PRODUCERS:,.0f} messages/s, {len(KINDS)} subscriptions, {seconds:.0f} s", flush=True)
        middle, end = time.monotonic() + seconds / 2, time.monotonic() + seconds
        samples: list[tuple[float, float]] = []
        tasks.append(asyncio.create_task(watch(broker, seen, samples)))
        await disturb(broker, middle, ("kill", "stop", "pause"), faults)
        samples.clear()
        await disturb(broker, end, ("pause",), faults)
        pace.stopped = True
        await asyncio.gather(*senders)
        await drain(client, seen, tasks)
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(outcome, asyncio.CancelledError):
                seen.wrong.append(f"a task ended: {outcome!r}")
    try:
        print(f"memory of one process: {creep(samples)}")
    except AssertionError as error:
        seen.wrong.append(str(error))
    counts = ", ".join(f"{faults.count(kind)} {kind}" for kind in ("kill", "stop", "pause"))
    print(f"{seen.receipts:,} messages with a receipt; faults: {counts}")
    return seen.wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description="Put a broker under load with faults, then check it.")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=0.0, help="messages per second; by default 70 %% of the maximum")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="danube-soak-") as directory:
        wrong = asyncio.run(soak(Path(directory), chosen.minutes * 60, chosen.rate))
    for each in wrong[:20]:
        print(f"WRONG: {each}")
    print("every promise held" if not wrong else f"{len(wrong)} broken promises")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
