"""What an acknowledgement means."""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    """Chosen per topic. The value is what a receipt says about one copy."""

    FSYNC = "fsynced"  # on disk before the ack
    BUFFERED = "buffered"  # with the operating system before the ack, on disk within a second
