"""Options of subscriptions that do not exist yet: an operator may set them before the first consumer connects.

In a partitioned topic they stay as long as the subscription, because a partition may be added at any time. They are
deleted together with the subscription or the topic, through whichever face that happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from pydanube.base.errors import LimitReached
from pydanube.base.limits import GRPC_OPTIONS_PENDING_MAX, GRPC_UNACKED_DEFAULT, METADATA_OPERATIONS_MAX
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.dispatch.policy import DispatchSettings
from pydanube.metadata.records import RequestedChange
from pydanube.metadata.tables import PENDING_OPTIONS
from pydanube.ports.metadata import MetadataStore
from pydanube.storage.metadata.table import Table

DEFAULT = SubscriptionOptions(dispatch=DispatchSettings(unacked_max=GRPC_UNACKED_DEFAULT))


class PendingOptions:
    """The pending options of all subscriptions, in the metadata."""

    def __init__(self, store: MetadataStore) -> None:
        self._table = Table(store, PENDING_OPTIONS)

    def find(self, topic: str, subscription: str) -> SubscriptionOptions | None:
        found = self._table.get(_key(topic, subscription))
        return None if found is None else DEFAULT.changed(found)

    def get(self, topic: str, subscription: str) -> SubscriptionOptions:
        """The options that a new subscription gets."""
        return self.find(topic, subscription) or DEFAULT

    async def change(self, topic: str, subscription: str, changes: Mapping[str, Any]) -> None:
        await self.put(topic, subscription, self.get(topic, subscription).changed(changes))

    async def put(self, topic: str, subscription: str, options: SubscriptionOptions) -> None:
        self.check_room(topic, subscription)
        await self._table.write(_key(topic, subscription), options.stored())

    def check_room(self, topic: str, subscription: str) -> None:
        """Raises `LimitReached` if this would be one more subscription with pending options, and there are too many."""
        known = self._table.version(_key(topic, subscription))
        if not known and self._table.count() >= GRPC_OPTIONS_PENDING_MAX:
            raise LimitReached(
                f"the options of {GRPC_OPTIONS_PENDING_MAX} subscriptions are already waiting for their subscriptions"
            )

    async def forget(self, topic: str, subscription: str) -> None:
        """Called when the subscription was created. In the other partitions it may still be missing."""
        if parse_topic(topic).partition is None:
            await self.drop(topic, subscription)

    async def drop(self, topic: str, subscription: str) -> None:
        """Called when the subscription is deleted."""
        await self._table.write(_key(topic, subscription), None)

    async def dropped_with(self, topic: TopicName) -> list[RequestedChange]:
        """Changes for the transaction that deletes the topic, so that a later topic of this name does not get them.

        They fill at most half of it; what does not fit is deleted here and now.
        """
        changes = [self._table.put(key, None) for key in self._table.keys(_folder(str(topic)))]
        half = METADATA_OPERATIONS_MAX // 2
        for at in range(half, len(changes), half):
            await self._table.store.transact((), changes[at : at + half])
        return changes[:half]


def _key(topic: str, subscription: str) -> str:
    return f"{_folder(topic)}{_number(topic, subscription):016x}"


def _folder(topic: str) -> str:
    return f"{_number(topic, ''):016x}/"


def _number(topic: str, subscription: str) -> int:
    """A number for the pair. Names contain no zero bytes, so different pairs never hash the same text."""
    names = "\0".join(("options", str(parse_topic(topic).whole), subscription))
    return int.from_bytes(blake2b(names.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1
