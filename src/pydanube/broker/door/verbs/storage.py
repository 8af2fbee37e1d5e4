"""What lies where: on disk and in object storage, whether it is sound, and what of it may be read directly."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from pydanube.access.rights import Action, namespace_resource
from pydanube.base.errors import NotAllowed, TopicNotFound
from pydanube.base.names import parse_topic
from pydanube.broker.cold.storage_admin import ObjectStorageStatus, Part, Usage
from pydanube.broker.cold.topic_tables import TABLE_STEPS, TableStatus
from pydanube.broker.directory.directory import TopicRecord
from pydanube.broker.door.stats import usage_of
from pydanube.broker.door.verbs.base import Verbs
from pydanube.broker.door.verbs.topics import records_of
from pydanube.broker.topic.topic import Topic
from pydanube.broker.work.jobs import JobAnswer
from pydanube.stream.segments import Segment

USAGES_A_TURN = 50  # topics, before others of the loop have theirs


class StorageVerbs(Verbs):
    __slots__ = ()

    async def _topic(self, action: Action, name: str) -> Topic:
        """The partition that is named, or the topic that has none."""
        return (await self._door.topics.open(self._principal, action, name)).reliable

    # -- of the broker -------------------------------------------------------------------------------------------------

    async def status(self) -> tuple[ObjectStorageStatus, str | None]:
        """How object storage stands, and what is wrong with it now, with a look at it if there is any."""
        self._ask(Action.STORAGE_STATUS)
        tiers = self._door.tiers
        wrong = await tiers.check() if tiers.configured else None
        return tiers.status(), wrong

    def place(self) -> tuple[str, Mapping[str, str]] | None:
        """Where the objects are, for those who have credentials of their own; None if only the broker gets there."""
        self._ask(Action.STORAGE_PLACE)
        return self._door.tiers.direct_location

    async def damaged(self) -> list[str]:
        """Topics of which something is known to be damaged, or may be; by name."""
        self._ask(Action.STORAGE_STATUS)
        return await self._door.salvage.damaged()

    # -- of topics -----------------------------------------------------------------------------------------------------

    async def usage(self, name: str) -> Usage:
        """What a topic that keeps messages, or one partition, has in which tier."""
        door = self._door
        places = await door.topics.places(self._principal, Action.STORAGE_DESCRIBE, name)
        places[0].reliable  # noqa: B018 - raises if it keeps none
        return usage_of(places, door.tiers, door.clock.wall())

    async def listed(self, namespace: str, after: str, limit: int) -> tuple[list[tuple[str, Usage]], bool]:
        """Of the next topics of a namespace that keep messages, behind the one of that name; whether there are more.

        Those that the caller may not see are left out.
        """
        self._ask(Action.STORAGE_DESCRIBE, namespace_resource(namespace))
        found: list[TopicRecord] = []
        more = True
        while more and len(found) <= limit:
            known = await records_of(self._door.directory, namespace, f"/{namespace}/{after}", limit + 1)
            found += [record for record in known if record.reliable and self._may_see(record)]
            more = len(known) > limit
            after = known[-1].name.name if known else after
        usages: list[tuple[str, Usage]] = []
        for count, record in enumerate(found[:limit], 1):
            try:
                usages.append((str(record.name), await self.usage(str(record.name))))
            except (TopicNotFound, NotAllowed):
                continue  # it was deleted meanwhile, or taken from the caller
            if not count % USAGES_A_TURN:
                await asyncio.sleep(0)
        return usages, len(found) > limit

    def _may_see(self, record: TopicRecord) -> bool:
        try:
            self._door.topics.ask(self._principal, Action.STORAGE_DESCRIBE, record.name)
        except NotAllowed:
            return False
        return True

    async def segments(self, name: str, start: int = 0, limit: int | None = None) -> list[Part]:
        """The parts of a topic or partition that end at `start` or behind it, oldest first."""
        return await self._door.tiers.parts(await self._topic(Action.STORAGE_DESCRIBE, name), start, limit)

    async def sealed(self, name: str, start: int, end: int, limit: int) -> list[tuple[str, Segment]]:
        """Segments with offsets from `start` to `end`, without `end`, and the keys of their objects, to be read."""
        return await self._door.tiers.sealed(await self._topic(Action.TOPIC_READ, name), start, end, limit)

    async def table(self, name: str) -> TableStatus:
        """Of a topic as a whole, whichever partition is named. `ObjectsRefused` if it cannot have one here."""
        door = self._door
        topics = [each.reliable for each in await door.topics.places(self._principal, Action.STORAGE_DESCRIBE, name)]
        tiering, streams = door.tiers.tiering, [topic.ledger.stream for topic in topics]
        uri = tiering.tables.uri(streams[0].name)
        made = any(stream.record.cold.tabled for stream in streams)
        troubles = [trouble for stream in streams for trouble in tiering.troubles.of(stream.name, *TABLE_STEPS)]
        return TableStatus(uri, made, any(topic.options.table for topic in topics), tuple(dict.fromkeys(troubles)))

    async def verify(self, name: str, first: int, ticket: int | None) -> JobAnswer:
        """Reads the segment that starts at `first` again; the result is a `Verified`."""
        return await self._door.tiers.verify(await self._topic(Action.STORAGE_VERIFY, name), first, ticket)

    async def upload(self, name: str, ticket: int | None) -> JobAnswer:
        """All that is there when it is first asked for; the result is an `Uploaded`."""
        return await self._door.tiers.upload(await self._topic(Action.STORAGE_UPLOAD, name), ticket)

    async def salvage(self, name: str, *, accept: bool, ticket: int | None) -> JobAnswer:
        """What is damaged of a topic or partition and was not accepted yet; with `accept` it is, when this is done.

        The result is an `Examined`.
        """
        self._door.topics.ask(self._principal, Action.STORAGE_SALVAGE, parse_topic(name))  # also with a ticket
        return await self._door.salvage.examine(self._principal, name, accept=accept, ticket=ticket)
