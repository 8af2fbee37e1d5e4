"""Operations on pipelines: reports of their runners, and what people ask about them or order them to do."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, field

from pydanube.base.limits import LISTED_MAX, OFFSET_MAX, PIPELINE_RECORD_PAGES
from pydanube.operations.fields import After, Limit, Order, OrderName, PipelineState, ReportedState
from pydanube.operations.operation import Answer, Done, Request, operation

Count = Annotated[int, Meta(ge=0, le=OFFSET_MAX)]
RecordPart = Literal["checkpoint", "redriven", "redriving"]  # which checkpoint counts, and redriven dead letters
Numbers = dict[str, int | float | None]  # whole numbers stay whole


class PipelineOrder(Answer):
    order: OrderName
    number: Annotated[int, Meta(description="repeat it as `taken` once the order is obeyed")]


class Reported(PipelineOrder):
    """What a client makes of the answer to a report. The order is repeated until its number is reported as `taken`."""

    lines: Annotated[int, Meta(description="how many lines were sent; the others belong in the next report")]


class Pipeline(Answer):
    pipeline: str
    run: Annotated[str, Meta(description="id of the run")]
    state: PipelineState
    cause: Annotated[str | None, Meta(description="why it failed or is retried")]
    reported: Annotated[int, Meta(description="when it last reported, in microseconds since 1970")]
    order: Annotated[OrderName, Meta(description="what it was ordered to do and has not done yet")]
    info: Annotated[dict[str, Any], Meta(description="facts of the run: host, master, source, sinks and others")]
    progress: Annotated[Numbers, Meta(description="numbers of the last batch")]


class Pipelines(Answer):
    pipelines: list[Pipeline]
    more: bool


class LogLine(Answer):
    sequence: Annotated[int, Meta(description="number of the line")]
    time: Annotated[int, Meta(description="microseconds since 1970")]
    text: str


class PipelineLogs(Answer):
    pipeline: str
    state: PipelineState
    lines: list[LogLine]
    more: bool


class PipelineRecord(Answer):
    pipeline: str
    record: str | None


@operation("pipeline.report", "Report the progress of a pipeline", changes=True)
class ReportPipeline(Request[PipelineOrder]):
    pipeline: str
    run: str
    info: dict[str, Any]
    state: Annotated[ReportedState, Meta(description="state of the run")]
    cause: str | None = None
    progress: Numbers = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    first_line: Count | None = None
    taken: Count | None = None
    replaces: str | None = None


@operation("pipeline.list", "List pipelines by name")
class ListPipelines(Request[Pipelines]):
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("pipeline.status", "Describe a pipeline and its progress")
class DescribePipeline(Request[Pipeline]):
    pipeline: str


@operation("pipeline.logs", "Get the last log lines of a pipeline")
class ReadPipelineLogs(Request[PipelineLogs]):
    pipeline: str
    after: Annotated[int, Meta(ge=0, description="lines after the one with this sequence number")] = 0
    limit: Limit = LISTED_MAX


@operation("pipeline.order", "Stop or restart a pipeline", changes=True)
class OrderPipeline(Request[Pipeline]):
    pipeline: str
    order: Annotated[Order, Meta(description="what the pipeline is to do")]


@operation("pipeline.forget", "Forget a pipeline that is not running", changes=True)
class ForgetPipeline(Request[Done]):
    pipeline: str
    records: Annotated[
        bool, Meta(description="also delete what the broker stores about its checkpoint and dead letters")
    ] = False


@operation("pipeline.record", "Read or write what a pipeline stores about itself", changes=True)
class KeepPipelineRecord(Request[PipelineRecord]):
    pipeline: str
    part: Annotated[RecordPart, Meta(description="which of its records")] = "checkpoint"
    page: Annotated[int, Meta(ge=0, le=PIPELINE_RECORD_PAGES - 1)] | None = None
    record: str | None = None
    before: str | None = None
