"""Jobs that write exactly once: where they stage their rows, and committing what they have staged."""

from __future__ import annotations

from typing import ClassVar

from pydanube.access.rights import Action, sink_resource
from pydanube.base.limits import LISTED_MAX
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.operations.operation import Done
from pydanube.operations.sinks import (
    BeginSink,
    CommitSink,
    CommittedBatch,
    ForgetSink,
    ListSinks,
    Sink,
    Sinks,
    Staging,
    Verdict,
)
from pydanube.topic.sinks import Once, SinkKey, SinkRecord, SinkRequest


class SinkVerbs(Verbs):
    __slots__ = ()

    async def begin(self, request: BeginSink) -> Staging:
        """The topic to stage in, and the last batch that was committed."""
        self._ask(Action.SINK_WRITE, sink_resource(request.target))
        staging, last = await self._door.sinks.begin(_key(request))
        return Staging(staging, None if last is None else CommittedBatch(*self._last(last)))

    async def commit(self, request: CommitSink) -> Verdict:
        """Answers when the rows are written and visible. The caller must be allowed to publish to all their topics."""
        self._ask(Action.SINK_WRITE, sink_resource(request.target))
        wanted = SinkRequest(Once(request.once), request.run, request.batch, request.source, request.decision)
        verdict = await self._door.sinks.commit(self._principal, _key(request), wanted)
        return Verdict(verdict.value)

    async def list_page(self, request: ListSinks) -> Sinks:
        """The writers. Those whose last batch cannot be written and needs attention have the reason."""
        self._ask(Action.SINK_LIST)
        found = self._door.sinks.listed(request.after, min(request.limit, LISTED_MAX) + 1)
        return Sinks(*page([self._described(each) for each in found], request.limit))

    def _described(self, record: SinkRecord) -> Sink:
        key, blocked = record.key, self._door.sinks.blocked(record.key)
        error = None if blocked is None else str(blocked)
        return Sink(key.query, key.target, key.name, *self._last(record), error, key.digest)

    def _last(self, record: SinkRecord) -> tuple[int, str, str, bool]:
        return record.batch, record.run, record.source, self._door.sinks.is_written(record)

    async def forget(self, request: ForgetSink) -> Done:
        """Forgets a writer that is no longer used, or that may start over; see `Sinks.forget`."""
        self._ask(Action.SINK_FORGET, sink_resource(request.target))
        await self._door.sinks.forget(self._principal, _key(request), abandon=request.abandon)
        return Done()

    carries_out: ClassVar = (
        BeginSink.carried_out_by(begin),
        CommitSink.carried_out_by(commit),
        ListSinks.carried_out_by(list_page),
        ForgetSink.carried_out_by(forget),
    )


def _key(request: BeginSink | CommitSink | ForgetSink) -> SinkKey:
    return SinkKey(request.query, request.target, request.name)
