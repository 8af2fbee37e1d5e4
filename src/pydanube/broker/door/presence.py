"""Who is connected, and how the broker is as a whole: for people who look. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import count, dropwhile, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from pydanube.base.limits import METRIC_SLICE, NODE_LEDGERS_MAX, NODE_LEDGERS_RESERVED
from pydanube.broker.serving.open_topic import ConsumerHold, Opened
from pydanube.broker.subscription.host import SubscriptionHost
from pydanube.broker.topic.topic import Topic
from pydanube.dispatch.explain import Cause as Why
from pydanube.storage.guard import Guard

if TYPE_CHECKING:
    from pydanube.broker.door.service import Service


class Connection(NamedTuple):
    """One that is open. Numbers ascend in the order of connecting."""

    number: int
    address: str  # host:port of the peer
    protocol: str | None  # native, grpc or http; None until it has said
    client: str  # what it calls itself
    since: int  # microseconds since 1970
    producers: int | None  # None where they do not belong to a connection
    consumers: int | None


class Member(NamedTuple):
    """One consumer of a subscription, with all the partitions that it has joined."""

    name: str
    address: str
    consumers: list[int]  # its number in each of the partitions
    partitions: list[int]  # none if the topic has none
    active: bool  # else it only waits to take over
    active_partitions: list[int]
    in_flight: int


class Presence:
    """Of one broker. Listeners enter how to list theirs."""

    def __init__(self, started: int) -> None:
        self.started = started  # microseconds since 1970
        self.numbers = count(1)
        self.listed: list[Callable[[], Iterable[Connection]]] = []
        self.guards: list[Guard] = []  # of all that goes on in the background

    def connections(self, after: int, limit: int) -> list[Connection]:
        """The next behind that number."""
        found = merge(*(each() for each in self.listed), key=lambda each: each.number)
        return list(islice(dropwhile(lambda each: each.number <= after, found), limit))


def members_of(places: Sequence[Opened], subscription: str) -> list[Member]:
    """By the order in which they came to the first partition. Those of one name and address are one member."""
    found: dict[tuple[str, str], list[ConsumerHold]] = {}
    for each in places:
        for hold in each.consumers.values():
            if each.topic.subscriptions.get(subscription) is hold.host:
                found.setdefault((hold.consumer.name, hold.address), []).append(hold)
    return [_member(name, address, holds) for (name, address), holds in found.items()]


def _member(name: str, address: str, holds: Sequence[ConsumerHold]) -> Member:
    active = [hold for hold in holds if _is_active(hold)]
    return Member(
        name,
        address,
        [hold.consumer.id for hold in holds],
        [number for hold in holds if (number := hold.open.name.partition) is not None],
        bool(active),
        [number for hold in active if (number := hold.open.name.partition) is not None],
        sum(map(_in_flight, holds)),
    )


def _is_active(hold: ConsumerHold) -> bool:
    host = hold.host
    if not isinstance(host, SubscriptionHost):
        return True
    return host.engine.explain_consumer(hold.consumer.id, host.now).cause is not Why.STANDBY


def _in_flight(hold: ConsumerHold) -> int:
    if not isinstance(hold.host, SubscriptionHost):
        return 0
    return sum(last - first + 1 for first, last in hold.host.engine.held(hold.consumer.id))


async def status_of(service: Service) -> dict[str, Any]:
    """Sums over what is open. Counters are since topics were opened; who asks twice has rates."""
    names = ("producers", "consumers", "subscriptions", "messages_in", "messages_out", "stored_bytes", "backlog")
    sums = dict.fromkeys(names, 0)
    opened = service.opened()
    for number, each in enumerate(opened, 1):
        topic = each.topic
        sums["producers"] += len(each.producers)
        sums["consumers"] += len(each.consumers)
        sums["messages_in"] += topic.inbound.messages
        end = topic.ledger.confirmed_end if isinstance(topic, Topic) else 0
        sums["stored_bytes"] += topic.ledger.stream.bytes if isinstance(topic, Topic) else 0
        for host in topic.subscriptions.values():
            sums["subscriptions"] += 1
            sums["messages_out"] += host.outbound.messages
            if isinstance(host, SubscriptionHost):
                cursor = host.known.cursor
                sums["backlog"] += max(0, end - cursor.floor - cursor.above.count)
        if not number % METRIC_SLICE:
            await asyncio.sleep(0)  # the others of the loop first
    room, limited = service.room, bool(service.room.reserve_bytes)
    return {
        "started": service.presence.started,
        "now": service.clock.wall(),
        "topics": len(opened),
        "connections": sum(1 for each in service.presence.listed for _ in each()),
        **sums,
        "disk_free_bytes": room.bytes if limited else None,
        "disk_reserve_bytes": room.reserve_bytes if limited else None,
        "publishing_refused": room.short,
        "ledgers": room.ledgers(),
        "ledgers_max": NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED,
    }
