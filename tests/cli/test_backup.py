"""`danube backup`: made while a broker serves, checked without one, and restored only where nothing is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import pydanube
import pydanube.sync
from cli.conftest import Danube
from pydanube.base.errors import BackupEnded, BackupRunning, DiskFull, RequestInvalid
from pydanube.broker.door import backups as backups_module
from pydanube.cli.commands import backup_files
from pydanube.operations.backups import BeginBackup, EndBackup, ListBackupFiles, ReadBackup
from pydanube.testing.broker import broker_beside, broker_thread


@pytest.fixture
def made(danube: Danube, topic: str, tmp_path: Path) -> Path:
    assert danube("produce", topic, stdin=b"one\ntwo\n").code == 0
    assert danube("subscription", "create", topic, "s", "--from", "earliest").code == 0
    ended = danube("backup", "create", str(tmp_path / "backup"), "--output", "json")
    assert ended.code == 0, ended.err
    assert ended.json["files"] >= 4
    return tmp_path / "backup"


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_restored_broker_has_messages_and_subscriptions(made: Path, run: Danube, topic: str, tmp_path: Path) -> None:
    assert run("backup", "verify", str(made)).code == 0
    assert run("backup", "restore", str(made), str(tmp_path / "data")).code == 0
    with broker_thread(tmp_path / "data") as url, pydanube.sync.connect(url) as client:
        assert [message.payload for message in client.admin.peek(topic, 10)] == [b"one", b"two"]
        with client.consumer(topic, subscription="s") as consumer:
            assert consumer.receive(5).payload == b"one"


def test_two_brokers_can_be_restored_from_one_backup(made: Path, run: Danube, topic: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run("backup", "restore", str(made), str(tmp_path / name)).code == 0
    with broker_thread(tmp_path / "a") as first, broker_thread(tmp_path / "b") as second:
        for url in (first, second):
            with pydanube.sync.connect(url) as client:
                assert len(list(client.admin.peek(topic, 10))) == 2


@pytest.mark.parametrize("name", ["node/node", "node/journal", "metadata/metadata", "manifest.json"])
def test_one_flipped_bit_is_found_and_its_file_is_named(made: Path, run: Danube, tmp_path: Path, name: str) -> None:
    folder, _, start = name.rpartition("/")
    path = next((made / folder).glob(f"{start}*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    checked = run("backup", "verify", str(made))
    assert checked.code == 1
    assert path.name in checked.err
    restored = run("backup", "restore", str(made), str(tmp_path / "data"))
    assert restored.code == 1
    assert path.name in restored.err
    assert not (tmp_path / "data").exists() or not any((tmp_path / "data").iterdir())


def test_what_is_missing_cut_or_added_is_named(made: Path, run: Danube) -> None:
    journal = next((made / "node").glob("journal-*"))
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-1])
    assert f"it has {len(whole) - 1} bytes, not {len(whole)}" in run("backup", "verify", str(made)).err
    journal.unlink()
    (made / "node" / "stranger").write_bytes(b"")
    found = run("backup", "verify", str(made))
    assert f"{journal.name}: it is missing" in found.err
    assert "node/stranger: it does not belong" in found.err


def test_a_backup_that_was_not_finished_is_none(made: Path, run: Danube, tmp_path: Path) -> None:
    (made / "manifest.json").unlink()
    for arguments in (("verify", str(made)), ("restore", str(made), str(tmp_path / "data"))):
        ended = run("backup", *arguments)
        assert ended.code == 1
        assert "manifest.json is missing, because the backup was not finished" in ended.err


@pytest.mark.parametrize("name", ["../escape", "node/../../escape", "/etc/passwd", "node/a/b", "other/file"])
def test_a_manifest_cannot_lead_out_of_the_directory(made: Path, run: Danube, tmp_path: Path, name: str) -> None:
    path = made / "manifest.json"
    body: dict[str, Any] = json.loads(path.read_bytes())
    del body["sha256"]
    body["files"][0]["name"] = name
    path.write_text(json.dumps(body | {"sha256": backup_files._digest(body)}))
    assert "manifest.json is damaged" in run("backup", "restore", str(made), str(tmp_path / "data")).err


def test_nothing_is_restored_or_created_over_something(made: Path, danube: Danube, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine").write_bytes(b"x")
    for arguments in (("restore", str(made)), ("create",)):
        ended = danube("backup", *arguments, str(tmp_path / "data"))
        assert ended.code == 2
        assert ended.err.endswith("is not empty: it has mine; choose another directory, or empty it\n")
    assert contents(tmp_path / "data") == {"mine": b"x"}


@pytest.mark.parametrize("files", range(5))
def test_on_half_a_restored_directory_no_broker_starts(
    made: Path, run: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: int
) -> None:
    """It ends after so many files, as by kill -9 or a full disk."""
    restore, left = backup_files._restore, [files]

    def ending(*arguments: Any) -> None:
        if not left[0]:
            raise OSError(28, "No space left on device")
        left[0] -= 1
        restore(*arguments)

    monkeypatch.setattr(backup_files, "_restore", ending)
    ended = run("backup", "restore", str(made), str(tmp_path / "data"))
    if ended.code == 0:
        return  # it had no more files
    assert "No space left on device" in ended.err
    if files:
        with pytest.raises(pydanube.errors.MetadataDamaged, match="metadata is missing or empty"):
            broker_thread(tmp_path / "data").__enter__()
    assert "is not empty" in run("backup", "restore", str(made), str(tmp_path / "data")).err or not files


def test_object_storage_is_taken_over_only_when_somebody_says_so(
    run: Danube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with broker_thread(tmp_path / "live", objects=f"file://{tmp_path}/objects") as url:
        monkeypatch.setenv("DANUBE_URL", url)
        assert run("backup", "create", str(tmp_path / "backup")).code == 0
    refused = run("backup", "restore", str(tmp_path / "backup"), str(tmp_path / "data"))
    assert refused.code == 2
    assert "only one broker may use" in refused.err
    assert not (tmp_path / "data").exists()
    accepted = ("restore", str(tmp_path / "backup"), str(tmp_path / "data"), "--take-over-objects")
    assert run("backup", *accepted).code == 0


# -- the broker's side -------------------------------------------------------------------------------------------------


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Any]:
    with broker_beside(tmp_path / "alone") as beside:
        yield beside


async def begin(client: pydanube.Client) -> int:
    return (await client.ask(BeginBackup())).backup


def test_one_backup_at_a_time(alone: Any) -> None:
    async def story() -> None:
        async with pydanube.connect(alone.url) as client:
            first = await begin(client)
            with pytest.raises(BackupRunning):
                await begin(client)
            await client.ask(EndBackup(first))
            second = await begin(client)
            with pytest.raises(BackupEnded):
                await client.ask(ListBackupFiles(first))
            await client.ask(EndBackup(second))

    asyncio.run(story())


def test_a_client_that_falls_silent_holds_nothing_any_more(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backups_module, "BACKUP_SILENCE_SECONDS", 0.01)

    async def story() -> None:
        async with pydanube.connect(alone.url) as client:
            await begin(client)
            async with asyncio.timeout(10):
                while True:
                    try:
                        await client.ask(EndBackup(await begin(client)))
                        return
                    except (BackupRunning, BackupEnded):
                        await asyncio.sleep(0)

    asyncio.run(story())


def test_a_disk_that_is_nearly_full_ends_a_backup(alone: Any) -> None:
    async def story() -> None:
        async with pydanube.connect(alone.url) as client:
            number = await begin(client)
            [first, *_] = (await client.ask(ListBackupFiles(number))).files
            alone.fill_disk()
            with pytest.raises(DiskFull):
                await client.ask_any(ReadBackup(number, first.name, offset=0, length=1))
            with pytest.raises(DiskFull):
                await begin(client)
            alone.free_disk()
            await client.ask(EndBackup(await begin(client)))

    asyncio.run(story())


@pytest.mark.parametrize(
    "wrong",
    [{"name": "../x"}, {"offset": -1}, {"offset": 1 << 40}, {"length": 0}, {"length": 1 << 30}],
    ids=lambda wrong: "-".join(map(str, wrong)),
)
def test_a_piece_that_is_not_there_is_refused(alone: Any, wrong: dict[str, Any]) -> None:
    async def story() -> None:
        async with pydanube.connect(alone.url) as client:
            piece = {"name": "node/node", "offset": 0, "length": 1} | wrong
            number = await begin(client)
            with pytest.raises(RequestInvalid):
                await client.ask_any(ReadBackup(number, **piece))

    asyncio.run(story())
