"""Options of subscriptions that do not exist yet: an operator may set them before the first consumer connects.

In a partitioned topic they stay as long as the subscription, because a partition may be added at any time. They are
deleted together with the subscription or the topic, through whichever face that happens.
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
    """The pending options of all subscriptions, stored as notes with the metadata."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def find(self, topic: str, subscription: str) -> SubscriptionOptions | None:
        text = self._notes.get(_name(topic, subscription))
        return None if text is None else DEFAULT.changed(json.loads(text))

    def get(self, topic: str, subscription: str) -> SubscriptionOptions:
        """The options that a new subscription gets."""
        return self.find(topic, subscription) or DEFAULT

    async def change(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        await self.put(topic, subscription, self.get(topic, subscription).changed(changes))

    async def put(self, topic: str, subscription: str, options: SubscriptionOptions) -> None:
        self.check_room(topic, subscription)
        await self._notes.put(_name(topic, subscription), options.encode())

    def check_room(self, topic: str, subscription: str) -> None:
        """Raises `LimitReached` if this would be one more subscription with pending options, and there are too many."""
        known = self._notes.get(_name(topic, subscription)) is not None
        if not known and len(self._notes.all(_PREFIX)) >= GRPC_OPTIONS_PENDING_MAX:
            raise LimitReached(
                f"the options of {GRPC_OPTIONS_PENDING_MAX} subscriptions are already waiting for their subscriptions"
            )

    async def forget(self, topic: str, subscription: str) -> None:
        """Called when the subscription was created. In the other partitions it may still be missing."""
        if parse_topic(topic).partition is None:
            await self._notes.put(_name(topic, subscription), None)

    async def drop(self, topic: str, subscription: str) -> None:
        """Called when the subscription is deleted."""
        await self._notes.put(_name(topic, subscription), None)

    async def dropped_with(self, topic: TopicName) -> list[tuple[str, None]]:
        """Changes for the transaction that deletes the topic, so that a later topic of this name does not get them.

        What does not fit in a transaction is deleted here and now.
        """
        return await self._notes.dropped_with(_folder(str(topic)))


def _name(topic: str, subscription: str) -> str:
    return f"{_folder(topic)}{_number(topic, subscription):016x}"


def _folder(topic: str) -> str:
    return f"{_PREFIX}{_number(topic, ''):016x}/"


def _number(topic: str, subscription: str) -> int:
    """A number for the pair. Names contain no zero bytes, so different pairs never hash the same text."""
    names = "\0".join(("options", str(parse_topic(topic).whole), subscription))
    return int.from_bytes(blake2b(names.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
