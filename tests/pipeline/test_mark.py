"""Batches that are new, done, or of a checkpoint that was wiped or copied."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pydanube.base.errors import SinkConflict
from pydanube.pipeline.targets.mark import Mark, Verdict, judge

LAST = Mark("orders", "query-a", "run-1", 7, '{"/default/orders":[70]}')


def test_the_first_batch_and_every_later_one_are_new() -> None:
    assert judge(None, LAST) is Verdict.NEW
    assert judge(LAST, replace(LAST, batch=8, source="later")) is Verdict.NEW


def test_the_last_batch_again_is_done_whatever_run_repeats_it() -> None:
    assert judge(LAST, replace(LAST, run="run-2")) is Verdict.DONE
    assert judge(LAST, replace(LAST, source="")) is Verdict.DONE
    assert judge(replace(LAST, source=""), LAST) is Verdict.DONE


@pytest.mark.parametrize("other", [replace(LAST, run="run-2", source="elsewhere"), replace(LAST, batch=6)])
def test_a_copied_checkpoint_is_told_with_both_runs(other: Mark) -> None:
    with pytest.raises(SinkConflict, match=f"run {other.run}.*run {LAST.run}"):
        judge(LAST, other)


def test_a_wiped_checkpoint_is_told_with_both_queries_unless_it_was_meant() -> None:
    again = replace(LAST, query="query-b", batch=0)
    with pytest.raises(SinkConflict, match=r"query query-b.*query query-a"):
        judge(LAST, again)
    assert judge(LAST, again, replaces=("query-z", "query-a")) is Verdict.NEW
