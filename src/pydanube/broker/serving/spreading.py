"""Changes to all partitions of a topic: after a crash, a change is visible in all partitions or in none.

Each partition keeps its subscriptions in its own state, so such a change takes several steps. The change is written to
the metadata before the first step and deleted after the last. After a crash it is made again before any partition of
the topic is served; every step can be repeated. Changes of one topic are made one after the other. Each uses the
topic's record as it is when its turn comes, because partitions may have been added while the change waited.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, TypeVar

from pydanube.access.principals import SYSTEM
from pydanube.access.rights import Action
from pydanube.base.errors import DanubeError, MetadataClosed, SubscriptionNotFound, TopicNotFound
from pydanube.base.names import TopicName
from pydanube.broker.directory.directory import Directory, TopicRecord
from pydanube.broker.directory.pending_options import PendingOptions
from pydanube.broker.serving.open_topic import OpenTopic
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.topic.served import EARLIEST
from pydanube.broker.work.errands import Errands
from pydanube.broker.work.named_locks import NamedLocks
from pydanube.broker.work.together import together
from pydanube.topic.records import SubscriptionKind

log = logging.getLogger(__name__)
PREFIX = "changes/"
RETRY_SECONDS = 0.5
FREEING = ("unsubscribe", "seek", "truncate")  # they free messages, so they work even if the metadata store is full
Fields = Mapping[str, Any]
Result = TypeVar("Result")


def change_of(topic: int, change: str, fields: Fields) -> tuple[str, bytes]:
    """The key and value that record a change, for callers that write it in a transaction with something else."""
    return f"{PREFIX}{topic}", json.dumps([change, fields], separators=(",", ":")).encode()


def growth_of(old: TopicRecord) -> tuple[str, bytes]:
    """The key and value which record that partitions beyond those of the old record must be prepared."""
    return change_of(old.id, "grow", {"from": old.partitions})


class Spreading:
    """Owned by the broker's loop."""

    def __init__(self, topics: OpenTopics, directory: Directory, pending: PendingOptions, errands: Errands) -> None:
        self._topics = topics
        self._directory = directory
        self._pending = pending
        self._errands = errands
        self._store = directory.store
        self._turns = NamedLocks()  # of topics, by their ids

    def unfinished(self, topic: int) -> bool:
        return self._store.get(f"{PREFIX}{topic}") is not None

    def begun(self) -> set[int]:
        """The ids of topics with an unfinished change; some of the topics may have been deleted."""
        return {int(key.removeprefix(PREFIX)) for key, _ in self._store.scan(PREFIX)}

    async def change(self, record: TopicRecord, change: str, fields: Fields) -> None:
        """Makes a change in all partitions. From its turn on, it is completed even if the caller stops waiting; raises
        the error of any partition."""
        await self._in_turn(record, lambda current: self._change(current, change, fields))

    async def grow(self, record: TopicRecord, alter: Callable[[], Awaitable[TopicRecord]]) -> TopicRecord:
        """Adds partitions with `alter`, which records in the same transaction that they must be prepared."""

        async def work(current: TopicRecord) -> TopicRecord:
            await self._finish(current)
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

    async def _change(self, record: TopicRecord, change: str, fields: Fields) -> None:
        await self._finish(record)
        if record.reliable and record.partitions > 1:
            await self._store.transact((), [change_of(record.id, change, fields)], reserve=change in FREEING)
        try:
            await self._make(record, change, fields)
        except Exception:  # the caller gets the error and may choose again; a stop of the broker is not such an error
            await self.forget(record.id)
            raise
        await self.forget(record.id)

    async def _finish(self, record: TopicRecord) -> None:
        entry = self._store.get(f"{PREFIX}{record.id}")
        if entry is None:
            return
        try:
            change, fields = json.loads(entry.value)
            await self._make(record, change, fields)
        except DanubeError as error:
            if error.retriable:
                raise
            log.warning("%s: the interrupted change %s cannot be finished: %s", record.name, change, error)
        except (LookupError, TypeError, ValueError):  # if it were kept, the topic could never be opened again
            log.exception("%s: giving up an interrupted change that is not valid: %r", record.name, entry.value[:200])
        await self.forget(record.id)

    async def _make(self, record: TopicRecord, change: str, fields: Fields) -> None:
        def served(place: TopicName) -> Coroutine[Any, Any, OpenTopic]:
            return self._topics.open(SYSTEM, Action.TOPIC_SERVE, str(place), changing=True)

        places = await together(served, record.partition_names())
        self._current(record)  # the places may belong to a new topic of the same name
        try:
            await _CHANGES[change](self._pending, places, fields)
        except DanubeError as error:
            if error.retriable:
                raise
            _settle(places)
            raise
        _settle(places)

    async def forget(self, topic: int) -> None:
        """Retries until it is deleted: otherwise it would be made again after a restart, undoing later changes."""
        while self.unfinished(topic):
            try:
                await self._store.transact((), [(f"{PREFIX}{topic}", None)])
            except MetadataClosed:
                raise
            except DanubeError as error:
                log.warning("a finished change of topic %d is not recorded as finished yet: %s", topic, error)
                await asyncio.sleep(RETRY_SECONDS)


