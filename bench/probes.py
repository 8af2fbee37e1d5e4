"""What the machine itself takes at the moment of a measurement: two probes that every latency is printed beside.

One is a bare echo, 100 bytes to another process and back over TCP; the other a write of 4 KiB with fdatasync, in the
directory of the data. Latencies of two machines, or of two hours on a shared one, compare only as multiples of these.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

ECHOES, SYNCS = 200, 50  # of each kind, whenever the probes are taken
BLOCK_BYTES = 4096
# Run by `python -c`: prints its port, and ends with its only connection.
ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := connection.recv(4096):
    connection.sendall(data)
"""


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


class Probes:
    """Both probes, in seconds, of all the times they were taken. Made by `probing`."""

    def __init__(self, directory: Path, connection: socket.socket) -> None:
        self._directory = directory
        self._connection = connection
        self.echoes: list[float] = []
        self.syncs: list[float] = []

    def fresh(self) -> Probes:
        """The same probes, none of them taken yet."""
        return Probes(self._directory, self._connection)

    def take(self) -> None:
        self.echoes += timed(self._echo, ECHOES)
        self.syncs += sync_probe(self._directory, SYNCS)

    def _echo(self) -> None:
        self._connection.sendall(b"x" * 100)
        self._connection.recv(100, socket.MSG_WAITALL)

    def floor(self, share: float = 0.5, *, durable: bool = True) -> float:
        """What a message needs at least: one way there and one back, and if it must be durable a sync in between."""
        return percentile(self.echoes, share) + (percentile(self.syncs, share) if durable else 0.0)


@contextmanager
def probing(directory: Path) -> Iterator[Probes]:
    process = subprocess.Popen([sys.executable, "-c", ECHO], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        with process.stdout, socket.create_connection(("127.0.0.1", int(process.stdout.readline()))) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield Probes(directory, connection)
    finally:
        process.terminate()
        process.wait(10)


def timed(work: Callable[[], object], count: int) -> list[float]:
    """The seconds of each call. The first one warms up and does not count."""
    found = []
    for _ in range(count + 1):
        began = perf_counter()
        work()
        found.append(perf_counter() - began)
    return found[1:]


def sync_probe(directory: Path, count: int) -> list[float]:
    path = directory / "sync-probe"
    fd = os.open(path, os.O_CREAT | os.O_RDWR)
    os.posix_fallocate(fd, 0, (count + 1) * BLOCK_BYTES)
    data, blocks = os.urandom(BLOCK_BYTES), iter(range(count + 1))

    def sync() -> None:
        os.pwrite(fd, data, BLOCK_BYTES * next(blocks))
        os.fdatasync(fd)

    try:
        return timed(sync, count)
    finally:
        os.close(fd)
        path.unlink()
