"""Damage on disk as people deal with it: which topics have lost what, and accepting that, durably.

Nothing is given up by itself. Until somebody accepts the loss, whoever comes to it is told so; afterwards readers and
subscriptions pass over it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from pydanube.base.errors import OffsetsDamaged
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory import TopicRecord, topic_of_stream
from pydanube.broker.holds import ANONYMOUS, Principal
from pydanube.broker.jobs import Asked, Jobs
from pydanube.broker.topic import state_stream
from pydanube.ledger.catalog import Lost
from pydanube.storage.stream import Stream, StreamSettings

if TYPE_CHECKING:
    from pydanube.broker.service import Service

log = logging.getLogger(__name__)
JOB_SECONDS = 10.0  # that a request waits; far less than a client does
STREAMS_A_TURN = 100  # looked at before others of the loop have theirs


class Found(NamedTuple):
    """A damaged stretch of one topic or partition."""

    topic: str
    what: str  # messages, or state: cursors and producers
    ledger: LedgerId
    lost: Lost


class Salvage:
    """Owned by its service."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._jobs = Jobs()

    async def topics(self, principal: Principal) -> list[str]:
        """Those of which something is known to be damaged, or may be; by name."""
        service, catalog = self._service, self._service.surroundings.catalog
        ledgers: dict[LedgerId, int] = {}  # and the number of their topic
        nodes: dict[NodeIdentity, None] = {}
        for count, stream in enumerate(await catalog.streams(), 1):
            number, (record, _) = topic_of_stream(stream), await catalog.load(stream)
            for ledger in record.ledgers if number is not None else ():
                ledgers[ledger.id] = number or 0
                nodes.update(dict.fromkeys(ledger.nodes))
            if not count % STREAMS_A_TURN:
                await asyncio.sleep(0)
        damaged: set[int] = set()
        for node in nodes:
            statuses = await service.surroundings.nodes.get(node).list()
            damaged |= {ledgers[each.ledger] for each in statuses if each.damaged and each.ledger in ledgers}
        names = [record for name in service.namespaces(principal) for record in service.topics(principal, name)]
        return [str(record.name) for record in names if record.id in damaged]

    async def examine(self, principal: Principal, topic: str, *, accept: bool, ticket: int | None) -> Asked:
        """What is damaged of a topic or partition and was not accepted yet; with `accept` it is, when this is done."""
        what = ("salvage", topic, accept)
        return await self._jobs.ask(what, lambda: self._examine(principal, topic, accept), ticket, JOB_SECONDS)

    async def _examine(self, principal: Principal, topic: str, accept: bool) -> list[Found]:
        name, record = parse_topic(topic), await self._service.topic(principal, topic)
        places = [name] if name.partition is not None else record.places()
        return [each for place in places for each in await self._place(record, place, accept)]

    async def _place(self, record: TopicRecord, place: TopicName, accept: bool) -> list[Found]:
        """The state first: while that is damaged, the topic cannot be opened."""
        found: list[Found] = []
        try:
            opened = await self._service.open(ANONYMOUS, str(place))
        except OffsetsDamaged:
            closed = record.stream(place.partition)
            found += await self._closed(state_stream(closed), place, "state", accept)
            if not accept:
                return found + await self._closed(closed, place, "messages", accept)
            opened = await self._service.open(ANONYMOUS, str(place))
        topic = self._service.reliable(opened)
        found += await _look(topic.state_stream, place, "state", accept)
        found += await _look(topic.ledger.stream, place, "messages", accept)
        if found and accept:
            log.error("%s: the loss of %d damaged stretches was accepted", place, len(found))
            for host in topic.subscriptions.values():
                host.wake()
        return found

    async def _closed(self, name: str, place: TopicName, what: str, accept: bool) -> list[Found]:
        """Of a stream that nobody has open."""
        around = self._service.surroundings
        settings = StreamSettings(lazy=True)
        cold = None if around.tier is None else around.tier.reader
        stream = await Stream.take(
            name, around.catalog, around.nodes, around.clock, around.randomness, settings, cold, str(place)
        )
        try:
            return await _look(stream, place, what, accept)
        finally:
            await stream.close()

    async def close(self) -> None:
        await self._jobs.close()


async def _look(stream: Stream, place: TopicName, what: str, accept: bool) -> list[Found]:
    found = await stream.find_damage()
    if found and accept:
        await stream.give_up([lost for _, lost in found])
    return [Found(str(place), what, ledger, lost) for ledger, lost in found]


def summed(found: Sequence[Lost]) -> tuple[int, int]:
    """Messages that are lost, and offsets of which nobody can tell."""
    unknown = sum(each.last - each.first + 1 for each in found if not each.known)
    return sum(each.messages for each in found), unknown
