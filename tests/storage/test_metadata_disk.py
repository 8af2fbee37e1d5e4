"""The durable store on a real directory, and the golden directory that every later version must open."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from random import Random

import pytest

from pydanube.adapters.posix_disk import PosixDisk
from pydanube.adapters.system import SystemRandomness
from pydanube.base.errors import DirectoryInUse, MetadataDamaged
from pydanube.base.limits import KIB
from pydanube.metadata.records import Repeat
from pydanube.sim.machine.randomness import SimRandomness
from pydanube.storage.metadata.raft import RaftMetadata
from storage.metadata_world import Shown, put, shown

GOLDEN = Path(__file__).parent.parent / "metadata" / "golden"
GOLDEN_SHOWS: Shown = {"a": (b"two", 3), "b/1": (b"", 2), "log": (b"x" * 600, 10), "é": (b"\x00\xff", 6)}


async def write_golden(path: Path) -> None:
    """Two starts; the first file is replaced by one with a snapshot; a mark at the end."""
    for start in range(2):
        disk = PosixDisk(path)
        store = await RaftMetadata.open(disk, SimRandomness(Random(start)), log_bytes=4 * KIB)
        if start == 0:
            await store.transact([("a", 0)], [("a", b"one"), ("b/1", b"")])
            await store.transact([("a", 2)], [("a", b"two")])
            await store.transact((), [("gone", b"")])
        else:
            await store.transact((), [("é", b"\x00\xff"), ("gone", None)])
            session = await store.open_session(60)
            await store.transact((), [("mine", b"")], session=session, repeat=Repeat(session, 1))
            await store.close_session(session)
            await store.transact((), [("log", b"x" * 600)])
        await store.close()
        disk.close()


def files(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir() if file.name != "lock"}


def test_the_golden_directory_opens_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "metadata"
    shutil.copytree(GOLDEN, directory)

    async def look(more: bool) -> None:
        disk = PosixDisk(directory)
        store = await RaftMetadata.open(disk, SystemRandomness())
        assert {key: value for key, value in shown(store).items() if key != "more"} == GOLDEN_SHOWS
        assert (store.get("more") is not None) is more
        assert store.cluster == "342f5d0a3a5e4842fab428f762e6e282"
        assert await put(store, more=b"") == store.revision
        await store.close()
        disk.close()

    asyncio.run(look(more=False))
    asyncio.run(look(more=True))


def test_the_format_is_what_it_was(tmp_path: Path) -> None:
    asyncio.run(write_golden(tmp_path))
    assert files(tmp_path) == files(GOLDEN)


def test_two_processes_cannot_have_one_directory(tmp_path: Path) -> None:
    async def both() -> None:
        disks = [PosixDisk(tmp_path), PosixDisk(tmp_path)]
        store = await RaftMetadata.open(disks[0], SystemRandomness())
        with pytest.raises(DirectoryInUse):
            await RaftMetadata.open(disks[1], SystemRandomness())
        await store.close()
        await (await RaftMetadata.open(disks[1], SystemRandomness())).close()
        for disk in disks:
            disk.close()

    asyncio.run(both())


def test_many_transactions_at_once_share_their_syncs(tmp_path: Path) -> None:
    async def write() -> None:
        disk = PosixDisk(tmp_path)
        store = await RaftMetadata.open(disk, SystemRandomness())
        await asyncio.gather(*(put(store, **{f"k{number}": b"v" * 100}) for number in range(3000)))
        await store.close()
        store = await RaftMetadata.open(disk, SystemRandomness())
        assert len(store.scan("k")) == 3000
        await store.close()
        disk.close()

    asyncio.run(write())
    (log,) = tmp_path.glob("metadata-*.log")
    used = len(log.read_bytes().rstrip(b"\0"))
    assert used < 3000 * 400, "each has a block of its own"


def test_a_truncated_file_is_refused_and_kept(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path, dirs_exist_ok=True)
    (log,) = tmp_path.glob("metadata-*.log")
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 1)
    before = files(tmp_path)

    async def look() -> None:
        disk = PosixDisk(tmp_path)
        with pytest.raises(MetadataDamaged):
            await RaftMetadata.open(disk, SystemRandomness())
        disk.close()

    asyncio.run(look())
    assert files(tmp_path) == before
