"""Shows operators which topics have lost messages to damage on disk, and accepts a loss durably.

No loss is ever accepted automatically. Until an operator accepts it, readers and subscriptions that reach the damage
get an error; afterwards they skip it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action
from pydanube.base.errors import OffsetsDamaged
from pydanube.base.ids import LedgerId, NodeIdentity
from pydanube.base.limits import LEDGERS_A_TURN, READ_AHEAD_BYTES
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.work.jobs import JobAnswer, Jobs
from pydanube.storage.stream.settings import StreamSettings
from pydanube.storage.stream.stream import Stream, StreamToOpen
from pydanube.stream.assignment import state_stream
from pydanube.stream.record import LedgerRecord, LostRange
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionDeleted, decode
from pydanube.topic.state import TopicState

log = logging.getLogger(__name__)
JOB_SECONDS = 10.0  # how long a request waits for its job; far less than a client waits
TOPICS_A_TURN = 50  # read from the metadata before other tasks of the loop get their turns


class Found(NamedTuple):
    """A damaged range of one topic or partition."""

    topic: str
    what: str  # messages, or state: cursors and producers
    ledger: LedgerId
    lost: LostRange


class StateLeft(NamedTuple):
    """What is left of a topic's state apart from the damaged part."""

    topic: str
    subscriptions: list[tuple[str, int]]  # names and floors
    lost: int  # subscriptions that later records mention, but whose creation and names are lost


class Examined(NamedTuple):
    """The damage of a topic, and for each partition with damaged state, what is left of that state."""

    found: list[Found]
    left: list[StateLeft]


class Salvage:
    """Owned by the broker's loop."""

    def __init__(self, topics: OpenTopics, directory: Directory, dependencies: TopicDependencies) -> None:
        self._topics = topics
        self._directory = directory
        self._dependencies = dependencies
        self._jobs = Jobs()
        self.close = self._jobs.close

    async def damaged(self) -> list[str]:
        """The names of topics in which something is, or may be, damaged."""
        ledgers: dict[LedgerId, str] = {}  # to the name of their topic
        nodes: dict[NodeIdentity, None] = {}
        async for name, ledger in self._ledgers():
            ledgers[ledger.id] = name
            nodes.update(dict.fromkeys(ledger.nodes))
            if not len(ledgers) % LEDGERS_A_TURN:
                await asyncio.sleep(0)
        damaged: dict[str, None] = {}
        for node in nodes:
            statuses = await self._dependencies.nodes.get(node).list()
            found = [each.ledger for each in statuses if each.damaged and each.ledger in ledgers]
            damaged.update(dict.fromkeys(ledgers[ledger] for ledger in found))
        return sorted(damaged)

    async def _ledgers(self) -> AsyncIterator[tuple[str, LedgerRecord]]:
        """All ledgers of all topics, for messages and for state, each with the topic's name."""
        catalog, after, looked = self._dependencies.catalog, "", 0
        while page := self._directory.topics(None, after, TOPICS_A_TURN):
            after = str(page[-1].name)
            for record in page:
                for name in record.partition_names() if record.reliable else ():
                    stream = record.stream(name.partition)
                    for each in (stream, state_stream(stream)):
                        for ledger in (await catalog.load(each))[0].ledgers:
                            yield str(record.name), ledger
                    looked += 1
                    if not looked % TOPICS_A_TURN:
                        await asyncio.sleep(0)

    async def examine(self, principal: Principal, topic: str, *, accept: bool, ticket: int | None) -> JobAnswer:
        """Finds damage of a topic or partition whose loss was not accepted yet; with `accept`, it is accepted now."""
        what = ("salvage", topic, accept)
        return await self._jobs.ask(what, lambda: self._examine(principal, topic, accept), ticket, JOB_SECONDS)

    async def _examine(self, principal: Principal, topic: str, accept: bool) -> Examined:
        name = parse_topic(topic)
        record = await self._topics.lookup(principal, Action.STORAGE_SALVAGE, topic)
        names = [name] if name.partition is not None else record.partition_names()
        examined = Examined([], [])
        for each in names:
            self._topics.ask(principal, Action.STORAGE_SALVAGE, each)  # the one before may have taken long
            await self._partition(record, each, accept, examined)
        return examined

    async def _partition(self, record: TopicRecord, name: TopicName, accept: bool, examined: Examined) -> None:
        """Examines the state first, because the topic cannot be opened while its state is damaged."""
        before = len(examined.found)
        try:
            opened = await self._topics.open(SYSTEM, Action.TOPIC_SERVE, str(name))
        except OffsetsDamaged:
            await self._closed(record, name, "state", accept, examined)
            if not accept:
                await self._closed(record, name, "messages", accept, examined)
                return
            opened = await self._topics.open(SYSTEM, Action.TOPIC_SERVE, str(name))
        topic = opened.reliable
        if found := await _look(topic.state_stream, name, "state", accept):
            examined.found.extend(found)
            examined.left.append(_left(name, topic.state))  # an open topic has all of its state in memory
            if accept:
                topic.rewrite_state()
        examined.found.extend(await _look(topic.ledger.stream, name, "messages", accept))
        if len(examined.found) > before and accept:
            log.error("%s: the loss of damaged data was accepted (ranges: %d)", name, len(examined.found) - before)
            for host in topic.subscriptions.values():
                host.retry_reading()

    async def _closed(self, record: TopicRecord, name: TopicName, what: str, accept: bool, examined: Examined) -> None:
        """Examines one stream of a topic that is not open."""
        tenure, dependencies = await self._topics.router.tenure(record, name), self._dependencies
        stream_name, title = tenure.topic, str(name)
        if what == "state":
            stream_name, title = state_stream(stream_name), f"the state of {name}"
        wanted = StreamToOpen(stream_name, StreamSettings(lazy=True), dependencies.cold, title)
        [stream] = await Stream.open_all(tenure, dependencies.nodes, dependencies.clock, [wanted])
        try:
            found = await _look(stream, name, what, accept)
            examined.found.extend(found)
            if what == "state":
                examined.left.append(await _left_of(stream, name, [each.lost for each in found]))
        finally:
            await stream.close()


