"""What frames say: each kind as a value, to and from its bytes.

`decode` gives a value whose every field is within its bounds, or raises `ProtocolError`, whatever the bytes. It does
not know which channels are open, and of a batch it looks only at its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from pydanube.base.errors import ProtocolError
from pydanube.wire.control_commands import VERSION, Closed, Error, Hello, Ping, Pong, Reply, Request, Welcome
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
from pydanube.wire.frames import Frame, Kind, fault_of, sender_of
from pydanube.wire.objects import Unfit

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
    "Request",
    "Reset",
    "Taken",
    "Welcome",
    "decode",
    "encode_batches",
    "encode_deliver",
    "encode_publish",
]

Control: TypeAlias = Hello | Welcome | Request | Reply | Error | Closed | Ping | Pong
Data: TypeAlias = Publish | Published | Deliver | Grant | Ack | Acked | Nack | Taken | Recall | Reset | Batches
News: TypeAlias = Limit | AckTimeout
Command: TypeAlias = Control | Data | News

_READERS: dict[int, Callable[[Frame], Command]] = {
    Kind.HELLO: Hello.read,
    Kind.WELCOME: Welcome.read,
    Kind.REQUEST: Request.read,
    Kind.REPLY: Reply.read,
    Kind.ERROR: Error.read,
    Kind.PUBLISH: Publish.read,
    Kind.PUBLISHED: Published.read,
    Kind.DELIVER: Deliver.read,
    Kind.GRANT: Grant.read,
    Kind.ACK: Ack.read,
    Kind.ACKED: Acked.read,
    Kind.NACK: Nack.read,
    Kind.RESET: Reset.read,
    Kind.PING: Ping.read,
    Kind.PONG: Pong.read,
    Kind.CLOSED: Closed.read,
    Kind.BATCHES: Batches.read,
    Kind.TAKEN: Taken.read,
    Kind.RECALL: Recall.read,
    Kind.LIMIT: Limit.read,
    Kind.ACK_TIMEOUT: AckTimeout.read,
}


def decode(frame: Frame) -> Command:
    """What the frame says. Raises `ProtocolError` if it says nothing that its kind may say."""
    read = _READERS.get(frame[0])
    if read is None:
        raise ProtocolError(f"unknown frame kind {frame.kind}")
    try:
        return read(frame)
    except Unfit as error:
        raise fault_of(sender_of(frame.kind))(f"{Kind(frame.kind).name}: {error}") from None
