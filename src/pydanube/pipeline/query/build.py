"""A declared pipeline as one query of Spark.

Rows that do not fit are separated before the first step. They bypass all steps, and reach the writer in the same batch,
which recognizes them by the column `_dead`.
"""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from difflib import get_close_matches
from typing import TYPE_CHECKING
from uuid import uuid4

from pydanube.base.errors import FlowInvalid
from pydanube.pipeline.query.joined_files import file_listings, refresh_while_active
from pydanube.pipeline.query.late import is_late, reason, without_late
from pydanube.pipeline.query.progress import DEAD as OBSERVED_DEAD
from pydanube.pipeline.query.progress import LATE as OBSERVED_LATE
from pydanube.pipeline.query.progress import OBSERVED
from pydanube.pipeline.query.transforms import apply, errors_at
from pydanube.pipeline.spec.columns import CORRUPT, DEAD, LATE, MESSAGE, RECEIVED, WATERMARK
from pydanube.pipeline.spec.context import Reading
from pydanube.pipeline.spec.flow import Flow
from pydanube.pipeline.spec.late import REASON
from pydanube.pipeline.spec.sinks import named_sinks
from pydanube.pipeline.targets.target import CHANGE
from pydanube.spark.decode_types import quoted_name
from pydanube.spark.launch import activate, fit_shuffles, state_on_disk

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import DataType

SINK_FORMAT = "danube_tables"
_DECODING = "source.schema"  # the rule that a row which cannot be decoded breaks
_UNSUPPORTED = ("void", "interval", "variant", "calendar")


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
    """Starts it. `start` is where a new checkpoint begins; `replaces` are queries that this one takes over from."""
    from pyspark.sql import functions as f

    activate(spark)
    fit_shuffles(spark, flow.spark)
    location = checkpoint or flow.checkpoint
    frame = transformed(read_rows(Reading(spark=spark, flow=flow, url=url, start=start, checkpoint=location)), flow)
    check_columns(frame, flow)
    if flow.dead_letters is not None:
        was_late = f.count_if(f.col(DEAD)["error"].startswith(REASON))
        frame = frame.observe(OBSERVED, f.count(DEAD).alias(OBSERVED_DEAD), was_late.alias(OBSERVED_LATE))
    writer = frame.writeStream.queryName(flow.name).option("checkpointLocation", location).outputMode(flow.output_mode)
    if flow.available_now if available_now is None else available_now:
        writer = writer.trigger(availableNow=True)
    elif flow.trigger is not None:
        writer = writer.trigger(processingTime=str(flow.trigger))
    listings = file_listings(frame)
    if not flow.targets:
        writer = flow.sinks[0].show(writer)
    else:
        plan = flow.plan(url, replaces).to_json()
        if flow.output_mode == "update":
            writer = writer.foreachBatch(Batches(plan, location))
        else:
            writer = writer.format(SINK_FORMAT).option("plan", plan)
    with state_on_disk(spark, flow.spark):
        started = writer.start()
    if listings:
        refresh_while_active(listings, started)
    return started


class Batches:
    """The function for foreachBatch. It holds plain values, because over Connect it is sent to the server."""

    def __init__(self, plan: str, checkpoint: str) -> None:
        self.plan = plan
        self.checkpoint = checkpoint
        self.run = uuid4().hex

    def __call__(self, frame: DataFrame, number: int) -> None:
        options = {"plan": self.plan, "checkpointLocation": self.checkpoint}
        if not hasattr(frame, "_jdf"):  # with Connect, only the checkpoint knows the query and the batch
            line = frame.sparkSession.read.text(f"{self.checkpoint}/metadata").head()
            assert line is not None
            options |= {"query": json.loads(line[0])["id"], "run": self.run, "batch": str(number)}
        frame.write.format(SINK_FORMAT).options(**options).mode("append").save()


def batch(spark: SparkSession, flow: Flow, url: str, start: str | None = None) -> DataFrame:
    """The same flow over the rows that exist now, with the result that the stream would have at its end."""
    reading = Reading(spark=spark, flow=flow, url=url, start=start, streaming=False)
    return transformed(read_rows(reading), flow).drop(CHANGE)


def explain(spark: SparkSession, flow: Flow, url: str) -> str:
    """The flow in words, the columns that it writes, and Spark's plan. Nothing is started."""
    frame = transformed(read_rows(Reading(spark=spark, flow=flow, url=url)), flow)
    check_columns(frame, flow)
    shown = [each for each in frame.schema.fields if each.name not in (CHANGE, DEAD)]
    columns = [f"  {each.name} {each.dataType.simpleString()}" for each in shown]
    plan = io.StringIO()
    with redirect_stdout(plan):
        frame.explain(mode="formatted")
    return "\n".join([*flow.words(), "columns", *columns, "", plan.getvalue().strip(), ""])


# -- rows from the source ----------------------------------------------------------------------------------------------


