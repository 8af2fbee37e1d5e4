"""What an acknowledgement means."""

from __future__ import annotations

from enum import Enum


class Durability(Enum):
    """Chosen per topic; the value is what receipts say of one copy."""

    FSYNC = "fsynced"  # on disk before the ack
    BUFFERED = "buffered"  # with the operating system before the ack, on disk within a second
