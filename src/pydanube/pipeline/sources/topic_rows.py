"""Messages of topics as the rows that the first step sees, made with Spark's columns.

A raw topic keeps its columns. Of a decoded one, the fields of the payload come first, and then what is known of the
message, as a struct or as columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydanube.base.errors import FlowInvalid
from pydanube.base.limits import DAY
from pydanube.pipeline.sources.topic import COLUMNS, TopicSource
from pydanube.pipeline.spec.columns import DEAD, MESSAGE, RECEIVED, WATERMARK
from pydanube.pipeline.spec.context import Reading
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.source import PERMISSIVE
from pydanube.pipeline.spec.steps import EVENT_TIME
from pydanube.pipeline.targets.target import CHANGE
from pydanube.spark.committing import local_checkpoint
from pydanube.spark.launch import cores_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STRUCT = "message"  # the column that describes a decoded message


def read_topic(source: TopicSource, reading: Reading) -> DataFrame:
    from pyspark.sql import functions as f

    flow = reading.flow
    raw: DataFrame = reading.reader.format("danube").options(**_options(source, reading)).load()
    watermark = [f.col("watermark").alias(WATERMARK)] if "watermark" in raw.columns else []
    if source.skips_tombstones:
        raw = raw.where(_has_payload(raw))
    time = f.coalesce(f.col(EVENT_TIME), f.col("timestamp"))
    if not source.decodes:
        hidden = {"watermark", *([] if source.attributes else ["attributes"])}
        shown = [name for name in raw.columns if name not in hidden]
        columns = [time.alias(name) if name == EVENT_TIME else f.col(name) for name in shown] + _change(raw, flow)
        received = [f.col("value"), f.lit(None).cast("string").alias("error")]
        whole = flow.dead_letters is not None
    else:
        columns = _decoded(source, flow, raw, time)
        received = [f.col("value_raw").alias("value"), f.col("value_error").alias("error")]
        whole = source.mode == PERMISSIVE  # otherwise the source itself ends the query at a payload that does not fit
    message = [f.struct(*MESSAGE, *received).alias(RECEIVED)] if whole else []
    return raw.select(*columns, *message, *watermark)


def _options(source: TopicSource, reading: Reading) -> dict[str, str]:
    options = source.options(reading.flow, reading.url, reading.start, streaming=reading.streaming)
    if reading.checkpoint is not None and local_checkpoint(reading.checkpoint) is not None:
        options |= {"syncCheckpoint": reading.checkpoint}
        options |= {} if reading.flow.late_rule is None else {"watermarkOf": reading.checkpoint}
    if (cores := cores_of(reading.spark)) is not None:
        options["cores"] = str(cores)
    return options


def _decoded(source: TopicSource, flow: Flow, raw: DataFrame, time: Column) -> list[Column]:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    payload = raw.schema["value"].dataType
    assert isinstance(payload, StructType)
    kinds = {each.name: each.dataType.simpleString() for each in payload.fields}
    names = {name.lower() for name in kinds}
    if taken := next((name for name in (DEAD, RECEIVED, CHANGE) if name in names), None):
        raise FlowInvalid(f"source.schema: a field cannot be called {taken}")
    _check_sequence(flow, names)
    columns = [value.alias(name) for name, value in _fields(raw, flow, kinds).items()]
    columns += _change(raw, flow)
    if EVENT_TIME not in names:
        columns.append(time.alias(EVENT_TIME))
    if source.message == COLUMNS:
        columns += _message_columns(source, names)
    elif STRUCT not in names:
        attributes = ["attributes"] if source.attributes else []
        about = ("topic", "partition", "offset", "timestamp", EVENT_TIME, "key", *attributes)
        columns.append(f.struct(*about).alias(STRUCT))
    return columns


def _check_sequence(flow: Flow, names: set[str]) -> None:
    """Refuses a `sequence_by` that messages without a payload do not have, unless a step may make that column."""
    for each in flow.upserts if flow.deleting and not flow.transforms else ():
        if each.sequence_by is not None and each.sequence_by.lower() in names:
            raise FlowInvalid(
                f"sink.upsert.sequence_by: {each.sequence_by} is a field of the payload, which a message that deletes "
                "does not have: use event_time"
            )


def _has_payload(raw: DataFrame) -> Column:
    """A payload that could not be decoded is null too, but has an error."""
    from pyspark.sql import functions as f

    found = f.col("value").isNotNull()
    return found | f.col("value_error").isNotNull() if "value_error" in raw.columns else found


def _fields(raw: DataFrame, flow: Flow, kinds: Mapping[str, str]) -> dict[str, Column]:
    """The fields of the payload. A message that only deletes has null in all of them except its keys, which come from
    the key of the message: as text, or as a JSON object if there are several.
    """
    from pyspark.sql import functions as f

    found = {name: f.col("value")[name] for name in kinds}
    text = f.col("key").cast("string")
    keys = [name for name in flow.deleting if name in kinds]
    if len(keys) == 1:
        found[keys[0]] = f.coalesce(found[keys[0]], f.when(~_has_payload(raw), text.try_cast(kinds[keys[0]])))
    elif keys:
        given = f.from_json(text, ", ".join(f"`{name}` {kinds[name]}" for name in keys))
        for name in keys:
            found[name] = f.coalesce(found[name], f.when(~_has_payload(raw), given[name]))
    return found


def _change(raw: DataFrame, flow: Flow) -> list[Column]:
    """The position of a row in the topic, and whether it deletes: upserts without `sequence_by` order rows by it."""
    from pyspark.sql import functions as f

    if not flow.ordered:
        return []
    deleted = ~_has_payload(raw) if flow.deleting else f.lit(False)
    return [f.struct(deleted.alias("deleted"), f.col("timestamp"), f.col("offset")).alias(CHANGE)]


def _message_columns(source: TopicSource, names: set[str]) -> list[Column]:
    """What is known about the message, as columns; its topic only if there may be several."""
    from pyspark.sql import functions as f

    several = source.pattern is not None or len(source.topics) > 1
    own = [*(["topic"] if several else []), "partition", "offset", "timestamp"]
    columns = {f"_{name}": f.col(name) for name in own}
    days = f.floor(f.unix_micros(f.col("timestamp")) / DAY)  # of UTC, whatever zone the session is in
    columns["_date"] = f.date_from_unix_date(days.cast("int"))
    columns |= {f"_{name}": f.col(name) for name in ("key", *(["attributes"] if source.attributes else []))}
    taken = next((name for name in columns if name in names), None)
    if taken is not None:
        raise FlowInvalid(f"source.schema: a field has the name {taken}, which `message: columns` already uses")
    return [column.alias(name) for name, column in columns.items()]
