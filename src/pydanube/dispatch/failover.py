"""Failover: one consumer is active; the others stand by, and take over in the order they joined."""

from __future__ import annotations

from pydanube.base.ids import ConsumerId
from pydanube.dispatch.ordered import Ordered


class Failover(Ordered):
    """A promoted consumer receives everything unacknowledged, oldest first. A standby keeps its permits until then."""

    @property
    def active(self) -> ConsumerId | None:
        first = self._roster.first()
        return None if first is None else first.id
