"""Kinds of storage node by name: the two that are here, and one that a stranger's package brings along."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.durability import Durability
from pydanube.base.errors import NodeDirectoryInvalid, StorageKindUnknown
from pydanube.base.ids import LedgerId
from pydanube.storage.node.disk import DiskNode
from pydanube.storage.node.memory import MemoryNode
from pydanube.storage.node.registry import GROUP, Opening, open_node
from pydanube.storage.node.settings import NodeSettings
from storage.node_world import MAKER, batch_of
from storage.toy_node import ToyNode


@pytest.fixture
def strangers_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed distribution, as pip leaves it behind."""
    info = tmp_path / "danube_toy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: danube-toy\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\ntoy = storage.toy_node:open_toy\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.fixture
def opening(tmp_path: Path) -> Iterator[Opening]:
    disk = PosixDisk(tmp_path / "node")
    yield Opening(SystemRandomness(), [disk], settings=NodeSettings(file_bytes=1 << 16))
    disk.close()


async def use(kind: str, opening: Opening) -> object:
    """Opens a node of the kind, keeps one entry on it, and closes it."""
    node = await open_node(kind, opening)
    await node.create(LedgerId(1), MAKER, Durability.FSYNC)
    await node.append(LedgerId(1), MAKER, batch_of(1, 0), -1)
    assert await node.read(LedgerId(1), 0, 1) == [batch_of(1, 0)]
    await node.close()
    return node


@pytest.mark.parametrize(("kind", "expected"), [("disk", DiskNode), ("memory", MemoryNode)])
def test_our_own_kinds_open_by_name(kind: str, expected: type, opening: Opening) -> None:
    assert isinstance(asyncio.run(use(kind, opening)), expected)


@pytest.mark.usefixtures("strangers_package")
def test_a_kind_from_another_package_opens_by_name(opening: Opening) -> None:
    assert isinstance(asyncio.run(use("toy", opening)), ToyNode)


@pytest.mark.usefixtures("strangers_package")
def test_our_own_kinds_are_still_there_beside_it(opening: Opening) -> None:
    assert isinstance(asyncio.run(use("disk", opening)), DiskNode)


def test_an_unknown_kind_is_refused_by_naming_the_known_ones(opening: Opening) -> None:
    with pytest.raises(StorageKindUnknown, match=r"`toy` is not one of disk, memory"):
        asyncio.run(open_node("toy", opening))


@pytest.mark.usefixtures("strangers_package")
def test_the_known_ones_include_those_of_other_packages(opening: Opening) -> None:
    with pytest.raises(StorageKindUnknown, match=r"disk, memory, toy"):
        asyncio.run(open_node("tape", opening))


def test_a_disk_node_without_a_directory_is_refused() -> None:
    with pytest.raises(NodeDirectoryInvalid):
        asyncio.run(open_node("disk", Opening(SystemRandomness())))


def test_journal_files_have_a_least_size() -> None:
    with pytest.raises(ValueError, match="at least"):
        NodeSettings(file_bytes=4096)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pending_bytes_max": 0},
        {"index_cache_bytes": -1},
        {"copy_bytes_per_second": 0},
        {"retry_seconds": 0.0},
        {"copy_below": 1.5},
    ],
)
def test_settings_with_which_a_node_could_not_work_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        NodeSettings(**wrong)
