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


class Broker:
    def __init__(self, process: subprocess.Popen[bytes], address: str, directory: Path) -> None:
        self.pid = process.pid
        self.directory = directory  # on the disk of its data
        self.port = int(address.rpartition(":")[2])
        self.url = f"danube://{address}"


@contextmanager
def broker(source: Path = SOURCE) -> Iterator[Broker]:
    with tempfile.TemporaryDirectory(prefix="danube-bench-", dir=os.environ.get("BENCH_DIR")) as directory:
        ready = Path(directory) / "ready"
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", f"{directory}/data"]
        command += ["--listen", "127.0.0.1:0", "--admin-listen", "", "--ready-file", str(ready)]
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
