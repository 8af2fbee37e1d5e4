"""One contract for object storage, on folders, in memory and with real servers; what each of them promises beyond."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from pydanube.adapters.objects_url import parse_objects_url
from pydanube.adapters.opendal_objects import CALLS_MAX, CALLS_WAITING_MAX, UNFINISHED, OpendalObjects
from pydanube.adapters.placed_files import LEFT_OVER_SECONDS, remove_left_overs
from pydanube.base.errors import DanubeError, ObjectExists, ObjectMissing, ObjectsFailed, ObjectsRefused, TierBusy
from servers.fixtures import ObjectServer, Place
from servers.process import free_port

SERVERS = ["moto", "swift", "azurite", "redis"]
PLACES = ["file", "memory", *SERVERS]
CANNOT_LIST = {"redis"}
ONE_WINNER = {"file", "memory", "moto", "azurite"}  # Swift looks before it writes, and so do we for Redis
CHECKS_KEYS = ["swift", "azurite", "redis"]
BIG_BYTES = 20 << 20
NO_SERVER_SECONDS_MAX = 30.0
HIDDEN = f"{UNFINISHED}/a"
ODD_KEYS = [
    "x y/z",
    "x/ü日本",
    "x/100%25+&=#?*",
    "x/a:b~c'(d)!",
    "x/.hidden",
    "x/-",
    "x/" + "l" * 200,
    'x/"q"<>|',
    "x/a;b,c@d$",
    "x/ends.",
    "x/a%2Fb",
]


@pytest.fixture(params=PLACES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if kind == "file":
        return Place(f"file://{tmp_path}/objects", {}, {})
    if kind == "memory":
        return Place("memory://", {}, {})
    server: ObjectServer = request.getfixturevalue(f"{kind}_server")
    return server.place()


def opened(place: Place, **environment: str) -> OpendalObjects:
    return OpendalObjects(parse_objects_url(place.url, place.options, {**place.environment, **environment}))


def run(place: Place, scenario: Callable[[OpendalObjects], Coroutine[Any, Any, None]], **environment: str) -> None:
    async def whole() -> None:
        objects = opened(place, **environment)
        try:
            await scenario(objects)
        finally:
            await objects.close()

    asyncio.run(whole())


async def outcome(call: Awaitable[object]) -> str:
    try:
        await call
    except DanubeError as error:
        return type(error).__name__
    return "done"


def test_an_object_is_made_once_and_never_changed(place: Place) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await objects.create("a/b", b"first")
        with pytest.raises(ObjectExists, match="a/b"):
            await objects.create("a/b", b"second")
        assert await objects.read("a/b") == b"first"
        assert await objects.size("a/b") == 5
        await objects.delete("a/b")
        await objects.delete("a/b")
        with pytest.raises(ObjectMissing, match="a/b"):
            await objects.size("a/b")
        await objects.create("a/b", b"second")
        assert await objects.read("a/b") == b"second"

    run(place, scenario)


def test_a_range_is_shorter_only_at_the_end(place: Place) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await objects.create("k", b"0123456789")
        ranges = {(0, None): b"0123456789", (4, None): b"456789", (4, 3): b"456", (4, 6): b"456789", (4, 7): b"456789"}
        ranges |= {(0, 1_000): b"0123456789", (10, 1): b"", (10, None): b"", (99, 5): b"", (99, None): b"", (3, 0): b""}
        for (start, length), wanted in ranges.items():
            assert await objects.read("k", start, length) == wanted, (start, length)

    run(place, scenario)


def test_what_is_not_there_is_missing(place: Place) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        for call in (objects.read("no"), objects.read("no", 0, 5), objects.read("no", 9), objects.size("no")):
            with pytest.raises(ObjectMissing, match="no"):
                await call

    run(place, scenario)


def test_an_empty_object_is_an_object(place: Place) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await objects.create("empty", b"")
        assert await objects.size("empty") == 0
        assert await objects.read("empty") == b""
        assert await objects.read("empty", 0, 10) == b""
        with pytest.raises(ObjectExists):
            await objects.create("empty", b"not any more")

    run(place, scenario)


def test_a_large_object_comes_back_whole_and_in_pieces(place: Place, kind: str) -> None:
    """Redis is given half a second for an answer by opendal, whatever it was sent: on a busy machine less fits."""
    size = BIG_BYTES // 16 if kind == "redis" else BIG_BYTES
    data = bytes(range(256)) * (size // 256)

    async def scenario(objects: OpendalObjects) -> None:
        await objects.create("big", data)
        assert await objects.size("big") == size
        assert await objects.read("big") == data
        assert await objects.read("big", size - 1_000, 4_000) == data[-1_000:]

    run(place, scenario)


def test_a_list_has_what_is_under_the_prefix_and_nothing_else(place: Place, kind: str) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        for key in ("a/2", "a/1", "a/b/3", "ab/4", "a.5", "A/6"):
            await objects.create(key, b"x")
        if kind in CANNOT_LIST:
            assert not objects.can_list
            with pytest.raises(ObjectsRefused, match="cannot list"):
                await objects.list("a/")
            return
        assert await objects.list("a/") == ["a/1", "a/2", "a/b/3"]
        assert await objects.list("a/b/") == ["a/b/3"]
        assert await objects.list("a/1/") == []
        assert await objects.list("none/") == []
        assert await objects.list("") == ["A/6", "a.5", "a/1", "a/2", "a/b/3", "ab/4"]
        await objects.delete("a/1")
        assert await objects.list("a/") == ["a/2", "a/b/3"]

    run(place, scenario)


def test_odd_keys_are_kept_as_they_are(place: Place, kind: str) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        for key in ODD_KEYS:
            await objects.create(key, key.encode())
        for key in ODD_KEYS:
            assert await objects.read(key) == key.encode()
        if kind not in CANNOT_LIST:
            assert await objects.list("x/") == sorted(key for key in ODD_KEYS if key.startswith("x/"))

    run(place, scenario)


def test_of_twenty_creators_one_wins(place: Place, kind: str) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        assert objects.creates_atomically == (kind != "redis")
        others = [objects if kind == "memory" else opened(place) for _ in range(4)]
        for turn in range(3):
            texts = [bytes([number]) * 50_000 for number in range(20)]
            calls = (others[number % 4].create(f"race/{turn}", text) for number, text in enumerate(texts))
            ends = await asyncio.gather(*map(outcome, calls))
            winners = [texts[number] for number, end in enumerate(ends) if end == "done"]
            assert winners
            assert set(ends) <= {"done", "ObjectExists"}
            assert await objects.read(f"race/{turn}") in winners  # whole, and of somebody who was told so
            if kind in ONE_WINNER:
                assert len(winners) == 1
        for other in others:
            await other.close()

    run(place, scenario)


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "../a", "a/../b", "./a", " a", "a ", "a\nb", "a\\b", "é" * 200, "a/" * 460 + "a", HIDDEN],
)
def test_a_key_that_not_every_service_keeps_is_refused(key: str) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        for call in (objects.create(key, b""), objects.read(key), objects.size(key), objects.delete(key)):
            assert await outcome(call) == "ObjectsRefused"

    run(Place("memory://", {}, {}), scenario)


# -- when it does not work ---------------------------------------------------------------------------------------------


def calls_of(objects: OpendalObjects, *, listing: bool = True) -> list[Awaitable[object]]:
    calls: list[Awaitable[object]] = [objects.create("k", b"x"), objects.read("k"), objects.read("k", 0, 5)]
    return [*calls, objects.size("k"), *([objects.list("a/")] if listing else [])]


@pytest.mark.parametrize("kind", CHECKS_KEYS, indirect=True)
def test_wrong_credentials_are_refused_and_never_shown(
    place: Place, kind: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    planted = "cGxhbnRlZC1zZWNyZXQ="
    wrong = {"swift": "AWS_SECRET_ACCESS_KEY", "azurite": "AZURE_STORAGE_KEY", "redis": "REDIS_PASSWORD"}[kind]
    known = [planted, *(text for name, text in place.environment.items() if name == wrong)]
    texts: list[str] = []

    async def scenario(objects: OpendalObjects) -> None:
        calls = [objects.create("k", b"x")] if kind == "redis" else calls_of(objects)  # Redis tries ten seconds
        for call in calls:
            with pytest.raises((ObjectsRefused, ObjectsFailed) if kind == "redis" else ObjectsRefused) as failed:
                await call
            assert failed.value.__cause__ is None
            assert failed.value.__suppress_context__
            texts.append(f"{failed.value} {failed.value!r} {failed.value.args}")
        texts.append(f"{objects} {objects!r} {vars(objects)['_location']!r}")

    with caplog.at_level(logging.DEBUG):
        run(place, scenario, **{wrong: planted})
    output = capfd.readouterr()
    shown = "\n".join([*texts, caplog.text, output.out, output.err])
    assert "k" in texts[0]
    assert [text for text in known if text in shown] == []
    assert "ignature=" not in shown


def test_a_server_that_repeats_credentials_is_not_quoted() -> None:
    keys = {
        "AWS_ACCESS_KEY_ID": "planted-id",
        "AWS_SECRET_ACCESS_KEY": "planted-secret",
        "AWS_SESSION_TOKEN": "planted-t",
    }
    told = "who is planted-id with planted-secret and planted-t at http://127.0.0.1/b?X-Amz-Signature=planted-signature"
    body = f"<Error><Code>AccessDenied</Code><Message>{told}</Message></Error>".encode()
    head = b"HTTP/1.1 403 Forbidden\r\nX-Echo: planted-header\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head % len(body) + body)
        await writer.drain()
        writer.close()

    async def whole() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        objects = opened(Place("s3://b/p", {"endpoint": endpoint}, keys))
        for call in (objects.read("k", 0, 5), objects.list("a/"), objects.delete("k")):
            with pytest.raises(ObjectsRefused, match=r"of (k|a/): PermissionDenied: .*AccessDenied.*who is") as refused:
                await call
            assert "planted" not in "".join(traceback.format_exception(refused.value))
        await objects.close()
        server.close()

    asyncio.run(whole())


@pytest.mark.parametrize("kind", ["moto", "swift", "azurite"], indirect=True)
def test_a_missing_bucket_is_refused_not_a_missing_object(place: Place) -> None:
    elsewhere = Place(place.url.replace("//danube/", "//no-such-bucket/"), place.options, place.environment)

    async def scenario(objects: OpendalObjects) -> None:
        for call in calls_of(objects):
            assert await outcome(call) == "ObjectsRefused"

    run(elsewhere, scenario)


@pytest.mark.parametrize("kind", SERVERS)
def test_no_server_is_a_failure_within_a_bound(kind: str) -> None:
    port = free_port()
    place = {
        "moto": Place("s3://b/p", {"endpoint": f"http://127.0.0.1:{port}"}, {"AWS_ACCESS_KEY_ID": "a"}),
        "swift": Place("s3://b/p", {"endpoint": f"http://localhost:{port}"}, {"AWS_ACCESS_KEY_ID": "a"}),
        "azurite": Place("azblob://b/p", {"endpoint": f"http://127.0.0.1:{port}/me"}, {"AZURE_STORAGE_ACCOUNT": "me"}),
        "redis": Place(f"redis://127.0.0.1:{port}/p", {}, {}),
    }[kind]
    secrets = {"AWS_SECRET_ACCESS_KEY": "planted", "AZURE_STORAGE_KEY": "cGxhbnRlZA=="}

    async def scenario(objects: OpendalObjects) -> None:
        begin = time.monotonic()
        ends = await asyncio.gather(*map(outcome, calls_of(objects, listing=kind not in CANNOT_LIST)))
        assert set(ends) == {"ObjectsFailed"}
        assert time.monotonic() - begin < NO_SERVER_SECONDS_MAX

    run(place, scenario, **secrets)


@pytest.fixture
def silent() -> Iterator[Place]:
    """A server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        yield Place("s3://b/p", {"endpoint": endpoint}, {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "planted"})


