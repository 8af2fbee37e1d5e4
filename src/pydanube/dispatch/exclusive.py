"""Exclusive: one consumer receives everything, in order. A second consumer is refused."""

from __future__ import annotations

from collections.abc import Sequence

from pydanube.base.errors import ConsumerBusy
from pydanube.base.ids import ConsumerId
from pydanube.dispatch.ordered import Ordered


class Exclusive(Ordered):
    """When the consumer leaves, the next one receives everything it had not acknowledged, in order."""

    def _admit(self, consumer: ConsumerId, filters: Sequence[bytes]) -> None:
        holder = self._roster.first()
        if holder is not None:
            raise ConsumerBusy(
                f"the subscription is exclusive and already has consumer {holder.id}; "
                "failover, shared and key_shared subscriptions allow several"
            )
        super()._admit(consumer, filters)
