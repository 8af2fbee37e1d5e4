"""What the native protocol costs on one core: frames read from received bytes, decoded, and encoded.

A figure is the median of several runs. Bytes are received in pieces, like from a socket, so frames are split anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from figures import Figures
from pydanube.base.limits import KIB
from pydanube.wire.batch import build
from pydanube.wire.commands import (
    Ack,
    Command,
    Deliver,
    Grant,
    Hello,
    Published,
    Receipt,
    RequestFrame,
    Welcome,
    decode,
    encode_publish,
)
from pydanube.wire.frames import PREFACE, FrameReader, Side

RUNS = 15
SMALL_FRAMES = 20_000  # per run
LARGE_FRAMES = 256
PIECE_BYTES = 256 * KIB  # at most, per read of a socket
PUBLISH_TIME = 1_700_000_000_000_000

SMALL: dict[str, tuple[Side, Command]] = {  # the side that reads it, and the command
    "ACK": (Side.BROKER, Ack(2, 3, 1, [(1000, 1999)])),
    "GRANT": (Side.BROKER, Grant(2, 1000)),
    "PUBLISHED": (Side.CLIENT, Published(1, 2, 1000, Receipt.FSYNCED, 1)),
}
BATCH = build([bytes(1000)] * 260, publish_time=PUBLISH_TIME)  # about 256 KiB with its offsets


def opened(side: Side) -> FrameReader:
    reader = FrameReader(side)
    if side is Side.BROKER:
        reader.feed(PREFACE + b"".join(Hello("bench").encode()))
        reader.welcome()
    else:
        reader.feed(b"".join(Welcome("bench", 16 * 1024 * KIB, 30).encode()))
    return reader


def pieces(frame: bytes, count: int, size: int) -> list[bytes]:
    data = frame * count
    return [data[start : start + size] for start in range(0, len(data), size)]


def seconds(work: Callable[[], object]) -> float:
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        work()
        times.append(perf_counter() - start)
    return median(times)


def parse(reader: FrameReader, received: list[bytes]) -> int:
    return sum([len(reader.feed(piece)) for piece in received])


def parse_and_decode(reader: FrameReader, received: list[bytes]) -> None:
    for piece in received:
        for frame in reader.feed(piece):
            decode(frame)


def encode_many(command: Command) -> None:
    for _ in range(SMALL_FRAMES):
        command.encode()


def publish_many() -> None:
    stamp, content = BATCH.parts()
    for request in range(LARGE_FRAMES):
        encode_publish(1, request, stamp, content)


def small_frames(figures: Figures) -> None:
    for name, (side, command) in SMALL.items():
        received = pieces(b"".join(command.encode()), SMALL_FRAMES, PIECE_BYTES)
        reader = opened(side)
        assert parse(reader, received) == SMALL_FRAMES
        for what, work, goal in (
            ("parse", lambda reader=reader, received=received: parse(reader, received), 1e6),
            ("parse and decode", lambda reader=reader, received=received: parse_and_decode(reader, received), None),
            ("encode", lambda command=command: encode_many(command), None),
        ):
            figures.report(f"wire: {what} {name}", SMALL_FRAMES / seconds(work), "frames/s", goal)


def large_frames(figures: Figures) -> None:
    for name, side, frame in (
        ("PUBLISH", Side.BROKER, b"".join(encode_publish(1, 2, *BATCH.parts()))),
        ("DELIVER", Side.CLIENT, b"".join(Deliver(1, 0, 5, 9, 0, delivered()).encode())),
    ):
        for size in (64 * KIB, PIECE_BYTES):
            received, reader = pieces(frame, LARGE_FRAMES, size), opened(side)
            spent = seconds(lambda reader=reader, received=received: parse_and_decode(reader, received))
            figure = f"wire: parse and decode {name} of 256 KiB, in pieces of {size // KIB} KiB"
            figures.report(figure, len(frame) * LARGE_FRAMES / spent / 1e9, "GB/s", 3.0)
    spent = seconds(publish_many)
    figures.report("wire: encode PUBLISH of 256 KiB", LARGE_FRAMES / spent, "frames/s")


def delivered() -> memoryview:
    return memoryview(BATCH.stamped(0, 1, PUBLISH_TIME).to_bytes())


def requests(figures: Figures) -> None:
    command = RequestFrame(
        7, "open_producer", {"channel": 1, "topic": "/default/orders", "reliable": True, "create": True}
    )
    received, reader = pieces(b"".join(command.encode()), SMALL_FRAMES, PIECE_BYTES), opened(Side.BROKER)
    spent = seconds(lambda: parse_and_decode(reader, received))
    figures.report("wire: parse and decode REQUEST", SMALL_FRAMES / spent, "frames/s")
    figures.report("wire: encode REQUEST", SMALL_FRAMES / seconds(lambda: encode_many(command)), "frames/s")


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()
    small_frames(figures)
    large_frames(figures)
    requests(figures)
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