def test_a_server_that_says_nothing_is_a_failure_within_a_bound(silent: Place) -> None:
    async def scenario() -> None:
        objects = OpendalObjects(parse_objects_url(silent.url, silent.options, silent.environment), call_seconds=0.3)
        begin = time.monotonic()
        for call in (objects.create("k", b"x"), objects.read("k"), objects.size("k"), objects.delete("k")):
            with pytest.raises(ObjectsFailed, match=r"of k: no answer within 0\.3 s"):
                await call
        await objects.close()
        assert time.monotonic() - begin < NO_SERVER_SECONDS_MAX

    asyncio.run(scenario())


def test_only_so_many_calls_may_wait(silent: Place) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        waiting = [asyncio.ensure_future(objects.size("k")) for _ in range(CALLS_MAX + CALLS_WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(TierBusy):
            await objects.size("k")
        for task in waiting:
            task.cancel()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert {type(end) for end in ends} == {asyncio.CancelledError}

    run(silent, scenario)


def test_a_service_that_refuses_its_options_is_refused() -> None:
    with pytest.raises(ObjectsRefused, match="sqlite://"):
        opened(Place("sqlite://?table=t", {}, {}))


def test_a_closed_one_takes_no_calls() -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await objects.close()
        assert await outcome(objects.create("a", b"x")) == "ObjectsFailed"

    run(Place("memory://", {}, {}), scenario)


# -- folders -----------------------------------------------------------------------------------------------------------

WRITER = """
import asyncio, sys
from pydanube.adapters.objects_url import parse_objects_url
from pydanube.adapters.opendal_objects import OpendalObjects

async def main():
    objects = OpendalObjects(parse_objects_url(sys.argv[1], {}, {}))
    for number in range(1_000):
        await objects.create(f"big/{number}", bytes([number % 251]) * (8 << 20))

print("begins", flush=True)
asyncio.run(main())
"""


def sizes(folder: Path) -> set[int]:
    return {path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_process_killed_while_it_writes_leaves_no_torn_object(tmp_path: Path) -> None:
    folder = tmp_path / "objects"
    url = f"file://{folder}"
    caught = 0
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", WRITER, url], stdout=subprocess.PIPE)
        try:
            unfinished = folder / UNFINISHED
            before = set(unfinished.iterdir()) if unfinished.is_dir() else set()
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and process.poll() is None:
                new = set(unfinished.iterdir()) - before if unfinished.is_dir() else set()
                if any(0 < size_or_none(file) < 8 << 20 for file in new):
                    break  # in the middle of a file
        finally:
            process.send_signal(signal.SIGKILL)
            process.communicate()
        caught += any(0 < size < 8 << 20 for size in sizes(folder / UNFINISHED))
        if (folder / "big").is_dir():
            assert sizes(folder / "big") <= {8 << 20}
            for path in (folder / "big").iterdir():
                path.unlink()
    assert caught, "no writer was killed in the middle of a file"

    async def scenario(objects: OpendalObjects) -> None:
        assert await objects.list("") == []
        await objects.create("big/0", b"after")
        assert await objects.list("") == ["big/0"]

    run(Place(url, {}, {}), scenario)


def size_or_none(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def test_left_overs_of_dead_processes_go_and_those_of_others_stay(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_bytes(b"x")
    now = time.time()
    os.utime(tmp_path / "old", (now, now - LEFT_OVER_SECONDS - 60))
    remove_left_overs(tmp_path, now)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    remove_left_overs(tmp_path / "none", now)


def test_nothing_unfinished_is_left_behind(tmp_path: Path) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await asyncio.gather(*(outcome(objects.create("same", b"x")) for _ in range(20)))
        await objects.create("same2/deep/er", b"x")

    run(Place(f"file://{tmp_path}", {}, {}), scenario)
    assert list((tmp_path / UNFINISHED).iterdir()) == []


def test_a_file_where_a_folder_must_be_is_refused(tmp_path: Path) -> None:
    async def scenario(objects: OpendalObjects) -> None:
        await objects.create("a", b"x")
        assert await outcome(objects.create("a/b", b"x")) == "ObjectsRefused"

    run(Place(f"file://{tmp_path}", {}, {}), scenario)


# -- the end of a process ----------------------------------------------------------------------------------------------

SHORT = """
import asyncio, atexit, sys, time

ends = []
atexit.register(lambda: print(time.monotonic() - ends[-1]))  # runs last, as the first that was registered

from pydanube.adapters.objects_url import parse_objects_url
from pydanube.adapters.opendal_objects import OpendalObjects

async def main():
    objects = OpendalObjects(parse_objects_url(sys.argv[1], {}, {}))
    await asyncio.gather(*(objects.create(f"{sys.argv[2]}/{number}", b"x") for number in range(20)))
    await asyncio.gather(*(objects.read(f"{sys.argv[2]}/{number}", 0, 1) for number in range(20)))
    ends.append(time.monotonic())
    if sys.argv[3] == "close":
        await objects.close()

asyncio.run(main())
"""
ENOUGH_SECONDS = 0.05  # of 100 programs on busy cores that waited so long none aborted; of 60 that did not, 9 to 21


@pytest.mark.parametrize("how", ["close", "leave"])
def test_a_process_that_used_it_ends_cleanly(how: str, tmp_path: Path) -> None:
    for number in range(6):
        command = [sys.executable, "-c", SHORT, f"file://{tmp_path}", str(number), how]
        done = subprocess.run(command, timeout=60, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert float(done.stdout) >= ENOUGH_SECONDS
