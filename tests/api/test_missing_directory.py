"""A real broker whose storage node is not mounted at one start: it refuses, changes nothing, and loses nothing."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from api.broker_process import BrokerProcess
from api.frame_client import Client, close_all
from pydanube.wire.batch import build
from pydanube.wire.commands import Publish, Published

TOPIC = "/default/orders"


async def publish(address: tuple[str, int], count: int) -> int:
    """The offset behind the last."""
    client = await Client.connect(address)
    await client.ask("open_producer", channel=1, topic=TOPIC)
    end = 0
    for request in range(1, count + 1):
        client.send(Publish(1, request, build([b"m"], publish_time=1).to_bytes()))
        while not isinstance(answer := await client.receive(), Published):
            pass
        end = answer.base_offset + 1
    await close_all()
    return end


def tree(directory: Path) -> dict[str, bytes | None]:
    """Everything there is, but for who holds a lock."""
    files = (path for path in directory.rglob("*") if path.name != "lock")
    return {str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["node", "metadata"])
def test_a_start_without_one_of_its_directories_is_refused_and_forgets_nothing(tmp_path: Path, name: str) -> None:
    broker = BrokerProcess(tmp_path)
    data = tmp_path / "data"

    async def life() -> int:
        return await publish(await broker.start(), 5)

    assert asyncio.run(life()) == 5
    broker.end(signal.SIGKILL)  # so that its ledgers are open
    (data / name).rename(tmp_path / "away")
    before = tree(data)
    command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(data)]
    refused = subprocess.run([*command, "--listen", "127.0.0.1:0"], capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert f"{data / name} is missing or empty" in refused.stderr
    assert tree(data) == before
    (tmp_path / "away").rename(data / name)
    assert asyncio.run(life()) == 10  # behind what was there
    broker.end(signal.SIGTERM)


def danube(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pydanube.cli.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_a_storage_directory_that_is_gone_for_good_can_be_forgotten(tmp_path: Path) -> None:
    """What is lost is shown first; afterwards the topic is there, and no offset is used again."""
    broker, data = BrokerProcess(tmp_path), tmp_path / "data"
    forget = ("storage", "forget-node", "--data-dir", str(data))

    async def life() -> int:
        return await publish(await broker.start(), 5)

    assert asyncio.run(life()) == 5
    assert danube(*forget, "--yes").returncode != 0, "the broker runs"
    broker.end(signal.SIGKILL)
    refused = danube(*forget, "--yes")
    assert refused.returncode != 0
    assert "it is not lost" in refused.stderr
    shutil.rmtree(data / "node")
    before = tree(data)
    shown = danube(*forget, "--dry-run")
    assert shown.returncode == 1
    assert "0 or more" in shown.stdout
    assert "would forget storage node" in shown.stdout
    assert tree(data) == before
    assert danube(*forget, "--yes").returncode == 0
    assert asyncio.run(life()) > 10
    broker.end(signal.SIGTERM)
    assert asyncio.run(life()) > 15
    broker.end(signal.SIGTERM)
