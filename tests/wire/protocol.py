"""Commands of every kind for tests of the native protocol, and helpers that forge and read frames."""

from __future__ import annotations

from typing import NamedTuple

from pydanube.base.errors import TopicBusy
from pydanube.base.limits import GRANTED_BYTES_MAX, OFFSET_MAX, PERMITS_MAX
from pydanube.wire.batch import build
from pydanube.wire.commands import (
    NO_OFFSET,
    Ack,
    Acked,
    AckTimeout,
    Batches,
    Closed,
    Command,
    Deliver,
    Error,
    Grant,
    Hello,
    Limit,
    Nack,
    Ping,
    Pong,
    Publish,
    Published,
    Recall,
    Receipt,
    Reply,
    RequestFrame,
    Reset,
    Taken,
    Welcome,
)
from pydanube.wire.frames import Buffer, Frame, FrameKind, FrameReader, Side

BATCH = build([b"hi", b"ho"], publish_time=1_700_000_000_000_000, producer_id=5)
STAMPED = BATCH.stamped(1000, 3, 1_700_000_000_250_000)
VIEW = memoryview(STAMPED.to_bytes())

BY_CLIENT: dict[str, Command] = {
    "request": RequestFrame(1, "open_producer", {"channel": 1, "topic": "/default/orders"}),
    "request without an answer": RequestFrame(0, "close", {"channel": 1}),
    "publish": Publish(1, 2, BATCH.to_bytes()),
    "publish without an answer": Publish(1, 0, BATCH.to_bytes()),
    "grant": Grant(2, 1000),
    "grant of all": Grant((1 << 32) - 1, PERMITS_MAX, GRANTED_BYTES_MAX),
    "grant of bytes": Grant(2, 0, 1),
    "ack": Ack(2, 3, 1, [(1000, 1001)]),
    "ack of several": Ack(2, 4, 1, [(7, 9), (0, 0), (OFFSET_MAX, OFFSET_MAX)]),
    "cumulative ack": Ack(2, 0, 1, [(0, 1001)], cumulative=True),
    "nack": Nack(2, 5, 1, [(1000, 1000), (1002, 1003)], 2_000_000, "später"),
    "nack without a word": Nack(2, 0, 0, [(5, 5)]),
    "taken": Taken(2, 1, [(1000, 1001), (1005, 1005)]),
    "ping of the client": Ping(9),
}
BY_BROKER: dict[str, Command] = {
    "reply": Reply(1, {"topic": "/default/orders", "next_sequence": 0}),
    "error": Error.of(TopicBusy("/default/orders"), 1, 2),
    "published": Published(1, 2, 1000, Receipt.FSYNCED, 1),
    "published before": Published(1, 3, 1000, Receipt.FSYNCED, 1, repeated=True),
    "published and not kept": Published(1, (1 << 64) - 1, NO_OFFSET, Receipt.NONE, 0),
    "deliver": Deliver(2, 1, 1000, 1001, 0, VIEW),
    "deliver again a part": Deliver(2, 1, 1001, 1001, 7, VIEW),
    "acked": Acked(2, 3),
    "reset": Reset(2, 2),
    "recall": Recall(2, 1, [(1001, 1001), (1005, 1009)]),
    "limit": Limit(1, 1_000_000),
    "no limit": Limit(1, None),
    "ack timeout": AckTimeout(2, 30_000_000),
    "no ack timeout": AckTimeout(2, None),
    "ping of the broker": Ping(),
    "pong": Pong(9),
    "closed": Closed.of(TopicBusy("moved"), 2),
    "batches": Batches(6, [VIEW, VIEW]),
}
GREETING = {"hello": Hello("pydanube 0.1"), "welcome": Welcome("danube 0.1", 16 << 20, 30)}
COMMANDS: dict[str, Command] = {**GREETING, **BY_CLIENT, **BY_BROKER}


def joined(parts: list[Buffer]) -> bytes:
    return b"".join(parts)


def frame_of(command: Command) -> Frame:
    """The frame of a command, as a reader returns it."""
    data = joined(command.encode())
    return Frame(data[4], int.from_bytes(data[8:12], "little"), int.from_bytes(data[12:20], "little"), data[20:])


def framed(kind: int, body: bytes = b"", *, channel: int = 0, request: int = 0, length: int | None = None) -> bytes:
    """A frame with any content; `length` may be wrong."""
    said = len(body) if length is None else length
    header = said.to_bytes(4, "little") + bytes([kind, 0, 0, 0])
    return header + channel.to_bytes(4, "little") + request.to_bytes(8, "little") + body


def open_reader(side: Side) -> FrameReader:
    """A reader after the handshake."""
    reader = FrameReader(side)
    if side is Side.BROKER:
        reader.feed(b"DANUBE1\n" + joined(GREETING["hello"].encode()))
        reader.welcome()
    else:
        reader.feed(joined(GREETING["welcome"].encode()))
    return reader


class Traffic(NamedTuple):
    """What one side reads once the connection is open."""

    side: Side
    commands: dict[str, Command]
    other_kinds: tuple[FrameKind, ...]  # that the sender never sends, or no longer


TRAFFIC = {
    side: Traffic(side, commands, tuple(kind for kind in FrameKind if kind not in {frame_of(c).kind for c in known}))
    for side, commands, known in (
        (Side.BROKER, BY_CLIENT, [*BY_CLIENT.values(), Pong()]),
        (Side.CLIENT, BY_BROKER, list(BY_BROKER.values())),
    )
}
