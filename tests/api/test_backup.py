"""A backup of a real broker process under load: what was promised before it is in it, and all of it fits together."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from random import Random

import pytest

from api.broker_process import BrokerProcess
from api.frame_client import Client, close_all
from api.test_kill import KINDS, TOPIC, Known, consume, keep_all, publish, read_all
from pydanube.base.limits import MIB
from pydanube.wire.batch import build
from pydanube.wire.commands import Deliver, Grant, Publish, Published

MESSAGES_BEFORE = 2_000  # published and answered before a backup is made


async def danube(*arguments: str) -> str:
    command = [sys.executable, "-m", "pydanube.cli.main", *arguments]
    process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def left_of(address: tuple[str, int], kind: str) -> tuple[set[int], int]:
    """What a subscription still delivers, and where the topic ends."""
    client = await Client.connect(address)
    told = (await client.ask("subscription.describe", topic=TOPIC, subscription=kind)) | {"found": set()}
    assert told["floor"] <= told["end"], "a cursor is beyond the end"
    await client.ask("open_consumer", channel=1, topic=TOPIC, subscription=kind, type=kind)
    client.send(Grant(1, 1_000_000))
    while len(told["found"]) < told["backlog"]:
        command = await client.receive()
        if isinstance(command, Deliver):
            told["found"].update(range(command.first, command.last + 1))
    return told["found"], told["end"]


async def under_load(
    address: tuple[str, int], known: Known, backup: Path
) -> tuple[dict[int, bytes], dict[str, set[int]]]:
    """Makes a backup while clients publish and acknowledge; what they had been promised before it."""
    random = Random(1)
    work = [publish(address, known, random), *(consume(address, known, kind, random) for kind in KINDS)]
    clients = [asyncio.ensure_future(each) for each in work]
    while len(known.published) < MESSAGES_BEFORE or not all(known.acked.values()):  # noqa: ASYNC110 - by other tasks
        await asyncio.sleep(0.01)
    before, acked = dict(known.published), {kind: set(offsets) for kind, offsets in known.acked.items()}
    await danube("backup", "create", str(backup), "--url", f"danube://{address[0]}:{address[1]}")
    so_far = len(known.published)
    while len(known.published) < so_far + 100:  # noqa: ASYNC110 - it goes on serving
        await asyncio.sleep(0.01)
    pending = set(clients)
    while pending:  # `wait_for` of Python 3.11 may miss a cancellation that comes with its result
        for each in pending:
            each.cancel()
        _, pending = await asyncio.wait(pending, timeout=1)
    assert known.wrong == []
    return before, acked


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_a_backup_made_under_load_has_all_that_was_promised_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANUBE_JOURNAL__FILE_BYTES", str(MIB))  # so that files come and go meanwhile
    live, restored, backup = tmp_path / "live", tmp_path / "restored", tmp_path / "backup"
    live.mkdir()
    restored.mkdir()
    process, known = BrokerProcess(live), Known()

    async def story() -> None:
        address = await process.start()
        await keep_all(address)
        before, acked = await under_load(address, known, backup)
        process.end(signal.SIGKILL)
        await close_all()
        assert "is sound" in await danube("backup", "verify", str(backup))
        await danube("backup", "restore", str(backup), str(restored / "data"))
        second = BrokerProcess(restored)
        address = await second.start()
        found = await read_all(address)
        assert [offset for offset, payload in before.items() if found.get(offset) != payload] == []
        assert sorted(found) == list(range(len(found)))
        assert all(known.published.get(offset, payload) == payload for offset, payload in found.items())
        for kind in KINDS:
            delivered, end = await left_of(address, kind)
            assert delivered & acked[kind] == set(), "what was acknowledged is delivered again"
            assert end == len(found)
        client = await Client.connect(address)
        await client.ask("open_producer", channel=1, topic=TOPIC)
        client.send(Publish(1, 1, build([b"after"], publish_time=1).to_bytes()))
        answer = await client.receive()
        assert isinstance(answer, Published)
        assert answer.base_offset == len(found)
        await close_all()
        assert second.end(signal.SIGTERM) == 0

    asyncio.run(story())
