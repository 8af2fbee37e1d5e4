"""Columns that pipelines add to rows, and the columns of a dead letter."""

from __future__ import annotations

from pydanube.spark.columns import ATTRIBUTES, DEFAULT

DEAD = "_dead"  # the last column: the dead letter that the row becomes, as a STRUCT; null if the row fits
CORRUPT = "_corrupt_record"  # the text of a record that could not be decoded
RECEIVED = "_danube_parts"  # a row as it was received, until it is known whether it fits
WATERMARK, LATE = "_danube_watermark", "_danube_late"  # present only until the steps begin

MESSAGE = {name: kind for name, kind in (DEFAULT | ATTRIBUTES).items() if name != "value"}  # what is known of a message
LETTER = (*MESSAGE, "value", "error", "pipeline")
