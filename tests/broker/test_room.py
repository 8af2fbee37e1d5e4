"""Room on the disk: counted down between looks, refused below the reserve, regained with some on top, said once."""

from __future__ import annotations

import asyncio
import logging
import re

import pytest

from pydanube.base.errors import DiskFailed, DiskFull
from pydanube.base.limits import MIB
from pydanube.broker.limits import disk_room as room_module
from pydanube.broker.limits.disk_room import DiskRoom, check_new, reserve_of

RESERVE = 800


class Disk:
    """A disk as a `DiskRoom` sees it."""

    def __init__(self, free: int) -> None:
        self.free: int | None = free
        self.looks = 0
        self.changes: list[bool] = []
        self.looked = asyncio.Event()
        self.room = DiskRoom(RESERVE, self.measure, self.changes.append)

    async def measure(self) -> int:
        self.looks += 1
        self.looked.set()
        if self.free is None:
            raise DiskFailed("it does not say")
        return self.free


def test_sizes_are_said_as_people_read_them(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        room = DiskRoom(400 * MIB, free, None)
        await room.look()
        with pytest.raises(DiskFull, match=r"^128.0 MiB are free on the disk, and 400.0 MiB are reserved for acks"):
            room.admit(1)

    async def free() -> int:
        return 128 * MIB

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert "128.0 MiB are free, and 400.0 MiB are reserved for acks and deletions" in caplog.text


def test_what_is_published_between_two_looks_is_counted() -> None:
    async def main() -> None:
        disk = Disk(1_000)
        await disk.room.look()
        disk.room.admit(150)
        disk.room.admit(50)
        with pytest.raises(DiskFull) as caught:
            disk.room.admit(1)
        assert caught.value.retriable
        assert caught.value.blame == "environment"
        assert (disk.looks, disk.room.short) == (1, False)
        await disk.room.look()  # there was room after all
        disk.room.admit(200)

    asyncio.run(main())


def test_below_the_reserve_all_is_refused_until_there_is_room_on_top_of_it(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = Disk(799)
        free = (799, 100, 799, 899, 900, 801, 799, 5_000)
        refused = []
        for disk.free in free:
            await disk.room.look()
            refused.append(disk.room.short)
            if disk.room.short:
                with pytest.raises(DiskFull):
                    disk.room.admit(0)
        assert refused == [True, True, True, True, False, False, True, False]
        assert disk.changes == [True, False, True, False]

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    assert [" ".join(each.getMessage().split()[:4]) for each in caplog.records] == [
        "the disk is nearly",
        "the disk has room",
        "the disk is nearly",
        "the disk has room",
    ]
    assert "journal.reserve_bytes" in caplog.text
    assert "journal.file_bytes" in caplog.text


def test_a_disk_that_does_not_say_changes_nothing() -> None:
    async def main() -> None:
        disk = Disk(799)
        await disk.room.look()
        disk.free = None
        await disk.room.look()
        assert disk.room.short
        assert disk.room.bytes == 799

    asyncio.run(main())


def test_it_looks_by_itself_until_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room_module, "ROOM_CHECK_SECONDS", 0.0)

    async def main() -> None:
        disk = Disk(5_000)
        await disk.room.start()
        assert disk.looks == 1
        disk.free = 0
        for _ in range(2):
            disk.looked.clear()
            await disk.looked.wait()
        assert disk.room.short
        await disk.room.close()
        looks = disk.looks
        for _ in range(10):
            await asyncio.sleep(0)
        assert disk.looks == looks

    asyncio.run(main())


def test_without_a_reserve_nothing_is_looked_at_or_refused() -> None:
    async def main() -> None:
        looks = Disk(0)
        room = DiskRoom(0, looks.measure)
        await room.start()
        room.admit(1 << 50)
        assert looks.looks == 0
        await room.close()

    asyncio.run(main())


def test_the_reserve_goes_by_the_size_of_a_journal_file() -> None:
    assert reserve_of(128 * MIB) == 400 * MIB
    assert reserve_of(4 * MIB) == 28 * MIB


@pytest.mark.parametrize("file_bytes", [4 * MIB, 128 * MIB])
@pytest.mark.parametrize("chosen", [None, 200 * MIB])
def test_a_new_broker_needs_its_reserve_and_what_is_set_aside(file_bytes: int, chosen: int | None) -> None:
    reserve = reserve_of(file_bytes, chosen)
    needed = reserve + reserve // 8 + file_bytes // 2 + 4 * MIB
    check_new(needed, "/data", file_bytes, chosen)
    with pytest.raises(DiskFull, match=r"/data has .* MiB"):
        check_new(needed - 1, "/data", file_bytes, chosen)


@pytest.mark.parametrize("free", [25 * MIB, 26 * MIB, 50 * MIB, 517 * MIB])
def test_the_size_of_files_that_is_named_fits(free: int) -> None:
    with pytest.raises(DiskFull) as refused:
        check_new(free, "/data", 128 * MIB)
    named = re.search(r"--journal-file-bytes (\d+)", str(refused.value))
    if named is None:
        assert free < 26 * MIB
    else:
        check_new(free, "/data", int(named[1]))
