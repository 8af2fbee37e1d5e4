"""Options for subscriptions that are not there yet: an operator may set them before the first consumer comes.

Of a topic with partitions they stay for as long as the subscription does: a partition may be added at any time. They go
with the subscription and with the topic, through whichever face it is deleted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydanube.base.errors import LimitReached
from pydanube.base.limits import GRPC_OPTIONS_PENDING_MAX, GRPC_UNACKED_DEFAULT
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory.notes import Notes
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.dispatch.policy import DispatchSettings

_PREFIX = "grpc/options/"
DEFAULT = SubscriptionOptions(dispatch=DispatchSettings(unacked_max=GRPC_UNACKED_DEFAULT))


class PendingOptions:
    """Kept as notes with the metadata."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def find(self, topic: str, subscription: str) -> SubscriptionOptions | None:
        text = self._notes.get(_name(topic, subscription))
        return None if text is None else DEFAULT.changed(json.loads(text))

    def get(self, topic: str, subscription: str) -> SubscriptionOptions:
        """What a new one is made with."""
        return self.find(topic, subscription) or DEFAULT

    async def change(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        await self.put(topic, subscription, self.get(topic, subscription).changed(changes))

    async def put(self, topic: str, subscription: str, options: SubscriptionOptions) -> None:
        self.check_room(topic, subscription)
        await self._notes.put(_name(topic, subscription), options.encode())

    def check_room(self, topic: str, subscription: str) -> None:
        """That there may be options of one more, unless it has some already."""
        known = self._notes.get(_name(topic, subscription)) is not None
        if not known and len(self._notes.all(_PREFIX)) >= GRPC_OPTIONS_PENDING_MAX:
            raise LimitReached(
                f"the options of {GRPC_OPTIONS_PENDING_MAX} subscriptions are already waiting for their subscriptions"
            )

    async def forget(self, topic: str, subscription: str) -> None:
        """It is made; in the other partitions it may still be to come."""
        if parse_topic(topic).partition is None:
            await self._notes.put(_name(topic, subscription), None)

    async def drop(self, topic: str, subscription: str) -> None:
        """It is deleted."""
        await self._notes.put(_name(topic, subscription), None)

    async def dropped_with(self, topic: TopicName) -> list[tuple[str, None]]:
        """What goes in one transaction with the topic, which is about to be deleted: another may have its name one day.

        If that is more than a transaction holds, the rest goes now.
        """
        return await self._notes.dropped_with(_folder(str(topic)))


def _name(topic: str, subscription: str) -> str:
    return f"{_folder(topic)}{_number(topic, subscription):016x}"


def _folder(topic: str) -> str:
    return f"{_PREFIX}{_number(topic, ''):016x}/"


def _number(topic: str, subscription: str) -> int:
    """Names have no zero bytes, so no two lists of them look alike."""
    names = "\0".join(("options", str(parse_topic(topic).whole), subscription))
    return int.from_bytes(blake2b(names.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
