"""Segments in processes of their own, for real: killed, stopped, hanging, and more asked of them than they take."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from pydanube.base.errors import (
    ObjectMissing,
    ObjectsFailed,
    ObjectsRefused,
    SegmentConflict,
    SegmentDamaged,
    SegmentMissing,
    TierBusy,
)
from pydanube.base.limits import BATCHES_READ_AT_ONCE, MIB
from pydanube.stream.segments import Segment, segment_key
from pydanube.tier import process as process_module
from pydanube.tier.limits import FRAME_BYTES_MAX, WINDOW_BYTES
from pydanube.tier.process import SegmentProcess, SegmentProcesses
from pydanube.tier.worker_process import WorkerProcess
from pydanube.wire.batch import Batch, build
from tier.rows_world import STREAM, full, messages, plan_of, simple
from waiting import until
from wire.batches import NOW

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parent.parent
SECRET = "s3cr3t-of-the-test"
SECONDS_MAX = 30.0


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    (tmp_path / "orders").mkdir()


def opened(folder: Path, *, opener: str = "open_objects", kind: type = SegmentProcess) -> SegmentProcess:
    options = {"root": str(folder), "secret_access_key": SECRET}
    segments = kind("folder", options, "a folder", opener=f"tier.worker_world:{opener}")
    assert isinstance(segments, SegmentProcess | SegmentProcesses)
    return segments  # type: ignore[return-value]  # both are the port


async def flow(batches: list[Batch]) -> AsyncIterator[Batch]:
    for batch in batches:
        yield batch


async def written(segments: SegmentProcess, batches: list[Batch]) -> tuple[str, Segment]:
    plan = plan_of(batches)
    key = segment_key(STREAM, plan)
    return key, await segments.write(key, plan, STREAM, flow(batches))


def run(folder: Path, work: Callable[[SegmentProcess], Awaitable[None]], **how: object) -> None:
    async def whole() -> None:
        segments = opened(folder, **how)  # type: ignore[arg-type]
        try:
            await work(segments)
        finally:
            await segments.close()

    asyncio.run(whole())


def pid_of(segments: SegmentProcess) -> int:
    return segments.processes()[0]


def of_process(segments: SegmentProcess, name: str) -> bytes:
    return Path(f"/proc/{pid_of(segments)}/{name}").read_bytes()


def objects_in(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_file()]


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("kind", [SegmentProcess, SegmentProcesses])
def test_everything_works_as_in_this_process(tmp_path: Path, kind: type) -> None:
    async def work(segments: SegmentProcess) -> None:
        batches = full()
        key, segment = await written(segments, batches)
        assert await written(segments, batches) == (key, segment)
        assert messages(await segments.read(key, segment, 0, MIB)) == messages(batches)
        await segments.verify(key, segment)
        other, second = await written(segments, simple(30, first=20))
        plan = plan_of([*batches, *simple(30, first=20)])
        merged = await segments.merge("merged", plan, STREAM, [(key, segment), (other, second)])
        assert merged.rows == 38
        await segments.create("small/1", bytes(3 * MIB))
        assert await segments.load("small/1") == bytes(3 * MIB)
        await segments.create("small/2", b"")
        assert await segments.load("small/2") == b""
        assert await segments.list("small/") == ["small/1", "small/2"]
        await segments.delete("small/1")
        assert await segments.list("small/") == ["small/2"]

    run(tmp_path, work, kind=kind)


def test_large_batches_and_many_small_ones_go_through(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        payload = os.urandom(10 * MIB)
        large = [build([payload], publish_time=NOW, first_sequence=at).stamped(at, 1, NOW + at) for at in range(3)]
        key, segment = await written(segments, large)
        found = [await segments.read(key, segment, at, 1) for at in range(3)]
        assert [batch.payloads() for batches in found for batch in batches] == [[payload]] * 3
        small = simple(3000, first=10, per_batch=1)
        key, segment = await written(segments, small)
        offset, answers = 10, []
        while offset <= small[-1].last_offset:
            answers.append(await segments.read(key, segment, offset, 16 * MIB))
            offset = answers[-1][-1].last_offset + 1
        assert max(map(len, answers)) == BATCHES_READ_AT_ONCE, "the broker's loop takes each answer in one turn"
        assert messages([batch for answer in answers for batch in answer]) == messages(small)

    run(tmp_path, work)


def test_errors_cross_with_their_type_and_text(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        key, segment = await written(segments, simple(10))
        (file,) = objects_in(tmp_path)
        data = file.read_bytes()
        file.write_bytes(data[:-1])
        with pytest.raises(SegmentDamaged, match=key):
            await segments.verify(key, segment)
        with pytest.raises(SegmentConflict, match=key):
            await written(segments, simple(10))
        file.unlink()
        with pytest.raises(SegmentMissing, match=key):
            await segments.read(key, segment, 0, 100)
        with pytest.raises(ObjectMissing):
            await segments.load("nothing")

    run(tmp_path, work)


def test_a_source_that_fails_leaves_no_object_and_no_call(tmp_path: Path) -> None:
    async def failing() -> AsyncIterator[Batch]:
        yield simple(10)[0]
        raise ValueError("the source")

    async def work(segments: SegmentProcess) -> None:
        for _ in range(5):
            with pytest.raises(ValueError, match="the source"):
                await segments.write("k", plan_of(simple(20)), STREAM, failing())
        assert await segments.list("k") == []
        assert not segments._worker.result()._calls  # type: ignore[union-attr]

    run(tmp_path, work)


@pytest.mark.parametrize(("order", "made"), [("hang-create", 0), ("hang-after-create", 1), ("hang-read", 1)])
def test_a_process_killed_in_the_middle_of_a_write_is_replaced_and_the_write_repeated(
    tmp_path: Path, order: str, made: int
) -> None:
    async def work(segments: SegmentProcess) -> None:
        (tmp_path / "orders" / order).touch()
        writing = asyncio.create_task(written(segments, full()))
        await until(lambda: any((tmp_path / "orders").glob("hanging-*")))
        assert len(objects_in(tmp_path)) == made
        first = pid_of(segments)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ObjectsFailed) as caught:
            await writing
        assert caught.value.retriable
        (tmp_path / "orders" / order).unlink()
        key, segment = await written(segments, full())
        assert pid_of(segments) != first
        assert messages(await segments.read(key, segment, 0, MIB)) == messages(full())

    run(tmp_path, work)


def test_a_process_killed_while_data_is_sent_fails_the_write(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        await segments.list("x/")

        async def killing() -> AsyncIterator[Batch]:
            for number, batch in enumerate(simple(100_000, size=10, per_batch=1000)):
                if number == 20:
                    os.kill(pid_of(segments), signal.SIGKILL)
                yield batch

        with pytest.raises(ObjectsFailed):
            await segments.write("k", plan_of(simple(100_000, per_batch=1000)), STREAM, killing())
        assert await segments.list("k") == []

    run(tmp_path, work)


@pytest.mark.parametrize("operation", ["create", "read"])
def test_it_closes_within_a_second_while_object_storage_hangs(tmp_path: Path, operation: str) -> None:
    async def work() -> None:
        segments = opened(tmp_path)
        (tmp_path / "orders" / f"hang-{operation}").touch()
        writing = asyncio.create_task(written(segments, full()))
        await until((tmp_path / "orders" / f"hanging-{operation}").exists)
        pid = pid_of(segments)
        start = time.monotonic()
        await segments.close()
        assert time.monotonic() - start < 1.0
        assert gone(pid)
        with pytest.raises(ObjectsFailed):
            await writing
        with pytest.raises(ObjectsFailed):
            await segments.list("x/")

    asyncio.run(work())


def test_it_closes_within_a_second_also_when_the_process_does_not_run(tmp_path: Path) -> None:
    async def work() -> None:
        segments = opened(tmp_path)
        await segments.list("x/")
        pid = pid_of(segments)
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        await segments.close()
        assert time.monotonic() - start < 1.0
        assert gone(pid)

    asyncio.run(work())


def test_a_process_does_not_outlive_its_parent(tmp_path: Path) -> None:
    async def work() -> None:
        script = (
            "import asyncio, sys\n"
            "from pydanube.tier.process import SegmentProcess\n"
            "async def main():\n"
            "    s = SegmentProcess('folder', {'root': sys.argv[1]}, 'x', opener='tier.worker_world:open_objects')\n"
            "    await s.list('x/')\n"
            "    print(s._worker.result().pid, flush=True)\n"
            "    await asyncio.Event().wait()\n"
            "asyncio.run(main())\n"
        )
        parent = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, str(tmp_path), stdout=asyncio.subprocess.PIPE
        )
        assert parent.stdout is not None
        pid = int(await parent.stdout.readline())
        os.kill(pid, signal.SIGSTOP)  # it sees no end of a socket
        parent.kill()
        await parent.wait()
        await until(lambda: gone(pid) or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z")

    asyncio.run(work())


def test_no_more_than_a_window_is_on_its_way(tmp_path: Path) -> None:
    """A process that does not take batches stops whoever reads them."""

    async def work(segments: SegmentProcess) -> None:
        await segments.list("x/")
        pid = pid_of(segments)
        batches = [
            build([os.urandom(MIB // 2)], publish_time=NOW, first_sequence=at).stamped(at, 1, NOW) for at in range(100)
        ]
        taken = 0

        async def counted() -> AsyncIterator[Batch]:
            nonlocal taken
            for batch in batches:
                taken += batch.size
                yield batch

        os.kill(pid, signal.SIGSTOP)
        key = "k"
        writing = asyncio.create_task(segments.write(key, plan_of(batches), STREAM, counted()))
        before = -1
        while taken != before:  # until nothing moves any more
            before = taken
            await asyncio.sleep(0.1)
        assert 0 < taken <= WINDOW_BYTES + 2 * MIB
        os.kill(pid, signal.SIGCONT)
        segment = await writing
        assert segment.rows == 100
        await segments.verify(key, segment)

    run(tmp_path, work)


def test_a_process_takes_little_memory_however_large_the_segment(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        batch = build([bytes(100)] * 100_000, publish_time=NOW)  # 10 MB, packed to nothing

        async def many() -> AsyncIterator[Batch]:
            for number in range(20):
                yield batch.stamped(number * 100_000, 1, NOW + number)

        plan = plan_of([batch.stamped(0, 1, NOW), batch.stamped(1_900_000, 1, NOW)])
        segment = await segments.write("k", plan, STREAM, many())
        assert segment.rows == 2_000_000
        status = of_process(segments, "status").decode()
        peak_kib = int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
        assert peak_kib < 450 * 1024

    run(tmp_path, work)


def test_more_calls_wait_and_too_many_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "CALLS_WAITING_MAX", 3)

    async def work(segments: SegmentProcess) -> None:
        key, segment = await written(segments, simple(10))
        (tmp_path / "orders" / "hang-read").touch()
        reading = [asyncio.create_task(segments.read(key, segment, 0, 10)) for _ in range(7)]
        await until(lambda: segments._reads.waiting == 3)
        with pytest.raises(TierBusy):
            await segments.read(key, segment, 0, 10)
        assert await segments.list("x/") == []  # others have their own turns
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        (tmp_path / "orders" / "hang-read").unlink()
        assert len(await segments.read(key, segment, 0, 10)) == 1

    run(tmp_path, work)


def test_readers_do_not_wait_behind_an_upload(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        key, segment = await written(segments, simple(10))
        (tmp_path / "orders" / "hang-create").touch()
        writing = [asyncio.create_task(written(segments, simple(10, first=at))) for at in (10, 20, 30)]
        await until((tmp_path / "orders" / "hanging-create").exists)
        assert len(await segments.read(key, segment, 0, MIB)) == 1
        for task in writing:
            task.cancel()
        await asyncio.gather(*writing, return_exceptions=True)

    run(tmp_path, work, kind=SegmentProcesses)


def test_a_place_that_is_refused_says_so_at_every_call(tmp_path: Path) -> None:
    async def work() -> None:
        segments = SegmentProcess("nowhere", {}, "nowhere://x", opener="tier.worker_world:open_objects")
        for _ in range(2):
            with pytest.raises(ObjectsRefused, match="nowhere://x"):
                await segments.list("x/")
        await segments.close()

    asyncio.run(work())


def test_a_call_that_is_too_long_is_refused_and_nothing_else(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        with pytest.raises(ObjectsRefused):
            await segments.load("x" * FRAME_BYTES_MAX)
        assert await segments.list("x/") == []

    run(tmp_path, work)


def test_a_process_that_cannot_start_is_tried_again(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        die = tmp_path / "orders" / "die"
        die.touch()
        with pytest.raises(ObjectsFailed):
            await segments.list("x/")
        die.unlink()
        async with asyncio.timeout(SECONDS_MAX):
            while True:
                try:
                    assert await segments.list("x/") == []
                    return
                except ObjectsFailed:
                    continue  # the start before the file was removed

    run(tmp_path, work, opener="open_slowly")


def test_secrets_are_neither_in_arguments_nor_in_the_environment(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        await segments.list("x/")
        for name in ("cmdline", "environ"):
            assert SECRET.encode() not in of_process(segments, name)
        assert SECRET not in repr(segments)

    run(tmp_path, work)


def test_it_gives_way_to_live_traffic(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        await segments.list("x/")
        assert os.getpriority(os.PRIO_PROCESS, pid_of(segments)) > os.getpriority(os.PRIO_PROCESS, 0)

    run(tmp_path, work)


def test_its_log_lines_come_out_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work(segments: SegmentProcess) -> None:
        (tmp_path / "orders" / "fail-create").touch()
        with caplog.at_level(logging.WARNING), pytest.raises(ObjectsFailed, match="planted"):
            await segments.create("a", b"data")
        await until(lambda: "about to fail create" in caplog.text)

    run(tmp_path, work)


def test_a_process_that_has_grown_is_replaced_when_it_has_nothing_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        options = {"root": str(tmp_path)}
        opener = "tier.worker_world:open_objects"
        segments = SegmentProcess("folder", options, "a folder", opener=opener, rest_bytes_max=1 * MIB)
        pids: set[int] = set()
        try:
            for number in range(3):
                await asyncio.gather(*(segments.create(f"orders/{number}-{part}", b"x") for part in range(6)))
                assert sorted(await segments.list(f"orders/{number}-")) == [f"orders/{number}-{at}" for at in range(6)]
                await until(lambda: bool(segments.processes()))
                pids.update(segments.processes())
        finally:
            await segments.close()
        assert len(pids) > 1

    with caplog.at_level(logging.INFO):
        asyncio.run(whole())
    assert "replacing it" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_process_that_has_grown_is_replaced_although_there_is_always_something_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def whole() -> None:
        options = {"root": str(tmp_path)}
        opener = "tier.worker_world:open_objects"
        limits = {"rest_bytes_max": 1 << 40, "busy_bytes_max": 1 * MIB}
        segments = SegmentProcess("folder", options, "a folder", opener=opener, **limits)

        async def keep_busy(writer: int) -> None:
            for number in range(3):
                await segments.create(f"orders/{writer}-{number}", b"x")

        try:
            await asyncio.gather(*map(keep_busy, range(3)))
            assert len(await segments.list("orders/")) == 9
        finally:
            await segments.close()

    with caplog.at_level(logging.INFO):
        asyncio.run(whole())
    assert "replacing it" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_memory_is_given_back_after_a_segment(tmp_path: Path) -> None:
    async def work(segments: SegmentProcess) -> None:
        payloads = [os.urandom(1000) for _ in range(1000)]
        batches = [build(payloads, publish_time=1).stamped(at * 1000, 1, NOW) for at in range(60)]
        await segments.create("orders/first", b"")
        worker = await segments._up()
        before = worker.resident_bytes
        assert before > 10 * MIB
        sizes = []
        for _ in range(3):
            key, _ = await written(segments, batches)
            await until(lambda: worker.resident_bytes - before < 100 * MIB)  # it answers first, and then gives it back
            sizes.append(worker.resident_bytes - before)
            await segments.delete(key)
        assert max(sizes) < 100 * MIB, sizes

    run(tmp_path, work)


def test_a_process_that_gets_no_socket_is_started_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(segments: SegmentProcess) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(socket, "socketpair", no_descriptor)
            with pytest.raises(ObjectsFailed, match=r"cannot be started: .*Too many open files"):
                await asyncio.wait_for(segments.list(""), SECONDS_MAX)
        assert await asyncio.wait_for(segments.list(""), SECONDS_MAX) == []

    run(tmp_path, work)


def no_descriptor(*_: object) -> tuple[socket.socket, socket.socket]:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_whatever_ends_the_keeper_of_a_process_the_next_call_starts_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(hello: object) -> WorkerProcess:
        raise RuntimeError("planted")

    async def work(segments: SegmentProcess) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(WorkerProcess, "start", broken)
            with pytest.raises(ObjectsFailed):
                await asyncio.wait_for(segments.list(""), SECONDS_MAX)
        assert await asyncio.wait_for(segments.list(""), SECONDS_MAX) == []

    run(tmp_path, work)
