"""What is stored on disk and in object storage, whether it is intact, and what clients may read directly."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar

from pydanube.access.rights import Action, namespace_resource
from pydanube.base.errors import NotAllowed, OffsetsDamaged, RequestInvalid, TopicNotFound
from pydanube.base.limits import LISTED_MAX
from pydanube.base.names import parse_topic
from pydanube.broker.cold.storage_admin import Part, Uploaded, Usage, Verified, first_few
from pydanube.broker.cold.topic_tables import TABLE_STEPS
from pydanube.broker.door.stats import usage_facts, usage_of
from pydanube.broker.door.verbs.base import Verbs, page
from pydanube.broker.door.verbs.topics import records_of
from pydanube.broker.serving.salvage import Examined, Found, StateLeft
from pydanube.broker.topic.topic import Topic
from pydanube.operations.storage import (
    Damage,
    DamagedTopics,
    DescribeTable,
    GetObjectStorage,
    GetUsage,
    ListDamage,
    ListSealed,
    ListSegments,
    ListUsage,
    LocateObjects,
    ObjectsLocation,
    ObjectStorage,
    RemainingState,
    Salvage,
    SalvageTopic,
    SealedSegment,
    SealedSegments,
    Segments,
    SegmentSummary,
    SubscriptionFloor,
    Table,
    TopicUsage,
    TopicUsages,
    Upload,
    UploadTopic,
    Verification,
    VerifySegment,
)
from pydanube.stream.segments import Segment
from pydanube.topic.record import TopicRecord

USAGES_A_TURN = 50  # topics, before other tasks of the loop get their turns


class StorageVerbs(Verbs):
    __slots__ = ()

    async def _topic(self, action: Action, name: str) -> Topic:
        """The named partition, or the topic if it is not partitioned."""
        return (await self._door.topics.open(self._principal, action, name)).reliable

    # -- of the broker -------------------------------------------------------------------------------------------------

    async def status(self, request: GetObjectStorage) -> ObjectStorage:
        """The status of object storage, which is contacted if it is configured."""
        self._ask(Action.STORAGE_STATUS)
        tiers = self._door.tiers
        trouble = await tiers.check() if tiers.configured else None
        found = tiers.status()
        return ObjectStorage(
            objects=found.location,
            claimed=found.claimed,
            trouble=trouble,
            troubles=list(found.troubles),
            troubled_topics=found.troubled,
            uploads=found.uploaded,
            uploaded_bytes=found.uploaded_bytes,
            failures=found.failures,
        )

    async def locate(self, request: LocateObjects) -> ObjectsLocation:
        """Without a credential: readers use their own."""
        self._ask(Action.STORAGE_LOCATE)
        url, options = self._door.tiers.direct_location or (None, {})
        return ObjectsLocation(url, dict(options))

    async def list_damage(self, request: ListDamage) -> DamagedTopics:
        """The topics in which something is, or may be, damaged."""
        self._ask(Action.STORAGE_STATUS)
        found = [name for name in await self._door.salvage.damaged() if name > request.after]
        return DamagedTopics(*page(found, request.limit))

    # -- of topics -----------------------------------------------------------------------------------------------------

    async def usage(self, request: GetUsage) -> TopicUsage:
        """How much a reliable topic, or one partition, stores in each tier."""
        door = self._door
        partitions = await door.topics.open_all(self._principal, Action.STORAGE_DESCRIBE, request.topic)
        partitions[0].topic.as_reliable()  # raises if it stores no messages
        return TopicUsage(**usage_facts(usage_of(partitions, door.tiers, door.clock.wall())), topic=request.topic)

    async def list_usage(self, request: ListUsage) -> TopicUsages:
        """The usage of each reliable topic of a namespace, by name. Topics that the caller may not see are left out;
        one that cannot be opened because of damage says so."""
        namespace, after, limit = request.namespace, request.after, min(request.limit, LISTED_MAX)
        self._ask(Action.STORAGE_DESCRIBE, namespace_resource(namespace))
        may_see = partial(self._door.topics.allows, self._principal, Action.STORAGE_DESCRIBE)
        found: list[TopicRecord] = []
        more = True
        while more and len(found) <= limit:
            known = await records_of(self._door.directory, namespace, f"/{namespace}/{after}", limit + 1)
            found += [record for record in known if record.reliable and may_see(record.name)]
            more = len(known) > limit
            after = known[-1].name.name if known else after
        usages: list[TopicUsage] = []
        for count, record in enumerate(found[:limit], 1):
            try:
                usages.append(await self.usage(GetUsage(str(record.name))))
            except (TopicNotFound, NotAllowed):
                continue  # it was deleted meanwhile, or taken from the caller
            except OffsetsDamaged as error:
                usages.append(TopicUsage(**usage_facts(Usage(troubles=(str(error),))), topic=str(record.name)))
            if not count % USAGES_A_TURN:
                await asyncio.sleep(0)
        rows, cut = page(usages, limit)
        return TopicUsages(rows, cut or len(found) > limit)

    async def segments(self, name: str, start: int = 0, limit: int | None = None) -> list[Part]:
        """The parts of a topic or partition that end at `start` or later, oldest first."""
        return await self._session.allowed_to_see(self._segments(name, start, limit))

    async def _segments(self, name: str, start: int, limit: int | None) -> list[Part]:
        return await self._door.tiers.parts(await self._topic(Action.STORAGE_DESCRIBE, name), start, limit)

    async def list_segments(self, request: ListSegments) -> Segments:
        limit = min(request.limit, LISTED_MAX)
        found = await self._segments(request.topic, request.start, limit + 1)
        return Segments(*page([_summary(request.topic, part) for part in found], limit))

    async def list_sealed(self, request: ListSealed) -> SealedSegments:
        """Segments with offsets from `start` to before `end`, with the keys of their objects, for direct reads."""
        start, end, limit = request.start, request.end, min(request.limit, LISTED_MAX)
        if start > end:
            raise RequestInvalid(f"offsets {start} to {end} are not a valid range")
        topic = await self._topic(Action.TOPIC_READ, request.topic)
        found = await self._door.tiers.sealed(topic, start, end, limit + 1)
        return SealedSegments(*page([_sealed(key, segment) for key, segment in found], limit))

    async def table(self, request: DescribeTable) -> Table:
        """The table of the whole topic, whichever partition is named. `ObjectsRefused` if it cannot have one here."""
        door, name = self._door, request.topic
        topics = [each.reliable for each in await door.topics.open_all(self._principal, Action.STORAGE_DESCRIBE, name)]
        tiering, streams = door.tiers.tiering, [topic.ledger.stream for topic in topics]
        troubles = [trouble for stream in streams for trouble in tiering.troubles.of(stream.name, *TABLE_STEPS)]
        return Table(
            topic=name,
            format="delta",
            uri=tiering.tables.uri(streams[0].name),
            made=any(stream.record.cold.tabled for stream in streams),
            grows=any(topic.options.table for topic in topics),
            troubles=list(first_few(list(dict.fromkeys(troubles)))),
        )

    # -- work that may outlast a request: it is answered with a ticket to ask again with -------------------------------

    async def verify(self, request: VerifySegment) -> Verification:
        """Reads back the segment that starts at `first`."""
        topic = await self._topic(Action.STORAGE_VERIFY, request.topic)
        job = await self._door.tiers.verify(topic, request.first, request.ticket)
        found: Verified | None = job.result
        answer = Verification(request.topic, request.first, found is not None, job.ticket)
        if found is not None:
            answer.segment, answer.result = found.id or None, found.result
            answer.object_bytes, answer.what = found.bytes, found.what or None
        return answer

    async def upload(self, request: UploadTopic) -> Upload:
        """Uploads everything that exists at the first call."""
        topic = await self._topic(Action.STORAGE_UPLOAD, request.topic)
        job = await self._door.tiers.upload(topic, request.ticket)
        found: Uploaded | None = job.result
        return Upload(request.topic, found is not None, job.ticket, *(found or ()))

    async def salvage(self, request: SalvageTopic) -> Salvage:
        """Finds damage of a topic or partition whose loss was not accepted yet; with `accept`, it is accepted now."""
        name, accept = request.topic, request.accept
        self._door.topics.ask(self._principal, Action.STORAGE_SALVAGE, parse_topic(name))  # also with a ticket
        job = await self._door.salvage.examine(self._principal, name, accept=accept, ticket=request.ticket)
        found: Examined | None = job.result
        answer = Salvage(name, found is not None, job.ticket, accept)
        if found is not None:
            answer.damage = [_damage(each) for each in found.found]
            answer.state_left = [_remaining(each) for each in found.left]
        return answer

    carries_out: ClassVar = (
        GetObjectStorage.carried_out_by(status),
        LocateObjects.carried_out_by(locate),
        ListDamage.carried_out_by(list_damage),
        GetUsage.carried_out_by(usage),
        ListUsage.carried_out_by(list_usage),
        ListSegments.carried_out_by(list_segments),
        ListSealed.carried_out_by(list_sealed),
        DescribeTable.carried_out_by(table),
        VerifySegment.carried_out_by(verify),
        UploadTopic.carried_out_by(upload),
        SalvageTopic.carried_out_by(salvage),
    )


def _summary(topic: str, part: Part) -> SegmentSummary:
    return SegmentSummary(topic, part.id, part.where, part.first, part.last, part.bytes, part.size, part.newest)


def _sealed(key: str, segment: Segment) -> SealedSegment:
    return SealedSegment(
        key=key,
        first=segment.first,
        last=segment.last,
        epoch=segment.epoch,
        rows=segment.rows,
        bytes=segment.bytes,
        object_bytes=segment.size,
        digest=segment.digest,
    )


def _damage(found: Found) -> Damage:
    lost = found.lost
    return Damage(found.topic, found.what, found.ledger, lost.first, lost.last, lost.messages if lost.known else None)


def _remaining(left: StateLeft) -> RemainingState:
    return RemainingState(left.topic, [SubscriptionFloor(*each) for each in left.subscriptions], left.lost)
