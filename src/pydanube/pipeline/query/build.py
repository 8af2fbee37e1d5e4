"""A declared pipeline as one query of Spark: source, steps and sinks put together.

Rows that do not fit are told apart before the first step. They go past all steps, in the same batch, to the sink, which
knows them by the column `_dead`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stdout
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pydanube.base.errors import FlowInvalid
from pydanube.base.limits import DAY
from pydanube.pipeline.query.lookups import file_lists, keep_listed
from pydanube.pipeline.query.progress import DEAD as OBSERVED_DEAD
from pydanube.pipeline.query.progress import LATE as OBSERVED_LATE
from pydanube.pipeline.query.progress import OBSERVED
from pydanube.pipeline.query.transforms import apply, told
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.late import LATE, REASON, WATERMARK, late, reason, without_late
from pydanube.pipeline.spec.sinks import Sink, TopicSink
from pydanube.pipeline.spec.source import COLUMNS, PERMISSIVE, RAW, SKIP, FileSource, RateSource, TopicSource
from pydanube.pipeline.spec.steps import Deduplicate, Watermark
from pydanube.pipeline.targets.target import CHANGE
from pydanube.spark.columns import ATTRIBUTES, DEFAULT
from pydanube.spark.committing import local_checkpoint
from pydanube.spark.launch import activate, cores_of, fit_shuffles, state_on_disk

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

DEAD = "_dead"
CORRUPT = "_corrupt_record"
EVENT_TIME, MESSAGE = "event_time", "message"
SINK_FORMAT = "danube_tables"
_PARTS = "_danube_parts"  # of a row as it came, until it is known whether it fits
_NO_PLACE = {name: kind for name, kind in (DEFAULT | ATTRIBUTES).items() if name != "value"}
_ABOUT = tuple(_NO_PLACE)  # what a dead letter has of its message, besides the payload
_DECODING = "source.schema"  # the rule of what cannot be decoded
_UNHOLDABLE = ("void", "interval", "variant", "calendar")


def query(
    spark: SparkSession,
    flow: Flow,
    *,
    url: str,
    checkpoint: str | None = None,
    start: str | None = None,
    replaces: tuple[str, ...] = (),
    available_now: bool | None = None,
) -> StreamingQuery:
    """Starts it. `start` is for a checkpoint that is new; `replaces` are queries in whose place this one is put."""
    from pyspark.sql import functions as f

    activate(spark)
    fit_shuffles(spark, flow.spark)
    place = checkpoint or flow.checkpoint
    frame = transformed(source(spark, flow, url, start, checkpoint=place), flow)
    check_columns(frame, flow)
    if flow.dead_letters is not None:
        was_late = f.count_if(f.col(DEAD)["error"].startswith(REASON))
        frame = frame.observe(OBSERVED, f.count(DEAD).alias(OBSERVED_DEAD), was_late.alias(OBSERVED_LATE))
    writer = frame.writeStream.queryName(flow.name).option("checkpointLocation", place).outputMode(flow.output_mode)
    if flow.available_now if available_now is None else available_now:
        writer = writer.trigger(availableNow=True)
    elif flow.trigger is not None:
        writer = writer.trigger(processingTime=str(flow.trigger))
    lookups = file_lists(frame)
    if flow.console is not None:
        writer = writer.format("console").options(numRows=flow.console.rows, truncate=False)
    else:
        plan = json.dumps(flow.plan(url, replaces))
        if flow.output_mode == "update":
            writer = writer.foreachBatch(Batches(plan, place))
        else:
            writer = writer.format(SINK_FORMAT).option("plan", plan)
    with state_on_disk(spark, flow.spark):
        started = writer.start()
    if lookups:
        keep_listed(lookups, started)
    return started


class Batches:
    """What foreachBatch is given: values only, for over Connect it is sent to the server."""

    def __init__(self, plan: str, checkpoint: str) -> None:
        self.plan = plan
        self.checkpoint = checkpoint
        self.run = uuid4().hex

    def __call__(self, frame: DataFrame, number: int) -> None:
        options = {"plan": self.plan, "checkpointLocation": self.checkpoint}
        if not hasattr(frame, "_jdf"):  # over Connect the write does not know whose batch it is: the checkpoint does
            line = frame.sparkSession.read.text(f"{self.checkpoint}/metadata").head()
            assert line is not None
            options |= {"query": json.loads(line[0])["id"], "run": self.run, "batch": str(number)}
        frame.write.format(SINK_FORMAT).options(**options).mode("append").save()


def batch(spark: SparkSession, flow: Flow, url: str, start: str | None = None) -> DataFrame:
    """The same flow over what there is now: rows as the stream would have written them at its end."""
    return transformed(source(spark, flow, url, start, streaming=False), flow).drop(CHANGE)


def explain(spark: SparkSession, flow: Flow, url: str) -> str:
    """The flow in words, the columns that it writes, and Spark's plan. Nothing is started."""
    frame = transformed(source(spark, flow, url), flow)
    check_columns(frame, flow)
    shown = [each for each in frame.schema.fields if each.name not in (CHANGE, DEAD)]
    columns = [f"  {each.name} {each.dataType.simpleString()}" for each in shown]
    said = io.StringIO()
    with redirect_stdout(said):
        frame.explain(mode="formatted")
    return "\n".join([*flow.words(), "columns", *columns, "", said.getvalue().strip(), ""])


