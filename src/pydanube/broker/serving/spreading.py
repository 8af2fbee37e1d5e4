"""Changes to all partitions of a topic: after a crash, a change is visible in all partitions or in none.

Each partition keeps its subscriptions in its own state, so such a change takes several steps. The change is written to
the metadata before the first step and deleted after the last. After a crash it is repeated before any partition of
the topic is served; every step can be repeated. Changes of one topic are made one after the other. Each uses the
topic's record as it is when its turn comes, because partitions may have been added while the change waited.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, MetadataClosed, MetadataDamaged, SubscriptionNotFound, TopicNotFound
from pydanube.base.names import TopicName
from pydanube.broker.directory.directory import Directory
from pydanube.broker.directory.pending_options import PendingOptions
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.served import EARLIEST
from pydanube.broker.work.errands import Errands
from pydanube.broker.work.named_locks import NamedLocks
from pydanube.broker.work.together import together
from pydanube.metadata.records import RequestedChange
from pydanube.metadata.tables import CHANGES, PartitionsChange
from pydanube.storage.metadata.table import Table
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionKind

log = logging.getLogger(__name__)
RETRY_SECONDS = 0.5
FREEING = ("unsubscribe", "seek", "truncate")  # they free messages, so they work even if the metadata store is full
Fields = Mapping[str, Any]
Result = TypeVar("Result")


class Spreading:
    """Owned by the broker's loop."""

    def __init__(self, topics: OpenTopics, directory: Directory, pending: PendingOptions, errands: Errands) -> None:
        self._topics = topics
        self._directory = directory
        self._pending = pending
        self._errands = errands
        self._table = Table(directory.store, CHANGES)
        self._turns = NamedLocks()  # of topics, by their ids

    def unfinished(self, topic: int) -> bool:
        return self._table.version(str(topic)) != 0

    def begun(self) -> set[int]:
        """The ids of topics with an unfinished change; some of the topics may have been deleted."""
        return set(map(int, self._table.keys()))

    def growth_of(self, old: TopicRecord) -> RequestedChange:
        """What records that partitions beyond those of the old record must be prepared, for a transaction."""
        return self._table.put(str(old.id), PartitionsChange("grow", {"from": old.partitions}))

    def end_of(self, topic: TopicRecord) -> RequestedChange:
        """What forgets an unfinished change, for the transaction that deletes the topic."""
        return self._table.put(str(topic.id), None)

    async def change(self, record: TopicRecord, change: str, fields: Fields, *, ask: Callable[[], None]) -> None:
        """Makes a change in all partitions. From its turn on, it is completed even if the caller stops waiting; raises
        the error of any partition. `ask` raises if the caller has lost the right to it while it waited for its turn."""
        await self._in_turn(record, lambda current: self._change(current, change, fields, ask))

    async def grow(
        self, record: TopicRecord, alter: Callable[[], Awaitable[TopicRecord]], *, ask: Callable[[], None]
    ) -> TopicRecord:
        """Adds partitions with `alter`, which records in the same transaction that they must be prepared."""

        async def work(current: TopicRecord) -> TopicRecord:
            await self._finish(current)
            ask()
            self._current(current)
            grown = await alter()
            await self._finish(grown)
            return grown

        return await self._in_turn(record, work)

    async def finish(self, record: TopicRecord) -> None:
        """Finishes a change that was interrupted by a crash or an error, if there is one."""
        if self.unfinished(record.id):
            await self._in_turn(record, self._finish)

    async def _in_turn(self, record: TopicRecord, work: Callable[[TopicRecord], Coroutine[Any, Any, Result]]) -> Result:
        """Does the work in turn, with the topic's record at that time: the given record only says which topic it is."""
        async with AsyncExitStack() as turn:
            await turn.enter_async_context(self._turns.of(record.id))
            current = self._current(record)
            return await self._errands.run_holding(turn, lambda: work(current))

    def _current(self, record: TopicRecord) -> TopicRecord:
        current = self._directory.find(record.name)
        if current is None or current.id != record.id:
            raise TopicNotFound(f"topic {record.name} was deleted")
        return current

    async def _change(self, record: TopicRecord, change: str, fields: Fields, ask: Callable[[], None]) -> None:
        await self._finish(record)
        ask()
        if record.reliable and record.partitions > 1:
            begun = PartitionsChange(change, dict(fields))
            await self._table.write(str(record.id), begun, reserve=change in FREEING)
        try:
            await self._make(record, change, fields)
        except Exception:  # the caller gets the error and may choose again; a stop of the broker is not such an error
            await self.forget(record.id)
            raise
        await self.forget(record.id)

    async def _finish(self, record: TopicRecord) -> None:
        found = None
        try:
            found = self._table.get(str(record.id))
            if found is None:
                return
            await self._make(record, found.change, found.fields)
        except (LookupError, TypeError, ValueError, MetadataDamaged):
            # if it were kept, the topic could never be opened again
            log.exception("%s: giving up an interrupted change that is not valid: %r", record.name, found)
        except DanubeError as error:
            if error.retriable:
                raise
            log.warning("%s: an interrupted change cannot be finished: %r: %s", record.name, found, error)
        await self.forget(record.id)

    async def _make(self, record: TopicRecord, change: str, fields: Fields) -> None:
        def served(name: TopicName) -> Coroutine[Any, Any, OpenTopic]:
            return self._topics.open(SYSTEM, Action.TOPIC_SERVE, str(name), changing=True)

        partitions = await together(served, record.partition_names())
        self._current(record)  # the partitions may belong to a new topic of the same name
        try:
            await _CHANGES[change](self._pending, partitions, fields)
        except DanubeError as error:
            if error.retriable:
                raise
            _settle(partitions)
            raise
        _settle(partitions)

    async def forget(self, topic: int) -> None:
        """Retries until it is deleted: otherwise it would be repeated after a restart, undoing later changes."""
        while self.unfinished(topic):
            try:
                await self._table.write(str(topic), None)
            except MetadataClosed:
                raise
            except DanubeError as error:
                log.warning("a finished change of topic %d is not recorded as finished yet: %s", topic, error)
                await asyncio.sleep(RETRY_SECONDS)


