"""Which ledgers become the next segment: enough of them, in time, and never more than a segment may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pydanube.base.durability import Durability
from pydanube.base.ids import Epoch, LedgerId, NodeIdentity
from pydanube.base.limits import MIB, SECOND, SEGMENT_BATCHES_BYTES_MAX
from pydanube.stream.record import Copies, LedgerRecord, Ledgers, Phase, StreamRecord
from pydanube.stream.tiering import TierSettings, next_segment

NODES = (NodeIdentity("00" * 16),)


def record_of(*mebibytes: int) -> StreamRecord:
    ledgers = [
        LedgerRecord(
            LedgerId(at), Epoch(1), Phase.SEALED, at * 10, at * 10 + 9, NODES, Copies(), Durability.FSYNC, size * MIB, 1
        )
        for at, size in enumerate(mebibytes)
    ]
    return StreamRecord(Epoch(1), len(mebibytes) * 10, 1, Ledgers.of(ledgers))


def planned_mebibytes(record: StreamRecord, settings: TierSettings, now: int = 0) -> int | None:
    last = next_segment(record, settings, now)
    if last is None:
        return None
    record = record.plan_segment(Epoch(1), last)
    plan = record.cold.planned
    assert plan is not None
    return sum(ledger.bytes for ledger in record.ledgers if plan.first <= ledger.first <= plan.last) // MIB


def test_small_ledgers_wait_for_each_other_and_a_large_one_goes_alone() -> None:
    settings = TierSettings()
    assert planned_mebibytes(record_of(10, 20), settings) is None
    assert planned_mebibytes(record_of(10, 20), settings, int(settings.lag_seconds * SECOND)) == 30
    assert planned_mebibytes(record_of(10, 20, 40, 5), settings) == 70
    assert planned_mebibytes(record_of(256, 10), settings) == 256


def test_a_large_ledger_does_not_join_those_before_it_if_all_do_not_fit_one_segment() -> None:
    assert planned_mebibytes(record_of(50, 256), TierSettings()) == 50
    assert planned_mebibytes(record_of(100, 256), TierSettings(segment_bytes=256 * MIB)) == 100
    assert planned_mebibytes(record_of(150, 192), TierSettings(segment_bytes=192 * MIB)) == 150


@given(st.lists(st.integers(1, 256), min_size=1, max_size=6), st.integers(1, 256), st.booleans())
def test_a_plan_is_never_more_than_a_segment_may_have(sizes: list[int], segment: int, old: bool) -> None:
    settings = TierSettings(segment_bytes=segment * MIB)
    planned = planned_mebibytes(record_of(*sizes), settings, int(settings.lag_seconds * SECOND) if old else 0)
    assert planned is None or planned * MIB <= SEGMENT_BATCHES_BYTES_MAX
    assert planned is not None or (not old and sum(sizes) < segment)
