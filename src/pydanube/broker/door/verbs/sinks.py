"""Jobs that write exactly once: where they stage their rows, and committing what they have staged."""

from __future__ import annotations

from pydanube.access.rights import Action, sink_resource
from pydanube.base.errors import SinkBlocked
from pydanube.broker.door.verbs.base import Verbs
from pydanube.topic.sinks import Request, SinkKey, SinkRecord, Verdict


class SinkVerbs(Verbs):
    __slots__ = ()

    async def begin(self, key: SinkKey) -> tuple[str, SinkRecord | None]:
        """Where the writer stages its rows, and the last batch that it committed."""
        self._ask(Action.SINK_WRITE, sink_resource(key.target))
        return await self._door.sinks.begin(key)

    async def commit(self, key: SinkKey, request: Request) -> Verdict:
        """Returns when the rows are written and visible. The caller must be allowed to publish to all their topics."""
        self._ask(Action.SINK_WRITE, sink_resource(key.target))
        return await self._door.sinks.commit(self._principal, key, request)

    def listed(self, limit: int) -> list[tuple[SinkRecord, SinkBlocked | None]]:
        """The writers, those first whose last batch cannot be written and needs attention, with the reason."""
        self._ask(Action.SINK_LIST)
        sinks = self._door.sinks
        return [(each, sinks.blocked(each.key)) for each in sinks.listed(limit)]

    async def forget(self, key: SinkKey, *, abandon: bool = False) -> None:
        """Forgets a writer that is no longer used, or that may start over; see `Sinks.forget`."""
        self._ask(Action.SINK_FORGET, sink_resource(key.target))
        await self._door.sinks.forget(key, abandon=abandon)
