"""Messages between named peers. A message may be lost, duplicated, late or out of order; it is never altered.

A host that needs an answer numbers its requests. Values are immutable; the TCP adapter turns them into frames.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class Network(Protocol):
    def send(self, to: str, message: object) -> None:
        """Sends a message without waiting; delivery is not guaranteed."""

    def listen(self, receive: Callable[[str, object], None]) -> None:
        """Calls `receive(sender, message)` for each message that arrives from now on."""
