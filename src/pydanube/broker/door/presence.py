"""Who is connected, and the state of the broker as a whole, for display. Decides nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from heapq import merge
from itertools import count, dropwhile, islice

from pydanube.base.limits import METRIC_SLICE, NODE_LEDGERS_MAX, NODE_LEDGERS_RESERVED
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.serving.handles import ConsumerHandle
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.operations.broker import Connection, Status
from pydanube.operations.subscriptions import Consumer
from pydanube.ports.clock import Clock
from pydanube.storage.guard import Guard


class Presence:
    """The connections of one broker. Each listener registers a function that lists its own."""

    def __init__(self, started: int) -> None:
        self.started = started  # microseconds since 1970
        self.numbers = count(1)
        self.listed: list[Callable[[], Iterable[Connection]]] = []
        self.guards: list[Guard] = []  # of all background tasks

    def connections(self, after: int, limit: int) -> list[Connection]:
        """The next connections after that number."""
        found = merge(*(each() for each in self.listed), key=lambda each: each.number)
        return list(islice(dropwhile(lambda each: each.number <= after, found), limit))


def members_of(partitions: Sequence[OpenTopic], subscription: str) -> list[Consumer]:
    """The consumers, in the order in which they joined the first partition. Those with the same name and address count
    as one."""
    found: dict[tuple[str, str], list[ConsumerHandle]] = {}
    for each in partitions:
        for consumer in each.consumers:
            if each.topic.subscriptions.get(subscription) is consumer.subscription:
                found.setdefault((consumer.name, consumer.address), []).append(consumer)
    return [_member(name, address, consumers) for (name, address), consumers in found.items()]


def _member(name: str, address: str, consumers: Sequence[ConsumerHandle]) -> Consumer:
    active = [each for each in consumers if each.active]
    return Consumer(
        name,
        address,
        [each.id for each in consumers],
        [number for each in consumers if (number := each.partition) is not None],
        bool(active),
        [number for each in active if (number := each.partition) is not None],
        sum(last - first + 1 for each in consumers for first, last in each.held),
    )


async def status_of(topics: OpenTopics, presence: Presence, room: DiskRoom, clock: Clock) -> Status:
    """Totals over the open topics. Counters start when a topic is opened; ask twice to get rates."""
    names = ("producers", "consumers", "subscriptions", "messages_in", "messages_out", "stored_bytes", "backlog")
    sums = dict.fromkeys(names, 0)
    opened = topics.opened()
    for number, each in enumerate(opened, 1):
        topic = each.topic
        sums["producers"] += len(each.producers)
        sums["consumers"] += len(each.consumers)
        sums["messages_in"] += topic.inbound.messages
        sums["stored_bytes"] += topic.stored_bytes
        for host in topic.subscriptions.values():
            sums["subscriptions"] += 1
            sums["messages_out"] += host.outbound.messages
            sums["backlog"] += host.backlog
        if not number % METRIC_SLICE:
            await asyncio.sleep(0)  # lets other tasks run
    limited = bool(room.reserve_bytes)
    return Status(
        started=presence.started,
        now=clock.wall(),
        topics=len(opened),
        connections=sum(1 for each in presence.listed for _ in each()),
        **sums,
        disk_free_bytes=room.bytes if limited else None,
        disk_reserve_bytes=room.reserve_bytes if limited else None,
        publishing_refused=room.short,
        ledgers=room.ledgers(),
        ledgers_max=NODE_LEDGERS_MAX - NODE_LEDGERS_RESERVED,
    )