def _settle(partitions: Sequence[OpenTopic]) -> None:
    for each in partitions:
        each.changing = False


# -- the changes -------------------------------------------------------------------------------------------------------


async def _grow(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    """Gives new partitions the subscriptions of the others from their first message, so that nothing is deleted."""
    known = partitions[0].reliable.subscriptions
    for opened in partitions[fields["from"] :]:
        for host in list(known.values()):
            set_last = pending.find(str(opened.name), host.name)  # for all partitions
            options = opened.options_for(host.name, host.kind, set_last or host.options)
            await opened.reliable.subscribe(host.name, host.kind, start=EARLIEST, options=options)


async def _subscribe(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    options = None if fields["options"] is None else SubscriptionOptions.from_json(fields["options"])
    name, kind = fields["subscription"], SubscriptionKind[fields["kind"]]
    for each in partitions:  # refused before it is created anywhere
        each.check_subscriptions(name)
    await together(lambda each: each.enter(name, kind, fields["start"], options), partitions)


async def _unsubscribe(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    name = fields["subscription"]

    async def leave(opened: OpenTopic) -> None:
        host = opened.topic.subscriptions.get(name)
        if host is not None:
            await opened.topic.unsubscribe(name)
            opened.forget(host)

    await together(leave, partitions)
    await pending.drop(str(partitions[0].record.name), name)


async def _alter(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    name, changes = fields["subscription"], fields["options"]
    there = [each.reliable for each in partitions if name in each.topic.subscriptions]
    if not there:
        raise SubscriptionNotFound(f"{partitions[0].record.name} has no subscription {name!r}")
    await together(lambda topic: topic.alter_subscription(name, changes), there)


async def _seek(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    """Seeks to offsets that were determined before, except where another seek has happened since."""
    to = fields["to"]  # a partition that it does not name was added later

    async def seek(opened: OpenTopic) -> None:
        offset, generation = to[str(opened.name)]
        host = opened.topic.subscriptions.get(fields["subscription"])
        if host is not None and host.generation == generation:
            await opened.reliable.seek(host.as_reliable(), offset)

    await together(seek, [each for each in partitions if str(each.name) in to])


async def _truncate(pending: PendingOptions, partitions: Sequence[OpenTopic], fields: Fields) -> None:
    before = fields["before"]  # a partition that it does not name was added later and had no messages
    there = [each for each in partitions if str(each.name) in before]
    await together(lambda each: each.reliable.truncate(before[str(each.name)]), there)


_CHANGES: dict[str, Callable[[PendingOptions, Sequence[OpenTopic], Fields], Awaitable[None]]] = {
    "grow": _grow,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "alter": _alter,
    "seek": _seek,
    "truncate": _truncate,
}
