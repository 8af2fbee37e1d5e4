"""Operations on topics: what exists, what it stores, and its dead letters."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType, field

from pydanube.base.limits import LISTED_MAX, NEWS_PARTITIONS_MAX, OFFSET_MAX, TOPIC_WATCH_NAMESPACES_MAX
from pydanube.operations.fields import (
    After,
    DryRun,
    Durability,
    DurabilityName,
    KeyHash,
    Limit,
    Milliseconds,
    Offset,
    Partitions,
)
from pydanube.operations.operation import Answer, Done, Request, operation
from pydanube.operations.policies import Policies, PolicyChanges
from pydanube.operations.storage import TierUsage


class Topic(Answer):
    topic: str
    id: Annotated[int, Meta(description="another topic of the same name has another one")]
    reliable: bool
    partitions: Annotated[int, Meta(description="0 if the topic is not partitioned")]
    durability: Durability
    policies: Policies
    key_hash: Annotated[KeyHash, Meta(description="what decides the partition of a key")]
    dead_letters: Annotated[bool, Meta(description="whether it was created for dead letters")]


class Topics(Answer):
    topics: list[Topic]
    more: bool


class DamagedOffsets(Answer):
    partition: int | None
    first: Annotated[int, Meta(description="the first damaged offset")]
    last: Annotated[int, Meta(description="the last damaged offset")]


class TopicDescription(Topic):
    first: Annotated[
        int | None, Meta(description="the first offset that still exists; of one partition or an unpartitioned topic")
    ]
    end: Annotated[
        int | None, Meta(description="the offset after the last message; of one partition or an unpartitioned topic")
    ]
    firsts: Annotated[list[int], Meta(description="one for each partition")]
    ends: Annotated[list[int], Meta(description="one for each partition")]
    bytes: Annotated[int, Meta(description="bytes of all messages")]
    producers: int
    consumers: int
    subscriptions: int
    tiers: Annotated[TierUsage | None, Meta(description="null if the topic is not reliable")]
    lost_messages: Annotated[int, Meta(description="lost by damage that was accepted")]
    lost_unknown: Annotated[int, Meta(description="accepted losses of unknown size")]
    damaged: list[DamagedOffsets]


class Truncated(Answer):
    messages: Annotated[int, Meta(description="how many were deleted")]


class Refusal(Answer):
    offset: Annotated[int, Meta(description="of the dead letter")]
    topic: Annotated[str, Meta(description="where it should have gone")]
    error: str


class Redriven(Answer):
    redriven: Annotated[int, Meta(description="how many were published again")]
    targets: Annotated[dict[str, int], Meta(description="how many to each topic, for as many topics as fit")]
    left: Annotated[int, Meta(description="messages that do not say where they came from, and stay")]
    refused: Annotated[int, Meta(description="how many could not be published")]
    refusals: list[Refusal]
    next: Annotated[int | None, Meta(description="the offset to continue from; null at the end")]


class Bounds(Answer):
    first: Annotated[int, Meta(description="the first offset that still exists")]
    end: Annotated[int, Meta(description="the offset after the last message")]


class FoundOffset(Answer):
    offset: int


@operation("topic", "Find a topic, and create it if asked to", changes=True)
class FindTopic(Request[Topic]):
    topic: str
    create: bool = False
    reliable: bool | None = None


@operation("topic.create", "Create a topic", changes=True)
class CreateTopic(Request[Topic]):
    topic: str
    reliable: Annotated[
        bool, Meta(description="whether messages are stored until they are acknowledged; default true")
    ] = True
    partitions: Annotated[
        Partitions, Meta(description="number of partitions; default 0, for an unpartitioned topic")
    ] = 0
    durability: Annotated[
        DurabilityName, Meta(description="what an acknowledgement means: on disk (the default), or within a second")
    ] = "fsynced"
    policies: PolicyChanges = field(default_factory=PolicyChanges)


@operation("topic.list", "List topics by name")
class ListTopics(Request[Topics]):
    namespace: str = "default"
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("topic.list_all", "List the topics of all namespaces by name")
class ListAllTopics(Request[Topics]):
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("topic.describe", "Describe a topic")
class DescribeTopic(Request[TopicDescription]):
    topic: str


@operation("topic.alter", "Add partitions or change policies", changes=True)
class AlterTopic(Request[Topic]):
    topic: str
    partitions: Annotated[Partitions, Meta(description="the new number of partitions")] | None = None
    policies: PolicyChanges = field(default_factory=PolicyChanges)


@operation("topic.delete", "Delete a topic with all its messages and subscriptions", changes=True)
class DeleteTopic(Request[Done]):
    topic: str
    dry_run: DryRun = False


@operation("topic.truncate", "Delete all messages, or those before an offset", changes=True)
class TruncateTopic(Request[Truncated]):
    topic: str
    before: Annotated[Offset, Meta(description="the first offset to keep")] | None = None
    dry_run: DryRun = False


@operation("dlq.redrive", "Publish the dead letters of this topic to their original topics again", changes=True)
class Redrive(Request[Redriven]):
    topic: str
    limit: (
        Annotated[
            int,
            Meta(
                ge=1,
                description=f"maximum number; a request publishes at most {LISTED_MAX}. "
                "A dry run without it counts all",
            ),
        ]
        | UnsetType
    ) = UNSET
    to: Annotated[str, Meta(description="target topic, /namespace/name, instead of the original ones")] | None = None
    filter: Annotated[
        dict[str, str],
        Meta(description="only dead letters that match: topic, subscription, reason, key, or an attribute"),
    ] = field(default_factory=dict)
    start: Annotated[
        int,
        Meta(ge=0, description="only dead letters from this offset on; `next` in the previous response"),
    ] = 0
    end: Annotated[int, Meta(ge=0, description="only dead letters before this offset")] = OFFSET_MAX
    dry_run: DryRun = False


@operation("bounds", "Get the first offset and the end offset")
class GetBounds(Request[Bounds]):
    topic: str


@operation("offset_of_time", "Find the first offset appended at or after a time")
class FindOffset(Request[FoundOffset]):
    topic: str
    time: Annotated[int, Meta(description="microseconds since 1970")]


class TopicChanges(Answer):
    revision: int
    topics: list[str]
    missed: bool


@operation("topic.watch", "Wait for topics to change")
class WatchTopics(Request[TopicChanges]):
    namespaces: Annotated[list[str], Meta(max_length=TOPIC_WATCH_NAMESPACES_MAX)] | None = None
    revision: int | None = None
    milliseconds: Milliseconds = 0


@operation("news", "Wait until one of the partitions has a new message")
class AwaitMessages(Request[Done]):
    offsets: Annotated[dict[str, Offset], Meta(min_length=1, max_length=NEWS_PARTITIONS_MAX)]
    milliseconds: Milliseconds
