"""The topics that this broker serves now. Each is opened when it is first used.

The caller's rights are checked first, so the caller must name the principal and the action; they are checked again if
they have changed by the time the topic is open. This also counts the bytes that the topics of a namespace store, if the
namespace has a limit.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Task
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pydanube.access.principals import SYSTEM, Principal
from pydanube.access.rights import Action, Authorise, subscription_resource, topic_resource
from pydanube.base.errors import (
    DanubeError,
    NotAllowed,
    OffsetsDamaged,
    OwnershipLost,
    TopicClosed,
    TopicExists,
    TopicKindDiffers,
    TopicNotFound,
)
from pydanube.base.limits import TOPICS_OPENING_MAX
from pydanube.base.names import TopicName, parse_topic
from pydanube.broker.directory.directory import Directory
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.limits.quotas import Usage
from pydanube.broker.routing.router import HERE, Elsewhere, Router
from pydanube.broker.serving.leftovers import cut_off
from pydanube.broker.serving.open_topic import OpenTopic, topic_options
from pydanube.broker.topic.best_effort import BestEffortTopic
from pydanube.broker.topic.dependencies import TopicDependencies
from pydanube.broker.topic.served import ServedTopic
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.together import together
from pydanube.storage.futures import cancel_all, retrieve
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord

if TYPE_CHECKING:
    from pydanube.broker.serving.handles import ConsumerHandle, ProducerHandle
    from pydanube.broker.serving.spreading import Spreading

log = logging.getLogger(__name__)
TOPICS_CLOSING = 250  # at a time, when the broker stops: their records become durable together
SEALING_SECONDS = 1.0  # when the broker stops; a topic that is not sealed by then is recovered when it is next opened
Watcher = Callable[[TopicName, int, Topic], None]  # gets the topic's name, its id and the topic


class OpenTopics:
    """Owned by the broker's loop."""

    def __init__(
        self,
        directory: Directory,
        router: Router,
        dependencies: TopicDependencies,
        room: DiskRoom,
        authorise: Authorise,
        *,
        auto_create: bool,
    ) -> None:
        self.auto_create = auto_create
        self.router = router
        self.interrupted: Spreading | None = None  # has changes that must be finished before a topic is served
        self.watchers: list[Watcher] = []  # called with each topic that stores messages, before any client uses it
        self.rejected: dict[str, int] = {}  # publishes that were refused, by the code of the error
        self.rights_version = 0  # rises when rights change: handles of an older version must be checked again
        self._directory = directory
        self._dependencies = dependencies
        self._room = room
        self._authorise = authorise
        self._loop = asyncio.get_running_loop()
        self._opened: dict[TopicName, OpenTopic] = {}
        self._opening: dict[TopicName, Task[OpenTopic]] = {}
        self._usages: dict[str, Usage] = {}  # of namespaces that have a limit
        self._counting: dict[str, Task[None]] = {}  # namespaces whose bytes are not all known yet
        self._turns = asyncio.Semaphore(TOPICS_OPENING_MAX)
        self.stopping = False

    # -- who may -------------------------------------------------------------------------------------------------------

    def ask(self, principal: Principal, action: Action, name: TopicName, subscription: str | None = None) -> None:
        """Raises `NotAllowed` unless the principal may do that to the topic, or to one of its subscriptions."""
        self._authorise(
            principal,
            action,
            topic_resource(name) if subscription is None else subscription_resource(name, subscription),
        )

    def allows(self, principal: Principal, action: Action, name: TopicName) -> bool:
        return self.refusal(principal, action, name) is None

    def refusal(
        self, principal: Principal, action: Action, name: TopicName, subscription: str | None = None
    ) -> NotAllowed | None:
        """Why the principal may not do that; None if it may. If that cannot be decided, it may not."""
        try:
            self.ask(principal, action, name, subscription)
        except NotAllowed as error:
            return error
        except Exception:
            log.exception("%s: whether %s may %s could not be decided", name, principal, action)
            return NotAllowed(f"whether {principal} may {action} {name} could not be decided")
        return None

    def ask_again(
        self, version: int, principal: Principal, action: Action, name: TopicName, subscription: str | None = None
    ) -> None:
        """Like `ask`, but only if rights have changed since that version. Called after waiting for something."""
        if version != self.rights_version:
            self.ask(principal, action, name, subscription)

    def reconsider(self) -> None:
        """Called when rights have changed: ends producers and consumers that are no longer allowed. If one of them
        fails to end in order, the others are still asked about."""
        self.rights_version += 1
        for each in self.opened():
            handles: list[ProducerHandle | ConsumerHandle] = [*each.producers, *each.consumers]
            for handle in handles:
                try:
                    handle.reconsider()
                except Exception:
                    log.exception("%s: %s has ended, and could not be told", each.name, handle.principal)

    # -- opening -------------------------------------------------------------------------------------------------------

    async def lookup(
        self,
        principal: Principal,
        action: Action,
        name: str,
        *,
        subscription: str | None = None,
        create: bool = False,
        reliable: bool | None = None,
    ) -> TopicRecord:
        """The topic's record, created if allowed. `subscription` names the one that the action is about, if any."""
        parsed = parse_topic(name)
        self.ask(principal, action, parsed, subscription)
        return await self._record(principal, parsed, create=create, reliable=reliable)

    async def _record(
        self, principal: Principal, name: TopicName, *, create: bool = False, reliable: bool | None = None
    ) -> TopicRecord:
        record = self._directory.find(name)
        if record is None:
            if not create or not self.auto_create or name.partition is not None:
                raise TopicNotFound(f"topic {name} does not exist")
            self.ask(principal, Action.TOPIC_CREATE, name)
            try:
                record = await self._directory.create_topic(name, reliable=reliable is not False)
            except TopicExists:  # another client created it first
                record = self._directory.get(name)
        if reliable is not None and record.reliable is not reliable:
            kinds = {True: "reliable", False: "not reliable"}
            raise TopicKindDiffers(f"{record.name} is {kinds[record.reliable]}")
        return record

    async def open(
        self,
        principal: Principal,
        action: Action,
        name: str,
        *,
        subscription: str | None = None,
        create: bool = False,
        reliable: bool | None = None,
        changing: bool = False,
    ) -> OpenTopic:
        """Opens the topic or partition, and finishes interrupted changes first, unless `changing` is set.

        `subscription` names the one that the action is about, if any.
        """
        parsed, version = parse_topic(name), self.rights_version
        self.ask(principal, action, parsed, subscription)
        opened = await self._serve(principal, parsed, create=create, reliable=reliable, changing=changing)
        self.ask_again(version, principal, action, parsed, subscription)
        return opened

    async def open_all(
        self, principal: Principal, action: Action, name: str, *, subscription: str | None = None
    ) -> list[OpenTopic]:
        """Opens the named partition, or all partitions of the topic."""
        version = self.rights_version
        names = await self._names(principal, action, name, subscription)
        found = await together(lambda each: self._serve(principal, each), names)
        self.ask_again(version, principal, action, names[0], subscription)
        return found

    async def open_undamaged(
        self, principal: Principal, action: Action, name: str, *, subscription: str | None = None
    ) -> tuple[list[OpenTopic | None], str | None]:
        """Like `open_all`, with None for partitions whose state is damaged, and the reason of the first of them. Raises
        if all of them are damaged."""
        damage: list[OffsetsDamaged] = []
        version = self.rights_version

        async def served(name: TopicName) -> OpenTopic | None:
            try:
                return await self._serve(principal, name)
            except OffsetsDamaged as error:
                damage.append(error)
                return None

        names = await self._names(principal, action, name, subscription)
        found = await together(served, names)
        self.ask_again(version, principal, action, names[0], subscription)
        if not any(found):
            raise damage[0]
        return found, str(damage[0]) if damage else None

    async def _names(
        self, principal: Principal, action: Action, name: str, subscription: str | None
    ) -> list[TopicName]:
        parsed = parse_topic(name)
        self.ask(principal, action, parsed, subscription)
        record = await self._record(principal, parsed)
        return [parsed] if parsed.partition is not None else record.partition_names()

    async def _serve(
        self,
        principal: Principal,
        name: TopicName,
        *,
        create: bool = False,
        reliable: bool | None = None,
        changing: bool = False,
    ) -> OpenTopic:
        interrupted = self.interrupted
        while True:  # during each await, others may have opened, changed, deleted or recreated it
            self.check_serving()
            record = await self._record(principal, name, create=create, reliable=reliable)
            record.check_partition(name)
            found = self._opened.get(name)
            if found is not None and (found.topic.lost or found.record.id != record.id):
                await self.let_go(found)
            elif (
                interrupted is not None
                and not changing
                and (found is None or found.changing)
                and interrupted.unfinished(record.id)
            ):
                await interrupted.finish(record)
            elif found is not None:
                return found
            else:
                break
        opening = self._opening.get(name)
        if opening is None:
            opening = self._opening[name] = self._loop.create_task(self._open(name, record, changing))
            opening.add_done_callback(lambda done: self._done_opening(name, done))
        return await asyncio.shield(opening)

    def _done_opening(self, name: TopicName, opening: Task[OpenTopic]) -> None:
        if self._opening.get(name) is opening:  # otherwise the topic was deleted meanwhile, and perhaps recreated
            del self._opening[name]
        retrieve(opening)

    async def _open(self, name: TopicName, record: TopicRecord, changing: bool) -> OpenTopic:
        self.ask(SYSTEM, Action.TOPIC_SERVE, name)  # as long as it is open, the broker maintains it and uploads it
        namespace = self._directory.policies(name.namespace)
        self._count(name.namespace, namespace)
        policies = record.policies.over(namespace)
        async with self._turns:
            options = topic_options(record, policies, self._dependencies.defaults)
            tenure = await self.router.tenure(record, name)
            if record.reliable:
                try:
                    kept = await Topic.open(tenure, self._dependencies, options, str(name))
                except (asyncio.CancelledError, OwnershipLost):
                    self._directory.get(name)  # raises `TopicNotFound` for the callers if it was deleted
                    raise
                for watcher in self.watchers:
                    watcher(name, record.id, kept)
                served: ServedTopic = kept
            else:
                served = BestEffortTopic(str(name), self._dependencies.clock, options)
        current = self._directory.find(name)  # it may have changed meanwhile
        if current is None or current.id != record.id:
            deleted = TopicNotFound(f"topic {name} was deleted")
            await served.close(deleted, seal=False)
            raise deleted
        place = self.router.where(record, name)
        if isinstance(place, Elsewhere):  # it was moved after the last of its streams was opened
            await served.close(seal=False)
            raise place.refusal(name)
        opened = self._opened[name] = OpenTopic(name, record, served, policies, self._room, changing=changing)
        self._follow(opened, current, self._directory.policies(name.namespace))
        opened.settle_usage()
        return opened

    # -- what is open --------------------------------------------------------------------------------------------------

    def opened(self) -> list[OpenTopic]:
        """All open topics, in the order of opening."""
        return list(self._opened.values())

    def find(self, name: TopicName) -> OpenTopic | None:
        """The topic or partition, if it is open."""
        return self._opened.get(name)

    def reliable_topics(self) -> list[Topic]:
        """The open topics that store messages."""
        return [each.reliable for each in self._opened.values() if each.topic.reliable]

    def count_rejected(self, error: DanubeError) -> None:
        self.rejected[error.code] = self.rejected.get(error.code, 0) + 1

    async def let_go(self, lost: OpenTopic) -> None:
        """Closes a topic that another broker owns now, or that was deleted; its clients look it up again."""
        if self._opened.get(lost.name) is lost:
            del self._opened[lost.name]
            await lost.end(TopicClosed(f"this broker no longer serves {lost.name}"))

    async def lose(self, topic: str) -> None:
        """Called with a topic that was assigned to another broker: ends its users here, who look it up again."""
        for each in self.opened():
            if each.record.stream(each.name.partition) == topic:
                await self._lose(each)

    async def lose_moved(self) -> None:
        """Ends all topics that are assigned to another broker now."""
        for each in self.opened():
            if self.router.where(each.record, each.name) is not HERE:
                await self._lose(each)

    async def _lose(self, moved: OpenTopic) -> None:
        if moved.topic.reliable:
            moved.reliable.lose(OwnershipLost(f"{moved.name} was assigned to another broker"))
        await self.let_go(moved)

    @contextmanager
    def unless_deleted(self, opened: OpenTopic) -> Iterator[None]:
        """Says that the topic was deleted if work fails because of that: the topic only knows that it has no owner."""
        try:
            yield
        except DanubeError:
            present = self._directory.find(opened.name)
            if present is None or present.id != opened.record.id:
                raise TopicNotFound(f"topic {opened.name} was deleted") from None
            raise

    async def end(self, record: TopicRecord) -> None:
        """Ends a topic that was deleted, and tells the clients that use it or wait for it."""
        deleted, names = TopicNotFound(f"topic {record.name} was deleted"), record.partition_names()
        opened = [self._opened.pop(name) for name in names if name in self._opened]
        opening = [self._opening.pop(name) for name in names if name in self._opening]
        await asyncio.gather(*(each.end(deleted, seal=False) for each in opened))  # no ledger of it is needed again
        if opening:
            await cut_off(opening)
            await self._directory.settled()  # what they decided must be visible before leftovers are looked for
        self.router.forget(record)

    # -- policies and the bytes of namespaces --------------------------------------------------------------------------

    def follow_topic(self, whole: TopicName) -> None:
        """Applies a changed record to the topic's open partitions."""
        for opened in [each for each in self._opened.values() if each.name.whole == whole]:
            if (record := self._directory.find(whole)) is not None and record.id == opened.record.id:
                self._follow(opened, record, self._directory.policies(whole.namespace))

    def follow_namespace(self, name: str, policies: Policies) -> None:
        self._count(name, policies)
        for opened in self._opened.values():
            if opened.name.namespace == name:
                self._follow(opened, opened.record, policies)
                opened.settle_usage()

    def _follow(self, opened: OpenTopic, record: TopicRecord, namespace: Policies) -> None:
        usage = self._usages.get(opened.name.namespace)
        opened.follow(record, record.policies.over(namespace), usage, self._dependencies.clock)

    def _count(self, namespace: str, policies: Policies) -> None:
        """Counts the bytes that its topics store, if there is a limit: open ones at once, the others soon."""
        if policies.namespace_bytes_max is None:
            self._usages.pop(namespace, None)
        elif namespace not in self._usages:
            self._usages[namespace] = Usage()
            counting = self._counting[namespace] = self._loop.create_task(self._count_closed(namespace))
            counting.add_done_callback(lambda _: self._counting.pop(namespace, None))

    async def _count_closed(self, namespace: str) -> None:
        """Counts topics that are not open. After an unclean stop the length of the last ledger is unknown, so such a
        topic is opened, unless another broker owns it: then what is sealed is counted."""
        usage = self._usages[namespace]
        for record in self._directory.topics(namespace):
            for name in record.partition_names() if record.reliable else ():
                if name in self._opened or name in self._opening:
                    continue
                stream, _ = await self._dependencies.catalog.load(record.stream(name.partition))
                if stream.unsealed is None or self.router.where(record, name) is not HERE:
                    usage.set(str(name), stream.bytes)
                    continue
                try:
                    await self.open(SYSTEM, Action.TOPIC_SERVE, str(name))
                except DanubeError as error:
                    log.warning("could not count the bytes stored in %s yet: %s", name, error)
            await asyncio.sleep(0)  # there may be many

    async def counted(self, namespace: str) -> None:
        """Waits until the bytes that its topics store are counted, if there is a limit."""
        if namespace in self._counting:
            await asyncio.wait([self._counting[namespace]])

    def uncount_topic(self, record: TopicRecord) -> None:
        """Stops counting a topic that stores nothing any longer."""
        if (usage := self._usages.get(record.name.namespace)) is not None:
            for name in record.partition_names():
                usage.forget(str(name))

    def uncount_namespace(self, name: str) -> None:
        self._usages.pop(name, None)

    # -- the end -------------------------------------------------------------------------------------------------------

    def check_serving(self) -> None:
        if self.stopping:
            raise TopicClosed("the broker is stopping")

    def stop(self) -> None:
        """Refuses to open or publish anything from now on."""
        self.stopping = True

    async def give_up_opening(self) -> None:
        """Waits briefly for topics that are being opened, then cancels the rest."""
        counting, opening = list(self._counting.values()), list(self._opening.values())
        for task in counting:
            task.cancel()
        if opening:
            await asyncio.wait(opening, timeout=SEALING_SECONDS)
        await cancel_all([*counting, *opening])  # those that wait for a disk, or for object storage

    async def close(self) -> None:
        """Makes every topic durable and closes it. If there are very many, not all are sealed."""
        opened = self.opened()
        for served in opened:
            served.let_go()
        why, sealed_until = TopicClosed("the broker is stopping"), self._loop.time() + SEALING_SECONDS
        for at in range(0, len(opened), TOPICS_CLOSING):
            seal = self._loop.time() < sealed_until
            await asyncio.gather(*(each.end(why, seal=seal) for each in opened[at : at + TOPICS_CLOSING]))