async def _look(stream: Stream, name: TopicName, what: str, accept: bool) -> list[Found]:
    found = await stream.find_damage()
    if found and accept:
        await stream.give_up([lost for _, lost in found])
    return [Found(str(name), what, ledger, lost) for ledger, lost in found]


async def _left_of(stream: Stream, name: TopicName, lost: Sequence[LostRange]) -> StateLeft:
    """Replays what can be read, as the topic will do when it is opened without the lost records."""
    state, spoken_of, deleted, offset = TopicState(), set[int](), set[int](), stream.first
    state.patched = True
    while (offset := _behind(lost, stream.past_lost(offset))) <= stream.confirmed:
        for batch in await stream.read(offset, READ_AHEAD_BYTES):
            for payload in batch.payloads():
                record = decode(payload or b"")
                if (subscription := getattr(record, "subscription", None)) is not None:
                    (deleted if isinstance(record, SubscriptionDeleted) else spoken_of).add(subscription)
                state.replay(record)
            offset = batch.last_offset + 1
    state.recovered()
    return _left(name, state, len(spoken_of - deleted - {known.id for known in state}))


def _left(name: TopicName, state: TopicState, lost: int = 0) -> StateLeft:
    return StateLeft(str(name), sorted((known.name, known.cursor.floor) for known in state), lost)


def _behind(lost: Sequence[LostRange], offset: int) -> int:
    """The offset; if it is within lost ranges, the first offset after them."""
    for each in lost:  # in order
        if each.first <= offset <= each.last:
            offset = each.last + 1
    return offset


def summed(found: Sequence[LostRange]) -> tuple[int, int]:
    """How many messages are lost, and how many offsets may or may not have had one."""
    unknown = sum(each.last - each.first + 1 for each in found if not each.known)
    return sum(each.messages for each in found), unknown
