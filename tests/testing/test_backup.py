"""What docs/operating.md says about copies of a data directory."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import pydanube.sync
from pydanube.base.errors import EntryMissing, NodeDirectoryInvalid
from pydanube.testing.broker import broker_beside

TOPIC = "/default/orders"


def publish(url: str, *payloads: bytes) -> None:
    with pydanube.sync.connect(url) as client, client.producer(TOPIC) as producer:
        for payload in payloads:
            producer.send(payload).result()


def messages(url: str) -> list[bytes | None]:
    with pydanube.sync.connect(url) as client:
        return [message.payload for message in client.admin.peek(TOPIC, 100)]


def newest_journal(data_dir: Path) -> Path:
    return max((data_dir / "node").glob("journal-*.log"))


def test_a_copy_of_a_stopped_broker_has_its_messages_and_acks(tmp_path: Path) -> None:
    live, backup = tmp_path / "live", tmp_path / "backup"
    with broker_beside(live) as beside, pydanube.sync.connect(beside.url) as client:
        publish(beside.url, b"0", b"1", b"2")
        with client.consumer(TOPIC, subscription="s", start="earliest") as consumer:
            consumer.ack(consumer.receive(5)).result()
    shutil.copytree(live, backup)
    with broker_beside(live) as beside:
        publish(beside.url, b"since")
    with broker_beside(backup) as beside, pydanube.sync.connect(beside.url) as client:
        assert messages(beside.url) == [b"0", b"1", b"2"]
        with client.consumer(TOPIC, subscription="s") as consumer:
            assert consumer.receive(5).payload == b"1"
        publish(beside.url, b"goes on")
        assert messages(beside.url)[-1] == b"goes on"


def test_a_broker_says_which_file_is_missing_and_does_not_start(tmp_path: Path) -> None:
    with broker_beside(tmp_path) as beside:
        publish(beside.url, b"0")
    lost = newest_journal(tmp_path)
    lost.unlink()
    with pytest.raises(NodeDirectoryInvalid, match=lost.name), broker_beside(tmp_path):
        pass


def test_a_snapshot_of_a_running_broker_is_what_a_power_cut_leaves(tmp_path: Path) -> None:
    with broker_beside(tmp_path / "live") as beside:
        publish(beside.url, b"0", b"1")
        shutil.copytree(tmp_path / "live", tmp_path / "snapshot")  # nothing is written meanwhile: all of one moment
    with broker_beside(tmp_path / "snapshot") as beside:
        assert messages(beside.url) == [b"0", b"1"]


def test_an_older_copy_of_the_newest_journal_file_is_not_noticed_after_a_crash(tmp_path: Path) -> None:
    with broker_beside(tmp_path / "live") as beside:
        publish(beside.url, b"0")
        older = shutil.copy(newest_journal(tmp_path / "live"), tmp_path)
        publish(beside.url, b"1")
        shutil.copytree(tmp_path / "live", tmp_path / "crashed")
    shutil.copy(older, newest_journal(tmp_path / "crashed"))
    with broker_beside(tmp_path / "crashed") as beside:
        assert messages(beside.url) == [b"0"]


def test_an_older_copy_of_the_newest_journal_file_is_noticed_after_a_clean_stop(tmp_path: Path) -> None:
    with broker_beside(tmp_path / "live") as beside:
        publish(beside.url, b"0")
        older = shutil.copy(newest_journal(tmp_path / "live"), tmp_path)
        publish(beside.url, b"1")
    shutil.copy(older, newest_journal(tmp_path / "live"))
    with broker_beside(tmp_path / "live") as beside, pytest.raises(EntryMissing):
        messages(beside.url)
