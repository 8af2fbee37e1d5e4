"""Faults that a test turns on: a full disk, a killed process, a slow reader.

They act where real faults do: those of the disk before the system call, those of the slow reader at its socket.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from asyncio import BaseTransport, ReadTransport, TimerHandle
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, cast

from pydanube.adapters.posix_disk import PosixDisk, PosixFile
from pydanube.base.durability import Durability
from pydanube.base.errors import DiskFull
from pydanube.base.ids import NO_OFFSET, Epoch, LedgerId
from pydanube.base.limits import KIB
from pydanube.client.transport import Address, Link, Receiver, SocketLink
from pydanube.storage.node.disk import DiskNode
from pydanube.wire.batch import build

SOCKET_BYTES = 4 * KIB  # receive buffer of a slow reader; a larger one would take long to fill
STEP_SECONDS = 0.01  # between two reads of a slow reader
FILLER_BYTES = (256 * KIB, 16 * KIB, 1)  # sizes of batches, until not even one message fits
FILLERS = 1 << 62  # ids of the ledgers that fill a disk; a catalogue counts from 1


class DiskFaults:
    """The faults that all disks of one broker share."""

    def __init__(self) -> None:
        self.full = False
        self.crashed = False
        self._disks: list[FaultyDisk] = []

    def disk(self, path: Path) -> PosixDisk:
        disk = FaultyDisk(path, self)
        self._disks.append(disk)
        return disk

    def check(self, what: str) -> None:
        """Raises the current fault. The threads of the disks call it right before the system call."""
        if self.crashed:
            raise OSError(errno.EIO, "the test has crashed the broker")
        if self.full and what == "create":  # like on a real disk, allocated files can still be written
            raise OSError(errno.ENOSPC, "the test has filled the disk")

    async def clean_up(self) -> None:
        """Closes all files and releases locks, as the system does for a process that was killed."""
        for disk in self._disks:
            await disk.abandon()


class FaultyDisk(PosixDisk):
    """A disk in a real directory, with faults. A fault affects calls that have not started yet."""

    def __init__(self, path: Path, faults: DiskFaults) -> None:
        super().__init__(path)
        self._faults = faults
        self._descriptors: dict[int, None] = {}

    def submit(self, what: str, name: str, function: Callable[..., Any], *arguments: Any, **rest: Any) -> Any:
        def checked(*given: Any) -> Any:
            self._faults.check(what)
            if what == "measure" and self._faults.full:
                return 0
            if what == "close":
                del self._descriptors[given[0]]  # before the system can reuse the number
            return function(*given)

        return super().submit(what, name, checked, *arguments, **rest)

    def _file(self, name: str, descriptor: int) -> PosixFile:
        self._descriptors[descriptor] = None
        return super()._file(name, descriptor)

    async def abandon(self) -> None:
        self.close()
        await asyncio.sleep(0)  # its threads may have just opened files
        for descriptor in self._descriptors:
            os.close(descriptor)


async def use_up(node: DiskNode) -> list[LedgerId]:
    """Fills the space that the journal has allocated. Returns the ledgers that it used."""
    ledgers: list[LedgerId] = []
    for size in FILLER_BYTES:
        ledger, epoch = LedgerId(FILLERS + node.boots * len(FILLER_BYTES) + len(ledgers)), Epoch(1)
        filler = build([bytes(size)], publish_time=0)
        with suppress(DiskFull):
            await node.create(ledger, epoch, Durability.FSYNC)
            ledgers.append(ledger)
            for offset in count():
                await node.append(ledger, epoch, filler.stamped(offset, epoch, 0), NO_OFFSET)
    return ledgers


class SlowDialer:
    """For `pydanube.connect(url, dialer=SlowDialer(1000))`: a client that reads only so many bytes per second.

    The broker finds its socket full, as with a consumer on a slow network. What the client sends is not slowed down.
    """

    def __init__(self, bytes_per_second: int) -> None:
        if bytes_per_second <= 0:
            raise ValueError(f"{bytes_per_second} bytes per second would never deliver anything")
        self._bytes_per_second = bytes_per_second

    async def dial(self, address: Address, receiver: Receiver) -> Link:
        if address.tls:
            raise ValueError("a slow reader does not support TLS; use a broker without it")
        loop = asyncio.get_running_loop()
        [(family, kind, protocol, _, target), *_] = await loop.getaddrinfo(*address[:2], type=socket.SOCK_STREAM)
        end = socket.socket(family, kind, protocol)
        try:
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)  # must be set before it connects
            await loop.sock_connect(end, target)
        except BaseException:
            end.close()
            raise
        _, link = await loop.create_connection(lambda: SlowLink(receiver, self._bytes_per_second), sock=end)
        return link


class SlowLink(SocketLink):
    """Passes on one piece at a time, and reads no more until everything is passed on."""

    def __init__(self, receiver: Receiver, bytes_per_second: int) -> None:
        super().__init__(receiver)
        self.data_received = self._hold  # type: ignore[method-assign]
        self._piece = max(1, round(bytes_per_second * STEP_SECONDS))
        self._rate = bytes_per_second
        self._held = b""
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        self._reading = cast(ReadTransport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(error)

    def _hold(self, data: bytes) -> None:
        self._held += data
        if self._timer is None:
            self._reading.pause_reading()
            self._hand_on()

    def _hand_on(self) -> None:
        piece, self._held = self._held[: self._piece], self._held[self._piece :]
        if piece:
            self._timer = asyncio.get_running_loop().call_later(len(piece) / self._rate, self._hand_on)
            self._receiver.received(piece)
        else:
            self._timer = None
            self._reading.resume_reading()
