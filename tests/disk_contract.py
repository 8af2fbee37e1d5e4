"""What every disk behind the port must do, real or simulated. A test class inherits it and gives the fixtures."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

import pytest

from pydanube.base.errors import DirectoryInUse, DiskFailed, DiskFull, FileMissing
from pydanube.ports.disk import Disk, DiskFile


class Run(Protocol):
    def __call__(self, coroutine: Coroutine[Any, Any, Any], /) -> Any: ...


class DiskContract:
    """Fixtures a subclass gives: `run`, `disk`, `same_directory` (another taker's view) and `fill` (no room left)."""

    def test_a_created_file_is_empty_and_listed(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            assert file.name == "a"
            assert await file.size() == 0
            assert await file.read(0, 10) == b""
            assert await disk.list() == ["a"]

        run(scenario())

    def test_creating_a_file_that_exists_fails_and_leaves_it_alone(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            await write(await disk.create("a"), 0, b"old")
            with pytest.raises(DiskFailed, match=r"create a"):
                await disk.create("a", reserve=100)
            assert await (await disk.open("a")).read(0, 10) == b"old"

        run(scenario())

    def test_reserved_room_reads_as_zeros(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a", reserve=10_000)
            assert await file.size() == 10_000
            await write(file, 100, b"x")
            assert await file.read(98, 5) == b"\0\0x\0\0"
            assert await file.read(9_990, 100) == bytes(10)
            assert await file.size() == 10_000

        run(scenario())

    def test_parts_are_written_one_after_the_other(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await file.write(3, [b"ab", b"", b"c" * 5, b"d"], sync=True)
            assert await file.read(0, 100) == b"\0\0\0abcccccd"
            await file.write(4, [b"XY"], sync=False)
            assert await file.read(3, 4) == b"aXYc"
            await file.write(0, [], sync=True)
            assert await file.size() == 11

        run(scenario())

    def test_thousands_of_parts_are_one_write(self, run: Run, disk: Disk) -> None:
        parts = [f"{number};".encode() for number in range(2_500)]

        async def scenario() -> None:
            file = await disk.create("a")
            await file.write(0, parts, sync=True)
            assert await file.read(0, 1 << 20) == b"".join(parts)

        run(scenario())

    def test_a_read_is_short_only_at_the_end_of_the_file(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await write(file, 0, b"0123456789")
            assert await file.read(2, 3) == b"234"
            assert await file.read(8, 100) == b"89"
            assert await file.read(10, 1) == b""
            assert await file.read(500, 1) == b""
            assert await file.read(5, 0) == b""

        run(scenario())

    def test_writes_under_way_together_all_land(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await asyncio.gather(*(file.write(10 * n, [b"%010d" % n], sync=n % 3 == 0) for n in range(50)))
            assert await file.read(0, 1000) == b"".join(b"%010d" % n for n in range(50))

        run(scenario())

    def test_a_file_that_is_not_there_is_missing(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            for attempt in (disk.open("a"), disk.remove("a"), disk.rename("a", "b")):
                with pytest.raises(FileMissing, match=r"\ba\b"):
                    await attempt

        run(scenario())

    def test_rename_replaces_and_open_files_stay_usable(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            old, new = await disk.create("old"), await disk.create("new")
            await write(old, 0, b"old")
            await write(new, 0, b"new")
            await disk.rename("old", "new")
            await disk.sync_directory()
            assert await disk.list() == ["new"]
            assert await (await disk.open("new")).read(0, 9) == b"old"
            assert await new.read(0, 9) == b"new"
            await write(old, 3, b"!")
            assert await (await disk.open("new")).read(0, 9) == b"old!"

        run(scenario())

    def test_names_are_listed_in_order_and_without_the_lock(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            await disk.lock("me")
            for name in ("b", "a-2", "a-10", "C"):
                await disk.create(name)
            await disk.remove("b")
            assert await disk.list() == ["C", "a-10", "a-2"]

        run(scenario())

    def test_a_directory_has_one_owner_at_a_time(self, run: Run, disk: Disk, same_directory: Disk) -> None:
        async def scenario() -> None:
            await disk.lock("the first")
            for taker in (disk, same_directory):
                with pytest.raises(DirectoryInUse, match="the first"):
                    await taker.lock("the second")
            await disk.unlock()
            await same_directory.lock("the second")
            with pytest.raises(DirectoryInUse, match="the second"):
                await disk.lock("the first")
            await same_directory.unlock()
            await same_directory.unlock()

        run(scenario())

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "/a", "a\0", "x" * 201, "lock"])
    def test_a_wrong_name_is_a_mistake_of_the_program(self, run: Run, disk: Disk, name: str) -> None:
        async def scenario() -> None:
            attempts: list[Callable[[], object]] = [
                lambda: disk.create(name),
                lambda: disk.open(name),
                lambda: disk.remove(name),
                lambda: disk.rename(name, "a"),
                lambda: disk.rename("a", name),
            ]
            for attempt in attempts:
                with pytest.raises(ValueError, match="file name"):
                    attempt()

        run(scenario())

    def test_a_full_disk_refuses_to_grow_but_reads_and_removes(
        self, run: Run, disk: Disk, fill: Callable[[], None]
    ) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await write(file, 0, b"kept")
            fill()
            with pytest.raises(DiskFull, match=r"\ba\b"):
                await file.write(4, [bytes(4096)], sync=True)
            with pytest.raises(DiskFull, match=r"\bb\b"):
                await disk.create("b", reserve=1 << 20)
            assert await file.read(0, 4) == b"kept"
            assert await disk.list() == ["a"]
            await disk.remove("a")

        run(scenario())

    def test_syncs_complete_and_free_space_is_known(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await file.sync()
            await disk.sync_directory()
            assert await disk.free_bytes() > 0

        run(scenario())

    def test_a_closed_file_is_not_used_again(self, run: Run, disk: Disk) -> None:
        async def scenario() -> None:
            file = await disk.create("a")
            await file.close()
            await file.close()
            for attempt in (lambda: file.read(0, 1), lambda: file.write(0, [b"a"], sync=False), file.sync, file.size):
                with pytest.raises(ValueError, match="a is closed"):
                    attempt()

        run(scenario())


async def write(file: DiskFile, position: int, data: bytes) -> None:
    await file.write(position, [data], sync=True)
