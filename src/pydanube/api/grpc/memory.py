"""The consumers that a broker remembers across restarts: some clients continue with their old id and never subscribe.

They are stored as notes with the metadata. If there are too many, the one that subscribed longest ago is forgotten;
connected ones last.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass

from pydanube.api.grpc.ids import consumer_id
from pydanube.base.limits import GRPC_CONSUMERS_REMEMBERED_MAX
from pydanube.broker.door.values import Notes
from pydanube.topic.records import SubscriptionKind

_PREFIX = "grpc/consumers/"


@dataclass(frozen=True, slots=True)
class KnownConsumer:
    """Everything needed to resume a consumer."""

    topic: str
    subscription: str
    name: str
    kind: SubscriptionKind  # that it asked for; if the subscription exists, its own type counts
    filters: tuple[str, ...] = ()

    @property
    def id(self) -> int:
        return consumer_id(self.topic, self.subscription, self.name)


class Memory:
    """All remembered consumers by id, the one that subscribed longest ago first."""

    def __init__(self, notes: Notes, connected: Callable[[], Container[int]]) -> None:
        self._notes = notes
        self._connected = connected  # the ids of those that are
        found = [json.loads(text) for text in notes.all(_PREFIX).values()]
        found.sort(key=lambda each: (each["turn"], each["topic"], each["subscription"], each["name"]))
        self._turn = found[-1]["turn"] if found else 0
        self._known = {consumer.id: consumer for consumer in map(_decoded, found)}

    def find(self, number: int) -> KnownConsumer | None:
        return self._known.get(number)

    async def remember(self, consumer: KnownConsumer) -> None:
        """Stores a consumer durably."""
        before = self._known.pop(consumer.id, None)
        self._known[consumer.id] = consumer
        if before != consumer:
            self._turn += 1
            text = json.dumps(asdict(consumer) | {"turn": self._turn}, separators=(",", ":"))
            await self._notes.put(_name(consumer.id), text.encode())
        while len(self._known) > GRPC_CONSUMERS_REMEMBERED_MAX:
            newest, connected = next(reversed(self._known)), self._connected()
            await self.forget(next((each for each in self._known if each not in connected), newest))

    async def forget(self, number: int) -> None:
        if self._known.pop(number, None) is not None:
            await self._notes.put(_name(number), None)


def _decoded(found: dict[str, object]) -> KnownConsumer:
    kind, filters = found["kind"], found["filters"]
    assert isinstance(kind, int)
    assert isinstance(filters, list)
    topic, subscription, name = (str(found[field]) for field in ("topic", "subscription", "name"))
    return KnownConsumer(topic, subscription, name, SubscriptionKind(kind), tuple(filters))


def _name(number: int) -> str:
    return f"{_PREFIX}{number:016x}"
