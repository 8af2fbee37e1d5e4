"""A broker in a process of its own, of any version's source, and what it costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import clock_gettime, sleep

import pydanube

SOURCE = Path(pydanube.__file__).parents[1]
WATCHED = Path(__file__).parent / "watched.py"


def danube() -> list[str]:
    """The command `danube`; `bench/turns.py` has the loop of its brokers watched."""
    return (
        [sys.executable, str(WATCHED)] if "BENCH_WATCH" in os.environ else [sys.executable, "-m", "pydanube.cli.main"]
    )


class Broker:
    def __init__(self, process: subprocess.Popen[bytes], address: str, directory: Path) -> None:
        self.pid = process.pid
        self.directory = directory  # on the disk of its data
        self.port = int(address.rpartition(":")[2])
        self.url = f"danube://{address}"


@contextmanager
def broker(source: Path = SOURCE, *, tiered: bool = False) -> Iterator[Broker]:
    """With `tiered`, messages leave the local disk as soon as they are uploaded, and no cache has them."""
    with tempfile.TemporaryDirectory(prefix="danube-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        ready = Path(directory) / "ready"
        command = [*danube(), "standalone", "--data-dir", f"{directory}/data"]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "", "--ready-file", str(ready)]
        if tiered:
            command += ["--objects", f"file://{directory}/objects", "--storage-objects-local-seconds", "0"]
            command += ["--limits-cache-bytes", "0"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(source)})
        try:
            while not ready.exists():
                sleep(0.01)
            yield Broker(process, json.loads(ready.read_text())["listen"], Path(directory))
        finally:
            process.terminate()
            process.wait(10)


def spent(pid: int) -> float:
    """Processor seconds that a process has used so far, to the nanosecond: Linux derives a clock from its number."""
    return clock_gettime((~pid << 3) | 2)
