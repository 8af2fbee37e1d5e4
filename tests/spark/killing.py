"""Processes that are killed with -9 and started again, when what they do has come so far."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event
from time import monotonic

PATIENCE_SECONDS = 240.0  # for anything to go on, on a machine that is busy
TICK_SECONDS = 0.002


class Killed:
    """A process that is started again after kill -9, with all that it has started."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.command = command
        self._log = log
        self.start()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Also those of its descendants that have a group of their own, as a JVM may."""
        assert self.process.poll() is None, self.said()
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with suppress(ProcessLookupError):  # whatever was started meanwhile
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        if self.process.poll() is None:
            self.kill()

    def ended(self) -> None:
        """Waits until it is done, and well."""
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.said()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-5_000:]


def descendants(pid: int) -> list[int]:
    """As they are now; parents first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


class KilledBroker(Killed):
    """Keeps its address."""

    def __init__(self, folder: Path) -> None:
        self._ready = folder / "ready"
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(folder / "data")]
        self._serve = [*command, "--ready-file", str(self._ready), "--listen"]
        super().__init__([*self._serve, "127.0.0.1:0"], folder / "broker.log")
        listen = self._listens()
        self.command = [*self._serve, listen]
        self.url = f"danube://{listen}"

    def _listens(self) -> str:
        until(self._ready.exists, "the broker is ready")
        return str(json.loads(self._ready.read_text())["listen"])

    def again(self) -> None:
        self._ready.unlink()
        self.kill()
        self.start()
        self._listens()


def until(true: Callable[[], bool], what: str) -> None:
    deadline, tick = monotonic() + PATIENCE_SECONDS, Event()
    while not true():
        assert monotonic() < deadline, f"never: {what}"
        tick.wait(TICK_SECONDS)  # other processes do not tell, they are asked


def last_number(folder: Path) -> int:
    """The newest entry of a log that Spark keeps in a checkpoint; -1 if there is none."""
    with suppress(FileNotFoundError):
        return max((int(name) for name in os.listdir(folder) if name.isdecimal()), default=-1)
    return -1
