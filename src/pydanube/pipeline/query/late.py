"""Late rows, found by their rule before the first step that keeps state: which they are, why, and the rows without
them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydanube.pipeline.spec.columns import LATE, WATERMARK
from pydanube.pipeline.spec.late import REASON, Rule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

OBSERVED, DROPPED = "danube_late", "dropped"  # what a query counts that drops late rows
_SHOWN = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"


def is_late(frame: DataFrame, rule: Rule) -> Column | None:
    """True for a row that Spark would drop. None if the times have a type that Spark compares differently."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import TimestampType

    if rule.column not in frame.columns or not isinstance(frame.schema[rule.column].dataType, TimestampType):
        return None
    return f.coalesce(_end(rule) <= f.unix_micros(f.col(WATERMARK)), f.lit(False))


def _end(rule: Rule) -> Column:
    """The time, in microseconds, that decides. A row in several windows is late when the last of them is."""
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
    """The rows that are not late. Late ones are counted."""
    from pyspark.sql import functions as f

    if LATE not in frame.columns:
        return frame
    counted = frame.observe(OBSERVED, f.count_if(f.col(LATE)).alias(DROPPED))
    return counted.where(~f.col(LATE)).drop(LATE)