def read_rows(reading: Reading) -> DataFrame:
    """What the first step sees as `input`; with dead letters also `_dead`, which is null if a row fits. Late rows are
    recognized only if the checkpoint of the query is known.
    """
    with errors_at("source"):
        return _judged(reading.flow.source.read(reading), reading.flow)


def _judged(frame: DataFrame, flow: Flow) -> DataFrame:
    """Adds what is wrong with each row, or ends the query at the first one that does not fit."""
    from pyspark.sql import functions as f

    shown = [name for name in frame.columns if name not in (RECEIVED, CORRUPT, WATERMARK)]
    failed = _failed(frame, flow)
    tardy = is_late(frame, flow.late_rule) if WATERMARK in frame.columns and flow.late_rule is not None else None
    dropped = [] if tardy is None or flow.keeps_late else [tardy.alias(LATE)]
    if flow.dead_letters is None:
        if failed is not None:  # the first one ends the query
            fits = f.when(failed.isNull(), f.lit(True)).otherwise(
                f.raise_error(f.concat(f.lit("row_invalid: "), failed["error"]))
            )
            frame = frame.where(fits)
        return frame.select(*map(_column, shown), *dropped)
    own: Column | None = None
    if RECEIVED in frame.columns:
        own = _refusal(f.col(RECEIVED)["error"].isNotNull(), _DECODING, f.col(RECEIVED)["error"])
        about = [f.col(RECEIVED)[name].alias(name) for name in (*MESSAGE, "value")]
    else:
        about = [f.lit(None).cast(kind).alias(name) for name, kind in MESSAGE.items()]
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
    """What is wrong with a row, and the key of the file that says so; null if the row fits."""
    from pyspark.sql import functions as f

    return f.when(refused, f.struct(error.alias("error"), f.lit(rule).alias("rule")))


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col(quoted_name(name))


def _failed(frame: DataFrame, flow: Flow) -> Column | None:
    """The first expectation that a row fails, as a refusal; null if it meets all of them."""
    from pyspark.sql import functions as f

    found: list[Column] = []
    judged: Column = f.lit(True)
    if flow.deleting:  # a message that deletes need only have a key
        deletes = f.col(CHANGE)["deleted"]
        judged = ~deletes
        reason = f"expected a key that names {', '.join(flow.deleting)}, because the message has no payload"
        for name in flow.deleting:
            if name in frame.columns:
                found.append(_refusal(deletes & _column(name).isNull(), "sink.upsert.keys", f.lit(reason)))
    for at, text in enumerate(flow.source.expect):
        rule = f"source.expect[{at}]"
        with errors_at(f"{rule}: {text}"):
            unmet = judged & ~f.coalesce(_attempted(f.expr(text).cast("boolean")), f.lit(False))
            _ = frame.select(unmet).schema  # only this resolves its columns
        found.append(_refusal(unmet, rule, f.lit(f"expected {text}")))
    for name in flow.keys_as_read:
        if name in frame.columns:
            reason = f"expected a value in {name}, which is a key of the upsert"
            found.append(_refusal(judged & _column(name).isNull(), "sink.upsert.keys", f.lit(reason)))
    return f.coalesce(*found) if found else None


def _attempted(condition: Column) -> Column:
    """A condition that is null if evaluating it fails, for example by a division by zero or a cast.

    SQL has no general `try`. Of its functions that have one, `try_to_binary` covers everything below it.
    """
    from pyspark.sql import functions as f

    return f.try_to_binary(condition.cast("string"), f.lit("utf-8")) == f.lit(b"true")


# -- rows for the sinks ------------------------------------------------------------------------------------------------


def transformed(frame: DataFrame, flow: Flow) -> DataFrame:
    """The rows after all steps. If there are dead letters, `_dead` is the last column."""
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
    """Checks that the columns are those that the sinks need, before there is any row."""
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
    if not flow.targets:
        return
    for each in fields:
        if (kind := _unsupported(each.dataType)) is not None:
            raise FlowInvalid(
                f"sink: the column {each.name} has the type {kind}, which tables do not support; CAST it to another"
            )
    for path, sink in named_sinks(flow.sinks, None):
        for key, name in sink.columns:
            if name not in names:
                close = get_close_matches(name, names, 1, 0.5)
                end = f"did you mean {close[0]}?" if close else f"the columns are {', '.join(names)}"
                raise FlowInvalid(f"{path}.{key}: the column {name!r:.80} does not exist; {end[:400]}")


def _unsupported(kind: DataType) -> str | None:
    """The type, or one inside it, if no target supports it."""
    inner = [each.dataType for each in getattr(kind, "fields", ())]
    inner += [getattr(kind, name) for name in ("elementType", "keyType", "valueType") if hasattr(kind, name)]
    if inner:
        return next((found for each in inner if (found := _unsupported(each)) is not None), None)
    name = kind.simpleString()
    return name if name.startswith(_UNSUPPORTED) else None
