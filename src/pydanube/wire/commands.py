"""The commands in frames: a value for each kind of frame, decoded from its bytes and encoded to them.

`decode` returns a value whose fields are all within their bounds, or raises `ProtocolError`, whatever the bytes. It
does not know which channels are open, and does not look into batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pydanube.base.errors import ProtocolError
from pydanube.wire.control_commands import VERSION, Closed, Error, Hello, Ping, Pong, Reply, RequestFrame, Welcome
from pydanube.wire.data_commands import (
    NO_OFFSET,
    Ack,
    Acked,
    AckTimeout,
    Batches,
    Deliver,
    Grant,
    Limit,
    Nack,
    Publish,
    Published,
    Range,
    Recall,
    Receipt,
    Reset,
    Taken,
    encode_batches,
    encode_deliver,
    encode_publish,
)
from pydanube.wire.frames import Frame, FrameKind, fault_of, sender_of
from pydanube.wire.objects import MalformedBody

__all__ = [
    "NO_OFFSET",
    "VERSION",
    "Ack",
    "AckTimeout",
    "Acked",
    "Batches",
    "Closed",
    "Command",
    "Deliver",
    "Error",
    "Grant",
    "Hello",
    "Limit",
    "Nack",
    "Ping",
    "Pong",
    "Publish",
    "Published",
    "Range",
    "Recall",
    "Receipt",
    "Reply",
    "RequestFrame",
    "Reset",
    "Taken",
    "Welcome",
    "decode",
    "encode_batches",
    "encode_deliver",
    "encode_publish",
]

Control: TypeAlias = Hello | Welcome | RequestFrame | Reply | Error | Closed | Ping | Pong
Data: TypeAlias = Publish | Published | Deliver | Grant | Ack | Acked | Nack | Taken | Recall | Reset | Batches
Notice: TypeAlias = Limit | AckTimeout
Command: TypeAlias = Control | Data | Notice

_READERS: dict[int, Callable[[Frame], Command]] = {
    FrameKind.HELLO: Hello.read,
    FrameKind.WELCOME: Welcome.read,
    FrameKind.REQUEST: RequestFrame.read,
    FrameKind.REPLY: Reply.read,
    FrameKind.ERROR: Error.read,
    FrameKind.PUBLISH: Publish.read,
    FrameKind.PUBLISHED: Published.read,
    FrameKind.DELIVER: Deliver.read,
    FrameKind.GRANT: Grant.read,
    FrameKind.ACK: Ack.read,
    FrameKind.ACKED: Acked.read,
    FrameKind.NACK: Nack.read,
    FrameKind.RESET: Reset.read,
    FrameKind.PING: Ping.read,
    FrameKind.PONG: Pong.read,
    FrameKind.CLOSED: Closed.read,
    FrameKind.BATCHES: Batches.read,
    FrameKind.TAKEN: Taken.read,
    FrameKind.RECALL: Recall.read,
    FrameKind.LIMIT: Limit.read,
    FrameKind.ACK_TIMEOUT: AckTimeout.read,
}


def decode(frame: Frame) -> Command:
    """The command in the frame. Raises `ProtocolError` if the body is not valid for its kind."""
    read = _READERS.get(frame[0])
    if read is None:
        raise ProtocolError(f"unknown frame kind {frame.kind}")
    try:
        return read(frame)
    except MalformedBody as error:
        raise fault_of(sender_of(frame.kind))(f"{FrameKind(frame.kind).name}: {error}") from None
