"""What acks cost on one core: single acks, among few and among a million others, and snapshots of them.

A figure is the median of several runs. The ratio compares runs that alternate, so that a slow moment of the machine
hits both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from time import perf_counter

from figures import Figures
from pydanube.base.limits import CURSOR_CHUNK_OFFSETS, CURSOR_CHUNKS_MAX
from pydanube.topic.cursor import Cursor
from pydanube.topic.records import Acked, SubscriptionCreated, SubscriptionKind, decode, encode
from pydanube.topic.state import TopicState

MANY = 1_000_000
FEW = 10
ACKS = 20_000
STRIDE = 7_919  # coprime to the number of open messages
GROUP = 1_000
WIDE_STEP = CURSOR_CHUNKS_MAX * CURSOR_CHUNK_OFFSETS // MANY
LOAD_SECONDS_MAX = 5.0
RUNS = 15
END = 1 << 40


def scattered(count: int, step: int = 2) -> TopicState:
    """A subscription in which `count` messages, every `step`th one, are acked, but not the oldest."""
    state = TopicState()
    state.replay(state.decide_create("bench", SubscriptionKind.SHARED, 0, END))
    for record in logged(count, step):
        state.replay(record)
    return state


def logged(count: int, step: int) -> list[Acked]:
    offsets = range(1, step * count, step)
    groups = [offsets[at : at + GROUP] for at in range(0, count, GROUP)]
    return [Acked(1, 0, tuple((offset, offset) for offset in group)) for group in groups]


def seconds_each(cursors: list[Cursor], offsets: Sequence[int]) -> float:
    """The mean seconds of an ack of one message, decided and replayed, for each cursor."""
    start = perf_counter()
    for cursor in cursors:
        for offset in offsets:
            record = cursor.decide_ack(((offset, offset),), END)
            assert record is not None
            cursor.replay(record)
    return (perf_counter() - start) / len(cursors) / len(offsets)


def ack_groups(state: TopicState, offsets: range) -> float:
    """The mean seconds of an ack that shares a record, which is encoded, with others."""
    start = perf_counter()
    for first in range(0, len(offsets), GROUP):
        record = state.get(1).cursor.decide_ack([(offset, offset) for offset in offsets[first : first + GROUP]], END)
        assert record is not None
        state.replay(record)
        encode(record)
    return (perf_counter() - start) / len(offsets)


def compare_few_and_many() -> tuple[list[float], list[float]]:
    """Seconds of an ack out of order: the first ten of a cursor, and random ones in a cursor with a million."""
    among_many = scattered(MANY).get(1).cursor
    left = [2 + 2 * (STRIDE * at % (MANY - 1)) for at in range(RUNS * ACKS)]  # open, in random order
    few, many = [], []
    for run in range(RUNS):
        few.append(seconds_each([Cursor(1) for _ in range(ACKS // FEW)], range(1, 2 * FEW, 2)))
        many.append(seconds_each([among_many], left[run * ACKS : (run + 1) * ACKS]))
    return few, many


def save_and_load(state: TopicState) -> float:
    """Seconds to take a snapshot, encode, decode and load it."""
    start = perf_counter()
    loaded = load([encode(record) for record in state.snapshot(0)])
    seconds = perf_counter() - start
    assert loaded.get(1).cursor.above == state.get(1).cursor.above
    return seconds


def load_log(log: list[bytes]) -> float:
    """Seconds to decode and replay records of acks."""
    start = perf_counter()
    loaded = load(log)
    seconds = perf_counter() - start
    assert loaded.get(1).cursor.above.count == MANY
    return seconds


def load(log: list[bytes]) -> TopicState:
    state = TopicState()
    for data in log:
        state.replay(decode(data))
    return state


def report_restart(figures: Figures) -> None:
    dense, wide = scattered(MANY), scattered(MANY, WIDE_STEP)
    created = SubscriptionCreated(1, "bench", SubscriptionKind.SHARED, 0)
    log = [encode(record) for record in (created, *logged(MANY, 2))]
    for name, seconds in (
        ("a snapshot of a million acks, saved and loaded", median(save_and_load(dense) for _ in range(RUNS))),
        ("the same, as far apart as a cursor holds", median(save_and_load(wide) for _ in range(RUNS))),
        ("a log of a million acks, loaded", median(load_log(log) for _ in range(3))),
    ):
        figures.report(f"cursors: {name}", seconds, "s", LOAD_SECONDS_MAX, at_least=False)


def main(figures: Figures | None = None) -> None:
    alone = figures is None
    figures = figures or Figures()
    in_order = median(seconds_each([Cursor(1)], range(ACKS)) for _ in range(RUNS))
    figures.report("cursors: single acks in order", 1 / in_order, "acks/s", 500_000)
    few, many = compare_few_and_many()
    figures.report("cursors: single acks among a million out of order", 1 / median(many), "acks/s", 300_000)
    ratio = median(slow / fast for fast, slow in zip(few, many, strict=True))
    figures.report("cursors: an ack among a million against one among ten", ratio, "times", 2, at_least=False)
    state = scattered(MANY)
    shared = [
        ack_groups(state, range(4 * MANY + 2 * ACKS * run, 4 * MANY + 2 * ACKS * (run + 1), 2)) for run in range(RUNS)
    ]
    figures.report("cursors: acks out of order in groups of 1,000, encoded", 1 / median(shared), "acks/s", 300_000)
    report_restart(figures)
    if alone:
        figures.table()


if __name__ == "__main__":
    main()