# -- rows as they come -------------------------------------------------------------------------------------------------


def source(
    spark: SparkSession,
    flow: Flow,
    url: str,
    start: str | None = None,
    *,
    streaming: bool = True,
    checkpoint: str | None = None,
) -> DataFrame:
    """What the first step sees as `input`; with dead letters also `_dead`, which is null if a row fits. With the
    checkpoint of the query, late rows are told apart too.
    """
    with told("source"):
        found = flow.source
        if isinstance(found, TopicSource):
            options = topic_options(flow, url, start, streaming=streaming)
            if checkpoint is not None and local_checkpoint(checkpoint) is not None:
                options |= {"syncCheckpoint": checkpoint}
                options |= {} if flow.late_rule is None else {"watermarkOf": checkpoint}
            if (cores := cores_of(spark)) is not None:
                options["cores"] = str(cores)
            return _of_topic(spark.readStream if streaming else spark.read, flow, found, options)
        reader: Any = spark.readStream if streaming else spark.read
        if isinstance(found, RateSource):
            if not streaming:
                raise FlowInvalid("source.rate: generates rows as time passes, so it cannot be read as a batch")
            frame = reader.format("rate").option("rowsPerSecond", found.rows_per_second).load()
        else:
            frame = _files(reader, found, streaming)
        return _judged(frame, flow, None)


def topic_options(flow: Flow, url: str, start: str | None = None, *, streaming: bool = True) -> dict[str, str]:
    """Of `format("danube")`."""
    found = flow.source
    assert isinstance(found, TopicSource)
    attributes = found.attributes or _keeps_messages(flow)
    options = {"url": found.url or url, "includeAttributes": _said(attributes), **found.starting(start)}
    options["failOnDataLoss"] = _said(found.fail_on_data_loss)
    if found.topics:
        options["topic"] = ",".join(found.topics)
    elif found.pattern is not None:
        options["topicPattern"] = found.pattern
    if streaming:
        options["maxRecordsPerTrigger"] = str(found.max_records)
        if found.max_bytes is not None:
            options["maxBytesPerTrigger"] = str(found.max_bytes)
        if found.subscription is not None:
            options |= {"subscription": found.subscription, "subscription.release": _said(found.release)}
            options["subscription.idleSeconds"] = "never"  # a pipeline that is stopped continues where it was
    if found.schema is not None:
        options |= {"value.format": found.format, "value.mode": found.mode, "value.schema": found.schema.text}
        if found.mode == PERMISSIVE and (found.expect or flow.keeps_late or _keys_as_read(flow)):
            options["value.raw"] = "all"  # what was decoded and does not go on is kept as it came
        if found.schema.message is not None:
            options["value.message"] = found.schema.message
    more = {"tls.ca": found.ca, "objects.url": found.objects_url}
    return options | {name: text for name, text in more.items() if text is not None}


def _keeps_messages(flow: Flow) -> bool:
    """Whether dead letters have the messages themselves: in `failfast` the source ends the query instead."""
    found = flow.source
    decoded = isinstance(found, TopicSource) and found.format != RAW
    return flow.dead_letters is not None and (found.mode == PERMISSIVE or not decoded)


