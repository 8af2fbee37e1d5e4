"""`danube standalone` as a process of its own, for tests that kill it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

START_POLLS_MAX = 2_400  # a minute, on a machine that does much else


class BrokerProcess:
    """A broker on one directory, on whatever port is free; with `keep_port` on the same one after each start."""

    def __init__(self, directory: Path, *, keep_port: bool = False) -> None:
        self._directory = directory
        self._ready = directory / "ready"
        self._keep_port = keep_port
        self._listen = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> tuple[str, int]:
        self._spawn()
        assert self._process is not None
        for _ in range(START_POLLS_MAX):
            if self._ready.exists():
                found = json.loads(self._ready.read_text())
                assert found["pid"] == self._process.pid
                if self._keep_port:
                    self._listen = found["listen"]
                host, _, port = found["listen"].rpartition(":")
                return host, int(port)
            assert self._process.poll() is None, (self._directory / "log").read_text()[-2000:]
            await asyncio.sleep(0.025)
        raise AssertionError("the broker did not come up")

    def _spawn(self) -> None:
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pydanube.cli.main", "standalone", "--data-dir", str(self._directory / "data")]
        command += ["--listen", self._listen, "--ready-file", str(self._ready)]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stderr=log)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self, number: int) -> int:
        assert self._process is not None
        os.kill(self._process.pid, number)
        return self._process.wait(10)
