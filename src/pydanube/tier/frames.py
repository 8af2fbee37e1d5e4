"""What a broker and the processes of its cold tier exchange: frames, batches in them, and values as JSON.

A frame is its body's length (u32), its kind (u8), the number of its call (u64) and its body. Calls and answers are
small; large data is sent before or after them in pieces, as `DATA`.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import BaseTransport, Event, Transport
from collections import deque
from collections.abc import Iterator
from dataclasses import fields
from enum import IntEnum
from io import BytesIO
from socket import socket
from struct import Struct
from typing import Any, NamedTuple, cast

from pydanube.base.errors import DanubeError, error_table
from pydanube.base.ids import Epoch
from pydanube.base.limits import BATCH_BYTES_MAX
from pydanube.stream.delta_table import Folded, TableFile, TableListing
from pydanube.stream.segments import Segment, SegmentPlan
from pydanube.tier.limits import (
    ALONE_BYTES,
    CHUNK_BYTES,
    FRAME_BYTES_MAX,
    FRAMES_WAITING_BYTES,
    TABLE_FILES_A_PIECE,
)
from pydanube.wire.batch import PREFIX_BYTES, STAMP_BYTES, Batch

_HEAD = Struct("<IBQ")
_LENGTH = Struct("<I")
_SEGMENT_FIELDS = tuple(field.name for field in fields(Segment))


class FrameKind(IntEnum):
    HELLO = 1  # to the process: where objects are, and what opens them
    READY = 2  # from it: object storage is open. Otherwise it sends ERROR of call 0, and exits
    CALL = 3  # to it: an operation and its arguments
    DATA = 4  # to it and from it: a piece of batches or of a small object
    END = 5  # to and from it: a piece of batches or of a small object
    CANCEL = 6  # to it: no one waits for this call any longer
    CREDIT = 7  # from it: how many more bytes of data it accepts
    RESULT = 8  # from it
    ERROR = 9  # from it: a code and a text
    LOG = 10  # from it: a line for the log


_KINDS = frozenset(FrameKind)


class Frame(NamedTuple):
    kind: FrameKind
    call: int
    body: bytes


class StreamBroken(Exception):
    """The other side is gone, or sent something invalid."""


class FrameStream(asyncio.BufferedProtocol):
    """One end of the socket between a broker and such a process. A body is received where it stays: `BytesIO` hands out
    the bytes that it holds, without a copy.

    While frames wait to be taken, little more is read. One task at a time may wait for the next frame.
    """

    def __init__(self) -> None:
        self._transport: Transport
        self._head = bytearray(_HEAD.size)
        self._body: BytesIO | None = None  # what follows the head
        self._part = memoryview(self._head)  # what is being received: one of the two
        self._have = 0  # bytes of that part
        self._frames: deque[Frame] = deque()
        self._untaken_bytes = 0
        self._came = Event()  # a frame, or the end
        self._writable = Event()
        self._why: str | None = None  # it ended

    @classmethod
    async def over(cls, end: socket) -> FrameStream:
        _, stream = await asyncio.get_running_loop().create_connection(cls, sock=end)
        return stream

    # -- the loop's calls ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: BaseTransport) -> None:
        self._transport = cast(Transport, transport)
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._part[self._have :]

    def buffer_updated(self, count: int) -> None:
        self._have += count
        if self._have < len(self._part):
            return
        self._have = 0
        body, self._body = self._body, None
        if body is None and (length := _HEAD.unpack(self._head)[0]):
            if length > FRAME_BYTES_MAX:
                self._end(f"a frame of {length} bytes")
                return
            self._body = BytesIO(bytes(length))
            self._part = self._body.getbuffer()
            return
        self._part = memoryview(self._head)
        self._add(b"" if body is None else body.getvalue())

    def _add(self, body: bytes) -> None:
        _, kind, call = _HEAD.unpack(self._head)
        if kind not in _KINDS:
            self._end(f"a frame of kind {kind}")
            return
        self._frames.append(Frame(FrameKind(kind), call, body))
        self._untaken_bytes += _HEAD.size + len(body)
        if self._untaken_bytes > FRAMES_WAITING_BYTES and not self._transport.is_closing():
            self._transport.pause_reading()
        self._came.set()

    def eof_received(self) -> None:
        """Nothing more arrives, so it is closed."""

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error or "the other end was closed"))

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self, why: str) -> None:
        self._why = self._why or f"it ended: {why}"
        self._came.set()
        self._writable.set()
        self._transport.close()

    # -- sending and receiving -----------------------------------------------------------------------------------------

    def send(self, kind: FrameKind, call: int, *parts: bytes) -> None:
        """Sends a frame without waiting. After a piece of data, wait for `drain`."""
        length = sum(map(len, parts))
        if length > FRAME_BYTES_MAX:
            raise StreamBroken(f"a frame of {length} bytes")
        if not self._transport.is_closing():
            self._transport.writelines((_HEAD.pack(length, kind, call), *parts))

    def send_json(self, kind: FrameKind, call: int, value: object) -> None:
        self.send(kind, call, json.dumps(value).encode())

    async def drain(self) -> None:
        """Waits while the socket accepts no more."""
        await self._writable.wait()
        if self._why is not None:
            raise StreamBroken("it cannot be written to")

    @property
    def waiting_bytes(self) -> int:
        """Bytes that were passed to `send` but not accepted by the socket yet."""
        return self._transport.get_write_buffer_size()

    async def receive(self) -> Frame:
        """The next frame; `StreamBroken` at the end."""
        while not self._frames:
            if self._why is not None:
                raise StreamBroken(self._why)
            self._came.clear()
            await self._came.wait()
        frame = self._frames.popleft()
        self._untaken_bytes -= _HEAD.size + len(frame.body)
        if not self._frames and not self._transport.is_closing():
            self._transport.resume_reading()
        return frame

    def close(self) -> None:
        self._transport.close()


# -- batches ---------------------------------------------------------------------------------------------------------


def batch_pieces(batch: Batch) -> Iterator[bytes]:
    """The length of a batch and the batch, in pieces that one turn of the loop can send. A large content is a piece of
    its own, so that its receiver need not cut it out."""
    stamp, content = batch.parts()
    if len(content) < ALONE_BYTES:
        yield b"".join((_LENGTH.pack(batch.size), stamp, content))
        return
    yield _LENGTH.pack(batch.size) + stamp
    for start in range(0, len(content), CHUNK_BYTES):
        yield content[start : start + CHUNK_BYTES]


class Packing:
    """Collects pieces, so that small ones share a frame. A large one has a frame of its own."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._room = CHUNK_BYTES

    def add(self, piece: bytes) -> list[bytes]:
        """Adds a piece; returns what must be sent first, if anything."""
        alone = len(piece) >= ALONE_BYTES
        before = self.rest() if alone or len(piece) > self._room else []
        self._pieces.append(piece)
        self._room = 0 if alone else self._room - len(piece)
        return before

    def rest(self) -> list[bytes]:
        pieces, self._pieces, self._room = self._pieces, [], CHUNK_BYTES
        return pieces


