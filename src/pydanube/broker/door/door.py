"""The door: puts together everything below the faces. A caller gets a session, and nothing else."""

from __future__ import annotations

import asyncio
from asyncio import Task
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from pydanube.access.principals import ANONYMOUS, Principal
from pydanube.access.rights import Authorise, authorise
from pydanube.adapters.threads import ThreadOffload
from pydanube.base.errors import TokensNotConfigured, Unauthenticated
from pydanube.broker.cold.storage_admin import StorageAdmin
from pydanube.broker.cold.tiering import Space, Tiering
from pydanube.broker.commit.sinks import Sinks
from pydanube.broker.directory.directory import Directory
from pydanube.broker.directory.pending_options import PendingOptions
from pydanube.broker.directory.topic_changes import TopicChanges
from pydanube.broker.door.asking import Asking
from pydanube.broker.door.backups import Backups
from pydanube.broker.door.known_consumers import KnownConsumers
from pydanube.broker.door.leasing import Leasing
from pydanube.broker.door.metrics import Metrics
from pydanube.broker.door.pipelines import Pipelines
from pydanube.broker.door.presence import Presence
from pydanube.broker.door.process import Process
from pydanube.broker.door.session import Origin, Session
from pydanube.broker.limits.disk_room import DiskRoom
from pydanube.broker.limits.intake import Account, Intake
from pydanube.broker.routing.losses import Losses
from pydanube.broker.routing.router import Router
from pydanube.broker.schemas.registry import Registry
from pydanube.broker.security.roles import Roles
from pydanube.broker.serving.dead_letters import publish_dead_letter
from pydanube.broker.serving.house import Housekeeping
from pydanube.broker.serving.leftovers import Leftovers
from pydanube.broker.serving.lifecycle import Lifecycle
from pydanube.broker.serving.open_topics import OpenTopics
from pydanube.broker.serving.redrive import Redriver
from pydanube.broker.serving.reopening import reopen
from pydanube.broker.serving.salvage import Salvage
from pydanube.broker.serving.spreading import Spreading
from pydanube.broker.state.options import TopicOptions
from pydanube.broker.topic.dependencies import LetterSource, TopicDependencies
from pydanube.broker.work.errands import Errands
from pydanube.operations.broker import Connection
from pydanube.ports.catalog import Catalog
from pydanube.ports.clock import Clock
from pydanube.ports.offload import Offload
from pydanube.ports.randomness import Randomness
from pydanube.ports.storage import StorageNodes
from pydanube.storage.checked_clock import checked_clock
from pydanube.storage.stream.cold import ColdReader, ColdTier
from pydanube.storage.stream.tail import TailCache
from pydanube.wire.batch import Batch

if TYPE_CHECKING:
    from pydanube.broker.security.security import Security


