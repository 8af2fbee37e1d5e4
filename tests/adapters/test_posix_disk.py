"""The real disk keeps the contract, and turns every error of the system into one of ours."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import uvloop

from disk_contract import DiskContract, Run
from pydanube.adapters import posix_disk
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.base.errors import DirectoryInUse, DiskFailed, DiskFull, FileMissing
from pydanube.ports.disk import Disk


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Run]:
    factory = uvloop.new_event_loop if request.param == "uvloop" else None
    with asyncio.Runner(loop_factory=factory) as runner:
        yield runner.run


@pytest.fixture
def disk(tmp_path: Path, run: Run) -> Iterator[PosixDisk]:
    disk = PosixDisk(tmp_path)
    yield disk
    disk.close()


@pytest.fixture
def same_directory(tmp_path: Path, run: Run) -> Iterator[PosixDisk]:
    disk = PosixDisk(tmp_path)
    yield disk
    disk.close()


@pytest.fixture
def fill(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    def full() -> None:
        monkeypatch.setattr(os, "pwritev", failing(errno.ENOSPC))
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))

    return full


class TestPosixDisk(DiskContract):
    """The contract, on asyncio's loop and on uvloop."""


def failing(number: int) -> Callable[..., int]:
    def call(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize(
    ("number", "error"),
    [(errno.ENOSPC, DiskFull), (errno.EDQUOT, DiskFull), (errno.EIO, DiskFailed), (errno.EROFS, DiskFailed)],
)
def test_a_failed_write_names_the_operation_the_file_and_the_reason(
    run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch, number: int, error: type[Exception]
) -> None:
    async def scenario() -> None:
        file = await disk.create("journal")
        monkeypatch.setattr(os, "pwritev", failing(number))
        with pytest.raises(error, match=f"write journal in .*: {os.strerror(number)}"):
            await file.write(0, [b"x"], sync=False)

    run(scenario())


def test_a_failed_sync_fails_the_write_that_asked_for_it(
    run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        file = await disk.create("a")
        monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
        await file.write(0, [b"x"], sync=False)
        with pytest.raises(DiskFailed, match="write a"):
            await file.write(0, [b"x"], sync=True)

    run(scenario())


def test_short_writes_are_continued(run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    def stingy(descriptor: int, buffers: list[bytes], position: int) -> int:
        return os.pwrite(descriptor, b"".join(bytes(buffer) for buffer in buffers)[:7], position)

    async def scenario() -> None:
        file = await disk.create("a")
        monkeypatch.setattr(os, "pwritev", stingy)
        parts = [b"abc", b"0123456789" * 3, b"", b"z"]
        await file.write(2, parts, sync=True)
        assert await file.read(2, 100) == b"".join(parts)

    run(scenario())


def test_a_write_that_makes_no_progress_fails(run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        file = await disk.create("a")
        monkeypatch.setattr(os, "pwritev", lambda *_: 0)
        with pytest.raises(DiskFailed, match="nothing was written"):
            await file.write(0, [b"x"], sync=False)

    run(scenario())


def test_room_is_reserved_even_where_the_file_system_cannot(
    run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
        file = await disk.create("a", reserve=5_000)
        assert await file.read(0, 10_000) == bytes(5_000)

    run(scenario())


def test_no_file_is_left_when_its_room_cannot_be_reserved(
    run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
        with pytest.raises(DiskFull, match="create a"):
            await disk.create("a", reserve=5_000)
        assert await disk.list() == []

    run(scenario())


def test_another_process_is_refused_and_told_who_has_the_directory(run: Run, disk: PosixDisk, tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pydanube.adapters.posix_disk import PosixDisk
from pydanube.base.errors import DirectoryInUse

async def take():
    try:
        await PosixDisk(sys.argv[1]).lock("the other")
    except DirectoryInUse as error:
        print(error)

asyncio.run(take())
"""

    def other() -> str:
        command = [sys.executable, "-c", program, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    run(held(disk, "storage node 1"))
    assert f"in use by storage node 1, process {os.getpid()}" in other()
    disk.close()
    assert other() == ""


def test_a_lock_ends_with_its_process(run: Run, tmp_path: Path) -> None:
    program = """
import asyncio, os, sys
from pydanube.adapters.posix_disk import PosixDisk

async def take():
    await PosixDisk(sys.argv[1]).lock("short-lived")
    os._exit(0)

asyncio.run(take())
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, timeout=60)
    disk = PosixDisk(tmp_path)
    run(held(disk, "me"))
    disk.close()


def test_a_lock_needs_no_room_on_a_full_disk(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: bytes, position: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "lock").write_text("somebody, long ago")
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        disk, other = PosixDisk(tmp_path), PosixDisk(tmp_path)
        run(held(disk, "me"))
        with pytest.raises(DirectoryInUse, match="in use by another process"):
            run(held(other, "you"))
    disk.close()
    run(held(other, "you"))
    assert (tmp_path / "lock").read_text() == f"you, process {os.getpid()}\n"
    other.close()


def test_a_directory_that_is_not_there_is_missing_until_it_is_made(run: Run, tmp_path: Path) -> None:
    disk = PosixDisk(tmp_path / "data" / "journal")
    for ask in (listed(disk), held(disk, "me")):
        with pytest.raises(FileMissing):
            run(ask)
    assert not (tmp_path / "data").exists()
    run(made(disk))
    run(held(disk, "me"))
    assert run(listed(disk)) == []
    disk.close()


def test_a_directory_is_synced_in_every_one_above_it_whoever_made_them(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    honest = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        honest(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    path = tmp_path.resolve() / "data" / "journal"
    path.mkdir(parents=True)  # by a process that ended before it synced anything
    disk = PosixDisk(path)
    run(made(disk))
    assert synced[:2] == [str(path.parent), str(tmp_path.resolve())]
    assert os.path.ismount(synced[-1]) or not os.access(os.path.dirname(synced[-1]), os.R_OK)
    disk.close()


async def made(disk: PosixDisk) -> None:
    await disk.make()
    await disk.sync_parent()


def test_folders_are_not_files(run: Run, disk: PosixDisk, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert run(listed(disk)) == []


def test_a_cancelled_write_still_happens_and_close_waits_for_it(
    run: Run, disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = threading.Event()

    def slow(descriptor: int, position: int, parts: tuple[bytes, ...], sync: bool) -> None:
        assert gate.wait(60)
        os.pwrite(descriptor, b"".join(parts), position)

    monkeypatch.setattr(posix_disk, "_write", slow)

    async def scenario() -> None:
        file = await disk.create("a")
        written = file.write(0, [b"late"], sync=True)
        written.cancel()
        closed = file.close()
        assert await disk.list() == ["a"]
        assert not closed.done()
        gate.set()
        await closed
        assert await (await disk.open("a")).read(0, 10) == b"late"

    run(scenario())


def test_a_file_that_nobody_waits_for_any_more_is_closed_again(run: Run, disk: PosixDisk) -> None:
    async def scenario() -> None:
        before = len(os.listdir("/proc/self/fd"))
        for number in range(20):
            disk.create(f"a-{number}").cancel()
        while len(await disk.list()) < 20 or len(os.listdir("/proc/self/fd")) > before:
            pass

    run(asyncio.wait_for(scenario(), 60))


def test_a_closed_disk_takes_nothing_more(run: Run, disk: PosixDisk) -> None:
    async def scenario() -> None:
        file = await disk.create("a")
        disk.close()
        with pytest.raises(RuntimeError):
            file.write(0, [b"x"], sync=False)
        with pytest.raises(RuntimeError):
            disk.list()

    run(scenario())


async def held(disk: Disk, owner: str) -> None:
    await disk.lock(owner)


async def listed(disk: Disk) -> list[str]:
    return await disk.list()