def _settle(places: Sequence[OpenTopic]) -> None:
    for each in places:
        each.changing = False


# -- the changes -------------------------------------------------------------------------------------------------------


async def _grow(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    """Gives new partitions the subscriptions of the others from their first message, so that nothing is deleted."""
    known = places[0].reliable.subscriptions
    for opened in places[fields["from"] :]:
        for host in list(known.values()):
            set_last = pending.find(str(opened.name), host.name)  # for all partitions
            options = opened.options_for(host.name, host.kind, set_last or host.options)
            await opened.reliable.subscribe(host.name, host.kind, start=EARLIEST, options=options)


async def _subscribe(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    options = None if fields["options"] is None else SubscriptionOptions.from_json(fields["options"])
    name, kind = fields["subscription"], SubscriptionKind[fields["kind"]]
    for each in places:  # refused before it is created anywhere
        each.check_subscriptions(name)
    await together(lambda each: each.enter(name, kind, fields["start"], options), places)


async def _unsubscribe(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    name = fields["subscription"]

    async def leave(opened: OpenTopic) -> None:
        host = opened.topic.subscriptions.get(name)
        if host is not None:
            await opened.topic.unsubscribe(name)
            opened.forget(host)

    await together(leave, places)
    await pending.drop(str(places[0].record.name), name)


async def _alter(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    name, changes = fields["subscription"], fields["options"]
    there = [each.reliable for each in places if name in each.topic.subscriptions]
    if not there:
        raise SubscriptionNotFound(f"{places[0].record.name} has no subscription {name!r}")
    await together(lambda topic: topic.alter_subscription(name, changes), there)


async def _seek(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    """Seeks to offsets that were determined before, except where another seek has happened since."""
    to = fields["to"]  # a partition that it does not name was added later

    async def seek(opened: OpenTopic) -> None:
        offset, generation = to[str(opened.name)]
        host = opened.topic.subscriptions.get(fields["subscription"])
        if host is not None and host.generation == generation:
            await opened.reliable.seek(host.as_reliable(), offset)

    await together(seek, [each for each in places if str(each.name) in to])


async def _truncate(pending: PendingOptions, places: Sequence[OpenTopic], fields: Fields) -> None:
    before = fields["before"]  # a partition that it does not name was added later and had no messages
    there = [each for each in places if str(each.name) in before]
    await together(lambda each: each.reliable.truncate(before[str(each.name)]), there)


_CHANGES: dict[str, Callable[[PendingOptions, Sequence[OpenTopic], Fields], Awaitable[None]]] = {
    "grow": _grow,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "alter": _alter,
    "seek": _seek,
    "truncate": _truncate,
}
