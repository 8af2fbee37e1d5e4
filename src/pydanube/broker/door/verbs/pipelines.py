"""Pipelines that report to this broker: what their runners report and store, and what callers can ask and order."""

from __future__ import annotations

from itertools import islice
from typing import ClassVar, get_args

from pydanube.access.rights import Action, pipeline_resource
from pydanube.base.errors import PipelineLimitReached, PipelineNotFound
from pydanube.base.limits import LISTED_MAX, PIPELINES_MAX
from pydanube.base.names import check_pipeline
from pydanube.broker.door.pipeline_reports import read_report
from pydanube.broker.door.pipelines import Line, Order, What
from pydanube.broker.door.pipelines import Pipeline as KnownPipeline
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.metadata.tables import PIPELINE_RECORDS
from pydanube.operations.operation import Done
from pydanube.operations.pipelines import (
    DescribePipeline,
    ForgetPipeline,
    KeepPipelineRecord,
    ListPipelines,
    LogLine,
    OrderPipeline,
    Pipeline,
    PipelineLogs,
    PipelineOrder,
    PipelineRecord,
    Pipelines,
    ReadPipelineLogs,
    RecordPart,
    ReportPipeline,
)
from pydanube.storage.metadata.table import Table


class PipelineVerbs(Verbs):
    __slots__ = ()

    @property
    def _records(self) -> Table[str]:
        return Table(self._door.directory.store, PIPELINE_RECORDS)

    def _ask_about(self, action: Action, name: str) -> str:
        self._ask(action, pipeline_resource(check_pipeline(name)))
        return name

    async def report(self, request: ReportPipeline) -> PipelineOrder:
        """Takes a report, which a runner sends about every two seconds; the answer may carry an order."""
        name = self._ask_about(Action.PIPELINE_REPORT, request.pipeline)
        return _ordered(self._door.pipelines.report(name, read_report(request)))

    async def list_page(self, request: ListPipelines) -> Pipelines:
        """All pipelines, sorted by name, including those that ended within the last day."""
        self._ask(Action.PIPELINE_LIST)
        found = (each for each in self._door.pipelines.listed() if each.name > request.after)
        return Pipelines(*page([self._described(each) for each in islice(found, LISTED_MAX + 1)], request.limit))

    async def describe(self, request: DescribePipeline) -> Pipeline:
        name = self._ask_about(Action.PIPELINE_DESCRIBE, request.pipeline)
        return self._described(self._door.pipelines.get(name))

    def _described(self, known: KnownPipeline) -> Pipeline:
        report = known.report
        return Pipeline(
            pipeline=known.name,
            run=report.run,
            state=known.state(self._door.pipelines.now).value,
            cause=report.cause,
            reported=known.reported,
            order=_ordered(known.order).order,
            info=dict(report.info),
            progress=dict(report.progress),
        )

    async def logs(self, request: ReadPipelineLogs) -> PipelineLogs:
        """The log lines after the given sequence number; without one, all that are kept."""
        name, pipelines = self._ask_about(Action.PIPELINE_DESCRIBE, request.pipeline), self._door.pipelines
        known = pipelines.get(name)
        lines = (_line(each) for each in known.lines if each.sequence > request.after)
        rows, more = page(list(islice(lines, LISTED_MAX + 1)), request.limit)
        return PipelineLogs(name, known.state(pipelines.now).value, rows, more)

    async def order(self, request: OrderPipeline) -> Pipeline:
        """Orders a stop or a restart, which the runner gets with its next report; answers with the present state."""
        name = self._ask_about(Action.PIPELINE_ORDER, request.pipeline)
        return self._described(self._door.pipelines.order(name, What(request.order)))

    async def forget(self, request: ForgetPipeline) -> Done:
        """Removes a pipeline that is not running from the list. Its records stay, as a checkpoint in a folder does:
        which generation of its checkpoint counts, and which dead letters were redriven. With `records`, they are
        deleted too.
        """
        name = self._ask_about(Action.PIPELINE_FORGET, request.pipeline)
        kept = list[str]()
        if request.records:
            kept = [key for part in get_args(RecordPart) for key in self._records.keys(f"{part}/{name}/")]
        try:
            self._door.pipelines.forget(name)
        except PipelineNotFound:
            if not kept:
                raise
        await self._door.errands.run(self._drop(kept))
        return Done()

    async def _drop(self, keys: list[str]) -> None:
        for key in keys:
            await self._records.write(key, None)

    async def keep_record(self, request: KeepPipelineRecord) -> PipelineRecord:
        """Reads or writes a page of a record that a pipeline keeps here because only Spark can write to its checkpoint.

        With `before`, the text is written only if the stored one is still `before`; the answer has the stored text.
        """
        name, part, number = self._ask_about(Action.PIPELINE_REPORT, request.pipeline), request.part, request.page or 0
        key, text, before = f"{part}/{name}/{number}", request.record, request.before
        if text is not None:
            known = {each.split("/")[1] for each in self._records.keys(f"{part}/")}
            if name not in known and len(known) >= PIPELINES_MAX:
                raise PipelineLimitReached(
                    f"{len(known)} pipelines already have a record on this broker; "
                    "remove one with `danube pipeline forget --records`"
                )
            await self._records.update(key, lambda now: text if before in (None, now or "") else now)
        return PipelineRecord(name, self._records.get(key))

    carries_out: ClassVar = (
        ReportPipeline.carried_out_by(report),
        ListPipelines.carried_out_by(list_page),
        DescribePipeline.carried_out_by(describe),
        ReadPipelineLogs.carried_out_by(logs),
        OrderPipeline.carried_out_by(order),
        ForgetPipeline.carried_out_by(forget),
        KeepPipelineRecord.carried_out_by(keep_record),
    )


def _ordered(order: Order | None) -> PipelineOrder:
    return PipelineOrder("none", 0) if order is None else PipelineOrder(order.what.value, order.number)


def _line(line: Line) -> LogLine:
    return LogLine(line.sequence, line.time, line.text.decode("utf-8"))