class BatchReader:
    """Assembles batches from pieces that may be cut anywhere."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._have = 0
        self._want = 0  # length of the current batch; 0 until it is known

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Stamps and contents of the batches that are complete now. A piece that is all of a content is not copied."""
        if self._have == STAMP_BYTES and self._want == STAMP_BYTES + len(piece):
            stamp = b"".join(self._pieces)
            self._pieces, self._have, self._want = [], 0, 0
            return [(stamp, piece)]
        self._pieces.append(piece)
        self._have += len(piece)
        if self._have < (self._want or _LENGTH.size):
            return []
        data = memoryview(b"".join(self._pieces) if len(self._pieces) > 1 else piece)
        found = []
        at = 0
        while True:
            if not self._want:
                if len(data) - at < _LENGTH.size:
                    break
                (self._want,) = _LENGTH.unpack_from(data, at)
                if not PREFIX_BYTES <= self._want <= BATCH_BYTES_MAX:
                    raise StreamBroken(f"a batch of {self._want} bytes")
                at += _LENGTH.size
            if len(data) - at < self._want:
                break
            found.append((bytes(data[at : at + STAMP_BYTES]), bytes(data[at + STAMP_BYTES : at + self._want])))
            at += self._want
            self._want = 0
        rest = bytes(data[at:])
        self._pieces = [rest] if rest else []
        self._have = len(rest)
        return found


# -- values ----------------------------------------------------------------------------------------------------------


def from_segment(segment: Segment) -> dict[str, Any]:
    return {name: getattr(segment, name) for name in _SEGMENT_FIELDS}


def to_segment(value: dict[str, Any]) -> Segment:
    return Segment(**{**value, "epoch": Epoch(value["epoch"]), "groups": tuple(value["groups"])})


def from_plan(plan: SegmentPlan) -> list[int]:
    return [plan.first, plan.last, plan.epoch]


def to_plan(value: list[int]) -> SegmentPlan:
    return SegmentPlan(value[0], value[1], Epoch(value[2]))


def listing_pieces(listing: TableListing) -> Iterator[bytes]:
    """The files of a listing as lines of JSON, some hundreds in each."""
    for start in range(0, len(listing.files), TABLE_FILES_A_PIECE):
        yield json.dumps(listing.files[start : start + TABLE_FILES_A_PIECE]).encode() + b"\n"


def from_listing(listing: TableListing) -> dict[str, Any]:
    """The listing as JSON, without its files."""
    return {name: getattr(listing, name) for name in ("stream", "epoch", "now", "grows", "folded")}


def to_listing(value: dict[str, Any], lines: bytes) -> TableListing:
    files = tuple(TableFile(*file) for line in lines.splitlines() for file in json.loads(line))
    return TableListing(
        value["stream"], Epoch(value["epoch"]), value["now"], value["grows"], files, to_folded(value["folded"])
    )


def to_folded(value: list[list[int]]) -> tuple[Folded, ...]:
    return tuple(Folded(*stretch) for stretch in value)


def from_error(error: DanubeError) -> list[str]:
    return [error.code, str(error)]


def to_error(value: list[str]) -> DanubeError:
    code, text = value
    return error_table().get(code, DanubeError)(text)