class Door:
    """Owned by the broker's loop. `authorise` is asked before every operation, including those of the broker itself."""

    def __init__(
        self,
        directory: Directory,
        catalog: Catalog,
        nodes: StorageNodes,
        clock: Clock,
        randomness: Randomness,
        *,
        router: Router | None = None,
        cache: TailCache | None = None,
        auto_create: bool = True,
        room: DiskRoom | None = None,
        tier: ColdTier | None = None,
        space: Callable[[], Awaitable[Space]] | None = None,
        claim: Callable[[], Awaitable[None]] | None = None,
        offload: Offload | None = None,
        backups: Backups | None = None,
        defaults: TopicOptions | None = None,
        authorise: Authorise = authorise,
        security: Security | None = None,
    ) -> None:
        self.authorise = Asking(authorise if security is None else security.authorise)
        self.security = security  # None if the broker has no authentication
        self.roles = Roles(directory.store)
        self.directory = directory
        self.clock = checked_clock(clock)
        self.intake = Intake()
        self.room = room or DiskRoom()
        self.offload = offload or ThreadOffload(1)
        self.cache = cache or TailCache()
        self.backups = backups  # None if the broker has no storage of its own
        self.process: Process | None = None  # None until it listens
        self.errands = Errands()
        self.pending = PendingOptions(directory.store)
        self.schemas = Registry(directory.store, self.clock, self.offload)
        self.presence = Presence(clock.wall())
        self.topic_changes = TopicChanges(directory.store)
        self.around = TopicDependencies(
            catalog, nodes, self.clock, self.cache, self._publish_dead_letter, tier, self.offload,
            defaults=defaults or TopicOptions(),
        )  # fmt: skip
        self.router = router or Router.of("", directory.store, catalog, randomness)
        directory.owner = self.router.me
        self.topics = OpenTopics(
            directory, self.router, self.around, self.room, self.authorise, auto_create=auto_create
        )
        self.spreading = Spreading(self.topics, directory, self.pending, self.errands)
        self.tiering = (
            None if tier is None else Tiering(tier, self.clock, self.topics.reliable_topics, space=space, claim=claim)
        )
        self.tiers = StorageAdmin(self.tiering, ColdReader(None) if tier is None else tier.reader, directory.store)
        self.leftovers = Leftovers(self.around, self.tiering)
        self.lifecycle = Lifecycle(
            directory, self.topics, self.spreading, self.pending, self.leftovers, self.errands, self.authorise
        )
        self.sinks = Sinks(self.topics, self.lifecycle, directory, self.errands, self.clock, self.authorise)
        self.salvage = Salvage(self.topics, directory, self.around)
        self.redriver = Redriver(self.topics, directory.store, self.errands, self.offload, self.clock)
        self.pipelines = Pipelines(self.clock)
        self.leasing = Leasing(self.clock)
        self.topics.interrupted = self.spreading
        self.topics.watchers.append(self.sinks.opened)
        self.lifecycle.guards.append(self.sinks.check_deletable)
        self.housekeeping = Housekeeping(
            self.topics, self.leftovers, lambda: self.leftovers.find(directory), self.room, self.intake, self.clock
        )
        self.metrics = Metrics(
            self.topics, self.tiers, self.tiering, self.pipelines, self.sinks, self.presence, self.cache, self.clock,
            self.room, self.leasing,
        )  # fmt: skip
        if security is not None:
            security.reconsider = self.reconsider
        self.losses = Losses(self.router.assignments, self.router.me, self.topics.lose, self.topics.lose_moved)
        self.losses.begin()
        loops = (self.housekeeping, self.sinks, self.room, self.topic_changes, self.tiering, self.losses, security)
        self.presence.guards += [each.guard for each in loops if each is not None]
        self._loop = asyncio.get_running_loop()
        self._reopening: Task[None] | None = None
        self._moving = None if self.tiering is None else self._loop.create_task(self.tiering.run())

    # -- faces ---------------------------------------------------------------------------------------------------------

    def session(self, principal: Principal, origin: Origin) -> Session:
        """A session through which the caller does everything."""
        return Session(self, principal, origin)

    @property
    def keys_version(self) -> int:
        return 0 if self.security is None else self.security.keys_version

    def authenticate(self, token: str | None, origin: Origin, *, needs_token: bool = False) -> Session:
        """A session of the principal that the token names. Without authentication, every caller is anonymous."""
        if self.security is None:
            if token is not None:
                raise TokensNotConfigured("this broker checks no tokens, but one was sent")
            return Session(self, ANONYMOUS, origin)
        if token is None and needs_token:
            raise Unauthenticated("this broker needs a token, and none was sent")
        return Session(self, self.security.identify(token, origin.address), origin)

    @cached_property
    def known_consumers(self) -> KnownConsumers:
        """Read when the first client needs one of them."""
        return KnownConsumers(self.directory.store)

    def add_connections(self, listed: Callable[[], Iterable[Connection]]) -> Iterator[int]:
        """Shows the connections of a listener to those who may see them. Returns the numbers of new ones."""
        self.presence.listed.append(listed)
        return self.presence.numbers

    def account(self) -> Account:
        """Counts what one connection publishes. While it sends faster than the disk writes, it is not read from."""
        return Account(self.intake)

    def reconsider(self) -> None:
        """Called when rights have changed: ends producers and consumers that are no longer allowed, with the reason."""
        self.topics.reconsider()

    # -- the process ---------------------------------------------------------------------------------------------------

    async def _publish_dead_letter(self, topic: str, message: Batch, source: LetterSource) -> None:
        await publish_dead_letter(self.topics, self.directory, self.room, topic, message, source)

    def time_moved(self) -> None:
        """Called when a test has moved the clock: does everything that has become due."""
        self.housekeeping.time_moved()
        for topic in self.topics.reliable_topics():
            for host in topic.subscriptions.values():
                host.wake()
        self.leasing.pass_time()

    def reopen(self) -> None:
        """Opens all topics that store messages in the background, so that retention and expiry work without clients."""
        assert self._reopening is None
        self._reopening = self._loop.create_task(self._reopen())
        self.sinks.resume()

    async def _reopen(self) -> None:
        if self.process is not None:
            await self.router.announce(self.process.address.address)
        await reopen(self.topics, self.spreading, self.directory)

    async def close(self) -> None:
        """Accepts no new work, makes every topic durable, and closes it."""
        self.topics.stop()
        self.leasing.close()
        await self.housekeeping.close()
        background = [task for task in (self._reopening, self._moving) if task is not None]
        for task in background:
            task.cancel()
        await self.losses.close()
        await self.topics.give_up_opening()
        await asyncio.gather(*background, return_exceptions=True)
        await self.sinks.close()
        await self.errands.close()
        await self.topic_changes.close()
        await self.leftovers.close()
        await self.salvage.close()
        await self.tiers.close()
        if self.tiering is not None:
            await self.tiering.close()
        await self.topics.close()
