"""The broker as a whole: what it is, which settings are in force, how it is doing, and who is connected."""

from __future__ import annotations

from contextlib import suppress
from typing import ClassVar

from pydanube.access.rights import Action
from pydanube.base.errors import NotAllowed, TopicClosed
from pydanube.base.limits import LISTED_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.door.attention import Attention
from pydanube.broker.door.presence import status_of
from pydanube.broker.door.process import Process
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.operations.broker import (
    BrokerAddress,
    Connections,
    DescribeBroker,
    GetSettings,
    GetStatus,
    ListConnections,
    Lookup,
    LookUpTopic,
    Settings,
    Status,
)
from pydanube.operations.subscriptions import BlockedSubscription, ListBlocked


class BrokerVerbs(Verbs):
    __slots__ = ()

    def stopping(self) -> bool:
        self._ask(Action.STATUS)
        return self._door.topics.stopping

    def publishing_refused(self) -> bool:
        """Whether publishing is refused because the disk is nearly full. The broker is ready even so, because acks free
        room."""
        self._ask(Action.HEALTH)
        return self._door.room.short

    async def attention(self) -> Attention:
        """Blocked subscriptions are included if the caller may list them."""
        self._ask(Action.STATUS)
        blocked: list[BlockedSubscription] = []
        with suppress(NotAllowed):
            blocked = (await self._session.carry_out(ListBlocked())).blocked
        self._ask(Action.STATUS)  # looking for them may have taken long
        door = self._door
        failing = [(each.name, each.failing) for each in door.presence.guards if each.failing]
        return Attention(door.room.short, failing, blocked)

    # -- the process ---------------------------------------------------------------------------------------------------

    def _process(self) -> Process:
        if self._door.process is None:
            raise TopicClosed("the broker is starting")
        return self._door.process

    def address(self) -> BrokerAddress:
        self._ask(Action.STATUS)
        return self._process().address

    async def describe(self, request: DescribeBroker) -> BrokerAddress:
        return self.address()

    async def look_up(self, request: LookUpTopic) -> Lookup:
        name, record = parse_topic(request.topic), await self._session.topics.lookup(request.topic)
        if name.partition is not None:
            record.check_partition(name)
        here = self._process().address
        url, address = here.url, await self._session.topics.address_elsewhere(request.topic)
        if address is not None:
            url = f"{here.url.partition('://')[0]}://{address}"
        return Lookup(here.version, url, address or here.address, str(record.name), record.partitions)

    async def settings(self, request: GetSettings) -> Settings:
        self._ask(Action.CONFIG)
        return self._process().settings

    async def metrics(self) -> bytes:
        """The text for Prometheus, which may be slightly old."""
        self._ask(Action.METRICS)
        page = await self._door.metrics.page()
        self._ask(Action.METRICS)  # it may have been made meanwhile
        return page

    # -- how it is doing -----------------------------------------------------------------------------------------------

    async def status(self, request: GetStatus) -> Status:
        self._ask(Action.STATUS)
        door = self._door
        return await status_of(door.topics, door.presence, door.room, door.clock)

    async def list_connections(self, request: ListConnections) -> Connections:
        self._ask(Action.CONNECTION_LIST)
        found = self._door.presence.connections(request.after, min(request.limit, LISTED_MAX) + 1)
        return Connections(*page(found, request.limit))

    carries_out: ClassVar = (
        DescribeBroker.carried_out_by(describe),
        LookUpTopic.carried_out_by(look_up),
        GetSettings.carried_out_by(settings),
        GetStatus.carried_out_by(status),
        ListConnections.carried_out_by(list_connections),
    )
