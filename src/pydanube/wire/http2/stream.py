"""One request and its answer: what may still come and go, and what waits to go. Changed by its connection only."""

from __future__ import annotations

from collections import deque

from pydanube.wire.http2.frames import WINDOW_BYTES


class Stream:
    """The state of one open stream. A stream that is closed is not kept: it has no object."""

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
        # what comes
        self.receiving = receiving  # the client has not ended its side
        self.expected = expected  # bytes still to come by its content-length; negative if there is none
        self.credit = WINDOW_BYTES  # bytes that the client may send now
        self.held = 0  # bytes that came and that the host has not given back
        self.reserved = 0  # bytes that it was given beyond the window it started with
        # what goes
        self.grown = 0  # its window beyond the initial one: what the client allowed since, less what was sent
        self.queue: deque[bytes | memoryview] | None = None  # made by the first bytes that have to wait
        self.queued = 0  # bytes in the queue
        self.ending: bytes | None = None  # the block of trailers that ends it behind the queue; empty for none
        self.starving = False  # the host was told that there is no room in the queue
