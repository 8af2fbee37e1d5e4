"""Operations on storage: what lies in which tier, whether it is intact, damage, and direct reads of segments."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import After, DamagedPart, Limit, Offset, SegmentState, TableFormat, Ticket, Whereabouts
from pydanube.operations.operation import Answer, Request, operation


class TierUsage(Answer):
    bytes: Annotated[int, Meta(description="bytes of all messages")]
    local_bytes: Annotated[int, Meta(description="bytes on the broker's disk")]
    object_bytes: Annotated[int, Meta(description="bytes of the objects in object storage")]
    segments: int
    waiting_bytes: Annotated[int, Meta(description="bytes that wait for upload")]
    doomed_objects: Annotated[int, Meta(description="objects that will be deleted")]
    lag_seconds: Annotated[float, Meta(description="how long the oldest of what waits for upload has waited")]
    troubles: list[str]


class TopicUsage(TierUsage):
    topic: str


class TopicUsages(Answer):
    topics: list[TopicUsage]
    more: bool


class ObjectStorage(Answer):
    objects: Annotated[str | None, Meta(description="URL of the object storage; null without one")]
    claimed: Annotated[bool, Meta(description="whether it belongs to this broker")]
    trouble: Annotated[str | None, Meta(description="why it does not answer")]
    troubles: Annotated[list[str], Meta(description="what fails, by topic")]
    troubled_topics: Annotated[int, Meta(description="topics for which something fails")]
    uploads: int
    uploaded_bytes: int
    failures: Annotated[dict[str, int], Meta(description="failed requests by kind")]


class SegmentSummary(Answer):
    topic: str
    segment: str
    where: Annotated[Whereabouts, Meta(description="what holds it: the disk, object storage, or both")]
    first: Annotated[int, Meta(description="its first offset")]
    last: Annotated[int, Meta(description="its last offset")]
    bytes: Annotated[int, Meta(description="bytes of its messages")]
    object_bytes: Annotated[int, Meta(description="bytes of the object; 0 without one")]
    newest: Annotated[int, Meta(description="append time of its last message, in microseconds since 1970")]


class Segments(Answer):
    segments: list[SegmentSummary]
    more: bool


class Table(Answer):
    topic: str
    format: TableFormat
    uri: str
    made: Annotated[bool, Meta(description="whether it exists yet")]
    grows: Annotated[bool, Meta(description="whether it gets what is uploaded")]
    troubles: list[str]


class Verification(Answer):
    """Fields of the result are there once it is `done`."""

    topic: str
    first: Annotated[int, Meta(description="the first offset of the segment")]
    done: bool
    ticket: Annotated[int | None, Meta(description="to ask again with, while it is not done")]
    segment: str | UnsetType | None = UNSET
    result: SegmentState | UnsetType = UNSET
    object_bytes: Annotated[int | UnsetType, Meta(description="bytes of the object that was read")] = UNSET
    what: Annotated[str | UnsetType | None, Meta(description="what is wrong")] = UNSET


class TopicVerification(Answer):
    """What a client makes of the verifications of all segments of a topic."""

    topic: str
    segments: int
    object_bytes: Annotated[int, Meta(description="bytes of the objects that were read")]
    troubles: Annotated[list[Verification], Meta(description="of segments that are lost, damaged or not readable now")]


class DamagedTopics(Answer):
    topics: list[str]
    more: bool


class Damage(Answer):
    topic: str
    what: DamagedPart
    ledger: int
    first: Annotated[int, Meta(description="the first damaged offset")]
    last: Annotated[int, Meta(description="the last damaged offset")]
    messages: Annotated[int | None, Meta(description="how many are lost; null if unknown")]


class SubscriptionFloor(Answer):
    subscription: str
    floor: Annotated[int, Meta(description="everything below this offset is done")]


class RemainingState(Answer):
    topic: str
    subscriptions: list[SubscriptionFloor]
    subscriptions_lost: int


class Salvage(Answer):
    """Fields of the result are there once it is `done`."""

    topic: str
    done: bool
    ticket: Annotated[int | None, Meta(description="to ask again with, while it is not done")]
    accepted: Annotated[bool, Meta(description="whether the loss was accepted")]
    damage: list[Damage] | UnsetType = UNSET
    state_left: Annotated[
        list[RemainingState] | UnsetType, Meta(description="what remains where the state of a partition is damaged")
    ] = UNSET


class Upload(Answer):
    """Fields of the result are there once it is `done`."""

    topic: str
    done: bool
    ticket: Annotated[int | None, Meta(description="to ask again with, while it is not done")]
    segments: Annotated[int | UnsetType, Meta(description="uploaded segments")] = UNSET
    messages: int | UnsetType = UNSET
    bytes: Annotated[int | UnsetType, Meta(description="bytes of the messages")] = UNSET
    object_bytes: Annotated[int | UnsetType, Meta(description="bytes of the objects")] = UNSET


class LostTopic(Answer):
    """What a topic or partition has lost, besides its subscriptions and producers."""

    topic: str
    messages: int  # in sealed ledgers, and stored nowhere else
    more: bool  # a ledger was open, so an unknown number of messages is lost as well
    stored: int  # messages in object storage, which stay


class LostNode(Answer):
    """What `danube storage forget-node` gives up, while the broker does not run."""

    node: str
    topics: list[LostTopic]
    accepted: bool


class ObjectsLocation(Answer):
    url: str | None
    options: dict[str, str]


class SealedSegment(Answer):
    key: Annotated[str, Meta(description="key of the object")]
    first: int
    last: int
    epoch: int
    rows: int
    bytes: Annotated[int, Meta(description="bytes of the messages")]
    object_bytes: Annotated[int, Meta(description="bytes of the object")]
    digest: Annotated[str, Meta(description="checksum of the object")]


class SealedSegments(Answer):
    segments: list[SealedSegment]
    more: bool


@operation("storage.status", "Check object storage")
class GetObjectStorage(Request[ObjectStorage]):
    pass


@operation("storage.usage", "Show what a topic or partition stores in each tier")
class GetUsage(Request[TopicUsage]):
    topic: str


@operation("storage.list", "Show what topics store in each tier, by name")
class ListUsage(Request[TopicUsages]):
    namespace: str = "default"
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("storage.segments", "List the segments of a topic or partition, oldest first")
class ListSegments(Request[Segments]):
    topic: str
    start: Annotated[Offset, Meta(description="segments that contain this offset or later ones")] = 0
    limit: Limit = LISTED_MAX


@operation("storage.table", "Describe the table of a topic")
class DescribeTable(Request[Table]):
    topic: str


@operation("storage.verify", "Read a segment and verify it")
class VerifySegment(Request[Verification]):
    topic: str
    first: Annotated[Offset, Meta(description="the first offset of the segment")]
    ticket: Ticket | None = None


@operation("storage.damage", "List topics with known or possible damage")
class ListDamage(Request[DamagedTopics]):
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("storage.salvage", "List the damage of a topic or partition, or accept the loss")
class SalvageTopic(Request[Salvage]):
    topic: str
    accept: Annotated[bool, Meta(description="accept the loss for good; without it, damage is only listed")] = False
    ticket: Ticket | None = None


@operation("storage.upload", "Upload a topic or partition now")
class UploadTopic(Request[Upload]):
    topic: str
    ticket: Ticket | None = None


@operation("storage.locate", "Where segments are, for jobs that read them directly")
class LocateObjects(Request[ObjectsLocation]):
    pass


@operation("storage.sealed", "List the uploaded segments that have offsets of a range")
class ListSealed(Request[SealedSegments]):
    topic: str
    end: Offset
    start: Offset = 0
    limit: Limit = LISTED_MAX