def _said(flag: bool) -> str:
    return str(flag).lower()


def _of_topic(reader: Any, flow: Flow, found: TopicSource, options: Mapping[str, str]) -> DataFrame:
    from pyspark.sql import functions as f

    raw = reader.format("danube").options(**options).load()
    watermark = [f.col("watermark").alias(WATERMARK)] if "watermark" in raw.columns else []
    if found.tombstones == SKIP:
        raw = raw.where(_has_payload(raw))
    time = f.coalesce(f.col("event_time"), f.col("timestamp"))
    if found.format == RAW:
        hidden = {"watermark", *([] if found.attributes else ["attributes"])}
        plain = [name for name in raw.columns if name not in hidden]
        columns = [time.alias(name) if name == EVENT_TIME else f.col(name) for name in plain]
        columns += _change(raw, flow)
        if flow.dead_letters is None:
            return _judged(raw.select(*columns, *watermark), flow, None)
        parts = f.struct(*_ABOUT, f.col("value"), f.lit(None).cast("string").alias("error"))
        return _judged(raw.select(*columns, parts.alias(_PARTS), *watermark), flow, _PARTS)
    kinds = {each.name: each.dataType.simpleString() for each in raw.schema["value"].dataType.fields}
    names = {name.lower() for name in kinds}
    if taken := next((name for name in (DEAD, _PARTS, CHANGE) if name in names), None):
        raise FlowInvalid(f"source.schema: a field cannot be called {taken}")
    _check_sequence(flow, names)
    columns = [value.alias(name) for name, value in _values(raw, flow, kinds).items()]
    columns += _change(raw, flow)
    if EVENT_TIME not in names:
        columns.append(time.alias(EVENT_TIME))
    if found.message == COLUMNS:
        columns += _message_columns(found, names)
    elif MESSAGE not in names:
        attributes = ["attributes"] if found.attributes else []
        columns.append(
            f.struct("topic", "partition", "offset", "timestamp", "event_time", "key", *attributes).alias(MESSAGE)
        )
    if found.mode != PERMISSIVE:  # the source itself ends the query at a payload that does not fit
        return _judged(raw.select(*columns, *watermark), flow, None)
    parts = f.struct(*_ABOUT, f.col("value_raw").alias("value"), f.col("value_error").alias("error"))
    return _judged(raw.select(*columns, parts.alias(_PARTS), *watermark), flow, _PARTS)


def _check_sequence(flow: Flow, names: set[str]) -> None:
    """What deletes has no payload, so none of its fields says whether it is the newest; a step may make a column that
    does.
    """
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


