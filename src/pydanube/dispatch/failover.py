"""Failover: one active consumer, the others stand by in the order they came and take over in that order."""

from __future__ import annotations

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.ordered import Ordered


class Failover(Ordered):
    """Who is promoted gets all that is not acknowledged, from the oldest on. Permits of a standby are kept for then."""

    @property
    def active(self) -> ConsumerId | None:
        first = self._roster.first()
        return None if first is None else first.id
