"""Changes to all partitions of a topic: made everywhere, or nowhere that anybody would see after a crash.

Each partition keeps its subscriptions in its own state, so such a change takes several steps. What is to be done is
written to the metadata before the first step and deleted after the last. After a crash it is done again before any
partition of the topic is served; every step may be repeated. Changes of one topic are made one after the other.
"""

from __future__ import annotations

import asyncio
import json
import logging
from asyncio import Task
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydanube.base.errors import DanubeError, MetadataClosed, SubscriptionNotFound
from pydanube.broker.directory import TopicRecord
from pydanube.broker.holds import ANONYMOUS, Opened
from pydanube.broker.options import SubscriptionOptions
from pydanube.broker.subscription import SubscriptionHost
from pydanube.broker.topic import EARLIEST
from pydanube.broker.turns import Turns
from pydanube.ledger.state_records import SubscriptionKind
from pydanube.ports.metadata import MetadataStore

if TYPE_CHECKING:
    from pydanube.broker.service import Service

log = logging.getLogger(__name__)
PREFIX = "changes/"
RETRY_SECONDS = 0.5
Fields = Mapping[str, Any]
Result = TypeVar("Result")


def change_of(topic: int, change: str, fields: Fields) -> tuple[str, bytes]:
    """The key and value that say what is to be done; for whoever writes it together with something else."""
    return f"{PREFIX}{topic}", json.dumps([change, fields], separators=(",", ":")).encode()


class Spreading:
    """Owned by the broker's loop, behind its door."""

    def __init__(self, service: Service, store: MetadataStore) -> None:
        self._service = service
        self._store = store
        self._turns = Turns()  # of topics, by their ids
        self._tasks: dict[Task[Any], None] = {}

    def unfinished(self, topic: int) -> bool:
        return self._store.get(f"{PREFIX}{topic}") is not None

    async def change(self, record: TopicRecord, change: str, fields: Fields) -> None:
        """In all its partitions. It goes on whether or not the caller waits; raises what any of them did."""
        await self._in_turn(record.id, self._change(record, change, fields))

    async def grow(self, record: TopicRecord, alter: Callable[[], Awaitable[TopicRecord]]) -> TopicRecord:
        """`alter` gives it more partitions, and writes in the same transaction that they have to be prepared."""

        async def work() -> TopicRecord:
            await self._finish(record)
            grown = await alter()
            await self._finish(grown)
            return grown

        return await self._in_turn(record.id, work())

    async def finish(self, record: TopicRecord) -> None:
        """What was begun and not finished, before a crash or because of an error, if there is anything."""
        if self.unfinished(record.id):
            await self._in_turn(record.id, self._finish(record))

    async def resume(self, topics: Callable[[], Iterable[TopicRecord]]) -> None:
        """After a start: whatever was begun is finished, though nobody asks for the topic."""
        begun = {int(key.removeprefix(PREFIX)) for key, _ in self._store.scan(PREFIX)}
        for record in [each for each in topics() if each.id in begun] if begun else ():
            begun.remove(record.id)
            try:
                await self.finish(record)
            except DanubeError as error:
                log.warning("%s: a change that was interrupted is finished later: %s", record.name, error)
        for topic in sorted(begun):  # it was deleted in the middle of it
            await self._forget(topic)

    async def _in_turn(self, topic: int, work: Coroutine[Any, Any, Result]) -> Result:
        async def in_turn() -> Result:
            async with self._turns.of(topic):
                return await work

        task = asyncio.get_running_loop().create_task(in_turn())
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: Task[Any]) -> None:
        del self._tasks[task]
        if not task.cancelled():
            task.exception()  # whoever waits has it

    async def _change(self, record: TopicRecord, change: str, fields: Fields) -> None:
        await self._finish(record)
        noted = record.reliable and record.partitions > 1
        if noted:
            await self._store.transact((), [change_of(record.id, change, fields)])
        try:
            await self._make(record, change, fields)
        finally:  # whoever asked hears of a failure, and may ask for something else
            if noted:
                await self._forget(record.id)

    async def _finish(self, record: TopicRecord) -> None:
        entry = self._store.get(f"{PREFIX}{record.id}")
        if entry is None:
            return
        change, fields = json.loads(entry.value)
        try:
            await self._make(record, change, fields)
        except DanubeError as error:
            if error.retriable:
                raise
            log.warning("%s: %s, which was interrupted, cannot be finished: %s", record.name, change, error)
        await self._forget(record.id)

    async def _make(self, record: TopicRecord, change: str, fields: Fields) -> None:
        service = self._service
        places = await together([service.open(ANONYMOUS, str(each), changing=True) for each in record.places()])
        try:
            await _CHANGES[change](service, places, fields)
        except DanubeError as error:
            if error.retriable:
                raise
            _settle(places)
            raise
        _settle(places)

    async def _forget(self, topic: int) -> None:
        """Until it is: what stayed would be done again after a restart, over what was decided since."""
        while self.unfinished(topic):
            try:
                await self._store.transact((), [(f"{PREFIX}{topic}", None)])
            except MetadataClosed:
                raise
            except DanubeError as error:
                log.warning("a change of topic %d that was made is not recorded as such yet: %s", topic, error)
                await asyncio.sleep(RETRY_SECONDS)

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _settle(places: Sequence[Opened]) -> None:
    for each in places:
        each.changing = False


