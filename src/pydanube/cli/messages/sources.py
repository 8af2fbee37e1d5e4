"""Where produced messages come from: lines of stdin and files, read in a separate thread, or a template.

A blocked read of a terminal or pipe cannot be cancelled. In a daemon thread, it does not keep the process alive.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import uuid
from asyncio import Queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Semaphore, Thread
from typing import IO, TypeVar

import click

from pydanube.base.limits import BATCH_BYTES_MAX, KIB
from pydanube.cli.shell.values import shown_time

READ_BYTES = 256 * KIB
READS_AHEAD = 4
Item = TypeVar("Item")
_PLACEHOLDER = re.compile(r"\{(n|uuid|now)\}")


async def in_thread(make: Callable[[], Iterator[Item]]) -> AsyncIterator[Item]:
    """Runs a blocking iterator in a thread and yields its items. The thread reads a few items ahead, not more."""
    queue: Queue[tuple[Item] | Exception | None] = Queue()
    room = Semaphore(READS_AHEAD)
    loop = asyncio.get_running_loop()

    def put(found: tuple[Item] | Exception | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(queue.put_nowait, found)

    def read() -> None:
        last: Exception | None = None
        try:
            for item in make():
                put((item,))
        except Exception as error:
            last = error
        with suppress(RuntimeError):  # the loop has ended, so no one can receive it
            put(last)

    Thread(target=read, name="danube-input", daemon=True).start()
    while (found := await queue.get()) is not None:
        room.release()
        if isinstance(found, Exception):
            raise found
        yield found[0]


def lines_of(files: Sequence[str]) -> AsyncIterator[list[bytes]]:
    """Yields lists of lines as they arrive; `-` is stdin."""

    def lines() -> Iterator[list[bytes]]:
        for name in files:
            with open_source(name) as file:
                yield from _split(file)

    return in_thread(lines)


def whole_files(files: Sequence[str]) -> AsyncIterator[list[bytes]]:
    """Yields each file as one message."""

    def contents() -> Iterator[list[bytes]]:
        for name in files:
            with open_source(name) as file:
                data = file.read(BATCH_BYTES_MAX + 1)
            if len(data) > BATCH_BYTES_MAX:
                raise click.UsageError(f"{name} has more than {BATCH_BYTES_MAX} bytes, more than a message can have")
            yield [data]

    return in_thread(contents)


def open_source(name: str) -> IO[bytes]:
    return _stdin() if name == "-" else Path(name).open("rb")


def _stdin() -> IO[bytes]:
    """A separate file object: the lock of `sys.stdin`, held by a blocked thread, would abort the interpreter's exit."""
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except OSError:  # stdin is not a file
        return sys.stdin.buffer


def _split(file: IO[bytes]) -> Iterator[list[bytes]]:
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    rest = b""
    while data := read(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > BATCH_BYTES_MAX:
            raise click.UsageError(f"a line has more than {BATCH_BYTES_MAX} bytes, more than a message can have")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def fill_template(template: str, number: int) -> bytes:
    """Fills in `{n}` (the number of the message, from 1), `{uuid}` and `{now}`. Other braces stay."""
    made = {"n": lambda: str(number), "uuid": lambda: str(uuid.uuid4()), "now": _now}
    return _PLACEHOLDER.sub(lambda mark: made[mark[1]](), template).encode("utf-8", "surrogateescape")


def _now() -> str:
    return str(shown_time(time.time_ns() // 1000))
