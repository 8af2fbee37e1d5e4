"""Starts a server, waits until it answers, and ends it with all that it started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 5.0
POLL_SECONDS = 0.05
TIED = str(Path(__file__).with_name("tied.py"))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def serving(
    command: Sequence[str | Path], log: Path, ready: Callable[[], bool], environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Runs the command, in a process group of its own, for as long as the block lasts."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, TIED, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        _await(process, log, ready)
        yield
    finally:
        _end(process)


def _await(process: subprocess.Popen[bytes], log: Path, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while not ready():
        ended = process.poll() is not None
        if ended or time.monotonic() > deadline:
            what = f"ended with {process.returncode}" if ended else f"does not answer after {START_SECONDS_MAX} s"
            raise RuntimeError(f"{process.args!r} {what}:\n{log.read_text(errors='replace')[-4000:]}")
        time.sleep(POLL_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            continue
    process.wait(STOP_SECONDS_MAX)
