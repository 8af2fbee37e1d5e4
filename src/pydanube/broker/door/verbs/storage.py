"""What is stored on disk and in object storage, whether it is intact, and what clients may read directly."""

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

USAGES_A_TURN = 50  # topics, before other tasks of the loop get their turns


class StorageVerbs(Verbs):
    __slots__ = ()

    async def _topic(self, action: Action, name: str) -> Topic:
        """The named partition, or the topic if it is not partitioned."""
        return (await self._door.topics.open(self._principal, action, name)).reliable

    # -- of the broker -------------------------------------------------------------------------------------------------

    async def status(self) -> tuple[ObjectStorageStatus, str | None]:
        """The status of object storage and its present problem, if any; object storage is contacted to find out."""
        self._ask(Action.STORAGE_STATUS)
        tiers = self._door.tiers
        wrong = await tiers.check() if tiers.configured else None
        return tiers.status(), wrong

    def place(self) -> tuple[str, Mapping[str, str]] | None:
        """Where the objects are, for clients with credentials of their own; None if only the broker can reach them."""
        self._ask(Action.STORAGE_PLACE)
        return self._door.tiers.direct_location

    async def damaged(self) -> list[str]:
        """The names of topics in which something is, or may be, damaged."""
        self._ask(Action.STORAGE_STATUS)
        return await self._door.salvage.damaged()

    # -- of topics -----------------------------------------------------------------------------------------------------

    async def usage(self, name: str) -> Usage:
        """How much a reliable topic, or one partition, stores in each tier."""
        door = self._door
        places = await door.topics.places(self._principal, Action.STORAGE_DESCRIBE, name)
        places[0].reliable  # noqa: B018 - raises if it stores no messages
        return usage_of(places, door.tiers, door.clock.wall())

    async def listed(self, namespace: str, after: str, limit: int) -> tuple[list[tuple[str, Usage]], bool]:
        """The usage of the next reliable topics of a namespace after the topic `after`, and whether there are more.

        Topics that the caller may not see are left out.
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
        """The parts of a topic or partition that end at `start` or later, oldest first."""
        return await self._door.tiers.parts(await self._topic(Action.STORAGE_DESCRIBE, name), start, limit)

    async def sealed(self, name: str, start: int, end: int, limit: int) -> list[tuple[str, Segment]]:
        """Segments with offsets from `start` to before `end`, with the keys of their objects, for direct reads."""
        return await self._door.tiers.sealed(await self._topic(Action.TOPIC_READ, name), start, end, limit)

    async def table(self, name: str) -> TableStatus:
        """The table of the whole topic, whichever partition is named. `ObjectsRefused` if it cannot have one here."""
        door = self._door
        topics = [each.reliable for each in await door.topics.places(self._principal, Action.STORAGE_DESCRIBE, name)]
        tiering, streams = door.tiers.tiering, [topic.ledger.stream for topic in topics]
        uri = tiering.tables.uri(streams[0].name)
        made = any(stream.record.cold.tabled for stream in streams)
        troubles = [trouble for stream in streams for trouble in tiering.troubles.of(stream.name, *TABLE_STEPS)]
        return TableStatus(uri, made, any(topic.options.table for topic in topics), tuple(dict.fromkeys(troubles)))

    async def verify(self, name: str, first: int, ticket: int | None) -> JobAnswer:
        """Reads back the segment that starts at `first`; the result is a `Verified`."""
        return await self._door.tiers.verify(await self._topic(Action.STORAGE_VERIFY, name), first, ticket)

    async def upload(self, name: str, ticket: int | None) -> JobAnswer:
        """Uploads everything that exists at the first call; the result is an `Uploaded`."""
        return await self._door.tiers.upload(await self._topic(Action.STORAGE_UPLOAD, name), ticket)

    async def salvage(self, name: str, *, accept: bool, ticket: int | None) -> JobAnswer:
        """Finds damage of a topic or partition whose loss was not accepted yet; with `accept`, it is accepted now.

        The result is an `Examined`.
        """
        self._door.topics.ask(self._principal, Action.STORAGE_SALVAGE, parse_topic(name))  # also with a ticket
        return await self._door.salvage.examine(self._principal, name, accept=accept, ticket=ticket)
