"""What batches cost on one core: build, parse, list, wrap as Arrow, stamp, cut. 1,000 messages of 100 bytes with a key.

A figure is the median of several runs. A *fresh* batch was just parsed from bytes, outside the measured time, so
that the check of its columns is measured too.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

from figures import Figures
from pydanube.wire.arrow import to_record_batch
from pydanube.wire.batch import Batch, Codec, build

MESSAGES = 1_000
PAYLOAD_BYTES = 100
RUNS = 15
REPEATS = 200
PUBLISH_TIME = 1_700_000_000_000_000

PAYLOADS: list[bytes | None] = [(b"%08d" % row).ljust(PAYLOAD_BYTES, b".") for row in range(MESSAGES)]
KEYS = [f"customer-{row}" for row in range(MESSAGES)]


def sample(codec: Codec = Codec.NONE) -> Batch:
    return build(PAYLOADS, keys=KEYS, publish_time=PUBLISH_TIME, codec=codec)


def seconds_each(work: Callable[[], object]) -> float:
    """The mean time of one call: the median of several runs."""
    times = []
    for _ in range(RUNS):
        start = perf_counter()
        for _ in range(REPEATS):
            work()
        times.append((perf_counter() - start) / REPEATS)
    return median(times)


def seconds_each_fresh(work: Callable[[Batch], object], data: bytes) -> float:
    """The same, each call on a fresh batch."""
    times = []
    for _ in range(RUNS):
        spent = 0.0
        for _ in range(REPEATS):
            batch = Batch.parse(data)
            start = perf_counter()
            work(batch)
            spent += perf_counter() - start
        times.append(spent / REPEATS)
    return median(times)


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()

    def report(name: str, seconds: float, goal: float | None = None) -> None:
        assert figures is not None
        figures.report(f"batch: {name}", MESSAGES / seconds, "messages/s", goal)

    plain, lz4, zstd = sample(), sample(Codec.LZ4), sample(Codec.ZSTD)
    data = plain.to_bytes()
    report("build, with keys", seconds_each(sample), 5e6)
    report("build, with keys, lz4", seconds_each(lambda: sample(Codec.LZ4)))
    report("build, with keys, zstd", seconds_each(lambda: sample(Codec.ZSTD)))
    report("parse (both checksums)", seconds_each(lambda: Batch.parse(data)))
    report("payload list of a fresh batch", seconds_each_fresh(Batch.payloads, data), 5e6)
    report("payload list of a fresh batch, lz4", seconds_each_fresh(Batch.payloads, lz4.to_bytes()))
    report("payload list of a fresh batch, zstd", seconds_each_fresh(Batch.payloads, zstd.to_bytes()))
    report("all fields of a fresh batch", seconds_each_fresh(lambda batch: list(batch.messages()), data))
    report("wrap a fresh batch as Arrow", seconds_each_fresh(to_record_batch, data), 50e6)
    report("wrap a known batch as Arrow", seconds_each(lambda: to_record_batch(plain)))
    report("whole table as Arrow", seconds_each(lambda: to_record_batch(plain, derived=True)))
    report("stamp", seconds_each(lambda: plain.stamped(1, 1, 1)))
    report("cut out a tenth of a fresh batch", seconds_each_fresh(lambda batch: batch.slice(450, 100), data))
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
