"""The soak test runs, and notices what it is there to notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from soak import KINDS, Seen, creep, soak


def test_a_short_run_holds(tmp_path: Path) -> None:
    assert asyncio.run(soak(tmp_path, seconds=2, rate=200)) == []


def test_a_message_after_its_confirmed_ack_is_wrong() -> None:
    seen = Seen()
    seen.arrive("shared", [3, 1])
    seen.arrive("shared", [3])
    assert seen.wrong == []
    seen.confirm("shared", [3])
    seen.arrive("shared", [1, 3])
    assert seen.wrong == ["shared: message 3 was delivered again after its ack was confirmed"]


@pytest.mark.parametrize(("kind", "wrong"), [("shared", 0), ("failover", 1), ("key_shared", 1)])
def test_a_key_out_of_order_is_wrong_where_order_is_promised(kind: str, wrong: int) -> None:
    seen = Seen()
    seen.arrive(kind, [50, 51])
    seen.arrive(kind, [0])
    assert len(seen.wrong) == wrong


def test_what_has_a_receipt_and_never_came_is_missing() -> None:
    seen = Seen()
    seen.receipt(0)
    seen.receipt(2)
    seen.arrive("shared", [0, 1])
    assert {kind: seen.missing(kind) for kind in KINDS} == {kind: [0, 2] for kind in KINDS} | {"shared": [2]}


def test_memory_that_creeps_is_noticed() -> None:
    flat = [(second, 100.0 + second % 7) for second in range(0, 1200, 5)]
    assert "trend" in creep(flat)
    with pytest.raises(AssertionError, match="memory grows steadily"):
        creep([(second, 100.0 + second / 50) for second in range(0, 1200, 5)])
