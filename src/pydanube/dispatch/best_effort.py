"""Delivery on best-effort topics: at most once. A consumer without permits loses messages, and the losses are counted.

It only knows who is connected and whose turn it is: nothing is queued, sent again or acknowledged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydanube.base.errors import ConsumerBusy
from pydanube.base.ids import ConsumerId
from pydanube.dispatch.engine import refuse_filters
from pydanube.dispatch.events import Deliver, Run
from pydanube.dispatch.ring import Filters, Ring
from pydanube.dispatch.roster import Member, Roster
from pydanube.topic.records import SubscriptionKind


class Routed(NamedTuple):
    """Where the messages of a run go, and how many of them are dropped."""

    deliveries: list[Deliver]
    dropped: int


class BestEffort:
    """One subscription of a best-effort topic."""

    def __init__(self, kind: SubscriptionKind) -> None:
        self.kind = kind
        self._roster: Roster[Member] = Roster()
        self._ring = Ring()
        self._lost: dict[ConsumerId, int] = {}

    def join(self, consumer: ConsumerId, *, filters: Sequence[bytes] = ()) -> None:
        if self._roster.find(consumer) is not None:
            return
        if self.kind is SubscriptionKind.EXCLUSIVE and self._roster:
            raise ConsumerBusy(
                "the subscription is exclusive and already has a consumer; "
                "failover, shared and key_shared subscriptions allow several"
            )
        self._roster.check_room()
        if self.kind is SubscriptionKind.KEY_SHARED:
            self._ring.join(consumer, Filters(filters))
        else:
            refuse_filters(filters)
        self._roster.add(Member(consumer))

    @property
    def key_bytes_at_once(self) -> int:
        return self._ring.key_bytes_at_once

    def leave(self, consumer: ConsumerId) -> None:
        self._roster.remove(consumer)
        self._lost.pop(consumer, None)
        self._ring.leave(consumer)

    def grant(self, consumer: ConsumerId, permits: int) -> None:
        self._roster.grant(consumer, permits)

    def lost(self, consumer: ConsumerId) -> int:
        """How many messages the consumer missed because it had no permits. On Shared they belong to no consumer."""
        return self._lost.get(consumer, 0)

    def route(self, run: Run) -> Routed:
        """Decides for every message of the run at once. Key-Shared needs its keys."""
        if self.kind is SubscriptionKind.KEY_SHARED:
            deliveries = self._by_key(run)
        elif self.kind is SubscriptionKind.SHARED:
            deliveries = self._split(run)
        else:
            deliveries = self._to_active(run)
        delivered = sum([last - first + 1 for _, first, last, _ in deliveries])
        return Routed(deliveries, run.last - run.first + 1 - delivered)

    def _to_active(self, run: Run) -> list[Deliver]:
        active = self._roster.first()
        if active is None:
            return []
        count = min(active.permits, run.last - run.first + 1)
        self._lose(active, run.last - run.first + 1 - count)
        if not count:
            return []
        self._roster.spend(active, count)
        return [Deliver(active.id, run.first, run.first + count - 1, 0)]

    def _split(self, run: Run) -> list[Deliver]:
        deliveries, first = [], run.first
        for member, share in self._roster.shares(run.last - run.first + 1):
            self._roster.spend(member, share)
            deliveries.append(Deliver(member.id, first, first + share - 1, 0))
            first += share
        return deliveries

    def _by_key(self, run: Run) -> list[Deliver]:
        assert run.keys is not None
        deliveries: list[Deliver] = []
        for offset, key in zip(range(run.first, run.last + 1), run.keys, strict=True):
            owner = self._ring.owner(key)
            member = None if owner is None else self._roster.find(owner)
            if member is None:
                continue
            if not member.permits:
                self._lose(member, 1)
                continue
            self._roster.spend(member, 1)
            if deliveries and deliveries[-1].consumer == owner and deliveries[-1].last == offset - 1:
                deliveries[-1] = deliveries[-1]._replace(last=offset)
            else:
                deliveries.append(Deliver(member.id, offset, offset, 0))
        return deliveries

    def _lose(self, member: Member, count: int) -> None:
        if count:
            self._lost[member.id] = self.lost(member.id) + count
