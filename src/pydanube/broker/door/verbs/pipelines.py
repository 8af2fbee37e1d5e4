"""Pipelines that report to this broker: what their runners report and store, and what callers can ask and order."""

from __future__ import annotations

from pydanube.access.rights import Action, pipeline_resource
from pydanube.base.errors import PipelineLimitReached, PipelineNotFound
from pydanube.base.limits import PIPELINES_MAX
from pydanube.broker.door.pipelines import Order, Pipeline, Report, What
from pydanube.broker.door.verbs.base import Verbs

PARTS = ("checkpoint", "redriven", "redriving")  # of a record: which checkpoint counts, and its redriven dead letters
_RECORDS = "pipelines/"  # the prefix of their names among the notes


class PipelineVerbs(Verbs):
    __slots__ = ()

    @property
    def now(self) -> float:
        """The time that `Pipeline.state` takes."""
        return self._door.pipelines.now

    def report(self, name: str, report: Report) -> Order | None:
        """Takes a report; returns the order for the runner, if there is one."""
        self._ask(Action.PIPELINE_REPORT, pipeline_resource(name))
        return self._door.pipelines.report(name, report)

    def listed(self) -> list[Pipeline]:
        """All pipelines, sorted by name."""
        self._ask(Action.PIPELINE_LIST)
        return self._door.pipelines.listed()

    def get(self, name: str) -> Pipeline:
        self._ask(Action.PIPELINE_DESCRIBE, pipeline_resource(name))
        return self._door.pipelines.get(name)

    def order(self, name: str, what: What) -> Pipeline:
        """The runner gets the order in answer to its next report. A later order replaces it."""
        self._ask(Action.PIPELINE_ORDER, pipeline_resource(name))
        return self._door.pipelines.order(name, what)

    async def forget(self, name: str, *, records: bool) -> None:
        """Removes a pipeline that is not running from the list. Its records stay, as a checkpoint in a folder does:
        which generation of its checkpoint counts, and which dead letters were redriven. With `records`, they are
        deleted too.
        """
        self._ask(Action.PIPELINE_FORGET, pipeline_resource(name))
        notes, kept = self._door.notes, list[str]()
        if records:
            kept = [key for part in PARTS for key in notes.all(f"{_RECORDS}{part}/{name}/")]
        try:
            self._door.pipelines.forget(name)
        except PipelineNotFound:
            if not kept:
                raise
        await self._door.errands.run(self._drop(kept))

    async def _drop(self, keys: list[str]) -> None:
        for key in keys:
            await self._door.notes.put(key, None)

    async def record(self, name: str, part: str, page: int, text: str | None, before: str | None) -> str | None:
        """Writes `text` to a record that the pipeline keeps here because only Spark can write to its checkpoint, and
        returns the stored text.

        With `before`, it is written only if the stored text is still `before`.
        """
        self._ask(Action.PIPELINE_REPORT, pipeline_resource(name))
        notes, key = self._door.notes, f"{_RECORDS}{part}/{name}/{page}"
        if text is not None:
            known = {each.split("/")[2] for each in notes.all(f"{_RECORDS}{part}/")}
            if name not in known and len(known) >= PIPELINES_MAX:
                raise PipelineLimitReached(
                    f"{len(known)} pipelines already have a record on this broker; "
                    "remove one with `danube pipeline forget --records`"
                )
            if before is None:
                await notes.put(key, text.encode())
            else:
                await notes.swap(key, before.encode() or None, text.encode())
        kept = notes.get(key)
        return None if kept is None else kept.decode()
