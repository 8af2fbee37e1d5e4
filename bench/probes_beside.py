"""What this machine gives a program that does nothing else, measured beside a benchmark: a latency of the broker means
little without them. `ProbesBeside` runs this file as a process of its own, for as long as the benchmark takes.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from time import perf_counter, sleep

from probes import percentile

SECONDS_BETWEEN = 0.01  # so that measuring takes little of what is measured
BYTES = 100
SYNCED_BYTES = 4096


class ProbesBeside:
    """Measures from its creation until `end`, which returns p50 and p99 of each probe in milliseconds."""

    def __init__(self, directory: str) -> None:
        command = [sys.executable, __file__, directory]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._process.stdout.readline()

    @property
    def pid(self) -> int:
        return self._process.pid

    def end(self) -> dict[str, tuple[float, float]]:
        answer, _ = self._process.communicate()  # closes its input
        return {name: (p50, p99) for name, (p50, p99) in json.loads(answer).items()}


def echoes() -> Iterator[float]:
    """Seconds of one round trip to another process over TCP, forever."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        if not os.fork():
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while data := peer.recv(BYTES):
                peer.sendall(data)
            os._exit(0)
    with socket.create_connection(address) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            began = perf_counter()
            peer.sendall(b"x" * BYTES)
            missing = BYTES
            while missing:
                missing -= len(peer.recv(missing))
            yield perf_counter() - began


def syncs(directory: str) -> Iterator[float]:
    """Seconds of writing one block and one fdatasync, forever."""
    with tempfile.TemporaryFile(dir=directory) as file:
        block = b"x" * SYNCED_BYTES
        os.pwrite(file.fileno(), block * 256, 0)
        while True:
            for at in range(256):
                began = perf_counter()
                os.pwrite(file.fileno(), block, at * SYNCED_BYTES)
                os.fdatasync(file.fileno())
                yield perf_counter() - began


def main() -> None:
    probes = {"TCP echo": echoes(), "fdatasync": syncs(sys.argv[1])}
    found: dict[str, list[float]] = {name: [next(probe) * 1e3] for name, probe in probes.items()}
    print(flush=True)
    os.set_blocking(0, False)
    while not _ended():
        for name, probe in probes.items():
            found[name].append(next(probe) * 1e3)
        sleep(SECONDS_BETWEEN)
    print(json.dumps({name: (percentile(each, 0.5), percentile(each, 0.99)) for name, each in found.items()}))


def _ended() -> bool:
    """Whether the input was closed."""
    try:
        return not os.read(0, 1)
    except BlockingIOError:
        return False


if __name__ == "__main__":
    main()
