"""The checks of the world of metadata nodes see what they are there to see."""

from __future__ import annotations

import pytest

from pydanube.metadata.records import SessionEnded
from pydanube.raft.entries import Point
from pydanube.sim.machine.clock import SimClock
from pydanube.sim.machine.loop import SimLoop
from pydanube.sim.metadata.history import Belief, MetadataHistory
from pydanube.sim.metadata.linear import Read, Write, complaints
from pydanube.sim.world.history import History

LOG = [(3, [("a", b"one")]), (5, [("a", b"two"), ("b", b"two")]), (8, [("b", None), ("a", b"three")])]
WRITES = [
    Write(b"one", 1, [("a", 0)], 2, 3),
    Write(b"two", 3, [("a", 3), ("b", 0)], 6, 5),
    Write(b"three", 7, [("a", 5)], None),  # no one knows, but it was made
    Write(b"four", 8, [("a", 3)], 9),  # refused
    Write(b"five", 8),  # no one knows, and it was not made
]
READS = [Read(4, 5, 3, {"a": (b"one", 3), "b": None}), Read(10, 11, 8, {"a": (b"three", 8), "b": None})]


def test_a_history_with_an_order_is_accepted() -> None:
    assert list(complaints(LOG, WRITES, READS)) == []


@pytest.mark.parametrize(
    ("log", "writes", "reads", "said"),
    [
        ([*LOG, (9, [("c", b"one")])], WRITES, READS, "written at 3 and again at 9"),
        (LOG, [*WRITES, Write(b"lost", 1, (), 2, 4)], READS, "was made at 4, and is in the log at None"),
        (LOG, [*WRITES[:3], Write(b"three", 8, (), 9)], READS, "was refused, and is in the log at 8"),
        (LOG, [Write(b"two", 3, [("a", 0)], 6, 5)], [], "expected version 0 of a, not 3"),
        (LOG, [], [Read(1, 2, 5, {"a": (b"one", 3)})], "found (b'one', 3) in a, not (b'two', 5)"),
        (LOG, [], [Read(1, 2, 8, {"b": (b"two", 5)})], "in b, not None"),
        (LOG, [WRITES[1]], [Read(7, 8, 3, {})], "a read at 3 began after something at 5 had ended"),
        (LOG, [], [Read(1, 2, 5, {}), Read(3, 4, 3, {})], "a read at 3 began after something at 5 had ended"),
        (LOG, [Write(b"two", 1, (), 2, 5), Write(b"one", 3, (), 4, 3)], [], "the transaction at 3 began after"),
        (LOG, [Write(b"one", 3, (), None)], [Read(1, 2, 5, {})], "the transaction at 3 began after"),
    ],
)
def test_a_planted_violation_is_found(
    log: list[tuple[int, list[tuple[str, bytes | None]]]], writes: list[Write], reads: list[Read], said: str
) -> None:
    found = list(complaints(log, writes, reads))
    assert any(said in sentence for sentence in found), found


def test_nodes_with_different_logs_are_found() -> None:
    history = MetadataHistory(History())
    history.replayed("a", Point(1, 1, b"x" * 16), None)
    history.replayed("b", Point(1, 1, b"x" * 16), None)
    assert history.history.violations == []
    history.replayed("c", Point(1, 1, b"y" * 16), None)
    assert [violation.promise for violation in history.history.violations] == ["I6"]


@pytest.mark.parametrize("believes_first", [True, False])
def test_an_owner_that_believes_in_a_session_that_has_ended_is_found(believes_first: bool) -> None:
    loop = SimLoop()
    history, process, clock = MetadataHistory(History()), loop.process("owner"), SimClock(loop)
    steps = [
        lambda: history.believe(7, Belief(process, clock, until=1.0)),
        lambda: history.replayed("a", Point(1, 1, bytes(16)), SessionEnded(7)),
    ]
    for step in steps if believes_first else reversed(steps):
        step()
    assert [violation.promise for violation in history.history.violations] == ["I5"]
    loop.kill(process)
    after = MetadataHistory(History())
    after.believe(7, Belief(process, clock, until=1.0))
    after.replayed("a", Point(1, 1, bytes(16)), SessionEnded(7))
    assert after.history.violations == []
    loop.shutdown()
