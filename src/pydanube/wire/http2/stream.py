"""One request and its response: how much may be received and sent, and what is queued. The connection changes it."""

from __future__ import annotations

from collections import deque

from pydanube.wire.http2.frames import WINDOW_BYTES


class Stream:
    """The state of one open stream. Closed streams are not kept."""

    __slots__ = (
        "credit",
        "ending",
        "expected",
        "grown",
        "held",
        "number",
        "queue",
        "queued",
        "receiving",
        "reserved",
        "starving",
    )

    def __init__(self, number: int, expected: int, receiving: bool) -> None:
        self.number = number
        # receiving
        self.receiving = receiving  # the client has not ended the request
        self.expected = expected  # bytes still missing according to content-length; negative if there is none
        self.credit = WINDOW_BYTES  # bytes that the client may send now
        self.held = 0  # received bytes that the host has not processed
        self.reserved = 0  # bytes granted beyond the initial window
        # sending
        self.grown = 0  # its window minus the initial one: what the client allowed since, less what was sent
        self.queue: deque[bytes | memoryview] | None = None  # created when bytes have to wait
        self.queued = 0  # bytes in the queue
        self.ending: bytes | None = None  # trailers that end the stream after the queue; empty for none
        self.starving = False  # the host found no room in the queue
