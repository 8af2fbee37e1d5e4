"""Where produced messages come from: lines of stdin and files, read in a thread of its own, or a template.

A blocked read of a terminal or pipe cannot be cancelled; a daemon thread is, by Ctrl-C, left behind.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import uuid
from asyncio import AbstractEventLoop, Queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread
from typing import IO

import click

from pydanube.base.limits import BATCH_BYTES_MAX
from pydanube.cli.values import shown_time

READ_BYTES = 256 * 1024
READS_AHEAD = 4
_MARK = re.compile(r"\{(n|uuid|now)\}")


async def lines_of(files: Sequence[str]) -> AsyncIterator[list[bytes]]:
    """Lines as they come, many at a time where there are many; `-` is stdin."""
    queue: Queue[list[bytes] | Exception | None] = Queue(READS_AHEAD)
    loop = asyncio.get_running_loop()
    Thread(target=_read_all, args=(files, queue, loop), name="danube-input", daemon=True).start()
    while (found := await queue.get()) is not None:
        if isinstance(found, Exception):
            raise found
        yield found


def _read_all(files: Sequence[str], queue: Queue[list[bytes] | Exception | None], loop: AbstractEventLoop) -> None:
    """In the thread. Each put waits for room, so that a large file is never in memory as a whole."""

    def put(found: list[bytes] | Exception | None) -> None:
        asyncio.run_coroutine_threadsafe(queue.put(found), loop).result()

    try:
        try:
            for name in files:
                if name == "-":
                    for lines in _split(_stdin()):
                        put(lines)
                else:
                    with Path(name).open("rb") as file:
                        for lines in _split(file):
                            put(lines)
            put(None)
        except (OSError, click.UsageError) as error:
            put(error)
    except Exception:  # the loop has ended: nobody is there to be told
        return


def _stdin() -> IO[bytes]:
    """Without a buffer of its own: the lock of one, held by a blocked thread, would abort the interpreter's end."""
    try:
        return open(sys.stdin.fileno(), "rb", buffering=0, closefd=False)
    except OSError:  # it is no file
        return sys.stdin.buffer


def _split(file: IO[bytes]) -> Iterator[list[bytes]]:
    read: Callable[[int], bytes] = getattr(file, "read1", file.read)
    rest = b""
    while data := read(READ_BYTES):
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > BATCH_BYTES_MAX:
            raise click.UsageError(f"a line has more than {BATCH_BYTES_MAX} bytes, which no message may have")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def fill(template: str, number: int) -> bytes:
    """`{n}` is the number of the message, from 1 on; `{uuid}` and `{now}` are what they say. Other braces stay."""
    made = {"n": lambda: str(number), "uuid": lambda: str(uuid.uuid4()), "now": _now}
    return _MARK.sub(lambda mark: made[mark[1]](), template).encode("utf-8", "surrogateescape")


def _now() -> str:
    return str(shown_time(time.time_ns() // 1000))