def _values(raw: DataFrame, flow: Flow, kinds: Mapping[str, str]) -> dict[str, Column]:
    """The fields of the payload. Those of a message that only deletes are null but for its keys, which its own key has:
    as text, or as a JSON object if there are several.
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
    """Where a row is in the topic, and whether it deletes: what upserts go by, if nothing else says which is newer."""
    from pyspark.sql import functions as f

    if not flow.ordered:
        return []
    deleted = ~_has_payload(raw) if flow.deleting else f.lit(False)
    return [f.struct(deleted.alias("deleted"), f.col("timestamp"), f.col("offset")).alias(CHANGE)]


def _message_columns(found: TopicSource, names: set[str]) -> list[Column]:
    """What is known of a message, at the top level; the topic only if there may be several."""
    from pyspark.sql import functions as f

    several = found.pattern is not None or len(found.topics) > 1
    own = [*(["topic"] if several else []), "partition", "offset", "timestamp"]
    columns = {f"_{name}": f.col(name) for name in own}
    days = f.floor(f.unix_micros(f.col("timestamp")) / DAY)  # UTC's, whatever zone the session is in
    columns["_date"] = f.date_from_unix_date(days.cast("int"))
    columns |= {f"_{name}": f.col(name) for name in ("key", *(["attributes"] if found.attributes else []))}
    taken = next((name for name in columns if name in names), None)
    if taken is not None:
        raise FlowInvalid(f"source.schema: a field has the name {taken}, which `message: columns` already uses")
    return [column.alias(name) for name, column in columns.items()]


def _files(reader: Any, found: FileSource, streaming: bool) -> DataFrame:
    schema = found.schema.text
    options = dict(found.options)
    if found.format != "parquet":
        permissive = found.mode == PERMISSIVE
        options["mode"] = "PERMISSIVE" if permissive else "FAILFAST"
        if permissive:
            schema += f", `{CORRUPT}` STRING"
            options["columnNameOfCorruptRecord"] = CORRUPT
    if streaming and found.max_files is not None:
        options["maxFilesPerTrigger"] = str(found.max_files)
    frame: DataFrame = reader.format(found.format).schema(schema).options(**options).load(found.path)
    return frame


def _judged(frame: DataFrame, flow: Flow, parts: str | None) -> DataFrame:
    """Rows and what is wrong with them. `parts` is the column that has the row as it came, if there is one."""
    from pyspark.sql import functions as f

    shown = [name for name in frame.columns if name not in (parts, CORRUPT, WATERMARK)]
    failed = _failed(frame, flow)
    tardy = late(frame, flow.late_rule) if WATERMARK in frame.columns and flow.late_rule is not None else None
    dropped = [] if tardy is None or flow.keeps_late else [tardy.alias(LATE)]
    if flow.dead_letters is None:
        if failed is not None:  # ends the query with the first
            fits = f.when(failed.isNull(), f.lit(True)).otherwise(
                f.raise_error(f.concat(f.lit("row_invalid: "), failed["error"]))
            )
            frame = frame.where(fits)
        return frame.select(*map(_column, shown), *dropped)
    own: Column | None = None
    if parts is not None:
        own = _refusal(f.col(parts)["error"].isNotNull(), _DECODING, f.col(parts)["error"])
        about = [f.col(parts)[name].alias(name) for name in (*_ABOUT, "value")]
    else:
        about = [f.lit(None).cast(kind).alias(name) for name, kind in _NO_PLACE.items()]
        text: Column = f.to_json(f.struct(*map(_column, shown)))
        if CORRUPT in frame.columns:
            own = _refusal(f.col(CORRUPT).isNotNull(), _DECODING, f.lit("the record does not fit the schema"))
            text = f.coalesce(f.col(CORRUPT), text)
        about.append(text.cast("binary").alias("value"))
    refusals = [each for each in (own, failed) if each is not None]
    if tardy is not None and flow.late_rule is not None and flow.keeps_late:
        refusals.append(_refusal(tardy, flow.late_rule.step, reason(flow.late_rule)))
    refusal = f.coalesce(*refusals, f.lit(None).cast("struct<error:string,rule:string>"))
    letter = f.struct(*about, *(refusal[name].alias(name) for name in ("error", "rule")))
    return frame.select(*map(_column, shown), f.when(refusal.isNotNull(), letter).alias(DEAD), *dropped)


def _refusal(refused: Column, rule: str, error: Column) -> Column:
    """What is wrong with a row, and the key of the file by which it is; null if nothing is."""
    from pyspark.sql import functions as f

    return f.when(refused, f.struct(error.alias("error"), f.lit(rule).alias("rule")))


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def _failed(frame: DataFrame, flow: Flow) -> Column | None:
    """The first expectation that a row does not meet, as `_refusal` has it; null if it meets all."""
    from pyspark.sql import functions as f

    found: list[Column] = []
    judged: Column = f.lit(True)
    if flow.deleting:  # nothing is expected of a message that only deletes, but a key
        deletes = f.col(CHANGE)["deleted"]
        judged = ~deletes
        said = f"expected a key that names {', '.join(flow.deleting)}, because the message has no payload"
        for name in flow.deleting:
            if name in frame.columns:
                found.append(_refusal(deletes & _column(name).isNull(), "sink.upsert.keys", f.lit(said)))
    for at, text in enumerate(flow.source.expect):
        rule = f"source.expect[{at}]"
        with told(f"{rule}: {text}"):
            unmet = judged & ~f.coalesce(_attempted(f.expr(text).cast("boolean")), f.lit(False))
            _ = frame.select(unmet).schema  # only now its columns are looked at
        found.append(_refusal(unmet, rule, f.lit(f"expected {text}")))
    for name in _keys_as_read(flow):
        if name in frame.columns:
            said = f"expected a value in {name}, which is a key of the upsert"
            found.append(_refusal(judged & _column(name).isNull(), "sink.upsert.keys", f.lit(said)))
    return f.coalesce(*found) if found else None


def _keys_as_read(flow: Flow) -> tuple[str, ...]:
    """Keys of upserts that rows have from the source, if there are dead letters: of those that a step makes, only the
    table can tell that one is null."""
    if flow.dead_letters is None or not all(isinstance(each, Watermark | Deduplicate) for each in flow.transforms):
        return ()
    return tuple(dict.fromkeys(name for each in flow.upserts for name in each.keys))


def _attempted(condition: Column) -> Column:
    """A condition that is null where evaluating it raises: a division by zero or a failed cast is an unmet expectation.

    SQL has no general `try`; of the functions that do have one, `try_to_binary` covers everything below it.
    """
    from pyspark.sql import functions as f

    return f.try_to_binary(condition.cast("string"), f.lit("utf-8")) == f.lit(b"true")


# -- rows as they go ---------------------------------------------------------------------------------------------------


def transformed(frame: DataFrame, flow: Flow) -> DataFrame:
    """After all steps; `_dead` is the last column, if there are dead letters."""
    from pyspark.sql import functions as f

    if flow.dead_letters is None:
        return apply(without_late(frame), flow.transforms)
    if not flow.transforms:
        return frame
    kind = frame.schema[DEAD].dataType
    main = apply(without_late(frame.where(f.col(DEAD).isNull()).drop(DEAD)), flow.transforms)
    bad = frame.where(f.col(DEAD).isNotNull()).select(DEAD)
    return main.withColumn(DEAD, f.lit(None).cast(kind)).unionByName(bad, allowMissingColumns=True)


def check_columns(frame: DataFrame, flow: Flow) -> None:
    """What sinks need of the columns, as far as it is known before there is a row."""
    if flow.deleting and CHANGE not in frame.columns:
        raise FlowInvalid(
            f"sink.upsert.delete_when: the steps lose the column {CHANGE}, which marks deletions: add it to the "
            "SELECT; it is not written to any table"
        )
    fields = [each for each in frame.schema.fields if each.name not in (CHANGE, DEAD)]
    names = [each.name for each in fields]
    folded = [name.lower() for name in names]
    twice = next((name for at, name in enumerate(names) if name.lower() in folded[:at]), None)
    if twice is not None:
        raise FlowInvalid(f"sink: the column {twice} is given twice")
    if not names:
        raise FlowInvalid("sink: the rows have no columns")
    if flow.console is not None:
        return
    for each in fields:
        if (kind := _unholdable(each.dataType)) is not None:
            raise FlowInvalid(
                f"sink: the column {each.name} has the type {kind}, which tables do not support; CAST it to another"
            )
    for at, sink in enumerate(flow.sinks):
        path = "sink" if len(flow.sinks) == 1 else f"sink[{at}]"
        for key, name in _needed(sink):
            if name not in names:
                close = get_close_matches(name, names, 1, 0.5)
                end = f"did you mean {close[0]}?" if close else f"the columns are {', '.join(names)}"
                raise FlowInvalid(f"{path}.{key}: the column {name!r:.80} does not exist; {end[:400]}")


def _needed(sink: Sink) -> list[tuple[str, str]]:
    """Columns that a sink names, with the key that does."""
    if isinstance(sink, TopicSink):
        return [(key, name) for key, name in (("key", sink.key), ("value", sink.value)) if name is not None]
    found = [("partition_by", name) for name in getattr(sink, "partition_by", ())]
    if (upsert := getattr(sink, "upsert", None)) is not None:
        found += [("upsert.keys", name) for name in upsert.keys]
        found += [("upsert.sequence_by", upsert.sequence_by)] if upsert.sequence_by is not None else []
    return found


def _unholdable(kind: DataType) -> str | None:
    """The type, or one in it, that no target can hold."""
    inner = [each.dataType for each in getattr(kind, "fields", ())]
    inner += [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    if inner:
        return next((found for each in inner if (found := _unholdable(each)) is not None), None)
    name = kind.simpleString()
    return name if name.startswith(_UNHOLDABLE) else None
