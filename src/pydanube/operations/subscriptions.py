"""Operations on subscriptions: progress, options, and why a message is not delivered."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from pydanube.base.limits import LISTED_MAX
from pydanube.operations.fields import After, DryRun, Limit, Offset, Position, SubscriptionType, Type
from pydanube.operations.operation import Answer, Done, Request, operation
from pydanube.operations.options import OptionChanges, Options


class Subscription(Answer):
    subscription: str
    type: SubscriptionType
    floor: Annotated[
        int | None, Meta(description="everything below this offset is done; of one partition or an unpartitioned topic")
    ]
    end: Annotated[
        int | None, Meta(description="the offset after the last message; of one partition or an unpartitioned topic")
    ]
    generation: Annotated[int | None, Meta(description="rises each time the subscription is moved")]
    backlog: Annotated[int, Meta(description="messages that are not done")]
    backlog_seconds: Annotated[float | None, Meta(description="age of the oldest of these")]
    in_flight: Annotated[int, Meta(description="delivered messages that are not done")]
    consumers: Annotated[int, Meta(description="connected consumers, in all partitions")]
    paused: bool
    blocked: Annotated[str | None, Meta(description="which message blocks it, in words")]
    unreadable: Annotated[str | None, Meta(description="why the next messages cannot be read")]
    delayed: Annotated[int, Meta(description="messages that wait for their delivery time")]
    delayed_until: Annotated[int | None, Meta(description="the earliest of these times, in microseconds since 1970")]
    stopped: Annotated[int, Meta(description="messages held back by one that failed too often")]


class Subscriptions(Answer):
    subscriptions: list[Subscription]
    more: bool


class SubscriptionDescription(Subscription):
    floors: Annotated[list[int | None], Meta(description="one for each partition")]
    ends: Annotated[list[int | None], Meta(description="one for each partition")]
    blocked_at: Annotated[list[int | None], Meta(description="offset of the message that blocks each partition")]
    counts: Annotated[dict[str, int], Meta(description="finished messages by cause")]
    options: Options


class Skipped(Answer):
    skipped: Annotated[int, Meta(description="number of messages")]


class BlockedSubscription(Answer):
    topic: str
    subscription: str
    offset: Annotated[int, Meta(description="of the message that failed too often")]


class BlockedSubscriptions(Answer):
    blocked: list[BlockedSubscription]


class AbandonedSubscription(Answer):
    topic: str
    subscription: str
    backlog_seconds: Annotated[float, Meta(description="age of the oldest message that is not done")]


class AbandonedSubscriptions(Answer):
    abandoned: list[AbandonedSubscription]


class Consumer(Answer):
    name: str
    address: Annotated[str, Meta(description="host:port of its client")]
    consumers: Annotated[list[int], Meta(description="its number in each of the partitions")]
    partitions: Annotated[list[int], Meta(description="none if the topic is not partitioned")]
    active: Annotated[bool, Meta(description="whether it gets messages anywhere, or only stands by")]
    active_partitions: list[int]
    in_flight: Annotated[int, Meta(description="delivered messages that are not done")]


class Consumers(Answer):
    consumers: list[Consumer]
    more: bool


class Explanation(Answer):
    partition: int | None
    offset: Annotated[int | None, Meta(description="of the message that is explained")]
    code: Annotated[str | None, Meta(description="the cause, for programs")]
    until: Annotated[int | None, Meta(description="when the cause ends by itself, in microseconds since 1970")]
    sentence: str
    backlog: Annotated[int, Meta(description="messages that are not done")]
    total: Annotated[int, Meta(description="messages since the subscription's start")]


class Explanations(Answer):
    sentence: str
    backlog: Annotated[int, Meta(description="messages of all partitions that are not done")]
    total: Annotated[int, Meta(description="messages of all partitions since the subscription's start")]
    explanations: list[Explanation]
    more: Annotated[
        bool, Meta(description="whether partitions are left out, those without a backlog first; name one to explain it")
    ]


@operation("subscription.create", "Create a subscription", changes=True)
class CreateSubscription(Request[Done]):
    topic: str
    subscription: str
    type: Type = "exclusive"
    start: Position = "latest"
    options: OptionChanges | None = None


@operation("subscription.list", "List subscriptions by name")
class ListSubscriptions(Request[Subscriptions]):
    topic: str
    after: After = ""
    limit: Limit = LISTED_MAX


@operation("subscription.describe", "Describe a subscription and its progress")
class DescribeSubscription(Request[SubscriptionDescription]):
    topic: str
    subscription: str


@operation("subscription.alter", "Change the options of a subscription", changes=True)
class AlterSubscription(Request[SubscriptionDescription]):
    topic: str
    subscription: str
    options: OptionChanges


@operation("subscription.seek", "Move a subscription to another position", changes=True)
class SeekSubscription(Request[SubscriptionDescription]):
    topic: str
    subscription: str
    to: Position
    dry_run: DryRun = False


@operation("subscription.skip", "Skip the next messages, or all before an offset", changes=True)
class SkipMessages(Request[Skipped]):
    topic: str
    subscription: str
    count: Annotated[Offset, Meta(description="number of messages to skip")] | None = None
    offset: Annotated[Offset, Meta(description="the first offset to keep")] | None = None
    dry_run: DryRun = False


@operation("subscription.delete", "Delete a subscription", changes=True)
class DeleteSubscription(Request[Done]):
    topic: str
    subscription: str
    dry_run: DryRun = False


@operation("subscription.blocked", "Subscriptions blocked by a message that failed too often")
class ListBlocked(Request[BlockedSubscriptions]):
    pass


@operation("subscription.abandoned", "Subscriptions that no consumer has used for days")
class ListAbandoned(Request[AbandonedSubscriptions]):
    pass


@operation("subscription.consumers", "List the consumers of a subscription, with addresses and partitions")
class ListConsumers(Request[Consumers]):
    topic: str
    subscription: str
    after: Annotated[int, Meta(ge=0, description="number of consumers already listed")] = 0
    limit: Limit = LISTED_MAX


@operation("explain", "Explain why a message is not delivered, or why a consumer gets nothing")
class Explain(Request[Explanations]):
    topic: str
    subscription: str
    offset: (
        Annotated[Offset, Meta(description="offset of the message; by default, the first unacknowledged one")] | None
    ) = None
    consumer: (
        Annotated[int, Meta(ge=0, description="explain why the consumer with this number gets nothing")] | None
    ) = None
