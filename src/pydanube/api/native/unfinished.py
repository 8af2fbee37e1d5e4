"""Incomplete frames of all connections, which share one bound.

When it is reached, the connection whose frame began first is ended: an honest sender finishes soon. It owns no socket.
"""

from __future__ import annotations

from typing import Protocol

from pydanube.base.errors import DanubeError, FramesBusy
from pydanube.base.limits import FRAMES_UNFINISHED_BYTES_MAX


class Sender(Protocol):
    """A connection, as far as its unfinished frame is concerned."""

    def stop(self, error: DanubeError) -> None: ...


class Unfinished:
    """The incomplete frames of one face."""

    def __init__(self) -> None:
        self.bytes = 0
        self._held: dict[Sender, int] = {}  # bytes by sender, the oldest frame first

    def hold(self, sender: Sender, bytes: int, *, begun: bool) -> None:
        """Notes how many bytes of a sender's frame have arrived; `begun` says that it is a new frame."""
        if begun or not bytes:
            self.forget(sender)
        if bytes:
            self.bytes += bytes - self._held.get(sender, 0)
            self._held[sender] = bytes
            while self.bytes > FRAMES_UNFINISHED_BYTES_MAX:
                oldest = next(iter(self._held))
                self.forget(oldest)
                oldest.stop(FramesBusy("the frame was still incomplete when other frames needed its memory"))

    def forget(self, sender: Sender) -> None:
        self.bytes -= self._held.pop(sender, 0)
