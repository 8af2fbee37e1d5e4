"""Who holds what of an open topic: its producers, its consumers, and the principal that every call names."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydanube.base.names import TopicName
from pydanube.broker.best_effort_topic import BestEffortSubscription, BestEffortTopic
from pydanube.broker.delivery import Consumer
from pydanube.broker.directory import TopicRecord
from pydanube.broker.policies import Policies
from pydanube.broker.subscription import SubscriptionHost
from pydanube.broker.topic import Session, Topic

AnyTopic = Topic | BestEffortTopic
AnySubscription = SubscriptionHost | BestEffortSubscription


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. Permissions come later; every call already says it."""

    name: str = "anonymous"


ANONYMOUS = Principal()


@dataclass(eq=False, slots=True)
class Producer:
    """A producer's hold on one topic (partition)."""

    open: Opened
    session: Session | None  # None without a name: what it sends is not deduplicated
    reliable: bool


@dataclass(eq=False, slots=True)
class ConsumerHold:
    """A consumer's hold on one subscription of one topic (partition)."""

    open: Opened
    host: AnySubscription
    consumer: Consumer


@dataclass(eq=False, slots=True)
class Opened:
    """A topic (partition) that is served here, who uses it, and what it allows."""

    name: TopicName
    record: TopicRecord
    topic: AnyTopic
    policies: Policies
    producers: dict[int, Producer] = field(default_factory=dict)
    consumers: dict[int, ConsumerHold] = field(default_factory=dict)
