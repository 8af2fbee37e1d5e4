"""What waits to be sent to one peer. Urgent messages go ahead of all others, also between the parts of a long one.

Both kinds have bounds. What exceeds them is dropped and counted, because a sender never waits for a peer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from pydanube.base.errors import PeerMessageTooLarge
from pydanube.base.ids import NodeIdentity
from pydanube.base.limits import (
    PEER_FRAME_BODY_BYTES_MAX,
    PEER_QUEUE_BYTES_MAX,
    PEER_QUEUE_MESSAGES_MAX,
    PEER_URGENT_BYTES_MAX,
    PEER_URGENT_MESSAGES_MAX,
)
from pydanube.wire.peer.frames import HEADER_BYTES, PART, divide, encode_frame
from pydanube.wire.peer.messages import Encoded


class _Queue:
    """Messages with their sizes, within bounds."""

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        self.messages: deque[tuple[Encoded, int]] = deque()
        self.bytes = 0
        self._messages_max = messages_max
        self._bytes_max = bytes_max

    def put(self, message: Encoded, size: int) -> bool:
        if len(self.messages) >= self._messages_max or self.bytes + size > self._bytes_max:
            return False
        self.messages.append((message, size))
        self.bytes += size
        return True

    def pop(self) -> Encoded:
        message, size = self.messages.popleft()
        self.bytes -= size
        return message

    def clear(self) -> int:
        count, self.bytes = len(self.messages), 0
        self.messages.clear()
        return count


class Outbox:
    """The frames of all messages that wait, in the order in which they are to be written."""

    def __init__(self, target: NodeIdentity) -> None:
        self.dropped = 0  # messages that exceeded a bound, or were lost with a link
        self._target = bytes.fromhex(target)
        self._urgent = _Queue(PEER_URGENT_MESSAGES_MAX, PEER_URGENT_BYTES_MAX)
        self._bulk = _Queue(PEER_QUEUE_MESSAGES_MAX, PEER_QUEUE_BYTES_MAX)
        self._parts: Iterator[tuple[bool, bytes]] = iter(())  # the frames that are left of a message
        self._sending = False  # whether a message has frames left

    def __bool__(self) -> bool:
        return bool(self._sending or self._bulk.messages or self._urgent.messages)

    def put(self, message: Encoded, *, urgent: bool = False) -> bool:
        """Returns whether there was room."""
        size = HEADER_BYTES + sum(map(len, message.parts))
        if urgent and size > HEADER_BYTES + PEER_FRAME_BODY_BYTES_MAX:
            raise PeerMessageTooLarge(f"an urgent message of kind {message.kind} has {size} bytes")
        accepted = (self._urgent if urgent else self._bulk).put(message, size)
        self.dropped += not accepted
        return accepted

    def take(self, bytes_max: int) -> list[bytes]:
        """The next frames, with at least that many bytes together if there are enough."""
        frames: list[bytes] = []
        while bytes_max > 0 and (frame := self._next()):
            frames.append(frame)
            bytes_max -= len(frame)
        return frames

    def _next(self) -> bytes:
        if self._urgent.messages:
            return next(self._frames(self._urgent.pop()))[1]
        if not self._sending:
            if not self._bulk.messages:
                return b""
            self._parts = self._frames(self._bulk.pop())
        last, frame = next(self._parts)
        self._sending = not last
        return frame

    def _frames(self, message: Encoded) -> Iterator[tuple[bool, bytes]]:
        """Whether it is the last one, and the frame."""
        for flags, body in divide(message.parts):
            yield flags != PART, encode_frame(message.kind, message.request, self._target, body, flags)

    def clear(self) -> None:
        """Drops everything: the link is lost, or there was none."""
        self.dropped += self._urgent.clear() + self._bulk.clear() + self._sending
        self._parts, self._sending = iter(()), False
