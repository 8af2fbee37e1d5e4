"""Sockets between clients and brokers of the simulation: bytes arrive in order, in any pieces and at any time.

A socket that is full pushes back, through the same calls as one of asyncio. A reset drops what is on its way; one side
learns of it later than the other. Both ends of a connection are in one process, and die with it.
"""

from __future__ import annotations

from asyncio import BaseProtocol, Protocol, Transport
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from random import Random
from typing import Any, NamedTuple, cast

from pydanube.sim.machine.loop import Process, SimLoop

DELAY_SECONDS_MAX = 0.002
NOTICE_SECONDS_MAX = 0.05  # until the other side learns of a reset
CAPACITY_BYTES = 4_096  # on the way, and not read yet
HIGH_BYTES = 2_048  # waiting to be sent; small, so that sockets push back


class Piece(NamedTuple):
    data: bytes
    written_at: float  # by its sender; if it was written in parts, the first of them


class SimSocket(Transport):
    """One end of a connection."""

    def __init__(self, sockets: SimSockets, name: str, protocol: BaseProtocol) -> None:
        super().__init__({"peername": (name, 1)})
        self.peer: SimSocket
        self.written = 0  # bytes in all
        self.written_at = 0.0  # when the bytes were written that are being received
        self.stalled = False  # it reads nothing, although its owner would
        self.ended = False
        self._sockets = sockets
        self._protocol = cast(Protocol, protocol)
        self._waiting: deque[Piece] = deque()  # but not sent
        self._waiting_bytes = 0
        self._coming: deque[Piece] = deque()  # on their way here
        self._arrived: deque[Piece] = deque()  # but not read
        self._heard: list[tuple[int, float]] = []  # how many bytes were read here in all, and when
        self._unread_bytes = 0  # of the other end's bytes, on their way or arrived
        self._last_arrival = 0.0
        self._reading = True
        self._closing = False
        self._paused = False  # its owner was told to write no more
        self._pumping = False

    # -- the interface of a transport ----------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._closing and len(data):
            self._waiting.append(Piece(bytes(data), self._sockets.loop.time()))
            self.written += len(data)
            self._waiting_bytes += len(data)
            self._pump_soon()
            if self._waiting_bytes > HIGH_BYTES and not self._paused:
                self._paused = True
                self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Sends what waits, then ends."""
        self._closing = True
        self._pump_soon()

    def abort(self) -> None:
        self._sockets.reset(self)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._call(self.read)

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Keeps its own limits, which are lower."""

    def get_write_buffer_size(self) -> int:
        return self._waiting_bytes

    # -- moving bytes --------------------------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._call(self._pump)

    def _pump(self) -> None:
        """Sends as much as the other end has room for, in any pieces."""
        self._pumping = False
        peer, sockets = self.peer, self._sockets
        while self._waiting and not self.ended and (room := CAPACITY_BYTES - peer._unread_bytes) > 0:
            most = min(room, self._waiting_bytes)
            if sockets.random.random() < 0.1:
                most = sockets.random.randint(1, most)
            self._send(self._take(most))
        if self._paused and self._waiting_bytes <= HIGH_BYTES // 4:
            self._paused = False
            self._protocol.resume_writing()
        if self._closing and not self._waiting and not self.ended:
            self._send(Piece(b"", 0.0))
            self.end(None)

    def _take(self, count: int) -> Piece:
        """The next bytes that wait."""
        first, parts = self._waiting[0].written_at, list[bytes]()
        self._waiting_bytes -= count
        while count:
            data, at = self._waiting.popleft()
            if len(data) > count:
                self._waiting.appendleft(Piece(data[count:], at))
            parts.append(data[:count])
            count -= len(parts[-1])
        return Piece(b"".join(parts), first)

    def _send(self, piece: Piece) -> None:
        sockets, peer = self._sockets, self.peer
        peer._unread_bytes += len(piece.data)
        peer._coming.append(piece)
        delay = sockets.random.uniform(0.0, DELAY_SECONDS_MAX)
        self._last_arrival = max(self._last_arrival, sockets.loop.time() + delay)
        sockets.loop.call_at(self._last_arrival, peer._arrive, context=sockets.loop.world)

    def _arrive(self) -> None:
        """Called in no process: the system takes the next piece, even if the process is suspended."""
        piece = self._coming.popleft()
        if not self.ended:
            self._arrived.append(piece)
            self._sockets.loop.run_in(self._sockets.process, self.read)

    def read(self) -> None:
        while self._arrived and self._reading and not self.stalled and not self.ended:
            data, self.written_at = self._arrived.popleft()
            if not data:
                self._closing = True
                return self.end(None)
            self._unread_bytes -= len(data)
            heard = self._heard[-1][0] if self._heard else 0
            self._heard.append((heard + len(data), self._sockets.loop.time()))
            self._sockets.trace(self, data)
            self._protocol.data_received(data)
            self.peer._pump_soon()

    def heard_at(self, count: int) -> float:
        """When this end had read so many bytes; infinite if it has not yet."""
        at = bisect_left(self._heard, (count, -inf))
        return self._heard[at][1] if at < len(self._heard) else inf

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self, error: Exception | None) -> None:
        """Tells its owner, once. Nothing more is read or sent."""
        if not self.ended:
            self.ended = self._closing = True
            self._waiting.clear()
            self._waiting_bytes = 0
            self._arrived.clear()
            self._sockets.forget(self)
            self._call(self._protocol.connection_lost, error)

    def _call(self, callback: Callable[..., object], *arguments: object) -> None:
        self._sockets.loop.call_soon(callback, *arguments, context=self._sockets.process.context.copy())


class SimSockets:
    """All connections within one life of a process."""

    def __init__(self, loop: SimLoop, random: Random, process: Process) -> None:
        self.loop = loop
        self.random = random
        self.process = process
        self._open: dict[SimSocket, None] = {}  # the clients' ends
        self._made = 0

    def connect(self, dialled: BaseProtocol, accepted: BaseProtocol) -> SimSocket:
        """A connection between two protocols; returns the end of the one that dialled."""
        self._made += 1
        name = f"client-{self._made}"
        ours, theirs = SimSocket(self, name, dialled), SimSocket(self, name, accepted)
        ours.peer, theirs.peer = theirs, ours
        self._open[ours] = None
        accepted.connection_made(theirs)
        dialled.connection_made(ours)
        return ours

    def forget(self, end: SimSocket) -> None:
        self._open.pop(end, None)

    def trace(self, end: SimSocket, data: bytes) -> None:
        self.loop.trace("socket", end.get_extra_info("peername")[0], end in self._open, len(data))

    # -- faults --------------------------------------------------------------------------------------------------------

    def chosen(self, target: int) -> SimSocket | None:
        ends = list(self._open)
        return ends[target % len(ends)] if ends else None

    def reset(self, end: SimSocket) -> None:
        """One side learns of it now, the other one a little later. Bytes on their way are lost."""
        delay, other = self.random.uniform(0.0, NOTICE_SECONDS_MAX), end.peer
        end.end(ConnectionResetError("connection reset by peer"))
        error = ConnectionResetError("connection reset by peer")
        self.loop.call_later(delay, other.end, error, context=self.process.context.copy())

    def stall(self, end: SimSocket, seconds: float) -> None:
        """The client does not read for a while."""
        end.stalled = True
        self.loop.call_later(seconds, self.resume, end, context=self.process.context.copy())

    def resume(self, end: SimSocket) -> None:
        end.stalled = False
        end.read()

    def heal(self) -> None:
        for end in list(self._open):
            self.resume(end)
