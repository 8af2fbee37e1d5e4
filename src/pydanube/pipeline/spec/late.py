"""The rule by which rows come too late for the first step that keeps state: the same by which Spark drops them.

Spark drops late rows and only counts them. Danube finds them before the step, so that they can be kept as dead letters
or counted exactly. The rule is known where only a watermark lies between the source and the step, because SQL and
Python may do anything. Pure; `query/late.py` applies the rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydanube.pipeline.spec.fields import Duration
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Python, Sql, Step, Watermark, step_path

DEAD_LETTERS, DROP = CHOICES = ("dead_letters", "drop")  # the two things that can happen to late rows
REASON = "late: "  # the error of a late row begins with it


@dataclass(frozen=True, slots=True)
class Rule:
    """A row is late by the time in a column, or by the end of the last window that this time belongs to."""

    column: str
    window: Duration | None = None
    slide: Duration | None = None
    step: str = ""  # the step that would drop the row, as errors name it


def rule_of(steps: Sequence[Step], output_mode: str) -> Rule | None:
    """None if no row is ever late, or if late rows cannot be recognized before the step."""
    watermark: Watermark | None = None
    for at, step in enumerate(steps):
        path = step_path(at, step)
        if isinstance(step, Watermark):
            watermark = step
        elif watermark is None or isinstance(step, Sql | Python):
            return None
        elif isinstance(step, Deduplicate):
            return Rule(watermark.column, step=path)
        elif output_mode == "complete":  # complete mode keeps all state, so no row is too late
            return None
        elif step.window is not None and step.on == watermark.column:
            return Rule(step.on, step.window, step.slide or step.window, path)
        else:
            by_time = step.window is None and watermark.column in step.by
            return Rule(watermark.column, step=path) if by_time else None
    return None


def may_drop(steps: Sequence[Step], output_mode: str) -> bool:
    """Whether Spark may drop late rows. SQL and Python after a watermark may do anything."""
    behind = False
    for step in steps:
        if isinstance(step, Watermark):
            behind = True
        elif behind and not (isinstance(step, Aggregate) and output_mode == "complete"):
            return True
    return False
