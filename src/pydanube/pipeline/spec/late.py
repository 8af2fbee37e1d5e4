"""Rows that come too late for the first step that remembers something: told apart by the rule Spark drops them by.

Spark drops them without a word but a number. Here they are found before the step, so that they can be kept as dead
letters, or counted exactly. The rule is known where only a watermark lies between the source and the step: SQL and
Python may do anything. `rule_of` is pure; the rest makes columns of Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydanube.pipeline.spec.fields import Duration
from pydanube.pipeline.spec.steps import Aggregate, Deduplicate, Python, Sql, Step, Watermark, step_path

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEAD_LETTERS, DROP = CHOICES = ("dead_letters", "drop")  # what becomes of late rows
REASON = "late: "  # how the error of a dead letter begins that came too late
WATERMARK, LATE = "_danube_watermark", "_danube_late"  # columns, until the steps begin
OBSERVED, DROPPED = "danube_late", "dropped"  # what a query counts that drops them
_SHOWN = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"


@dataclass(frozen=True, slots=True)
class Rule:
    """By which column a row is late: by the time itself, or by the end of the last window it belongs to."""

    column: str
    window: Duration | None = None
    slide: Duration | None = None
    step: str = ""  # which drops it, as errors name it


def rule_of(steps: Sequence[Step], output_mode: str) -> Rule | None:
    """None if no row is ever late, or if that cannot be told before the step."""
    watermark: Watermark | None = None
    for at, step in enumerate(steps):
        path = step_path(at, step)
        if isinstance(step, Watermark):
            watermark = step
        elif watermark is None or isinstance(step, Sql | Python):
            return None
        elif isinstance(step, Deduplicate):
            return Rule(watermark.column, step=path)
        elif output_mode == "complete":  # which forgets nothing, so nothing is too late
            return None
        elif step.window is not None and step.on == watermark.column:
            return Rule(step.on, step.window, step.slide or step.window, path)
        else:
            by_time = step.window is None and watermark.column in step.by
            return Rule(watermark.column, step=path) if by_time else None
    return None


def may_drop(steps: Sequence[Step], output_mode: str) -> bool:
    """Whether Spark may drop rows for being late; of SQL and Python behind a watermark nobody knows."""
    behind = False
    for step in steps:
        if isinstance(step, Watermark):
            behind = True
        elif behind and not (isinstance(step, Aggregate) and output_mode == "complete"):
            return True
    return False


def late(frame: DataFrame, rule: Rule) -> Column | None:
    """True for a row that Spark would drop. None if the times are of a type that Spark compares in another way."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    if rule.column not in frame.columns or not isinstance(frame.schema[rule.column].dataType, TimestampType):
        return None
    return f.coalesce(_end(rule) <= f.unix_micros(f.col(WATERMARK)), f.lit(False))


def _end(rule: Rule) -> Column:
    """Microseconds. A row that belongs to several windows is late when the last of them is."""
    from pyspark.sql import functions as f

    time = f.unix_micros(f.col(rule.column))
    if rule.window is None or rule.slide is None:
        return time
    return time - f.pmod(time, f.lit(int(rule.slide))) + f.lit(int(rule.window))


def reason(rule: Rule) -> Column:
    from pyspark.sql import functions as f

    time, watermark = (f.date_format(f.col(name), _SHOWN) for name in (rule.column, WATERMARK))
    what = "is not after" if rule.window is None else "belongs to a window that ended before"
    return f.concat(f.lit(f"{REASON}{rule.column} "), time, f.lit(f" {what} the watermark "), watermark)


def without_late(frame: DataFrame) -> DataFrame:
    """Rows that are not late; the others are counted."""
    from pyspark.sql import functions as f

    if LATE not in frame.columns:
        return frame
    counted = frame.observe(OBSERVED, f.count_if(f.col(LATE)).alias(DROPPED))
    return counted.where(~f.col(LATE)).drop(LATE)
