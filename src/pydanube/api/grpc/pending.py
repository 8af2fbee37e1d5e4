"""Options for subscriptions that are not there yet: an operator may set them before the first consumer comes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydanube.api.grpc.ids import options_id
from pydanube.base.errors import LimitReached
from pydanube.base.limits import GRPC_OPTIONS_PENDING_MAX, GRPC_UNACKED_DEFAULT
from pydanube.base.names import parse_topic
from pydanube.broker.notes import Notes
from pydanube.broker.options import SubscriptionOptions
from pydanube.dispatch.policy import DispatchSettings

_PREFIX = "grpc/options/"
DEFAULT = SubscriptionOptions(dispatch=DispatchSettings(unacked_max=GRPC_UNACKED_DEFAULT))


class PendingOptions:
    """Kept as notes with the metadata, until the subscription is made."""

    def __init__(self, notes: Notes) -> None:
        self._notes = notes

    def find(self, topic: str, subscription: str) -> SubscriptionOptions | None:
        text = self._notes.get(_name(topic, subscription))
        return None if text is None else DEFAULT.changed(json.loads(text))

    def get(self, topic: str, subscription: str) -> SubscriptionOptions:
        """What a new one is made with."""
        return self.find(topic, subscription) or DEFAULT

    async def change(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        name = _name(topic, subscription)
        options = self.get(topic, subscription).changed(changes)
        if self._notes.get(name) is None and len(self._notes.all(_PREFIX)) >= GRPC_OPTIONS_PENDING_MAX:
            raise LimitReached(f"options of {GRPC_OPTIONS_PENDING_MAX} subscriptions that are not there")
        await self._notes.put(name, options.encode())

    async def forget(self, topic: str, subscription: str) -> None:
        """It is made; in the other partitions it may still be to come."""
        if parse_topic(topic).partition is None:
            await self._notes.put(_name(topic, subscription), None)


def _name(topic: str, subscription: str) -> str:
    return f"{_PREFIX}{options_id(str(parse_topic(topic).whole), subscription):016x}"
