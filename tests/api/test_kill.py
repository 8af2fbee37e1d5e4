"""P1: a real broker process, killed with -9 repeatedly under load. What it said stays true."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from api.broker_process import BrokerProcess
from api.frame_client import Client, close_all
from pydanube.wire.batch import Batch, build
from pydanube.wire.commands import Ack, Acked, Deliver, Grant, Publish, Published

CYCLES = 25
TOPIC = "/default/load"
KINDS = ("exclusive", "shared", "failover", "key_shared")


@dataclass
class Known:
    """What the outside was told."""

    published: dict[int, bytes] = field(default_factory=dict)
    acked: dict[str, set[int]] = field(default_factory=lambda: {kind: set() for kind in KINDS})
    sent: int = 0
    wrong: list[str] = field(default_factory=list)


async def publish(address: tuple[str, int], known: Known, random: Random) -> None:
    client = await Client.connect(address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    waiting: dict[int, list[bytes]] = {}
    request = 0
    while True:
        request += 1
        payloads = [b"m%d" % (known.sent + number) for number in range(random.choice((1, 5, 50)))]
        known.sent += len(payloads)
        keys = [b"k%d" % random.randrange(5) for _ in payloads]
        waiting[request] = payloads
        client.send(Publish(1, request, build(payloads, publish_time=1, keys=keys).to_bytes()))
        while len(waiting) > 8:
            answer = await client.receive()
            if isinstance(answer, Published):
                for offset, payload in enumerate(waiting.pop(answer.request), answer.base_offset):
                    if known.published.setdefault(offset, payload) != payload:
                        known.wrong.append(f"offset {offset} was given twice")


async def consume(address: tuple[str, int], known: Known, kind: str, random: Random) -> None:
    client = await Client.connect(address)
    opened = await client.ask("open_consumer", channel=1, topic=TOPIC, subscription=kind, type=kind, start="earliest")
    client.send(Grant(1, 1000))
    waiting: dict[int, range] = {}
    request = 0
    while True:
        command = await client.receive()
        if isinstance(command, Acked):
            known.acked[kind].update(waiting.pop(command.request))
        elif isinstance(command, Deliver):
            offsets = range(command.first, command.last + 1)
            batch = Batch.parse(command.batch)
            for offset in offsets:
                payload = batch.payloads()[offset - batch.base_offset]
                if known.published.get(offset, payload) != payload:
                    known.wrong.append(f"offset {offset} shows {payload!r}")
                if offset in known.acked[kind]:
                    known.wrong.append(f"{kind}: {offset} came again after its confirmed ack")
            client.send(Grant(1, len(offsets)))
            if random.random() < 0.9:
                request += 1
                waiting[request] = offsets
                client.send(Ack(1, request, opened["generation"], [(command.first, command.last)]))


async def keep_all(address: tuple[str, int]) -> None:
    """The audit subscribes before anything is published: what all subscriptions have acknowledged may be deleted."""
    client = await Client.connect(address)
    await client.ask("open_consumer", channel=1, topic=TOPIC, subscription="audit", start="earliest")
    await close_all()


async def read_all(address: tuple[str, int]) -> dict[int, bytes]:
    client = await Client.connect(address)
    await client.ask("open_consumer", channel=1, topic=TOPIC, subscription="audit", start="earliest")
    bounds = await client.ask("bounds", topic=TOPIC)
    client.send(Grant(1, 1_000_000))
    found: dict[int, bytes] = {}
    while not found or max(found) < bounds["end"] - 1:
        command = await client.receive()
        if isinstance(command, Deliver):
            batch = Batch.parse(command.batch)
            for offset in range(command.first, command.last + 1):
                found[offset] = batch.payloads()[offset - batch.base_offset] or b""
            client.send(Ack(1, 0, command.generation, [(command.first, command.last)]))
    return found


async def _killed_under_load(process: BrokerProcess, address: tuple[str, int], known: Known, random: Random) -> None:
    work = [publish(address, known, random), *(consume(address, known, kind, random) for kind in KINDS)]
    clients = [asyncio.ensure_future(each) for each in work]
    await asyncio.sleep(random.uniform(0.1, 0.5))
    process.end(signal.SIGKILL)
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        if not isinstance(outcome, EOFError | ConnectionError):
            known.wrong.append(repr(outcome))
    await close_all()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_nothing_that_was_promised_is_lost_in_twenty_five_kills(tmp_path: Path) -> None:
    process, known, random = BrokerProcess(tmp_path), Known(), Random(1)

    async def story() -> dict[int, bytes]:
        for cycle in range(CYCLES):
            address = await process.start()
            if not cycle:
                await keep_all(address)
            await _killed_under_load(process, address, known, random)
            assert known.wrong == []
        address = await process.start()
        found = await read_all(address)
        await close_all()
        assert process.end(signal.SIGTERM) == 0
        return found

    found = asyncio.run(story())
    assert known.wrong == []
    assert len(known.published) > 500
    lost = [offset for offset, payload in known.published.items() if found.get(offset) != payload]
    assert lost == []
    assert len(set(found.values())) == len(found), "no message is there twice"


def test_a_second_broker_on_the_same_directory_is_refused_by_name(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path)
    asyncio.run(process.start())
    command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(tmp_path / "data")]
    second = subprocess.run([*command, "--listen", "127.0.0.1:0"], capture_output=True, timeout=20, check=False)
    assert second.returncode == 1
    assert f"another broker (process {process.pid}) is using {tmp_path / 'data'}" in second.stderr.decode()
    assert process.end(signal.SIGTERM) == 0


def test_an_open_door_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(tmp_path / "data")]
    refused = subprocess.run([*command, "--listen", "0.0.0.0:0"], capture_output=True, timeout=20, check=False)
    assert refused.returncode == 2
    assert b"--allow-unprotected-network" in refused.stderr
    assert not (tmp_path / "data").exists()
