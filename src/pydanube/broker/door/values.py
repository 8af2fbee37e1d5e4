"""The values and handles that pass through the door. Faces know nothing else of what is behind it."""

from __future__ import annotations

from pydanube.base.errors import RequestInvalid
from pydanube.base.fields import listed, shown
from pydanube.broker.limits.intake import Account
from pydanube.broker.serving.handles import AckVerdict, ConsumerHandle, ProducerHandle, SubscriptionHandle
from pydanube.broker.serving.open_topic import Start
from pydanube.broker.state.options import SubscriptionOptions
from pydanube.broker.subscription.delivery import PRODUCER_ATTRIBUTE, Delivery, Timing
from pydanube.broker.topic.dead_letter import ORIGIN, SUBSCRIBER
from pydanube.broker.topic.served import EARLIEST, LATEST, Receipt
from pydanube.broker.work.decoding import takes_long_to_decode
from pydanube.metadata.tables import KnownConsumer
from pydanube.operations.fields import TYPES, AtTime, type_named
from pydanube.topic.policies import Policies
from pydanube.topic.record import TopicRecord
from pydanube.topic.records import SubscriptionKind

__all__ = [
    "EARLIEST",
    "LATEST",
    "ORIGIN",
    "PRODUCER_ATTRIBUTE",
    "SUBSCRIBER",
    "Account",
    "AckVerdict",
    "ConsumerHandle",
    "Delivery",
    "KnownConsumer",
    "Policies",
    "ProducerHandle",
    "Receipt",
    "Start",
    "SubscriptionHandle",
    "SubscriptionOptions",
    "Timing",
    "TopicRecord",
    "start_of",
    "subscription_kind",
    "takes_long_to_decode",
]


def subscription_kind(text: str) -> SubscriptionKind:
    name = type_named(text)
    if name is None:
        raise RequestInvalid(f"type must be {listed(TYPES)}, got {shown(text)}")
    return SubscriptionKind[name.upper()]


def start_of(position: str | int | AtTime) -> Start:
    return {"time": position.time} if isinstance(position, AtTime) else position
