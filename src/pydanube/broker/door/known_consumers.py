"""The consumers that a broker remembers across restarts: some clients continue with their old id and never subscribe.

They are stored in the metadata. If there are too many, the one that subscribed longest ago is forgotten; connected ones
last.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace

from pydanube.base.limits import GRPC_CONSUMERS_REMEMBERED_MAX
from pydanube.metadata.tables import CONSUMERS, KnownConsumer, consumer_key
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Table


class KnownConsumers:
    """All remembered consumers by id, the one that subscribed longest ago first."""

    def __init__(self, store: MetadataStore) -> None:
        self._table = Table(store, CONSUMERS)
        found = [row.record for row in self._table.scan()]
        found.sort(key=lambda each: (each.turn, each.topic, each.subscription, each.name))
        self._turn = found[-1].turn if found else 0
        self._known = {consumer.id: consumer for consumer in found}

    def find(self, number: int) -> KnownConsumer | None:
        return self._known.get(number)

    async def remember(self, consumer: KnownConsumer, connected: Callable[[], Container[int]]) -> None:
        """Stores a consumer durably. `connected` returns the ids of those that are, and is called only if there are too
        many."""
        before = self._known.pop(consumer.id, None)
        self._known[consumer.id] = consumer
        if before != consumer:
            self._turn += 1
            await self._table.write(consumer_key(consumer.id), replace(consumer, turn=self._turn))
        while len(self._known) > GRPC_CONSUMERS_REMEMBERED_MAX:
            newest, used = next(reversed(self._known)), connected()
            await self.forget(next((each for each in self._known if each not in used), newest))

    async def forget(self, number: int) -> None:
        if self._known.pop(number, None) is not None:
            await self._table.write(consumer_key(number), None)