async def together(work: Sequence[Awaitable[Result]]) -> list[Result]:
    """What all of them return; raises the first failure when the last has ended."""
    results = await asyncio.gather(*work, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return cast(list[Result], results)


# -- the changes -------------------------------------------------------------------------------------------------------


async def _grow(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    """New partitions have the subscriptions of the others from their first message on: retention must know of them."""
    known = service.reliable(places[0]).subscriptions
    for opened in places[fields["from"] :]:
        for host in list(known.values()):
            set_last = service.pending.find(str(opened.name), host.known.name)  # for all partitions
            options: SubscriptionOptions | None = set_last or SubscriptionOptions.decode(host.known.options)
            name, kind = host.known.name, host.known.kind
            options = opened.options_for(name, kind, options)
            await service.reliable(opened).subscribe(name, kind, start=EARLIEST, options=options)


async def _subscribe(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    options = None if fields["options"] is None else SubscriptionOptions.from_json(fields["options"])
    name, kind = fields["subscription"], SubscriptionKind[fields["kind"]]
    for each in places:  # refused before it is made anywhere
        each.check_subscriptions(name)
    await together([service.enter(each, name, kind, fields["start"], options) for each in places])


async def _unsubscribe(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    name = fields["subscription"]

    async def leave(opened: Opened) -> None:
        host = opened.topic.subscriptions.get(name)
        if host is not None:
            await opened.topic.unsubscribe(name)
            opened.forget(host)

    await together([leave(each) for each in places])
    await service.pending.drop(str(places[0].record.name), name)


async def _alter(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    name, changes = fields["subscription"], fields["options"]
    there = [service.reliable(each) for each in places if name in each.topic.subscriptions]
    if not there:
        raise SubscriptionNotFound(f"{places[0].record.name} has no subscription {name!r}")
    await together([topic.alter_subscription(name, changes) for topic in there])


async def _seek(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    """To offsets that were found out before, where nobody has sought since."""

    async def seek(opened: Opened, offset: int, generation: int) -> None:
        host = opened.topic.subscriptions.get(fields["subscription"])
        if isinstance(host, SubscriptionHost) and host.known.cursor.generation == generation:
            await service.reliable(opened).seek(host, offset)

    by_name = {str(each.name): each for each in places}
    await together([seek(by_name[place], *where) for place, where in fields["to"].items()])


async def _truncate(service: Service, places: Sequence[Opened], fields: Fields) -> None:
    before = fields["before"]
    await together([service.reliable(each).truncate(before[str(each.name)]) for each in places])


_CHANGES: dict[str, Callable[[Service, Sequence[Opened], Fields], Awaitable[None]]] = {
    "grow": _grow,
    "subscribe": _subscribe,
    "unsubscribe": _unsubscribe,
    "alter": _alter,
    "seek": _seek,
    "truncate": _truncate,
}
