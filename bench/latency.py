"""Measures what `linger` does to latency and processor time at several rates. Run by `make bench-latency`.

A broker in its own process; this one publishes durable messages of 100 bytes, one by one without awaiting them, and
consumes and acknowledges them. Each rate is measured with the default, which is no `linger`, and with fixed ones, in
turns, so that a busy machine disturbs all alike. Each line is beside the probes (`bench/probes.py`) of its own slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from struct import pack, unpack_from
from time import perf_counter, process_time
from typing import Any

import uvloop

import pydanube
from probes import Probes, percentile, probing
from processes import Broker, broker, spent
from pydanube.client.outgoing_batch import OutgoingBatch

LINGERS = (0.0, 0.0005, 0.001, 0.002, 0.005)  # seconds; the default is first
TICK_SECONDS = 0.001  # the event loop's own timers are no finer: several messages share a tick at higher rates
AHEAD_MAX = 50_000  # messages sent and not received: at more than the machine can do, the queue must not be the figure
SAMPLED = 20  # of so many messages at the highest rate, one is timed
SHARES = (0.5, 0.99)


@dataclass(frozen=True, slots=True)
class Load:
    rate: int  # messages per second
    rounds: int
    seconds: float  # of each round and linger


LOADS = (Load(1, 1, 8), Load(1_000, 3, 2), Load(10_000, 3, 2), Load(1_000_000, 3, 1))


@dataclass(slots=True)
class Line:
    """What was measured at one rate with one linger, in seconds."""

    receipts: list[float] = field(default_factory=list)
    deliveries: list[float] = field(default_factory=list)
    messages: int = 0
    elapsed: float = 0.0
    client: float = 0.0
    broker: float = 0.0


@contextmanager
def receipts_into(found: list[float], step: int) -> Iterator[None]:
    """Times receipts where they arrive. To await one would send its batch before its `linger` is over."""
    acknowledge = OutgoingBatch.acknowledge

    def timed(outgoing: OutgoingBatch, *arguments: Any, **options: Any) -> None:
        now = perf_counter()
        assert outgoing.batch is not None
        found.extend(now - sent_at(payload) for payload in outgoing.batch.payloads()[::step])
        acknowledge(outgoing, *arguments, **options)

    OutgoingBatch.acknowledge = timed  # type: ignore[method-assign]
    try:
        yield
    finally:
        OutgoingBatch.acknowledge = acknowledge  # type: ignore[method-assign]


def sent_at(payload: bytes | None) -> float:
    found: float = unpack_from("<d", payload or b"")[0]
    return found


async def measure(client: pydanube.Client, running: Broker, topic: str, load: Load, linger: float, line: Line) -> None:
    count = int(load.rate * load.seconds)
    each = max(1, int(load.rate * TICK_SECONDS))
    step = SAMPLED if load.rate > 100_000 else 1
    room = asyncio.Event()
    sent = received = 0

    async def send(producer: pydanube.Producer) -> None:
        nonlocal sent
        due = perf_counter()
        while sent < count and perf_counter() - began < 2 * load.seconds:
            due += each / load.rate
            await asyncio.sleep(max(0.0, due - perf_counter()))
            if sent - received > AHEAD_MAX:
                room.clear()
                await room.wait()
            payload = pack("<d92x", perf_counter())
            for _ in range(each):
                producer.send(payload)
            sent += each
        await producer.flush()

    async def receive(consumer: pydanube.Consumer) -> None:
        nonlocal received
        async for batch in consumer.batches():
            now = perf_counter()
            line.deliveries += [now - sent_at(payload) for payload in batch.payloads[::step]]
            consumer.ack(batch)
            received += len(batch)
            room.set()
            if sending.done() and received == sent:
                return

    options: dict[str, Any] = {"linger": linger} if linger else {}
    async with (
        client.consumer(topic, subscription="s", start="earliest") as consumer,
        client.producer(topic, **options) as producer,
    ):
        await producer.send(pack("<d92x", perf_counter()))
        await consumer.ack(await consumer.receive())
        with receipts_into(line.receipts, step):
            spent_before, used_before, began = spent(running.pid), process_time(), perf_counter()
            sending = asyncio.create_task(send(producer))
            receiving = asyncio.create_task(receive(consumer))
            await sending
            sent += 1
            await producer.send(pack("<d92x", perf_counter()))  # so that the consumer sees that it was the last
            await receiving
        line.elapsed += perf_counter() - began
        line.client += process_time() - used_before
        line.broker += spent(running.pid) - spent_before
        line.messages += sent
    await client.admin.delete_topic(topic)


COLUMNS = "{:>11} {:>8}  {:>9} {:>9}  {:>9} {:>9}  {:>8} {:>8}  {:>8} {:>9}  {:>8} {:>8}"
GROUPS = ("", "", "receipt,", "ms", "delivery,", "ms", "CPU", "µs", "probes", "µs", "delivery", "multiple")
NAMES = ("messages/s", "linger", "p50", "p99", "p50", "p99", "client", "broker", "echo", "fdatasync", "p50", "p99")


def show(linger: float, line: Line, probes: Probes) -> None:
    times = [percentile(each, share) * 1e3 for each in (line.receipts, line.deliveries) for share in SHARES]
    used = [each / line.messages * 1e6 for each in (line.client, line.broker)]
    beside = [percentile(each, 0.5) * 1e6 for each in (probes.echoes, probes.syncs)]
    multiples = [percentile(line.deliveries, share) / probes.floor(share) for share in SHARES]
    row = [f"{line.messages / line.elapsed:,.0f}", f"{linger * 1e3:g} ms", *(f"{each:.2f}" for each in times)]
    row += [f"{each:.1f}" for each in used] + [f"{each:.0f}" for each in beside]
    row += [f"{each:.1f}x" for each in multiples]
    print(COLUMNS.format(*row), flush=True)


def against_fixed(lines: list[Line]) -> None:
    """The default against the best of the fixed lingers, for each column."""
    found = []
    for name in ("receipts", "deliveries"):
        for share in SHARES:
            default, *fixed = (percentile(getattr(line, name), share) for line in lines)
            found.append(f"{name} p{share * 100:g} {default / min(fixed):.2f}x")
    for name in ("client", "broker"):
        default, *fixed = (getattr(line, name) / line.messages for line in lines)
        found.append(f"{name} {default / min(fixed):.2f}x")
    print("   the default against the best fixed linger: " + ", ".join(found), flush=True)


async def measure_all(running: Broker) -> None:
    print(COLUMNS.format(*GROUPS), COLUMNS.format(*NAMES), sep="\n")
    with probing(running.directory) as probes:
        async with pydanube.connect(running.url) as client:
            for load in LOADS:
                lines = [Line() for _ in LINGERS]
                beside = [probes.fresh() for _ in LINGERS]
                for round_ in range(load.rounds):
                    turns = range(len(LINGERS))
                    for number in turns if round_ % 2 == 0 else reversed(turns):
                        beside[number].take()
                        topic = f"/default/rate-{load.rate}-{round_}-{number}"
                        await measure(client, running, topic, load, LINGERS[number], lines[number])
                        beside[number].take()
                for linger, line, taken in zip(LINGERS, lines, beside, strict=True):
                    show(linger, line, taken)
                against_fixed(lines)


def main() -> None:
    with broker() as running:
        uvloop.run(measure_all(running))


if __name__ == "__main__":
    main()
