"""What HTTP/2 costs on one core, without a socket: unary gRPC calls, and messages of a server's stream.

A figure is the median of several runs. The client's bytes are prepared, with header blocks like those of gRPC clients:
the first fills the dynamic table, the others refer to it.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from hpack import Encoder

from figures import Figures
from pydanube.base.limits import KIB
from pydanube.wire.http2.connection import ServerConnection
from pydanube.wire.http2.events import RequestReceived
from pydanube.wire.http2.frames import (
    END_HEADERS,
    END_STREAM,
    NUMBER_MAX,
    PREFACE,
    WINDOW_BYTES,
    FrameType,
    Setting,
    frame,
    settings_frame,
    window_update,
)
from pydanube.wire.http2.grpc import HEAD, OK, framed, is_call, only_message

RUNS = 15
CALLS = 20_000  # per run
IN_FLIGHT = 64  # calls per read of the socket
MESSAGES = 200_000
MESSAGES_AT_ONCE = 100  # that a subscription delivers together
ANSWER = framed(bytes(30))

FIELDS = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/danube.ProducerService/SendMessage"),
    (":authority", "127.0.0.1:6650"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
    ("user-agent", "grpc-python/1.66 grpc-c/43.0 (linux; chttp2)"),
    ("grpc-accept-encoding", "identity, deflate, gzip"),
]


def opened() -> ServerConnection:
    connection = ServerConnection()
    settings = settings_frame({Setting.INITIAL_WINDOW_SIZE: NUMBER_MAX})
    connection.receive(PREFACE + settings + window_update(0, NUMBER_MAX - WINDOW_BYTES), 0)
    connection.take_output()
    return connection


def calls(count: int, size: int, timeouts: bool) -> list[bytes]:
    """Received bytes with `IN_FLIGHT` calls each."""
    encoder, body, reads = Encoder(), framed(bytes(size)), []
    for first in range(0, count, IN_FLIGHT):
        parts = []
        for call in range(first, min(first + IN_FLIGHT, count)):
            fields = [*FIELDS, ("grpc-timeout", f"{900_000 + call}u")] if timeouts else FIELDS
            parts.append(frame(FrameType.HEADERS, END_HEADERS, 2 * call + 1, encoder.encode(fields)))
            parts.append(frame(FrameType.DATA, END_STREAM, 2 * call + 1, body))
        reads.append(b"".join(parts))
    return reads


def serve(reads: list[bytes]) -> int:
    connection, served = opened(), 0
    for now, read in enumerate(reads):
        for event in connection.receive(read, now):
            if type(event) is RequestReceived and event.ended and is_call(event.head):
                only_message(event.data)
                connection.answer(event.stream, HEAD, ANSWER, OK)
                served += 1
        b"".join(connection.take_output())
    return served


def stream(size: int, together: int) -> None:
    connection = opened()
    connection.receive(calls(1, 10, timeouts=False)[0], 0)
    connection.respond(1, HEAD)
    message = bytes(size)
    sent = 0
    while sent < MESSAGES:
        if sent and not sent % 50_000:  # the client reads
            connection.receive(window_update(0, NUMBER_MAX // 4) + window_update(1, NUMBER_MAX // 4), sent)
        for _ in range(MESSAGES_AT_ONCE // together):
            connection.send_data(1, b"".join([framed(message) for _ in range(together)]))
        sent += MESSAGES_AT_ONCE
        b"".join(connection.take_output())


def rate(count: int, work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return count / median(times)


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()
    for name, size, timeouts, goal in (
        ("200 B", 200, False, 100_000),
        ("200 B, each with another deadline", 200, True, None),
        ("16 KiB", 16 * KIB - 5, False, None),
    ):
        reads = calls(CALLS, size, timeouts)
        assert serve(reads) == CALLS
        figures.report(f"http2: unary calls of {name}", rate(CALLS, lambda reads=reads: serve(reads)), "calls/s", goal)
    for together in (1, 10):
        figure = f"http2: messages of 200 B in a server's stream, {together} to a frame"
        spent = rate(MESSAGES, lambda together=together: stream(200, together))
        figures.report(figure, spent, "messages/s", 500_000 if together == 1 else None)
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
