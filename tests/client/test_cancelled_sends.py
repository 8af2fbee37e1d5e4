"""S14: whoever gives up waiting for a send harms no other. Every message stays whole, in its topic and in its place.

Many concurrent sends over twenty topics, with cancellations, time-outs and broken connections. 200,000 messages a
round; `DANUBE_S14_ROUNDS=50` makes it ten million.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from client.broker import Door, with_door
from pydanube.client import Client, ClientEvent, Producer
from pydanube.client.send_results import SentMessage

ROUNDS = int(os.environ.get("DANUBE_S14_ROUNDS", "1"))
TOPICS = 20
BURSTS = 100  # to each topic
BURST = 100  # messages
FILLING = bytes(range(256))


def payload(topic: int, number: int) -> bytes:
    """Says where it belongs, and has a length of its own."""
    return b"%d:%d:" % (topic, number) + FILLING[: number * 7 % 90]


async def give_up(sends: Sequence[SentMessage], chance: Random) -> None:
    """Waits for some of them, each in a task of its own, and cancels or outwaits most."""

    async def wait(sent: SentMessage, seconds: float | None) -> None:
        async with asyncio.timeout(seconds):
            await sent

    picked = chance.sample(sends, 6)
    waits = [asyncio.create_task(wait(sent, chance.choice((None, None, 0.0, 0.001)))) for sent in picked]
    for _ in range(chance.randrange(3)):
        await asyncio.sleep(0)
    for task in waits[:3]:
        task.cancel()
    await asyncio.gather(*waits, return_exceptions=True)


async def publish(producer: Producer, topic: int, chance: Random) -> list[SentMessage]:
    sent: list[SentMessage] = []
    for burst in range(BURSTS):
        await producer.ready()
        first = burst * BURST
        sent += [producer.send(payload(topic, number)) for number in range(first, first + BURST)]
        await give_up(sent[first:], chance)
    return sent


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_sends_that_are_given_up_corrupt_no_other(tmp_path: Path, round_: int) -> None:
    chance = Random(round_)

    async def run(client: Client, door: Door) -> None:
        names = [f"/default/topic-{number}" for number in range(TOPICS)]
        producers = [await client.producer(name, batch_messages=300, buffer_bytes=1 << 20).open() for name in names]
        work = [
            asyncio.create_task(publish(producer, topic, Random(chance.random())))
            for topic, producer in enumerate(producers)
        ]
        for part in (3, 2):  # a third of the messages in, then half of the rest
            while producers[0].next_sequences[0] < BURSTS * BURST // part:
                door.asked.clear()
                await door.asked.wait()
            door.cut()
        sent = await asyncio.gather(*work)
        for topic, producer in enumerate(producers):
            await producer.close()
            stored = (await client.read_arrow(names[topic])).column("payload").to_pylist()
            assert stored == [payload(topic, number) for number in range(BURSTS * BURST)]
            receipts = [await each for each in sent[topic]]
            assert [receipt.offset for receipt in receipts] == list(range(BURSTS * BURST))
            assert {receipt.topic for receipt in receipts} == {names[topic]}

    events: list[ClientEvent] = []
    with_door(tmp_path, run, seconds=60, on_event=events.append)
    assert [event.what for event in events].count("disconnected") == 2
